"""Chat templates are programs from strangers: this compiles them so that they can only write text.

`compile_template` gives what transformers' own environment gives (trim_blocks, lstrip_blocks, loop
controls, `{% generation %}`, `raise_exception`, `strftime_now`, its `tojson`), with three things added:

* a *budget*: each loop turn, call and operator takes from it, and so does every 64 characters that an
  operator, method or filter makes. It is counted, not timed, so a record fails or passes the same
  on every machine, in any thread. A clock stands behind it as a last resort.
* *visits*: while the template's loop is at one of the record's messages, what is written is known to be
  that message's (`Program.run` returns the ranges).
* *generation blocks* as ranges of the output, through macros and set blocks as well.

The rewriting happens on Jinja's syntax tree, by filters whose names no template can spell.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import wraps
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

# Beside what the record's own size pays for; a message costs about 40 steps.
BASE_BUDGET = 200_000
_CALL_STEPS = 4
CHARACTERS_PER_STEP = 64
MAX_SECONDS = 30.0
MAX_TEMPLATE_CHARACTERS = 1 << 20
_CLOCK_EVERY = 4096

# Filter names that no template can spell.
_VISIT, _ENTER, _LEAVE = "loop visit", "loop enter", "loop leave"
_CONCAT, _ADD, _SLICED = "concat all", "add all", "slice made"


class TemplateLimitError(Exception):
    """A template took more steps, text or time than any dialogue needs."""


class RenderError(Exception):
    """A template cannot be compiled, or failed on a record; the text is its own message."""


class Marked(str):
    """Text that holds generation blocks: `blocks` are (start, end, message or None)."""

    __slots__ = ("blocks",)
    blocks: tuple[tuple[int, int, int | None], ...]

    def __str__(self) -> str:
        return self  # str(x) keeps a subclass that __str__ returns, and with it the ranges

    def __add__(self, other: str) -> str:
        return _join([self, other])

    def __radd__(self, other: str) -> str:
        return _join([other, self])

    def strip(self, chars: str | None = None, /) -> str:
        return self.lstrip(chars).rstrip(chars)

    def lstrip(self, chars: str | None = None, /) -> str:
        return self._part(len(self) - len(str.lstrip(self, chars)), len(self))

    def rstrip(self, chars: str | None = None, /) -> str:
        return self._part(0, len(str.rstrip(self, chars)))

    def _part(self, start: int, end: int) -> str:
        text = str.__str__(self)[start:end]
        clip = [(max(a, start) - start, min(b, end) - start, m) for a, b, m in self.blocks]
        return _mark(text, [(a, max(a, b), m) for a, b, m in clip])


def _mark(text: str, blocks: Iterable[tuple[int, int, int | None]]) -> Marked:
    marked = Marked(text)
    marked.blocks = tuple(blocks)
    return marked


def _join(parts: Sequence[str]) -> str:
    text = "".join(parts)
    blocks: list[tuple[int, int, int | None]] = []
    at = 0
    for part in parts:
        if type(part) is Marked:
            blocks += [(a + at, b + at, m) for a, b, m in part.blocks]
        at += len(part)
    return _mark(text, blocks) if blocks else text


class _Generation(Extension):
    """`{% generation %} ... {% endgeneration %}`: its text bears loss."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own protocol

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_block"), [], [], body).set_lineno(line)

    def _block(self, caller: Callable[[], str]) -> str:
        environment = self.environment
        assert isinstance(environment, _Environment)
        text = caller()
        environment.blocks_made += 1
        return _mark(str.__str__(text), [(0, len(text), environment.at[-1])])


