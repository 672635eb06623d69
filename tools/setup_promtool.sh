#!/bin/sh
# Gets promtool, which checks the alert rules, into .cache/bin. Debian ships it in the prometheus package; installing that would start
# a server, so the package is only unpacked.
set -eu
cd "$(dirname "$0")/.."
if command -v promtool >/dev/null || [ -x .cache/bin/promtool ]; then exit 0; fi
if ! command -v apt-get >/dev/null; then
    echo "The tests of the alert rules need promtool, which comes with Prometheus." >&2
    exit 1
fi
echo "Bringing promtool"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ "$(id -u)" = 0 ]; then
    chmod 755 "$work"
    apt-get update --quiet --quiet >/dev/null
fi
(cd "$work" && apt-get download --quiet --quiet prometheus >/dev/null 2>&1)
mkdir -p .cache/bin
dpkg-deb --fsys-tarfile "$work"/prometheus_*.deb | tar --extract --to-stdout ./usr/bin/promtool >"$work/promtool"
chmod 755 "$work/promtool"
mv "$work/promtool" .cache/bin/promtool
