"""Text from packages that pip installs, so that the experiment runs anywhere.

Pretraining: translation catalogs (django, sphinx) and dialogues (chatterbot-corpus) in Japanese, Chinese,
Korean and Russian; docstrings and source of Python's standard library for English and code.
Post-training: English dialogues and questions about the standard library, ASCII alone: as narrow as it gets.
"""

from __future__ import annotations

import ast
import gettext
import importlib.util
import random
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import yaml

LANGUAGES = ("ja", "zh", "ko", "ru", "en", "code")
_CATALOGS = {"ja": ("ja",), "zh": ("zh_Hans", "zh_Hant", "zh_CN", "zh_TW"), "ko": ("ko",), "ru": ("ru",)}
_DIALOGUES = {
    "ja": ("japanese",),
    "zh": ("chinese", "traditionalchinese"),
    "ko": ("korean",),
    "ru": ("russian",),
}
# About ten times a small model's context: a long source file shall not outweigh the rest.
_LONGEST = 6000


def _folder(package: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def _catalog_texts(language: str) -> Iterator[str]:
    for package in ("django", "sphinx"):
        root = _folder(package)
        if root is None:
            continue
        for name in _CATALOGS[language]:
            for path in sorted(root.rglob(f"{name}/LC_MESSAGES/*.mo")):
                with path.open("rb") as file:
                    catalog = gettext.GNUTranslations(file)._catalog  # type: ignore[attr-defined]
                # A catalog is a list of short messages: a page of it makes a document.
                messages = [str(text) for key, text in catalog.items() if key]
                for start in range(0, len(messages), 20):
                    yield "\n".join(messages[start : start + 20])


def _dialogues(folders: tuple[str, ...]) -> Iterator[list[str]]:
    root = _folder("chatterbot_corpus")
    if root is None:
        return
    for folder in folders:
        for path in sorted((root / "data" / folder).glob("*.yml")):
            try:
                data = yaml.safe_load(path.read_text(encoding="utf-8"))
            except yaml.YAMLError:
                continue
            for turns in data.get("conversations") or []:
                if isinstance(turns, list) and len(turns) > 1:
                    yield [str(turn) for turn in turns]


def _library() -> list[Path]:
    root = Path(sysconfig.get_paths()["stdlib"])
    return sorted(p for p in root.glob("*.py")) + sorted((root / "email").glob("*.py"))


def _docstrings(path: Path) -> Iterator[tuple[str, str]]:
    """(name, docstring) of a module's functions and classes."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError):
        return
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            text = ast.get_docstring(node)
            if text and len(text) > 40:
                yield f"{path.stem}.{node.name}", text


def pretraining(megabytes: float, seed: int = 0) -> dict[str, list[str]]:
    """Documents by language, at most `megabytes` of each, shuffled."""
    texts: dict[str, list[str]] = {language: list(_catalog_texts(language)) for language in _CATALOGS}
    for language, folders in _DIALOGUES.items():
        turns = ["\n".join(turns) for turns in _dialogues(folders)]
        texts[language] += ["\n".join(turns[start : start + 8]) for start in range(0, len(turns), 8)]
    # Even modules for pretraining, odd ones for SFT, so that the two share a language and no text.
    modules = _library()[::2]
    texts["en"] = [text for path in modules for _, text in _docstrings(path)]
    texts["code"] = [path.read_text(encoding="utf-8", errors="ignore") for path in modules]
    chosen: dict[str, list[str]] = {}
    for language in LANGUAGES:
        documents = [part for text in texts[language] for part in _parts(text)]
        random.Random(seed).shuffle(documents)
        size, kept = 0, []
        for document in documents:
            if size > megabytes * 1e6:
                break
            kept.append(document)
            size += len(document.encode())
        chosen[language] = kept
    return chosen


def _parts(text: str) -> list[str]:
    return [text[start : start + _LONGEST] for start in range(0, len(text), _LONGEST)]


def narrow_dialogues(seed: int = 0) -> list[list[dict[str, str]]]:
    """English conversations as messages, ASCII alone, shuffled."""
    found = []
    for turns in _dialogues(("english",)):
        found.append(
            [
                {"role": "assistant" if number % 2 else "user", "content": turn.strip()}
                for number, turn in enumerate(turns[: len(turns) // 2 * 2])
            ]
        )
    for path in _library()[1::2]:
        for name, text in _docstrings(path):
            question = {"role": "user", "content": f"What is {name} for?"}
            found.append([question, {"role": "assistant", "content": " ".join(text.split())[:600]}])
    found = [turns for turns in found if all(turn["content"].isascii() and turn["content"] for turn in turns)]
    random.Random(seed).shuffle(found)
    return found
