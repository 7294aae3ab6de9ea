"""docs/job-file.md from the job file's models: `python -m tests.job_file_reference` writes it."""

from __future__ import annotations

import types
import typing
from enum import Enum
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from coverage_job import config

PATH = Path(__file__).resolve().parents[1] / "docs" / "job-file.md"
HEAD = """\
# The job file

A job is one YAML file. Unknown keys are errors. Relative input paths are relative to the job file;
`output` and `store` are relative to the current directory. `--set key=value` overrides any key, with
dots (`coverage.minimum=10`) and a corpus' name or position (`corpora.sft.epochs=3`).

This page is made from the models in `coverage_job/config.py`: `make docs`.

    tokenizer: path/to/tokenizer          # a folder, tokenizer.json, tekken.json, *.model
    chat_template: auto
    corpora:
      - {name: web, stage: pretraining, path: "s3://bucket/web/*.parquet", language_field: lang}
      - {name: sft, stage: posttraining, path: "sft/**/*.jsonl.zst", epochs: 2.0}
    coverage: {measure: supervised_occurrences, critical: 5, minimum: 20}
    checks:
      - {metric: flagged_rate, where: {language: ja}, max: 0.2}
      - {metric: flagged, change: relative, max: 0.1}
      - {metric: mask_audit, audit: without_target, max: 0}
"""
SECTIONS: list[tuple[str, type[BaseModel]]] = [
    ("The job", config.Job),
    ("`tokenizer`, where it is a bare rank file", config.RankFile),
    ("`corpora`", config.Corpus),
    ("`coverage`", config.CoverageOptions),
    ("`coverage.exempt` and `remedies.exclude`", config.Exempt),
    ("`remedies`", config.RemedyOptions),
    ("`labels`", config.LabelOptions),
    ("`checks`", config.Check),
    ("`drift`", config.DriftOptions),
    ("`engine`", config.EngineOptions),
]


def _type(annotation: Any) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _type(arguments[0])
    if origin is typing.Literal:
        return ", ".join(f"`{a}`" for a in arguments)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(_type(a) for a in arguments if a is not type(None))
    if origin is list:
        return f"list of {_type(arguments[0])}"
    if origin is dict:
        return f"mapping of {_type(arguments[0])} to {_type(arguments[1])}"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return ", ".join(f"`{m.value}`" for m in annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "keys below"
    return {str: "text", int: "whole number", float: "number", bool: "yes or no"}[annotation]


def _default(field: Any) -> str:
    if field.default_factory is not None:
        return ""
    if field.default is PydanticUndefined:
        return "needed"
    if field.default is None:
        return ""
    if isinstance(field.default, bool):
        return str(field.default).lower()
    if isinstance(field.default, int) and field.default >= 1 << 20 and field.default % (1 << 20) == 0:
        return f"{field.default >> 20}MiB"
    return str(field.default)


def reference() -> str:
    parts = [HEAD]
    for title, model in SECTIONS:
        parts.append(f"\n## {title}\n\n{(model.__doc__ or '').strip()}\n")
        parts.append("\n| key | values | default | meaning |\n| --- | --- | --- | --- |\n")
        for name, field in model.model_fields.items():
            parts.append(
                f"| `{name}` | {_type(field.annotation)} | {_default(field)} | {field.description} |\n"
            )
    return "".join(parts)


if __name__ == "__main__":
    PATH.write_text(reference(), encoding="utf-8")
