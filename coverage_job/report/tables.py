"""What a run prints: a few tables that a person reads with profit. Text in, rich renderables out."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any, Literal

import polars as pl
import pyarrow as pa
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from coverage_job.checks import Result
from coverage_job.counting.store_files import Folder
from coverage_job.coverage import starved
from coverage_job.progress import shown
from coverage_job.schemas import Action
from coverage_job.tokenizer.vocabulary import printable

_LANGUAGES = 12
_STARVED = 10


def whole(number: float) -> str:
    """A count with thousands separated.

    >>> whole(1234567)
    '1,234,567'
    """
    return f"{number:,.0f}"


def share(part: float, total: float) -> str:
    """A percentage of one decimal; a dash where there is nothing to share.

    >>> share(1, 8), share(0, 0)
    ('12.5 %', '–')
    """
    return f"{100 * part / total:.1f} %" if total else "–"


def size(number: float) -> str:
    """Bytes in a unit that a person reads.

    >>> size(186_000_000)
    '186.0 MB'
    """
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if number < 1000 or unit == "TB":
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    raise AssertionError("unreachable")


def grid(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], align: str = "l") -> Group:
    """A plain table under its title. Cells are never markup.

    align: `l` or `r` per column; those it does not reach are numbers, to the right.
    """
    table = Table(box=None, pad_edge=False)
    for name, side in zip(columns, align.ljust(len(columns), "r"), strict=True):
        justify: Literal["left", "right"] = "left" if side == "l" else "right"
        table.add_column(name, justify=justify, overflow="fold", header_style="dim")
    for row in rows:
        table.add_row(*[Text(shown(cell)) for cell in row])
    # Apart from the table: a table's own title is folded to the table's width, however narrow that is.
    return Group(Text(title, style="bold"), table)


def counted(corpora: Sequence[dict[str, Any]]) -> RenderableType:
    """What was read, per corpus."""
    rows = [
        [
            c["name"],
            c["stage"],
            whole(c["files"]),
            size(c["bytes"]),
            whole(c["documents"]),
            whole(c["bad_records"]),
            whole(c["tokens"]),
            whole(c["supervised_tokens"]),
        ]
        for c in corpora
    ]
    columns = ["corpus", "stage", "files", "size", "documents", "bad", "tokens", "supervised"]
    return grid("Counted", columns, rows, "ll")


def tallies(title: str, summary: pa.Table, by: str, limit: int) -> RenderableType:
    """The vocabulary by one of its labels, most flagged first."""
    frame = (
        pl.DataFrame(summary)
        .filter(pl.col("by") == by)
        .sort("under", "tokens", "value", descending=[True, True, False])
    )
    rows = [
        [
            r["value"] or "(none)",
            whole(r["tokens"]),
            whole(r["covered"]),
            whole(r["under"]),
            whole(r["absent"]),
            whole(r["exempt"]),
            share(r["under"], r["tokens"] - r["exempt"]),
        ]
        for r in frame.head(limit).to_dicts()
    ]
    if len(frame) > limit:
        rest = frame.tail(len(frame) - limit).sum()
        asked = rest["tokens"][0] - rest["exempt"][0]
        rows.append(
            [
                f"{len(frame) - limit} more",
                *[whole(rest[c][0]) for c in ("tokens", "covered", "under", "absent", "exempt")],
                share(rest["under"][0], asked),
            ]
        )
    return grid(title, [by, "tokens", "covered", "flagged", "of them never", "exempt", "share"], rows)


def most_starved(coverage: pa.Table) -> RenderableType:
    """The tokens most frequent in pre-training that post-training never asks for."""
    frame = starved(coverage, _STARVED)
    title = f"The {len(frame)} most frequent pre-training tokens that post-training never asks for"
    if len(frame) == 0:
        return Text("Post-training makes a target of every reachable token that pre-training holds.")
    rows = [
        [
            str(r["token_id"]),
            printable(r["token_bytes"]),
            r["language"],
            r["category"],
            whole(r["pretraining_occurrences"]),
            r["action"],
        ]
        for r in frame.to_dicts()
    ]
    return grid(title, ["id", "token", "language", "category", "pre-training", "action"], rows, "llllrl")


def next_steps(path: str, coverage: pa.Table) -> Text:
    """What to do with the result."""
    flagged = pl.DataFrame(coverage).filter(pl.col("deficit") > 0, pl.col("status") != "exempt")
    if len(flagged) == 0:
        return Text("Nothing is flagged: every reachable token is a target often enough.")
    by_ids = flagged.filter(pl.col("action") == Action.REPEAT_IDS.value).height
    lines = [
        f"{whole(len(flagged))} {'token lacks' if len(flagged) == 1 else 'tokens lack'} "
        f"{whole(int(flagged['deficit'].sum()))} targets. Next:",
        "  a verified set of dialogues that makes each a target",
        f"    coverage-job repeat {path} --output repeat{' --ids' if by_ids else ''}",
        "  real pre-training text that holds them",
        f"    coverage-job mix {path} --output mix --budget-tokens 2000000",
        "  where the data may not change, their rows kept in training",
        f"    coverage-job protect {path} --output protect",
    ]
    if by_ids:
        lines += [
            f"  {whole(by_ids)} special {'token is' if by_ids == 1 else 'tokens are'} written by the chat "
            "template alone: a target only by --ids,",
            "  or to be exempt (coverage.exempt.token_id) where the model never has to write it",
        ]
    # A command is one line, however narrow the terminal, so that it can be copied.
    return Text("\n".join(lines), no_wrap=True, overflow="ignore")


def verdicts(results: Sequence[Result]) -> RenderableType:
    """Each check with its figure and its verdict."""
    if not results:
        return Text("No checks are set in the job.")
    rows = [
        [r.verdict, r.name, "missing" if r.value is None else f"{r.value:g}", r.threshold, r.reason]
        for r in results
    ]
    return grid("Checks", ["verdict", "check", "figure", "limits", "why"], rows, "llrll")


def warnings(job: Sequence[str], corpora: Sequence[dict[str, Any]]) -> RenderableType:
    """What the run warns of: keys without effect, masks that are not as meant, files that are missing."""
    lines = [f"  job: {text}" for text in job]
    for c in corpora:
        said = [*c["warnings"], *(f["text"] for f in c.get("mask_findings", []) if f["warns"])]
        if c["files_missing"]:
            said.append(
                f"{whole(len(c['files_missing']))} files could not be read: {c['files_missing'][0]} ..."
            )
        lines += [f"  {c['name']}: {text}" for text in said]
    return Text("\n".join(["Warnings", *map(shown, lines)]) if lines else "No warnings.")


def plan_report(rows: Sequence[tuple[str, str, int, int, int, str]]) -> RenderableType:
    """What would be read: name, stage, files, bytes, splits and how records are read, per corpus."""
    cells = [[n, stage, whole(f), size(b), whole(s), how] for n, stage, f, b, s, how in rows]
    return grid("Plan", ["corpus", "stage", "files", "size", "splits", "read as"], cells, "llrrrl")


def run_report(
    run: dict[str, Any], coverage: pa.Table, summary: pa.Table, results: Sequence[Result], path: str
) -> Group:
    """All that `run` prints, in the order in which a person asks."""
    blank = Text("")
    tokenizer = run["tokenizer"]
    head = Text(
        f"Vocabulary: {whole(coverage.num_rows)} rows, {whole(tokenizer['n_base'])} base entries, "
        f"{whole(tokenizer['n_with_added'])} with added ones"
    )
    return Group(
        counted(run["corpora"]),
        blank,
        head,
        tallies("Starved, by language of the token", summary, "language", _LANGUAGES),
        blank,
        tallies("By category", summary, "category", 20),
        blank,
        tallies("By kind", summary, "kind", 10),
        blank,
        most_starved(coverage),
        blank,
        warnings(run["warnings"], run["corpora"]),
        blank,
        verdicts(results),
        blank,
        next_steps(path, coverage),
    )


def show(renderable: RenderableType) -> None:
    """Print to standard output."""
    # Not cropped: lines that must not be folded are longer than a narrow terminal.
    Console(highlight=False).print(renderable, crop=False)


def store_folders(folders: Sequence[Folder]) -> RenderableType:
    """What a store keeps."""
    rows = [
        (
            f.corpus,
            f.options[:12],
            whole(f.parts),
            whole(f.snapshots),
            size(f.bytes),
            datetime.fromtimestamp(f.newest, timezone.utc).strftime("%Y-%m-%d %H:%M") if f.newest else "–",
        )
        for f in folders
    ]
    return grid("Store", ("corpus", "options", "parts", "snapshots", "size", "newest (UTC)"), rows, "ll")
