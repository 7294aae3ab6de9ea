#!/bin/sh
# The packed environment's bin/python: this node's Python @VERSION@ with the packages beside this script.
here=$(CDPATH='' cd -- "$(dirname -- "$(readlink -f -- "$0")")/.." && pwd)
fits() {
  [ -n "$1" ] && command -v "$1" >/dev/null 2>&1 &&
    [ "$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = "@VERSION@" ]
}
for python in "${COVERAGE_JOB_PYTHON:-}" "$here/python/bin/python@VERSION@" python@VERSION@ python3 \
  /usr/bin/python@VERSION@ /usr/local/bin/python@VERSION@ /opt/python@VERSION@/bin/python@VERSION@; do
  if fits "$python"; then
    # After what Spark puts there, before the node's own packages.
    export PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$here/lib/python@VERSION@/site-packages" PYTHONNOUSERSITE=1
    exec "$python" "$@"
  fi
done
echo "coverage_job: $(hostname) has no Python @VERSION@; set COVERAGE_JOB_PYTHON to its path there" \
  "(spark.executorEnv.COVERAGE_JOB_PYTHON), or pack the interpreter too: deploy/pack.sh --with-python" >&2
exit 127
