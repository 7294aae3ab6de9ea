from __future__ import annotations

import contextlib
import json
import pickle
import struct
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from coverage_job.checkpoint.read import open_checkpoint
from coverage_job.errors import CheckpointError
from tests.checkpoint.make import matrix, others, pair, save_sharded, save_single

HEAD, EMBED = matrix(96, 32, 1), matrix(96, 32, 2)


def reads(path: Any, head: torch.Tensor, embed: torch.Tensor | None = None, **names: str) -> None:
    checkpoint = open_checkpoint(path if isinstance(path, list) else str(path), **names)
    expected = {"lm_head": head, "embedding": embed}
    for role, tensor in expected.items():
        if tensor is None:
            continue
        whole = tensor.float().numpy()
        np.testing.assert_array_equal(checkpoint.rows(role, 0, len(whole)), whole)
        np.testing.assert_array_equal(checkpoint.rows(role, 3, 71), whole[3:71])
        assert checkpoint.rows(role, 5, 5).shape == (0, whole.shape[1])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_one_file_of_every_plain_dtype(tmp_path: Path, dtype: torch.dtype) -> None:
    head, embedding = HEAD.to(dtype), EMBED.to(dtype)
    folder = save_single(tmp_path / "c", pair(head, embedding) | others(2))
    reads(folder, head, embedding)
    reads(folder / "model.safetensors", head, embedding)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("scale", ["none", "tensor", "row", "row_vector", "block"])
def test_float8_with_scales(tmp_path: Path, dtype: torch.dtype, scale: str) -> None:
    rows, columns = 300, 200
    head = matrix(rows, columns).to(dtype)
    scales = {
        "none": None,
        "tensor": torch.tensor([0.25]),
        "row": torch.rand(rows, 1),
        "row_vector": torch.rand(rows),
        "block": torch.rand(3, 2),
    }[scale]
    expected = head.float()
    tensors = {"lm_head.weight": head}
    if scales is not None:
        name = "lm_head.weight_scale_inv" if scale == "block" else "lm_head.weight_scale"
        tensors[name] = scales
        if scale == "block":
            wide = scales.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :columns]
        else:
            wide = scales.reshape(-1, 1)
        expected = expected * wide
    folder = save_single(tmp_path / "c", tensors)
    checkpoint = open_checkpoint(str(folder))
    assert checkpoint.lm_head is not None
    np.testing.assert_array_equal(checkpoint.rows("lm_head", 0, rows), expected.numpy())
    np.testing.assert_array_equal(checkpoint.rows("lm_head", 120, 140), expected.numpy()[120:140])
    ids = np.array([299, 0, 130, 130, 2])
    np.testing.assert_array_equal(checkpoint.lm_head.rows_of(ids), expected.numpy()[ids])


def test_scales_of_another_shape_are_an_error(tmp_path: Path) -> None:
    tensors = {
        "lm_head.weight": matrix(300, 200).to(torch.float8_e4m3fn),
        "lm_head.weight_scale": torch.rand(7),
    }
    with pytest.raises(CheckpointError, match=r"weight_scale has shape \[7\]"):
        open_checkpoint(str(save_single(tmp_path / "c", tensors)))


def test_rows_of_any_ids(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(save_single(tmp_path / "c", pair(HEAD, EMBED))))
    ids = np.array([95, 0, 7, 7, 50, 1])
    assert checkpoint.lm_head is not None
    np.testing.assert_array_equal(checkpoint.lm_head.rows_of(ids), HEAD.numpy()[ids])


def test_a_sharded_checkpoint_costs_its_two_matrices(tmp_path: Path) -> None:
    head, embedding = matrix(4000, 256, 1, torch.bfloat16), matrix(4000, 256, 2, torch.bfloat16)
    layers = others(20, 256, torch.bfloat16)
    names = list(layers)
    folder = save_sharded(
        tmp_path / "c",
        {
            "model-00001.safetensors": {"model.embed_tokens.weight": embedding}
            | {n: layers[n] for n in names[:7]},
            "model-00002.safetensors": {n: layers[n] for n in names[7:14]},
            "model-00003.safetensors": {"lm_head.weight": head} | {n: layers[n] for n in names[14:]},
        },
    )
    checkpoint = open_checkpoint(str(folder))
    for role in ("lm_head", "embedding"):
        for start in range(0, 4000, 128):
            checkpoint.rows(role, start, min(4000, start + 128))
    wanted = 2 * 4000 * 256 * 2
    assert wanted <= checkpoint.bytes_read <= 1.02 * wanted
    reads(folder, head, embedding)


