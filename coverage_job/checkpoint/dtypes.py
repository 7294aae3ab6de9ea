"""Stored number formats: bytes of a checkpoint to float32 and back.

float8 follows "FP8 Formats for Deep Learning" (arXiv 2209.05433): E4M3 has no infinities and one NaN
pattern per sign; E5M2 is IEEE-like.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]

# safetensors' names, and what numpy holds the bytes as.
STORED: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "F8_E4M3": np.dtype("u1"),
    "F8_E5M2": np.dtype("u1"),
}


def is_float8(dtype: str) -> bool:
    """Whether values need a scale beside them to mean anything."""
    return dtype.startswith("F8_")


@lru_cache(maxsize=2)
def _float8_values(dtype: str) -> Float32:
    """float32[256]: what each byte stands for."""
    exponent_bits, mantissa_bits = (4, 3) if dtype == "F8_E4M3" else (5, 2)
    code = np.arange(256)
    sign = np.where(code >> 7, -1.0, 1.0)
    exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1)
    fraction = (code & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    bias = (1 << (exponent_bits - 1)) - 1
    value = np.where(exponent == 0, fraction * 2.0 ** (1 - bias), (1 + fraction) * 2.0 ** (exponent - bias))
    if dtype == "F8_E4M3":
        value[code & 0x7F == 0x7F] = np.nan
    else:
        top = exponent == (1 << exponent_bits) - 1
        value[top] = np.where(fraction[top] == 0, np.inf, np.nan)
    return np.asarray(sign * value, dtype=np.float32)


def decode(block: npt.NDArray[Any], dtype: str) -> Float32:
    """Stored values, as `STORED[dtype]` holds them, to float32 of the same shape; no scale applied.

    >>> decode(np.array([0x3F80, 0xC000], dtype="<u2"), "BF16")
    array([ 1., -2.], dtype=float32)
    """
    if dtype == "BF16":
        wide = block.astype(np.uint32)
        wide <<= 16
        return wide.view(np.float32)
    if is_float8(dtype):
        return np.asarray(_float8_values(dtype)[block], dtype=np.float32)
    return np.asarray(block, dtype=np.float32)


def encode(values: Float32, dtype: str) -> npt.NDArray[Any]:
    """float32 to stored values, rounded to nearest, ties to even (not for float8, which needs a scale).

    >>> [hex(v) for v in encode(np.array([1.0, 1.00390625], dtype=np.float32), "BF16")]
    ['0x3f80', '0x3f80']
    """
    if dtype == "BF16":
        bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        # Adding could carry a NaN into an infinity or zero: keep its top bits and set one of the fraction.
        nan = np.isnan(values)
        rounded[nan] = (bits[nan] >> 16) | 0x40
        return rounded.astype("<u2")
    if is_float8(dtype):
        raise ValueError(f"{dtype} cannot be written without choosing a scale")
    with np.errstate(over="ignore"):
        return np.asarray(values).astype(STORED[dtype])
