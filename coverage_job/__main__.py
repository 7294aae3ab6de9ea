"""``python -m coverage_job``."""

import sys

from coverage_job.cli import main

sys.exit(main())
