"""Compiles the counting loops where the packages lie, by running a tiny job: for images and archives.

numba keeps machine code beside the source, for the processor it was made on; another kind of processor
compiles again, or set NUMBA_CPU_NAME to one that all nodes have, here and there.
"""

import json
import sys
import tempfile
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from coverage_job.cli import main

SENTENCES = ["A small text, counted once.", "Ein kleiner Text; 12 Wörter?", "小さな文章。", "русский текст"]


def write_job(folder: Path) -> Path:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    lines = [{"text": text} for text in SENTENCES]
    turns = [
        {"messages": [{"role": "user", "content": a}, {"role": "assistant", "content": a}]} for a in SENTENCES
    ]
    for name, records in (("text", lines), ("turns", turns)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    job = {
        "tokenizer": "tokenizer.json",
        "chat_template": "none",
        "output": str(folder / "runs"),
        "corpora": [
            {"name": "text", "stage": "pretraining", "path": "text.jsonl"},
            {"name": "turns", "stage": "posttraining", "path": "turns.jsonl"},
        ],
    }
    path = folder / "job.yaml"
    path.write_text(json.dumps(job))  # JSON is YAML
    return path


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        job = write_job(Path(folder))
        sys.exit(main(["count", str(job), "--engine", "local", "--set", "engine.workers=1", "--quiet"]))
