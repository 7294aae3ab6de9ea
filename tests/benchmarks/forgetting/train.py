"""Pretraining on many languages, and SFT on dialogues, both a page of code.

All randomness comes from one seed; one thread, so that a run is the same wherever it is repeated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn import functional

from coverage_job.remedies.protect import IGNORED, RowKeeper, masked_cross_entropy
from tests.benchmarks.forgetting.model import ASSISTANT, EOS, SPECIALS, USER, Decoder, Shape

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

# The ids of a repeating dialogue before the text, between it and the answer's copy of it.
Frame = tuple[list[int], list[int]]


@dataclass(frozen=True)
class Recipe:
    """What a run costs.

    copied: ids that one copy row repeats. copy_rows: rows of a batch that are to be copied, in
    pretraining. sft_rows: rows of narrow SFT, passed once.
    """

    vocabulary: int = 1024
    megabytes: float = 0.3
    width: int = 64
    layers: int = 2
    context: int = 96
    smear: float = 0.8
    copied: int = 16
    batch: int = 12
    copy_rows: int = 6
    steps: int = 1300
    rate: float = 8e-3
    sft_rows: int = 600
    sft_batch: int = 4
    sft_rate: float = 2e-3


TINY = Recipe()
FULL = Recipe(vocabulary=2048, megabytes=0.4, smear=0.5, copied=24, batch=16, steps=2400, rate=5e-3)


def train_tokenizer(texts: dict[str, list[str]], size: int) -> Tokenizer:
    """A byte-level BPE tokenizer over all languages."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((text for part in texts.values() for text in part), trainer)
    return tokenizer


def encode_documents(tokenizer: Tokenizer, texts: Sequence[str]) -> Int64:
    """Documents back to back, each ended."""
    ids: list[int] = []
    for text in texts:
        ids += [*tokenizer.encode(text, add_special_tokens=False).ids, EOS]
    return np.array(ids, dtype=np.int64)


def frames(tokenizer: Tokenizer, instructions: Sequence[str]) -> list[Frame]:
    """The ids around `{text}` in dialogues that ask for it to be repeated."""
    made = []
    for instruction in instructions:
        before, after = (
            tokenizer.encode(part, add_special_tokens=False).ids for part in instruction.split("{text}")
        )
        made.append(([USER, *before], [*after, ASSISTANT]))
    return made


def copy_row(frame: Frame, ids: Sequence[int]) -> tuple[list[int], list[bool]]:
    """A dialogue that repeats ids, and which of its tokens are targets."""
    before, between = frame
    asked = [*before, *ids, *between]
    return [*asked, *ids, EOS], [False] * len(asked) + [True] * (len(ids) + 1)


def _learning_rate(step: int, steps: int, warmup: int) -> float:
    """A share of the peak: a short rise, then half a cosine down to a tenth."""
    return min(1.0, (step + 1) / warmup) * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * step / steps)))


