"""A corpus small enough to count by hand, and its tokenizer of whole words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers

WORDS = ["alpha", "beta", "gamma", "delta", "omega", "spam", "rare", "[UNK]"]


def write_tokenizer(path: Path) -> Path:
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<end>"])  # id 8
    tokenizer.save(str(path))
    return path


def write_lines(path: Path, records: list[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [r if isinstance(r, str) else json.dumps(r, ensure_ascii=False) for r in records]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def write_corpora(folder: Path) -> dict[str, Any]:
    """Writes the corpora and gives the job that counts them.

    web (pre-training, mixed in half a time), by language and source:
        en/news:  "alpha beta alpha"        en/blog: "alpha gamma"      ja/news: "delta"
    chat (post-training, 2 epochs):
        user "alpha" -> "beta beta gamma";  user "gamma" -> "beta";  and one line that is no JSON
    tasks (post-training, 1 epoch), alpaca:
        instruction "alpha", input "beta", output "gamma spam";  and an empty answer to "omega"
    """
    write_tokenizer(folder / "tokenizer.json")
    write_lines(
        folder / "web.jsonl",
        [
            {"text": "alpha beta alpha", "lang": "en", "source": "news"},
            {"text": "alpha gamma", "lang": "en", "source": "blog"},
            {"text": "delta", "lang": "ja", "source": "news"},
        ],
    )
    write_lines(
        folder / "chat.jsonl",
        [
            {"messages": [user("alpha"), assistant("beta beta gamma")]},
            '{"messages": [',
            {"messages": [user("gamma"), assistant("beta")]},
        ],
    )
    write_lines(
        folder / "tasks.jsonl",
        [
            {"instruction": "alpha", "input": "beta", "output": "gamma spam"},
            {"instruction": "omega", "input": "", "output": ""},
        ],
    )
    return {
        "tokenizer": "tokenizer.json",
        "chat_template": "none",
        "model_vocab_size": 12,
        "max_bad_fraction": 0.5,
        "corpora": [
            {
                "name": "web",
                "stage": "pretraining",
                "path": "web.jsonl",
                "language_field": "lang",
                "group_by": "source",
                "mixed_in": 0.5,
            },
            {"name": "chat", "stage": "posttraining", "path": "chat.jsonl", "epochs": 2.0},
            {"name": "tasks", "stage": "posttraining", "path": "tasks.jsonl", "shape": "alpaca"},
        ],
        "coverage": {"critical": 2, "minimum": 3, "exempt": {"token_id": [5]}},
        "engine": {"workers": 1},
    }
