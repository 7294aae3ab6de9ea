"""The repeat set's files, and the proof counted over them.

`prove` reads what was written, not what was built, and writes `repeat_proof.parquet` last: a folder
without it holds no finished set.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import orjson
import polars as pl
import pyarrow as pa
from tokenizers import Tokenizer

from coverage_job.corpus.documents import Int64
from coverage_job.errors import RemedyError, StorageError
from coverage_job.remedies.proof import Dialogue, DialogueCounter, read_jsonl
from coverage_job.remedies.repeat import RepeatSet, instructions
from coverage_job.schemas import REPEAT, REPEAT_IDS, REPEAT_PROOF
from coverage_job.storage import join, read_parquet, write_bytes, write_parquet

JSONL, PARQUET, IDS, PROOF = "repeat.jsonl", "repeat.parquet", "repeat_ids.parquet", "repeat_proof.parquet"

IGNORED = -100
# Stands for the text while a template is rendered; from a plane that no tokenizer's text uses.
_MARK = "\U00102345"

Row = tuple[list[int], list[int]]


def id_rows(
    wanted: Mapping[int, int],
    tokenizer: Tokenizer,
    counter: DialogueCounter,
    *,
    tokens_per_dialogue: int = 512,
    max_length: int = 4096,
) -> list[Row]:
    """Rows of (input_ids, labels) in which each id of `wanted` is a target that many times.

    For tokens that no text gives: the rendered repeat dialogue with ids put where the text would be,
    the answer's copy labelled. Raises RemedyError where the template does not show the text.
    """
    lines = instructions()["en"]
    rows: list[Row] = []
    for at in range(max(wanted.values(), default=0)):
        due = [token_id for token_id, times in sorted(wanted.items()) if times > at]
        frame = _frame(lines[at % len(lines)], tokenizer, counter)
        room = (max_length - sum(map(len, frame))) // 2
        size = min(tokens_per_dialogue, room)
        if size < 1:
            raise RemedyError(f"max_length {max_length}: the template alone is longer; set it higher")
        for start in range(0, len(due), size):
            ids = due[start : start + size]
            before, between, after = frame
            rows.append(
                (
                    [*before, *ids, *between, *ids, *after],
                    [IGNORED] * (len(before) + len(ids) + len(between)) + ids + [IGNORED] * len(after),
                )
            )
    return rows


def _frame(line: str, tokenizer: Tokenizer, counter: DialogueCounter) -> list[list[int]]:
    """The ids before the user's text, between it and the assistant's, and after that."""
    dialogue = [
        {"role": "user", "content": line.replace("{text}", _MARK)},
        {"role": "assistant", "content": _MARK},
    ]
    parts: list[list[int]] = [[]]
    for piece in counter.render(dialogue).pieces:
        for number, text in enumerate(piece.decode().split(_MARK)):
            if number:
                parts.append([])
            if text:
                parts[-1] += tokenizer.encode(text, add_special_tokens=False).ids
    if len(parts) != 3:
        raise RemedyError(
            "the chat template does not write the user's and the assistant's text once each; "
            "make the set by ids with chat_template: none"
        )
    return parts


def write(directory: str, dialogues: Sequence[Dialogue], rows: Sequence[Row] = ()) -> None:
    """Write the set, and what LLaMA-Factory and Axolotl need to be told of it."""
    write_bytes(join(directory, JSONL), b"".join(orjson.dumps({"messages": d}) + b"\n" for d in dialogues))
    write_parquet(join(directory, PARQUET), pa.table({"messages": list(dialogues)}, schema=REPEAT))
    if rows:
        columns = {"input_ids": [ids for ids, _ in rows], "labels": [labels for _, labels in rows]}
        write_parquet(join(directory, IDS), pa.table(columns, schema=REPEAT_IDS))
    info = orjson.dumps(llama_factory(), option=orjson.OPT_INDENT_2) + b"\n"
    write_bytes(join(directory, "dataset_info.json"), info)
    write_bytes(join(directory, "axolotl.yaml"), axolotl(directory, bool(rows)).encode())


def llama_factory() -> dict[str, object]:
    """The entry of LLaMA-Factory's `dataset_info.json` (its data/README.md; read by data/parser.py)."""
    return {
        "repeat": {
            "file_name": JSONL,
            "formatting": "sharegpt",
            "columns": {"messages": "messages"},
            "tags": {
                "role_tag": "role",
                "content_tag": "content",
                "user_tag": "user",
                "assistant_tag": "assistant",
                "system_tag": "system",
            },
        }
    }


def axolotl(directory: str, by_ids: bool) -> str:
    """The `datasets` entries of an Axolotl configuration (its schema: utils/schemas/datasets.py)."""
    text = f"""\
# Add to the `datasets` of an Axolotl configuration.
datasets:
  - path: {orjson.dumps(join(directory, JSONL)).decode()}
    ds_type: json
    type: chat_template
    field_messages: messages
    message_property_mappings: {{role: role, content: content}}
    roles_to_train: [assistant]
    train_on_eos: turn
"""
    if by_ids:
        text += f"""\
  - path: {orjson.dumps(join(directory, IDS)).decode()}
    ds_type: parquet
    type:
"""
    return text


