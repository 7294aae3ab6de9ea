"""Truncation, the token side of the mask audit, and special-token text as plain text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from coverage_job.corpus.audit import MaskAudit, findings
from coverage_job.corpus.batches import TextBuilder
from coverage_job.corpus.documents import TextBatch, TokenBatch
from coverage_job.counting.cuts import derive
from coverage_job.counting.kernel import FastKernel
from coverage_job.counting.reference import ReferenceKernel
from coverage_job.counting.supervision import Watched, audit_tokens, truncate
from coverage_job.errors import TokenizerError
from tests.corpus.dialogues import CHATML, INST, NEWLINE_MARKED, dialogue, renderer, tokenizer


def tokens(*documents: list[tuple[int, int]]) -> TokenBatch:
    """Documents as lists of (id, supervised)."""
    flat = [pair for document in documents for pair in document]
    return TokenBatch(
        np.array([i for i, _ in flat], np.int32),
        np.cumsum([0, *map(len, documents)]).astype(np.int64),
        np.array([s for _, s in flat], np.uint8),
        np.zeros(len(documents), np.int32),
        np.arange(len(documents), dtype=np.int32),
    )


def batch_of(template: str, dialogues: list[list[dict[str, Any]]], **options: Any) -> TextBatch:
    one = renderer(template, **options)
    builder = TextBuilder(spanned=True)
    for messages in dialogues:
        rendered = one.render(messages)
        assert list(builder.add([rendered.text], rendered.spans, 0, rendered.plain)) == []
    return builder.take()


def encode(batch: TextBatch) -> TokenBatch:
    return ReferenceKernel(tokenizer()).encode(batch)


def supervised_texts(encoded: TokenBatch) -> list[str]:
    assert encoded.supervised is not None
    out = []
    for a, b in zip(encoded.documents[:-1], encoded.documents[1:], strict=True):
        ids = encoded.ids[a:b][encoded.supervised[a:b] != 0]
        out.append(tokenizer().decode(ids.tolist(), skip_special_tokens=False))
    return out


documents = st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 1)), max_size=8), max_size=5)


@settings(deadline=None)
@given(documents, st.integers(1, 9), st.sampled_from(["left", "right"]))
def test_truncation_is_slicing_each_document(docs: list[Any], limit: int, side: Any) -> None:
    batch = tokens(*docs)
    out, cut, answer_cut = truncate(batch, limit, side)
    kept = [d[:limit] if side == "right" else d[max(0, len(d) - limit) :] for d in docs]
    expected = tokens(*kept)
    assert np.array_equal(out.ids, expected.ids)
    assert np.array_equal(out.documents, expected.documents)
    assert np.array_equal(out.supervised, expected.supervised)  # type: ignore[arg-type]
    assert np.array_equal(out.keys, batch.keys)
    assert cut.tolist() == [len(d) > limit for d in docs]
    lost = [sum(s for _, s in d) - sum(s for _, s in k) for d, k in zip(docs, kept, strict=True)]
    assert answer_cut.tolist() == [n > 0 for n in lost]


def test_without_a_mask_every_cut_cuts_an_answer() -> None:
    batch = TokenBatch(np.arange(5, dtype=np.int32), np.array([0, 3, 5]), None, None, np.zeros(2, np.int32))
    out, cut, answer_cut = truncate(batch, 2)
    assert out.ids.tolist() == [0, 1, 3, 4]
    assert out.supervised is None
    assert cut.tolist() == answer_cut.tolist() == [True, False]


def test_an_answer_cut_by_the_limit_is_counted_in_part() -> None:
    # Fault 6: not as a whole, and not as nothing.
    encoded = encode(batch_of(CHATML, [dialogue("q", "abcdef")]))
    whole = supervised_texts(encoded)[0]
    assert whole == "abcdef<|im_end|>"
    first = int(np.flatnonzero(encoded.supervised)[0])
    right, _, cut = truncate(encoded, first + 3, "right")
    assert (supervised_texts(right), cut.tolist()) == (["abc"], [True])
    left, _, cut = truncate(encoded, 4, "left")
    assert (supervised_texts(left), cut.tolist()) == (["ef<|im_end|>"], [True])
    before, _, cut = truncate(encoded, first, "right")
    assert (supervised_texts(before), cut.tolist()) == ([""], [True])


def test_a_token_over_a_border_is_supervised_and_counted_as_a_seam() -> None:
    encoded = encode(batch_of(NEWLINE_MARKED, [dialogue("q", "\nx"), dialogue("q", "x")]))
    # The newline before the answer and the answer's own make one token.
    assert supervised_texts(encoded) == ["\n\nx</s>", "x</s>"]
    assert encoded.seams is not None
    assert encoded.seams.tolist() == [1, 0]


def test_an_answer_of_one_token_is_whole() -> None:
    # Fault 5: an eos that a tool appends shifted the mask by one; nothing is appended here.
    encoded = encode(batch_of(CHATML, [dialogue("q", "x")]))
    assert encoded.supervised is not None
    expected = tokenizer().encode("<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\nx<|im_end|>\n")
    assert encoded.ids.tolist() == expected.ids
    assert np.flatnonzero(encoded.supervised).tolist() == [len(expected.ids) - 3, len(expected.ids) - 2]


def audited(template: str, dialogues: list[Any], limit: int | None = None, **options: Any) -> MaskAudit:
    encoded = encode(batch_of(template, dialogues, **options))
    cut = answer_cut = None
    if limit is not None:
        encoded, cut, answer_cut = truncate(encoded, limit)
    audit = MaskAudit()
    ids = {text: tokenizer().token_to_id(text) for text in ("<s>", "</s>", "<|im_end|>")}
    ends = renderer(template).end_of_turn()
    watched = Watched(ids["<s>"], {ids[text]: text for text in {*ends, "</s>"}})
    audit_tokens(audit, encoded, watched, cut, answer_cut)
    return audit


def names(audit: MaskAudit) -> set[str]:
    return {finding.name for finding in findings(audit) if finding.warns}


def test_one_bos_is_right_and_two_are_reported() -> None:
    # Fault 3.
    dialogues = [dialogue("q", "a")] * 4
    once = audited(INST, dialogues)
    assert once.with_two_bos == 0
    twice = audited("{{ bos_token }}" + INST, dialogues)
    assert twice.with_two_bos == 4
    assert "with_two_bos" in names(twice)


def test_an_end_of_turn_that_is_not_eos() -> None:
    # Fault 4.
    audit = audited(CHATML, [dialogue("q", "a", "r", "b")] * 3)
    assert audit.end_of_turn == {"<|im_end|>": [12, 6], "</s>": [0, 0]}
    assert [f.text for f in findings(audit)] == [
        "the end-of-turn token '</s>' is never trained, and never occurs"
    ]
    untrained = audited(CHATML, [dialogue("q", "a")], train_end_of_turn=False)
    assert untrained.end_of_turn["<|im_end|>"] == [2, 0]
    assert "end_of_turn" in names(untrained)


def test_records_without_a_target_and_cut_answers() -> None:
    audit = audited(CHATML, [dialogue("q"), dialogue("q", "a"), dialogue("q", "a" * 100)], limit=40)
    assert (audit.records, audit.without_target, audit.truncated, audit.truncated_answers) == (3, 1, 1, 1)
    assert {"without_target", "truncated_answers"} <= names(audit)
    assert audit.tokens == int(sum(min(40, n) for n in np.diff(encode(batch_of(CHATML, [
        dialogue("q"), dialogue("q", "a"), dialogue("q", "a" * 100)])).documents)))  # fmt: skip


def test_seams_are_counted_by_record_and_token() -> None:
    audit = audited(NEWLINE_MARKED, [dialogue("q", "\nx", "r", "\ny"), dialogue("q", "x")])
    assert (audit.with_seams, audit.seam_tokens) == (1, 2)


def test_token_corpora_meet_the_same_audit() -> None:
    audit = MaskAudit()
    batch = tokens([(1, 0), (1, 0), (2, 0)], [(1, 0), (7, 1), (2, 1)], [])
    empty = audit_tokens(audit, batch, Watched(1, {2: "end"}))
    assert empty.tolist() == [True, False, True]
    assert (audit.records, audit.tokens, audit.supervised_tokens) == (3, 6, 2)
    assert (audit.without_target, audit.with_two_bos, audit.end_of_turn) == (2, 1, {"end": [2, 1]})


def test_special_token_text_in_a_message_as_plain_text() -> None:
    # Fault 7.
    messages = [dialogue("a<|im_end|>b", "é<s>"), dialogue("q", "<|im_end|>")]
    control = encode(batch_of(CHATML, messages))
    plain = encode(batch_of(CHATML, messages, split_special_tokens=True))
    end, start = (tokenizer().token_to_id(t) for t in ("<|im_end|>", "<s>"))
    assert (control.ids == end).sum() == 6
    assert (plain.ids == end).sum() == 4
    assert (control.ids == start).sum() == 1
    assert (plain.ids == start).sum() == 0
    assert supervised_texts(plain) == ["é<s><|im_end|>", "<|im_end|><|im_end|>"]
    for encoded in (control, plain):
        text = tokenizer().decode(encoded.ids.tolist(), skip_special_tokens=False)
        assert text.encode() == bytes(batch_of(CHATML, messages).text)


def test_the_fast_kernel_leaves_plain_special_text_to_the_reference() -> None:
    messages = [dialogue("q", "a b"), dialogue("a<|im_end|>b", "é<s>"), dialogue("q", "\n")]
    batch = batch_of(CHATML, messages, split_special_tokens=True)
    split = Tokenizer.from_str(tokenizer().to_str())
    split.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    expected = ReferenceKernel(split).encode(batch)
    quick = FastKernel(split, derive(split)).encode(batch)
    assert quick.ids.tolist() == expected.ids.tolist()
    assert quick.documents.tolist() == expected.documents.tolist()
    assert np.array_equal(quick.supervised, expected.supervised)  # type: ignore[arg-type]
    assert np.array_equal(quick.seams, expected.seams)  # type: ignore[arg-type]


def test_a_tokenizer_for_which_plain_text_cannot_be_told_is_refused() -> None:
    # Its normalizer puts a sign before the whole text alone: a stretch by itself gets one too.
    odd = Tokenizer(models.BPE({c: i for i, c in enumerate("^abc<s>")}, []))
    odd.normalizer = normalizers.Prepend("^")
    odd.add_special_tokens([AddedToken("<s>", special=True, normalized=True)])
    text = np.frombuffer(b"a<s>b<s>c", np.uint8)
    batch = TextBatch(
        text, np.array([0, 9]), np.array([0, 1]), None, np.zeros(1, np.int32), np.array([[1, 4]])
    )
    with pytest.raises(TokenizerError, match="split_special_tokens"):
        ReferenceKernel(odd).encode(batch)
