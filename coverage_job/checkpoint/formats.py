"""The tensors that a checkpoint file holds: name, number format, shape and where the bytes lie.

Nothing of a file is executed. The formats are those of safetensors (an 8-byte little-endian length, a
JSON header, the data), NumPy's `.npy`, and PyTorch's zip archives, whose pickle is read by a machine
that knows a few tensor builders and replaces everything else by an inert object.
"""

from __future__ import annotations

import collections
import io
import math
import pickle
import pickletools
import struct
import zipfile
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import orjson

from coverage_job.checkpoint.dtypes import STORED
from coverage_job.checkpoint.files import Files, RangeFile
from coverage_job.errors import CheckpointError

# The safetensors format's own limit; no header of a real model comes near it.
MAX_HEADER = 100_000_000
MAX_PICKLE = 256 << 20


@dataclass(frozen=True)
class Stored:
    """A tensor in a file: row-major values of `dtype` (safetensors' name for it) from byte `offset` on.

    member: where the tensor lies in a zip archive's member, the file offset of that member's header, whose
    length only the file itself says; `offset` then counts from the end of the header (see `located`).
    """

    path: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    member: int | None = None

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * STORED[self.dtype].itemsize

    @property
    def readable(self) -> bool:
        return self.dtype in STORED


def tensors(files: Files, path: str) -> dict[str, Stored]:
    """The tensors of one file by name; the format is taken from the file's name.

    Raises CheckpointError naming the file where it is not what its name says.
    """
    if path.endswith(".safetensors"):
        return safetensors_tensors(files, path)
    if path.endswith(".npy"):
        return npy_tensors(files, path)
    if path.endswith((".bin", ".pt", ".pth")):
        return torch_tensors(files, path)
    raise CheckpointError(
        f"checkpoint {path}: not a kind of file that is read; give .safetensors, .bin, .pt, .pth or .npy, "
        "or the folder"
    )


def safetensors_tensors(files: Files, path: str) -> dict[str, Stored]:
    """From a safetensors header, every range checked against the file's size."""

    def bad(what: str) -> CheckpointError:
        return CheckpointError(f"checkpoint {path}: no valid safetensors file ({what}); copy it again")

    size = files.size(path)
    if size < 8:
        raise bad(f"{size} bytes")
    (length,) = struct.unpack("<Q", files.read(path, 0, 8))
    if length > min(MAX_HEADER, size - 8):
        raise bad(f"its header claims {length} bytes of {size}")
    try:
        header = orjson.loads(files.read(path, 8, length))
    except orjson.JSONDecodeError:
        raise bad("its header is no JSON") from None
    if not isinstance(header, dict):
        raise bad("its header is no JSON object")
    start, found = 8 + length, {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        try:
            dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        except (TypeError, KeyError, ValueError):
            raise bad(f"tensor {name[:80]!r} has no dtype, shape and offsets") from None
        if not (isinstance(dtype, str) and isinstance(shape, list) and _naturals([*shape, begin, end])):
            raise bad(f"tensor {name[:80]!r} has a dtype, shape or offset of a wrong type")
        if not begin <= end <= size - start:
            raise bad(f"tensor {name[:80]!r} lies outside the file")
        if dtype in STORED and end - begin != math.prod(shape) * STORED[dtype].itemsize:
            raise bad(f"tensor {name[:80]!r} has {end - begin} bytes, not those of its shape {shape}")
        found[name] = Stored(path, name, dtype, tuple(shape), start + begin)
    return found


def _naturals(values: list[Any]) -> bool:
    return all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in values)


_NPY_DTYPES = {"<f8": "F64", "<f4": "F32", "<f2": "F16", "|V2": "BF16"}


def npy_tensors(files: Files, path: str) -> dict[str, Stored]:
    """The one array of a `.npy` file, named '' (bfloat16 is what ml_dtypes saves as two opaque bytes)."""
    size = files.size(path)
    head = files.read(path, 0, min(size, 4096))
    stream, npy = io.BytesIO(head), cast(Any, np.lib.format)
    try:
        version = npy.read_magic(stream)
        read = {1: npy.read_array_header_1_0, 2: npy.read_array_header_2_0}[version[0]]
        shape, fortran, dtype = read(stream)
    except Exception:  # its header is Python's own syntax, which fails in many ways
        raise CheckpointError(f"checkpoint {path}: no valid .npy file; save it again") from None
    name = _NPY_DTYPES.get(dtype.str)
    if name is None or fortran or len(shape) != 2:
        raise CheckpointError(
            f"checkpoint {path}: holds {dtype} of shape {shape}{' in column order' if fortran else ''}; "
            "save a row-major matrix of float64, float32, float16 or bfloat16"
        )
    stored = Stored(path, "", name, tuple(shape), stream.tell())
    if stored.offset + stored.nbytes > size:
        raise CheckpointError(f"checkpoint {path}: cut off, {size} bytes are too few for shape {shape}")
    return {"": stored}


# PyTorch's storage classes and, for tensors saved through an untyped storage, its dtypes.
_TORCH_DTYPES = {
    "DoubleStorage": "F64",
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}


@dataclass(frozen=True)
class _Storage:
    dtype: str
    key: str


