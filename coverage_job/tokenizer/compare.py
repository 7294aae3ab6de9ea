"""What a tokenizer holds, and whether two tokenizers are the same one."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
from tokenizers import Tokenizer

from coverage_job.schemas import Kind, Reachability
from coverage_job.tokenizer.entries import entries, family
from coverage_job.tokenizer.load import TokenizerSpec, encode_all, load
from coverage_job.tokenizer.vocabulary import printable, vocabulary_table

_BATCH = 256


@dataclass(frozen=True)
class Shown:
    """What `tokenizer show` prints. counts: by (column, value) -> rows of the vocabulary table.

    published: bytes, unreachable, partial UTF-8 and special, as the published lists count them.
    unreachable: token_id, token, gives (what its own text encodes to), normalizer (whether its text encodes
    to it where nothing is normalized).
    """

    spec: TokenizerSpec
    counts: dict[str, dict[str, int]]
    published: dict[str, int]
    unreachable: pa.Table


def show(spec: TokenizerSpec) -> Shown:
    """The counts of a tokenizer's vocabulary, and its unreachable entries with the reason."""
    frame = pl.from_arrow(vocabulary_table(spec))
    assert isinstance(frame, pl.DataFrame)
    columns = ("kind", "decodable", "reachability", "script", "language", "category")
    counts = {
        name: dict(
            frame[name]
            .value_counts(sort=True, name="rows")
            .sort("rows", name, descending=[True, False])
            .rows()
        )
        for name in columns
    }
    kind, decodable = pl.col("kind"), pl.col("decodable")
    plain = ~kind.is_in([Kind.BYTE.value, Kind.SPECIAL.value, Kind.UNUSED.value])
    published = {
        "bytes": frame.filter(kind == Kind.BYTE.value).height,
        "unreachable": frame.filter((decodable == "utf8") & plain & ~pl.col("round_trip")).height,
        "partial": frame.filter((decodable == "partial") & (kind != Kind.BYTE.value)).height,
        "special": frame.filter(kind == Kind.SPECIAL.value).height,
    }
    lost = frame.filter(pl.col("reachability") == Reachability.UNREACHABLE.value)
    return Shown(spec, counts, published, _why(spec, lost))


def _why(spec: TokenizerSpec, lost: pl.DataFrame) -> pa.Table:
    """What the texts of unreachable entries encode to instead, with and without the normalizer."""
    texts = [data.decode() for data in lost["token_bytes"]]
    tokenizer = load(spec)
    gives = list(encode_all(tokenizer, texts, f"tokenizer {spec.path}"))
    by_normalizer = [False] * len(texts)
    if tokenizer.normalizer is not None and texts:
        tree = json.loads(tokenizer.to_str())
        tree["normalizer"] = None
        plain = Tokenizer.from_str(json.dumps(tree))
        encoded = encode_all(plain, texts, f"tokenizer {spec.path}")
        by_normalizer = [ids == [i] for ids, i in zip(encoded, lost["token_id"], strict=True)]
    return pa.table(
        {
            "token_id": lost["token_id"].to_arrow(),
            "token": lost["token"].to_list(),
            "gives": pa.array(gives, pa.list_(pa.int32())),
            "normalizer": pa.array(by_normalizer, pa.bool_()),
        }
    )


@dataclass(frozen=True)
class TextDifference:
    """A text that two tokenizers encode differently. at: position of the first id that differs."""

    text: str
    at: int
    a: list[int]
    b: list[int]


@dataclass(frozen=True)
class Comparison:
    """Two tokenizers side by side.

    moved: (token, id in a, id in b); only_a, only_b: token -> id, tokens as their files write them.
    merges_only_a, merges_only_b: pairs that the other lacks; merges_reordered: pairs that both have whose
    order among the common ones differs. None where one of them has no merges.
    scores_differing: pieces of a Unigram model that both have, with another score.
    settings: parts that differ (normalizer, pre_tokenizer, how added tokens match, ...), as (part, a, b).
    texts, texts_differing: how many were encoded, and how many differ; examples: the first of these.
    """

    a: TokenizerSpec
    b: TokenizerSpec
    moved: list[tuple[str, int, int]]
    only_a: dict[str, int]
    only_b: dict[str, int]
    merges_only_a: list[tuple[str, str]] | None
    merges_only_b: list[tuple[str, str]] | None
    merges_reordered: int | None
    scores_differing: int
    settings: list[tuple[str, str, str]]
    texts: int
    texts_differing: int
    examples: list[TextDifference] = field(default_factory=list)

    @property
    def same(self) -> bool:
        """Whether every text is encoded to the same ids, as far as the files and the texts tell."""
        lists = (self.moved, self.only_a, self.only_b, self.merges_only_a, self.merges_only_b, self.settings)
        numbers = (self.merges_reordered, self.scores_differing, self.texts_differing)
        return not any(lists) and not any(numbers)


