"""A small decoder with untied matrices that can learn to copy in a minute.

Pre-norm attention and MLP, rotary positions, no biases. Two aids let so small a model copy ids it has not
seen together (see `train.pretrain` for the third): the output matrix starts as a copy of the embedding,
and each head mixes a token's key with the key before it ("smeared keys"), so that attending to what
followed a token takes one layer and not two.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import nn
from torch.nn import functional

EOS, USER, ASSISTANT = 0, 1, 2
SPECIALS = ("<eos>", "<user>", "<assistant>")


@dataclass(frozen=True)
class Shape:
    """Of a model. context: positions. smear: where the learnt share of the key before begins."""

    vocabulary: int
    width: int = 64
    layers: int = 2
    heads: int = 4
    context: int = 48
    smear: float = 0.8


class Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


def rotate(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Turn pairs of x, float[b, heads, positions, d], by their positions' angles, float[positions, d / 2]."""
    cos, sin = angles[: x.shape[2]].cos(), angles[: x.shape[2]].sin()
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.smear = nn.Parameter(torch.full((shape.heads, 1, 1), shape.smear))
        self.attention_norm, self.mlp_norm = Norm(width), Norm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        batch, positions, width = x.shape
        split = self.qkv(self.attention_norm(x)).view(batch, positions, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        before = functional.pad(key, (0, 0, 1, 0))[:, :, :-1]
        key = (1 - self.smear) * key + self.smear * before
        mixed = functional.scaled_dot_product_attention(
            rotate(query, angles), rotate(key, angles), value, is_causal=True
        )
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, positions, width))
        out: torch.Tensor = x + self.down(functional.gelu(self.up(self.mlp_norm(x)), approximate="tanh"))
        return out


class Decoder(nn.Module):
    """ids, int64[batch, positions] -> logits, float[batch, positions, vocabulary]."""

    angles: torch.Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = Norm(shape.width)
        self.lm_head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                deep = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(parameter, 0, 0.02 / math.sqrt(2 * shape.layers) if deep else 0.02)
        self.lm_head.weight.data.copy_(self.embed_tokens.weight.data)
        d = shape.width // shape.heads
        frequency = 10000 ** -(torch.arange(0, d, 2).float() / d)
        self.register_buffer("angles", torch.outer(torch.arange(shape.context + 1).float(), frequency), False)

    def hidden(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, self.angles)
        out: torch.Tensor = self.norm(x)
        return out

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.lm_head(self.hidden(ids))
        return logits


def save(model: Decoder, tokenizer: Tokenizer, folder: Path) -> Path:
    """A checkpoint with the usual names: model.safetensors, config.json, tokenizer.json."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name if name == "lm_head.weight" else f"model.{name}": tensor.contiguous()
        for name, tensor in model.state_dict().items()
    }
    save_file(tensors, folder / "model.safetensors")
    config = {"tie_word_embeddings": False, "vocab_size": model.shape.vocabulary, **asdict(model.shape)}
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def load(folder: Path) -> Decoder:
    """A checkpoint that `save` wrote, or one whose matrices another program put back."""
    config = json.loads((folder / "config.json").read_text())
    model = Decoder(Shape(**{name: config[name] for name in Shape.__dataclass_fields__}))
    tensors = load_file(folder / "model.safetensors")
    model.load_state_dict({name.removeprefix("model."): tensor for name, tensor in tensors.items()})
    return model.eval()


class ProbedModel:
    """The decoder as `coverage_job.probes` asks for one."""

    batch = 64

    def __init__(self, model: Decoder) -> None:
        self.model = model

    @torch.inference_mode()
    def generate(self, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> list[list[int]]:
        """Greedy; no cache, as contexts are short. Prompts are padded on the right: attention is causal."""
        answers: list[list[int]] = [[] for _ in prompts]
        limit = self.model.shape.context
        waiting = [i for i, prompt in enumerate(prompts) if len(prompt) < limit]
        for _ in range(max_new_tokens):
            if not waiting:
                break
            rows = [[*prompts[i], *answers[i]] for i in waiting]
            best = self._last(rows).argmax(-1).tolist()
            still = []
            for i, row, token_id in zip(waiting, rows, best, strict=True):
                if token_id != EOS:
                    answers[i].append(token_id)
                    if len(row) + 1 < limit:
                        still.append(i)
            waiting = still
        return answers

    @torch.inference_mode()
    def probabilities(self, contexts: Sequence[Sequence[int]], token_ids: Sequence[int]) -> list[float]:
        chance = self._last(contexts).softmax(-1)
        return [float(value) for value in chance.gather(1, torch.tensor(list(token_ids))[:, None])[:, 0]]

    def _last(self, rows: Sequence[Sequence[int]]) -> torch.Tensor:
        longest = max(len(row) for row in rows)
        ids = torch.zeros((len(rows), longest), dtype=torch.long)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(list(row))
        ends = torch.tensor([len(row) - 1 for row in rows])
        logits: torch.Tensor = self.model.lm_head(self.model.hidden(ids)[torch.arange(len(rows)), ends])
        return logits

    def output_rows(self, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        rows: npt.NDArray[np.float32] = self.model.lm_head.weight.detach().numpy()[list(token_ids)]
        return rows

    def chat(self) -> Callable[[str], str]:
        return lambda content: f"<user>{content}<assistant>"
