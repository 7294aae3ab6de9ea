"""One pass over two blocks of rows: dot product, both squared norms and the squared difference.

Compiled by numba, since it reads bfloat16 as it lies in the file and touches each value once. Sums run in
float32 over `_LANE` columns, which the processor's vector units do, and in float64 across them.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

# Importing it decides where compiled code is kept.
import coverage_job.counting.compiled  # noqa: F401

_LANE = 512


def _sums_float32(a: Any, b: Any, out: Any) -> None:
    rows, columns = a.shape
    for i in range(rows):
        dot, aa, bb, dd = 0.0, 0.0, 0.0, 0.0
        for start in range(0, columns, _LANE):
            # Slices, not a[i, j]: an index that could count from the end is not vectorized.
            xs, ys = a[i, start : start + _LANE], b[i, start : start + _LANE]
            p, q, r, s = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
            for j in range(len(xs)):
                x, y = xs[j], ys[j]
                z = y - x
                p += x * y
                q += x * x
                r += y * y
                s += z * z
            dot, aa, bb, dd = dot + p, aa + q, bb + r, dd + s
        out[i, 0], out[i, 1], out[i, 2], out[i, 3] = dot, aa, bb, dd


def _sums_bfloat16(a: Any, b: Any, out: Any) -> None:
    rows, columns = a.shape
    for i in range(rows):
        dot, aa, bb, dd = 0.0, 0.0, 0.0, 0.0
        for start in range(0, columns, _LANE):
            xs, ys = a[i, start : start + _LANE], b[i, start : start + _LANE]
            p, q, r, s = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
            for j in range(len(xs)):
                # A bfloat16 is the upper half of a float32.
                x = np.uint32(np.uint32(xs[j]) << np.uint32(16)).view(np.float32)
                y = np.uint32(np.uint32(ys[j]) << np.uint32(16)).view(np.float32)
                z = y - x
                p += x * y
                q += x * x
                r += y * y
                s += z * z
            dot, aa, bb, dd = dot + p, aa + q, bb + r, dd + s
        out[i, 0], out[i, 1], out[i, 2], out[i, 3] = dot, aa, bb, dd


# Sums may be reordered, or nothing could be vectorized; NaN and infinity keep their meaning.
_compile = numba.njit(nogil=True, cache=True, fastmath={"reassoc", "contract", "nsz"})
sums_float32 = _compile(_sums_float32)
sums_bfloat16 = _compile(_sums_bfloat16)
