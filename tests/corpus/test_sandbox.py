"""Templates are programs from strangers: what they may do, and where they are stopped."""

from __future__ import annotations

import threading
import tracemalloc

import jinja2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coverage_job.corpus.sandbox import Program, RenderError
from tests.corpus.dialogues import NOW, dialogue


def run(text: str, **values: object) -> str:
    return Program(text, NOW).run(values, ()).text


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ strftime_now('%d %b %Y') }}", "04 May 2026"),
        ("{{ {'a': 'é<b>', 'n': [1, none]} | tojson }}", '{"a": "é<b>", "n": [1, null]}'),
        ("{{ {'b': 1, 'a': 2} | tojson(indent=1, sort_keys=true) }}", '{\n "a": 2,\n "b": 1\n}'),
        ("{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "012"),
        ("{% for i in [1, 2] %}\n  {% if i %}\nx\n  {% endif %}\n{% endfor %}", "x\nx\n"),
        ("{{ 1 + 2 }} {{ 'a' + 'b' + 'c' }} {{ [1] + [2] }} {{ 1 ~ 'x' ~ none }}", "3 abc [1, 2] 1xNone"),
        ("{{ 'abc'[1:] }} {{ 'a-b'.split('-') | join('+') }} {{ '%s!' % 'x' }} {{ 'x{}'.format(1) }}",
         "bc a+b x! x1"),
        ("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m('a') ~ m('b') }}", "<a><b>"),
        ("{% set ns = namespace(n=0) %}{% for i in [1, 2] %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}",
         "3"),
        ("{{ [{'a': {'b': 1}}, {'a': {'b': 2}}] | join(',', attribute='a.b') }}", "1,2"),
        ("{{ dict(a=1).a }}", "1"),
    ],
)  # fmt: skip
def test_what_templates_use_is_there(template: str, expected: str) -> None:
    assert run(template) == expected


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ '{0.__class__.__mro__}'.format('') }}",
        "{{ 'x' | attr('__class__') }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__self__ }}",
        "{{ (namespace)(__class__=1) }}",
        "{% set ns = namespace() %}{% set ns.__init__ = 1 %}{{ ns }}",
        "{{ self._TemplateReference__context.environment }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{{ messages[0].__class__.__init__.__globals__ }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}{{ os }}",
        "{{ lipsum(n=100000000) }}",
        "{{ cycler.__init__ }}",
    ],
)
def test_python_is_out_of_reach(template: str) -> None:
    messages = dialogue("a")
    try:
        text = Program(template, NOW).run({"messages": messages}, messages).text
    except RenderError:
        text = ""
    # Jinja writes nothing for an attribute it refuses; never an object of Python's.
    assert text == ""
    assert messages == dialogue("a")


ENDLESS = {
    "nested loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "written loops": "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}",
    "long range": "{% for i in range(10 ** 9) %}{% endfor %}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "doubling recursion": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}"
    "{{ f(60) }}",
    "recursive loop": "{% for x in [[]] recursive %}{{ loop([[], []]) }}{% endfor %}",
    "product": "{{ 'x' * 10 ** 10 }}",
    "product of lists": "{% set l = [1] * 10 ** 10 %}",
    "power": "{{ 9 ** (9 ** 9) }}",
    "doubling by +": "{% set ns = namespace(s='xx') %}{% for i in range(60) %}"
    "{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "doubling by ~": "{% set ns = namespace(s='xx') %}{% for i in range(60) %}"
    "{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "doubling lists": "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}"
    "{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "doubling by join": "{% set ns = namespace(s='xx') %}{% for i in range(60) %}"
    "{% set ns.s = [ns.s, ns.s] | join %}{% endfor %}",
    "doubling by method": "{% set ns = namespace(s='xx') %}{% for i in range(60) %}"
    "{% set ns.s = ns.s.replace('x', 'xx') %}{% endfor %}",
    "doubling by filter": "{% set ns = namespace(s='xx') %}{% for i in range(60) %}"
    "{% set ns.s = ns.s | replace('x', 'xx') %}{% endfor %}",
    "doubling by format": "{% set ns = namespace(s='xx') %}{% for i in range(60) %}"
    "{% set ns.s = '%s%s' % (ns.s, ns.s) %}{% endfor %}",
    "doubling by set block": "{% set ns = namespace(s='xx') %}{% for i in range(60) %}"
    "{% set ns.s %}{{ ns.s }}{{ ns.s }}{% endset %}{% endfor %}",
    "doubling by macro": "{% macro d(s) %}{{ s }}{{ s }}{% endmacro %}{% set ns = namespace(s='xx') %}"
    "{% for i in range(60) %}{% set ns.s = d(ns.s) %}{% endfor %}",
    "kept slices": "{% set big = 'x' * 4000000 %}{% set ns = namespace(l=[]) %}"
    "{% for i in range(90000) %}{% set ns.l = ns.l + [big[i:]] %}{% endfor %}",
    "wide format": "{{ '%1000000000d' % 1 }}",
    "wide str.format": "{{ '{:1000000000}'.format('x') }}",
    "computed width": "{{ '{:{}}'.format('x', 1000000000) }}",
    "starred width": "{{ '%*d' % (1000000000, 1) }}",
    "wide format filter": "{{ '%1000000000d' | format(1) }}",
    "center": "{{ 'x' | center(1000000000) }}",
    "ljust": "{{ 'x'.ljust(1000000000) }}",
    "zfill": "{{ 'x'.zfill(1000000000) }}",
    "expandtabs": "{{ '\t'.expandtabs(1000000000) }}",
    "batch": "{{ [1] | batch(1000000000, 0) | list }}",
    "indent": "{{ 'x\ny' | indent(1000000000) }}",
    "tojson": "{{ [1] | tojson(indent=1000000000) }}",
    "strftime": "{{ strftime_now('%1000000000d') }}",
    "sum of lists": "{% set a = [range(90000) | list] * 90000 %}{{ (a | sum(start=[])) | length }}",
    "join of one text": "{% set s = 'x' * 1000000 %}{{ ([s] * 100000) | join | length }}",
    "replace": "{% set s = 'x' * 1000000 %}{{ s.replace('x', s) | length }}",
}  # fmt: skip


