"""Every column of histogram, coverage and manifest on a corpus that was worked out by hand."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import pytest

from coverage_job.config import parse_job
from coverage_job.pipeline.run import run as run_job
from coverage_job.progress import Steps
from coverage_job.report.tables import show
from coverage_job.schemas import COUNTS, COVERAGE_COUNTS
from coverage_job.storage import Run
from tests.planted import write_corpora

HISTOGRAM = [
    # token, corpus, stage, language, group, occurrences, documents, supervised occurrences, documents
    (0, "web", "pretraining", "en", "blog", 1, 1, 1, 1),
    (2, "web", "pretraining", "en", "blog", 1, 1, 1, 1),
    (0, "web", "pretraining", "en", "news", 2, 1, 2, 1),
    (1, "web", "pretraining", "en", "news", 1, 1, 1, 1),
    (3, "web", "pretraining", "ja", "news", 1, 1, 1, 1),
    (0, "chat", "posttraining", "", "", 1, 1, 0, 0),
    (1, "chat", "posttraining", "", "", 3, 2, 3, 2),
    (2, "chat", "posttraining", "", "", 2, 2, 1, 1),
    (0, "tasks", "posttraining", "", "", 1, 1, 0, 0),
    (1, "tasks", "posttraining", "", "", 1, 1, 0, 0),
    (2, "tasks", "posttraining", "", "", 1, 1, 1, 1),
    (4, "tasks", "posttraining", "", "", 1, 1, 0, 0),
    (5, "tasks", "posttraining", "", "", 1, 1, 1, 1),
]
COVERAGE = {
    # token: pre-training occurrences, documents, post-training occurrences, documents,
    #        supervised occurrences, documents, expected updates
    0: (3, 2, 2, 2, 0, 0, 1.5),
    1: (1, 1, 4, 3, 3, 2, 6.5),
    2: (1, 1, 3, 3, 2, 2, 3.5),
    3: (1, 1, 0, 0, 0, 0, 0.5),
    4: (0, 0, 1, 1, 0, 0, 0.0),
    5: (0, 0, 1, 1, 1, 1, 1.0),
}
KINDS = ["base"] * 8 + ["special"] + ["unused"] * 3
REACHABILITY = ["direct"] * 8 + ["special"] + ["unused"] * 3
EXEMPT = {5, 8, 9, 10, 11}
VERDICTS = {
    # measure: per token 0-4 its status and deficit; 6 and 7 are absent in all, the rest exempt
    "supervised_occurrences": [("absent", 3), ("covered", 0), ("low", 1), ("absent", 3), ("absent", 3)],
    "supervised_documents": [("absent", 3), ("low", 1), ("low", 1), ("absent", 3), ("absent", 3)],
    "occurrences": [("low", 1), ("covered", 0), ("covered", 0), ("absent", 3), ("critical", 2)],
    "documents": [("low", 1), ("covered", 0), ("covered", 0), ("absent", 3), ("critical", 2)],
    "expected_updates": [("critical", 2), ("covered", 0), ("covered", 0), ("absent", 3), ("absent", 3)],
}
SPAM_DEFICIT = {"expected_updates": 2, "supervised_occurrences": 2, "supervised_documents": 2}


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("planted")
    return folder, write_corpora(folder)


def run(planted: tuple[Path, dict[str, Any]], output: Path, *overrides: str) -> Run:
    folder, tree = planted
    job = parse_job(tree, base=folder, overrides=overrides)
    return Run(run_job(job, "local", str(output / "run"), Steps(quiet=True)).path)


def test_histogram(planted: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    result = run(planted, tmp_path)
    names = ("token_id", "corpus", "stage", "language", "group", *COUNTS)
    rows = [tuple(r[n] for n in names) for r in result.table("histogram.parquet").to_pylist()]
    assert rows == HISTOGRAM
    corpora = {c["name"]: c for c in result.info["corpora"]}
    keys = ("files", "records", "documents", "bad_records", "empty_documents", "tokens", "supervised_tokens")
    assert [corpora["web"][k] for k in keys] == [1, 3, 3, 0, 0, 6, 6]
    assert [corpora["chat"][k] for k in keys] == [1, 3, 2, 1, 0, 6, 4]
    assert [corpora["tasks"][k] for k in keys] == [1, 2, 2, 0, 0, 5, 2]
    (bad,) = result.table("bad_records.parquet").to_pylist()
    assert (bad["corpus"], bad["position"], bad["first_bytes"]) == ("chat", 2, b'{"messages": [')


@pytest.mark.parametrize("measure", list(VERDICTS))
def test_coverage_and_manifest(planted: tuple[Path, dict[str, Any]], tmp_path: Path, measure: str) -> None:
    result = run(planted, tmp_path, f"coverage.measure={measure}")
    rows = result.table("coverage.parquet").to_pylist()
    assert [r["token_id"] for r in rows] == list(range(12))
    assert [r["kind"] for r in rows] == KINDS
    assert [r["reachability"] for r in rows] == REACHABILITY
    assert [r["token"] for r in rows[:9]] == [
        "alpha",
        "beta",
        "gamma",
        "delta",
        "omega",
        "spam",
        "rare",
        "[UNK]",
        "<end>",
    ]
    assert [r["round_trip"] for r in rows] == [True] * 8 + [True] + [False] * 3
    for r in rows:
        counts = COVERAGE.get(r["token_id"], (0,) * 7)
        assert (*[r[c] for c in COVERAGE_COUNTS], r["expected_updates"]) == counts
        assert r["lm_head_cosine"] is r["lm_head_l2"] is r["embedding_cosine"] is r["embedding_l2"] is None
    expected = VERDICTS[measure]
    for token_id, (status, deficit) in enumerate(expected):
        assert (rows[token_id]["status"], rows[token_id]["deficit"]) == (status, deficit), token_id
    assert [rows[i]["status"] for i in (6, 7)] == ["absent", "absent"]
    assert {r["token_id"] for r in rows if r["status"] == "exempt"} == EXEMPT
    assert rows[5]["deficit"] == 2
    actions = [r["action"] for r in rows]
    want = ["repeat_and_mix", "none", "none", "repeat_and_mix", "repeat", "exempt", "repeat", "repeat"]
    for token_id in (1, 2):
        if expected[token_id][0] != "covered":
            want[token_id] = "repeat_and_mix"
    assert actions == want + ["exempt"] * 4

    flagged = [i for i, (status, _) in enumerate(expected) if status != "covered"] + [6, 7]
    needs = result.table("manifest.parquet").to_pylist()
    assert [n["token_id"] for n in needs] == flagged
    for need in needs:
        row = rows[need["token_id"]]
        assert (need["token"], need["deficit"], need["action"]) == (
            row["token"],
            row["deficit"],
            row["action"],
        )
        assert need["context"] == row["example"]
        assert need["reason"].startswith(
            f"{_measured(measure, need['token_id'])} of 3 {measure.replace('_', ' ')}; "
        )


def _measured(measure: str, token_id: int) -> str:
    column = [
        "occurrences",
        "documents",
        "supervised_occurrences",
        "supervised_documents",
        "expected_updates",
    ]
    value = COVERAGE.get(token_id, (0,) * 6 + (0.0,))[2:][column.index(measure)]
    return str(value)


def test_sums(planted: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    result = run(planted, tmp_path)
    summary = result.table("summary.parquet").to_pylist()
    for by in ("language", "script", "category", "kind", "reachability", "status"):
        rows = [r for r in summary if r["by"] == by]
        assert sum(r["tokens"] for r in rows) == 12
        assert sum(r["covered"] + r["under"] + r["exempt"] for r in rows) == 12
        assert sum(r["tokens_counted"] for r in rows) == 17
        assert sum(r["supervised_tokens_counted"] for r in rows) == 12
    by_group = {r["value"]: r for r in summary if r["by"] == "group"}
    assert {k: (r["tokens"], r["tokens_counted"]) for k, r in by_group.items()} == {
        "web/blog": (2, 2),
        "web/news": (3, 4),
    }


def test_preferences(planted: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    overrides = ("remedies.prefer=mix", "remedies.unseen=prune", "remedies.exclude.token_id=[0]")
    rows = run(planted, tmp_path, *overrides).table("coverage.parquet").to_pylist()
    assert [r["action"] for r in rows[:8]] == [
        "protect",
        "none",
        "mix",
        "mix",
        "repeat",
        "exempt",
        "prune_candidate",
        "prune_candidate",
    ]


def test_what_the_job_asks_for_in_vain_is_said(
    planted: tuple[Path, dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, tree = planted
    overrides = (
        "coverage.exempt={token_id: [5, 99], language: [en, qqq], category: [numbr]}",
        "remedies.exclude={script: [Lattin]}",
        "labels.seo_spam=[spam, casino]",
    )
    job = parse_job(tree, base=folder, overrides=overrides)
    result = run_job(job, "local", str(tmp_path / "run"), Steps(quiet=True))
    show(result.printed)
    printed = " ".join(capsys.readouterr().out.split())
    said = Run(result.path).info["warnings"]
    assert said == [
        "mixed_in of web lifts no status under coverage.measure: supervised_occurrences; "
        "expected_updates counts it",
        "coverage.exempt: no token has language 'qqq', category 'numbr', token_id 99",
        "remedies.exclude: no token has script 'Lattin' (did you mean Latin?)",
        "labels.seo_spam: no token holds 'casino'",
    ]
    for text in said:
        assert f"job: {text}" in printed
        assert text in html.unescape((tmp_path / "run" / "report.html").read_text("utf-8"))
    quiet = run(planted, tmp_path / "b", "coverage.measure=expected_updates")
    assert quiet.info["warnings"] == []


def test_a_special_token_of_the_template_is_to_be_repeated_by_its_id(
    planted: tuple[Path, dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, tree = planted
    template = tmp_path / "chat.jinja"
    template.write_text(
        "{% for m in messages %}<end> {{ m.role }} {% generation %}{{ m.content }}{% endgeneration %}\n"
        "{% endfor %}"
    )
    job = parse_job({**tree, "chat_template": str(template)}, base=folder)
    result = run_job(job, "local", str(tmp_path / "run"), Steps(quiet=True))
    (need,) = [n for n in Run(result.path).table("manifest.parquet").to_pylist() if n["token_id"] == 8]
    assert need["action"] == "repeat_ids"
    assert "repeat --ids makes it a target" in need["reason"]
    assert "coverage.exempt.token_id" in need["reason"]
    show(result.printed)
    printed = capsys.readouterr().out
    assert f"coverage-job repeat {result.path} --output repeat --ids" in printed
    assert "1 special token is written by the chat template alone" in printed
