"""The verified repeat set against the naive one of the same size: tokens never, or too seldom, a target.

    python -m tests.benchmarks.repeat_against_naive RUN_DIR [MINIMUM]

The naive set puts the same tokens in random order, as often, joined by one separator and not checked.
Both are counted as the run's job counts dialogues. Prints a table and, last, one line of JSON.
"""

from __future__ import annotations

import json
import random
import sys
import time

import numpy as np
import polars as pl

from coverage_job.pipeline.opened import OpenedRun
from coverage_job.remedies.proof import DialogueCounter
from coverage_job.remedies.repeat import RepeatOptions, build, instructions, needs


def naive(asked: dict[int, int], texts: dict[int, str], separator: str, per_dialogue: int) -> list:
    rng = random.Random(0)
    line = instructions()["en"][0]
    made = []
    for at in range(max(asked.values())):
        due = [v for v, times in asked.items() if times > at]
        rng.shuffle(due)
        for start in range(0, len(due), per_dialogue):
            text = separator.join(texts[v] for v in due[start : start + per_dialogue])
            made.append(
                [
                    {"role": "user", "content": line.replace("{text}", text)},
                    {"role": "assistant", "content": text},
                ]
            )
    return made


def main() -> None:
    opened = OpenedRun.open(sys.argv[1])
    coverage = opened.coverage()
    asked = needs(coverage, "flagged", opened.job.coverage.minimum)
    # What the naive set can write at all: tokens that are text.
    held = coverage.filter(
        pl.col("token_id").is_in(list(asked)) & pl.col("decodable").is_in(["utf8", "byte"])
    )
    texts = {
        v: data.decode("utf-8", "replace")
        for v, data in held.select("token_id", "token_bytes").iter_rows()
        if data
    }
    asked = {v: n for v, n in asked.items() if v in texts}
    options = RepeatOptions()
    counter = DialogueCounter(opened.renderer(), opened.kernel(), opened.rows, options.max_length)
    ids, wanted = np.array(list(asked)), np.array(list(asked.values()))
    figures = {}

    def tell(name: str, counts, seconds: float) -> None:
        had = counts.occurrences[ids]
        figures[name] = {
            "never": float((had == 0).mean()),
            "under": float((had < wanted).mean()),
            "supervised": counts.supervised / int(wanted.sum()),
            "tokens": int(counts.tokens.sum()) / int(wanted.sum()),
            "dialogues": len(counts.tokens),
            "seconds": seconds,
        }
        f = figures[name]
        print(
            f"{name:22} never {f['never']:7.2%}  under {f['under']:7.2%}  "
            f"supervised {f['supervised']:.3f} x  all tokens {f['tokens']:.3f} x  "
            f"dialogues {f['dialogues']:,}  {seconds:.0f} s",
            flush=True,
        )

    for name, separator in (("nothing between", ""), ("a space", " "), ("a newline", "\n")):
        start = time.perf_counter()
        made = naive(asked, texts, separator, options.tokens_per_dialogue)
        tell(f"naive, {name}", counter.count(made), time.perf_counter() - start)
    start = time.perf_counter()
    result = build(coverage, asked, opened.tokenizer, counter, options)
    tell("verified", result.counts, time.perf_counter() - start)
    print(json.dumps({"tokens": len(asked), **figures}))


if __name__ == "__main__":
    main()
