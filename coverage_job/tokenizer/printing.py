"""`tokenizer show` and `tokenizer compare` as a person reads them."""

from __future__ import annotations

from itertools import islice

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from coverage_job.tokenizer.compare import Comparison, Shown
from coverage_job.tokenizer.vocabulary import printable

_LETTERS, _IDS = 80, 16  # shown of a token, and of what its text gives


def _cut(token: str) -> str:
    return token if len(token) <= _LETTERS else token[:_LETTERS] + "…"


def _safe(setting: str) -> Text:
    return Text(printable(setting[:200].encode()))


def _table(*columns: str) -> Table:
    """Without lines, as `run` prints its tables."""
    table = Table(box=None, pad_edge=False)
    for name in columns:
        table.add_column(Text(name), header_style="dim", overflow="fold")
    return table


def print_shown(shown: Shown, limit: int = 12) -> RenderableType:
    """`tokenizer show` as a person reads it."""
    spec = shown.spec
    head = Text(
        f"{spec.path} ({spec.format})\nsha256 {spec.sha256}\n"
        f"{spec.n_base:,} entries, {spec.n_with_added:,} with added tokens, "
        f"{spec.rows:,} rows (highest id + 1)\n"
        + " · ".join(f"{name} {count:,}" for name, count in shown.published.items())
    )
    tables: list[RenderableType] = [head]
    for column, counts in shown.counts.items():
        table = _table(column, "rows")
        table.columns[1].justify = "right"
        for value, rows in islice(counts.items(), limit):
            table.add_row(Text(value), f"{rows:,}")
        if len(counts) > limit:
            table.add_row(Text(f"{len(counts) - limit} more"), f"{sum(list(counts.values())[limit:]):,}")
        tables += [Text(""), table]
    if shown.unreachable.num_rows:
        table = _table("id", "unreachable", "its text gives", "because of the normalizer")
        for row in shown.unreachable.slice(0, limit).to_pylist():
            gives = " ".join(map(str, row["gives"][:_IDS])) + " …" * (len(row["gives"]) > _IDS)
            table.add_row(
                str(row["token_id"]), Text(_cut(row["token"])), gives, "yes" if row["normalizer"] else "no"
            )
        tables += [Text(""), table]
    return Group(*tables)


def print_comparison(comparison: Comparison, limit: int = 10) -> RenderableType:
    """`tokenizer compare` as a person reads it."""
    c = comparison
    table = _table("", c.a.path, c.b.path)
    table.add_row("sha256", c.a.sha256[:16], c.b.sha256[:16])
    table.add_row("rows", f"{c.a.rows:,}", f"{c.b.rows:,}")
    table.add_row("tokens of its own", f"{len(c.only_a):,}", f"{len(c.only_b):,}")
    if c.merges_only_a is not None and c.merges_only_b is not None:
        table.add_row("merges of its own", f"{len(c.merges_only_a):,}", f"{len(c.merges_only_b):,}")
    for name, left, right in c.settings:
        table.add_row(name, _safe(left), _safe(right))
    lines = [
        f"ids moved: {len(c.moved):,}",
        *[f"  {_cut(token)}: {i} -> {j}" for token, i, j in c.moved[:limit]],
        *[f"  gone: {_cut(token)} ({i})" for token, i in islice(c.only_a.items(), limit)],
        *[f"  added: {_cut(token)} ({i})" for token, i in islice(c.only_b.items(), limit)],
        f"merges in another order: {c.merges_reordered or 0:,}",
        *[f"pieces with another score: {c.scores_differing:,}"] * bool(c.scores_differing),
        f"texts encoded differently: {c.texts_differing:,} of {c.texts:,}",
    ]
    for example in c.examples:
        window = slice(max(0, example.at - 2), example.at + 6)
        lines.append(f"  {printable(example.text[:80].encode('utf-8', 'replace'))}")
        lines.append(f"    from id {example.at}: {example.a[window]} | {example.b[window]}")
    lines.append("the same tokenizer" if c.same else "NOT the same tokenizer")
    return Group(table, Text("\n".join(lines)))
