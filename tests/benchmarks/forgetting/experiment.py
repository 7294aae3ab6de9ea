"""The variants of SFT, and each of them judged by the project's own commands.

    python -m tests.benchmarks.forgetting.experiment FOLDER [--recipe tiny|full] [--seed 0] [--variants a,b]

`prepare` trains the base and runs `coverage-job run` on the narrow SFT data, `train_variant` makes one
checkpoint, `judge` measures it. Everything is kept in FOLDER, so that a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from tokenizers import Tokenizer

from coverage_job import cli
from coverage_job.probes.confusion import Answer, confusion
from coverage_job.probes.prompts import Prompt
from coverage_job.probes.run import probe_run
from coverage_job.remedies.repeat import instructions
from tests.benchmarks.forgetting import texts
from tests.benchmarks.forgetting.measure import common_direction, completions, copied, kinds, shares, spearman
from tests.benchmarks.forgetting.model import SPECIALS, Decoder, ProbedModel, load, save
from tests.benchmarks.forgetting.train import (
    FULL,
    TINY,
    Int64,
    Recipe,
    Rows,
    encode_dialogue,
    encode_documents,
    frames,
    one_per_row,
    pack,
    pretrain,
    sft,
    train_tokenizer,
)

VARIANTS = {
    "a": "narrow SFT as it is",
    "b": "with our repeat set, 20 times",
    "b-2": "with our repeat set, 2 times",
    "b-5": "with our repeat set, 5 times",
    "c": "with our mix",
    "d": "with both",
    "e": "with a naive repeat set of the same size",
    "f": "output matrix frozen",
    "g": "rows of flagged tokens kept",
    "g-masked": "flagged tokens out of the softmax",
    "h": "(a) with rows put back",
}
SPOKEN = ("en", "ja", "zh", "ko", "ru")

TEMPLATE = (
    "{%- for message in messages -%}{%- if message.role == 'assistant' -%}"
    "<assistant>{% generation %}{{ message.content }}<eos>{% endgeneration %}"
    "{%- else -%}<user>{{ message.content }}{%- endif -%}{%- endfor -%}"
)
JOB = """\
tokenizer: base/tokenizer.json
chat_template: chat.jinja
corpora:
  - {name: web, stage: pretraining, path: web.jsonl, language_field: language}
  - {name: sft, stage: posttraining, path: sft.jsonl}
coverage: {minimum: MINIMUM}
engine: {workers: 1}
"""


def command(*arguments: str) -> None:
    """One of the project's commands; raises where it does not end well."""
    code = cli.main(list(arguments))
    if code:
        raise RuntimeError(f"coverage-job {' '.join(arguments)} ended with {code}")


@dataclass(frozen=True)
class Experiment:
    """What all variants share.

    counts: int64[vocabulary], how often each id is a target of the narrow SFT. held_out: by language.
    """

    folder: Path
    recipe: Recipe
    seed: int
    minimum: int
    base: Decoder
    tokenizer: Tokenizer
    rows: Rows
    counts: Int64
    held_out: dict[str, Int64]

    @cached_property
    def coverage(self) -> pl.DataFrame:
        """The run's table of the narrow SFT data."""
        return pl.read_parquet(self.folder / "run" / "coverage.parquet")

    @cached_property
    def uncovered(self) -> Int64:
        """Ids, special ones apart, that are never a target."""
        return np.flatnonzero(self.counts[len(SPECIALS) :] == 0) + len(SPECIALS)

    @cached_property
    def covered(self) -> Int64:
        """Ids that are a target 20 times or more."""
        return np.flatnonzero(self.counts[len(SPECIALS) :] >= 20) + len(SPECIALS)


