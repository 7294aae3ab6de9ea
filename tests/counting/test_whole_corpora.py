"""Text of every corpus folder, with every tokenizer: zero differences.

A part of each folder by default; COVERAGE_JOB_TEST_MEGABYTES=1000 takes all of it, most of an hour on one core.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator

import numpy as np
import orjson
import pytest
import zstandard

from coverage_job.counting.cuts import derive
from coverage_job.counting.kernel import FastKernel
from coverage_job.counting.reference import ReferenceKernel
from tests.conftest import SHARED, needs_shared
from tests.counting.test_kernel import REAL, assert_same, real
from tests.counting.texts import make_batch

_FOLDERS = ["code", "en", "html", "ja", "ko", "latex", "multi", "ru", "wiki", "zh"]
_BATCH = 1 << 20
_LIMIT = float(os.environ.get("COVERAGE_JOB_TEST_MEGABYTES", "0.3")) * 1e6


def _texts(folder: str) -> Iterator[str]:
    seen = 0
    for path in sorted((SHARED / "corpora" / folder).glob("*.jsonl.zst")):
        with path.open("rb") as raw:
            stream = zstandard.ZstdDecompressor().stream_reader(raw)
            for line in io.TextIOWrapper(stream, encoding="utf-8", newline="\n"):
                text = orjson.loads(line)["text"]
                seen += len(text)
                yield text
                if seen > _LIMIT:
                    return


def _batches(folder: str) -> Iterator[list[list[str]]]:
    documents: list[list[str]] = []
    size = 0
    for text in _texts(folder):
        documents.append([text])
        size += len(text.encode())
        if size > _BATCH:
            yield documents
            documents, size = [], 0
    if documents:
        yield documents


@needs_shared
@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_all_text_counts_as_the_reference(name: str) -> None:
    tokenizer = real(name)
    cuts = derive(tokenizer)
    assert cuts.reason == ""
    fast, reference = FastKernel(tokenizer, cuts, 64), ReferenceKernel(tokenizer)
    pick = np.random.default_rng(0)
    for index, folder in enumerate(_FOLDERS):
        for number, documents in enumerate(_batches(folder)):
            spans = None
            if (number + index) % 4 == 0:
                n = sum(len(d[0]) for d in documents)
                borders = np.unique(pick.integers(0, n, 200))
                spans = [(int(a), int(b)) for a, b in borders[: len(borders) // 2 * 2].reshape(-1, 2)]
            batch = make_batch(documents, spans)
            assert_same(fast.encode(batch), reference.encode(batch))