def compare(a: TokenizerSpec, b: TokenizerSpec, texts: Iterable[str] = (), examples: int = 5) -> Comparison:
    """Compare two tokenizers, in their files and on texts.

    texts: documents, read once and in batches. examples: the most that are kept.
    """
    one, other = load(a), load(b)
    vocab_a, vocab_b = _by_content(one), _by_content(other)
    moved = [(_name(t), i, vocab_b[t]) for t, i in vocab_a.items() if t in vocab_b and vocab_b[t] != i]
    tree_a, tree_b = json.loads(one.to_str()), json.loads(other.to_str())
    merges_a, merges_b = _merges(tree_a), _merges(tree_b)
    count = differing = 0
    kept: list[TextDifference] = []
    stream = iter(texts)
    while batch := list(islice(stream, _BATCH)):
        pairs = zip(
            batch,
            encode_all(one, batch, f"tokenizer {a.path}"),
            encode_all(other, batch, f"tokenizer {b.path}"),
            strict=True,
        )
        for text, ids_a, ids_b in pairs:
            count += 1
            if ids_a == ids_b:
                continue
            differing += 1
            if len(kept) < examples:
                kept.append(_first_difference(text, ids_a, ids_b))
    both = merges_a is not None and merges_b is not None
    if merges_a is not None and merges_b is not None and merges_a != merges_b:
        merges_a, merges_b = _effective(merges_a), _effective(merges_b)
    return Comparison(
        a=a,
        b=b,
        moved=sorted(moved, key=lambda item: item[1]),
        only_a=_lacked(vocab_a, vocab_b),
        only_b=_lacked(vocab_b, vocab_a),
        merges_only_a=_lacking(merges_a, merges_b) if both else None,
        merges_only_b=_lacking(merges_b, merges_a) if both else None,
        merges_reordered=_reordered(merges_a, merges_b) if both else None,
        scores_differing=_scores_differing(tree_a, tree_b),
        settings=_settings(tree_a, tree_b),
        texts=count,
        texts_differing=differing,
        examples=kept,
    )


def row_map(before: TokenizerSpec, after: TokenizerSpec) -> npt.NDArray[np.int64] | None:
    """int64[after.rows]: the id in `before` of the same token, -1 where it has none or the row no token.

    None where every token of `after` has its id in `before` already.
    """
    old, new = _by_content(load(before)), _by_content(load(after))
    found = np.full(after.rows, -1, np.int64)
    for token, i in new.items():
        found[i] = old.get(token, -1)
    ids = np.array(sorted(new.values()), np.int64)
    return None if np.array_equal(found[ids], ids) else found


class _Token(NamedTuple):
    """A token, whatever id it has and however its file writes it. again: which of those that are alike."""

    data: bytes
    kind: Kind
    continues: bool
    suffix: str
    again: int = 0


def _by_content(tokenizer: Tokenizer) -> dict[_Token, int]:
    # Content as each file writes it would tell apart files of two formats; bytes and marks do not.
    of = family(tokenizer)
    result: dict[_Token, int] = {}
    # By content: tokens that are alike keep their order where another file gives them other ids.
    for i, e in sorted(entries(tokenizer, of).items(), key=lambda item: item[1].content):
        of_model = e.kind not in (Kind.ADDED, Kind.SPECIAL)
        ends = of_model and of.end_suffix and e.content.endswith(of.end_suffix)
        token = _Token(e.data, e.kind, e.continues, of.end_suffix if ends else "")
        while token in result:
            token = token._replace(again=token.again + 1)
        result[token] = i
    return result


def _name(token: _Token) -> str:
    name = ("##" if token.continues else "") + printable(token.data) + token.suffix + " (again)" * token.again
    return name if token.kind is Kind.BASE else f"[{token.kind.value}] {name}"


