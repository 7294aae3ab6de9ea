"""The documents are true: what is generated is up to date, links lead somewhere, fields are described."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import job_file_reference

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


def test_job_file_reference_is_up_to_date() -> None:
    assert job_file_reference.PATH.read_text(encoding="utf-8") == job_file_reference.reference()


@pytest.mark.parametrize("title_and_model", job_file_reference.SECTIONS, ids=lambda pair: pair[0])
def test_every_key_is_described(title_and_model: tuple[str, type]) -> None:
    model = title_and_model[1]
    assert [name for name, field in model.model_fields.items() if not field.description] == []  # type: ignore[attr-defined]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_and_named_files_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        if "://" not in target:
            assert (page.parent / target).exists(), target
    for name in re.findall(r"`((?:docs|deploy|tests|coverage_job|notebooks)/[\w/.-]+)`", text):
        assert (ROOT / name.rstrip("/")).exists(), name
