"""Options of a job that the planted tables do not show."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coverage_job.config import parse_job
from coverage_job.corpus.documents import TextBatch, TokenBatch
from coverage_job.counting.kernel import FastKernel
from coverage_job.errors import CorpusError
from coverage_job.pipeline.run import run as run_job
from coverage_job.progress import Steps
from coverage_job.storage import Run
from tests.planted import WORDS, assistant, user, write_corpora, write_lines


def run(tree: dict[str, Any], folder: Path, *overrides: str) -> Run:
    job = parse_job(tree, base=folder, overrides=overrides)
    return Run(run_job(job, "local", str(folder / "run"), Steps(quiet=True)).path)


def test_foreign_scripts_of_supervised_messages_are_counted_and_placed(tmp_path: Path) -> None:
    tree = write_corpora(tmp_path)
    write_lines(
        tmp_path / "chat.jsonl",
        [
            {"lang": "ko", "messages": [user("안녕"), assistant("답은 正确입니다")]},
            {"lang": "ko", "messages": [user("正确 무엇"), assistant("답은 正确입니다")]},
            {"lang": "ko", "messages": [user("正确"), assistant("답입니다")]},
            {"lang": "ja", "messages": [user("x"), assistant("正確です да")]},
            {"lang": "en", "messages": [user("x"), assistant("plain")]},
        ],
    )
    tree["corpora"][1].update(language_field="lang")
    tree["checks"] = [{"metric": "mixed_script_rate", "corpus": "chat", "max": 0.1}]
    result = run(tree, tmp_path)
    found = result.info["corpora"][1]["mixed_script"]
    assert (found["documents"], found["mixed"]) == (5, 2)
    assert found["by_language"]["ko"] == {"documents": 3, "mixed": 1}
    places = result.table("mixed_script.parquet").to_pylist()
    assert [(p["language"], p["script"], p["start"], p["end"]) for p in places] == [
        ("ko", "Han", 3, 5),
        ("ja", "Cyrillic", 5, 7),
    ]
    assert places[0]["place"].endswith("chat.jsonl, line 1")
    (check,) = result.json("checks.json")
    assert (check["verdict"], check["value"]) == ("fail", pytest.approx(0.4))


def test_more_than_1000_groups_name_the_field(tmp_path: Path) -> None:
    tree = write_corpora(tmp_path)
    write_lines(
        tmp_path / "web.jsonl", [{"text": "alpha", "lang": "en", "source": f"site{i}"} for i in range(1001)]
    )
    with pytest.raises(CorpusError, match="source"):
        run(tree, tmp_path, "engine.split_bytes=2000")


@pytest.mark.parametrize("same", [True, False])
def test_the_tokenizer_of_pre_training_is_compared(tmp_path: Path, same: bool) -> None:
    tree = write_corpora(tmp_path)
    data = json.loads((tmp_path / "tokenizer.json").read_text())
    if not same:
        vocab = data["model"]["vocab"]
        vocab[WORDS[0]], vocab[WORDS[1]] = vocab[WORDS[1]], vocab[WORDS[0]]
    (tmp_path / "old.json").write_text(json.dumps(data))
    entry = run({**tree, "pretraining_tokenizer": "old.json"}, tmp_path).info["pretraining_tokenizer"]
    assert entry["same"] is same
    assert entry["moved"] == (0 if same else 2)
    assert (entry["texts"], entry["texts_differing"]) == (3, 0 if same else 2)


def test_bos_and_eos_are_counted_where_the_trainer_adds_them(tmp_path: Path) -> None:
    tree = write_corpora(tmp_path)
    tree["corpora"][0].update(add_bos="<end>", add_eos="<end>")
    rows = run(tree, tmp_path).table("histogram.parquet").to_pylist()
    ends = [r for r in rows if r["token_id"] == 8]
    assert sum(r["occurrences"] for r in ends) == 6
    assert sum(r["documents"] for r in ends) == 3
    assert sum(r["supervised_occurrences"] for r in ends) == 6


def test_an_id_beyond_the_matrix_names_corpus_record_and_id(tmp_path: Path) -> None:
    tree = write_corpora(tmp_path)
    write_lines(tmp_path / "ids.jsonl", [{"input_ids": [1, 2]}, {"input_ids": [3, 12]}])
    tree["corpora"].append({"name": "packed", "stage": "posttraining", "path": "ids.jsonl"})
    with pytest.raises(Exception, match=r"packed.*12") as caught:
        run(tree, tmp_path)
    assert "line 2" in str(caught.value)


def test_shifted_labels_are_an_error(tmp_path: Path) -> None:
    tree = write_corpora(tmp_path)
    write_lines(tmp_path / "ids.jsonl", [{"input_ids": [1, 2, 3], "labels": [2, 3, -100]}])
    tree["corpora"].append({"name": "packed", "stage": "posttraining", "path": "ids.jsonl"})
    with pytest.raises(CorpusError, match="unshifted"):
        run(tree, tmp_path)


def ids(n: int, **labels: list[int]) -> list[dict[str, Any]]:
    return [{"input_ids": [i % 5, (i + 1) % 5, (i + 2) % 5], **labels} for i in range(n)]


def packed(folder: Path, records: list[dict[str, Any]]) -> dict[str, Any]:
    """The tree of the planted job with a corpus of ids more; several files, so that counts are merged."""
    tree = write_corpora(folder)
    for part in range(2):
        write_lines(folder / f"ids{part}.jsonl", records[part::2])
    tree["corpora"].append({"name": "packed", "stage": "posttraining", "path": "ids*.jsonl"})
    return tree


def test_labels_that_are_other_ids_are_counted_and_warned_of(tmp_path: Path) -> None:
    records = ids(100)
    for record in records:
        record["labels"] = [-100, *record["input_ids"][1:]]
    records[7]["labels"][2] += 1
    result = run(packed(tmp_path, records), tmp_path)
    info = result.info["corpora"][-1]
    audit = info["mask_audit"]
    assert (audit["labels"], audit["label_mismatches"], audit["without_labels"]) == (200, 1, 0)
    (finding,) = info["mask_findings"]
    assert (finding["name"], finding["count"], finding["warns"]) == ("label_mismatches", 1, True)
    assert finding["share"] == pytest.approx(1 / 200)
    assert "1 of 200 labels: another id than their own position's" in finding["text"]
    assert "ids1.jsonl" in finding["text"]
    assert result.json("summary.json")["corpora"][-1]["mask_audit"]["label_mismatches"] == 1


def test_records_of_ids_without_labels_and_without_target(tmp_path: Path) -> None:
    info = run(packed(tmp_path, ids(6)), tmp_path).info["corpora"][-1]
    assert (info["mask_audit"]["without_labels"], info["mask_audit"]["records"]) == (6, 6)
    assert [f["name"] for f in info["mask_findings"] if f["warns"]] == ["without_labels"]
    other = tmp_path / "other"
    other.mkdir()
    info = run(packed(other, ids(6, labels=[-100] * 3)), other).info["corpora"][-1]
    audit = info["mask_audit"]
    assert (audit["without_target"], audit["without_labels"], audit["labels"]) == (6, 0, 0)
    assert info["supervised_tokens"] == 0
    (finding,) = info["mask_findings"]
    assert (finding["name"], finding["count"], finding["warns"]) == ("without_target", 6, True)


def test_what_the_audit_of_ids_finds_can_be_gated(tmp_path: Path) -> None:
    tree = packed(tmp_path, ids(6))
    tree["checks"] = [{"metric": "mask_audit", "audit": "without_labels", "corpus": "packed", "max": 0}]
    (check,) = run(tree, tmp_path).json("checks.json")
    assert (check["verdict"], check["value"]) == ("fail", 6)


def test_a_kernel_that_differs_is_found_said_and_counted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = write_corpora(tmp_path)
    right = run(tree, tmp_path).table("histogram.parquet")
    encode = FastKernel.encode

    def wrong(self: FastKernel, batch: TextBatch) -> TokenBatch:
        encoded = encode(self, batch)
        return replace(encoded, ids=(encoded.ids + 1) % 8)

    monkeypatch.setattr(FastKernel, "encode", wrong)
    job = parse_job(tree, base=tmp_path)
    result = Run(run_job(job, "local", str(tmp_path / "again"), Steps()).path)
    assert result.table("histogram.parquet").equals(right)
    assert result.info["audit"]["recounted_splits"] == 3
    assert result.info["audit"]["differing"] > 0
    assert "differed from the tokenizer" in " ".join(capsys.readouterr().err.split())


def test_bytes_that_took_the_reference_path_are_told_with_the_reason(tmp_path: Path) -> None:
    kernel = run(write_corpora(tmp_path), tmp_path).info["kernel"]
    assert kernel["bytes"] == sum(n for name, n in kernel.items() if name.startswith("reference: "))
    assert kernel["reference: its model is WordLevel"] == kernel["bytes"] > 0
