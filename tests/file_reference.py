"""docs/files.md from the schemas: `python -m tests.file_reference` writes it."""

# A cell of a table is one line.
# ruff: noqa: E501

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from coverage_job import schemas

PATH = Path(__file__).resolve().parents[1] / "docs" / "files.md"
HEAD = """\
# Files

What each command writes. Any Parquet reader opens the tables; each has its format version in the metadata under
`coverage_job.format`, now {version}. The version rises when a column changes its meaning or goes away, not when one
is added. A column may be null only where `null` stands beside its type.

This page is made from `coverage_job/schemas.py`: `make docs`.

Other files:

| file | by | holds |
| --- | --- | --- |
| `run.json` | run, count | the job, the tokenizer, per corpus what was read and the mask audit, seconds per step, and each file's hash |
| `summary.json` | run | `summary.parquet` by label, and per corpus what was counted |
| `checks.json` | run | a list of verdicts: name, value, limits, `pass`, `warn` or `fail`, and why |
| `report.html` | run, report | the page |
| `drift.json` | run, drift | figures of `drift.parquet`: overall, by label and by status |
| `repeat.jsonl` | repeat | one dialogue a line: `messages` of `role` and `content` |
| `dataset_info.json`, `axolotl.yaml` | repeat | the set's entry for LLaMA-Factory and for Axolotl |
| `mix.jsonl` | mix | the rows of `mix.parquet`, one a line |
| `prune_map.parquet` | prune | `old_id`, `token`, `new_id` (null where removed), `reason`, `becomes` (the new ids of a removed token's text) |
| `tokenizer.json` | prune with `--apply` | the pruned tokenizer |
| `protected_ids.npy` | protect | ids (int64) whose rows are to be kept |
| `prompts.jsonl`, `responses.jsonl` | probe, confusion | what was asked, and the answers as they came |
| `probe.json`, `confusion.json` | probe, confusion | rates with intervals |
| `coverage_job_restore.json` | restore | which rows were put back, and from where |
"""

# What columns of one name mean in every table that has them, unless the table says otherwise.
COMMON = {
    "token_id": "The row of the model's matrix.",
    "token": "The token as one readable line: bytes that are not UTF-8 in hex, control characters as pictures.",
    "corpus": "The corpus' name in the job.",
    "stage": "`pretraining` or `posttraining`.",
    "file": "The file's path.",
    "occurrences": "How often the token stands in the corpus, once through.",
    "documents": "Documents that hold it.",
    "supervised_occurrences": "How often it bears loss, once through.",
    "supervised_documents": "Documents in which it bears loss.",
    "group": "The value of the corpus' `group_by` field; empty where none is set.",
    "language": "The token's language, a BCP-47 tag; `zxx` has no language, `und` is undecided.",
    "category": "What it is for, such as `word`, `code_identifier` or `emoji`; from the category rules.",
    "deficit": "What its measure lacks of `minimum`.",
    "action": "What the manifest proposes: "
    + ", ".join(f"`{a.value}`" for a in schemas.Action)
    + ". `repeat_ids`: only by ids (`repeat --ids`).",
}

COVERAGE = {
    "token_bytes": "The bytes it stands for; of a special token its text.",
    "kind": ", ".join(f"`{k.value}`" for k in schemas.Kind) + ".",
    "decodable": "`utf8`: whole characters; `partial`: a part of one; `byte`: a single byte that is none.",
    "round_trip": "Whether its own text encodes to it alone.",
    "reachability": "`direct`: by its own text; `contextual`: within other text; `special`: by the template; "
    "`merge_intermediate`, `unreachable`, `byte_never`: no text was found; `unused`: no token has the row.",
    "example": "A text whose encoding has it.",
    "script": "Its Unicode script.",
    "language_rule": "The rule that gave the language.",
    "category_rule": "The rule that gave the category.",
    "pretraining_occurrences": "How often it stands in the pre-training corpora, once through.",
    "pretraining_documents": "Pre-training documents that hold it.",
    "posttraining_occurrences": "The same, of post-training.",
    "posttraining_documents": "The same, of post-training.",
    "posttraining_supervised_occurrences": "How often it bears loss in post-training, once through (`epochs` apart).",
    "posttraining_supervised_documents": "Post-training documents in which it bears loss.",
    "expected_updates": "Supervised occurrences times `epochs`, plus occurrences times `mixed_in`, over the corpora.",
    "status": ", ".join(f"`{s.value}`" for s in schemas.Status) + ".",
    "deficit": "What its measure lacks of `minimum`; set for exempt tokens too, which lack nothing that is asked.",
    "lm_head_cosine": "Cosine of its output row before and after; null where no checkpoints were scored.",
    "lm_head_l2": "Distance of the two.",
    "embedding_cosine": "Cosine of its embedding row before and after.",
    "embedding_l2": "Distance of the two.",
}

