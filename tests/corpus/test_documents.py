from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from coverage_job.corpus.documents import TextBatch, TokenBatch, insert_ids, select_documents


def tokens(documents: list[list[int]]) -> TokenBatch:
    return TokenBatch(
        ids=np.array([i for d in documents for i in d], np.int32),
        documents=np.cumsum([0] + [len(d) for d in documents]),
        supervised=None,
        seams=None,
        keys=np.zeros(len(documents), np.int32),
    )


@given(st.lists(st.lists(st.integers(5, 9))), st.sampled_from([None, 1]), st.sampled_from([None, 2]))
def test_inserted_ids_stand_around_each_document(
    documents: list[list[int]], first: int | None, last: int | None
) -> None:
    result = insert_ids(tokens(documents), first, last)
    expected = [([first] if first else []) + d + ([last] if last else []) for d in documents]
    got = [result.ids[a:b].tolist() for a, b in zip(result.documents[:-1], result.documents[1:], strict=True)]
    assert got == expected


def test_selected_documents_keep_their_pieces_and_spans() -> None:
    batch = TextBatch(
        text=np.frombuffer(b"aabbbcdd", np.uint8),
        pieces=np.array([0, 2, 5, 6, 8]),
        documents=np.array([0, 2, 3, 4]),
        spans=np.array([[0, 2], [5, 6], [7, 8]]),
        keys=np.array([0, 1, 2], np.int32),
    )
    chosen = select_documents(batch, np.array([2, 0]))
    assert bytes(chosen.text) == b"ddaabbb"
    assert chosen.pieces.tolist() == [0, 2, 4, 7]
    assert chosen.documents.tolist() == [0, 1, 3]
    assert chosen.spans is not None
    assert chosen.spans.tolist() == [[1, 2], [2, 4]]
    assert chosen.keys.tolist() == [2, 0]
