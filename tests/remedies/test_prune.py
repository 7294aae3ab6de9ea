from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, processors

from coverage_job.errors import RemedyError
from coverage_job.remedies import prune
from tests.remedies.helpers import corpus, fabricate, tiny_tokenizer


def used_by(tokenizer, coverage, texts):
    """Coverage with the counts that `texts` give."""
    counts = np.zeros(len(coverage), np.int64)
    for text in texts:
        np.add.at(counts, tokenizer.encode(text, add_special_tokens=False).ids, 1)
    return coverage.with_columns(
        pl.Series("pretraining_occurrences", counts), pl.lit(0).alias("posttraining_occurrences")
    )


def pruned(family, texts):
    tokenizer = tiny_tokenizer(family)
    coverage = used_by(tokenizer, fabricate(tokenizer, family), texts)
    proposal = prune.propose(coverage, tokenizer)
    new_ids = prune.id_map(proposal)
    made = prune.apply(json.loads(tokenizer.to_str()), new_ids)
    return tokenizer, Tokenizer.from_str(json.dumps(made)), proposal, new_ids


ENGLISH = [t for t in corpus() if t.isascii()]


@pytest.mark.parametrize("family", ["bytes", "sentencepiece", "wordpiece", "unigram"])
def test_text_without_removed_tokens_encodes_as_before(family):
    before, after, proposal, new_ids = pruned(family, ENGLISH)
    removed = proposal["new_id"].null_count()
    assert removed > (300 if family == "bytes" else 5)
    assert after.get_vocab_size() == len(proposal) - removed
    checked = prune.check(before, after, new_ids, [*corpus(), *(w for t in corpus() for w in t.split())])
    assert checked.differ == []
    # In WordPiece whole words are their own only spelling here, so almost none may go.
    assert checked.with_removed > 0 or family == "wordpiece"
    assert checked.texts > checked.with_removed
    # What was removed is written by other tokens.
    assert checked.tokens_after >= checked.tokens_before
    if family == "bytes":
        for text in corpus():
            assert after.decode(after.encode(text).ids) == before.decode(before.encode(text).ids)


_BYTES = pruned("bytes", ENGLISH)


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="abcdehilmnorstux .,\n的字文텍スト", max_size=40))
def test_any_text_without_removed_tokens_encodes_as_before(text):
    before, after, _, new_ids = _BYTES
    assert prune.check(before, after, new_ids, [text]).differ == []


def test_parts_of_kept_tokens_are_kept_though_rare():
    before, _, proposal, _ = _BYTES
    needed = proposal.filter(pl.col("reason").str.contains("is merged from it"))
    assert len(needed) > 0
    kept = set(proposal.filter(pl.col("new_id").is_not_null())["old_id"])
    model = json.loads(before.to_str())["model"]
    for left, right in model["merges"]:
        if model["vocab"][left + right] in kept:
            assert {model["vocab"][left], model["vocab"][right]} <= kept


def test_the_map_is_in_order_without_holes_and_spares_what_it_must():
    tokenizer, _, proposal, new_ids = _BYTES
    assert proposal["old_id"].to_list() == list(range(len(proposal)))
    kept = new_ids[new_ids >= 0]
    assert kept.tolist() == list(range(len(kept)))
    for token in ("<|start|>", "<|end|>", "<tool>"):
        assert new_ids[tokenizer.token_to_id(token)] >= 0
    removed = proposal.filter(pl.col("new_id").is_null())
    assert set(removed["reason"]) == {"removed: rare in both stages"}
    assert f"{len(removed):,} of {len(proposal):,}" in prune.line(proposal)
    assert "MiB" in prune.line(proposal, row_bytes=8192)


def test_becomes_is_what_the_pruned_tokenizer_writes():
    before, after, proposal, _ = _BYTES
    rows = proposal.filter(pl.col("becomes").is_not_null()).head(50)
    assert len(rows) == 50
    for old, becomes in rows.select("old_id", "becomes").iter_rows():
        assert after.decode(becomes) == before.decode([old])


def test_ids_in_post_processors_are_renumbered():
    tokenizer = tiny_tokenizer("bytes")
    end = tokenizer.token_to_id("<|end|>")
    tool = tokenizer.token_to_id("<tool>")
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single="$A <|end|> <tool>", special_tokens=[("<|end|>", end), ("<tool>", tool)]
            ),
        ]
    )
    coverage = used_by(tokenizer, fabricate(tokenizer, "bytes"), ENGLISH)
    new_ids = prune.id_map(prune.propose(coverage, tokenizer))
    after = Tokenizer.from_str(json.dumps(prune.apply(json.loads(tokenizer.to_str()), new_ids)))
    assert new_ids[tool] != tool
    assert after.encode("the").ids[-2:] == [after.token_to_id("<|end|>"), after.token_to_id("<tool>")]


def test_transformers_loads_the_pruned_tokenizer(tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed (extra `probe`)")
    _, after, _, _ = _BYTES
    after.save(str(tmp_path / "tokenizer.json"))
    fast = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    text = "the cat sat on the mats"
    assert fast(text, add_special_tokens=False)["input_ids"] == after.encode(text).ids
    assert len(fast) == after.get_vocab_size()


def test_entries_without_which_text_is_unknown_are_kept():
    _, after, proposal, _ = pruned("wordpiece", ENGLISH)
    assert (proposal["reason"] == "kept: its text would be unknown").sum() > 0
    unknown = after.token_to_id("[UNK]")
    for text in corpus():
        before = tiny_tokenizer("wordpiece").encode(text).tokens
        assert (unknown in after.encode(text).ids) <= ("[UNK]" in before)


def test_another_model_is_refused():
    tokenizer = tiny_tokenizer("bytes")
    coverage = used_by(tokenizer, fabricate(tokenizer, "bytes"), ENGLISH)

    class Odd:
        def to_str(self):
            data = json.loads(tokenizer.to_str())
            data["model"]["type"] = "Other"
            return json.dumps(data)

    with pytest.raises(RemedyError, match="model Other"):
        prune.propose(coverage, Odd())
