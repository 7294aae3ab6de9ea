"""What `spark-submit` runs: `spark-submit deploy/main.py run JOB.yaml`, with the arguments of coverage-job."""

import sys

from coverage_job.cli import main

if __name__ == "__main__":
    sys.exit(main())
