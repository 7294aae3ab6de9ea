"""The job file as typed models. Unknown keys are errors; the defaults here are the documented ones.

`docs/job-file.md` is generated from these models, so a field's description is its documentation.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from coverage_job.errors import JobError, did_you_mean
from coverage_job.schemas import Stage

MiB = 1 << 20
# Of a model's matrix; no vocabulary comes near it, and each row takes memory.
MAX_ROWS = 1 << 24

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")

_SIZE_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
}


def parse_size(value: Any) -> Any:
    """Bytes from a number or a text such as ``64MiB``.

    >>> parse_size("64MiB"), parse_size("2 GB"), parse_size(512)
    (67108864, 2000000000, 512)
    """
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", value)
    if match is None or match[2].lower() not in _SIZE_UNITS:
        raise ValueError(f"{value!r} is no size; write a number of bytes or one such as 64MiB")
    return int(float(match[1]) * _SIZE_UNITS[match[2].lower()])


Size = Annotated[int, BeforeValidator(parse_size), Field(gt=0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


def _yaml_constant(value: Any) -> Any:
    # YAML reads a bare `none` as text but `no`/`null` as False/None; each means the option is off.
    return "none" if value is None or value is False else value


class Model(BaseModel):
    """Base of all parts of a job: unknown keys are errors, values do not change once read."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class RankFile(Model):
    """A bare rank file (`*.tiktoken`), which says nothing of how text is split before it is used."""

    path: str = Field(description="The rank file: one base64 token and its rank a line.")
    pattern: str = Field(description="The regular expression that splits text into pre-tokens.")
    normalizer: Literal["NFC", "NFD", "NFKC", "NFKD"] | None = Field(
        None, description="Unicode normal form applied first."
    )
    special_tokens: dict[str, int] = Field(default_factory=dict, description="Special tokens and their ids.")


ShapeName = Literal[
    "auto", "text", "messages", "sharegpt", "alpaca", "prompt_completion", "preference", "tokens"
]
FormatName = Literal[
    "auto", "jsonl", "json", "parquet", "arrow", "csv", "tsv", "text", "megatron", "bin", "npy"
]
TrainOn = Literal["all_assistant", "last_assistant", "all"]


class RecordPolicy(Model):
    """What to do with input that cannot be used; set for the job, and per corpus where it differs."""

    on_bad_record: Literal["skip", "fail"] = Field(
        "skip", description="A record that cannot be used is counted and skipped, or ends the run."
    )
    on_bad_file: Literal["fail", "skip"] = Field(
        "fail",
        description="A file that ends early or cannot be opened ends the run, or is reported as missing.",
    )
    max_bad_fraction: Fraction = Field(
        0.01, description="Share of bad records in a corpus past which the run ends with exit code 2."
    )
    max_record_bytes: Size = Field(
        64 * MiB, description="A longer record is a bad record, skipped while streaming."
    )


