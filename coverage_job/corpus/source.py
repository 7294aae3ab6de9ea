"""What a corpus' records are: decided on the driver from its first records, told to every worker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any

import pyarrow as pa

from coverage_job.config import Corpus, Job, RecordPolicy, TrainOn
from coverage_job.corpus import formats, streams, token_files
from coverage_job.corpus.lines import line_blocks
from coverage_job.corpus.plan import FileInfo, corpus_format
from coverage_job.corpus.shapes import MEDIA_FIELDS
from coverage_job.errors import BadFileError, CorpusError, did_you_mean
from coverage_job.schemas import Stage

_SAMPLE_RECORDS = 100
_SAMPLE_LINES = 1000
_SAMPLE_FILES = 5

_MESSAGE_FIELDS = ("messages", "conversations", "conversation")
_PAIRS = (
    ("prompt", "completion"), ("prompt", "response"), ("query", "response"), ("question", "answer"),
    ("question", "response"), ("instruction", "response"),
)  # fmt: skip
_MASKS = ("loss_mask", "assistant_masks", "assistant_mask", "completion_mask")


@dataclass(frozen=True)
class Source:
    """All that a worker needs to read a corpus; plain values, so that it travels as JSON or pickled.

    Field names are None where the shape has no such field. `labels` and `loss_mask` are None where
    the records have none. columns: the fields that are read of formats that can leave others out.
    presence: further ones of these, of which it is only asked whether they hold anything.
    decided: one line for the reader of a report. warnings: lines of the same kind.
    """

    corpus: str
    stage: str
    format: str
    shape: str
    text: str
    messages: str | None
    prompt: str | None
    input: str | None
    completion: str | None
    tools: str
    input_ids: str
    labels: str | None
    loss_mask: str | None
    dtype: str | None
    document_end: int | None
    sequence_length: int | None
    language_field: str | None
    group_by: str | None
    max_record_bytes: int
    on_bad_record: str
    on_bad_file: str
    max_bad_fraction: float
    train_on: TrainOn
    columns: tuple[str, ...]
    presence: tuple[str, ...]
    decided: str
    warnings: tuple[str, ...] = ()

    @property
    def dialogues(self) -> bool:
        """Whether records are dialogues, of which a part is supervised."""
        return self.shape not in ("text", "tokens")

    @property
    def pretraining(self) -> bool:
        return self.stage == Stage.PRETRAINING.value

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Source:
        data = json.loads(text)
        lists = {name: tuple(data[name]) for name in ("columns", "presence", "warnings")}
        return cls(**data | lists)


@dataclass(frozen=True)
class Field:
    """What the first records show of a field.

    kind: text, number, bool, object, numbers, texts, objects, list, other or null. keys: of the
    objects in a list.
    """

    kind: str
    keys: frozenset[str] = frozenset()

    def __str__(self) -> str:
        names = {"numbers": "list of numbers", "texts": "list of texts", "objects": "list of objects"}
        return names.get(self.kind, self.kind)


Fields = dict[str, Field]


def _field_of_value(value: Any) -> Field:
    if value is None:
        return Field("null")
    if isinstance(value, (str, bytes)):
        return Field("text")
    if isinstance(value, bool):
        return Field("bool")
    if isinstance(value, (int, float)):
        return Field("number")
    if isinstance(value, dict):
        return Field("object", frozenset(k for k, v in value.items() if v is not None))
    if isinstance(value, list):
        inner = _field_of_value(next((v for v in value if v is not None), None))
        kind = {"text": "texts", "number": "numbers", "object": "objects"}.get(inner.kind, "list")
        return Field(kind, inner.keys)
    return Field("other")


def fields_of_records(records: Iterable[dict[str, Any]]) -> Fields:
    """The fields of a sample: of each, the first kind met that says something."""
    fields: Fields = {}
    for record in records:
        for name, value in record.items():
            known = fields.get(name)
            if known is None or known.kind in ("null", "list"):
                fields[name] = _field_of_value(value)
    return fields


def _field_of_type(kind: pa.DataType) -> Field:
    t = pa.types
    if t.is_dictionary(kind):
        return _field_of_type(kind.value_type)
    if isinstance(kind, pa.ExtensionType):
        return _field_of_type(kind.storage_type)
    if _is_text(kind):
        return Field("text")
    if t.is_boolean(kind):
        return Field("bool")
    if t.is_integer(kind) or t.is_floating(kind):
        return Field("number")
    if t.is_struct(kind):
        return Field("object", frozenset(kind.field(i).name for i in range(kind.num_fields)))
    if t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind):
        inner = _field_of_type(kind.value_type)
        return Field(
            {"text": "texts", "number": "numbers", "object": "objects"}.get(inner.kind, "list"), inner.keys
        )
    return Field("null" if t.is_null(kind) else "other")


def _is_text(kind: pa.DataType) -> bool:
    t = pa.types
    view = getattr(t, "is_string_view", None)
    return bool(
        t.is_string(kind)
        or t.is_large_string(kind)
        or t.is_binary(kind)
        or t.is_large_binary(kind)
        or (view is not None and view(kind))
    )


def fields_of_schema(schema: pa.Schema) -> Fields:
    """The fields of an Arrow schema."""
    return {field.name: _field_of_type(field.type) for field in schema}


def _listed(fields: Fields) -> str:
    names = [f"{name} ({field})" for name, field in list(fields.items())[:30]]
    return ", ".join(names) + (", ..." if len(fields) > 30 else "") if names else "none"


@dataclass(frozen=True)
class _Decision:
    shape: str
    why: str
    names: dict[str, str | None]
    uses: frozenset[str]


def _text_decision(corpus: Corpus) -> _Decision:
    return _Decision("text", f"field {corpus.text!r}", {}, frozenset({corpus.text}))


def _message_decision(name: str, field: Field) -> _Decision:
    shape = "sharegpt" if "from" in field.keys else "messages"
    return _Decision(shape, f"field {name!r}", {"messages": name}, frozenset({name}))


def _pair_decision(shape: str, prompt: str, completion: str, extra: str | None = None) -> _Decision:
    names = {"prompt": prompt, "completion": completion, "input": extra}
    shown = f"fields {prompt!r} and {completion!r}"
    uses = frozenset({prompt, completion} | ({extra} if extra else set()))
    return _Decision(shape, shown, names, uses)


def _has(fields: Fields, name: str, *kinds: str) -> bool:
    return name in fields and fields[name].kind in kinds


def _is_messages(field: Field) -> bool:
    return field.kind == "objects" and bool({"role", "from"} & field.keys)


def _find_messages(corpus: Corpus, fields: Fields) -> list[_Decision]:
    names = (corpus.messages,) if corpus.messages else _MESSAGE_FIELDS
    return [_message_decision(n, fields[n]) for n in names if n in fields and _is_messages(fields[n])]


def _find_preference(corpus: Corpus, fields: Fields) -> list[_Decision]:
    answers = ("text", "object", "objects")
    if _has(fields, "chosen_messages", "objects"):
        return [
            _Decision(
                "preference",
                "field 'chosen_messages'",
                {"completion": "chosen_messages"},
                frozenset({"chosen_messages"}),
            )
        ]
    if not (_has(fields, "chosen", *answers) and (_has(fields, "rejected", *answers))):
        return []
    return [_preference_names(corpus, fields, "chosen")]


def _preference_names(corpus: Corpus, fields: Fields, chosen: str) -> _Decision:
    found = _find_messages(corpus, fields)
    prompt = next(
        (n for n in (corpus.prompt, "prompt", "question", "instruction") if n and n in fields), None
    )
    names: dict[str, str | None] = {"completion": chosen}
    if found:
        names["messages"] = found[0].names["messages"]
    elif prompt is not None:
        names["prompt"] = prompt
        names["input"] = "input" if prompt == "instruction" and "input" in fields else None
    uses = frozenset(n for n in names.values() if n)
    return _Decision("preference", "fields " + " and ".join(repr(n) for n in sorted(uses)), names, uses)


def _find_alpaca(fields: Fields) -> list[_Decision]:
    if not _has(fields, "output", "text"):
        return []
    if _has(fields, "instruction", "text"):
        extra = "input" if _has(fields, "input", "text", "null") else None
        return [_pair_decision("alpaca", "instruction", "output", extra)]
    if _has(fields, "input", "text"):
        return [_pair_decision("alpaca", "input", "output")]
    return []


def _find_pairs(corpus: Corpus, fields: Fields) -> list[_Decision]:
    kinds = ("text", "objects")
    pairs = (
        ((corpus.prompt or "prompt", corpus.completion or "completion"),)
        if corpus.prompt or corpus.completion
        else _PAIRS
    )
    return [
        _pair_decision("prompt_completion", p, c)
        for p, c in pairs
        if _has(fields, p, *kinds) and _has(fields, c, *kinds)
    ]


def _find_tokens(corpus: Corpus, fields: Fields) -> list[_Decision]:
    name = corpus.input_ids
    if _has(fields, name, "numbers"):
        return [_Decision("tokens", f"field {name!r}", {}, frozenset({name}))]
    return []


def decide_shape(corpus: Corpus, fields: Fields) -> _Decision:
    """The shape of records with these fields.

    A shape or field that the job names decides; otherwise the names and types of the fields do, and
    where they fit two shapes it is an error that names both. Raises CorpusError listing the fields.
    """
    name = f"corpus {corpus.name}"
    finders: dict[str, Callable[[], list[_Decision]]] = {
        "tokens": lambda: _find_tokens(corpus, fields),
        "preference": lambda: _find_preference(corpus, fields),
        "messages": lambda: _find_messages(corpus, fields),
        "alpaca": lambda: _find_alpaca(fields),
        "prompt_completion": lambda: _find_pairs(corpus, fields),
        "text": lambda: [_text_decision(corpus)] if _has(fields, corpus.text, "text") else [],
    }
    if corpus.shape != "auto":
        return _named_shape(corpus, fields, corpus.shape)
    for key, wanted, shape in (
        ("messages", (corpus.messages,), "messages"),
        ("prompt", (corpus.prompt, corpus.completion), "prompt_completion"),
        ("text", (corpus.text if "text" in corpus.model_fields_set else None,), "text"),
    ):
        # A field that the job names is the user's own choice of shape.
        if all(wanted):
            if missing := [w for w in wanted if w not in fields]:
                raise CorpusError(
                    f"{name}: no field {missing[0]!r} ({key}: in the job){did_you_mean(missing[0], fields)}; "
                    f"the fields are: {_listed(fields)}"
                )
            return _named_shape(corpus, fields, shape)
    found: list[_Decision] = []
    for find in finders.values():
        found.extend(d for d in find() if not any(d.uses & f.uses for f in found if f.shape == "preference"))
    if len(found) == 1:
        return found[0]
    if found:
        a, b = found[:2]
        raise CorpusError(
            f"{name}: shape auto finds two: {a.shape} ({a.why}) and {b.shape} ({b.why}); set `shape:` to one"
        )
    raise CorpusError(
        f"{name}: shape auto finds none; set `text: FIELD`, `messages: FIELD`, or `prompt: FIELD` and "
        f"`completion: FIELD`. The fields are: {_listed(fields)}"
    )


def _named_shape(corpus: Corpus, fields: Fields, shape: str) -> _Decision:
    name = f"corpus {corpus.name}"

    def need(field: str, key: str) -> str:
        if field not in fields:
            raise CorpusError(
                f"{name}: shape {shape} needs a field {field!r}; set `{key}:` to one of: {_listed(fields)}"
            )
        return field

    if shape == "text":
        if not _has(fields, need(corpus.text, "text"), "text", "null"):
            raise CorpusError(
                f"{name}: field {corpus.text!r} is a {fields[corpus.text]}, no text; "
                f"set `text:` to another of: {_listed(fields)}"
            )
        return _text_decision(corpus)
    if shape == "tokens":
        need(corpus.input_ids, "input_ids")
        return _Decision("tokens", f"field {corpus.input_ids!r}", {}, frozenset({corpus.input_ids}))
    if shape in ("messages", "sharegpt"):
        present = [
            n for n in _MESSAGE_FIELDS if n in fields and fields[n].kind in ("objects", "text", "list")
        ]
        field = need(corpus.messages or (present[0] if present else "messages"), "messages")
        kinds = ("objects", "texts", "text", "list", "null")
        if fields[field].kind not in kinds or (fields[field].kind == "texts" and not corpus.messages):
            raise CorpusError(
                f"{name}: field {field!r} is a {fields[field]}, no list of messages (objects with role and "
                f"content, or from and value); set `messages:` to another of: {_listed(fields)}"
            )
        return _Decision(shape, f"field {field!r}", {"messages": field}, frozenset({field}))
    if shape == "alpaca":
        if corpus.prompt is None and "instruction" not in fields and "input" in fields:
            return _pair_decision("alpaca", "input", need(corpus.completion or "output", "completion"))
        prompt = need(corpus.prompt or "instruction", "prompt")
        completion = need(corpus.completion or "output", "completion")
        extra = "input" if "input" in fields and prompt != "input" else None
        return _pair_decision("alpaca", prompt, completion, extra)
    if shape == "preference":
        chosen = "chosen_messages" if "chosen_messages" in fields and "chosen" not in fields else "chosen"
        return _preference_names(corpus, fields, need(corpus.completion or chosen, "completion"))
    pairs = [(p, c) for p, c in _PAIRS if p in fields and c in fields]
    default = pairs[0] if pairs else ("prompt", "completion")
    return _pair_decision(
        "prompt_completion",
        need(corpus.prompt or default[0], "prompt"),
        need(corpus.completion or default[1], "completion"),
    )


def _sample(corpus: Corpus, kind: str, files: list[FileInfo], policy: RecordPolicy) -> Fields:
    """The fields of the first records that can be read. Raises CorpusError where there is none."""
    # Spark writes a file for every task, empty ones too.
    first = [info for info in files if info.size != 0][:_SAMPLE_FILES] or files[:_SAMPLE_FILES]
    for info in first:
        try:
            fields = _sample_file(info, kind, policy.max_record_bytes)
        except BadFileError:
            if policy.on_bad_file == "fail":
                raise
            continue
        if fields:
            return fields
    looked = ", ".join(info.path for info in first)
    raise CorpusError(
        f"corpus {corpus.name}: no usable record at the start of {looked}; "
        f"is `format: {kind}` right, and are the files not empty?"
    )


def _sample_file(info: FileInfo, kind: str, limit: int) -> Fields:
    if kind == "parquet":
        return _fields_of_columns(formats.open_parquet(info.path).schema_arrow, info.path)
    if kind == "arrow":
        return _fields_of_columns(formats.arrow_schema(info.path), info.path)
    rows = islice(_sample_rows(info, kind, limit), _SAMPLE_LINES)
    records = (row.value for row in rows if isinstance(row.value, dict))
    return fields_of_records(islice(records, _SAMPLE_RECORDS))


def _fields_of_columns(schema: pa.Schema, path: str) -> Fields:
    fields = fields_of_schema(schema)
    if len(fields) < len(schema.names):
        twice = next(name for name in schema.names if schema.names.count(name) > 1)
        raise BadFileError(f"{path}: two columns are named {twice!r}; give each a name of its own")
    return fields


def _sample_rows(info: FileInfo, kind: str, limit: int) -> Iterator[formats.Row]:
    if kind == "json":
        return formats.json_rows(info.path, limit)
    if kind in ("csv", "tsv"):
        return formats.csv_rows(info.path, limit, "," if kind == "csv" else "\t")
    return formats.jsonl_rows(line_blocks(streams.chunks(info.path), limit))


def _refine_json(files: list[FileInfo], policy: RecordPolicy) -> str:
    """jsonl where files named .json hold one object a line, json where they hold an array."""
    for info in [info for info in files if info.size != 0][:_SAMPLE_FILES]:
        try:
            for lines in line_blocks(streams.chunks(info.path), policy.max_record_bytes):
                for value in filter(None, map(formats.parse_line, lines)):
                    return "jsonl" if isinstance(value, dict) and len(lines) > 1 else "json"
        except BadFileError:
            if policy.on_bad_file == "fail":
                raise
    return "json"


def resolve(corpus: Corpus, job: Job, files: list[FileInfo]) -> Source:
    """What the corpus' records are, from its keys in the job and its first records.

    Raises CorpusError naming the key to set, BadFileError where the first file cannot be read.
    """
    kind = corpus_format(corpus, files)
    policy = job.policy(corpus)
    if kind == "json" and corpus.format == "auto":
        kind = _refine_json(files, policy)
    if kind in ("megatron", "bin", "npy"):
        return _token_files(corpus, job, kind, files[0].path)
    if kind == "text":
        _no_fields(corpus, kind)
        if corpus.shape not in ("auto", "text"):
            raise CorpusError(
                f"corpus {corpus.name}: plain text has no shape {corpus.shape}; remove `shape:`"
            )
        decision = _Decision("text", "each line", {}, frozenset())
        return _source(corpus, job, kind, decision, {})
    fields = _sample(corpus, kind, files, policy)
    return resolve_fields(corpus, job, kind, fields)


def resolve_fields(corpus: Corpus, job: Job, kind: str, fields: Fields) -> Source:
    """As `resolve`, for records whose fields are known: a table's, say. kind: a format's name."""
    decision = decide_shape(corpus, fields)
    for key, name in (("language_field", corpus.language_field), ("group_by", corpus.group_by)):
        if name is not None and name not in fields:
            raise CorpusError(
                f"corpus {corpus.name}: no field {name!r} ({key}: in the job){did_you_mean(name, fields)}; "
                f"the fields are: {_listed(fields)}"
            )
    return _source(corpus, job, kind, decision, fields)


def _no_fields(corpus: Corpus, kind: str) -> None:
    for key, name in (("language_field", corpus.language_field), ("group_by", corpus.group_by)):
        if name is not None:
            raise CorpusError(f"corpus {corpus.name}: {kind} files have no fields; remove `{key}:`")


def _token_files(corpus: Corpus, job: Job, kind: str, path: str) -> Source:
    name = f"corpus {corpus.name}"
    _no_fields(corpus, kind)
    if corpus.shape not in ("auto", "tokens"):
        raise CorpusError(f"{name}: {kind} files hold token ids; remove `shape: {corpus.shape}`")
    if kind == "bin" and corpus.dtype is None:
        raise CorpusError(f"{name}: a flat .bin file does not tell its width; set `dtype:`, such as uint16")
    ends_said = corpus.document_end is not None or corpus.sequence_length is not None
    if kind == "npy" and not ends_said:
        ends_said = token_files.npy_row_length(path) is not None  # each row is a document
    if kind in ("bin", "npy") and not ends_said:
        raise CorpusError(
            f"{name}: where documents end in a flat token file must be said; "
            "set `document_end: ID` or `sequence_length: N`"
        )
    return _source(corpus, job, kind, _Decision("tokens", "ids", {}, frozenset()), {})


def _source(corpus: Corpus, job: Job, kind: str, decision: _Decision, fields: Fields) -> Source:
    policy = job.policy(corpus)
    shape, names = decision.shape, decision.names
    labels = loss_mask = None
    warnings: list[str] = []
    why = decision.why
    if shape == "tokens":
        if corpus.loss_mask is not None:
            if corpus.loss_mask not in fields:
                raise CorpusError(
                    f"corpus {corpus.name}: no field {corpus.loss_mask!r} (loss_mask: in the job)"
                    f"{did_you_mean(corpus.loss_mask, fields)}; "
                    f"the fields are: {_listed(fields)}"
                )
            loss_mask = corpus.loss_mask
        elif corpus.labels in fields:
            labels = corpus.labels
        elif "labels" in corpus.model_fields_set:
            raise CorpusError(
                f"corpus {corpus.name}: no field {corpus.labels!r} (labels: in the job)"
                f"{did_you_mean(corpus.labels, fields)}; "
                f"the fields are: {_listed(fields)}"
            )
        else:
            masks = [n for n in _MASKS if _has(fields, n, "numbers", "list")]
            loss_mask = masks[0] if len(masks) == 1 else None
        if labels or loss_mask:
            why += f", supervised by {labels or loss_mask!r}"
        elif corpus.stage is Stage.POSTTRAINING:
            warnings.append(
                f"corpus {corpus.name}: neither labels nor a loss mask: every token is counted as supervised"
            )
    if _has(fields, "label", "bool") and shape in ("messages", "sharegpt"):
        warnings.append(
            f"corpus {corpus.name}: field 'label' (is the answer wanted?) is not used: "
            "answers marked false are counted as targets"
        )
    source = Source(
        corpus=corpus.name,
        stage=corpus.stage.value,
        format=kind,
        shape=shape,
        text=corpus.text,
        messages=names.get("messages"),
        prompt=names.get("prompt"),
        input=names.get("input"),
        completion=names.get("completion"),
        tools=corpus.tools,
        input_ids=corpus.input_ids,
        labels=labels,
        loss_mask=loss_mask,
        dtype=corpus.dtype,
        document_end=corpus.document_end,
        sequence_length=corpus.sequence_length,
        language_field=corpus.language_field,
        group_by=corpus.group_by,
        max_record_bytes=policy.max_record_bytes,
        on_bad_record=policy.on_bad_record,
        on_bad_file=policy.on_bad_file,
        max_bad_fraction=policy.max_bad_fraction,
        train_on=corpus.train_on,
        columns=(),
        presence=(),
        decided=f"format {kind}, shape {shape} ({why})",
        warnings=tuple(warnings),
    )
    columns = _columns(source)
    presence = tuple(n for n in MEDIA_FIELDS if n not in columns) if source.dialogues else ()
    return replace(source, columns=columns, presence=presence)


def _columns(source: Source) -> tuple[str, ...]:
    names: list[str | None] = [source.language_field, source.group_by]
    if source.shape == "text":
        names.append(source.text)
    elif source.shape == "tokens":
        names += [source.input_ids, source.labels, source.loss_mask]
    else:
        names += [source.messages, source.prompt, source.input, source.completion, source.tools]
        names += ["system", "chat_template_kwargs"]
        if source.shape == "alpaca":
            names.append("history")
    return tuple(dict.fromkeys(n for n in names if n is not None))
