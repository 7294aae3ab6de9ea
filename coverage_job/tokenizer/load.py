"""One `tokenizers.Tokenizer` from any of the tokenizer files that models ship.

What travels between processes is a `TokenizerSpec`; the tokenizer itself is loaded where it is used,
once per process.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field

import orjson
from tokenizers import Tokenizer

from coverage_job.config import MAX_ROWS, RankFile
from coverage_job.errors import TokenizerError
from coverage_job.storage import kind_of, list_folder, open_input
from coverage_job.tokenizer import ranks, sentencepiece_model


@dataclass(frozen=True)
class TokenizerSpec:
    """What a process needs to load the tokenizer, and what is known of it without loading.

    path: the file that was read (not the folder), local or an fsspec URI.
    format: ``tokenizer.json``, ``tiktoken``, ``tekken`` or ``sentencepiece``.
    sha256: of that file's bytes (with pattern, normalizer and special tokens for a rank file).
    n_base: entries of the model's own vocabulary. n_with_added: entries with added tokens.
    rows: highest id + 1.
    pattern, normalizer, special_tokens: of a rank file, from the job; unset for files that hold their own.
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
    """The file that `path` means: itself, or the tokenizer file of the folder."""
    try:
        kind = kind_of(path)
        if kind == "file":
            return path
        if kind is None:
            raise TokenizerError(f"tokenizer {path}: no such file or folder")
        names = list_folder(path)
    except (OSError, ValueError, ImportError) as error:
        raise TokenizerError(f"tokenizer {path}: cannot be opened ({error})") from None
    folder = path.rstrip("/")
    for name in ("tokenizer.json", "tekken.json", "tokenizer.model"):
        if name in names:
            return f"{folder}/{name}"
    rank_files = [name for name in names if name.endswith(".tiktoken")]
    if rank_files:
        raise TokenizerError(_needs_pattern(f"{folder}/{rank_files[0]}"))
    raise TokenizerError(
        f"tokenizer {path}: the folder has no tokenizer.json, tekken.json or tokenizer.model; name the file"
    )


def _needs_pattern(path: str) -> str:
    return (
        f"tokenizer {path}: a rank file does not say how text is split; write "
        f'{{path: {path}, pattern: "...", normalizer: NFC, special_tokens: {{"<|endoftext|>": 100}}}} '
        "with the model's own values (normalizer and special_tokens where it has them)"
    )


def _read(path: str) -> bytes:
    try:
        with open_input(path) as file:
            data: bytes = file.read()
    except (OSError, ValueError, ImportError) as error:
        raise TokenizerError(f"tokenizer {path}: cannot be read ({error})") from None
    return data


def _format(path: str, data: bytes, rank_file: bool) -> str:
    """The format of a file, by what it is rather than what it is called."""
    if rank_file:
        return "tiktoken"
    start = data[:4096].lstrip()
    if start.startswith(b"{"):
        # Near the beginning of nearly every tokenizer.json; parsing one twice takes a second.
        if b'"added_tokens"' in start:
            return "tokenizer.json"
        try:
            tree = orjson.loads(data)
        except ValueError as error:
            raise TokenizerError(f"tokenizer {path}: not valid JSON ({error})") from None
        return "tekken" if "config" in tree and isinstance(tree.get("vocab"), list) else "tokenizer.json"
    if path.endswith(".tiktoken"):
        raise TokenizerError(_needs_pattern(path))
    return "sentencepiece"


def _sha256(data: bytes, rank_file: RankFile | None) -> str:
    digest = hashlib.sha256(data)
    if rank_file is not None:
        special = sorted(rank_file.special_tokens.items())
        digest.update(json.dumps([rank_file.pattern, rank_file.normalizer, special]).encode())
    return digest.hexdigest()