class Corpus(Model):
    """A named set of files, or a table, of one stage."""

    name: str = Field(min_length=1, description="Its name in every table.")
    stage: Stage = Field(description="`pretraining` or `posttraining`.")
    path: str | list[str] | None = Field(
        None,
        description="A file, a glob, or a list of them; anything fsspec opens. Relative to the job file.",
    )
    table: str | None = Field(None, description="A Spark table, instead of `path`.")
    format: FormatName = Field("auto", description="The file format; `auto` takes it from the file name.")
    shape: ShapeName = Field("auto", description="How a record holds its text; `auto` says what it decided.")

    text: str = Field("text", description="The field with the text (shape `text`).")
    messages: str | None = Field(
        None, description="The field with the messages, where it is not the usual one."
    )
    tools: str = Field("tools", description="The field with tool definitions, passed to the chat template.")
    prompt: str | None = Field(None, description="The field with the prompt (shape `prompt_completion`).")
    completion: str | None = Field(None, description="The field with the answer (shape `prompt_completion`).")
    input_ids: str = Field("input_ids", description="The field with token ids (shape `tokens`).")
    labels: str = Field("labels", description="The field with unshifted labels, -100 where no loss is taken.")
    loss_mask: str | None = Field(None, description="The field with a 0/1 loss mask, instead of labels.")
    dtype: Literal["uint8", "uint16", "int32", "uint32", "int64"] | None = Field(
        None, description="Width of the ids of a flat .bin file."
    )
    document_end: int | None = Field(None, description="The id that ends a document in a flat token file.")
    sequence_length: int | None = Field(
        None, gt=0, description="The fixed length of a document in a flat token file."
    )

    language_field: str | None = Field(
        None,
        description="The field with the record's language; a value that is none, such as `code`, is a group "
        "of its own, within that of `group_by`.",
    )
    group_by: str | None = Field(None, description="A field whose values are counted apart (at most 1,000).")

    epochs: float = Field(1.0, gt=0, description="How often the trainer passes a post-training corpus.")
    mixed_in: float = Field(
        0.0, ge=0, description="How often a pre-training corpus is passed during post-training."
    )
    add_bos: bool | str = Field(
        False,
        description="The trainer puts one BOS before each document (text corpora); or that token's text.",
    )
    add_eos: bool | str = Field(
        False,
        description="The trainer puts one EOS after each document (text corpora); or that token's text.",
    )

    chat_template: str | None = Field(
        None, description="Overrides the job's `chat_template` for this corpus."
    )
    train_on: TrainOn = Field("all_assistant", description="Which turns bear loss.")
    train_end_of_turn: bool = Field(
        True,
        description="Whether the token that ends a trained turn bears loss (where the template writes one).",
    )
    max_length: int | None = Field(None, gt=0, description="Tokens a rendered dialogue is cut to.")
    truncation_side: Literal["right", "left"] = Field("right", description="The side that is cut off.")
    split_special_tokens: bool = Field(
        False, description="Whether special-token text inside a message is encoded as plain text."
    )

    on_bad_record: Literal["skip", "fail"] | None = Field(None, description="Overrides the job's.")
    on_bad_file: Literal["fail", "skip"] | None = Field(None, description="Overrides the job's.")
    max_bad_fraction: Fraction | None = Field(None, description="Overrides the job's.")
    max_record_bytes: Size | None = Field(None, description="Overrides the job's.")

    @model_validator(mode="after")
    def _one_source(self) -> Corpus:
        if _CONTROL.search(self.name):
            raise ValueError("`name` holds a control character; it is printed and names folders")
        if (self.path is None) == (self.table is None):
            raise ValueError("give either `path` or `table`")
        if self.path == []:
            raise ValueError("`path` is an empty list; name a file, a folder or a glob")
        if self.stage is Stage.PRETRAINING and self.epochs != 1.0:
            raise ValueError("`epochs` is for post-training corpora; a pre-training corpus has `mixed_in`")
        if self.stage is Stage.POSTTRAINING and self.mixed_in:
            raise ValueError("`mixed_in` is for pre-training corpora; a post-training corpus has `epochs`")
        if self.document_end is not None and self.sequence_length is not None:
            raise ValueError("give either `document_end` or `sequence_length`, not both")
        return self

    @property
    def paths(self) -> list[str]:
        return [self.path] if isinstance(self.path, str) else list(self.path or ())


Measure = Literal[
    "supervised_occurrences", "supervised_documents", "occurrences", "documents", "expected_updates"
]


KindName = Literal["base", "added", "special", "byte", "unused"]


class Exempt(Model):
    """Tokens that are never flagged, by column of the coverage table."""

    kind: list[KindName] = Field(default_factory=list, description="Kinds, such as `added`.")
    script: list[str] = Field(default_factory=list, description="Scripts, such as `Hebrew`.")
    language: list[str] = Field(default_factory=list, description="Languages, such as `he`.")
    category: list[str] = Field(default_factory=list, description="Categories, such as `seo_spam`.")
    token_id: list[int] = Field(default_factory=list, description="Single ids.")


class CoverageOptions(Model):
    """What counts as covered."""

    measure: Measure = Field("supervised_occurrences", description="The count held against the thresholds.")
    critical: int = Field(5, ge=1, description="Below it a token is `critical`.")
    minimum: int = Field(20, ge=1, description="Below it a token is flagged.")
    exempt: Exempt = Field(default_factory=Exempt, description="What is never flagged.")

    @model_validator(mode="after")
    def _ordered(self) -> CoverageOptions:
        if self.critical > self.minimum:
            raise ValueError(f"critical ({self.critical}) is above minimum ({self.minimum})")
        return self


class RemedyOptions(Model):
    """Preferences for the manifest's actions."""

    prefer: Literal["both", "repeat", "mix"] = Field(
        "both", description="What serves a token that pre-training text contains."
    )
    unseen: Literal["repeat", "prune"] = Field(
        "repeat", description="What is proposed for a token that no corpus of either stage contains."
    )
    exclude: Exempt = Field(
        default_factory=Exempt,
        description="Tokens for which no data is made; they are proposed for protection.",
    )


