"""What tests share: the real data beside the checkout, where it is there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"

needs_shared = pytest.mark.skipif(
    not SHARED.is_dir(), reason=f"the shared real tokenizers and corpora are not at {SHARED}"
)