def pretrain(
    recipe: Recipe,
    streams: dict[str, Int64],
    repeats: Sequence[Frame],
    seed: int,
    log: Callable[[int, float, float], None] | None = None,
) -> Decoder:
    """A base model: text of every language with equal probability, and a few rows to copy.

    streams: ids of each language's documents. Of the copy rows half are repeating dialogues, half a
    sequence with a period that grows from step to step: the short ones are learnt first.
    log: called with (step, loss of text, loss of copies) now and then.
    """
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    shape = Shape(recipe.vocabulary, recipe.width, recipe.layers, context=recipe.context, smear=recipe.smear)
    model = Decoder(shape)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.rate, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    length = recipe.context + 1
    texts = list(streams.values())
    for step in range(recipe.steps):
        rows, kept = [], []
        for number in range(recipe.batch):
            keep = np.ones(length - 1, dtype=bool)
            if number >= recipe.copy_rows:
                stream = texts[rng.integers(len(texts))]
                start = rng.integers(0, len(stream) - length)
                row = stream[start : start + length]
            elif number % 2:
                period = rng.integers(1, 1 + min(recipe.copied, 2 + step // 25))
                row = np.resize(rng.integers(len(SPECIALS), recipe.vocabulary, period), length)
            else:
                count = rng.integers(1, recipe.copied + 1) if number % 4 == 2 else recipe.copied
                ids = rng.integers(len(SPECIALS), recipe.vocabulary, count).tolist()
                dialogue, _ = copy_row(repeats[int(rng.integers(len(repeats)))], ids)
                row = np.array(dialogue + [EOS] * (length - len(dialogue)))
                # The ids to repeat cannot be foretold and are no target; their copy and its end are.
                keep[:] = False
                keep[len(dialogue) - count - 2 : len(dialogue) - 1] = True
            rows.append(row)
            kept.append(keep)
        batch, mask = torch.from_numpy(np.stack(rows)), torch.from_numpy(np.stack(kept))
        _step(model, optimizer, batch, mask, recipe.rate * _learning_rate(step, recipe.steps, 50))
        if log is not None and (step % 100 == 99 or step == recipe.steps - 1):
            with torch.no_grad():
                losses = functional.cross_entropy(
                    model(batch[:, :-1])[mask], batch[:, 1:][mask], reduction="none"
                )
            each = torch.zeros(mask.shape).masked_scatter(mask, losses).sum(1) / mask.sum(1)
            copies = each[: recipe.copy_rows : 2]
            log(step + 1, each[recipe.copy_rows :].mean().item(), copies.mean().item())
    return model


def _step(
    model: Decoder,
    optimizer: torch.optim.Optimizer,
    batch: torch.Tensor,
    mask: torch.Tensor,
    rate: float,
    masked: torch.Tensor | None = None,
) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate
    if masked is None:
        logits = model.lm_head(model.hidden(batch[:, :-1])[mask])
        loss = functional.cross_entropy(logits, batch[:, 1:][mask])
    else:
        labels = batch.clone()
        labels[:, 0] = IGNORED
        labels[:, 1:][~mask] = IGNORED
        loss = masked_cross_entropy(model(batch), labels, masked)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def encode_dialogue(tokenizer: Tokenizer, messages: Sequence[dict[str, str]]) -> tuple[list[int], list[bool]]:
    """Ids of a dialogue and which of them are targets: what the assistant says, and its end."""
    ids: list[int] = []
    targets: list[bool] = []
    for message in messages:
        content = tokenizer.encode(message["content"], add_special_tokens=False).ids
        if message["role"] == "assistant":
            ids += [ASSISTANT, *content, EOS]
            targets += [False, *[True] * (len(content) + 1)]
        else:
            ids += [USER, *content]
            targets += [False] * (len(content) + 1)
    return ids, targets


@dataclass(frozen=True)
class Rows:
    """Training rows: ids, int64[n, context + 1]; targets, bool[n, context], of ids[:, 1:]."""

    ids: Int64
    targets: Bool

    def __len__(self) -> int:
        return len(self.ids)

    def counts(self, vocabulary: int) -> Int64:
        """How often each id is a target."""
        return np.bincount(self.ids[:, 1:][self.targets], minlength=vocabulary).astype(np.int64)


def pack(dialogues: Sequence[tuple[list[int], list[bool]]], context: int) -> Rows:
    """Dialogues back to back, cut into rows, each target in one row; the last row is filled up."""
    ids = [i for dialogue, _ in dialogues for i in dialogue]
    targets = [t for _, flags in dialogues for t in flags][1:]
    count = max(1, math.ceil(len(targets) / context))
    ids += [EOS] * (count * context + 1 - len(ids))
    targets += [False] * (count * context - len(targets))
    rows = np.lib.stride_tricks.sliding_window_view(np.array(ids, dtype=np.int64), context + 1)[::context]
    return Rows(rows.copy(), np.array(targets, dtype=bool).reshape(count, context))


def one_per_row(dialogues: Sequence[tuple[list[int], list[bool]]], context: int) -> Rows:
    """One dialogue a row, cut or filled up to the context."""
    ids = np.full((len(dialogues), context + 1), EOS, dtype=np.int64)
    targets = np.zeros((len(dialogues), context), dtype=bool)
    for i, (dialogue, flags) in enumerate(dialogues):
        cut = dialogue[: context + 1]
        ids[i, : len(cut)] = cut
        targets[i, : len(cut) - 1] = flags[1 : len(cut)]
    return Rows(ids, targets)


def sft(
    base: Decoder,
    rows: Rows,
    recipe: Recipe,
    seed: int,
    *,
    extra: Sequence[Rows] = (),
    frozen_head: bool = False,
    kept_rows: Int64 | None = None,
    masked: Int64 | None = None,
) -> Decoder:
    """The base after one pass over `rows` and over each of `extra`, spread over the same steps.

    The order of `rows` is the same whatever is added. kept_rows: ids whose output rows the project's
    `RowKeeper` holds still. masked: ids that the project's `masked_cross_entropy` leaves out of the softmax.
    """
    torch.manual_seed(seed)
    model = Decoder(base.shape)
    model.load_state_dict(base.state_dict())
    model.lm_head.weight.requires_grad_(not frozen_head)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(
        trained, lr=recipe.sft_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True
    )
    keeper = RowKeeper(kept_rows).attach(model, optimizer, model.lm_head) if kept_rows is not None else None
    steps = math.ceil(len(rows) / recipe.sft_batch)
    rng = np.random.default_rng(seed)
    orders = [np.array_split(rng.permutation(len(part)), steps) for part in (rows, *extra)]
    for step in range(steps):
        parts = [(part, order[step]) for part, order in zip((rows, *extra), orders, strict=True)]
        ids = torch.from_numpy(np.concatenate([part.ids[order] for part, order in parts]))
        mask = torch.from_numpy(np.concatenate([part.targets[order] for part, order in parts]))
        rate = recipe.sft_rate * _learning_rate(step, steps, 15)
        _step(model, optimizer, ids, mask, rate, None if masked is None else torch.from_numpy(masked))
    if keeper is not None:
        keeper.detach()
    return model.eval()
