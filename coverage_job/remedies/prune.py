"""A smaller vocabulary: tokens that no stage uses, taken out so that all other text encodes as before.

What merges of kept tokens need is kept (closure over the parts of *every* merge that gives a kept
token). A removed token is then a part of removed tokens only, so where a text's encoding holds no
removed token, none was formed on the way either, and the same merges happen in the same order.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
from tokenizers import Tokenizer

from coverage_job.errors import RemedyError
from coverage_job.schemas import Kind
from coverage_job.tokenizer.load import encode_all

Int64 = npt.NDArray[np.int64]

REMOVED = -1
_BATCH = 256


def propose(
    coverage: pl.DataFrame, tokenizer: Tokenizer, *, max_pretraining: int = 0, max_posttraining: int = 0
) -> pl.DataFrame:
    """What to remove: columns old_id, token, new_id (null where removed), reason, becomes.

    coverage: the run's table. max_*: occurrences up to which a token is rare in that stage. becomes: the
    new ids that a removed token's text encodes to (null where it has no text of its own). New ids keep
    the old order and leave no holes. Raises RemedyError where the tokenizer's model is of no known kind.
    """
    data = json.loads(tokenizer.to_str())
    rows = coverage.select(
        "token_id", "token", "token_bytes", "kind", "pretraining_occurrences", "posttraining_occurrences"
    ).sort("token_id")
    reasons: dict[int, str] = {}
    texts: dict[int, str] = {}
    for token_id, _, token_bytes, kind, pretraining, posttraining in rows.iter_rows():
        if kind == Kind.UNUSED.value:
            reasons[token_id] = "removed: no token has this row"
        elif kind != Kind.BASE.value:
            reasons[token_id] = f"kept: {kind}"
        elif pretraining > max_pretraining or posttraining > max_posttraining:
            reasons[token_id] = "kept: used"
        else:
            reasons[token_id] = "removed: rare in both stages"
            texts[token_id] = token_bytes.decode("utf-8", "replace")
    _keep(reasons, _roots(data), "kept: the unknown token")
    _close(reasons, data)
    # A text that only this entry can write would become unknown.
    while lost := _unknown(data, _new_ids(reasons, len(rows)), texts, reasons):
        _keep(reasons, lost, "kept: its text would be unknown")
        _close(reasons, data)

    new_ids = _new_ids(reasons, len(rows))
    pruned = Tokenizer.from_str(json.dumps(apply(data, new_ids)))
    gone = [v for v in texts if new_ids[v] == REMOVED and "\ufffd" not in texts[v]]
    becomes = dict(zip(gone, encode_all(pruned, [texts[v] for v in gone]), strict=True))
    return pl.DataFrame(
        {
            "old_id": rows["token_id"],
            "token": rows["token"],
            "new_id": [None if i == REMOVED else int(i) for i in new_ids],
            "reason": [reasons[v] for v in range(len(rows))],
            "becomes": [becomes.get(v) for v in range(len(rows))],
        },
        schema_overrides={"new_id": pl.Int32, "becomes": pl.List(pl.Int32)},
    )


def id_map(proposal: pl.DataFrame) -> Int64:
    """int64[old rows]: the new id of each old one, -1 where removed."""
    return proposal["new_id"].fill_null(REMOVED).to_numpy().astype(np.int64)


def _keep(reasons: dict[int, str], ids: Iterable[int], why: str) -> None:
    for token_id in ids:
        if reasons.get(token_id, "").startswith("removed"):
            reasons[token_id] = why


def _roots(data: Mapping[str, Any]) -> list[int]:
    model = data["model"]
    if model.get("unk_id") is not None:
        return [model["unk_id"]]
    unknown = model.get("unk_token")
    return [model["vocab"][unknown]] if unknown and unknown in model["vocab"] else []


def _merges(model: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(left, right, result) of each merge, in order of rank."""
    prefix = model.get("continuing_subword_prefix") or ""
    for merge in model["merges"]:
        left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
        yield left, right, left + right.removeprefix(prefix)


def _close(reasons: dict[int, str], data: Mapping[str, Any]) -> None:
    """Keep the parts of every merge whose result is kept."""
    model = data["model"]
    if model["type"] in ("Unigram", "WordPiece", "WordLevel"):
        return  # entries are looked up whole; none is built from others
    if model["type"] != "BPE":
        raise RemedyError(f"prune: a tokenizer of model {model['type']} cannot be pruned")
    vocab: dict[str, int] = model["vocab"]
    parts: dict[int, list[tuple[int, int]]] = {}
    for left, right, result in _merges(model):
        parts.setdefault(vocab[result], []).append((vocab[left], vocab[right]))
    todo = [v for v in parts if reasons[v].startswith("kept")]
    while todo:
        token_id = todo.pop()
        for pair in parts.get(token_id, ()):
            for part in pair:
                if reasons[part].startswith("removed"):
                    reasons[part] = f"kept: {token_id} is merged from it"
                    todo.append(part)


