"""A finished run opened again, with what later commands need of it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

import polars as pl
from tokenizers import Tokenizer

from coverage_job.config import Job
from coverage_job.corpus.shapes import PlainRenderer, Renderer
from coverage_job.corpus.template import load_template
from coverage_job.corpus.templated import template_renderer
from coverage_job.counting.cuts import Cuts
from coverage_job.counting.kept_cuts import cuts_bytes
from coverage_job.counting.kernel import FastKernel
from coverage_job.storage import Run
from coverage_job.tokenizer.load import TokenizerSpec, load


@dataclass(frozen=True)
class OpenedRun:
    """A run's job, tokenizer and coverage table. rows: of the model's matrix."""

    run: Run
    job: Job
    spec: TokenizerSpec
    rows: int

    @classmethod
    def open(cls, path: str) -> OpenedRun:
        """Raises RunDirectoryError where the run is not whole, TokenizerError where its tokenizer is gone."""
        run = Run(path)
        job = Job.model_validate(run.info["job"])
        stored: dict[str, Any] = dict(run.info["tokenizer"])
        rows = int(stored.pop("matrix_rows"))
        stored["special_tokens"] = tuple((text, token_id) for text, token_id in stored["special_tokens"])
        spec = TokenizerSpec(**{f.name: stored[f.name] for f in fields(TokenizerSpec)})
        return cls(run, job, spec, rows)

    @property
    def tokenizer(self) -> Tokenizer:
        return load(self.spec)

    def coverage(self) -> pl.DataFrame:
        return pl.DataFrame(self.run.table("coverage.parquet"))

    def renderer(self) -> Renderer:
        """Dialogues as the job's own chat template renders them."""
        template = load_template(self.spec.path, self.job.chat_template)
        if template is None:
            return PlainRenderer("all_assistant")
        now = datetime.fromisoformat(self.run.info["started"])
        return template_renderer(template, self.tokenizer, now=now)

    def kernel(self) -> FastKernel:
        return FastKernel(self.tokenizer, Cuts.from_bytes(cuts_bytes(self.spec)), self.job.engine.cache_mib)
