"""Records of every shape become dialogues, and dialogues without a template pieces with spans."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coverage_job.corpus import formats
from coverage_job.corpus.shapes import Dialogue, RecordError, Rendered, to_dialogue
from coverage_job.corpus.source import decide_shape, fields_of_records
from coverage_job.errors import CorpusError
from tests.corpus.reading import Read, make_job, read_all

Write = Callable[..., str]


def read(write: Write, records: list[Any], **keys: Any) -> Read:
    data = b"\n".join(map(orjson.dumps, records))
    return read_all(make_job(path=write("a.jsonl", data), **({"stage": "posttraining"} | keys)))


def one(write: Write, record: dict[str, Any], **keys: Any) -> tuple[list[str], list[str]]:
    """(pieces, supervised texts) of a record."""
    found = read(write, [record], **keys)
    assert found.bad == []
    return [p.decode() for p in found.documents[0][1]], found.documents[0][2]


MESSAGES = [
    {"role": "system", "content": "S"},
    {"role": "user", "content": "U"},
    {"role": "assistant", "content": "Ä"},
    {"role": "tool", "content": "T"},
    {"role": "Assistant", "content": "B"},
]

SHAPES: dict[str, tuple[str, dict[str, Any], list[str], list[str]]] = {
    "messages": ("messages", {"messages": MESSAGES}, ["S", "U", "Ä", "T", "B"], ["Ä", "B"]),
    "sharegpt": (
        "sharegpt",
        {
            "conversations": [
                {"from": "human", "value": "U"},
                {"from": "function_call", "value": '{"name": "f", "arguments": {}}'},
                {"from": "observation", "value": "O"},
                {"from": "gpt", "value": "G"},
            ],
            "system": "S",
            "tools": "[]",
        },
        ["S", "U", '{"name": "f", "arguments": {}}', "O", "G"],
        ['{"name": "f", "arguments": {}}', "G"],
    ),
    "conversations with roles": ("messages", {"conversations": MESSAGES[1:3]}, ["U", "Ä"], ["Ä"]),
    "alpaca": (
        "alpaca",
        {"instruction": "I", "input": "N", "output": "O", "system": "S", "history": [["q", "a"]]},
        ["S", "q", "a", "I\nN", "O"],
        ["a", "O"],
    ),
    "alpaca without input": ("alpaca", {"instruction": "I", "input": "", "output": "O"}, ["I", "O"], ["O"]),
    "input and output": ("alpaca", {"input": "N", "output": "O", "type": "t"}, ["N", "O"], ["O"]),
    "query and response": ("prompt_completion", {"query": "Q", "response": "R"}, ["Q", "R"], ["R"]),
    "prompt and completion": ("prompt_completion", {"prompt": "P", "completion": "C"}, ["P", "C"], ["C"]),
    "messages as prompt and completion": (
        "prompt_completion",
        {"prompt": MESSAGES[:2], "completion": [MESSAGES[2]]},
        ["S", "U", "Ä"],
        ["Ä"],
    ),
    "preference of texts": ("preference", {"prompt": "P", "chosen": "C", "rejected": "R"}, ["P", "C"], ["C"]),
    "preference of dialogues": (
        "preference",
        {"chosen": MESSAGES[1:3], "rejected": MESSAGES[1:2], "prompt": "U"},
        ["U", "Ä"],
        ["Ä"],
    ),
    "preference of turns": (
        "preference",
        {
            "conversations": [{"from": "human", "value": "U"}],
            "chosen": {"from": "gpt", "value": "C"},
            "rejected": {"from": "gpt", "value": "R"},
        },
        ["U", "C"],
        ["C"],
    ),
    "chosen messages": (
        "preference",
        {"chosen_messages": MESSAGES[1:3], "rejected_messages": MESSAGES[1:2]},
        ["U", "Ä"],
        ["Ä"],
    ),
    "parts": (
        "messages",
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "value": "U"}, {"type": "text", "text": "V"}]},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "reasoning", "value": "R"},
                        {"type": "text", "value": "A"},
                        {"type": "tool_call", "value": '{"name": "f"}'},
                    ],
                },
            ]
        },
        ["UV", "R", "A", '{"name": "f"}'],
        ["R", "A", '{"name": "f"}'],
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_auto_decides_and_reads(write: Write, name: str) -> None:
    shape, record, pieces, supervised = SHAPES[name]
    found = read(write, [record])
    assert found.source.shape == shape
    assert one(write, record) == (pieces, supervised)
    assert one(write, record, shape=shape) == (pieces, supervised)


@pytest.mark.parametrize("name", SHAPES)
def test_parquet_gives_what_jsonl_gives(write: Write, name: str) -> None:
    shape, record, pieces, supervised = SHAPES[name]
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([record]), sink)
    found = read_all(make_job(path=write("a.parquet", sink.getvalue()), stage="posttraining"))
    assert found.source.shape == shape
    assert ([p.decode() for p in found.documents[0][1]], found.documents[0][2]) == (pieces, supervised)


MEDIA = [
    {"messages": MESSAGES, "images": [{"bytes": b"x" * 5000, "path": None}], "audio": None},
    {"messages": MESSAGES, "images": [], "audio": {"path": "a.wav"}},
    {"messages": MESSAGES, "images": [], "audio": None},
    {"messages": MESSAGES, "images": None, "audio": None},
]


@pytest.mark.parametrize("form", ["jsonl", "parquet", "arrow"])
def test_media_beside_the_messages_are_noted_in_every_format(
    write: Write, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = io.BytesIO()
    table = pa.Table.from_pylist(MEDIA)
    if form == "jsonl":
        for record in MEDIA:
            sink.write(orjson.dumps(record, default=lambda data: data.decode()) + b"\n")
    elif form == "parquet":
        pq.write_table(table, sink)
    else:
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
    seen: list[pa.RecordBatch] = []
    rows = formats.batch_rows
    monkeypatch.setattr(formats, "batch_rows", lambda n, batch: seen.append(batch) or rows(n, batch))
    found = read_all(make_job(path=write(f"a.{form}", sink.getvalue()), stage="posttraining"))
    assert found.stats[0].notes == {"images, audio or video, of which the text alone is counted": 2}
    # What the images hold is not handed on.
    assert all(batch.nbytes < 3000 for batch in seen)


def test_messages_as_json_text_in_a_csv(write: Write) -> None:
    import csv

    out = io.StringIO()
    csv.writer(out).writerows([["id", "messages"], [1, orjson.dumps(MESSAGES).decode()]])
    path = write("a.csv", out.getvalue().encode())
    found = read_all(make_job(path=path, shape="messages", stage="posttraining"))
    assert found.documents[0][2] == ["Ä", "B"]


def test_a_list_of_texts_is_a_dialogue_where_the_job_says_so(write: Write) -> None:
    record = {"query": "a", "history": ["a", "b", "c"]}
    with pytest.raises(CorpusError, match=r"set `text: FIELD`, .*history \(list of texts\)"):
        read(write, [record])
    assert one(write, record, messages="history") == (["a", "b", "c"], ["b"])


@pytest.mark.parametrize(
    ("train_on", "expected"),
    [("all_assistant", ["Ä", "B"]), ("last_assistant", ["B"]), ("all", ["S", "U", "Ä", "T", "B"])],
)
def test_train_on(write: Write, train_on: str, expected: list[str]) -> None:
    assert one(write, {"messages": MESSAGES}, train_on=train_on)[1] == expected


@pytest.mark.parametrize("flag", ["loss_weight", "weight", "train"])
def test_a_message_s_own_flag_wins(write: Write, flag: str) -> None:
    record = {
        "messages": [
            {"role": "user", "content": "U", flag: 1},
            {"role": "assistant", "content": "A", flag: 0},
            {"role": "assistant", "content": "B", flag: None},
        ]
    }
    assert one(write, record)[1] == ["U", "B"]
    assert one(write, record, train_on="all")[1] == ["U", "B"]


def test_pretraining_dialogues_are_supervised_throughout(write: Write) -> None:
    found = read(write, [{"messages": MESSAGES}], stage="pretraining")
    assert found.documents[0][2] == ["S", "U", "Ä", "T", "B"]
    assert found.total("without_target") == 0


def test_empty_dialogues_and_dialogues_without_target(write: Write) -> None:
    records = [
        {"messages": [{"role": "user", "content": "U"}]},
        {"messages": []},
        {"messages": [{"role": "user", "content": ""}]},
        {"messages": MESSAGES},
    ]
    found = read(write, records)
    assert found.texts == ["U", "", "", "SUÄTB"]
    assert (found.total("without_target"), found.total("empty_documents")) == (3, 2)


def test_what_is_to_be_reported(write: Write) -> None:
    records = [
        {"messages": [{"role": "narrator", "content": "N"}, {"role": "narrator", "content": "M"}]},
        {
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}, "see"]}
            ]
        },
        {"messages": MESSAGES[1:2], "images": ["a.png"]},
        {"messages": MESSAGES[1:2], "images": []},
        {"messages": [{"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}]},
        {"messages": [{"role": "assistant", "content": "A", "reasoning_content": "R"}]},
        {
            "messages": [
                {"role": "user", "content": [{"type": "poem", "text": "P"}, {"type": "dance", "x": 1}]}
            ]
        },
    ]
    found = read(write, records)
    assert found.texts == ["NM", "see", "U", "U", "", "A", "P"]
    assert found.stats[0].notes == {
        "role 'narrator' is not known, counted as not supervised": 1,
        "images, audio or video, of which the text alone is counted": 2,
        "tool calls beside the content, not counted without a template": 1,
        "reasoning beside the content, not counted without a template": 1,
        "content part 'poem' is not known, its text is counted": 1,
        "content part 'dance' is not known, not counted": 1,
    }


BAD = [
    {"messages": None},
    {"messages": "not JSON"},
    {"messages": 5},
    {"messages": ["x", 5]},
    {"messages": [{"content": "x"}]},
    {"messages": [{"role": "user"}]},
    {"messages": [{"role": "user", "content": 5}]},
    {"messages": [{"role": "user", "content": [5]}]},
    {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
    {"messages": [{"role": "user", "content": "x", "loss_weight": "no"}]},
    {"messages": MESSAGES, "tools": "[not JSON"},
    {"messages": MESSAGES, "tools": 5},
    {"messages": MESSAGES[1:], "system": 5},
    {"other": 1},
]


def test_bad_dialogues(write: Write) -> None:
    found = read(write, [{"messages": MESSAGES}, *BAD])
    assert (found.total("documents"), found.total("bad_records")) == (1, len(BAD))
    assert [b.position for b in found.bad] == list(range(2, len(BAD) + 2))
    assert {b.reason.partition(":")[0] for b in found.bad} == {"missing field", "wrong type"}


@pytest.mark.parametrize(
    "record",
    [
        {"instruction": "i", "output": None},
        {"instruction": 5, "output": "o"},
        {"instruction": "i", "output": "o", "history": [["a"]]},
        {"instruction": "i", "output": "o", "history": 5},
        {"instruction": "i", "input": 5, "output": "o"},
    ],
)
def test_bad_alpaca(write: Write, record: dict[str, Any]) -> None:
    found = read(write, [{"instruction": "i", "input": "n", "output": "o"}, record])
    assert (found.total("documents"), found.total("bad_records")) == (1, 1)


REFUSED = [
    ({"text": "t", "messages": MESSAGES}, "messages .* and text"),
    ({"text": "t", "instruction": "i", "output": "o"}, "alpaca .* and text"),
    ({"prompt": "p", "completion": "c", "query": "q", "response": "r"}, "two: prompt_completion"),
    ({"messages": MESSAGES, "conversations": MESSAGES}, "'messages'.*'conversations'"),
    ({"input_ids": [1], "text": "t"}, "tokens .* and text"),
    ({"completion": "c", "id": 5}, r"none.*completion \(text\), id \(number\)"),
]


@pytest.mark.parametrize(("record", "message"), REFUSED)
def test_auto_refuses_to_guess(record: dict[str, Any], message: str) -> None:
    corpus = make_job(path="x").corpora[0]
    with pytest.raises(CorpusError, match=message):
        decide_shape(corpus, fields_of_records([record]))


def test_a_field_that_the_job_names_decides(write: Write) -> None:
    record = {"text": "t", "messages": MESSAGES[1:3], "q": "Q", "a": "A"}
    assert one(write, record, text="text") == (["t"], ["t"])
    assert one(write, record, messages="messages") == (["U", "Ä"], ["Ä"])
    assert one(write, record, prompt="q", completion="a") == (["Q", "A"], ["A"])
    assert one(write, record, shape="messages") == (["U", "Ä"], ["Ä"])


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"text": "body"},
            r"no field 'body' \(text: in the job\); the fields are: id \(number\), text \(text\)",
        ),
        ({"shape": "messages"}, "needs a field 'messages'; set `messages:`"),
        ({"shape": "alpaca"}, "needs a field 'instruction'"),
        ({"shape": "preference"}, "needs a field 'chosen'"),
        ({"shape": "prompt_completion"}, "needs a field 'prompt'"),
        ({"shape": "tokens"}, "needs a field 'input_ids'"),
        ({"text": "id"}, "is a number, no text"),
        ({"language_field": "lang"}, r"no field 'lang' \(language_field"),
        ({"group_by": "source"}, r"no field 'source' \(group_by"),
    ],
)
def test_a_missing_field_lists_those_there_are(write: Write, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        read(write, [{"id": 1, "text": "x"}], **keys)


class Upper:
    """A renderer of one piece, for the contract between reading and rendering."""

    def __init__(self) -> None:
        self.seen: list[Dialogue] = []
        self.place = ""

    def render(self, dialogue: Dialogue) -> Rendered:
        self.seen.append(dialogue)
        if len(dialogue.messages) > 3:
            raise RecordError(f"template: too many messages ({self.place})")
        text = "|".join(m["content"] for m in dialogue.messages).encode()
        return Rendered([text], [(0, 1)])


def test_a_renderer_gets_dialogues_and_may_refuse(write: Write) -> None:
    renderer = Upper()
    records = [
        {
            "conversations": [{"from": "human", "value": "U"}, {"from": "gpt", "value": "A"}],
            "tools": '[{"name": "f"}]',
            "chat_template_kwargs": {"enable_thinking": False},
        },
        {"conversations": [{"from": "human", "value": "U"}] * 4},
    ]
    path = write("a.jsonl", b"\n".join(map(orjson.dumps, records)))
    found = read_all(make_job(path=path, stage="posttraining"), renderer=renderer)
    assert found.texts == ["U|A"]
    assert found.documents[0][2] == ["U"]
    assert [b.reason for b in found.bad] == [f"template: too many messages ({path}, line 2)"]
    dialogue = renderer.seen[0]
    assert [m["role"] for m in dialogue.messages] == ["user", "assistant"]
    assert dialogue.tools == [{"type": "function", "function": {"name": "f"}}]
    assert dialogue.extra == {"enable_thinking": False}


def test_tool_calls_in_template_form() -> None:
    source = type("S", (), {"shape": "sharegpt", "messages": "m", "tools": "tools"})
    turns = [
        {"from": "function_call", "value": '[{"name": "f", "arguments": "{\\"a\\": 1}"}, {"name": "g"}]'},
        {"from": "function_call", "value": "no call"},
    ]
    dialogue = to_dialogue({"m": turns}, source)  # type: ignore[arg-type]
    assert dialogue.messages[0] == {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"type": "function", "function": {"name": "f", "arguments": {"a": 1}}},
            {"type": "function", "function": {"name": "g", "arguments": {}}},
        ],
    }
    assert dialogue.messages[1] == {"role": "assistant", "content": "no call"}
    assert dialogue.texts[1] == ["no call"]
