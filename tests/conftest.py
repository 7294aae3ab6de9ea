"""What tests share: the real data beside the checkout, where it is there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# Times mean little on a machine that others use, and nothing where code is compiled on its first call.
settings.register_profile("coverage_job", deadline=None)
settings.load_profile("coverage_job")

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"

needs_shared = pytest.mark.skipif(
    not SHARED.is_dir(), reason=f"the shared real tokenizers and corpora are not at {SHARED}"
)