class LabelOptions(Model):
    """How tokens are labelled."""

    rules: str | None = Field(None, description="A YAML file of category rules, instead of the shipped one.")
    seo_spam: list[str] = Field(default_factory=list, description="Texts that mark a token as spam.")


Metric = Literal[
    "flagged",
    "flagged_rate",
    "critical",
    "absent",
    "absent_rate",
    "covered_rate",
    "tokens",
    "supervised_tokens",
    "documents",
    "bad_fraction",
    "mask_audit",
    "mixed_script_rate",
    "drift_under",
    "drift_mean",
    "drift_minimum",
]


class Check(Model):
    """A gate: a figure of the run held against limits. A figure that is missing fails."""

    name: str | None = Field(
        None, description="Its name in `checks.json`; made from the rest where not given."
    )
    metric: Metric = Field(description="The figure.")
    where: dict[Literal["language", "script", "category", "kind", "record_language"], str] = Field(
        default_factory=dict, max_length=1, description="Of which tokens, by one label: `{language: ja}`."
    )
    corpus: str | None = Field(None, description="Of which corpus, for figures that a corpus has.")
    audit: str | None = Field(None, description="Which count of the mask audit, for `mask_audit`.")
    threshold: float | None = Field(None, description="The cosine, for `drift_under`: 0.95, 0.90 or 0.65.")
    max: float | None = Field(None, description="Above it the check fails.")
    min: float | None = Field(None, description="Below it the check fails.")
    warn_max: float | None = Field(None, description="Above it the check warns.")
    warn_min: float | None = Field(None, description="Below it the check warns.")
    change: Literal["absolute", "relative"] | None = Field(
        None,
        description="Hold the difference from the baseline against the limits, or its share of the baseline.",
    )
    baseline: str = Field(
        "previous", description="`previous` (the newest run of this output), or a run directory."
    )

    @model_validator(mode="after")
    def _complete(self) -> Check:
        if all(limit is None for limit in (self.max, self.min, self.warn_max, self.warn_min)):
            raise ValueError("give at least one of max, min, warn_max, warn_min")
        of_corpus = (
            "tokens",
            "supervised_tokens",
            "documents",
            "bad_fraction",
            "mask_audit",
            "mixed_script_rate",
        )
        if self.corpus is not None and self.metric not in of_corpus:
            raise ValueError(f"{self.metric} is of tokens: use `where`, not `corpus`")
        if self.where and self.metric in of_corpus:
            raise ValueError(f"{self.metric} is of a corpus: use `corpus`, not `where`")
        if (self.metric == "mask_audit") != (self.audit is not None):
            raise ValueError("`audit` names the count of the metric `mask_audit`, and goes with it alone")
        if (self.metric == "drift_under") != (self.threshold is not None):
            raise ValueError("`threshold` is the cosine of the metric `drift_under`, and goes with it alone")
        return self

    @property
    def label(self) -> str:
        """Its name, or one made of what it holds."""
        if self.name is not None:
            return self.name
        parts = [self.metric, self.audit, self.corpus, *(f"{k}={v}" for k, v in self.where.items())]
        if self.threshold is not None:
            parts.append(f"{self.threshold:g}")
        if self.change is not None:
            parts.append(f"{self.change} change")
        return " ".join(part for part in parts if part)


class DriftOptions(Model):
    """Two checkpoints scored while the executors count."""

    before: str | list[str] = Field(description="The base checkpoint.")
    after: str | list[str] = Field(description="The trained checkpoint.")
    lm_head: str | None = Field(None, description="The output matrix's name, where it is not found.")
    embedding: str | None = Field(None, description="The embedding matrix's name, where it is not found.")
    neighbours: Literal["drifted", "all", "none"] = Field(
        "drifted", description="Rows whose neighbours are sought."
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="Where it is computed.")


class EngineOptions(Model):
    """How counting is spread."""

    workers: int | None = Field(None, ge=1, description="Processes of the local engine; default: the CPUs.")
    master: str | None = Field(None, description="Spark master or Connect address (`sc://...`).")
    split_bytes: Size = Field(128 * MiB, description="Bytes of input one task reads.")
    conf: dict[str, str] = Field(default_factory=dict, description="Further Spark settings.")
    kernel: Literal["fast", "reference"] = Field(
        "fast", description="How text is encoded; both count the same, `reference` by the tokenizer alone."
    )
    cache_mib: int = Field(256, ge=16, description="Limit of a worker's table of chunks, in MiB.")
    audit_every: int = Field(
        256, ge=1, description="One document in this many is encoded again by the reference."
    )


