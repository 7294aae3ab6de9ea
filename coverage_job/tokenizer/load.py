"""One `tokenizers.Tokenizer` from any of the tokenizer files that models ship.

What travels between processes is a `TokenizerSpec`; the tokenizer itself is loaded where it is used,
once per process.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field
from functools import lru_cache

import fsspec
from tokenizers import Tokenizer

from coverage_job.config import RankFile
from coverage_job.errors import TokenizerError


@dataclass(frozen=True)
class TokenizerSpec:
    """What a process needs to load the tokenizer, and what is known of it without loading.

    path: the file that was read (not the folder), local or an fsspec URI.
    format: ``tokenizer.json``, ``tiktoken``, ``tekken`` or ``sentencepiece``.
    sha256: of that file's bytes (with pattern, normalizer and special tokens for a rank file).
    n_base: entries of the model's own vocabulary. n_with_added: entries with added tokens.
    rows: highest id + 1.
    """

    path: str
    format: str
    sha256: str
    n_base: int
    n_with_added: int
    rows: int
    pattern: str | None = None
    normalizer: str | None = None
    special_tokens: tuple[tuple[str, int], ...] = field(default=())

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> TokenizerSpec:
        data = json.loads(text)
        data["special_tokens"] = tuple((t, i) for t, i in data["special_tokens"])
        return cls(**data)


def _find(path: str) -> str:
    fs, plain = fsspec.url_to_fs(path)
    if not fs.exists(plain):
        raise TokenizerError(f"tokenizer {path}: no such file or folder")
    if fs.isdir(plain):
        for name in ("tokenizer.json", "tekken.json", "tokenizer.model"):
            if fs.exists(f"{plain}/{name}"):
                return f"{path.rstrip('/')}/{name}"
        raise TokenizerError(
            f"tokenizer {path}: the folder has no tokenizer.json, tekken.json or tokenizer.model; "
            "name the file"
        )
    return path


def describe(source: str | RankFile) -> TokenizerSpec:
    """The spec of a tokenizer file, folder or rank file. Raises TokenizerError with the way out."""
    path = _find(source.path if isinstance(source, RankFile) else source)
    with fsspec.open(path, "rb") as file:
        data: bytes = file.read()
    tokenizer = _build(path, data)
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    return TokenizerSpec(
        path=path,
        format="tokenizer.json",
        sha256=hashlib.sha256(data).hexdigest(),
        n_base=tokenizer.get_vocab_size(with_added_tokens=False),
        n_with_added=len(vocab),
        rows=max(vocab.values()) + 1,
    )


def _build(path: str, data: bytes) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_str(data.decode("utf-8"))
    except Exception as error:  # tokenizers raises bare Exception
        raise TokenizerError(f"tokenizer {path}: not a tokenizer file ({error})") from None
    # Files may carry the padding and truncation of the task they were last used for.
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


@lru_cache(maxsize=4)
def load(spec: TokenizerSpec) -> Tokenizer:
    """The tokenizer of a spec, once per process, with its thread pool off.

    Raises TokenizerError where the file is not the one that was described.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with fsspec.open(spec.path, "rb") as file:
        data: bytes = file.read()
    if hashlib.sha256(data).hexdigest() != spec.sha256:
        raise TokenizerError(f"tokenizer {spec.path}: the file changed since the run began; run again")
    return _build(spec.path, data)
