#!/bin/sh
# Builds the bundle that Spark gateways install without internet access: dist/kdist-spark-<version>.tar, with PySpark, PyArrow and their
# dependencies, laid out like the one of tools/build_release.sh. The version is the first argument, by default that of role kdist_spark. The wheels fit the
# Python and the C library of the machine that this runs on.
set -eu
cd "$(dirname "$0")/.."
version=${1:-$(sed -n 's/^kdist_spark_version: //p' roles/kdist_spark/defaults/main.yml)}
out=${2:-dist}
python=$(tools/python.sh)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m venv "$work/venv"
echo "Bringing PySpark $version for $("$python" --version)"
"$work/venv/bin/python" -m pip --quiet --disable-pip-version-check --no-input \
    wheel --wheel-dir "$work/bundle/wheels" "pyspark==$version" 'pyarrow>=18' </dev/null
"$work/venv/bin/python" tools/describe_release.py "$work/bundle" "$version" pyspark

mkdir -p "$out"
bundle=$out/kdist-spark-$version.tar
tar --create --file "$bundle" --directory "$work/bundle" --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 \
    RELEASE.json requirements.txt wheels
echo "$bundle"