class Job(RecordPolicy):
    """A job file."""

    tokenizer: str | RankFile = Field(
        description="The tokenizer: a path, a URI, or a rank file with its pattern."
    )
    pretraining_tokenizer: str | RankFile | None = Field(
        None,
        description="The tokenizer of pre-training, where it may differ; compared and reported, and `drift` "
        "matches rows by token.",
    )
    chat_template: Annotated[str, BeforeValidator(_yaml_constant)] = Field(
        "auto", description="`auto` (the tokenizer's own, if any), `none`, or a .jinja file."
    )
    model_vocab_size: int | None = Field(
        None, gt=0, le=MAX_ROWS, description="Rows of the model's matrix, where they exceed the tokenizer's."
    )
    output: str = Field(
        "runs", description="Where run directories are made; relative to the current directory."
    )
    store: str | None = Field(None, description="Where partial histograms are kept between runs.")
    verify: Literal["quick", "full"] = Field(
        "quick", description="Whether the store's keys hash a file's ends or all of it."
    )
    corpora: list[Corpus] = Field(min_length=1, description="The corpora, of both stages.")
    coverage: CoverageOptions = Field(default_factory=CoverageOptions, description="Thresholds.")
    remedies: RemedyOptions = Field(default_factory=RemedyOptions, description="Preferences.")
    labels: LabelOptions = Field(default_factory=LabelOptions, description="Language and category labels.")
    checks: list[Check] = Field(default_factory=list, description="Gates.")
    drift: DriftOptions | None = Field(None, description="Checkpoints to score in the same run.")
    engine: EngineOptions = Field(default_factory=EngineOptions, description="How counting is spread.")

    @model_validator(mode="after")
    def _distinct_names(self) -> Job:
        seen: set[str] = set()
        for corpus in self.corpora:
            if corpus.name in seen:
                raise ValueError(f"two corpora are named {corpus.name!r}")
            seen.add(corpus.name)
        for check in self.checks:
            if check.corpus is not None and check.corpus not in seen:
                raise ValueError(
                    f"checks: no corpus is named {check.corpus!r}{did_you_mean(check.corpus, seen)}"
                )
        return self

    def policy(self, corpus: Corpus) -> RecordPolicy:
        """The job's record policy with what `corpus` overrides."""
        names = RecordPolicy.model_fields
        own = {name: getattr(corpus, name) for name in names if getattr(corpus, name) is not None}
        return RecordPolicy(**{name: getattr(self, name) for name in names} | own)


