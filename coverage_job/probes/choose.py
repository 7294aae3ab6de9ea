"""Which tokens to probe: the most drifted, the least covered, or those of a list."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import orjson
import polars as pl
import pyarrow as pa
from tokenizers import Tokenizer

from coverage_job.errors import ProbeError
from coverage_job.schemas import Kind, Reachability

# Rows that no encoder ever gives: a model cannot be asked for them in any useful way.
_NEVER = (
    Reachability.UNUSED,
    Reachability.UNREACHABLE,
    Reachability.MERGE_INTERMEDIATE,
    Reachability.BYTE_NEVER,
)


@dataclass(frozen=True, slots=True)
class ProbeToken:
    """A token to ask for.

    text: what the model shall write; None where no text's encoding has the token: prompts then give its id.
    prompt: the user's own question, where a list has one.
    """

    token_id: int
    text: str | None
    language: str
    prompt: str | None = None


def own_text(tokenizer: Tokenizer, token_id: int, example: str | None = None) -> str | None:
    """The text whose encoding has the token: its own, or else `example`; None where neither has it.

    Surrounding spaces are dropped: prompts put one where the token needs it.
    """
    for text in (tokenizer.decode([token_id], skip_special_tokens=False).strip(), (example or "").strip()):
        if text and "\ufffd" not in text:
            for written in (text, f" {text}"):
                if token_id in tokenizer.encode(written, add_special_tokens=False).ids:
                    return text
    return None


def choose_tokens(
    table: pa.Table,
    tokenizer: Tokenizer,
    *,
    count: int,
    by: str = "auto",
    languages: Collection[str] = (),
) -> list[ProbeToken]:
    """The worst tokens of a coverage or drift table, in turn from each language.

    by: ``drift`` (lowest ``lm_head_cosine`` first), ``coverage`` (fewest supervised occurrences first, of
    equals the ones most frequent in pre-training), ``auto`` (drift where the table has it).
    Special tokens and rows that no text and no encoder gives are left out.
    Raises ProbeError where the table has not the columns, or nothing is left.
    """
    names = set(table.column_names)
    has_drift = "lm_head_cosine" in names and table.column("lm_head_cosine").null_count < len(table)
    if by == "auto":
        by = "drift" if has_drift else "coverage"
    frame = pl.DataFrame(pl.from_arrow(table))
    if by == "drift":
        if not has_drift:
            raise ProbeError("no row drift in this table; give a drift result, or choose by coverage")
        frame = frame.filter(pl.col("lm_head_cosine").is_not_null() & pl.col("lm_head_cosine").is_not_nan())
        order, descending = ["lm_head_cosine", "token_id"], [False, False]
    elif by == "coverage":
        if "posttraining_supervised_occurrences" not in names:
            raise ProbeError("no counts in this table; give a run directory, or choose by drift")
        order = ["posttraining_supervised_occurrences", "pretraining_occurrences", "token_id"]
        descending = [False, True, False]
    else:
        raise ProbeError(f"by {by!r}: write drift, coverage or auto")
    if "reachability" in names:
        frame = frame.filter(~pl.col("reachability").is_in([r.value for r in _NEVER]))
    if "kind" in names:
        frame = frame.filter(~pl.col("kind").is_in([Kind.SPECIAL.value, Kind.UNUSED.value]))
    special = [i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special]
    frame = frame.filter(~pl.col("token_id").is_in(special))
    if languages:
        frame = frame.filter(pl.col("language").is_in(list(languages)))
    frame = frame.sort(order, descending=descending)
    turn = pl.int_range(pl.len()).over("language").alias("_turn")
    frame = frame.with_columns(turn).sort("_turn", maintain_order=True)
    examples = frame["example"].to_list() if "example" in names else [None] * len(frame)
    chosen: list[ProbeToken] = []
    for token_id, language, example in zip(frame["token_id"], frame["language"], examples, strict=True):
        if len(chosen) == count:
            break
        if tokenizer.id_to_token(token_id) is not None:
            chosen.append(ProbeToken(token_id, own_text(tokenizer, token_id, example), language))
    if not chosen:
        asked = f" in {', '.join(sorted(languages))}" if languages else ""
        raise ProbeError(f"no token to probe{asked}; the table's languages are in its `language` column")
    return chosen


def parse_list(data: bytes, tokenizer: Tokenizer, name: str = "list") -> list[ProbeToken]:
    """Tokens of a list: a line is an id, a text, or a JSON object.

    An object has `token_id` or `text`, and may have `language` and `prompt` (the user's own question, whose
    answer shall hold the text). A text of several tokens stands for the highest of their ids: the later an
    entry was added to a vocabulary, the rarer it is. Raises ProbeError naming the line.
    """
    tokens: list[ProbeToken] = []
    for number, line in enumerate(data.decode("utf-8", errors="replace").split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{name}, line {number}"
        fields = _fields(line, where)
        text, token_id, prompt = fields.get("text"), fields.get("token_id"), fields.get("prompt")
        for key, value, kind in (("text", text, str), ("token_id", token_id, int), ("prompt", prompt, str)):
            if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
                raise ProbeError(f"{where}: {key} is no {kind.__name__}")
        if text is not None and not text.strip():
            raise ProbeError(f"{where}: the text is blank; name such a token by its id")
        if token_id is None and text is None:
            raise ProbeError(f"{where}: neither `token_id` nor `text`")
        if token_id is None:
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            if not ids:
                raise ProbeError(f"{where}: {text!r} encodes to nothing")
            token_id = max(ids)
        if token_id < 0 or tokenizer.id_to_token(token_id) is None:
            raise ProbeError(f"{where}: the tokenizer has no id {token_id}")
        if text is None:
            text = own_text(tokenizer, token_id)
        if prompt is not None and text is None:
            raise ProbeError(f"{where}: a question needs the text that its answer shall hold")
        language = fields.get("language")
        tokens.append(ProbeToken(token_id, text, language if isinstance(language, str) else "und", prompt))
    if not tokens:
        raise ProbeError(f"{name}: no tokens; write one id, text or JSON object a line")
    return tokens


def _fields(line: str, where: str) -> dict[str, Any]:
    stripped = line.strip()
    if stripped.startswith("{") and stripped.endswith("}"):
        try:
            value = orjson.loads(stripped)
        except orjson.JSONDecodeError as error:
            # A token such as "{}" or "{x}" is a text like any other.
            if '"' in stripped:
                raise ProbeError(f"{where}: no valid JSON ({error})") from None
            return {"text": stripped}
        if isinstance(value, dict) and value:
            return value
        return {"text": stripped}
    if stripped.isascii() and stripped.isdigit():
        return {"token_id": int(stripped)}
    return {"text": stripped}
