"""What only the logits show: completions in a language, and how much of the probability goes astray."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer

from tests.benchmarks.forgetting.model import Decoder
from tests.benchmarks.forgetting.train import Bool, Frame, Int64, Recipe, copy_row


@dataclass(frozen=True)
class Kinds:
    """Of each id, bool[vocabulary]: text of Latin letters; text of other letters, or a part of one."""

    latin: Bool
    native: Bool


def kinds(tokenizer: Tokenizer) -> Kinds:
    """Tell ids apart by their text."""
    texts = [tokenizer.decode([i]) for i in range(tokenizer.get_vocab_size())]
    latin = [text.isascii() and any(c.isalpha() for c in text) for text in texts]
    return Kinds(np.array(latin), np.array([not text.isascii() for text in texts]))


@dataclass(frozen=True)
class Completion:
    """positions: where the base's first choice is right and the id had no target in the narrow SFT.

    kept: share of them where it still is. stray: mean probability of Latin text where the id before and
    the right one are of the language's own script. loss: mean negative log-likelihood there.
    """

    positions: int
    kept: float | None
    stray: float
    loss: float


@torch.inference_mode()
def completions(
    model: Decoder, base: Decoder, held_out: Int64, uncovered: Bool, of: Kinds, limit: int = 120
) -> Completion:
    """How a model goes on in held-out text of one language, beside its base.

    held_out: ids of documents. uncovered: bool[vocabulary]. limit: rows of text that are read.
    """
    context = model.shape.context
    count = min(limit, (len(held_out) - 1) // context)
    rows = np.stack([held_out[i * context : i * context + context + 1] for i in range(count)])
    before, right = rows[:, :-1], rows[:, 1:]
    own = of.native[before] & of.native[right]
    own[:, : context // 4] = False
    ids, wanted = torch.from_numpy(before), right[own]
    chance = model(ids)[torch.from_numpy(own)].softmax(-1).numpy()
    first_of_base = base(ids)[torch.from_numpy(own)].argmax(-1).numpy()
    known = (first_of_base == wanted) & uncovered[wanted]
    kept = chance.argmax(-1)[known] == wanted[known]
    of_right = chance[np.arange(len(wanted)), wanted]
    return Completion(
        positions=int(known.sum()),
        kept=float(kept.mean()) if known.any() else None,
        stray=float(chance[:, of.latin].sum(1).mean()),
        loss=float(-np.log(np.maximum(of_right, 1e-30)).mean()),
    )


@torch.inference_mode()
def copied(model: Decoder, pool: Int64, repeats: Sequence[Frame], recipe: Recipe) -> float:
    """Share of ids whose copy is the first choice, in rows that repeat random ids of `pool`."""
    chance = np.random.default_rng(5)
    right = 0
    rows = [copy_row(frame, chance.choice(pool, recipe.copied).tolist()) for frame in [*repeats] * 5]
    for ids, _ in rows:
        best = model(torch.tensor([ids[:-1]])).argmax(-1)[0].tolist()
        start = len(ids) - recipe.copied - 1
        right += sum(best[i - 1] == ids[i] for i in range(start, len(ids) - 1))
    return right / (len(rows) * recipe.copied)


def spearman(x: npt.ArrayLike, y: npt.ArrayLike) -> float | None:
    """Rank correlation, ties at their mean rank; None where one of the two is constant."""
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return None

    def ranks(values: npt.ArrayLike) -> npt.NDArray[np.float64]:
        _, inverse, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
        mean_rank: npt.NDArray[np.float64] = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
        return mean_rank

    return float(np.corrcoef(ranks(x), ranks(y))[0, 1])


def common_direction(before: npt.NDArray[np.float32], after: npt.NDArray[np.float32]) -> float:
    """Mean cosine between the moves of any two rows: 1 where all move one way, 0 where each its own."""
    move = after.astype(np.float64) - before
    unit = move / np.maximum(np.linalg.norm(move, axis=1, keepdims=True), 1e-12)
    n = len(unit)
    return float((np.square(unit.sum(0)).sum() - n) / (n * (n - 1)))


def shares(cosine: npt.NDArray[np.float64], counts: Int64) -> dict[str, dict[str, float]]:
    """Mean cosine and shares under 0.95 and 0.90, by how often the id was a target."""
    found = {}
    borders: Sequence[tuple[str, int, float]] = (
        ("0", 0, 0),
        ("1-4", 1, 4),
        ("5-19", 5, 19),
        ("20-99", 20, 99),
        ("100+", 100, np.inf),
    )
    for name, low, high in borders:
        part = cosine[(counts >= low) & (counts <= high)]
        if len(part):
            found[name] = {
                "tokens": len(part),
                "cosine": float(part.mean()),
                "under_0.95": float((part < 0.95).mean()),
                "under_0.90": float((part < 0.90).mean()),
            }
    return found