class _Loader(yaml.SafeLoader):
    """YAML in which a key that stands twice is an error, as the YAML specification has it."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                line = key.start_mark.line + 1
                raise yaml.MarkedYAMLError(problem=f"key {key.value!r} stands a second time in line {line}")
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_yaml(text: str) -> Any:
    """The tree of a YAML text. Raises yaml.YAMLError, for a key that stands twice in a mapping too."""
    try:
        return yaml.load(text, _Loader)
    except RecursionError:
        raise yaml.YAMLError("lists or mappings are nested too deep") from None


def is_remote(path: str) -> bool:
    """Whether a path names a protocol of its own.

    >>> is_remote("s3://bucket/x"), is_remote("data/x.jsonl")
    (True, False)
    """
    return "://" in path or "::" in path


def resolve(path: str, base: Path) -> str:
    """A local relative path made absolute against `base`; others unchanged."""
    if is_remote(path) or os.path.isabs(path):
        return path
    return os.path.normpath(base / path)


def _explain(error: ValidationError, source: str) -> str:
    parts = []
    for fault in error.errors()[:3]:
        # Names that pydantic adds for the members of a union say nothing to the author of the file.
        path = [p for p in fault["loc"] if str(p) not in ("str", "RankFile", "list[str]", "[key]")]
        message = fault["msg"].removeprefix("Value error, ")
        if fault["type"] == "extra_forbidden":
            message = "unknown key" + did_you_mean(path[-1], _keys(Job, path[:-1]))
        elif fault["type"] in ("literal_error", "enum"):
            message += did_you_mean(fault["input"], re.findall("'([^']*)'", fault["ctx"]["expected"]))
        parts.append(f"{'.'.join(map(str, path)) or 'job'}: {message}")
    return f"{source}: {'; '.join(parts)}. The keys are listed in docs/job-file.md"


def _keys(model: type[BaseModel], path: Sequence[int | str]) -> list[str]:
    """The keys of the model at `path` within a model; positions in lists are passed over."""
    for part in path:
        if isinstance(part, int):
            continue
        inner = _models_in(model.model_fields[part].annotation) if part in model.model_fields else []
        if not inner:
            return []
        model = inner[0]
    return list(model.model_fields)


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for part in get_args(annotation) for found in _models_in(part)]


def _set(tree: Any, dotted: str, value: Any) -> None:
    *parents, last = dotted.split(".")
    for part in parents:
        if isinstance(tree, list):
            tree = _member(tree, part, dotted)
        elif isinstance(tree, dict):
            tree = tree.setdefault(part, {})
    if isinstance(tree, list):
        tree[tree.index(_member(tree, last, dotted))] = value
    elif isinstance(tree, dict):
        tree[last] = value
    else:
        raise JobError(f"--set {dotted}: {parents[-1]!r} holds a value, not a group of keys")


def _member(items: list[Any], part: str, dotted: str) -> Any:
    # A corpus is addressed by its name or its position.
    for item in items:
        if isinstance(item, dict) and item.get("name") == part:
            return item
    if part.isdigit() and int(part) < len(items):
        return items[int(part)]
    names = [str(item["name"]) for item in items if isinstance(item, dict) and item.get("name")]
    raise JobError(
        f"--set {dotted}: no entry {part!r}{did_you_mean(part, names)}; "
        f"use a name or a position from 0 to {len(items) - 1}"
    )


def parse_job(tree: Any, *, base: Path, source: str = "job", overrides: tuple[str, ...] = ()) -> Job:
    """A job from a parsed YAML tree.

    tree: what YAML gave. base: the folder that relative input paths are relative to.
    overrides: texts ``key=value`` with dotted keys, values read as YAML.
    Raises JobError naming the key.
    """
    if not isinstance(tree, dict):
        raise JobError(f"{source}: a job file is a mapping of keys, see docs/job-file.md")
    tree = copy.deepcopy(tree)
    for text in overrides:
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise JobError(f"--set {text}: write key=value, for example coverage.minimum=10")
        try:
            parsed = read_yaml(value)
        except yaml.YAMLError as error:
            raise JobError(
                f"--set {text}: the value is no valid YAML: {' '.join(str(error).split())}"
            ) from None
        _set(tree, key, parsed)
    try:
        job = Job.model_validate(tree)
    except ValidationError as error:
        raise JobError(_explain(error, source)) from None
    return _with_absolute_paths(job, base)


def _with_absolute_paths(job: Job, base: Path) -> Job:
    def tokenizer(value: str | RankFile | None) -> str | RankFile | None:
        if isinstance(value, RankFile):
            return value.model_copy(update={"path": resolve(value.path, base)})
        return resolve(value, base) if value is not None else None

    def template(value: str | None) -> str | None:
        return value if value in (None, "auto", "none") else resolve(value, base)

    corpora = [
        c.model_copy(
            update={
                "path": [resolve(p, base) for p in c.paths] if c.path is not None else None,
                "chat_template": template(c.chat_template),
            }
        )
        for c in job.corpora
    ]
    labels = job.labels
    if labels.rules is not None:
        labels = labels.model_copy(update={"rules": resolve(labels.rules, base)})
    drift = job.drift
    if drift is not None:
        update = {
            key: resolve(value, base) if isinstance(value, str) else [resolve(v, base) for v in value]
            for key, value in (("before", drift.before), ("after", drift.after))
        }
        drift = drift.model_copy(update=update)
    return job.model_copy(
        update={
            "tokenizer": tokenizer(job.tokenizer),
            "pretraining_tokenizer": tokenizer(job.pretraining_tokenizer),
            "chat_template": template(job.chat_template),
            "corpora": corpora,
            "labels": labels,
            "drift": drift,
        }
    )


def load_job(path: str | os.PathLike[str], overrides: tuple[str, ...] = ()) -> Job:
    """Read a job file; input paths come back absolute. Raises JobError naming the key at fault."""
    import fsspec

    text = os.fspath(path)
    try:
        with fsspec.open(text, "rt", encoding="utf-8") as file:
            tree = read_yaml(file.read())
    except (OSError, ValueError) as error:
        raise JobError(f"{text}: cannot be read ({error}); give the path of a job file") from None
    except yaml.YAMLError as error:
        raise JobError(f"{text}: no valid YAML: {' '.join(str(error).split())}") from None
    base = Path(text).absolute().parent
    if is_remote(text):
        # A job on an object store names its inputs in full: there is no folder to be relative to.
        base = Path.cwd()
    return parse_job(tree, base=base, source=text, overrides=overrides)
