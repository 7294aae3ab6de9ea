"""Script, language and category of tokens; every label with the rule that gave it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

import fsspec
import polars as pl
import yaml

from coverage_job.config import read_yaml
from coverage_job.errors import JobError, did_you_mean
from coverage_job.schemas import Decodable, Kind
from coverage_job.tokenizer.entries import text_of
from coverage_job.tokenizer.languages import by_counts, is_guess, language_of_bytes, languages_of
from coverage_job.tokenizer.scripts import scripts_of_language

_CONDITIONS = {"kind", "decodable", "pattern", "list"}
_LISTS = ("seo_spam",)
_SHOWN = 200  # letters of a rule's name, or of what is wrong with its pattern, in a message


@dataclass(frozen=True)
class Rule:
    """One rule of a category file: all of its conditions hold."""

    name: str
    category: str
    kind: tuple[str, ...] = ()
    decodable: tuple[str, ...] = ()
    pattern: str | None = None
    list: str | None = None


def read_rules(path: str | None = None) -> list[Rule]:
    """The rules of a file, the shipped one by default. Raises JobError naming the rule at fault."""
    name = path or "categories.yaml"
    try:
        if path is None:
            text = (resources.files("coverage_job.tokenizer") / name).read_text(encoding="utf-8")
        else:
            with fsspec.open(path, "rt", encoding="utf-8") as file:
                text = file.read()
        tree = read_yaml(text)
    except (OSError, ValueError) as error:
        raise JobError(f"labels.rules {name}: cannot be read ({error})") from None
    except yaml.YAMLError as error:
        raise JobError(f"labels.rules {name}: no valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(tree, list) or not tree:
        raise JobError(f"labels.rules {name}: a list of rules is expected, as in the shipped categories.yaml")
    return [_rule(item, f"labels.rules {name}: rule {number}") for number, item in enumerate(tree, 1)]


def _rule(item: object, where: str) -> Rule:
    if not isinstance(item, dict) or not {"name", "category"} <= item.keys():
        raise JobError(f"{where}: `name` and `category` are needed")
    for key in ("name", "category"):
        if not isinstance(item[key], str) or not item[key]:
            raise JobError(f"{where}: `{key}` is a text; put it in quotes")
    where = f"{where} ({item['name'][:_SHOWN]})"
    if unknown := item.keys() - _CONDITIONS - {"name", "category"}:
        key = sorted(map(str, unknown))[0]
        near = did_you_mean(key, _CONDITIONS)
        raise JobError(f"{where}: unknown key {key!r}{near}; known: {sorted(_CONDITIONS)}")
    for key, enum in (("kind", Kind), ("decodable", Decodable)):
        values = item.get(key, [])
        if not isinstance(values, list) or any(v not in [*enum] for v in values):
            raise JobError(f"{where}: `{key}` is a list of {', '.join(e.value for e in enum)}")
    pattern = item.get("pattern")
    if "pattern" in item:
        # Without quotes `[a]` is a list, and no value is null: neither may become another pattern.
        if not isinstance(pattern, str):
            raise JobError(f"{where}: `pattern` is a text; put it in quotes")
        try:
            pl.Series([""]).str.contains(pattern)
        except pl.exceptions.ComputeError as error:
            reason = " ".join(str(error).partition("This error occurred")[0].split())
            raise JobError(f"{where}: `pattern` is not read: {reason[-_SHOWN:]}") from None
    if item.get("list", "seo_spam") not in _LISTS:
        raise JobError(f"{where}: `list` names one of the job's lists: {', '.join(_LISTS)}")
    return Rule(
        name=item["name"],
        category=item["category"],
        kind=tuple(item.get("kind", ())),
        decodable=tuple(item.get("decodable", ())),
        pattern=pattern,
        list=item.get("list"),
    )


def languages(data: Sequence[bytes]) -> pl.DataFrame:
    """script, language and language_rule of tokens' bytes, one row each."""
    texts = [text_of(item) for item in data]
    whole = iter(languages_of([text for text in texts if text is not None]))
    rows = [
        language_of_bytes(d) if text is None else next(whole) for d, text in zip(data, texts, strict=True)
    ]
    return pl.DataFrame(
        rows, schema=["script", "language", "language_rule"], orient="row", infer_schema_length=None
    )


def categories(tokens: pl.DataFrame, rules: Sequence[Rule], seo_spam: Sequence[str] = ()) -> pl.DataFrame:
    """category and category_rule of tokens; `other` by `no_rule` where no rule matches.

    tokens: kind, decodable and text, where text begins with a space if it begins a word, and is null where
    the bytes are no text.
    """
    tokens = tokens.with_columns(pl.col("text").cast(pl.String))  # a column of nulls has no type of its own
    category, name = pl.lit("other"), pl.lit("no_rule")
    spam = [text for text in seo_spam if text]
    for rule in reversed(rules):
        holds = pl.lit(True)
        if rule.kind:
            holds = holds & pl.col("kind").is_in(rule.kind)
        if rule.decodable:
            holds = holds & pl.col("decodable").is_in(rule.decodable)
        if rule.pattern is not None:
            holds = holds & pl.col("text").str.contains(rule.pattern).fill_null(False)
        if rule.list is not None:
            holds = holds & (
                pl.col("text").str.contains_any(spam).fill_null(False) if spam else pl.lit(False)
            )
        category = pl.when(holds).then(pl.lit(rule.category)).otherwise(category)
        name = pl.when(holds).then(pl.lit(rule.name)).otherwise(name)
    # Rules without a condition give one value, which a selection alone would not repeat for every row.
    return tokens.with_columns(category=category, category_rule=name).select("category", "category_rule")


def with_counted_languages(vocabulary: pl.DataFrame, counts: pl.DataFrame) -> pl.DataFrame:
    """The vocabulary with languages taken from counts where letters only allowed a guess.

    counts: as `languages.by_counts` takes them. The rule becomes ``counts:<share>``.
    """
    written = pl.DataFrame(
        [(tag, script) for tag in counts["language"].unique() for script in scripts_of_language(tag)],
        schema={"language": pl.String, "script": pl.String},
        orient="row",
    )
    # English words in Korean pages are no Korean: only languages written in the token's script count.
    fitting = counts.join(vocabulary.select("token_id", "script"), on="token_id").join(
        written, on=["language", "script"], how="semi"
    )
    known = by_counts(fitting).rename({"language": "_language", "share": "_share"})
    joined = vocabulary.join(known, on="token_id", how="left", maintain_order="left")
    guesses = [rule for rule in vocabulary["language_rule"].unique() if is_guess(rule)]
    use = pl.col("_language").is_not_null() & pl.col("language_rule").is_in(guesses)
    rule = pl.format("counts:{}", pl.col("_share").round(2))
    return joined.with_columns(
        language=pl.when(use).then("_language").otherwise("language"),
        language_rule=pl.when(use).then(rule).otherwise("language_rule"),
    ).drop("_language", "_share")