def _lacked(mine: dict[_Token, int], theirs: dict[_Token, int]) -> dict[str, int]:
    """Tokens that the other lacks, in id order."""
    found: dict[str, int] = {}
    for token, i in sorted(mine.items(), key=lambda item: item[1]):
        if token not in theirs:
            name = _name(token)
            while name in found:  # two that print alike
                name += " (again)"
            found[name] = i
    return found


def _scores_differing(a: dict[str, Any], b: dict[str, Any]) -> int:
    if not a["model"]["type"] == b["model"]["type"] == "Unigram":
        return 0
    one, other = (dict(tree["model"]["vocab"]) for tree in (a, b))
    added = {token["content"] for token in (*a["added_tokens"], *b["added_tokens"])}  # found before the model
    both = [piece for piece in one if piece in other and piece not in added]
    # Some files have them as float32, some as float64.
    same = np.isclose([one[p] for p in both], [other[p] for p in both], rtol=1e-6, atol=1e-6)
    return int((~same).sum())


def _merges(tree: dict[str, object]) -> list[tuple[str, str]] | None:
    model = tree["model"]
    assert isinstance(model, dict)
    merges = model.get("merges")
    if merges is None:
        return None
    pairs = (m.split(" ", 1) if isinstance(m, str) else m for m in merges)
    return [(left, right) for left, right in pairs]


def _effective(merges: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The pairs that make their token: files often list every way to cut it, of which one is ever taken."""
    rank = {pair: n for n, pair in enumerate(merges)}
    taken = set()
    for token in {left + right for left, right in merges}:
        parts = list(token)
        while len(parts) > 1:
            ranks = [rank.get(pair, len(rank)) for pair in pairwise(parts)]
            lowest = min(ranks)
            if lowest == len(rank):
                break
            at = ranks.index(lowest)
            pair = (parts[at], parts[at + 1])
            if len(parts) == 2:
                taken.add(pair)
            parts[at : at + 2] = [pair[0] + pair[1]]
    return [pair for pair in merges if pair in taken]


def _lacking(
    mine: list[tuple[str, str]] | None, theirs: list[tuple[str, str]] | None
) -> list[tuple[str, str]]:
    known = set(theirs or ())
    return [pair for pair in mine or () if pair not in known]


def _reordered(a: list[tuple[str, str]] | None, b: list[tuple[str, str]] | None) -> int:
    """Common pairs that stand at another place among the common pairs."""
    in_a, in_b = set(a or ()), set(b or ())
    common_a = [pair for pair in a or () if pair in in_b]
    common_b = [pair for pair in b or () if pair in in_a]
    return sum(x != y for x, y in zip(common_a, common_b, strict=True))


def _settings(a: dict[str, Any], b: dict[str, Any]) -> list[tuple[str, str, str]]:
    def parts(tree: dict[str, Any]) -> dict[str, str]:
        plain = {f"model.{k}": v for k, v in tree["model"].items() if k not in ("vocab", "merges")}
        # An unset option and one that is off are written differently, and mean the same.
        plain = {k: v or None for k, v in plain.items()}
        return {
            k: json.dumps(v, ensure_ascii=False, sort_keys=True)
            for k, v in {
                **plain,
                "normalizer": _flat(tree["normalizer"]),
                "pre_tokenizer": tree["pre_tokenizer"],
            }.items()
            if v is not None
        }

    left, right = parts(a), parts(b)
    names = sorted(left.keys() | right.keys())
    differing = [(n, left.get(n, "none"), right.get(n, "none")) for n in names if left.get(n) != right.get(n)]
    one, other = _matching(a), _matching(b)
    if changed := [token for token in one if token in other and one[token] != other[token]]:
        in_a, in_b = (json.dumps({t: of[t] for t in changed}, ensure_ascii=False) for of in (one, other))
        differing.append(("added_tokens", in_a, in_b))
    return differing


def _matching(tree: dict[str, Any]) -> dict[str, list[str]]:
    """How each added token is found in a text."""
    flags = ("single_word", "lstrip", "rstrip", "normalized")
    return {t["content"]: [flag for flag in flags if t[flag]] for t in tree["added_tokens"]}


def _flat(normalizer: object) -> object:
    """A normalizer without the sequences of one or none that change nothing."""
    if isinstance(normalizer, dict) and normalizer.get("type") == "Sequence":
        inner = normalizer["normalizers"]
        if len(inner) <= 1:
            return inner[0] if inner else None
    return normalizer


def _first_difference(text: str, a: list[int], b: list[int]) -> TextDifference:
    at = next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return TextDifference(text, at, a, b)