def _new_ids(reasons: Mapping[int, str], rows: int) -> Int64:
    kept = np.array([reasons[v].startswith("kept") for v in range(rows)])
    return np.where(kept, np.cumsum(kept) - 1, REMOVED).astype(np.int64)


def _unknown(
    data: Mapping[str, Any], new_ids: Int64, texts: Mapping[int, str], reasons: Mapping[int, str]
) -> list[int]:
    roots = _roots(data)
    if not roots:
        return []
    unknown = int(new_ids[roots[0]])
    pruned = Tokenizer.from_str(json.dumps(apply(data, new_ids)))
    full = Tokenizer.from_str(json.dumps(data))
    gone = [v for v in texts if reasons[v].startswith("removed") and texts[v]]
    written = [texts[v] for v in gone]
    after, before = encode_all(pruned, written), encode_all(full, written)
    return [v for v, b, a in zip(gone, before, after, strict=True) if unknown in a and roots[0] not in b]


def apply(data: Mapping[str, Any], new_ids: Int64) -> dict[str, Any]:
    """The tokenizer.json of the kept tokens under their new ids. new_ids: as `id_map` gives them."""
    made: dict[str, Any] = copy.deepcopy(dict(data))
    model = made["model"]
    if model["type"] == "Unigram":
        model["vocab"] = [entry for old, entry in enumerate(model["vocab"]) if new_ids[old] != REMOVED]
        if model.get("unk_id") is not None:
            model["unk_id"] = int(new_ids[model["unk_id"]])
    else:
        vocab = {t: int(new_ids[old]) for t, old in model["vocab"].items() if new_ids[old] != REMOVED}
        if "merges" in model:
            model["merges"] = [
                [left, right]
                for left, right, result in _merges(model)
                if left in vocab and right in vocab and result in vocab
            ]
        model["vocab"] = vocab
    made["added_tokens"] = [
        {**t, "id": int(new_ids[t["id"]])} for t in made["added_tokens"] if new_ids[t["id"]] != REMOVED
    ]
    names = {t["content"]: t["id"] for t in made["added_tokens"]}
    if isinstance(made.get("padding"), dict):
        made["padding"]["pad_id"] = names.get(made["padding"]["pad_token"], 0)
    _renumber(made.get("post_processor"), new_ids)
    return made


def _renumber(processor: Any, new_ids: Int64) -> None:
    # Post-processors hold ids of the special tokens they add.
    if not isinstance(processor, dict):
        return
    for inner in processor.get("processors", ()):
        _renumber(inner, new_ids)
    special = processor.get("special_tokens")
    if isinstance(special, dict):
        for entry in special.values():
            entry["ids"] = [int(new_ids[i]) for i in entry["ids"]]
    for side in ("sep", "cls"):
        if isinstance(processor.get(side), (list, tuple)):
            text, old = processor[side]
            processor[side] = [text, int(new_ids[old])]


@dataclass(frozen=True)
class Check:
    """texts: how many were encoded by both. with_removed: those whose old encoding holds a removed token.
    differ: those without one that the pruned tokenizer encodes otherwise (the first few).
    tokens_before, tokens_after: over all texts."""

    texts: int
    with_removed: int
    differ: list[str]
    tokens_before: int
    tokens_after: int


def check(before: Tokenizer, after: Tokenizer, new_ids: Int64, texts: Iterable[str]) -> Check:
    """Encode texts by both tokenizers: the same, renumbered, wherever no removed token was used."""
    n = with_removed = tokens_before = tokens_after = 0
    differ: list[str] = []
    iterator = iter(texts)
    while batch := list(islice(iterator, _BATCH)):
        encoded = zip(batch, encode_all(before, batch), encode_all(after, batch), strict=True)
        for text, old, new in encoded:
            n += 1
            tokens_before += len(old)
            tokens_after += len(new)
            mapped = new_ids[old] if old else np.empty(0, np.int64)
            if (mapped == REMOVED).any():
                with_removed += 1
            elif mapped.tolist() != new and len(differ) < 10:
                differ.append(text[:200])
    return Check(n, with_removed, differ, tokens_before, tokens_after)


def line(proposal: pl.DataFrame, row_bytes: int | None = None) -> str:
    """What is saved, in one line. row_bytes: of one id over all vocabulary matrices, where known."""
    removed = int(proposal["new_id"].null_count())
    needed = int(proposal["reason"].str.contains("is merged from it", literal=True).sum())
    share = f"{removed / max(1, len(proposal)):.1%}"
    saved = f", {removed * row_bytes / 2**20:,.1f} MiB of matrices" if row_bytes else ""
    return (
        f"prune: {removed:,} of {len(proposal):,} rows can go ({share}{saved}); "
        f"{needed:,} more are rare but kept ones are merged from them"
    )