_ROLES = (("lm_head", "output"), ("embedding", "embedding"))
DRIFT = {
    f"{role}_{name}": text.replace("{row}", row)
    for role, row in _ROLES
    for name, text in {
        "cosine": "Cosine of the {row} row before and after.",
        "l2": "Distance of the two.",
        "relative_l2": "That distance, as a share of the length before.",
        "norm_before": "Length before.",
        "norm_after": "Length after.",
        "rank": "Place by cosine, the most moved first.",
        "neighbours_before": "Ids of the nearest rows before.",
        "neighbours_after": "Ids of the nearest rows after.",
        "neighbour_overlap": "Share of neighbours that are the same.",
    }.items()
} | {
    "unused_cosine": "Cosine of the output row, after, to the mean of rows that no text can ask for.",
    "unused_l2": "Distance to that mean.",
    "unused_cosine_centred": "The same cosine, once the mean of all rows is taken off.",
    "unused_cosine_without_first": "The same, once the first principal component is.",
    "under_trained": "Whether it is among the rows most like unused ones.",
}

# title, what one row is, schema, meanings beside COMMON's.
SECTIONS: list[tuple[str, str, pa.Schema, dict[str, str]]] = [
    (
        "coverage.parquet",
        "By run, and by drift with `--run`: one row per row of the vocabulary, in order of id.",
        schemas.COVERAGE,
        COVERAGE,
    ),
    (
        "manifest.parquet",
        "By run: one row per flagged token, in order of id.",
        schemas.MANIFEST,
        {"reason": "Why, in words.", "context": "A text whose encoding has the token."},
    ),
    (
        "histogram.parquet",
        "By run and count: one row per token that a corpus holds, apart by record language and group.",
        schemas.HISTOGRAM,
        {"language": "The record's language, from `language_field`; empty where none is set."},
    ),
    (
        "summary.parquet",
        "By run: one row per value of a label.",
        schemas.SUMMARY,
        {
            "by": "The label. `language`, `script`, `category`, `kind`, `reachability` and `status` divide the vocabulary; "
            "`corpus`, `record_language` and `group` tell of the tokens that stand there, and so overlap.",
            "value": "Its value.",
            "tokens": "Rows of the vocabulary that have it.",
            "covered": "Those that are covered.",
            "under": "Those that are flagged: low, critical or absent.",
            "critical": "Those that are critical.",
            "absent": "Those that are absent.",
            "exempt": "Those that are exempt.",
            "covered_rate": "Covered, as a share of those not exempt; null where all are exempt.",
            "under_rate": "Flagged, as a share of those not exempt.",
            "absent_rate": "Absent, as a share of those not exempt.",
            "tokens_counted": "Occurrences counted, of both stages.",
            "supervised_tokens_counted": "Occurrences that bear loss, of both stages.",
        },
    ),
    (
        "bad_records.parquet",
        "By run and count: records that could not be used.",
        schemas.BAD_RECORDS,
        {
            "position": "Where it is in the file: the line (from 1), or the row, element or token (from 0).",
            "reason": "What is wrong with it.",
            "first_bytes": "How it begins.",
        },
    ),
    (
        "mixed_script.parquet",
        "By run: examples of letters of a foreign script in what dialogues teach.",
        schemas.MIXED_SCRIPT,
        {
            "place": "The file and the record.",
            "language": "The record's language.",
            "script": "The foreign script.",
            "message": "The message's number in the dialogue.",
            "start": "Where it begins: a character of the message's text.",
            "end": "Where it ends.",
            "excerpt": "The text around it.",
        },
    ),
    ("drift.parquet", "By drift: one row per row of the trained checkpoint's matrix.", schemas.DRIFT, DRIFT),
    (
        "repeat.parquet",
        "By repeat: the dialogues of `repeat.jsonl`.",
        schemas.REPEAT,
        {"messages": "The turns, in order."},
    ),
    (
        "repeat_ids.parquet",
        "By repeat with `--ids`: rows for tokens that no text gives.",
        schemas.REPEAT_IDS,
        {"input_ids": "The ids.", "labels": "The targets, unshifted; -100 where no loss is taken."},
    ),
    (
        "repeat_proof.parquet",
        "By repeat: one row per token in scope. Written last: a folder without it holds no finished set.",
        schemas.REPEAT_PROOF,
        {
            "promised": "Targets asked for.",
            "counted": "Targets counted in the files written.",
            "how": "`text`, `ids` or `none`.",
            "reason": "Why not by text.",
        },
    ),
    (
        "mix.parquet",
        "By mix: one row per passage chosen, a document or a part of a long one.",
        schemas.MIX,
        {
            "text": "The passage.",
            "position": "Where its document is in that file.",
            "tokens": "Its tokens.",
            "contributes": "The tokens it was taken for, each with how many were still needed.",
            "passage_start": "Its first byte in the document's text (UTF-8).",
            "passage_end": "The byte after its last.",
        },
    ),
    (
        "mix_proof.parquet",
        "By mix: one row per flagged token.",
        schemas.MIX_PROOF,
        {
            "needed": "What it lacked.",
            "counted": "Occurrences counted in the documents written.",
            "left": "What is left for the repeat set.",
        },
    ),
    (
        "probe.parquet",
        "By probe: one row per prompt that was answered.",
        schemas.PROBE,
        {
            "prompt_id": "The prompt in `prompts.jsonl`.",
            "kind": "The kind of prompt.",
            "prompt": "What was asked.",
            "response": "The answer.",
            "verdict": "`written`, `partial`, `substituted`, `omitted`, `refused` or `empty`.",
            "substitute": "What stands in the token's place.",
            "substitute_id": "Its id, where it is one token.",
            "substitute_cosine": "Cosine of both output rows in the model that answered.",
            "id_written": "Whether the answer's ids hold the token; its text can be spelt by other ids.",
            "max_probability": "The token's largest probability over its verification contexts.",
        },
    ),
    (
        "confusion.parquet",
        "By confusion: one row per answer.",
        schemas.CONFUSION,
        {
            "prompt_id": "The prompt in `prompts.jsonl`, where there is one.",
            "source": "Where the question is from; rates are kept apart by it.",
            "language": "The language that was expected.",
            "response": "The answer.",
            "letters": "Letters, without code, URLs, quotes and words of the prompt.",
            "foreign_letters": "Those of a script that the language is not written in, Latin apart.",
            "foreign_scripts": "The scripts.",
            "lines": "Lines of five words or more.",
            "wrong_lines": "Those identified as another language.",
            "wrong_languages": "The languages.",
            "english_words": "English words, where the language is told by words.",
        },
    ),
]


def _type(field: pa.Field) -> str:
    text = str(field.type).replace("item: ", "").replace("element: ", "")
    return f"{text}, null" if field.nullable else text


def meaning(column: str, own: dict[str, str]) -> str:
    return own.get(column) or COMMON[column]


def reference() -> str:
    parts = [HEAD.replace("{version}", str(schemas.FORMAT_VERSION))]
    for title, row, schema, own in SECTIONS:
        parts.append(f"\n## {title}\n\n{row}\n\n| column | type | meaning |\n| --- | --- | --- |\n")
        parts += [f"| `{f.name}` | {_type(f)} | {meaning(f.name, own)} |\n" for f in schema]
    return "".join(parts)


if __name__ == "__main__":
    PATH.write_text(reference(), encoding="utf-8")
