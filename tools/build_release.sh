#!/bin/sh
# Builds the bundle that hosts install without internet access: dist/kdist-<version>.tar.
#   RELEASE.json       version, Python, platform, commit, and the digest of the wheels
#   requirements.txt   every wheel with its version and hash, for `pip install --require-hashes`
#   wheels/            kdist with its compiled codec, and its dependencies
# KDIST_RELEASE_VERSION=0.1.0+drill gives the same tree another version. The wheels fit the Python and the C library of the
# machine that this runs on: use the hosts' distribution, and its Python with KDIST_PYTHON=/usr/bin/python3.
set -eu
cd "$(dirname "$0")/.."
here=$(pwd -P)
out=${1:-dist}
python=$(tools/python.sh)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
pip() { "$work/venv/bin/python" -m pip --quiet --disable-pip-version-check --no-input "$@" </dev/null; }
"$python" -m venv "$work/venv"

# Built from a copy: a build leaves files in its tree, and the version may be overridden.
mkdir "$work/tree"
tar -cf - --exclude='*.so' --exclude='_compiled*.c' --exclude=__pycache__ kdist pyspark_kdist pyproject.toml setup.py README.md LICENSE |
    tar -xf - -C "$work/tree"
if [ -n "${KDIST_RELEASE_VERSION:-}" ]; then
    sed -i "s/^version = .*/version = \"$KDIST_RELEASE_VERSION\"/" "$work/tree/pyproject.toml"
fi
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$work/tree/pyproject.toml")

echo "Building kdist $version for $("$python" --version)"
pip wheel --wheel-dir "$work/bundle/wheels" "$work/tree"
unzip=$("$work/venv/bin/python" -m zipfile -l "$work/bundle/wheels/kdist-$version"-*.whl)
case $unzip in
*kdist/records/_compiled.*.so*) ;;
*)
    echo "The wheel has no compiled record codec: is a C compiler there?" >&2
    exit 1
    ;;
esac
commit=$(git -C "$here" rev-parse --short HEAD 2>/dev/null || echo unknown)
"$work/venv/bin/python" tools/describe_release.py "$work/bundle" "$version" "$commit"

mkdir -p "$out"
bundle=$out/kdist-$version.tar
tar --create --file "$bundle" --directory "$work/bundle" --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 \
    RELEASE.json requirements.txt wheels
(cd "$out" && sha256sum "kdist-$version.tar" >"kdist-$version.tar.sha256")
echo "$bundle"
