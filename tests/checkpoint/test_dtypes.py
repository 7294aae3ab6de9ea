from __future__ import annotations

import numpy as np
import pytest
import torch

from coverage_job.checkpoint.dtypes import STORED, decode, encode

TORCH = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}


@pytest.mark.parametrize("dtype", ["F16", "BF16", "F8_E4M3", "F8_E5M2"])
def test_every_stored_pattern_decodes_as_torch_does(dtype: str) -> None:
    held = STORED[dtype]
    patterns = np.arange(256 if held.itemsize == 1 else 65536, dtype=f"u{held.itemsize}")
    expected = torch.from_numpy(patterns.copy()).view(TORCH[dtype]).float().numpy()
    np.testing.assert_array_equal(decode(patterns.view(held), dtype), expected)


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_encoding_rounds_as_torch_does(dtype: str) -> None:
    rng = np.random.default_rng(0)
    values = rng.integers(0, 1 << 32, 100_000, dtype=np.uint32).view(np.float32)
    values = np.concatenate([values, np.float32([0.0, -0.0, np.inf, -np.inf, np.nan, 65520.0, 1e-45])])
    expected = torch.from_numpy(values).to(TORCH[dtype])
    got = torch.from_numpy(encode(values, dtype).view(f"<i{STORED[dtype].itemsize}")).view(TORCH[dtype])
    nan = torch.isnan(expected)
    assert torch.equal(torch.isnan(got), nan)
    assert torch.equal(got[~nan], expected[~nan])


def test_float8_is_not_written_without_a_scale() -> None:
    with pytest.raises(ValueError, match="scale"):
        encode(np.ones(2, dtype=np.float32), "F8_E4M3")
