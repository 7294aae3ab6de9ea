"""The documents are true: what is generated is up to date, links lead somewhere, fields are described."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

from coverage_job import schemas
from tests import file_reference, job_file_reference

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


def test_job_file_reference_is_up_to_date() -> None:
    assert job_file_reference.PATH.read_text(encoding="utf-8") == job_file_reference.reference()


def test_file_reference_is_up_to_date() -> None:
    assert file_reference.PATH.read_text(encoding="utf-8") == file_reference.reference()


def test_every_schema_has_a_section() -> None:
    # Not of files that a user opens: what tasks hand to the driver, and what coverage.parquet contains.
    inner = {"PARTIAL", "VOCABULARY", "MIX_CANDIDATES", "MIX_TEXTS"}
    described = [schema for _, _, schema, _ in file_reference.SECTIONS]
    public = {n: s for n, s in vars(schemas).items() if isinstance(s, pa.Schema) and n not in inner}
    assert [name for name, schema in public.items() if schema not in described] == []


@pytest.mark.parametrize("section", file_reference.SECTIONS, ids=lambda s: s[0])
def test_every_described_column_exists(section: tuple[str, str, pa.Schema, dict[str, str]]) -> None:
    assert set(section[3]) <= set(section[2].names)


@pytest.mark.parametrize("title_and_model", job_file_reference.SECTIONS, ids=lambda pair: pair[0])
def test_every_key_is_described(title_and_model: tuple[str, type]) -> None:
    model = title_and_model[1]
    assert [name for name, field in model.model_fields.items() if not field.description] == []  # type: ignore[attr-defined]


def test_readme_names_every_part_of_the_package() -> None:
    tree = (ROOT / "README.md").read_text(encoding="utf-8").split("## The tree")[1].split("\n## ")[0]
    named = set(re.findall(r"^      ([\w./]+) ", tree, re.M))
    parts = {
        p.name + "/" * p.is_dir()
        for p in (ROOT / "coverage_job").iterdir()
        if p.suffix == ".py" or (p / "__init__.py").exists()
    }
    assert named == parts - {"__init__.py"}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_and_named_files_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        if "://" not in target:
            assert (page.parent / target).exists(), target
    for name in re.findall(r"`((?:docs|deploy|tests|coverage_job|notebooks)/[\w/.-]+)`", text):
        assert (ROOT / name.rstrip("/")).exists(), name
