"""What `spark-submit` runs, with coverage-job's arguments: `spark-submit deploy/main.py run JOB.yaml`."""

import sys

from coverage_job.cli import main

if __name__ == "__main__":
    sys.exit(main())
