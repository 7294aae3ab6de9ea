from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pytest
import yaml

from coverage_job.cli import main
from coverage_job.config import parse_job
from coverage_job.engines import spark
from coverage_job.engines.local import LocalEngine
from coverage_job.errors import EngineError
from coverage_job.pipeline import plan
from coverage_job.pipeline.plan import open_engine
from coverage_job.progress import Steps
from tests.planted import write_corpora

TREE = {"tokenizer": "t", "corpora": [{"name": "c", "stage": "pretraining", "path": "x.jsonl"}]}


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sql = pytest.importorskip(
        "pyspark.sql", reason="pyspark is not installed, and would be named instead of Java"
    )
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setattr(spark, "wanted", lambda: False)
    # Other tests of this process may have started one.
    monkeypatch.setattr(sql.SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))


def test_without_java_the_local_engine_is_used_and_the_package_is_named(
    no_java: None, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = open_engine("auto", parse_job(TREE, base=Path("/")), Steps())
    assert isinstance(engine, LocalEngine)
    said = " ".join(capsys.readouterr().err.split())
    assert "no Java was found" in said
    assert "openjdk-17-jre-headless" in said


def test_without_java_spark_by_name_is_an_error_with_the_way_out(no_java: None) -> None:
    with pytest.raises(EngineError, match=r"openjdk-17-jre-headless.*--engine local"):
        open_engine("spark", parse_job(TREE, base=Path("/")), Steps(quiet=True))


def test_a_table_needs_spark(no_java: None) -> None:
    corpus = {"name": "c", "stage": "pretraining", "table": "t"}
    with pytest.raises(EngineError, match="no Java"):
        open_engine("auto", parse_job({**TREE, "corpora": [corpus]}, base=Path("/")), Steps(quiet=True))


@pytest.mark.parametrize("name", ["auto", "spark"])
def test_a_dry_run_starts_no_session(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: object) -> None:
        raise AssertionError("an engine was opened")

    monkeypatch.setattr(plan, "SparkEngine", refused)
    monkeypatch.setattr(spark, "unavailable", refused)
    job = tmp_path / "job.yaml"
    job.write_text(yaml.safe_dump(write_corpora(tmp_path)), encoding="utf-8")
    assert main(["run", str(job), "--engine", name, "--dry-run"]) == 0
    assert "chat" in capsys.readouterr().out


def test_sparks_log_is_of_errors_unless_its_owner_configured_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    key = "spark.driver.extraJavaOptions"
    quiet = spark._quiet({key: "-Xss4m", "spark.x": "1"})
    options, quoted, _ = quiet[key].split('"')
    assert (options.strip(), quiet["spark.x"]) == ("-Xss4m", "1")
    file = Path(url2pathname(urlsplit(quoted.partition("=")[2]).path))
    assert "rootLogger.level = error" in file.read_text()
    own = {key: "-Dlog4j2.configurationFile=mine.properties"}
    assert spark._quiet(own) == own
    monkeypatch.setenv("SPARK_CONF_DIR", "/etc/spark")
    assert spark._quiet({}) == {}
