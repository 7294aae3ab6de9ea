from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from coverage_job.errors import RemedyError
from coverage_job.remedies.protect import (
    RowKeeper,
    masked_cross_entropy,
    masked_loss,
    protected_ids,
    trainer_callback,
)
from tests.remedies.helpers import fabricate, tiny_tokenizer

torch = pytest.importorskip("torch", reason="torch is not installed (extra `drift`)")

ROWS = 50
IDS = np.array([3, 7, 20, 49])


class Model(torch.nn.Module):
    def __init__(self, bias: bool = False, tied: bool = False) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(ROWS, 8)
        self.body = torch.nn.Linear(8, 8)
        self.head = torch.nn.Linear(8, ROWS, bias=bias)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, ids):
        return self.head(torch.tanh(self.body(self.embedding(ids))))

    def get_output_embeddings(self):
        return self.head


def batch(seed: int, avoid: np.ndarray = IDS):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, ROWS, (4, 12), generator=generator)
    labels = ids.clone()
    labels[:, :4] = -100
    labels[torch.isin(labels, torch.as_tensor(avoid))] = -100
    return ids, labels


def plain_loss(logits, labels):
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def bits(tensor):
    return tensor.detach().contiguous().numpy().tobytes()


@pytest.mark.parametrize("optimizer_class", [torch.optim.AdamW, torch.optim.SGD])
@pytest.mark.parametrize("bias", [False, True])
def test_kept_rows_do_not_change_by_a_bit(optimizer_class, bias):
    torch.manual_seed(0)
    model = Model(bias=bias)
    extra = {"momentum": 0.9} if optimizer_class is torch.optim.SGD else {}
    optimizer = optimizer_class(model.parameters(), lr=0.1, weight_decay=0.1, **extra)
    # State from before: momentum alone would go on moving the rows.
    plain_loss(model(batch(9, avoid=np.array([]))[0]), batch(9, avoid=np.array([]))[1]).backward()
    optimizer.step()
    optimizer.zero_grad()
    before = model.head.weight.detach().clone()
    other = np.setdiff1d(np.arange(ROWS), IDS)
    before_bias = model.head.bias.detach().clone() if bias else None
    keeper = RowKeeper(IDS).attach(model, optimizer)
    for step in range(3):
        for part in range(2):  # gradient accumulation
            ids, labels = batch(10 * step + part)
            (plain_loss(model(ids), labels) / 2).backward()
        assert not model.head.weight.grad[IDS].any()
        optimizer.step()
        optimizer.zero_grad()
    assert bits(model.head.weight[IDS]) == bits(before[IDS])
    assert (model.head.weight[other] != before[other]).any(1).all()
    if bias:
        assert bits(model.head.bias[IDS]) == bits(before_bias[IDS])
    keeper.detach()
    ids, labels = batch(99)
    plain_loss(model(ids), labels).backward()
    optimizer.step()
    assert bits(model.head.weight[IDS]) != bits(before[IDS])


def test_masked_rows_get_no_gradient():
    torch.manual_seed(0)
    model = Model()
    ids, labels = batch(1)
    masked_cross_entropy(model(ids), labels, torch.as_tensor(IDS)).backward()
    gradient = model.head.weight.grad
    assert not gradient[IDS].any()
    model.zero_grad()
    plain_loss(model(ids), labels).backward()
    assert model.head.weight.grad[IDS].any(1).all()


def test_masked_loss_is_the_loss_of_a_smaller_vocabulary():
    torch.manual_seed(0)
    model = Model()
    ids, labels = batch(2)
    logits = model(ids)
    kept = np.setdiff1d(np.arange(ROWS), IDS)
    place = torch.full((ROWS,), -100)
    place[kept] = torch.arange(len(kept))
    small = torch.where(labels == -100, labels, place[labels.clamp(min=0)])
    expected = plain_loss(logits[..., kept], small)
    got = masked_cross_entropy(logits, labels, torch.as_tensor(IDS))
    assert torch.allclose(got, expected)
    assert torch.allclose(
        masked_cross_entropy(logits, labels, torch.as_tensor(IDS[:0])), plain_loss(logits, labels)
    )


def test_a_masked_token_that_is_a_target_has_a_finite_loss():
    logits = torch.zeros(1, 2, 4, requires_grad=True)
    labels = torch.tensor([[0, 3]])
    loss = masked_cross_entropy(logits, labels, torch.tensor([2, 3]))
    assert torch.allclose(loss, torch.log(torch.tensor(3.0)))
    loss.backward()
    assert logits.grad[0, 0, 2] == 0


