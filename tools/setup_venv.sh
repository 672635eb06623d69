#!/bin/sh
# Makes .venv, or brings the one that stands here up to date with pyproject.toml.
set -eu
cd "$(dirname "$0")/.."
here=$(pwd -P)

# Scripts in a virtual environment carry its path: one made elsewhere would run the tree it came from.
if ! grep -qsF "$here/.venv/bin/python" .venv/bin/pip; then
    python=$(tools/python.sh)
    echo "Making .venv with $("$python" --version) ($python)"
    rm -rf .venv
    "$python" -m venv .venv
fi

# The build tools go in first, and the package is then built with them: the codec that the tests meet
# is compiled by the Cython they know, and nothing is downloaded twice.
pip() { .venv/bin/python -m pip --quiet --disable-pip-version-check --no-input "$@" </dev/null; }
pip install 'setuptools>=77' 'cython>=3.1'
# setuptools warns of every editable installation that the working tree comes first: it should.
PYTHONWARNINGS='ignore:Editable installation' \
    pip install --no-build-isolation --use-pep517 --editable '.[dev]'
echo "$here" >.venv/.ready
