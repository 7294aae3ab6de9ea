"""Split -> partial histogram: the one function that every engine runs.

A task gives batches of schema TASK_OUTPUT: rows of counts, and one row whose `report` is the task's
report as JSON. Rows of equal keys add, so an engine sums them in any order; a report's key is its own.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from coverage_job.corpus.documents import TextBatch, TokenBatch, insert_ids
from coverage_job.corpus.plan import Split
from coverage_job.corpus.reading import Reader, Source
from coverage_job.counting.audit import Audit
from coverage_job.counting.contexts import Contexts
from coverage_job.counting.histogram import Histogram
from coverage_job.counting.reference import ReferenceKernel
from coverage_job.errors import BadFileError
from coverage_job.schemas import PARTIAL
from coverage_job.tokenizer.load import TokenizerSpec, load

# A report travels beside the counts; its rows have a token id that no count has.
REPORT_ID = -1
TASK_OUTPUT = pa.schema([*PARTIAL, pa.field("report", pa.string())])


@dataclass(frozen=True)
class CountSpec:
    """All that a worker needs to count a corpus; small, and the same for all its splits.

    rows: of the model's matrix. watched: ids for which a text is sought. bos, eos: ids put around each
    document. audit_every: one document in so many is encoded again by the reference.
    """

    tokenizer: TokenizerSpec
    source: Source
    unit: str
    rows: int
    cache_mib: int
    audit_every: int
    watched: tuple[int, ...] = ()
    bos: int | None = None
    eos: int | None = None


@dataclass
class TaskReport:
    """What a task says of itself, beside the counts."""

    split: int
    unit: str
    pieces: list[dict[str, Any]] = field(default_factory=list)
    tokens: int = 0
    supervised_tokens: int = 0
    bad: list[dict[str, Any]] = field(default_factory=list)
    audit: dict[str, Any] = field(default_factory=dict)
    contexts: dict[int, str] = field(default_factory=dict)
    kernel: dict[str, Any] = field(default_factory=dict)
    early: bool = False
    seconds: float = 0.0
    peak_bytes: int = 0
