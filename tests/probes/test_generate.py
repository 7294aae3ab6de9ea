"""A transformers checkpoint made here: batching changes nothing, and probabilities are the model's."""

from __future__ import annotations

import numpy as np
import pytest

from coverage_job.errors import ProbeError
from coverage_job.probes.generate import TransformersModel, generate, largest_probabilities
from coverage_job.probes.journal import Journal
from coverage_job.probes.prompts import encode_prompt, write_prompts
from tests.probes.tiny import as_tokens, byte_tokenizer, save_model

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

TOKENIZER = byte_tokenizer()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return str(save_model(tmp_path_factory.mktemp("model"), TOKENIZER))


@pytest.fixture(scope="module")
def model(checkpoint):
    return TransformersModel(checkpoint, device="cpu", batch=4)


def some_prompts(model) -> list[tuple[str, list[int]]]:
    prompts = write_prompts(as_tokens([300, 310, 350, 40], TOKENIZER, "ja"), TOKENIZER)
    return [(p.prompt_id, encode_prompt(p, TOKENIZER, model.chat())) for p in prompts]


def step_by_step(model, ids: list[int], limit: int) -> list[int]:
    made: list[int] = []
    with torch.inference_mode():
        while len(made) < limit:
            best = int(model._model(torch.tensor([ids + made])).logits[0, -1].argmax())
            if best == 2:
                break
            made.append(best)
    return made


def test_a_batch_gives_what_each_prompt_gives_alone(model):
    prompts = [ids for _, ids in some_prompts(model)]
    together = model.generate(prompts, 6)
    assert together == [step_by_step(model, ids, 6) for ids in prompts]
    assert len({tuple(answer) for answer in together}) > 1


def test_the_journal_is_gone_on_with(model, tmp_path):
    prompts = some_prompts(model)
    with Journal(tmp_path / "j", {}) as journal:
        generate(model, TOKENIZER, prompts[:5], journal, 4)
        first = dict(journal.answers)
        seen = []
        generate(model, TOKENIZER, prompts, journal, 4, lambda done, total: seen.append((done, total)))
    assert {k: journal.answers[k] for k in first} == first
    assert sorted(journal.answers) == sorted(p for p, _ in prompts)
    assert seen[-1] == (12, 12)
    record = journal.answers[prompts[0][0]]
    assert record["response"] == TOKENIZER.decode(record["response_ids"])


def test_memory_that_does_not_suffice_halves_the_batch(model, tmp_path):
    class Small:
        batch = 8

        def __init__(self):
            self.sizes = []

        def generate(self, prompts, limit):
            self.sizes.append(len(prompts))
            if len(prompts) > 2:
                raise RuntimeError("CUDA out of memory")
            return [[7]] * len(prompts)

    small = Small()
    with Journal(tmp_path / "j", {}) as journal:
        generate(small, TOKENIZER, [(str(i), [1]) for i in range(5)], journal, 4)
    assert small.sizes == [5, 4, 2, 2, 1]
    assert len(journal.answers) == 5


def test_the_largest_probability_is_the_softmax_of_the_logits(model):
    contexts = [(300, [[5, 6, 7], [9] * 12]), (301, [[5, 6]])]
    found = largest_probabilities(model, contexts)
    for token_id, several in contexts:
        with torch.inference_mode():
            chances = [
                model._model(torch.tensor([ids])).logits[0, -1].softmax(-1)[token_id].item()
                for ids in several
            ]
        assert found[token_id] == pytest.approx(max(chances), rel=1e-4)


def test_output_rows_are_the_lm_head(model):
    rows = model.output_rows([3, 1])
    expected = model._model.lm_head.weight.detach().numpy()[[3, 1]]
    assert np.array_equal(rows, expected)


def test_a_checkpoint_without_a_template_is_given_bare_text(tmp_path):
    plain = TransformersModel(str(save_model(tmp_path, TOKENIZER, chat=False)), device="cpu")
    assert plain.chat() is None


def test_what_is_no_checkpoint_is_named(tmp_path):
    with pytest.raises(ProbeError, match="cannot be loaded"):
        TransformersModel(str(tmp_path), device="cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")
def test_a_gpu_that_is_not_there_is_named(checkpoint):
    with pytest.raises(ProbeError, match="--device cpu"):
        TransformersModel(checkpoint, device="cuda")
