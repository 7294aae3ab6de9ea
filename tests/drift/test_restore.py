from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from coverage_job.checkpoint import write
from coverage_job.drift.restore import RECORD, choose_tokens, restore
from coverage_job.errors import CheckpointError, JobError, StorageError
from tests.checkpoint.make import matrix, others, pair, save_sharded, save_single

ROWS, COLUMNS = 200, 32


@pytest.fixture
def drifted(tmp_path: Path) -> Path:
    """A drift directory: tokens 0-49 have no target; of them 0-19 are under 0.95, and 60-69 as well."""
    cosine = np.where(np.isin(np.arange(ROWS), [*range(20), *range(60, 70)]), 0.5, 0.99)
    table = pa.table(
        {
            "token_id": pa.array(range(ROWS), pa.int32()),
            "language": ["ja" if i % 2 else "en" for i in range(ROWS)],
            "posttraining_supervised_occurrences": [0 if i < 50 else 30 for i in range(ROWS)],
            "lm_head_cosine": cosine,
        }
    )
    (tmp_path / "drift").mkdir()
    pq.write_table(table, tmp_path / "drift" / "coverage.parquet")
    return tmp_path / "drift"


def sharded(folder: Path, seed: int, dtype: torch.dtype) -> tuple[Path, torch.Tensor]:
    head = matrix(ROWS, COLUMNS, seed, dtype)
    layers = others(4, COLUMNS, dtype)
    save_sharded(
        folder,
        {
            "model-1.safetensors": {
                "model.embed_tokens.weight": matrix(ROWS, COLUMNS, seed + 1, dtype),
                **layers,
            },
            "model-2.safetensors": {
                "a.first": matrix(3, 5, seed),
                "lm_head.weight": head,
                "z.last": matrix(7, 5),
            },
        },
        tie_word_embeddings=False,
    )
    (folder / "tokenizer.json").write_text("{}")
    (folder / "global_step1").mkdir()
    (folder / "global_step1" / "state.bin").write_bytes(b"\0\1" * 5000)
    return folder, head


def all_bytes(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16])
def test_chosen_rows_are_the_bases_and_every_other_byte_is_kept(
    tmp_path: Path, drifted: Path, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "_PIECE", 7 * COLUMNS * 4)  # several pieces per matrix, not a divisor of it
    before, base = sharded(tmp_path / "b", 1, dtype)
    after, head = sharded(tmp_path / "a", 50, dtype)
    result = restore(str(before), str(after), str(drifted), str(tmp_path / "out"))
    assert (result.rows, result.exact, result.note) == (20, True, "")
    expected = head.clone()
    expected[:20] = base[:20]
    got = load_file(tmp_path / "out" / "model-2.safetensors")
    assert torch.equal(got["lm_head.weight"], expected)
    old, new = all_bytes(after), all_bytes(tmp_path / "out")
    record = json.loads(new.pop(RECORD))
    assert record["token_ids"] == list(range(20))
    assert old.keys() == new.keys()
    assert all(old[name] == new[name] for name in old if name != "model-2.safetensors")
    changed = np.flatnonzero(
        np.frombuffer(old["model-2.safetensors"], np.uint8)
        != np.frombuffer(new["model-2.safetensors"], np.uint8)
    )
    row = COLUMNS * head.element_size()
    at = old["model-2.safetensors"].index(head.view(torch.uint8).numpy().tobytes())
    assert at <= changed.min()
    assert changed.max() < at + 20 * row
    assert not list(tmp_path.glob("*.part"))


def test_a_predicate_chooses_and_a_blend_mixes(tmp_path: Path, drifted: Path) -> None:
    before, base = sharded(tmp_path / "b", 1, torch.bfloat16)
    after, head = sharded(tmp_path / "a", 50, torch.bfloat16)
    restore(
        str(before),
        str(after),
        str(drifted),
        str(tmp_path / "o"),
        "language = 'ja' AND token_id >= 190",
        0.25,
    )
    ids = [191, 193, 195, 197, 199]
    expected = head.clone()
    expected[ids] = (0.25 * base[ids].float() + 0.75 * head[ids].float()).bfloat16()
    assert torch.equal(load_file(tmp_path / "o" / "model-2.safetensors")["lm_head.weight"], expected)


def test_another_kind_of_number_is_rounded_and_said(tmp_path: Path, drifted: Path) -> None:
    before, base = sharded(tmp_path / "b", 1, torch.float32)
    after, head = sharded(tmp_path / "a", 50, torch.bfloat16)
    result = restore(str(before), str(after), str(drifted), str(tmp_path / "o"))
    assert (result.exact, result.note) == (False, "converted from F32 to BF16")
    expected = head.clone()
    expected[:20] = base[:20].bfloat16()
    assert torch.equal(load_file(tmp_path / "o" / "model-2.safetensors")["lm_head.weight"], expected)
    assert restore(str(after), str(before), str(drifted), str(tmp_path / "p")).exact


