from __future__ import annotations

import pyarrow as pa
import pytest

from coverage_job.errors import ProbeError
from coverage_job.probes.choose import choose_tokens, own_text, parse_list
from tests.probes.tiny import as_tokens, byte_tokenizer

TOKENIZER = byte_tokenizer()
SIZE = TOKENIZER.get_vocab_size()


def table(**columns) -> pa.Table:
    data = {
        "token_id": list(range(SIZE)),
        "language": ["ja" if i % 3 else "ru" for i in range(SIZE)],
        "kind": ["special" if i < 3 else "base" for i in range(SIZE)],
        "reachability": ["direct"] * SIZE,
        "example": [None] * SIZE,
        "pretraining_occurrences": [0] * SIZE,
        "posttraining_supervised_occurrences": [9] * SIZE,
        "lm_head_cosine": pa.nulls(SIZE, pa.float64()),
        **columns,
    }
    return pa.table(data)


def test_least_covered_in_turn_from_each_language():
    supervised = [9] * SIZE
    frequent = [0] * SIZE
    for i in (301, 302, 304, 400, 403):  # ja
        supervised[i] = 0
    for i in (303, 306):  # ru
        supervised[i] = 1
    frequent[304], frequent[400] = 70, 50
    chosen = choose_tokens(
        table(posttraining_supervised_occurrences=supervised, pretraining_occurrences=frequent),
        TOKENIZER,
        count=5,
    )
    # Each language in turn; within one the fewest targets, then the most frequent in pre-training.
    assert [t.token_id for t in chosen] == [304, 303, 400, 306, 301]
    assert [t.language for t in chosen] == ["ja", "ru", "ja", "ru", "ja"]


def test_most_drifted_first_and_null_or_nan_never():
    cosine = [1.0] * SIZE
    cosine[310], cosine[311], cosine[312] = 0.2, 0.1, float("nan")
    cosine[313] = None
    cosine[1] = 0.0  # special
    chosen = choose_tokens(table(lm_head_cosine=cosine), TOKENIZER, count=2, languages=["ja"])
    assert [t.token_id for t in chosen] == [311, 310]


def test_rows_that_no_text_gives_are_left_out():
    reachability = ["unreachable"] * SIZE
    reachability[320] = "contextual"
    chosen = choose_tokens(table(reachability=reachability), TOKENIZER, count=10)
    assert [t.token_id for t in chosen] == [320]


def test_a_drift_table_alone_is_enough():
    drift = pa.table({"token_id": [0, 5, 300], "language": ["und"] * 3, "lm_head_cosine": [0.1, 0.9, 0.5]})
    assert [t.token_id for t in choose_tokens(drift, TOKENIZER, count=5)] == [300, 5]
    with pytest.raises(ProbeError, match="counts"):
        choose_tokens(drift, TOKENIZER, count=5, by="coverage")


def test_rows_beyond_the_tokenizer_are_left_out():
    drift = pa.table({"token_id": [SIZE + 5, 300], "language": ["und"] * 2, "lm_head_cosine": [0.1, 0.5]})
    assert [t.token_id for t in choose_tokens(drift, TOKENIZER, count=5)] == [300]


def test_what_is_missing_is_named():
    with pytest.raises(ProbeError, match="no row drift"):
        choose_tokens(table(), TOKENIZER, count=1, by="drift")
    with pytest.raises(ProbeError, match="in ko"):
        choose_tokens(table(), TOKENIZER, count=1, languages=["ko"])
    with pytest.raises(ProbeError, match="luck"):
        choose_tokens(table(), TOKENIZER, count=1, by="luck")


def test_own_text_is_one_that_encodes_to_the_token():
    for token in as_tokens(range(3, SIZE), TOKENIZER):
        if token.text is not None:
            ids = TOKENIZER.encode(token.text).ids + TOKENIZER.encode(" " + token.text).ids
            assert token.token_id in ids
    part = TOKENIZER.encode("札").ids[0]
    assert own_text(TOKENIZER, part) is None
    assert own_text(TOKENIZER, part, "札") == "札"


def test_a_list_of_ids_texts_and_objects():
    apple = TOKENIZER.encode("apple").ids
    lines = [
        "300",
        "",
        "apple",
        '{"text": "2024", "language": "ja"}',
        '{"token_id": 5}',
        "{}",
        '{"text": "apple", "prompt": "Which fruit?"}\r',
    ]
    tokens = parse_list("\n".join(lines).encode(), TOKENIZER)
    assert [t.token_id for t in tokens][:2] == [300, max(apple)]
    assert (tokens[2].text, tokens[2].language) == ("2024", "ja")
    assert tokens[3].token_id == 5
    assert tokens[4].text == "{}"
    assert tokens[5].prompt == "Which fruit?"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("99999", "no id 99999"),
        ('{"token_id": -1}', "no id -1"),
        ('{"token_id": true}', "token_id is no int"),
        ('{"text": 5}', "text is no str"),
        ('{"language": "ja"}', "neither"),
        ('{"text": }', "no valid JSON"),
        ('{"text": " "}', "blank"),
        ("", "no tokens"),
    ],
)
def test_bad_lines_are_named(line, said):
    with pytest.raises(ProbeError, match=said):
        parse_list(line.encode(), TOKENIZER, "words.txt")