def describe(source: str | RankFile) -> TokenizerSpec:
    """The spec of a tokenizer file, folder or rank file. Raises TokenizerError with the way out."""
    rank_file = source if isinstance(source, RankFile) else None
    path = rank_file.path if rank_file is not None else _find(str(source))
    data = _read(path)
    format_ = _format(path, data, rank_file is not None)
    tokenizer = _build(path, format_, data, rank_file)
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    if (rows := max(vocab.values()) + 1) > MAX_ROWS:
        raise TokenizerError(
            f"tokenizer {path}: its highest id is {rows - 1:,}; at most {MAX_ROWS:,} rows are possible"
        )
    n_base = tokenizer.get_vocab_size(with_added_tokens=False)
    if format_ in ("tiktoken", "tekken"):
        # Here the special tokens stand in the model's vocabulary only so that they keep their ids.
        n_base -= len(tokenizer.get_added_tokens_decoder())
    spec = TokenizerSpec(
        path=path,
        format=format_,
        sha256=_sha256(data, rank_file),
        n_base=n_base,
        n_with_added=len(vocab),
        rows=rows,
        pattern=rank_file.pattern if rank_file else None,
        normalizer=rank_file.normalizer if rank_file else None,
        special_tokens=tuple(sorted(rank_file.special_tokens.items())) if rank_file else (),
    )
    _keep(spec, tokenizer)
    return spec


def _build(path: str, format_: str, data: bytes, rank_file: RankFile | None) -> Tokenizer:
    # Its thread pool does not survive a fork, and tasks are parallel already.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if rank_file is not None:
        special = {text: (i, True) for text, i in rank_file.special_tokens.items()}
        model = ranks.RankModel(
            ranks.read_tiktoken(path, data), 0, rank_file.pattern, rank_file.normalizer, special
        )
        return ranks.build(path, model)
    if format_ == "tekken":
        return ranks.build(path, ranks.read_tekken(path, data))
    if format_ == "sentencepiece":
        return sentencepiece_model.build(path, sentencepiece_model.read(path, data))
    try:
        tokenizer = Tokenizer.from_str(data.decode("utf-8"))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # tokenizers raises bare Exception, and where it panics not even that
        raise TokenizerError(f"tokenizer {path}: not a tokenizer file ({error})") from None
    # Files may carry the padding and truncation of the task they were last used for.
    tokenizer.no_padding()
    tokenizer.no_truncation()
    # Without added special tokens a post-processor does one thing: it may trim white space off offsets.
    tokenizer.post_processor = None
    if not tokenizer.get_vocab_size():
        raise TokenizerError(f"tokenizer {path}: its vocabulary is empty")
    return tokenizer


_LOADED: dict[TokenizerSpec, Tokenizer] = {}
_MOST_LOADED = 4  # two tokenizers compared, with room to spare; a large one takes 100 MB
_ENCODED_TOGETHER = 8192  # texts


def encode_all(
    tokenizer: Tokenizer, texts: Sequence[str], name: str = "the tokenizer"
) -> Iterator[list[int]]:
    """The ids of each text, in bulk. Raises TokenizerError, beginning with `name`, where one is refused."""
    for start in range(0, len(texts), _ENCODED_TOGETHER):
        try:
            encodings = tokenizer.encode_batch_fast(
                texts[start : start + _ENCODED_TOGETHER], add_special_tokens=False
            )
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # as in `_build`
            raise TokenizerError(
                f"{name}: cannot encode every text ({error}); its model needs an unknown token"
            ) from None
        for encoding in encodings:
            yield encoding.ids


def _keep(spec: TokenizerSpec, tokenizer: Tokenizer) -> None:
    while len(_LOADED) >= _MOST_LOADED:
        del _LOADED[next(iter(_LOADED))]
    _LOADED[spec] = tokenizer


def load(spec: TokenizerSpec) -> Tokenizer:
    """The tokenizer of a spec, once per process, with its thread pool off.

    Raises TokenizerError where the file is not the one that was described.
    """
    if spec in _LOADED:
        return _LOADED[spec]
    rank_file = None
    if spec.format == "tiktoken":
        rank_file = RankFile.model_validate(
            {
                "path": spec.path,
                "pattern": spec.pattern,
                "normalizer": spec.normalizer,
                "special_tokens": dict(spec.special_tokens),
            }
        )
    data = _read(spec.path)
    if _sha256(data, rank_file) != spec.sha256:
        raise TokenizerError(f"tokenizer {spec.path}: the file changed since the run began; run again")
    tokenizer = _build(spec.path, spec.format, data, rank_file)
    _keep(spec, tokenizer)
    return tokenizer