def test_rows_of_a_reordered_base(tmp_path: Path, drifted: Path) -> None:
    before, base = sharded(tmp_path / "b", 1, torch.float32)
    after, head = sharded(tmp_path / "a", 50, torch.float32)
    row_map = np.random.default_rng(0).permutation(ROWS)
    restore(str(before), str(after), str(drifted), str(tmp_path / "o"), "token_id < 5", row_map=row_map)
    got = load_file(tmp_path / "o" / "model-2.safetensors")["lm_head.weight"]
    assert torch.equal(got[:5], base[row_map[:5]])
    assert torch.equal(got[5:], head[5:])
    row_map[3] = -1
    with pytest.raises(CheckpointError, match="1 of the 5 chosen tokens"):
        restore(str(before), str(after), str(drifted), str(tmp_path / "p"), "token_id < 5", row_map=row_map)


def test_what_cannot_be_restored_is_refused_with_its_reason(tmp_path: Path, drifted: Path) -> None:
    before, _ = sharded(tmp_path / "b", 1, torch.float32)
    head = matrix(ROWS, COLUMNS, 3)

    def refused(after: Path, says: str, error: Any = CheckpointError, **options: Any) -> None:
        with pytest.raises(error, match=says):
            restore(str(before), str(after), str(drifted), str(tmp_path / "out"), **options)
        assert not (tmp_path / "out").exists()
        assert not list(tmp_path.glob("*.part"))

    tied = save_single(tmp_path / "t", {"model.embed_tokens.weight": head}, tie_word_embeddings=True)
    refused(tied, "matrices are tied .* untie them first")
    (tmp_path / "torch").mkdir()
    torch.save(pair(head, head.clone()), tmp_path / "torch" / "pytorch_model.bin")
    refused(tmp_path / "torch", "save it as safetensors first")
    fp8 = save_single(tmp_path / "f", {"lm_head.weight": head.to(torch.float8_e4m3fn)})
    refused(fp8, "scales of its own")
    single = save_single(tmp_path / "s", pair(head, head.clone()))
    refused(single / "model.safetensors", "not a folder")
    refused(single, "no predicate", JobError, tokens="nothing = 1")
    refused(single, "no predicate", JobError, tokens="1 = 1) OR")
    refused(single, "holds for no token", JobError, tokens="token_id < 0")
    refused(single, "--blend 0", JobError, blend=0.0)
    few = save_single(tmp_path / "few", pair(head[:10].clone(), head[:10].clone()))
    refused(few, r"10 of the 20 chosen tokens .* token_id < 10")
    (single / "model.safetensors").unlink()
    refused(single, "holds no .safetensors")


def test_a_table_without_drift_says_where_to_get_it(drifted: Path) -> None:
    table = pq.read_table(drifted / "coverage.parquet")
    empty = table.set_column(3, "lm_head_cosine", pa.nulls(ROWS, pa.float64()))
    with pytest.raises(JobError, match="has no drift"):
        choose_tokens(empty)
    assert choose_tokens(empty, "token_id = 3").tolist() == [3]


def test_a_copy_that_fails_half_way_leaves_nothing(
    tmp_path: Path, drifted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, _ = sharded(tmp_path / "b", 1, torch.float32)
    after, _ = sharded(tmp_path / "a", 50, torch.float32)
    real, written = write._write, []

    def full(fs: Any, path: str, pieces: Any) -> None:
        if written:
            raise OSError(28, "No space left on device")
        written.append(path)
        real(fs, path, pieces)

    monkeypatch.setattr(write, "_write", full)
    with pytest.raises(StorageError, match="No space left"):
        restore(str(before), str(after), str(drifted), str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob("*.part"))


def test_transformers_loads_and_runs_the_result(tmp_path: Path, drifted: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=ROWS,
        hidden_size=COLUMNS,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=False,
    )
    heads = []
    for seed, name in ((0, "b"), (1, "a")):
        torch.manual_seed(seed)
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
        model.save_pretrained(tmp_path / name, max_shard_size="30KB")
        heads.append(model.lm_head.weight.detach())
    assert len(list((tmp_path / "a").glob("model-*.safetensors"))) > 1
    restore(str(tmp_path / "b"), str(tmp_path / "a"), str(drifted), str(tmp_path / "out"))
    shutil.rmtree(tmp_path / "a")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.bfloat16)
    head = loaded.lm_head.weight.detach()
    assert torch.equal(head[:20], heads[0][:20])
    assert torch.equal(head[20:], heads[1][20:])
    ids = loaded.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=4, do_sample=False)
    assert ids.shape[1] > 3
