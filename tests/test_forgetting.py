"""The phenomenon on a small model, and the notebooks that show it: minutes of training, one thread.

What is asserted showed with wide margins in every run of two recipes; what did not (which language is
worst, single languages' completions) is reported by the notebook and asserted nowhere.
"""

from __future__ import annotations

import os
from pathlib import Path
from statistics import mean

import pytest

pytest.importorskip("torch")
pytest.importorskip("altair")
pytest.importorskip("django")
pytest.importorskip("sphinx")
pytest.importorskip("chatterbot_corpus")

# One process trains the models for all of these.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("forgetting")]

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where base and variants are kept: one training serves the tests and the notebook."""
    return tmp_path_factory.mktemp("forgetting")


@pytest.fixture(scope="module")
def judged(folder):
    from tests.benchmarks.forgetting.experiment import judge, prepare

    experiment = prepare(folder)
    return {name: judge(experiment, name) for name in ("base", "a", "b", "e", "h")}


def kept(judged, name):
    return mean(c["kept"] for c in judged[name]["completions"].values())


def stray(judged, name):
    return mean(c["stray"] for c in judged[name]["completions"].values())


def written(judged, name):
    return judged[name]["ability"]["uncovered"]["written"]["rate"]


def test_rows_without_targets_drift_together_and_embeddings_do_not(judged):
    drift = judged["a"]["drift"]
    assert drift["by_count"]["0"]["cosine"] < 0.88
    assert drift["by_count"]["0"]["under_0.90"] > 0.8
    assert drift["by_count"]["20-99"]["under_0.90"] < 0.1
    assert drift["embedding_cosine_uncovered"] > 0.999
    assert drift["spearman"] > 0.5
    assert drift["common_direction"] > 0.6


def test_our_repeat_set_keeps_them_and_a_naive_one_does_not(judged):
    ours, naive = (judged[name]["drift"]["by_count"]["0"] for name in ("b", "e"))
    assert ours["cosine"] > 0.95
    assert ours["under_0.90"] < 0.05
    assert naive["under_0.90"] > 0.15
    assert judged["b"]["drift"]["common_direction"] < 0.5


def test_the_base_can_copy_and_narrow_sft_loses_it(judged):
    assert judged["base"]["ability"]["uncovered"]["copied"] > 0.75
    base = written(judged, "base")
    assert base > 0.5
    assert written(judged, "a") < 0.6 * base
    assert written(judged, "b") > 0.8 * base
    assert written(judged, "e") < 0.8 * base
    assert written(judged, "h") > written(judged, "a") + 0.1
    narrow, repaired = (judged[name]["ability"]["uncovered"]["copied"] for name in ("a", "b"))
    assert repaired > narrow + 0.08


def test_completions_are_lost_with_the_rows_and_come_back_with_them(judged):
    assert kept(judged, "a") < 0.75
    # Only rows were put back: what that mends, the output matrix had lost.
    assert kept(judged, "h") > kept(judged, "a") + 0.05
    assert kept(judged, "b") > kept(judged, "a") + 0.05
    assert stray(judged, "a") > 1.5 * stray(judged, "base")
    assert stray(judged, "b") < stray(judged, "a")


def test_the_printed_table_has_a_row_for_each(judged):
    from tests.benchmarks.forgetting.experiment import table_of

    table = table_of(judged)
    assert table["variant"].str.split(":").list.first().to_list() == list(judged)


def execute(name: str, **environment: str) -> list[str]:
    """Run a notebook as CI does; the texts it printed or showed."""
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    notebook = nbformat.read(ROOT / "notebooks" / name, as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=3600, resources={"metadata": {"path": str(ROOT / "notebooks")}}
    )
    before = {key: os.environ.get(key) for key in environment}
    os.environ.update(environment)
    try:
        client.execute()
    finally:
        for key, value in before.items():
            if value is None:
                del os.environ[key]
            else:
                os.environ[key] = value
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [o.get("text") or o.get("data", {}).get("text/plain", "") for o in outputs]


def test_the_notebook_of_the_phenomenon_runs(folder, judged):
    shown = execute("forgetting.ipynb", FORGETTING_FOLDER=str(folder), FORGETTING_VARIANTS="base,a,b,e,h")
    assert any("narrow SFT as it is" in text for text in shown)


def test_the_curators_notebook_runs_and_exports_a_list_that_probe_reads(folder, judged, tmp_path):
    from tokenizers import Tokenizer

    from coverage_job.probes.choose import parse_list

    exported = tmp_path / "chosen.jsonl"
    execute("curators.ipynb", COVERAGE_RUN=str(folder / "run"), CURATORS_LIST=str(exported))
    tokenizer = Tokenizer.from_file(str(folder / "base" / "tokenizer.json"))
    tokens = parse_list(exported.read_bytes(), tokenizer)
    assert 0 < len(tokens) <= 100