@pytest.mark.parametrize(
    ("model", "ids", "output", "match"),
    [
        (Model(tied=True), IDS, None, "tied to embedding"),
        (Model(), np.array([ROWS]), None, "no row of the output matrix"),
        (torch.nn.Linear(8, ROWS), IDS, None, "names no output layer"),
        (Model().requires_grad_(False), IDS, None, "frozen"),
    ],
)
def test_what_cannot_be_protected_is_refused_with_the_reason(model, ids, output, match):
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1)), *model.parameters()])
    with pytest.raises(RemedyError, match=match):
        RowKeeper(ids).attach(model, optimizer, output)


def test_another_optimizer_is_refused():
    model = Model()
    with pytest.raises(RemedyError, match="does not train the output matrix"):
        RowKeeper(IDS).attach(model, torch.optim.AdamW(model.body.parameters()))


def test_protected_ids_are_the_flagged_and_the_excluded():
    coverage = pl.DataFrame(
        {
            "token_id": [0, 1, 2, 3, 4, 5],
            "status": ["covered", "low", "critical", "absent", "exempt", "absent"],
            "action": ["none", "repeat", "mix", "protect", "exempt", "prune_candidate"],
        }
    )
    ids = protected_ids(coverage)
    assert ids.dtype == np.int64
    assert ids.tolist() == [1, 2, 3, 5]


def causal_model(rows: int):
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(vocab_size=rows, tie_word_embeddings=False, **sizes))


def examples(rows: int):
    generator = np.random.default_rng(0)
    made = []
    for _ in range(8):
        ids = generator.integers(0, rows, 10)
        made.append({"input_ids": ids.tolist(), "labels": np.where(np.isin(ids, IDS), -100, ids).tolist()})
    return made


ARGUMENTS = {
    "max_steps": 3,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "weight_decay": 0.1,
    "learning_rate": 1e-2,
    "warmup_steps": 0,
    "report_to": [],
    "save_strategy": "no",
    "use_cpu": True,
    "bf16": False,
    "disable_tqdm": True,
}


@pytest.mark.parametrize("masked", [False, True])
def test_trainer_keeps_the_rows(masked, tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed (extra `probe`)")
    pytest.importorskip("accelerate", reason="accelerate is not installed, which transformers' Trainer needs")
    model = causal_model(ROWS)
    before = model.lm_head.weight.detach().clone()
    trainer = transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(output_dir=str(tmp_path), **ARGUMENTS),
        train_dataset=examples(ROWS),
        data_collator=lambda rows: {k: torch.tensor([r[k] for r in rows]) for k in rows[0]},
        compute_loss_func=masked_loss(IDS) if masked else None,
        callbacks=[trainer_callback(IDS)],
    )
    trainer.train()
    assert bits(model.lm_head.weight[IDS]) == bits(before[IDS])
    other = np.setdiff1d(np.arange(ROWS), IDS)
    assert (model.lm_head.weight[other] != before[other]).any(1).all()


@pytest.mark.parametrize("masked", [False, True])
def test_trl_keeps_the_rows(masked, tmp_path, monkeypatch):
    trl = pytest.importorskip("trl", reason="trl is not installed")
    datasets = pytest.importorskip("datasets")
    from transformers import PreTrainedTokenizerFast

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    tokenizer = tiny_tokenizer("bytes")
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|end|>")
    model = causal_model(len(fast))
    texts = [f"<|start|>assistant\nsay {n}<|end|>\n" for n in range(8)]
    seen = {i for text in texts for i in tokenizer.encode(text).ids}
    ids = np.setdiff1d(np.arange(len(fast)), list(seen))[::7]
    before = model.lm_head.weight.detach().clone()
    trainer = trl.SFTTrainer(
        model=model,
        args=trl.SFTConfig(output_dir=str(tmp_path), max_length=64, **ARGUMENTS),
        train_dataset=datasets.Dataset.from_dict({"text": texts}),
        processing_class=fast,
        compute_loss_func=masked_loss(ids) if masked else None,
        callbacks=[trainer_callback(ids)],
    )
    trainer.train()
    assert bits(model.lm_head.weight[ids]) == bits(before[ids])
    assert (model.lm_head.weight[list(seen)] != before[list(seen)]).any()


def test_the_hook_is_made_from_a_table():
    coverage = fabricate(tiny_tokenizer("bytes"), "bytes")
    ids = protected_ids(coverage)
    assert len(ids) == (coverage["status"] == "absent").sum() > 0