def prepare(folder: Path, recipe: Recipe = TINY, seed: int = 0, minimum: int = 20) -> Experiment:
    """Texts, tokenizer, base model and the coverage of the narrow SFT data, in `folder`."""
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    documents = texts.pretraining(recipe.megabytes)
    held_out = {language: part[: max(1, len(part) // 10)] for language, part in documents.items()}
    training = {language: part[len(held_out[language]) :] for language, part in documents.items()}
    if not (folder / "base" / "model.safetensors").exists():
        tokenizer = train_tokenizer(training, recipe.vocabulary)
        streams = {language: encode_documents(tokenizer, part) for language, part in training.items()}
        asked = [line for language in SPOKEN for line in instructions()[language]]
        save(pretrain(recipe, streams, frames(tokenizer, asked), seed).eval(), tokenizer, folder / "base")
    base = load(folder / "base")
    tokenizer = Tokenizer.from_file(str(folder / "base" / "tokenizer.json"))
    dialogues = _narrow(tokenizer, recipe)
    rows = pack([encode_dialogue(tokenizer, messages) for messages in dialogues], recipe.context)
    if not (folder / "run" / "run.json").exists():
        _write_lines(folder / "sft.jsonl", [{"messages": messages} for messages in dialogues])
        web = [{"text": text, "language": name} for name, part in training.items() for text in part]
        _write_lines(folder / "web.jsonl", web)
        (folder / "chat.jinja").write_text(TEMPLATE)
        (folder / "job.yaml").write_text(JOB.replace("MINIMUM", str(minimum)))
        run_job(folder, folder / "run")
    return Experiment(
        folder,
        recipe,
        seed,
        minimum,
        base,
        tokenizer,
        rows,
        rows.counts(recipe.vocabulary),
        {language: encode_documents(tokenizer, part) for language, part in held_out.items()},
    )


def run_job(folder: Path, output: Path, *settings: str) -> None:
    """Count and cover the narrow SFT data."""
    changed = [part for setting in settings for part in ("--set", setting)]
    command("run", str(folder / "job.yaml"), "--engine", "local", "--output", str(output), *changed)


def _narrow(tokenizer: Tokenizer, recipe: Recipe) -> list[list[dict[str, str]]]:
    """As many narrow dialogues as fill the rows that SFT passes."""
    chosen, size = [], 0
    for messages in texts.narrow_dialogues():
        size += len(encode_dialogue(tokenizer, messages)[0])
        if size > recipe.sft_rows * recipe.context:
            break
        chosen.append(messages)
    return chosen


def _write_lines(path: Path, records: Sequence[Any]) -> None:
    path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records), encoding="utf-8")


def _read_lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def repeat_rows(experiment: Experiment, minimum: int | None = None) -> Rows:
    """The set that `coverage-job repeat` makes, as training rows.

    minimum: times that each token shall be a target, where it is another than the run's.
    """
    run, folder = experiment.folder / "run", experiment.folder / "repeat"
    if minimum is not None:
        run, folder = (Path(f"{path}-{minimum}") for path in (run, folder))
        if not run.exists():
            settings = (f"coverage.minimum={minimum}", "coverage.critical=1")
            run_job(experiment.folder, run, *settings)
    if not folder.exists():
        command(
            *("repeat", str(run), "--output", str(folder), "--scope", "vocabulary"),
            *("--tokens-per-dialogue", str(experiment.recipe.copied), "--ids"),
        )
    tokenizer = experiment.tokenizer
    dialogues = [encode_dialogue(tokenizer, r["messages"]) for r in _read_lines(folder / "repeat.jsonl")]
    if (folder / "repeat_ids.parquet").exists():
        for ids, labels in pl.read_parquet(folder / "repeat_ids.parquet").iter_rows():
            dialogues.append((ids, [label != -100 for label in labels]))
    return one_per_row(dialogues, experiment.recipe.context)


def mix_rows(experiment: Experiment) -> Rows:
    """What `coverage-job mix` chooses from the pre-training text for the run, as training rows."""
    folder = experiment.folder / "mix"
    if not folder.exists():
        budget = experiment.rows.ids.size // 3
        command(
            "mix", str(experiment.folder / "run"), "--output", str(folder), "--budget-tokens", str(budget)
        )
    documents = [
        encode_documents(experiment.tokenizer, [r["text"]]) for r in _read_lines(folder / "mix.jsonl")
    ]
    return pack([(ids.tolist(), [True] * len(ids)) for ids in documents], experiment.recipe.context)


def naive_rows(experiment: Experiment, like: Rows) -> Rows:
    """What one would write at first: every entry decoded, joined by spaces, as many rows as `like`.

    No one looked whether the text encodes to the ids that it was made of.
    """
    chance = random.Random(experiment.seed)
    tokenizer, queue = experiment.tokenizer, list[int]()
    dialogues: list[tuple[list[int], list[bool]]] = []
    while len(dialogues) < len(like):
        if len(queue) < experiment.recipe.copied:
            queue = list(range(len(SPECIALS), experiment.recipe.vocabulary))
            chance.shuffle(queue)
        taken, queue = queue[: experiment.recipe.copied], queue[experiment.recipe.copied :]
        text = " ".join(tokenizer.decode([i]) for i in taken)
        asked = chance.choice(instructions()["en"]).replace("{text}", text)
        messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": text}]
        dialogues.append(encode_dialogue(tokenizer, messages))
    return one_per_row(dialogues, experiment.recipe.context)


def train_variant(experiment: Experiment, name: str) -> Path:
    """The checkpoint of a variant, made unless it is there."""
    folder = experiment.folder / "checkpoints" / name
    if (folder / "model.safetensors").exists():
        return folder
    options: dict[str, Any] = {}
    if name == "b" or name.startswith("b-"):
        options["extra"] = [repeat_rows(experiment, int(name[2:]) if name[2:] else None)]
    elif name == "c":
        options["extra"] = [mix_rows(experiment)]
    elif name == "d":
        options["extra"] = [repeat_rows(experiment), mix_rows(experiment)]
    elif name == "e":
        options["extra"] = [naive_rows(experiment, repeat_rows(experiment))]
    elif name == "f":
        options["frozen_head"] = True
    elif name in ("g", "g-masked"):
        options["kept_rows" if name == "g" else "masked"] = _protected(experiment)
    elif name == "h":
        narrow = train_variant(experiment, "a")
        drift = drift_of(experiment, "a")
        command(
            *("restore", "--before", str(experiment.folder / "base"), "--after", str(narrow)),
            *("--run", str(drift), "--output", str(folder)),
        )
        return folder
    elif name != "a":
        raise ValueError(f"no variant {name!r}")
    model = sft(experiment.base, experiment.rows, experiment.recipe, experiment.seed, **options)
    return save(model, experiment.tokenizer, folder)


def _protected(experiment: Experiment) -> Int64:
    folder = experiment.folder / "protect"
    if not folder.exists():
        command("protect", str(experiment.folder / "run"), "--output", str(folder))
    ids: Int64 = np.load(folder / "protected_ids.npy").astype(np.int64)
    return ids


def drift_of(experiment: Experiment, name: str) -> Path:
    """The result of `coverage-job drift` for a variant."""
    folder = experiment.folder / "drift" / name
    if not folder.exists():
        folder.parent.mkdir(exist_ok=True)
        command(
            *("drift", "--before", str(experiment.folder / "base")),
            *("--after", str(train_variant(experiment, name)), "--run", str(experiment.folder / "run")),
            *("--tokenizer", str(experiment.folder / "base"), "--output", str(folder)),
        )
    return folder


def probe_prompts(experiment: Experiment, ids: Int64) -> list[Prompt]:
    """A request, in the token's language, to repeat each id among others.

    The text stands first ("repeat the text above"): so small a base does not learn in every run to find
    the start of a text that follows its instruction. Ids are given as ids, so that parts of characters
    are asked for like whole words.
    """
    chance = np.random.default_rng(5)
    tokenizer = experiment.tokenizer
    texts_ = [tokenizer.decode([i]) for i in ids.tolist()]
    plain = [t for t, i in zip(texts_, ids.tolist(), strict=True) if tokenizer.encode(t).ids == [i]]
    language = dict(experiment.coverage.select("token_id", "language").iter_rows())
    prompts = []
    for i in ids.tolist():
        spoken = language[i].split("-")[0]
        lines = instructions()[spoken if spoken in SPOKEN else "en"]
        after = next(line for line in lines if line.startswith("{text}")).removeprefix("{text}")
        left, right = ("".join(chance.choice(plain, n)) for n in (2, experiment.recipe.copied // 2))
        prompts.append(Prompt(f"{i}-list", i, language[i], "list", left, right + after, None))
    return prompts


def judge(experiment: Experiment, name: str) -> dict[str, Any]:
    """Everything measured of a variant, or of the `base`."""
    folder = experiment.folder / "judged" / f"{name}.json"
    if folder.exists():
        found: dict[str, Any] = json.loads(folder.read_text())
        return found
    model = experiment.base if name == "base" else load(train_variant(experiment, name))
    judged = {
        "name": VARIANTS.get(name, "before SFT"),
        "drift": None if name == "base" else judge_drift(experiment, name, model),
        "ability": judge_ability(experiment, name, model),
        "completions": judge_completions(experiment, model),
        "confusion": judge_confusion(experiment, model),
    }
    folder.parent.mkdir(exist_ok=True)
    folder.write_text(json.dumps(judged, indent=1))
    return judged


def judge_drift(experiment: Experiment, name: str, model: Decoder) -> dict[str, Any]:
    """From the drift command's table: by count, by language, and whether rows move together."""
    folder = drift_of(experiment, name)
    table = pl.read_parquet(folder / "coverage.parquet")
    ids = table["token_id"].to_numpy()
    table = table.filter(pl.col("token_id") >= len(SPECIALS))
    cosine = table["lm_head_cosine"].to_numpy()
    counts = table["posttraining_supervised_occurrences"].to_numpy()
    uncovered = experiment.uncovered
    # The command's counts are the trainer's.
    assert np.array_equal(counts, experiment.counts[ids >= len(SPECIALS)])
    before, after = (m.lm_head.weight.detach().numpy()[uncovered] for m in (experiment.base, model))
    none = table.filter(pl.col("posttraining_supervised_occurrences") == 0)
    by_language = none.group_by("language").agg(
        pl.len().alias("tokens"), pl.col("lm_head_cosine").mean().alias("cosine")
    )
    report = json.loads((folder / "drift.json").read_text())
    return {
        "by_count": shares(cosine, counts),
        "embedding_cosine_uncovered": float(none["embedding_cosine"].mean()),  # type: ignore[arg-type]
        "spearman": spearman(counts, cosine),
        "common_direction": None if np.array_equal(before, after) else common_direction(before, after),
        "by_language": {r["language"]: r for r in by_language.sort("language").to_dicts()},
        "diagnosis": report.get("diagnosis"),
    }


def judge_ability(experiment: Experiment, name: str, model: Decoder) -> dict[str, Any]:
    """From `probe_run`: how many uncovered and covered tokens the model still writes when asked."""
    chance = np.random.default_rng(7)
    found = {}
    repeats = frames(experiment.tokenizer, instructions()["en"])
    for group, pool in (("uncovered", experiment.uncovered), ("covered", experiment.covered)):
        ids = np.sort(chance.choice(pool, min(200, len(pool)), replace=False))
        prompts = probe_prompts(experiment, ids)
        result = probe_run(
            prompts,
            experiment.folder / "probes" / name / group,
            experiment.tokenizer,
            model=ProbedModel(model),
            model_name=name,
            max_new_tokens=experiment.recipe.copied,
            verify=False,
        )
        found[group] = {
            "written": result.summary["overall"]["written"],
            "copied": copied(model, pool, repeats, experiment.recipe),
        }
    return found


def judge_completions(experiment: Experiment, model: Decoder) -> dict[str, Any]:
    """By language: what held-out text becomes."""
    uncovered = experiment.counts == 0
    of = kinds(experiment.tokenizer)
    return {
        language: asdict(completions(model, experiment.base, experiment.held_out[language], uncovered, of))
        for language in SPOKEN[1:]
    }


def judge_confusion(experiment: Experiment, model: Decoder) -> dict[str, Any]:
    """From `confusion`: the language of what the model writes after the beginning of a held-out text."""
    answers = []
    length = experiment.recipe.context // 3
    for language in SPOKEN[1:]:
        held_out = experiment.held_out[language]
        starts = np.linspace(0, len(held_out) - length - 1, 40).astype(int)
        prompts = [held_out[start : start + length].tolist() for start in starts]
        for ids in ProbedModel(model).generate(prompts, 40):
            # A line of the answer that is long enough is judged; break none off by chance.
            text = experiment.tokenizer.decode(ids).replace("\n", " ")
            answers.append(Answer(text, language))
    _, summary = confusion(answers)
    return {
        language: {key: rates.get(key) for key in ("line_pass", "word_pass", "foreign_script")}
        for language, rates in summary["by_language"].items()
    }


def table_of(judged: dict[str, dict[str, Any]]) -> pl.DataFrame:
    """One row per variant: the figures that matter."""
    rows = []
    for name, j in judged.items():
        drift = (j["drift"] or {}).get("by_count", {}).get("0", {})
        rows.append(
            {
                "variant": f"{name}: {j['name']}",
                "cosine": drift.get("cosine"),
                "under 0.90": drift.get("under_0.90"),
                "one direction": (j["drift"] or {}).get("common_direction"),
                "copied, uncovered": j["ability"]["uncovered"]["copied"],
                "copied, covered": j["ability"]["covered"]["copied"],
                "written, uncovered": j["ability"]["uncovered"]["written"]["rate"],
                "written, covered": j["ability"]["covered"]["written"]["rate"],
                **{f"kept {k}": c["kept"] for k, c in j["completions"].items()},
                **{f"stray {k}": c["stray"] for k, c in j["completions"].items()},
            }
        )
    return pl.DataFrame(rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--recipe", choices=["tiny", "full"], default="tiny")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--variants", default=",".join(VARIANTS))
    options = parser.parse_args()
    experiment = prepare(options.folder, {"tiny": TINY, "full": FULL}[options.recipe], options.seed)
    judged = {name: judge(experiment, name) for name in ("base", *options.variants.split(","))}
    with pl.Config(tbl_rows=-1, tbl_cols=-1, fmt_str_lengths=60, tbl_width_chars=400, float_precision=3):
        print(table_of(judged))


if __name__ == "__main__":
    main()