@dataclass(frozen=True)
class Summary:
    """What the printed line says. tokens: all, with the user's turn and the template."""

    asked: int
    reached: int
    by_ids: int
    impossible: dict[str, int]
    dialogues: int
    longest: int
    promised: int
    supervised: int
    tokens: int
    sft_tokens: int

    def line(self) -> str:
        impossible = sum(self.impossible.values())
        reasons = "; ".join(f"{n:,} {reason}" for reason, n in sorted(self.impossible.items()))
        bound = max(1, self.promised)
        if impossible and not self.by_ids:
            reasons += "; --ids also writes rows of ids"
        share = f", {_of_sft(self.tokens / self.sft_tokens)}" if self.sft_tokens else ""
        return (
            f"repeat: {self.asked:,} tokens asked, {self.reached:,} reached, {self.by_ids:,} by ids only, "
            f"{impossible:,} impossible{f' ({reasons})' if reasons else ''}; {self.dialogues:,} dialogues, "
            f"{self.supervised:,} supervised tokens ({self.supervised / bound:.2f} x what was asked), "
            f"{self.tokens:,} in all ({self.tokens / bound:.2f} x){share}"
        )


def _of_sft(ratio: float) -> str:
    """How large a set is beside the post-training data.

    >>> _of_sft(0.35), _of_sft(359.85)
    ('35% of the post-training tokens', '360 x the post-training tokens')
    """
    return (
        f"{ratio:.0%} of the post-training tokens"
        if ratio < 2
        else f"{ratio:,.0f} x the post-training tokens"
    )


def label_counts(labels: Iterable[Sequence[int]], rows: int) -> tuple[Int64, Int64]:
    """Supervised occurrences and documents by id in rows of labels: int64[rows] each."""
    occurrences, documents = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    for row in labels:
        ids = np.asarray(row, np.int64)
        unique, times = np.unique(ids[ids != IGNORED], return_counts=True)
        occurrences[unique] += times
        documents[unique] += 1
    return occurrences, documents


def prove(
    directory: str,
    coverage: pl.DataFrame,
    result: RepeatSet,
    *,
    measure: str,
    counter: DialogueCounter,
    by_ids: bool = False,
) -> Summary:
    """Count over the written files, write `repeat_proof.parquet`, and say how it stands.

    counter: the job's template, kernel and length. Raises StorageError where the two files differ.
    """
    written = [record.get("messages") for record in read_jsonl(join(directory, JSONL))]
    if read_parquet(join(directory, PARQUET))["messages"].to_pylist() != written:
        raise StorageError(f"{directory}: {JSONL} and {PARQUET} differ; write the set again")
    counts = counter.count(written)  # type: ignore[arg-type]
    text = counts.of(measure)
    ids = np.zeros(counter.rows, np.int64)
    id_tokens = id_supervised = id_rows_written = 0
    if by_ids:
        table = read_parquet(join(directory, IDS))
        occurrences, documents = label_counts(table["labels"].to_pylist(), counter.rows)
        ids = documents if measure in ("documents", "supervised_documents") else occurrences
        id_tokens = sum(map(len, table["input_ids"].to_pylist()))
        id_supervised = int(occurrences.sum())
        id_rows_written = len(table)

    reasons = {m.token_id: m.reason for m in result.missing}
    names = dict(coverage.select("token_id", "token").iter_rows())
    proof = []
    impossible: Counter[str] = Counter()
    reached = only_ids = 0
    for token_id, promised in sorted(result.asked.items()):
        by_text, total = int(text[token_id]), int(text[token_id] + ids[token_id])
        reason = None
        if by_text >= promised:
            how = "text"
            reached += 1
        elif total >= promised:
            how = "ids"
            only_ids += 1
        else:
            how = "text" if by_text else "none"
            reason = reasons.get(token_id, "counted less than was built")
            impossible[reason] += 1
        proof.append((token_id, names[token_id], promised, total, how, reason))
    columns = zip(*proof, strict=True) if proof else [[] for _ in REPEAT_PROOF]
    arrays = [pa.array(list(c), f.type) for c, f in zip(columns, REPEAT_PROOF, strict=True)]
    write_parquet(join(directory, PROOF), pa.table(arrays, schema=REPEAT_PROOF))
    return Summary(
        asked=len(result.asked),
        reached=reached,
        by_ids=only_ids,
        impossible=dict(impossible),
        dialogues=len(written) + id_rows_written,
        longest=int(counts.tokens.max(initial=0)),
        promised=sum(result.asked.values()),
        supervised=counts.supervised + id_supervised,
        tokens=int(counts.tokens.sum()) + id_tokens,
        sft_tokens=int(coverage["posttraining_occurrences"].sum()),
    )