class _TemplateNamespace(Namespace):
    # Underscore names would give a template a way to Python's own attributes.
    def __init__(*args: Any, **kwargs: Any) -> None:
        self, args = args[0], args[1:]
        values = dict(*args, **kwargs)
        for name in values:
            _refuse_private(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        Namespace.__setitem__(self, name, value)


def _refuse_private(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace may not have the attribute {name!r}")


def _make_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


def _raise_exception(message: Any) -> str:
    raise jinja2.exceptions.TemplateError(str(message))


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes for HTML; the trainers' does not.
    if indent is not None and (not isinstance(indent, int) or indent > 64):
        raise TemplateLimitError("tojson with an indent over 64")
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


_DICT_ATTRIBUTES = frozenset(dir(dict))
# What writes no prompt, or reads text with expressions of unbounded cost.
_REMOVED_FILTERS = ("urlize", "striptags", "wordwrap", "random", "pprint", "xmlattr", "filesizeformat")
# What gives back a number or one of the values it was given.
_FREE_FILTERS = frozenset(["length", "count", "default", "d", "first", "abs", "int", "float"])
_REMOVED_GLOBALS = ("lipsum", "cycler", "joiner")
# Arguments that set a width: the result is as long as the number says.
_WIDTHS = {"center", "ljust", "rjust", "zfill", "expandtabs", "indent", "truncate", "batch", "slice"}
_MAX_WIDTH = 10_000
_WIDE_FORMAT = re.compile(r"%[^a-zA-Z%]*?(\d{4,}|\*)|\{[^{}]*[:!][^{}]*(\d{4,}|\{)")


class _Environment(ImmutableSandboxedEnvironment):
    # Those that can make much of little; `+` is rewritten, a chain of them to one call.
    intercepted_binops = frozenset(["*", "**", "%"])

    def __init__(self, now: datetime) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        self.left = BASE_BUDGET
        self.until = float("inf")
        self.clock = 0
        self.at: list[int | None] = [None]
        self.index: dict[int, int] = {}
        self.blocks_made = 0
        self.safe: set[tuple[type, str]] = set()
        self.concat = self._concat  # type: ignore[method-assign]
        for name in _REMOVED_FILTERS:
            self.filters.pop(name, None)
        for name in _REMOVED_GLOBALS:
            self.globals.pop(name, None)
        self.filters["tojson"] = _tojson
        for name, function in list(self.filters.items()):
            if name not in _FREE_FILTERS:
                self.filters[name] = self._metered(name, function)
        self.filters["join"] = self._join_filter
        self.filters[_VISIT] = self._visit
        self.filters[_ENTER] = self._enter
        self.filters[_LEAVE] = self._leave
        self.filters[_CONCAT] = self._concat_operator
        self.filters[_ADD] = self._add_operator
        self.filters[_SLICED] = self._made
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = self._strftime(now)
        self.globals["dict"] = _make_dict
        self.globals["namespace"] = _TemplateNamespace

    # Steps

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise TemplateLimitError("the template loops or writes without end; it was stopped")
        self.clock -= steps
        if self.clock < 0:
            self.clock = _CLOCK_EVERY
            if time.monotonic() > self.until:
                raise TemplateLimitError(f"the template ran for over {MAX_SECONDS:.0f} s; it was stopped")

    def _made(self, value: Any) -> Any:
        if isinstance(value, (str, list, tuple)):
            self.spend(1 + len(value) // CHARACTERS_PER_STEP)
        return value

    def _afford(self, size: int) -> None:
        # Asked before a value of that size is made.
        if size // CHARACTERS_PER_STEP > self.left:
            raise TemplateLimitError("the template makes a text of unreasonable size; it was stopped")

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        self.spend(1)
        if operator == "*":
            self._afford(_product_size(left, right))
        elif operator == "**":
            if isinstance(left, int) and isinstance(right, int) and left.bit_length() * abs(right) > 4096:
                raise TemplateLimitError("the template computes a number of over 4096 bits")
        elif operator == "%" and isinstance(left, str):
            self._check_format(left)
        return self._made(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        self = __self
        self.spend(_CALL_STEPS)
        owner = getattr(__obj, "__self__", None)
        if not isinstance(owner, str):
            return self._made(super().call(__context, __obj, *args, **kwargs))
        kwargs.pop("_loop_vars", None)  # Jinja's own, for callables that take the context
        kwargs.pop("_block_vars", None)
        name = __obj.__name__
        if name == "join" and args:
            items = list(args[0])
            self._afford(sum(len(i) for i in items if isinstance(i, str)) + len(owner) * len(items))
            args = (items, *args[1:])
        elif name == "replace" and len(args) > 1:
            self._afford(_replaced_size(owner, args[0], args[1]))
        elif name in _WIDTHS:
            _check_widths(args, kwargs)
            if name == "expandtabs":
                self._afford(len(owner) * int(next(iter([*args, *kwargs.values()]), 8)))
        return self._made(__obj(*args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            self._check_format(value.__self__)
        return wrapped

    def _check_format(self, text: str) -> None:
        if _WIDE_FORMAT.search(text):
            raise TemplateLimitError("a format with a width over 999 or a computed one")
        self._afford(len(text))

    def _metered(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        # Jinja's filters may take the environment or context first; the wrapper keeps that mark.
        first = 1 if hasattr(function, "jinja_pass_arg") else 0

        @wraps(function)
        def filtered(*args: Any, **kwargs: Any) -> Any:
            self.spend(1)
            value: Any = args[first] if len(args) > first else None
            if isinstance(value, (str, list, tuple, range, dict)):
                self.spend(len(value) // CHARACTERS_PER_STEP)
            if name in _WIDTHS:
                _check_widths(args[first + 1 :], kwargs)
                if name == "indent" and isinstance(value, str):
                    self._afford(value.count("\n") * _MAX_WIDTH // 10)
            elif name == "replace" and len(args) > first + 2:
                self._afford(_replaced_size(str(value), args[first + 1], args[first + 2]))
            elif name == "format":
                self._check_format(str(value))
            elif name == "sum":
                self._afford(sum(len(i) for i in value if hasattr(i, "__len__")) if value else 0)
            elif name in ("list", "sort", "unique", "reverse") and hasattr(value, "__next__"):
                return self._made(function(*args[:first], self._counted(value), *args[first + 1 :], **kwargs))
            return self._made(function(*args, **kwargs))

        return filtered

    def _counted(self, values: Iterable[Any]) -> Iterable[Any]:
        for value in values:
            self.spend(1)
            yield value

    def _join_filter(self, value: Iterable[Any], d: str = "", attribute: str | None = None) -> str:
        items = []
        for item in value:
            self.spend(1)
            if attribute is not None:
                for part in str(attribute).split("."):
                    item = self.getitem(item, int(part) if part.isdigit() else part)
            items.append(str(item))
        self._afford(sum(map(len, items)) + len(d) * len(items))
        between = str(d)
        return str(self._made(_join([x for item in items for x in (between, item)][1:])))

    @staticmethod
    def _strftime(now: datetime) -> Callable[[str], str]:
        def strftime_now(format: str) -> str:
            if len(format) > 256 or re.search(r"\d{3}", format):
                raise TemplateLimitError("strftime_now with a format of unreasonable width")
            return now.strftime(format)

        return strftime_now

    # Attributes, as the sandbox decides them; what it decides for a type is remembered.

    def getattr(self, obj: Any, attribute: str) -> Any:
        kind = type(obj)
        if kind is dict and attribute not in _DICT_ATTRIBUTES:
            try:
                return obj[attribute]
            except KeyError:
                return self.undefined(obj=obj, name=attribute)
        if (kind, attribute) in self.safe:
            return getattr(obj, attribute)
        if kind is _TemplateNamespace and not attribute.startswith("_"):
            try:
                return getattr(obj, attribute)
            except AttributeError:
                return self.undefined(obj=obj, name=attribute)
        value = super().getattr(obj, attribute)
        if (
            kind in (str, dict, LoopContext)
            and attribute not in ("format", "format_map")
            and not isinstance(value, jinja2.Undefined)
            and hasattr(obj, attribute)
        ):
            self.safe.add((kind, attribute))
        return value

    # What the rewritten tree calls

    def _visit(self, message: Any) -> None:
        self.left -= 1
        self.clock -= 1
        if self.left < 0 or self.clock < 0:
            self.spend(0)
        index = self.index.get(id(message))
        if index is not None:
            self.at[-1] = index

    def _enter(self, context: Any) -> None:
        self.at.append(self.at[-1])

    def _leave(self, context: Any) -> None:
        self.at.pop()

    def _concat_operator(self, values: list[Any]) -> str:
        return self._concat([str(value) for value in values])

    def _add_operator(self, values: list[Any]) -> Any:
        # The chain a + b + c, left to right as Python does it; text goes in one step.
        for value in values:
            if type(value) is not str:
                break
        else:
            size = sum(map(len, values))
            self._afford(size)
            self.spend(1 + size // CHARACTERS_PER_STEP)
            return "".join(values)
        total = values[0]
        for value in values[1:]:
            if isinstance(total, (str, list, tuple)) and isinstance(value, (str, list, tuple)):
                size = len(total) + len(value)
                self._afford(size)
                self.spend(1 + size // CHARACTERS_PER_STEP)
            total = total + value
        self.spend(1)
        return total

    def _concat(self, values: Iterable[str]) -> str:
        items = list(values)
        size = sum(map(len, items))
        self._afford(size)
        self.spend(1 + size // CHARACTERS_PER_STEP)
        return _join(items)


def _check_widths(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    for value in (*args, *kwargs.values()):
        if isinstance(value, int) and abs(value) > _MAX_WIDTH:
            raise TemplateLimitError(f"a width over {_MAX_WIDTH:,}")
        if isinstance(value, str) and len(value) > _MAX_WIDTH:
            raise TemplateLimitError(f"a filling over {_MAX_WIDTH:,} characters")


def _product_size(left: Any, right: Any) -> int:
    if isinstance(left, int) and isinstance(right, int):
        return (left.bit_length() + right.bit_length()) ** 2
    if isinstance(left, int):
        left, right = right, left
    return len(left) * right if hasattr(left, "__len__") and isinstance(right, int) else 0


def _replaced_size(text: str, old: Any, new: Any) -> int:
    old, new = str(old), str(new)
    hits = text.count(old) if len(new) > len(old) else 0
    return len(text) + hits * (len(new) - len(old))


def _statement(name: str, value: nodes.Expr) -> nodes.Node:
    return nodes.ExprStmt(nodes.Filter(value, name, [], [], None, None))


def _instrument(node: nodes.Node) -> nodes.Node:
    """The tree with visits, counted loops and metered `~` and slices; changes it in place."""
    for name, value in node.iter_fields():
        if isinstance(value, list):
            out: list[Any] = []
            for child in value:
                if not isinstance(child, nodes.Node):
                    out.append(child)
                elif isinstance(child, nodes.For):
                    _instrument_loop(child)
                    here = nodes.ContextReference()
                    out += [_statement(_ENTER, here), child, _statement(_LEAVE, here)]
                else:
                    out.append(_instrument(child))
            setattr(node, name, out)
        elif isinstance(value, nodes.Node):
            setattr(node, name, _instrument(value))
    if isinstance(node, nodes.Add):
        left = node.left
        chain = [left, node.right]
        if isinstance(left, nodes.Filter) and left.name == _ADD and isinstance(left.node, nodes.List):
            chain[:1] = left.node.items
        return nodes.Filter(nodes.List(chain, lineno=node.lineno), _ADD, [], [], None, None)
    if isinstance(node, nodes.Concat):
        return nodes.Filter(nodes.List(node.nodes, lineno=node.lineno), _CONCAT, [], [], None, None)
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        return nodes.Filter(node, _SLICED, [], [], None, None)
    return node


def _instrument_loop(loop: nodes.For) -> None:
    _instrument(loop)
    target = loop.target
    # A loop over anything else than messages counts its turns all the same.
    seen: nodes.Expr = (
        nodes.Name(target.name, "load") if isinstance(target, nodes.Name) else nodes.ContextReference()
    )
    loop.body.insert(0, _statement(_VISIT, seen))


@dataclass(slots=True)
class Output:
    """What a template wrote.

    text: all of it. visits: per message, the ranges written while the loop was at it, adjacent ones joined.
    blocks: generation blocks as (start, end, message or None), in order of position; None where a
        block was made that does not stand in the text as it was.
    """

    text: str
    visits: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    blocks: list[tuple[int, int, int | None]] | None = None


class Program:
    """A compiled template. Not for two threads at once; make one per thread.

    text: the template. now: what `strftime_now` says. Raises RenderError where it does not compile.
    """

    def __init__(self, text: str, now: datetime) -> None:
        if len(text) > MAX_TEMPLATE_CHARACTERS:
            raise RenderError(f"a template of {len(text):,} characters")
        self._environment = environment = _Environment(now)
        try:
            tree = environment.parse(text)
            calls = [block.call.node for block in tree.find_all(nodes.CallBlock)]
            self.has_generation = any(isinstance(call, nodes.ExtensionAttribute) for call in calls)
            constants = {c.value for c in tree.find_all(nodes.Const) if isinstance(c.value, str)}
            data = {d.data for d in tree.find_all(nodes.TemplateData)}
            code = environment.compile(_instrument(tree).set_environment(environment))  # type: ignore[call-overload]
        except jinja2.TemplateSyntaxError as error:
            raise RenderError(f"line {error.lineno}: {error.message}") from None
        except Exception as error:
            raise RenderError(_first_line(error)) from None
        self.literals: frozenset[str] = frozenset(constants | data)
        self._template = jinja2.Template.from_code(environment, code, environment.make_globals(None))

    def run(self, values: Mapping[str, Any], messages: Sequence[Any]) -> Output:
        """Render. values: the template's variables, `messages` among them.

        Raises RenderError with the template's own message, or that of the limit it met.
        """
        environment = self._environment
        environment.left = BASE_BUDGET + _size(values)
        environment.until = time.monotonic() + MAX_SECONDS
        environment.clock = _CLOCK_EVERY
        environment.at = [None]
        environment.index = {id(message): i for i, message in enumerate(messages)}
        environment.blocks_made = 0
        parts: list[str] = []
        visits: dict[int, list[tuple[int, int]]] = {}
        blocks: list[tuple[int, int, int | None]] = []
        at = environment.at
        position = 0
        try:
            context = self._template.new_context({**self._template.globals, **values}, shared=True)
            for part in self._template.root_render_func(context):
                if not part:
                    if type(part) is Marked:
                        blocks += [(position, position, m) for _, _, m in part.blocks]
                    continue
                end = position + len(part)
                environment.spend(1 + len(part) // CHARACTERS_PER_STEP)
                message = at[-1]
                if message is not None:
                    ranges = visits.setdefault(message, [])
                    if ranges and ranges[-1][1] == position:
                        ranges[-1] = (ranges[-1][0], end)
                    else:
                        ranges.append((position, end))
                if type(part) is Marked:
                    blocks += [(a + position, b + position, m) for a, b, m in part.blocks]
                    part = str.__str__(part)
                parts.append(part)
                position = end
        except RecursionError:
            raise RenderError("the template calls itself without end; it was stopped") from None
        except MemoryError:
            raise RenderError("the template ran out of memory; it was stopped") from None
        except Exception as error:
            raise RenderError(_first_line(error)) from None
        finally:
            environment.index = {}
        whole = len(blocks) == environment.blocks_made
        return Output("".join(parts), visits, blocks if whole else None)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    text = lines[0][:300] if lines else ""
    if isinstance(error, (TemplateLimitError, jinja2.TemplateError)) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _size(value: Any) -> int:
    # Steps that the record's own size pays for: as many as it has characters and values.
    if type(value) is str:
        return len(value)
    total = 8
    if isinstance(value, dict):
        for item in value.values():
            total += len(item) if type(item) is str else _size(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            total += _size(item)
    return total
