"""Imports point down the floors of docs/architecture.md, and heavy packages stay where they belong."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "coverage_job"

# From the top. Rooms of one floor may import each other unless BARRED says no.
FLOORS = [
    {"cli", "__main__", "help"},
    {"pipeline", "demo"},
    {"report"},
    {"probes", "remedies", "drift"},
    {"coverage", "engines", "checkpoint"},
    {"counting"},
    {"corpus", "checks"},
    {"tokenizer", "config", "storage", "progress", "cache"},
    {"schemas", "errors"},
]
BARRED = [{"probes", "remedies", "drift"}, {"engines", "checkpoint"}]
HOMES = {
    "pyspark": {"engines/spark.py"},
    "torch": {"checkpoint/", "drift/", "remedies/protect.py", "probes/generate.py"},
}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: Path) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def floor(name: str) -> int:
    return next(i for i, rooms in enumerate(FLOORS) if name in rooms)


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    here = room(path)
    if here == "__init__":
        return
    for name in imported(path):
        parts = name.split(".")
        if parts[0] != "coverage_job" or len(parts) < 2 or parts[1] == "__version__":
            continue
        there = parts[1]
        assert floor(there) >= floor(here), f"{path} imports {name}, which is on a higher floor"
        if there != here:
            assert not any({here, there} <= barred for barred in BARRED), f"{path} imports {name}"


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_heavy_packages_stay_home(path: Path) -> None:
    relative = path.relative_to(PACKAGE).as_posix()
    for name in imported(path):
        homes = HOMES.get(name.split(".")[0])
        assert homes is None or relative.startswith(tuple(homes)), f"{relative} imports {name}"


def test_importing_the_package_imports_neither_spark_nor_torch() -> None:
    code = "import coverage_job, sys; print(sorted({'pyspark', 'torch', 'transformers'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_no_module_is_named_like_a_standard_one() -> None:
    names = {path.stem for path in modules()} - {"__init__", "__main__"}
    assert not names & sys.stdlib_module_names
