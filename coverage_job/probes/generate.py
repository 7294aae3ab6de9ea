"""Answers from a local model: batched, greedy, kept as they come.

`LocalModel` is all that probing needs of a model; `TransformersModel` is one from a transformers
checkpoint. torch and transformers are imported when a model is loaded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from coverage_job.errors import ProbeError
from coverage_job.probes.journal import Journal

if TYPE_CHECKING:
    import torch

Float32 = npt.NDArray[np.float32]


class LocalModel(Protocol):
    """What is asked of a model that runs here."""

    batch: int

    def generate(self, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> list[list[int]]:
        """The new ids of each prompt, greedily, up to the end of the answer (left out) or the limit."""
        ...

    def probabilities(self, contexts: Sequence[Sequence[int]], token_ids: Sequence[int]) -> list[float]:
        """For each context the probability that the next id is `token_ids[i]`."""
        ...

    def output_rows(self, token_ids: Sequence[int]) -> Float32:
        """Rows of the output matrix, float32[len(token_ids), d]."""
        ...

    def chat(self) -> Callable[[str], str] | None:
        """What wraps a user's message in the model's chat template; None where it has none."""
        ...


class TransformersModel:
    """A causal model of transformers.

    device: ``auto`` (a GPU where there is one), ``cpu`` or ``cuda``. batch: prompts at once; halved
    whenever the device's memory does not hold them.
    """

    def __init__(self, path: str, *, device: str = "auto", dtype: str = "auto", batch: int = 16) -> None:
        """Load model and template. Raises ProbeError with the way out."""
        try:
            import torch
            from transformers import AutoModelForCausalLM, AutoTokenizer
        except ImportError as error:
            raise ProbeError(f"a local model needs {error.name}; pip install 'coverage-job[probe]'") from None
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        elif device == "cuda" and not torch.cuda.is_available():
            raise ProbeError("device cuda: torch finds no GPU; write --device cpu")
        self.batch = batch
        self.device = device
        try:
            self._model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=dtype).to(device).eval()
            self._tokenizer: Any = AutoTokenizer.from_pretrained(path)
        except (OSError, ValueError, KeyError, ImportError) as error:
            said = " ".join(str(error).split())[:200]
            raise ProbeError(
                f"model {path}: cannot be loaded ({said}); give a transformers checkpoint"
            ) from None

    def chat(self) -> Callable[[str], str] | None:
        if not getattr(self._tokenizer, "chat_template", None):
            return None
        return self._wrap

    def _wrap(self, content: str) -> str:
        text: str = self._tokenizer.apply_chat_template(
            [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
        )
        return text

    def _padded(self, prompts: Sequence[Sequence[int]]) -> dict[str, torch.Tensor]:
        import torch

        longest = max(len(p) for p in prompts)
        ids = torch.zeros((len(prompts), longest), dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            # On the left, so that every prompt ends where the answer begins.
            ids[row, longest - len(prompt) :] = torch.tensor(list(prompt))
            mask[row, longest - len(prompt) :] = 1
        return {"input_ids": ids.to(self.device), "attention_mask": mask.to(self.device)}

    def _ends(self) -> list[int]:
        ends = self._model.generation_config.eos_token_id
        if ends is None:
            ends = self._tokenizer.eos_token_id
        return [] if ends is None else [ends] if isinstance(ends, int) else list(ends)

    def generate(self, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> list[list[int]]:
        import torch

        ends = self._ends()
        with torch.inference_mode():
            inputs = self._padded(prompts)
            output = self._model.generate(
                **inputs,
                max_new_tokens=max_new_tokens,
                do_sample=False,
                num_beams=1,
                # A checkpoint's own settings may sample or punish repeats; neither is asked for here.
                temperature=None,
                top_p=None,
                top_k=None,
                repetition_penalty=1.0,
                no_repeat_ngram_size=0,
                pad_token_id=ends[0] if ends else 0,
            )
        answers = []
        for row in output[:, inputs["input_ids"].shape[1] :].tolist():
            stop = next((i for i, token_id in enumerate(row) if token_id in ends), len(row))
            answers.append(row[:stop])
        return answers

    def probabilities(self, contexts: Sequence[Sequence[int]], token_ids: Sequence[int]) -> list[float]:
        import torch

        with torch.inference_mode():
            inputs = self._padded(contexts)
            position = (inputs["attention_mask"].cumsum(-1) - 1).clamp(min=0)
            logits = self._model(**inputs, position_ids=position).logits[:, -1].float()
            wanted = torch.tensor(list(token_ids), device=logits.device)
            chance = logits.log_softmax(-1).gather(1, wanted[:, None])[:, 0].exp()
        return [float(value) for value in chance]

    def output_rows(self, token_ids: Sequence[int]) -> Float32:
        import torch

        matrix = self._model.get_output_embeddings().weight
        with torch.inference_mode():
            rows: Float32 = matrix[torch.tensor(list(token_ids), device=matrix.device)].float().cpu().numpy()
        return rows


def _in_batches(lengths: Sequence[int], batch: int, work: Callable[[list[int]], None]) -> None:
    """Call `work` with positions, prompts of like length together, fewer at once where memory runs out."""
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    start = 0
    while start < len(order):
        part = order[start : start + batch]
        try:
            work(part)
        except RuntimeError as error:
            if "out of memory" not in str(error).lower():
                raise
            if batch == 1:
                raise ProbeError(
                    f"the device's memory does not hold one prompt ({error}); use --device cpu"
                ) from None
            batch = max(1, batch // 2)
            continue
        start += len(part)


def generate(
    model: LocalModel,
    tokenizer: Tokenizer,
    prompts: Sequence[tuple[str, Sequence[int]]],
    journal: Journal,
    max_new_tokens: int,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Answer what the journal has no answer to; prompts are (prompt_id, ids).

    Records have `response` and `response_ids`.
    """
    waiting = [(prompt_id, ids) for prompt_id, ids in prompts if prompt_id not in journal.answers]

    def answer(positions: list[int]) -> None:
        answers = model.generate([waiting[i][1] for i in positions], max_new_tokens)
        for i, ids in zip(positions, answers, strict=True):
            finish = "length" if len(ids) >= max_new_tokens else "stop"
            text = tokenizer.decode(ids, skip_special_tokens=True)
            journal.append(
                {"prompt_id": waiting[i][0], "response": text, "response_ids": ids, "finish": finish}
            )
        if progress is not None:
            progress(len(journal.answers), len(prompts))

    _in_batches([len(ids) for _, ids in waiting], model.batch, answer)


def largest_probabilities(
    model: LocalModel, contexts: Sequence[tuple[int, Sequence[Sequence[int]]]]
) -> dict[int, float]:
    """For each (token_id, contexts) the largest probability of the token after any of them."""
    flat = [(token_id, ids) for token_id, several in contexts for ids in several]
    largest: dict[int, float] = {}

    def measure(positions: list[int]) -> None:
        found = model.probabilities([flat[i][1] for i in positions], [flat[i][0] for i in positions])
        for i, chance in zip(positions, found, strict=True):
            if not math.isfinite(chance):
                raise ProbeError("the model gives probabilities that are no numbers; its weights are damaged")
            largest[flat[i][0]] = max(largest.get(flat[i][0], 0.0), chance)

    _in_batches([len(ids) for _, ids in flat], model.batch, measure)
    return largest