@pytest.mark.parametrize("name", ENDLESS)
def test_a_template_without_end_is_stopped(name: str) -> None:
    if "loop" in name or "recursion" in name:  # steps are slow while memory is traced
        with pytest.raises(RenderError):
            run(ENDLESS[name])
        return
    tracemalloc.start()
    try:
        with pytest.raises(RenderError):
            run(ENDLESS[name])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 200 << 20


def test_it_is_stopped_in_a_thread_too() -> None:
    caught: list[str] = []

    def work() -> None:
        try:
            run(ENDLESS["nested loops"])
        except RenderError as error:
            caught.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(timeout=60)
    assert caught == ["the template loops or writes without end; it was stopped"]


def test_the_budget_grows_with_the_record() -> None:
    text = "{% for m in messages %}{{ m.content[0] + m.content[1:] }}{% endfor %}"
    messages = dialogue(*["x" * 1_000_000] * 20)
    assert len(Program(text, NOW).run({"messages": messages}, messages).text) == 20_000_000


def test_each_record_has_a_budget_of_its_own() -> None:
    program = Program("{% for i in range(40000) %}{% endfor %}{{ n }}", NOW)
    assert [program.run({"n": n}, ()).text for n in range(9)] == [str(n) for n in range(9)]


def test_faults_come_with_the_templates_own_words() -> None:
    with pytest.raises(RenderError, match=r"^roles must alternate$"):
        run("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(RenderError, match="'absent' is undefined"):
        run("{{ absent.x }}")
    with pytest.raises(RenderError, match="TypeError: can only concatenate"):
        run("{{ 'x' + 1 }}")
    with pytest.raises(RenderError, match=r"^line 2: "):
        Program("x\n{% for %}", NOW)


def test_blocks_keep_their_places_through_macros_and_set_blocks() -> None:
    text = (
        "{% macro turn(m) %}a:{% generation %} {{ m }} {% endgeneration %}.{% endmacro %}"
        "> {{ turn('x') }}{% set y %}{{ turn('y') }}{% endset %}{{ y | trim }}{{ '!' + turn('z') }}"
    )
    output = Program(text, NOW).run({}, ())
    assert output.text == "> a: x .a: y .!a: z ."
    assert output.blocks is not None
    assert [output.text[a:b] for a, b, _ in output.blocks] == [" x ", " y ", " z "]


def test_a_block_whose_text_is_rewritten_has_no_place() -> None:
    text = "{% macro t() %}{% generation %}abc{% endgeneration %}{% endmacro %}{{ t() | upper }}"
    assert Program(text, NOW).run({}, ()).blocks is None


def test_visits_are_the_ranges_written_at_a_message() -> None:
    text = (
        "{% for m in messages %}{% for n in messages %}{% endfor %}{{ m.content }}"
        "{% for c in 'ab' %}{{ c }}{% endfor %}{% endfor %}."
    )
    messages = dialogue("x", "", "yy")
    output = Program(text, NOW).run({"messages": messages}, messages)
    assert output.text == "xababyyab."
    assert output.visits == {0: [(0, 3)], 1: [(3, 5)], 2: [(5, 9)]}


@settings(deadline=None, max_examples=60)
@given(st.lists(st.text(max_size=8), max_size=5), st.text(max_size=6))
def test_the_rewritten_tree_writes_what_jinja_writes(words: list[str], other: str) -> None:
    text = (
        "{% for w in words %}{{ loop.index ~ w + other + '-' }}{{ w[1:] ~ other[:2] }}{% if not loop.last %}"
        "{{ w.strip() + ', ' + (w | upper) }}{% endif %}{% else %}none{% endfor %}"
        "{{ words | join('|') }}{{ words | map('trim') | list }}{{ (words + [other]) | length }}"
        "{{ other.replace('a', 'bb') }}{{ '%s' % other }}{{ words | tojson }}"
    )
    environment = jinja2.Environment()
    expected = environment.from_string(text.replace("| tojson", "")).render(words=words, other=other)
    assert run(text.replace("| tojson", ""), words=words, other=other) == expected
