#!/bin/sh
# Compiles the record codec in place. A wheel may lack it; a working tree may not, since its tests run both codecs.
set -eu
cd "$(dirname "$0")/.."

log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! .venv/bin/python setup.py --quiet build_ext --inplace >"$log" 2>&1 </dev/null ||
    ! .venv/bin/python -c 'from kdist.records import _compiled, _compiled_produced as produced; assert all(m.__file__.endswith(".so") for m in (_compiled, produced))' >>"$log" 2>&1; then
    cat "$log" >&2
    echo "The compiled record codec could not be built." >&2
    exit 1
fi
touch .venv/.codec
