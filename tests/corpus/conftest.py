"""Files written on the spot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.corpus.reading import COMPRESS


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """Writes bytes under a name, compressed as the name says; gives the path."""

    def write(name: str, data: bytes) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        suffix = next((s for s in COMPRESS if s and name.endswith(s)), "")
        path.write_bytes(COMPRESS[suffix](data))
        return str(path)

    return write