@dataclass(frozen=True)
class _View:
    storage: _Storage
    dtype: str
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class _Inert:
    """Stands for whatever a pickle names that is no tensor: takes any arguments, does nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def append(self, value: Any) -> None:
        pass

    def extend(self, values: Any) -> None:
        pass


@dataclass(frozen=True)
class _DType:
    name: str

    def __call__(self, *args: Any) -> Any:
        # Not a dtype after all, but some other name of torch that is called, such as torch.device.
        return _Inert()


def _rebuild(storage: Any, offset: Any, shape: Any, stride: Any, *_rest: Any) -> Any:
    if not isinstance(storage, _Storage) or not _naturals([offset, *shape, *stride]):
        return _Inert()
    return _View(storage, storage.dtype, offset, tuple(shape), tuple(stride))


def _rebuild_typed(
    storage: Any, offset: Any, shape: Any, stride: Any, _grad: Any, _hooks: Any, dtype: Any, *_rest: Any
) -> Any:
    view = _rebuild(storage, offset, shape, stride)
    if isinstance(view, _View) and isinstance(dtype, _DType):
        return _View(view.storage, dtype.name, offset, view.shape, view.stride)
    return view


def _rebuild_parameter(data: Any, *_rest: Any) -> Any:
    return data


class _TensorUnpickler(pickle.Unpickler):
    """Builds descriptions of tensors; no name in the pickle is ever imported."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if module == "torch._utils" and name == "_rebuild_tensor_v2":
            return _rebuild
        if module == "torch._utils" and name == "_rebuild_tensor_v3":
            return _rebuild_typed
        if module == "torch._utils" and name == "_rebuild_parameter":
            return _rebuild_parameter
        if module in ("torch", "torch.storage"):
            return _DType(_TORCH_DTYPES.get(name, name))
        return _Inert

    def persistent_load(self, pid: Any) -> Any:
        # ("storage", class, key, location, number of elements)
        if isinstance(pid, tuple) and len(pid) == 5 and pid[0] == "storage" and isinstance(pid[2], str):
            return _Storage(pid[1].name if isinstance(pid[1], _DType) else "", pid[2])
        return _Inert()


def torch_tensors(files: Files, path: str) -> dict[str, Stored]:
    """From the zip archive that `torch.save` writes since version 1.6; nested dicts give dotted names."""

    def bad(what: str) -> CheckpointError:
        return CheckpointError(
            f"checkpoint {path}: {what}; save it again with safetensors, "
            "or with torch.save of PyTorch 1.6 or later"
        )

    try:
        archive = zipfile.ZipFile(RangeFile(files, path))
        members = {info.filename: info for info in archive.infolist()}
        index = next((n for n in members if n.endswith("data.pkl") and n.count("/") <= 1), None)
        if index is None:
            raise bad("a zip archive without data.pkl")
        if members[index].file_size > MAX_PICKLE:
            raise bad("its index is too large")
        data = archive.read(index)
    except CheckpointError:
        raise
    except Exception:  # a damaged archive fails in many ways
        raise bad("not a PyTorch zip archive") from None
    try:
        # Python's unpickler makes room for a memo as large as its highest number.
        if any(op.name.endswith("PUT") and (arg or 0) > len(data) for op, arg, _ in pickletools.genops(data)):
            raise ValueError("memo")
        tree = _TensorUnpickler(io.BytesIO(data)).load()
    except Exception as error:  # a hostile or broken pickle can fail in any way
        raise bad(f"its index cannot be read ({type(error).__name__})") from None
    prefix = index.removesuffix("data.pkl")
    found = {}
    for name, view in _flatten(tree):
        member = members.get(f"{prefix}data/{view.storage.key}")
        if view.dtype not in STORED or member is None or not _row_major(view):
            continue
        if member.compress_type != zipfile.ZIP_STORED:
            raise bad(f"tensor {name[:80]!r} is compressed")
        start = view.offset * STORED[view.dtype].itemsize
        stored = Stored(path, name, view.dtype, view.shape, start, member.header_offset)
        if start + stored.nbytes > member.file_size:
            raise bad(f"tensor {name[:80]!r} lies outside its storage")
        found[name] = stored
    return found


def located(files: Files, stored: Stored) -> Stored:
    """The same tensor with its offset counted from the start of the file."""
    if stored.member is None:
        return stored
    header = files.read(stored.path, stored.member, 30)
    if header[:4] != b"PK\x03\x04":
        raise CheckpointError(f"checkpoint {stored.path}: tensor {stored.name[:80]!r} has no zip header")
    # The header is followed by the member's name and by padding; the central directory knows neither length.
    name_length, extra_length = struct.unpack("<HH", header[26:30])
    offset = stored.member + 30 + name_length + extra_length + stored.offset
    if offset + stored.nbytes > files.size(stored.path):
        raise CheckpointError(f"checkpoint {stored.path}: tensor {stored.name[:80]!r} lies outside the file")
    return replace(stored, offset=offset, member=None)


def _row_major(view: _View) -> bool:
    expected, stride = [], 1
    for n in reversed(view.shape):
        expected.append(stride)
        stride *= n
    return tuple(reversed(expected)) == view.stride


def _flatten(tree: Any) -> list[tuple[str, _View]]:
    """Tensors of nested dicts as (dotted name, view); bounded, since a pickle may hold cycles."""
    found: list[tuple[str, _View]] = []
    queue: list[tuple[str, Any, int]] = [("", tree, 0)]
    visited = 0
    while queue and visited < 1_000_000:
        name, node, depth = queue.pop()
        visited += 1
        if isinstance(node, _View):
            found.append((name, node))
        elif isinstance(node, dict) and depth < 8:
            queue += [
                (f"{name}.{key}" if name else str(key), value, depth + 1) for key, value in node.items()
            ]
    return found
