from __future__ import annotations

from collections.abc import Iterator

import pytest

from coverage_job.engines import spark as spark_module
from coverage_job.engines.spark import SparkEngine


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkEngine]:
    """One session for all tests of a run; it takes many seconds to start."""
    why_not = spark_module.unavailable()
    if why_not is not None:
        pytest.skip(f"Spark cannot start: {why_not}")
    with SparkEngine(workers=2, conf={"spark.driver.memory": "1g"}) as engine:
        yield engine
