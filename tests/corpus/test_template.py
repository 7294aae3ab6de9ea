"""Where chat templates are found, and what the spec of one holds."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from coverage_job.corpus.template import TemplateSpec, load_template
from coverage_job.errors import JobError


def folder(tmp_path: Path, **config: Any) -> str:
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return str(tmp_path)


def test_a_template_of_the_configuration(tmp_path: Path) -> None:
    path = folder(
        tmp_path, chat_template="{{ 1 }}", bos_token="<s>", eos_token={"content": "</s>"}, pad_token=None
    )
    found = load_template(path)
    assert found is not None
    assert (found.text, found.name) == ("{{ 1 }}", "default")
    assert found.variables == {"bos_token": "<s>", "eos_token": "</s>"}
    assert load_template(f"{path}/tokenizer.json") == found


def test_none_where_there_is_none_or_none_is_wanted(tmp_path: Path) -> None:
    path = folder(tmp_path)
    assert load_template(path) is None
    (tmp_path / "chat_template.jinja").write_text("x")
    assert load_template(path, "none") is None
    assert load_template(path).text == "x"  # type: ignore[union-attr]


def test_the_file_beside_the_configuration_goes_first(tmp_path: Path) -> None:
    path = folder(tmp_path, chat_template="old")
    (tmp_path / "chat_template.jinja").write_text("new")
    found = load_template(path)
    assert found is not None
    assert found.text == "new"
    assert found.source.endswith("chat_template.jinja")


def test_named_templates(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    path = folder(tmp_path, chat_template=named)
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "rag.jinja").write_text("c")
    found = load_template(path)
    assert found is not None
    assert (found.text, found.tools_text) == ("a", "b")
    rag = load_template(path, name="rag")
    assert rag is not None
    assert (rag.text, rag.tools_text) == ("c", None)
    with pytest.raises(JobError, match="no chat template is named 'x'; it has default, rag, tool_use"):
        load_template(path, name="x")


def test_a_file_given(tmp_path: Path) -> None:
    path = folder(tmp_path, chat_template="own", bos_token="<s>")
    (tmp_path / "mine.jinja").write_text("mine")
    found = load_template(path, str(tmp_path / "mine.jinja"))
    assert found is not None
    assert (found.text, found.variables) == ("mine", {"bos_token": "<s>"})
    with pytest.raises(JobError, match=r"absent\.jinja: cannot be read"):
        load_template(path, str(tmp_path / "absent.jinja"))


@pytest.mark.parametrize("bad", [3, [{"name": "x"}]])
def test_a_configuration_that_holds_something_else(tmp_path: Path, bad: Any) -> None:
    with pytest.raises(JobError, match="chat_template"):
        load_template(folder(tmp_path, chat_template=bad))


def test_a_spec_travels_and_knows_its_content() -> None:
    spec = TemplateSpec("f", "default", "text", "tools", (("bos_token", "<s>"),))
    assert TemplateSpec.from_json(spec.to_json()) == spec
    assert pickle.loads(pickle.dumps(spec)).sha256 == spec.sha256
    assert TemplateSpec("f", "default", "text").sha256 != spec.sha256
