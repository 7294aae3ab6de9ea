#!/usr/bin/env bash
# Submits a command of coverage-job to a cluster with the packed environment:
#
#   deploy/pack.sh
#   deploy/submit.sh --master yarn --deploy-mode cluster --files tokenizer.json -- run s3://bucket/job.yaml
#   deploy/submit.sh --master spark://host:7077 -- run job.yaml --output s3://bucket/runs/today
#
# What stands before `--` goes to spark-submit and wins over the settings below; what follows are the
# arguments of coverage-job. On YARN and standalone clusters; for Kubernetes and Databricks see README.md.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
dist=${OUT:-$here/dist}
archive=${ARCHIVE:-$dist/environment.tar.gz}

before=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do before+=("$1"); shift; done
[ "${1:-}" = -- ] && [ $# -gt 1 ] || { sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2; }
shift
[ -e "$archive" ] || case $archive in
  *://*) ;;
  *) echo "submit.sh: $archive is not there; make it with deploy/pack.sh" >&2; exit 2 ;;
esac

settings=(
  # Executors run Python from the archive; the driver of client mode from its unpacked copy. One build for
  # both: a difference would be stopped by the run's own preflight.
  spark.pyspark.python=./environment/bin/python
  spark.pyspark.driver.python="${DRIVER_PYTHON:-$dist/environment/bin/python}"

  # Memory. The JVM only hands Arrow batches about: 2 GB serve any number of cores. Python lives outside of
  # it, in the overhead: per core a tokenizer (up to 0.4 GB), a table of chunks (engine.cache_mib, 0.25 GB) and
  # batches and counts (up to 0.4 GB). Here for 4 cores; raise cores and overhead together.
  spark.executor.cores=4
  spark.executor.memory=2g
  spark.executor.memoryOverhead=5g
  # spark.executor.pyspark.memory is left alone: it limits address space, and a mapped file that
  # takes no memory counts against it.
  spark.driver.memory=4g
  # Partial counts of all tasks come back to the driver in compressed pieces, however many they are.
  spark.driver.maxResultSize=0

  # A worker keeps its tokenizer and its table from task to task.
  spark.python.worker.reuse=true
  # A crash in native code leaves a traceback instead of "worker exited".
  spark.python.worker.faulthandler.enabled=true

  # How tables (`table:`) are cut and handed over. Files are cut by the job's engine.split_bytes instead.
  spark.sql.files.maxPartitionBytes=128m
  # The engine itself sets the rows of an Arrow batch (spark.sql.execution.arrow.maxRecordsPerBatch), and the
  # bytes where Spark knows that limit: rows alone would let documents of megabytes fill a worker's memory.

  # A task that failed is tried again, here or on another node, and gives the same counts: its output is
  # taken once, and its part in the store has the same name and content.
  spark.task.maxFailures=4
  spark.stage.maxConsecutiveAttempts=4
  # Speculation would be safe for the same reason; it is off because splits are of even size, so
  # a second copy mostly reads the object store twice.
  spark.speculation=false

  # One thread a task: Spark already runs a task per core.
  spark.executorEnv.OMP_NUM_THREADS=1
  spark.executorEnv.RAYON_NUM_THREADS=1
  spark.executorEnv.POLARS_MAX_THREADS=1
  spark.executorEnv.TOKENIZERS_PARALLELISM=false
)
conf=()
for setting in "${settings[@]}"; do conf+=(--conf "$setting"); done
exec "${SPARK_HOME:+$SPARK_HOME/bin/}spark-submit" --name coverage_job --archives "$archive#environment" \
  "${conf[@]}" ${before[@]+"${before[@]}"} "$here/deploy/main.py" "$@"
