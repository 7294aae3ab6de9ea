"""The probes' commands: who answers, how it went, and what to print of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from coverage_job.errors import ProbeError
from coverage_job.probes import rates
from coverage_job.probes.endpoint import Endpoint
from coverage_job.probes.generate import TransformersModel
from coverage_job.probes.run import confusion_run, probe_run, read_source, rows_of_checkpoint
from coverage_job.progress import Steps
from coverage_job.report import tables
from coverage_job.storage import join, read_parquet
from coverage_job.tokenizer.load import describe, load


@dataclass(frozen=True)
class Who:
    """Who answers: a local model, a server, or a file of answers."""

    model: str | None
    endpoint: str | None
    endpoint_model: str
    api: str
    responses: str | None
    device: str

    def local(self) -> TransformersModel | None:
        return TransformersModel(self.model, device=self.device) if self.model is not None else None

    def server(self) -> Endpoint | None:
        return Endpoint(self.endpoint, self.endpoint_model, self.api) if self.endpoint is not None else None


def probe(
    source: str,
    output: str,
    *,
    tokenizer: str,
    who: Who,
    checkpoint: str | None,
    count: int,
    by: str,
    languages: Sequence[str],
    steps: Steps,
) -> RenderableType:
    """Ask, judge and write; gives the rates to print."""
    loaded = load(describe(tokenizer))
    prompts = read_source(source, loaded, count=count, by=by, languages=languages)
    with steps.step("probe", total=len(prompts), unit="prompts") as step:
        result = probe_run(
            prompts,
            output,
            loaded,
            model=who.local(),
            model_name=who.model or who.endpoint_model,
            endpoint=who.server(),
            responses=who.responses,
            rows=rows_of_checkpoint(checkpoint) if checkpoint is not None else None,
            progress=lambda done, total: step.reach(done),
        )
    said = [f"{len(prompts):,} prompts, {result.table.num_rows:,} answers judged, in {output}"]
    if result.unasked:
        said.append(f"{result.unasked:,} prompts have no answer yet: run the same command again to go on")
    return Group(Text("\n".join(said)), *_written(result.summary))


def _interval(rate: Mapping[str, Any]) -> str:
    if rate["rate"] is None:
        return "–"
    return f"{rate['rate']:.1%} ({rate['low']:.1%} to {rate['high']:.1%})"


def _written(summary: Mapping[str, Any]) -> list[RenderableType]:
    """The share of prompts whose token was written, by language and by kind of prompt."""
    made: list[RenderableType] = []
    for by in ("by_language", "by_kind"):
        rows = [
            [name, tables.whole(entry["prompts"]), _interval(entry["written"])]
            for name, entry in summary.get(by, {}).items()
        ]
        if rows:
            made.append(
                tables.grid(f"Written, {by.replace('_', ' ')}", ["", "prompts", "written (95 %)"], rows)
            )
    return made


def compare(baseline: str, experiment: str) -> RenderableType:
    """Two probes' rates on the prompts that both answered."""
    before, after = (read_parquet(join(folder, "probe.parquet")) for folder in (baseline, experiment))
    found = rates.compare(before, after)
    rows = [
        [
            name,
            tables.whole(entry["prompts"]),
            _interval(entry["baseline"]),
            _interval(entry["experiment"]),
            f"{entry['difference']:+.1%}",
        ]
        for name, entry in [("overall", found["overall"]), *found["by_language"].items()]
    ]
    return tables.grid("Written", ["", "prompts", "baseline", "experiment", "change"], rows)


def confusion(
    output: str,
    *,
    who: Who,
    languages: Sequence[str],
    limit: int | None,
    words: str | None,
    steps: Steps,
) -> RenderableType:
    """Ask the shipped questions or read answers, measure and write; gives the rates to print."""
    if who.responses is not None and len(languages) > 1:
        raise ProbeError("confusion: a file of answers takes one --language, or has a field `language`")
    with steps.step("confusion") as step:
        _, summary = confusion_run(
            output,
            model=who.local(),
            tokenizer=load(describe(who.model)) if who.model is not None else None,
            model_name=who.model or who.endpoint_model,
            endpoint=who.server(),
            responses=who.responses,
            language=languages[0] if who.responses is not None and languages else None,
            languages=languages if who.responses is None else (),
            limit=limit,
            words=words,
            progress=lambda done, total: step.reach(done),
        )
    return _confused(summary)


def _confused(summary: Mapping[str, Any]) -> RenderableType:
    """The benchmark's pass rates and the share of answers with foreign letters, by language."""
    entries = [("overall", summary["overall"]), *summary["by_language"].items()]
    # Word pass rates exist for languages not written in Latin letters.
    nothing = {"rate": None}
    names = ("foreign_script", "line_pass", "word_pass")
    rows = [
        [language, *[_interval(entry.get(name, nothing)) for name in names]] for language, entry in entries
    ]
    return tables.grid("Language confusion", ["", *[name.replace("_", " ") for name in names]], rows)
