from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from coverage_job.corpus.documents import Key, TokenBatch
from coverage_job.counting import histogram as module
from coverage_job.counting.histogram import Histogram
from coverage_job.counting.merge import KEY, Merger
from coverage_job.counting.task import TASK_OUTPUT
from coverage_job.schemas import COUNTS, PARTIAL

KEYS = [Key("en", ""), Key("ja", ""), Key("ja", "web")]
Documents = list[tuple[int, list[tuple[int, bool]]]]  # (key, [(id, supervised)])

documents = st.lists(
    st.tuples(st.integers(0, 2), st.lists(st.tuples(st.integers(0, 7), st.booleans()), max_size=12)),
    max_size=12,
)


def batch(docs: Documents, masked: bool = True) -> TokenBatch:
    return TokenBatch(
        ids=np.array([i for _, d in docs for i, _ in d], np.int32),
        documents=np.cumsum([0] + [len(d) for _, d in docs]),
        supervised=np.array([s for _, d in docs for _, s in d], np.uint8) if masked else None,
        seams=None,
        keys=np.array([k for k, _ in docs], np.int32),
    )


def by_hand(docs: Documents, masked: bool = True) -> dict[tuple[Key, int], list[int]]:
    counts: dict[tuple[Key, int], Counter[str]] = {}
    for key, document in docs:
        for token in {i for i, _ in document}:
            cell = counts.setdefault((KEYS[key], token), Counter())
            targets = [s or not masked for i, s in document if i == token]
            cell["occurrences"] += len(targets)
            cell["documents"] += 1
            cell["supervised_occurrences"] += sum(targets)
            cell["supervised_documents"] += any(targets)
    return {k: [c[name] for name in COUNTS] for k, c in counts.items()}


def as_dict(table: pa.Table) -> dict[tuple[Key, int], list[int]]:
    rows = table.to_pylist()
    result = {(Key(r["language"], r["group"]), r["token_id"]): [r[c] for c in COUNTS] for r in rows}
    assert len(result) == len(rows)
    return result


def summed(*histograms: Histogram) -> pa.Table:
    merger = Merger()
    for h in histograms:
        for part in h.drain("u", KEYS):
            merger.add(pa.record_batch([*part.columns, pa.nulls(len(part), pa.string())], schema=TASK_OUTPUT))
    return merger.result()[0].sort_by([(name, "ascending") for name in KEY])


@given(documents, st.booleans())
def test_counts_are_those_worked_out_by_hand(docs: Documents, masked: bool) -> None:
    histogram = Histogram(8)
    histogram.add(batch(docs, masked))
    histogram.keep()
    assert as_dict(summed(histogram)) == by_hand(docs, masked)


@given(documents, documents)
def test_merging_equals_counting_both(a: Documents, b: Documents) -> None:
    one, two, both = Histogram(8), Histogram(8), Histogram(8)
    one.add(batch(a))
    two.add(batch(b))
    for docs in (b, a):
        both.add(batch(docs))
    for h in (one, two, both):
        h.keep()
    assert summed(one, two).equals(summed(both))


@given(st.lists(documents, max_size=6))
def test_compaction_changes_nothing(parts: list[Documents]) -> None:
    before = module._COMPACT_ROWS
    module._COMPACT_ROWS = 4
    try:
        histogram = Histogram(8)
        for docs in parts:
            histogram.add(batch(docs))
            histogram.keep()
        got = as_dict(summed(histogram))
    finally:
        module._COMPACT_ROWS = before
    assert got == by_hand([d for docs in parts for d in docs])


def test_a_dropped_piece_leaves_no_trace() -> None:
    histogram = Histogram(8)
    histogram.add(batch([(0, [(1, True)])]))
    histogram.keep()
    histogram.add(batch([(1, [(2, True)])]))
    histogram.drop()
    assert as_dict(summed(histogram)) == {(KEYS[0], 1): [1, 1, 1, 1]}


def test_output_has_the_schema_and_is_in_order() -> None:
    histogram = Histogram(8)
    histogram.add(batch([(2, [(5, True), (1, False)]), (0, [(7, True)])]))
    histogram.keep()
    (part,) = histogram.drain("u", KEYS)
    assert part.schema == PARTIAL
    assert part.column("token_id").to_pylist() == [7, 1, 5]
    assert list(histogram.drain("u", KEYS)) == []