@pytest.mark.parametrize("suffix", [".bin", ".pt", ".pth"])
def test_torch_files(tmp_path: Path, suffix: str) -> None:
    head, embedding = HEAD.bfloat16(), EMBED.bfloat16()
    state = OrderedDict(pair(head, embedding) | {"scalar": torch.tensor(1.0)})
    torch.save(state, tmp_path / f"m{suffix}")
    reads(tmp_path / f"m{suffix}", head, embedding)


def test_torch_files_nested_float8_and_parameters(tmp_path: Path) -> None:
    head, fp8 = torch.nn.Parameter(HEAD), EMBED.to(torch.float8_e4m3fn)
    torch.save(
        {"model": {"lm_head.weight": head, "embed_tokens": {"weight": fp8}}, "step": 3}, tmp_path / "m.pt"
    )
    reads(tmp_path / "m.pt", HEAD, fp8)


def test_torch_index(tmp_path: Path) -> None:
    torch.save({"lm_head.weight": HEAD}, tmp_path / "pytorch_model-00001.bin")
    torch.save({"model.embed_tokens.weight": EMBED}, tmp_path / "pytorch_model-00002.bin")
    weight_map = {
        "lm_head.weight": "pytorch_model-00001.bin",
        "model.embed_tokens.weight": "pytorch_model-00002.bin",
    }
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    reads(tmp_path, HEAD, EMBED)


def test_one_storage_under_both_names_is_tied(tmp_path: Path) -> None:
    torch.save(pair(HEAD, HEAD), tmp_path / "m.bin")
    assert open_checkpoint(str(tmp_path / "m.bin")).tied is not None


