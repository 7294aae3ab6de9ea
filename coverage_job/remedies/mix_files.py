"""The mix: both passes on an engine, its files, and the proof counted over what was written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import orjson
import polars as pl
import pyarrow as pa

from coverage_job.corpus.plan import Split
from coverage_job.engines import Engine
from coverage_job.errors import RemedyError
from coverage_job.remedies.mix import MixSpec, candidates, choose, chosen_items, texts
from coverage_job.remedies.proof import Kernel, count_texts, read_jsonl
from coverage_job.schemas import MIX, MIX_CANDIDATES, MIX_PROOF, MIX_TEXTS, Status
from coverage_job.storage import join, write_bytes, write_parquet

JSONL, PARQUET, PROOF = "mix.jsonl", "mix.parquet", "mix_proof.parquet"

Phase = Callable[[str, int], Callable[[], None]]


def collect(engine: Engine, spec: MixSpec, splits: Sequence[Split], phase: Phase) -> pa.Table:
    """The chosen passages: a table of schema MIX, in order of corpus, file, position and first byte.

    splits: of the text corpora. phase: told of each pass by name with its number of tasks; gives what is
    called once a task is done. Raises RemedyError where no document helps.
    """
    spec = replace(spec, total_bytes=sum(split.bytes for split in splits))
    done = phase("choose documents", len(splits))
    found = engine.map(partial(candidates, spec), splits, MIX_CANDIDATES, done)
    chosen = choose(found, spec.need, spec.options.budget_tokens)
    if not len(chosen):
        raise RemedyError(
            "mix: no document that may be chosen holds a token that is short; loosen the filters"
        )
    items = chosen_items(chosen, splits)
    done = phase("read them", len(items))
    read = engine.map(partial(texts, spec.count), items, MIX_TEXTS, done)
    by_place = {
        (file, start, position, begin): text
        for file, start, position, text, begin in pl.DataFrame(read).iter_rows()
    }
    rows = []
    for row in chosen.to_pylist():
        ids, counts = (np.frombuffer(row[name], np.int32).tolist() for name in ("ids", "counts"))
        text = by_place.get((row["file"], row["start"], row["position"], row["passage_start"]))
        if text is None:
            raise RemedyError(f"{row['file']}: changed while it was read; write the mix again")
        rows.append(
            {
                "text": text,
                "corpus": row["corpus"],
                "file": row["file"],
                "position": row["line"],
                "tokens": row["tokens"],
                "contributes": [{"token_id": i, "count": n} for i, n in zip(ids, counts, strict=True)],
                "passage_start": row["passage_start"],
                "passage_end": row["passage_end"],
            }
        )
    return pa.Table.from_pylist(rows, schema=MIX)


def write(directory: str, documents: pa.Table) -> None:
    """Write `mix.jsonl` and `mix.parquet`."""
    lines = b"".join(orjson.dumps(row) + b"\n" for row in documents.to_pylist())
    write_bytes(join(directory, JSONL), lines)
    write_parquet(join(directory, PARQUET), documents)


@dataclass(frozen=True)
class Summary:
    """What the printed line says. left: token id -> occurrences that the repeat set has to add."""

    short: int
    covered: int
    documents: int
    tokens: int
    budget: int
    left: dict[int, int]

    def line(self) -> str:
        return (
            f"mix: {self.covered:,} of {self.short:,} flagged tokens brought to their number "
            f"({self.covered / max(1, self.short):.1%}) by {self.documents:,} documents of {self.tokens:,} "
            f"tokens (budget {self.budget:,}); {len(self.left):,} are left to the repeat set"
        )


def prove(directory: str, coverage: pl.DataFrame, kernel: Kernel, budget: int) -> Summary:
    """Count over `mix.jsonl`, write `mix_proof.parquet`, and say how it stands.

    Every flagged token has a row, whatever its remedy.
    """
    flagged = (pl.col("deficit") > 0) & (pl.col("status") != Status.EXEMPT.value)
    short = coverage.filter(flagged).select("token_id", "token", "deficit")
    rows = int(coverage["token_id"].max() or 0) + 1  # type: ignore[arg-type]
    written = (record["text"] for record in read_jsonl(join(directory, JSONL)))
    counts = count_texts(written, kernel, rows)
    counted = counts.occurrences[short["token_id"].to_numpy()]
    needed = short["deficit"].to_numpy()
    left = np.maximum(0, needed - counted)
    columns = [short["token_id"], short["token"], needed, counted, left]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, MIX_PROOF, strict=True)]
    write_parquet(join(directory, PROOF), pa.table(arrays, schema=MIX_PROOF))
    return Summary(
        short=len(short),
        covered=int((left == 0).sum()),
        documents=len(counts.tokens),
        tokens=int(counts.tokens.sum()),
        budget=budget,
        left={int(v): int(n) for v, n in zip(short["token_id"], left, strict=True) if n},
    )
