"""Composes the stages: the only place where they meet.

job -> plan -> counts (on an engine) -> coverage -> manifest -> files of a run directory.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import orjson
import polars as pl
import pyarrow as pa

from coverage_job import __version__
from coverage_job.config import Corpus, Job
from coverage_job.corpus.plan import FileInfo, Split, list_files, make_splits
from coverage_job.corpus.source import Source, resolve
from coverage_job.counting.task import CountSpec, count_split
from coverage_job.coverage import Weight, coverage_table, join_counts, judge, summarise
from coverage_job.engines import Engine
from coverage_job.engines.local import LocalEngine
from coverage_job.errors import CorpusError, EngineError
from coverage_job.progress import Steps
from coverage_job.remedies.manifest import actions, manifest
from coverage_job.schemas import BAD_RECORDS, COUNTS, HISTOGRAM, Reachability, Stage
from coverage_job.storage import RunWriter
from coverage_job.tokenizer.load import TokenizerSpec, describe
from coverage_job.tokenizer.vocabulary import vocabulary_table


@dataclass(frozen=True)
class CorpusPlan:
    """A corpus with its files, how they are read, and the splits they are read in."""

    corpus: Corpus
    files: list[FileInfo]
    source: Source
    splits: list[Split]


@dataclass(frozen=True)
class Plan:
    """A job made ready: its tokenizer and its corpora, nothing read but their first records."""

    job: Job
    tokenizer: TokenizerSpec
    rows: int
    corpora: list[CorpusPlan]

    @property
    def bytes(self) -> int:
        return sum(split.bytes for c in self.corpora for split in c.splits)


def open_engine(name: str, job: Job) -> Engine:
    """The engine by name: ``auto``, ``local`` or ``spark``. Raises EngineError with the way out."""
    from coverage_job.engines import spark

    options = job.engine
    tables = [c.name for c in job.corpora if c.table is not None]
    if name == "auto":
        if tables or options.master is not None or spark.wanted() or spark.unavailable() is None:
            name = "spark"
        else:
            name = "local"
    if name == "local":
        if tables:
            raise EngineError(f"corpus {tables[0]} is a Spark table: use --engine spark")
        return LocalEngine(options.workers)
    return spark.SparkEngine(options.master, options.conf, options.workers)