def test_a_pickle_runs_nothing(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return (exec, (f"open({str(tmp_path / 'ran')!r}, 'w')",))

    torch.save({"lm_head.weight": HEAD, "args": Bomb()}, tmp_path / "m.bin")
    reads(tmp_path / "m.bin", HEAD)
    assert not (tmp_path / "ran").exists()
    pickle.dump({"lm_head.weight": Bomb()}, (tmp_path / "n.bin").open("wb"))
    with pytest.raises(CheckpointError, match="not a PyTorch zip archive"):
        open_checkpoint(str(tmp_path / "n.bin"))
    assert not (tmp_path / "ran").exists()


def test_transposed_torch_views_are_not_taken_for_matrices(tmp_path: Path) -> None:
    torch.save({"lm_head.weight": HEAD.t()}, tmp_path / "m.bin")
    with pytest.raises(CheckpointError, match="neither output matrix nor embedding"):
        open_checkpoint(str(tmp_path / "m.bin"))


def test_npy(tmp_path: Path) -> None:
    np.save(tmp_path / "m.npy", HEAD.numpy())
    reads(tmp_path / "m.npy", HEAD)
    np.save(tmp_path / "h.npy", HEAD.bfloat16().view(torch.uint16).numpy().view("V2"))
    reads(tmp_path / "h.npy", HEAD.bfloat16())
    np.save(tmp_path / "f.npy", np.asfortranarray(HEAD.numpy()))
    with pytest.raises(CheckpointError, match="column order"):
        open_checkpoint(str(tmp_path / "f.npy"))
    np.save(tmp_path / "o.npy", np.array([[object()]]), allow_pickle=True)
    with pytest.raises(CheckpointError, match="holds object"):
        open_checkpoint(str(tmp_path / "o.npy"))


@pytest.mark.parametrize(
    ("head", "embedding"),
    [
        ("lm_head.weight", "model.embed_tokens.weight"),
        ("output.weight", "tok_embeddings.weight"),
        ("embed_out.weight", "gpt_neox.embed_in.weight"),
        ("lm_head.weight", "transformer.wte.weight"),
        ("language_model.lm_head.weight", "language_model.model.embed_tokens.weight"),
        ("lm_head.weight", "model.language_model.embed_tokens.weight"),
        ("thinker.lm_head.weight", "thinker.model.embed_tokens.weight"),
        ("transformer.output_layer.weight", "transformer.embedding.word_embeddings.weight"),
        ("head.weight", "embed.weight"),
    ],
)
def test_names_of_families_among_towers(tmp_path: Path, head: str, embedding: str) -> None:
    tensors = {
        "vision_tower.embeddings.weight": matrix(9, 8),
        "talker.model.embed_tokens.weight": matrix(9, 8),
        "model.layers.61.embed_tokens.weight": matrix(9, 8),
        "model.layers.61.shared_head.head.weight": matrix(9, 8),
        head: HEAD,
        embedding: EMBED,
    }
    reads(save_single(tmp_path / "c", tensors), HEAD, EMBED)


@pytest.mark.parametrize(
    "config",
    [{"tie_word_embeddings": True}, {"model_type": "vlm", "text_config": {"tie_word_embeddings": True}}],
)
def test_tied_by_configuration(tmp_path: Path, config: dict[str, Any]) -> None:
    checkpoint = open_checkpoint(str(save_single(tmp_path / "c", pair(EMBED, EMBED.clone()), **config)))
    assert checkpoint.tied == "tie_word_embeddings in config.json"
    assert checkpoint.lm_head is checkpoint.embedding


def test_tied_by_an_absent_head(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(save_single(tmp_path / "c", {"model.embed_tokens.weight": EMBED})))
    assert checkpoint.tied == "no output matrix beside model.embed_tokens.weight"
    assert checkpoint.lm_head is checkpoint.embedding


def test_names_can_be_given(tmp_path: Path) -> None:
    folder = save_single(tmp_path / "c", {"a.proj": HEAD, "b.table": EMBED, "c": matrix(3, 4)})
    reads(folder, HEAD, EMBED, lm_head="a.proj", embedding="b.table")
    with pytest.raises(CheckpointError, match=r"--lm-head.*a\.proj \[96, 32\], b\.table \[96, 32\]"):
        open_checkpoint(str(folder))
    with pytest.raises(CheckpointError, match=r"no tensor 'd' \(--embedding\)"):
        open_checkpoint(str(folder), embedding="d")


def test_two_heads_are_not_guessed_between(tmp_path: Path) -> None:
    folder = save_single(tmp_path / "c", {"a.lm_head.weight": HEAD, "b.lm_head.weight": EMBED})
    with pytest.raises(CheckpointError, match="could each be the lm_head"):
        open_checkpoint(str(folder))
    reads(folder, EMBED, None, lm_head="b.lm_head.weight")


def test_names_are_shown_on_one_line(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(str(save_single(tmp_path / "c", {"a\n\x1b[2J": HEAD})))
    assert str(error.value).isprintable()


def test_tensor_parallel_shards_stack_by_rows(tmp_path: Path) -> None:
    paths = []
    for rank in range(3):
        part = slice(32 * rank, 32 * rank + 32)
        paths.append(str(save_single(tmp_path / str(rank), pair(HEAD[part].clone(), EMBED[part].clone()))))
    reads(paths, HEAD, EMBED)
    assert open_checkpoint(paths).lm_head.shape == (96, 32)  # type: ignore[union-attr]


def test_shards_side_by_side_and_copies(tmp_path: Path) -> None:
    paths = []
    for rank in range(2):
        rows, columns = slice(48 * rank, 48 * rank + 48), slice(16 * rank, 16 * rank + 16)
        tensors = {"output.weight": HEAD[rows].clone(), "tok_embeddings.weight": EMBED[:, columns].clone()}
        paths.append(str(save_single(tmp_path / f"c{rank}", tensors, dim=32)))
    reads(paths, HEAD, EMBED)
    copies = [
        str(save_single(tmp_path / f"r{r}", pair(HEAD, EMBED), vocab_size=96, hidden_size=32)) for r in (0, 1)
    ]
    reads(copies, HEAD, EMBED)


def test_consolidated_ranks_of_a_folder(tmp_path: Path) -> None:
    for rank in range(2):
        part = slice(48 * rank, 48 * rank + 48)
        state = {"output.weight": HEAD[part].clone(), "tok_embeddings.weight": EMBED[part].clone()}
        torch.save(state, tmp_path / f"consolidated.{rank:02}.pth")
    reads(tmp_path, HEAD, EMBED)


def write_raw(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> str:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return str(path)


@pytest.mark.parametrize(
    ("header", "length", "says"),
    [
        (b"{}", 1 << 62, "claims"),
        (b"{", None, "no JSON"),
        (b"[]", None, "no JSON object"),
        (
            {"lm_head.weight": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}},
            None,
            "outside the file",
        ),
        (
            {"lm_head.weight": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 8]}},
            None,
            "not those of its shape",
        ),
        ({"lm_head.weight": {"dtype": "F32", "shape": [-1, -2], "data_offsets": [0, 8]}}, None, "wrong type"),
        ({"lm_head.weight": {"dtype": "F32", "shape": [1, 2], "data_offsets": [-8, 0]}}, None, "wrong type"),
        (
            {"lm_head.weight": {"dtype": "F32", "shape": [1 << 40, 1 << 40], "data_offsets": [0, 8]}},
            None,
            "shape",
        ),
        ({"lm_head.weight": [1]}, None, "no dtype"),
    ],
)
def test_hostile_safetensors_headers(tmp_path: Path, header: Any, length: int | None, says: str) -> None:
    path = write_raw(tmp_path / "model.safetensors", header, b"\0" * 8, length)
    with pytest.raises(CheckpointError, match=says) as error:
        open_checkpoint(path)
    assert path in str(error.value)
    assert "\n" not in str(error.value)


