#!/usr/bin/env bash
# Packs coverage_job and what it needs into one archive that executors unpack: dist/environment.tar.gz.
#
#   deploy/pack.sh [--extra s3]... [--python-version 3.11 --platform manylinux_2_28_x86_64] [--with-python]
#
# --extra           also pack an optional group of pyproject.toml: s3, gcs, hf, http
# --python-version  of the nodes, where it is not this machine's; goes with --platform
# --with-python     also pack this machine's interpreter, for nodes that have none of this version
#
# The archive is laid out like a virtual environment, but its bin/python is no link: a virtual environment's
# interpreter is a link to where it was made, which on another machine points nowhere. It is a script that
# finds this version of Python on the node, or says in one line that there is none. Spark itself is not
# packed: a cluster brings its own.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
out=${OUT:-dist}
extras=() target=() with_python=
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
while [ $# -gt 0 ]; do
  case $1 in
    --extra) extras+=("$2"); shift 2 ;;
    --python-version) version=$2; target+=(--python-version "$2" --only-binary=:all:); shift 2 ;;
    --platform) target+=(--platform "$2"); shift 2 ;;
    --with-python) with_python=1; shift ;;
    *) echo "pack.sh: unknown argument $1; see the top of the script" >&2; exit 2 ;;
  esac
done

mkdir -p "$out"
# What an earlier build left there would be packed, modules that are no more among it.
rm -rf build
work=$(mktemp -d "$out/packing.XXXXXX")
trap 'rm -rf "$work"' EXIT
"$python" -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$work/wheel" .
wheel=$(echo "$work"/wheel/*.whl)

environment=$work/environment
site=$environment/lib/python$version/site-packages
names=$(IFS=,; echo "${extras[*]-}")
# pandas: pyspark asks for it where a plan with mapInArrow is made, that is on the driver.
# Through an empty environment: what is installed here is not in the archive, and must not seem so.
"$python" -m venv --without-pip "$work/empty"
"$python" -m pip --python "$work/empty/bin/python" install --quiet --disable-pip-version-check --target "$site" \
  ${target[@]+"${target[@]}"} "$wheel${names:+[$names]}" 'pandas<3'
cp "$wheel" "$out/"

mkdir -p "$environment/bin"
sed "s/@VERSION@/$version/g" deploy/python-of-node.sh > "$environment/bin/python"
chmod +x "$environment/bin/python"
cp deploy/main.py "$environment/main.py"

if [ -n "$with_python" ]; then
  base=$("$python" -c 'import sys; print(sys.base_prefix)')
  case $base in
    /usr|/usr/local) echo "pack.sh: the system's own Python in $base cannot be copied alone;" \
      "set PYTHON to one with a folder of its own (pyenv, uv)" >&2; exit 2 ;;
  esac
  mkdir -p "$environment/python/lib"
  cp -R "$base/bin" "$environment/python/"
  cp -R "$base/lib/python$version" "$environment/python/lib/"
  find "$base/lib" -maxdepth 1 -name 'libpython*.so*' -exec cp -P {} "$environment/python/lib/" \;
  rm -rf "$environment/python/lib/python$version"/{test,site-packages,idlelib,turtledemo}
fi

# What each worker would compile when it starts is compiled once: the counting loops.
if [ ${#target[@]} -eq 0 ]; then
  "$environment/bin/python" deploy/warm.py > /dev/null
fi
tar -C "$environment" -c . | gzip -1 > "$out/environment.tar.gz.part"
mv "$out/environment.tar.gz.part" "$out/environment.tar.gz"
# The same, unpacked: the driver of client mode runs from it.
rm -rf "$out/environment"
mv "$environment" "$out/environment"
echo "$out/environment.tar.gz: Python $version, $(du -h "$out/environment.tar.gz" | cut -f1)"
