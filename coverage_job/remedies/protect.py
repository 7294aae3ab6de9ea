"""For those who may not change the data: keep the output rows of tokens that have too few targets.

Two ways, which combine. `masked_loss` leaves the tokens out of the softmax, so that nothing pushes
them. `RowKeeper` zeroes their rows' gradient and puts back what weight decay or momentum would change,
so that the rows stay as they are to the bit. What each costs: docs/protect.md. torch is imported where
it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl

from coverage_job.errors import RemedyError
from coverage_job.schemas import FLAGGED, Action

if TYPE_CHECKING:
    import torch

IGNORED = -100


def protected_ids(coverage: pl.DataFrame) -> npt.NDArray[np.int64]:
    """Ids without enough targets: those that are flagged, and those the manifest proposes to protect.

    >>> table = {"token_id": [4, 5], "status": ["low", "covered"], "action": ["repeat", "none"]}
    >>> protected_ids(pl.DataFrame(table)).tolist()
    [4]
    """
    chosen = pl.col("status").is_in(FLAGGED) | (pl.col("action") == Action.PROTECT.value)
    return coverage.filter(chosen)["token_id"].to_numpy().astype(np.int64)


def masked_cross_entropy(
    logits: torch.Tensor, labels: torch.Tensor, ids: torch.Tensor, items: torch.Tensor | int | None = None
) -> torch.Tensor:
    """Mean cross-entropy of a causal model, with the rows `ids` left out of the softmax.

    logits: [batch, length, rows]. labels: int64[batch, length], unshifted, -100 where no loss is taken.
    ids: int64[n] on the logits' device. items: what the sum is divided by (default: the targets here).
    Where one of `ids` is itself the target it takes part, or its loss would be infinite.
    """
    import torch
    from torch.nn.functional import cross_entropy

    targets = labels[:, 1:]
    kept = targets != IGNORED
    target = targets[kept]
    rows = logits[:, :-1][kept].float()
    own = rows.gather(1, target[:, None])
    rows = rows.index_fill(1, ids, -torch.inf).scatter(1, target[:, None], own)
    total = cross_entropy(rows, target, reduction="sum")
    return total / (max(1, target.numel()) if items is None else items)


def masked_loss(ids: npt.NDArray[np.int64]) -> Callable[..., torch.Tensor]:
    """`compute_loss_func` for transformers' `Trainer` and TRL's `SFTTrainer`: `masked_cross_entropy`."""
    import torch

    chosen = torch.as_tensor(ids, dtype=torch.int64)

    def loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
        logits = outputs.logits if hasattr(outputs, "logits") else outputs["logits"]
        return masked_cross_entropy(logits, labels, chosen.to(logits.device), num_items_in_batch)

    return loss


class RowKeeper:
    """Keeps rows of a model's output matrix as they are, to the bit, whatever the optimizer does.

    Gradients of the rows are zeroed as they arrive, so they neither feed the optimizer's state nor the
    norm that gradients are clipped by; after each optimizer step the rows are put back, which undoes
    weight decay. Works with gradient accumulation and several backward passes.
    """

    def __init__(self, ids: npt.NDArray[np.int64]) -> None:
        self._ids = np.unique(np.asarray(ids, np.int64))
        self._handles: list[Any] = []

    def attach(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, output: torch.nn.Module | None = None
    ) -> RowKeeper:
        """Begin. output: the layer from hidden states to logits; default: the model's own.

        Raises RemedyError where the matrix is tied, frozen, sharded, of another size, or not the
        optimizer's.
        """
        import torch

        if self._handles:
            raise RemedyError("protect: attached already; detach it first")
        weight, bias = _output_parameters(model, output)
        if len(self._ids) and not 0 <= self._ids[0] <= self._ids[-1] < len(weight):
            raise RemedyError(
                f"protect: id {self._ids[-1]} is no row of the output matrix ({len(weight)} rows); "
                "are the ids and the model of the same tokenizer?"
            )
        # Accelerate wraps the optimizer whose step counts.
        inner = getattr(optimizer, "optimizer", optimizer)
        owned = {id(p) for group in inner.param_groups for p in group["params"]}
        kept = [p for p in (weight, bias) if p is not None]
        if id(weight) not in owned:
            raise RemedyError(
                "protect: the optimizer does not train the output matrix; give the one that does"
            )
        ids = torch.as_tensor(self._ids, device=weight.device)
        saved = [p.detach().index_select(0, ids) for p in kept]

        def put_back(*_: Any) -> None:
            with torch.no_grad():
                for parameter, rows in zip(kept, saved, strict=True):
                    parameter.index_copy_(0, ids, rows)

        def zeroed(gradient: torch.Tensor) -> torch.Tensor:
            return gradient.index_fill(0, ids, 0.0)

        self._handles = [p.register_hook(zeroed) for p in kept]  # type: ignore[no-untyped-call]
        self._handles.append(inner.register_step_post_hook(put_back))
        return self

    def detach(self) -> None:
        """End; the rows are free again."""
        for handle in self._handles:
            handle.remove()
        self._handles = []


def _output_parameters(
    model: torch.nn.Module, output: torch.nn.Module | None
) -> tuple[torch.nn.Parameter, torch.nn.Parameter | None]:
    if output is None:
        find = getattr(model, "get_output_embeddings", None)
        output = find() if find is not None else None
    weight = getattr(output, "weight", None)
    if output is None or weight is None:
        raise RemedyError("protect: the model names no output layer; give it as `output`")
    # Sharding hides rows: ZeRO leaves an empty matrix, FSDP a flat or a distributed one.
    if hasattr(weight, "ds_id") or type(weight.data).__name__ == "DTensor" or weight.dim() != 2:
        raise RemedyError("protect: the output matrix is sharded; use the masked loss, which needs no rows")
    if not weight.requires_grad:
        raise RemedyError(
            "protect: the output matrix is frozen (or adapted by LoRA): its rows are safe already"
        )
    users = [
        name
        for name, module in model.named_modules()
        if module is not output and any(p is weight for p in module.parameters(recurse=False))
    ]
    if users:
        raise RemedyError(
            f"protect: the output matrix is tied to {users[0]}: keeping its rows would freeze embeddings "
            "that the input trains; untie them or use the masked loss"
        )
    return weight, getattr(output, "bias", None)


def trainer_callback(ids: npt.NDArray[np.int64]) -> Any:
    """A transformers `TrainerCallback` (also for TRL) that keeps the rows while training runs."""
    from transformers import TrainerCallback

    class KeepRows(TrainerCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.keeper = RowKeeper(ids)

        def on_train_begin(
            self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None, **_: Any
        ) -> None:
            self.keeper.attach(model, optimizer)

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.keeper.detach()

    return KeepRows()
