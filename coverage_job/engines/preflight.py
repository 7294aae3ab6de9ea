"""Do the executors fit the driver? Each is asked for its facts, and the facts are compared: no Spark in here.

Whatever differs would otherwise show late: as counts that another tokenizer made, as a file that is missing
on one node, or as a stack trace from deep inside a worker.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Versions that decide counts have to be equal; of the others, what one writes the other must read.
DECIDING = ("coverage_job", "tokenizers")
OTHERS = ("numba", "numpy", "polars", "pyarrow")
_PACK = "run both from one build (deploy/pack.sh and deploy/submit.sh do)"


@dataclass(frozen=True)
class Question:
    """What is asked. files: (what it is, path, whether all of it is compared). store, token: a place to write
    to, which holds a file of this name and content."""

    files: tuple[tuple[str, str, bool], ...]
    store: str | None = None
    token: str = ""


def gather(
    files: Sequence[tuple[str, str, bool]], store: str | None, token: str, packages: Sequence[str]
) -> dict[str, Any]:
    """The facts of this process: host, Python, packages, the build of this one, files and the store.

    Sent to executors as code, since coverage_job may be missing there: it refers to the standard library
    alone. A value that could not be had is a text that begins with ``!``.
    """
    import hashlib
    import importlib
    import os
    import socket
    import sys

    def attempt(what: Any) -> Any:
        try:
            return what()
        except Exception as error:
            text = " ".join(str(error).split())[:200]
            return f"!{type(error).__name__}: {text}"

    def build() -> str:
        import coverage_job

        folder = os.path.dirname(coverage_job.__file__)
        digest = hashlib.sha256()
        for where, inner, names in os.walk(folder):
            inner.sort()
            for name in sorted(names):
                if name.endswith((".py", ".yaml")):
                    with open(os.path.join(where, name), "rb") as file:
                        digest.update(name.encode() + file.read())
        return digest.hexdigest()

    def look(path: str, whole: bool) -> list[Any]:
        import fsspec

        fs, plain = fsspec.url_to_fs(path)
        data = fs.cat_file(plain, start=None, end=None if whole else 65536)
        return [fs.info(plain)["size"], hashlib.sha256(data).hexdigest()]

    def visit(folder: str) -> str:
        import fsspec

        fs, plain = fsspec.url_to_fs(folder)
        if fs.cat_file(f"{plain}/{token}") != token.encode():
            raise OSError("another file stands in its place")
        fs.pipe_file(f"{plain}/{token}-{socket.gethostname()}-{os.getpid()}", b"")
        return ""

    return {
        "host": socket.gethostname(),
        "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "packages": {
            name: attempt(lambda name=name: str(importlib.import_module(name).__version__))
            for name in packages
        },
        "build": attempt(build),
        "files": {
            path: attempt(lambda path=path, whole=whole: look(path, whole)) for _, path, whole in files
        },
        "store": attempt(lambda: visit(store)) if store is not None else "",
    }


def problems(
    question: Question, driver: Mapping[str, Any], executors: Iterable[Mapping[str, Any]]
) -> list[str]:
    """One line per way in which executors do not fit the driver, naming the hosts."""
    hosts: dict[str, set[str]] = {}
    everyone: set[str] = set()
    for facts in executors:
        everyone.add(facts["host"])
        for text in _differences(question, driver, facts):
            hosts.setdefault(text, set()).add(facts["host"])
    return [f"{text} [{_shown(found, everyone)}]" for text, found in sorted(hosts.items())]


def _differences(question: Question, driver: Mapping[str, Any], facts: Mapping[str, Any]) -> Iterable[str]:
    if facts["python"] != driver["python"]:
        yield f"executors run Python {facts['python']}, the driver {driver['python']}: {_PACK}"
    for name in (*DECIDING, *OTHERS):
        there, here = facts["packages"][name], driver["packages"][name]
        if there.startswith("!"):
            yield f"executors cannot import {name} ({there[1:]}): {_PACK}"
        elif (there if name in DECIDING else _major(there)) != (here if name in DECIDING else _major(here)):
            yield f"executors have {name} {there}, the driver {here}: {_PACK}"
    name = DECIDING[0]
    if facts["build"] != driver["build"] and facts["packages"][name] == driver["packages"][name]:
        yield f"executors have another build of {name} {driver['packages'][name]} than the driver: {_PACK}"
    for what, path, _ in question.files:
        there, here = facts["files"][path], driver["files"][path]
        if isinstance(there, str):
            yield (
                f"{what}: executors cannot open {path} ({there[1:]}): put it where every node reaches it, "
                "such as an object store or a shared file system"
            )
        elif isinstance(here, list) and there != here:
            yield f"{what}: {path} is another file on executors than on the driver: put it on shared storage"
    if facts["store"].startswith("!"):
        yield (
            f"store: executors cannot use {question.store} as the driver does ({facts['store'][1:]}): "
            "put it on an object store or a shared file system, and allow writing"
        )


def _major(version: str) -> str:
    return version.split(".")[0]


def _shown(hosts: set[str], everyone: set[str]) -> str:
    names = ", ".join(sorted(hosts)[:3]) + (", ..." if len(hosts) > 3 else "")
    return f"{len(hosts)} of {len(everyone)} hosts: {names}"


def explain_start(text: str) -> str | None:
    """Why workers did not even start, from the text of Spark's error; None where it says nothing of that."""
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if own := re.search(r"coverage_job: \S+ has no Python [^\n]*", text):
        return own[0].removeprefix("coverage_job: ")
    if "PYTHON_VERSION_MISMATCH" in text or "different version" in text:
        there = re.search(r"different version[:\s]+\(?'?(\d+)[.,]\s*'?(\d+)", text)
        version = f" {there[1]}.{there[2]}" if there else " of another minor version"
        return f"executors run Python{version}, the driver {here}: {_PACK}"
    if missing := re.search(r'Cannot run program "([^"]+)"', text):
        return (
            f"executors have no program {missing[1]} for Python (a packed link may lead nowhere there): "
            f"pack with deploy/pack.sh, or set spark.pyspark.python to a Python {here} of the nodes"
        )
    if module := re.search(r"No module named '?([\w.]+)", text):
        return f"executors cannot import {module[1]}: {_PACK}"
    return None
