"""A run directory made up for the page's tests: real schemas, statuses and actions, invented counts."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from coverage_job.config import CoverageOptions, RemedyOptions
from coverage_job.corpus.audit import MaskAudit, findings
from coverage_job.coverage import Weight, conform, coverage_table, join_counts, judge, summarise
from coverage_job.remedies.manifest import actions, manifest
from coverage_job.schemas import BAD_RECORDS, HISTOGRAM, VOCABULARY, Stage
from coverage_job.storage import RunWriter

# Tokens that would act or hide, were they not shown with care.
HOSTILE = [
    "<script>window.hacked=1</script>",
    "</script><img src=x onerror=window.hacked=1>",
    "<!--",
    "\u202eevil\u202c",
    "\u200b\u200d\ufeff",
    "=cmd|' /C calc'!A0",
    "+1+1",
    "@SUM(A1)",
    "\t=1",
    '"quoted",',
    "\u0301\u0302x",
    "line\u2028break\r\n",
    "javascript:alert(1)",
    " " * 40,
    "&amp;<b>",
    "\x00\x1b[31m",
]
_SCRIPTS = {
    "en": ("Latin", "abcdefghijklmnopqrstuvwxyz"),
    "ja": ("Hiragana", "あいうえおかきくけこさしすせそたちつてとなにぬねの"),
    "zh": ("Han", "的一是在不了有和人这中大为上个国我以要他时来用们"),
    "ko": ("Hangul", "가나다라마바사아자차카타파하고노도로모보소"),
    "ru": ("Cyrillic", "абвгдежзийклмнопрстуфхцчшщъыьэюя"),
    "ar": ("Arabic", "ابتثجحخدذرزسشصضطظعغفقكلمنهوي"),
}
_CATEGORIES = ("word", "word_piece", "punctuation", "latex", "code_identifier", "html")


def vocabulary(rows: int, rng: np.random.Generator) -> pa.Table:
    """Invented words of six scripts, the hostile tokens first, two partial characters and two unused rows."""
    languages = rng.choice(list(_SCRIPTS), rows, p=(0.4, 0.15, 0.2, 0.1, 0.1, 0.05)).tolist()
    lengths = rng.integers(2, 7, rows).tolist()
    letters = rng.integers(0, 1 << 30, (rows, 7)).tolist()
    texts: list[bytes] = []
    for i in range(rows):
        alphabet = _SCRIPTS[languages[i]][1]
        word = "".join(alphabet[k % len(alphabet)] for k in letters[i][: lengths[i]])
        texts.append(((" " if i % 3 == 0 else "") + word).encode())
    texts[: len(HOSTILE)] = [t.encode() for t in HOSTILE]
    texts[len(HOSTILE) : len(HOSTILE) + 2] = [b"\xe5\x98", b"\xf0\x9f"]
    partial = {len(HOSTILE), len(HOSTILE) + 1}
    unused = {rows - 1, rows - 2}
    frame = pl.DataFrame(
        {
            "token_id": range(rows),
            "token": [f"<0x{t.hex().upper()}>" if i in partial else t.decode() for i, t in enumerate(texts)],
            "token_bytes": texts,
            "kind": ["unused" if i in unused else "base" for i in range(rows)],
            "decodable": ["partial" if i in partial else "utf8" for i in range(rows)],
            "round_trip": [i not in partial for i in range(rows)],
            "reachability": [
                "unused" if i in unused else "contextual" if i in partial or i % 9 == 0 else "direct"
                for i in range(rows)
            ],
            "example": [
                "context of 嘉祺" if i in partial or i % 9 == 0 else t.decode() for i, t in enumerate(texts)
            ],
            "script": [_SCRIPTS[x][0] for x in languages],
            "language": languages,
            "language_rule": ["script"] * rows,
            "category": [_CATEGORIES[i % 7 % 6] for i in range(rows)],
            "category_rule": ["letters"] * rows,
        }
    )
    return conform(frame, VOCABULARY)


def histogram(rows: int, rng: np.random.Generator) -> pa.Table:
    """Zipf-like counts: pre-training in several languages and groups, post-training narrow."""
    parts = []
    rank = rng.permutation(rows) + 1.0
    corpora = [("web", "pretraining", g, 4e7) for g in ("news", "wiki", "", "<b>group</b>")]
    corpora += [
        ("code", "pretraining", "", 1e7),
        ("sft", "posttraining", "", 2e5),
        ("chat", "posttraining", "", 4e4),
    ]
    for corpus, stage, group, size in corpora:
        expected = size / np.log(rows) / rank ** (1.0 if stage == "pretraining" else 1.25)
        counts = rng.poisson(expected * rng.lognormal(0, 1, rows))
        counts[-2:] = 0
        ids = np.flatnonzero(counts)
        occurrences = counts[ids]
        supervised = occurrences if stage == "pretraining" else rng.binomial(occurrences, 0.7)
        parts.append(
            pl.DataFrame(
                {
                    "token_id": ids,
                    "corpus": [corpus] * len(ids),
                    "stage": [stage] * len(ids),
                    "language": ["" if corpus == "code" else "en" if i % 2 else "ja" for i in ids.tolist()],
                    "group": [group] * len(ids),
                    "occurrences": occurrences,
                    "documents": np.ceil(occurrences / 2),
                    "supervised_occurrences": supervised,
                    "supervised_documents": np.ceil(supervised / 2),
                }
            )
        )
    return conform(pl.concat(parts), HISTOGRAM)


def drift_table(rows: int, supervised: np.ndarray, rng: np.random.Generator) -> pa.Table:
    """Cosines that fall where there are few targets; neighbours of the lowest."""
    cosine = 1 - rng.beta(1, 30, rows) - (supervised < 5) * rng.beta(1, 8, rows)
    drifted = cosine < np.quantile(cosine, 0.05)
    neighbours = rng.integers(0, rows, (rows, 10))
    return pa.table(
        {
            "token_id": pa.array(range(rows), pa.int32()),
            "lm_head_cosine": cosine,
            "lm_head_neighbours_before": [
                n.tolist() if d else None for n, d in zip(neighbours, drifted, strict=True)
            ],
            "lm_head_neighbours_after": [
                n[::-1].tolist() if d else None for n, d in zip(neighbours, drifted, strict=True)
            ],
        }
    )


def _corpus(name: str, stage: str, table: pl.DataFrame) -> dict[str, Any]:
    own = table.filter(pl.col("corpus") == name)
    return {
        "name": name,
        "stage": stage,
        "files": 3,
        "files_counted": 3,
        "files_reused": 0,
        "bytes": 123_456_789,
        "records": 10_002,
        "documents": 10_000,
        "bad_records": 2,
        "tokens": int(own["occurrences"].sum()),
        "supervised_tokens": int(own["supervised_occurrences"].sum()),
        "empty_documents": 1,
        "seconds": 1.5,
        **(_masks() if stage == "posttraining" else {}),
    }


def _masks() -> dict[str, Any]:
    audit = MaskAudit(
        records=10_000, failed=2, without_target=310, tokens=90_000, supervised_tokens=40_000, seam_tokens=12
    )
    audit.failures = {"<b>no</b> role \u202e": 2}
    audit.end_of_turn = {"<|im_end|>": [900, 0]}
    return {"mask_audit": audit.to_dict(), "mask_findings": [asdict(f) for f in findings(audit)]}


HISTORY = [
    {
        "run": f"2026050{d}T020000Z-00000{d}",
        "time": f"2026-05-0{d}T02:00:00Z",
        "flagged": f,
        "critical": c,
        "absent": a,
    }
    for d, f, c, a in ((1, 900, 200, 500), (2, 860, 190, 480), (3, 910, 230, 470), (4, 700, 150, 390))
]


def write_run(path: Path, rows: int = 1500, *, drift: bool = True, seed: int = 1) -> Path:
    """A whole run directory without its page."""
    rng = np.random.default_rng(seed)
    words = vocabulary(rows, np.random.default_rng(0))
    counts = histogram(rows, rng)
    options = CoverageOptions()
    weights = [
        Weight("web", Stage.PRETRAINING, 0),
        Weight("code", Stage.PRETRAINING, 0),
        Weight("sft", Stage.POSTTRAINING, 2),
        Weight("chat", Stage.POSTTRAINING, 1),
    ]
    judged = judge(join_counts(words, counts, weights), options, set())
    action = actions(judged, RemedyOptions())
    coverage = coverage_table(judged, action)
    writer = RunWriter.create("", str(path))
    if drift:
        supervised = coverage["posttraining_supervised_occurrences"].to_numpy()
        moved = drift_table(rows, supervised, rng)
        place = coverage.schema.get_field_index("lm_head_cosine")
        coverage = coverage.set_column(place, "lm_head_cosine", moved["lm_head_cosine"])
        writer.write_table("drift.parquet", moved)
    writer.write_table("coverage.parquet", coverage)
    writer.write_table("histogram.parquet", counts)
    writer.write_table("manifest.parquet", manifest(judged, action, options))
    writer.write_table("summary.parquet", summarise(coverage, counts))
    writer.write_json(
        "checks.json",
        [
            {
                "name": "flagged_rate",
                "value": 0.61,
                "threshold": "max 0.5",
                "verdict": "fail",
                "reason": "0.61 is above 0.5",
            },
            {
                "name": "bad_fraction",
                "value": 0.0002,
                "threshold": "max 0.01",
                "verdict": "pass",
                "reason": "",
            },
            {
                "name": "absent language=ja",
                "value": None,
                "threshold": "warn_max 9",
                "verdict": "warn",
                "reason": "<i>10</i> is above 9",
            },
        ],
    )
    bad = pa.table(
        {
            "corpus": ["web", "sft"],
            "file": ["s3://bucket/<b>a</b>.jsonl", "sft/\u202ex.jsonl"],
            "position": [17, 3],
            "reason": ["not JSON", "no field `text`"],
            "first_bytes": [b'{"text": "<script>\xff', b"\x00\x01"],
        },
        schema=BAD_RECORDS,
    )
    writer.write_table("bad_records.parquet", bad)
    frame = pl.DataFrame(counts)
    stages = {"web": "pretraining", "code": "pretraining", "sft": "posttraining", "chat": "posttraining"}
    writer.finish(
        {
            "started": "2026-05-05T02:00:00+00:00",
            "job": {"coverage": options.model_dump(mode="json")},
            "tokenizer": {"sha256": "0" * 64, "n_base": rows - 2, "n_with_added": rows - 2, "rows": rows},
            "corpora": [_corpus(name, stage, frame) for name, stage in stages.items()],
            "audit": {"documents": 128, "differing": 0},
        }
    )
    return path
