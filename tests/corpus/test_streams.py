"""Compressed files are read to their real end, or refused."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import zstandard

from coverage_job.corpus.streams import chunks, codec_of, decompress
from coverage_job.errors import BadFileError
from tests.corpus.reading import COMPRESS

SUFFIXES = [s for s in COMPRESS if s]
DATA = b"".join(b"%d some text\n" % (i * 7919 % 10007) for i in range(20000))


@pytest.fixture(params=SUFFIXES)
def suffix(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def read(path: Path) -> bytes:
    return b"".join(chunks(str(path)))


def test_members_follow_one_another(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    press = COMPRESS[suffix]
    path.write_bytes(press(DATA) + press(b"") + press(b"more\n"))
    assert read(path) == DATA + b"more\n"


@pytest.mark.parametrize("step", [1, 7])
def test_members_split_anywhere(suffix: str, step: int) -> None:
    data = COMPRESS[suffix](b"one\n") + COMPRESS[suffix](b"two\n")
    source = (data[i : i + step] for i in range(0, len(data), step))
    assert b"".join(decompress(source, codec_of(suffix) or "", "x")) == b"one\ntwo\n"


def test_a_cut_file_is_never_a_short_one(tmp_path: Path, suffix: str) -> None:
    whole = COMPRESS[suffix](DATA) + COMPRESS[suffix](b"second member\n")
    first = len(COMPRESS[suffix](DATA))
    path = tmp_path / f"x{suffix}"
    for size in {0, 1, 3, 10, first // 2, first - 1, first + 1, len(whole) - 1}:
        path.write_bytes(whole[:size])
        with pytest.raises(BadFileError, match="x\\" + suffix):
            read(path)


def test_what_follows_the_end_is_an_error(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    for tail in (b"garbage", b"\x00\x01", b"\x1f", b"more lines of text\n" * 100):
        path.write_bytes(COMPRESS[suffix](DATA) + tail)
        with pytest.raises(BadFileError):
            read(path)


def test_a_flipped_byte_is_an_error(tmp_path: Path, suffix: str) -> None:
    press = COMPRESS[suffix]
    if suffix == ".zst":
        press = zstandard.ZstdCompressor(write_checksum=True).compress
    data = bytearray(press(DATA))
    data[len(data) // 2] ^= 0x55
    path = tmp_path / f"x{suffix}"
    path.write_bytes(data)
    with pytest.raises(BadFileError):
        read(path)


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_zeros_may_pad(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    path.write_bytes(COMPRESS[suffix](DATA) + bytes(512))
    assert read(path) == DATA


def test_skippable_zstd_frames(tmp_path: Path) -> None:
    skip = struct.pack("<II", 0x184D2A51, 5) + b"12345"
    path = tmp_path / "x.zst"
    path.write_bytes(skip + COMPRESS[".zst"](DATA) + skip)
    assert read(path) == DATA


def test_a_plain_file_that_is_compressed(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(COMPRESS[suffix](DATA))
    with pytest.raises(BadFileError, match="rename"):
        read(path)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(BadFileError, match="cannot be read"):
        read(tmp_path / "nothing.jsonl")


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz"])
def test_a_bomb_is_given_out_in_parts(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    path.write_bytes(COMPRESS[suffix](bytes(8 << 20)))
    sizes = [len(chunk) for chunk in chunks(str(path))]
    assert sum(sizes) == 8 << 20
    assert max(sizes) <= 1 << 20


def test_a_zstd_bomb_is_given_out_in_parts(tmp_path: Path) -> None:
    path = tmp_path / "x.zst"
    with path.open("wb") as file, zstandard.ZstdCompressor().stream_writer(file) as writer:
        for _ in range(600):
            writer.write(bytes(1 << 20))
    sizes = [len(chunk) for chunk in chunks(str(path))]
    assert sum(sizes) == 600 << 20
    assert max(sizes) <= 256 << 20
