#!/bin/sh
# Makes .venv, or updates an existing one to pyproject.toml.
set -eu
cd "$(dirname "$0")/.."
here=$(pwd -P)

# Scripts in a virtual environment contain its path: a copied one would run the tree it came from.
if ! grep -qsF "$here/.venv/bin/python" .venv/bin/pip; then
    python=$(tools/python.sh)
    echo "Making .venv with $("$python" --version) ($python)"
    rm -rf .venv
    "$python" -m venv .venv
fi

# The build tools are installed first and the package is built with them, without build isolation: the
# tests then use the Cython that compiled the codec, and nothing is downloaded twice.
pip() { .venv/bin/python -m pip --quiet --disable-pip-version-check --no-input "$@" </dev/null; }
pip install 'setuptools>=77' 'cython>=3.1'
# setuptools warns that an editable installation puts the working tree first on the path: intended.
PYTHONWARNINGS='ignore:Editable installation' \
    pip install --no-build-isolation --use-pep517 --editable '.[dev]'
echo "$here" >.venv/.ready
