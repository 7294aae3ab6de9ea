"""Rendering dialogues and finding what bears loss, against transformers' own rendering and encoding.

    python -m tests.benchmarks.bench_rendering [TOKENIZER_DIR FILE] [--records 1500]

TOKENIZER_DIR has tokenizer.json and tokenizer_config.json with a chat template; FILE is a corpus of
dialogues that `shape: auto` reads (JSON or JSONL). One process, one thread; each figure is the best of
three passes over the same records, in CPU time. Prints microseconds a record, and how many times what ours
takes transformers' `apply_chat_template` with its mask takes, alone and with the fast kernel's encoding.
Exits 1 where rendering and encoding by the fast kernel is less than 5 times as fast.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from coverage_job.config import parse_job
from coverage_job.corpus.batches import TextBuilder
from coverage_job.corpus.chat import Rendered, Renderer, token_texts
from coverage_job.corpus.documents import TextBatch
from coverage_job.corpus.plan import list_files
from coverage_job.corpus.shapes import Dialogue, to_dialogue
from coverage_job.corpus.source import resolve
from coverage_job.corpus.template import load_template
from coverage_job.counting.cuts import derive
from coverage_job.counting.kernel import FastKernel
from coverage_job.counting.reference import ReferenceKernel
from coverage_job.tokenizer.load import describe, load
from tests.conftest import SHARED

FACTOR = 5.0


def read(path: Path, limit: int) -> list[Dialogue]:
    text = path.read_text(encoding="utf-8")
    records = json.loads(text) if path.suffix == ".json" else map(json.loads, filter(None, text.split("\n")))
    corpus = {"name": "bench", "stage": "posttraining", "path": str(path.absolute())}
    job = parse_job({"tokenizer": "x", "corpora": [corpus]}, base=Path("/"))
    source = resolve(job.corpora[0], job, list_files(job.corpora[0]))
    return [to_dialogue(record, source) for record in list(records)[:limit]]


def best(run: Callable[[], Any], records: int, passes: int = 3) -> float:
    """Microseconds a record."""
    times = []
    for _ in range(passes):
        gc.collect()
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times) / records * 1e6


def batch_of(rendered: list[Rendered]) -> list[TextBatch]:
    builder = TextBuilder(spanned=True)
    full = [batch for one in rendered for batch in builder.add([one.text], one.spans, 0)]
    return [*full, builder.take()]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("tokenizer", nargs="?", default=str(SHARED / "tokenizers" / "qwen3"))
    parser.add_argument(
        "file", type=Path, nargs="?", default=SHARED / "sft" / "llamafactory" / "alpaca_en_demo.json"
    )
    parser.add_argument("--records", type=int, default=1500)
    options = parser.parse_args()
    if not options.file.exists():
        print(f"left out: {options.file} is not there; name a tokenizer's folder and a file of dialogues")
        return 0
    # Read when the tokenizers' thread pool starts.
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}

    import transformers

    transformers.logging.set_verbosity_error()
    dialogues = read(options.file, options.records)
    count = len(dialogues)
    theirs = transformers.AutoTokenizer.from_pretrained(options.tokenizer)
    tokenizer = load(describe(options.tokenizer))
    template = load_template(options.tokenizer)
    if template is None:
        sys.exit(f"{options.tokenizer} has no chat template")
    special, added = token_texts(tokenizer.get_added_tokens_decoder())
    renderer = Renderer(template, special_tokens=special, added_tokens=added, now=datetime.now())
    kernel, reference = FastKernel(tokenizer, derive(tokenizer)), ReferenceKernel(tokenizer)

    def apply() -> None:
        for d in dialogues:
            theirs.apply_chat_template(
                d.messages, tools=d.tools, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
            )

    def render() -> list[Rendered]:
        return [renderer.render(d.messages, d.tools) for d in dialogues]

    batches = batch_of(render())
    size = sum(len(b.text) for b in batches) / count
    theirs_us = best(apply, count)
    render_us = best(render, count)
    rows = {
        "transformers: render, encode, mask": theirs_us,
        "ours: render and spans": render_us,
        "ours: render, spans and the fast kernel": best(
            lambda: [kernel.encode(b) for b in batch_of(render())], count
        ),
        "ours: render, spans and the reference": best(
            lambda: [reference.encode(b) for b in batch_of(render())], count
        ),
    }
    print(f"{count} dialogues of {size:.0f} bytes, rendered by {template.source}")
    for name, value in rows.items():
        print(f"{name:42} {value:8.1f} us a record {theirs_us / value:6.1f} x")
    return 0 if theirs_us / rows["ours: render, spans and the fast kernel"] >= FACTOR else 1


if __name__ == "__main__":
    sys.exit(main())