def test_deeply_nested_headers_are_refused(tmp_path: Path) -> None:
    path = write_raw(tmp_path / "m.safetensors", b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}")
    with pytest.raises(CheckpointError, match=r"no JSON|no dtype"):
        open_checkpoint(path)


@pytest.mark.parametrize(
    "home", ["../x.safetensors", "/etc/x.safetensors", "a/../../x", "s3://b/x", "..\\x", "..", 3]
)
def test_an_index_that_leaves_its_folder_is_refused(tmp_path: Path, home: Any) -> None:
    save_file(pair(HEAD, EMBED), tmp_path / "x.safetensors")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"lm_head.weight": home}})
    )
    with pytest.raises(CheckpointError, match="no file of the folder"):
        open_checkpoint(str(tmp_path / "c"))


def test_errors_name_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such file or folder"):
        open_checkpoint(str(tmp_path / "nothing"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=r"holds no \.safetensors"):
        open_checkpoint(str(tmp_path / "empty"))
    folder = save_sharded(tmp_path / "c", {"a.safetensors": pair(HEAD, EMBED)})
    (folder / "a.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"a\.safetensors: cannot be read"):
        open_checkpoint(str(folder))
    with pytest.raises(CheckpointError, match="I32"):
        open_checkpoint(
            str(save_single(tmp_path / "q", {"lm_head.weight": torch.ones(4, 4, dtype=torch.int32)}))
        )


def test_a_file_cut_after_its_header_was_read(tmp_path: Path) -> None:
    folder = save_single(tmp_path / "c", pair(HEAD, EMBED))
    checkpoint = open_checkpoint(str(folder))
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(CheckpointError, match="cut off"):
        checkpoint.rows("embedding", 0, 96)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), suffix=st.sampled_from(["safetensors", "pt", "npy"]))
def test_damaged_files_raise_one_kind_of_error(tmp_path: Path, data: st.DataObject, suffix: str) -> None:
    path = tmp_path / f"good.{suffix}"
    if not path.exists():
        if suffix == "safetensors":
            save_file(pair(HEAD, EMBED), path)
        elif suffix == "pt":
            torch.save(pair(HEAD, EMBED), path)
        else:
            np.save(path, HEAD.numpy())
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        # Headers stand at one end or the other.
        at = data.draw(st.integers(0, 600)) * data.draw(st.sampled_from([1, -1]))
        content[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, 3)) * data.draw(st.integers(0, 500))
    damaged = tmp_path / f"bad.{suffix}"
    damaged.write_bytes(bytes(content[: len(content) - cut]))
    with contextlib.suppress(CheckpointError):
        checkpoint = open_checkpoint(str(damaged))
        for role in ("lm_head", "embedding"):
            found = checkpoint.matrix(role)
            if found is not None:
                assert checkpoint.rows(role, 0, found.shape[0]).shape == found.shape


def test_a_pickle_that_asks_for_a_huge_memo_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "m.pt", "w") as archive:
        archive.writestr("m/data.pkl", b"\x80\x02}r" + struct.pack("<I", (1 << 31) - 1) + b".")
    with pytest.raises(CheckpointError, match="index cannot be read"):
        open_checkpoint(str(tmp_path / "m.pt"))
