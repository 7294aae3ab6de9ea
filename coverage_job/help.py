"""How commands show themselves: what typer prints by default, without its own notation."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import typer
import typer.core


class _Plain:
    """Flags without `<bool>`, needed arguments without braces; releases of typer differ in these."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False) and param.metavar is None:
                param.metavar = ""
        return params

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        pieces: list[str] = super().collect_usage_pieces(ctx)  # type: ignore[misc]
        return [re.sub(r"^\{([^|]*)\}$", r"\1", piece) for piece in pieces]


class Command(_Plain, typer.core.TyperCommand):
    """A command."""


class Group(_Plain, typer.core.TyperGroup):
    """A group of commands."""


class ProbeGroup(Group):
    """`probe RUN_DIR ...` asks; what is no command of the group is what `ask` is given."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, *ctx.help_option_names):
            args = ["ask", *args]
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed


class App(typer.Typer):
    """A typer application whose commands and groups are the plain ones."""

    def __init__(self, *, cls: type[typer.core.TyperGroup] = Group, **options: Any) -> None:
        super().__init__(cls=cls, rich_markup_mode="rich", **options)

    def command(self, name: str | None = None, **options: Any) -> Callable[..., Any]:
        made: Callable[..., Any] = super().command(name, cls=Command, **options)
        return made
