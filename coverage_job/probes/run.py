"""The probe from tokens to verdicts: prompts, answers, judgement, one folder of results.

The folder holds `prompts.jsonl` (what is asked), `responses.jsonl` (the journal), `probe.parquet` (one row
per answer) and `probe.json` (rates).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer

from coverage_job import storage
from coverage_job.checkpoint.read import open_checkpoint
from coverage_job.errors import CheckpointError, ProbeError
from coverage_job.probes.choose import choose_tokens, parse_list
from coverage_job.probes.confusion import Answer, as_words, confusion, parse_answers
from coverage_job.probes.endpoint import Endpoint, Question, ask
from coverage_job.probes.generate import Float32, LocalModel, generate, largest_probabilities
from coverage_job.probes.journal import Journal, fingerprint, parse_responses
from coverage_job.probes.judge import Verdict, judge, judge_ids
from coverage_job.probes.prompts import (
    KINDS,
    Prompt,
    dump_prompts,
    encode_prompt,
    leading_ids,
    parse_prompts,
    questions,
    verification_ids,
    write_prompts,
)
from coverage_job.probes.rates import Rate, summarize
from coverage_job.schemas import PROBE

# Below it a token is called under-trained by Land and Bartolo (2024).
UNDER_TRAINED = 0.01

Rows = Callable[[Sequence[int]], Float32]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class ProbeResult:
    """table: PROBE, one row per answer. summary: what `probe.json` holds. unasked: prompts not answered."""

    table: pa.Table
    summary: dict[str, Any]
    unasked: int


def read_source(
    source: str,
    tokenizer: Tokenizer,
    *,
    count: int = 200,
    by: str = "auto",
    languages: Collection[str] = (),
    kinds: Sequence[str] = KINDS,
) -> list[Prompt]:
    """The prompts for a source: a run directory, a drift result, a list of tokens, or prompts as written.

    A run's or drift result's folder is read by its `coverage.parquet`, else its `drift.parquet`; a folder
    with `prompts.jsonl` or a file `*prompts.jsonl` gives the prompts as they are; any other file is a list.
    Raises ProbeError naming what is missing.
    """
    if source.endswith("prompts.jsonl"):
        return parse_prompts(storage.read_bytes(source), source)
    if storage.exists(storage.join(source, "prompts.jsonl")):
        name = storage.join(source, "prompts.jsonl")
        return parse_prompts(storage.read_bytes(name), name)
    if storage.exists(storage.join(source, "run.json")):
        table = storage.Run(source).table("coverage.parquet")
    else:
        table = None
        for name in ("coverage.parquet", "drift.parquet"):
            if storage.exists(storage.join(source, name)):
                table = storage.read_parquet(storage.join(source, name))
                break
    if table is None:
        if source.endswith(".parquet"):
            table = storage.read_parquet(source)
        else:
            tokens = parse_list(storage.read_bytes(source), tokenizer, source)
            return write_prompts(tokens, tokenizer, kinds)
    tokens = choose_tokens(table, tokenizer, count=count, by=by, languages=languages)
    return write_prompts(tokens, tokenizer, kinds)


def rows_of_checkpoint(source: str) -> Rows:
    """Output rows of a checkpoint on disk, for `probe_run(rows=...)`. Raises CheckpointError."""
    matrix = open_checkpoint(source).matrix("lm_head")
    if matrix is None:
        raise CheckpointError(f"checkpoint {source}: has no output matrix; give the model that answered")
    return lambda ids: matrix.rows_of(np.array(ids, dtype=np.int64))


def probe_run(
    prompts: Sequence[Prompt],
    output: str | Path,
    tokenizer: Tokenizer,
    *,
    model: LocalModel | None = None,
    model_name: str = "model",
    endpoint: Endpoint | None = None,
    responses: str | None = None,
    rows: Rows | None = None,
    chat: bool = True,
    max_new_tokens: int = 64,
    verify: bool = True,
    progress: Progress | None = None,
) -> ProbeResult:
    """Ask, judge and write one folder of results.

    output: a local folder; one that holds the journal of the same run is gone on with.
    model | endpoint | responses: who answers: a local model, a server, or a file of answers with
    `prompt_id` and `response`. None of them: the prompts are written, to be answered elsewhere.
    rows: gives output rows of the model that answered, for the distance of substitutes; a local model's
    own by default. chat: wrap prompts in the model's chat template, where it has one.
    verify: measure the largest probability of each token too (a local model alone).
    Raises ProbeError.
    """
    if sum(who is not None for who in (model, endpoint, responses)) > 1:
        raise ProbeError("give one of a model, an endpoint or a file of responses")
    if not prompts:
        raise ProbeError("no prompts to ask")
    folder = Path(output)
    header = {
        "prompts": fingerprint([f"{p.prompt_id}\n{p.shown()}" for p in prompts]),
        "model": model_name if endpoint is None else endpoint.model,
        "asked": "local" if endpoint is None else endpoint.api,
        "max_new_tokens": max_new_tokens,
        "chat": chat,
    }
    journal = folder / "responses.jsonl"
    probability: Mapping[int, float] = {}
    answers: dict[str, dict[str, Any]] = {}
    if model is not None:
        wrap = model.chat() if chat else None
        with Journal(journal, header) as kept:
            _write_prompts(folder, prompts)
            encoded = [(p.prompt_id, encode_prompt(p, tokenizer, wrap)) for p in prompts]
            generate(model, tokenizer, encoded, kept, max_new_tokens, progress)
            answers = kept.answers
        if verify:
            # In the other kinds something else than the token comes next.
            asking = [p for p in prompts if p.kind == "copy"] or prompts
            contexts = [(p.token_id, verification_ids(p, tokenizer, wrap)) for p in asking]
            probability = largest_probabilities(model, contexts)
        rows = rows or model.output_rows
    elif endpoint is not None:
        with Journal(journal, header) as kept:
            _write_prompts(folder, prompts)
            # A server returns text, so it is asked what text can ask, and can tell.
            texts = [Question(p.prompt_id, p.before) for p in prompts if p.text is not None]
            ask(endpoint, texts, kept, max_new_tokens, progress)
            answers = kept.answers
    elif responses is not None:
        given = parse_responses(storage.read_bytes(responses), responses)
        unknown = set(given) - {p.prompt_id for p in prompts}
        if unknown:
            raise ProbeError(f"{responses}: prompt {min(unknown)} is not among those asked")
        answers = {prompt_id: {"response": text} for prompt_id, text in given.items()}
        _write_prompts(folder, prompts)
    else:
        _write_prompts(folder, prompts)
        return ProbeResult(PROBE.empty_table(), {"prompts": len(prompts)}, len(prompts))
    table = judge_all(prompts, answers, tokenizer, rows, probability)
    unasked = len(prompts) - len(table)
    summary = {"asked": header, "unanswered_prompts": unasked, **summarize(table), **_verified(probability)}
    storage.write_parquet(str(folder / "probe.parquet"), table)
    storage.write_bytes(str(folder / "probe.json"), storage.dump_json(summary))
    return ProbeResult(table, summary, unasked)


def confusion_run(
    output: str | Path,
    *,
    model: LocalModel | None = None,
    tokenizer: Tokenizer | None = None,
    model_name: str = "model",
    endpoint: Endpoint | None = None,
    responses: str | None = None,
    language: str | None = None,
    languages: Sequence[str] = (),
    limit: int | None = None,
    words: str | None = None,
    max_new_tokens: int = 256,
    progress: Progress | None = None,
) -> tuple[pa.Table, dict[str, Any]]:
    """Ask the shipped questions (or read answers) and measure the languages of what comes back.

    model (with its tokenizer) | endpoint | responses: who answers; a file of answers has `response` or
    `completion`, and `language` unless `language` says it for all. languages, limit: which questions, and
    how many of each. words: a file of English words, one a line. Writes `confusion.parquet` and
    `confusion.json` into the folder `output`. Raises ProbeError.
    """
    if sum(who is not None for who in (model, endpoint, responses)) != 1:
        raise ProbeError("give one of a model, an endpoint or a file of responses")
    folder = Path(output)
    listed = (
        None if words is None else as_words(storage.read_bytes(words).decode("utf-8", "replace").split("\n"))
    )
    if responses is not None:
        known = {prompt_id: (spoken_in, text) for prompt_id, spoken_in, text in questions()}
        answers = parse_answers(storage.read_bytes(responses), responses, language=language, prompts=known)
    else:
        asked = questions(languages, limit)
        header = {
            "prompts": fingerprint([f"{prompt_id}\n{text}" for prompt_id, _, text in asked]),
            "model": model_name if endpoint is None else endpoint.model,
            "asked": "local" if endpoint is None else endpoint.api,
            "max_new_tokens": max_new_tokens,
        }
        with Journal(folder / "responses.jsonl", header) as kept:
            if endpoint is not None:
                requests = [Question(prompt_id, text) for prompt_id, _, text in asked]
                ask(endpoint, requests, kept, max_new_tokens, progress)
            elif model is not None and tokenizer is not None:
                wrap = model.chat()
                first = [] if wrap else leading_ids(tokenizer)
                encoded = []
                for prompt_id, _, text in asked:
                    content = wrap(text) if wrap else text
                    ids = [*first, *tokenizer.encode(content, add_special_tokens=False).ids]
                    encoded.append((prompt_id, ids))
                generate(model, tokenizer, encoded, kept, max_new_tokens, progress)
            else:
                raise ProbeError("a local model needs its tokenizer; give --tokenizer")
            answers = [
                Answer(kept.answers[prompt_id]["response"], spoken_in, text, prompt_id)
                for prompt_id, spoken_in, text in asked
            ]
    table, summary = confusion(answers, words=listed)
    storage.write_parquet(str(folder / "confusion.parquet"), table)
    storage.write_bytes(str(folder / "confusion.json"), storage.dump_json(summary))
    return table, summary


def _write_prompts(folder: Path, prompts: Iterable[Prompt]) -> None:
    storage.write_bytes(str(folder / "prompts.jsonl"), dump_prompts(prompts))


def _verified(probability: Mapping[int, float]) -> dict[str, Any]:
    if not probability:
        return {}
    starved = sum(value < UNDER_TRAINED for value in probability.values())
    return {"under_trained": {"threshold": UNDER_TRAINED, **_as_dict(Rate.of(starved, len(probability)))}}


def _as_dict(rate: Rate) -> dict[str, Any]:
    return {
        "tokens": rate.successes,
        "of": rate.trials,
        "rate": rate.rate,
        "low": rate.low,
        "high": rate.high,
    }


def judge_all(
    prompts: Sequence[Prompt],
    answers: Mapping[str, Mapping[str, Any]],
    tokenizer: Tokenizer,
    rows: Rows | None = None,
    probability: Mapping[int, float] | None = None,
) -> pa.Table:
    """A PROBE table, one row per prompt that has an answer (`response`, and `response_ids` where known).

    A prompt whose token no text has is judged by ids, and is left out where the answer has none.
    """
    records: list[dict[str, Any]] = []
    for prompt in prompts:
        answer = answers.get(prompt.prompt_id)
        if answer is None:
            continue
        ids: list[int] | None = answer.get("response_ids")
        if prompt.text is not None:
            verdict = judge(prompt, answer["response"])
        elif ids is not None:
            verdict = judge_ids(prompt, ids)
        else:
            continue
        substitute_id = None
        if verdict.verdict is Verdict.SUBSTITUTED and verdict.substitute:
            encoded = tokenizer.encode(verdict.substitute, add_special_tokens=False).ids
            substitute_id = encoded[0] if encoded else None
        records.append(
            {
                "prompt_id": prompt.prompt_id,
                "token_id": prompt.token_id,
                "token": prompt.text or f"<{prompt.token_id}>",
                "language": prompt.language,
                "kind": prompt.kind,
                "prompt": prompt.shown(),
                "response": answer["response"],
                "verdict": verdict.verdict.value,
                "substitute": verdict.substitute,
                "substitute_id": substitute_id,
                "substitute_cosine": None,
                "id_written": None if ids is None else prompt.token_id in ids,
                "max_probability": (probability or {}).get(prompt.token_id),
            }
        )
    if rows is not None:
        _add_distances(records, rows)
    return pa.Table.from_pylist(records, schema=PROBE)


def _add_distances(records: Sequence[dict[str, Any]], rows: Rows) -> None:
    replaced = [r for r in records if r["substitute_id"] is not None]
    if not replaced:
        return
    wanted = rows([r["token_id"] for r in replaced]).astype(np.float64)
    came = rows([r["substitute_id"] for r in replaced]).astype(np.float64)
    norms = np.linalg.norm(wanted, axis=1) * np.linalg.norm(came, axis=1)
    dots = (wanted * came).sum(axis=1)
    for record, dot, norm in zip(replaced, dots, norms, strict=True):
        record["substitute_cosine"] = float(dot / norm) if norm > 0 and np.isfinite(norm) else None
