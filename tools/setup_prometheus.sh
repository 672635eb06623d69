#!/bin/sh
# Gets Prometheus, promtool and the node exporter, which judge rules and dashboards, into .cache/bin. Installing Debian's packages would
# start servers, so they are only unpacked.
set -eu
cd "$(dirname "$0")/.."
missing=
for program in prometheus promtool prometheus-node-exporter; do
    command -v "$program" >/dev/null || [ -x ".cache/bin/$program" ] || missing="$missing $program"
done
if [ -z "$missing" ]; then exit 0; fi
if ! command -v apt-get >/dev/null; then
    echo "The tests of monitoring need Prometheus with promtool, and its node exporter." >&2
    exit 1
fi
echo "Bringing$missing"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ "$(id -u)" = 0 ]; then
    chmod 755 "$work"
    apt-get update --quiet --quiet >/dev/null
fi
(cd "$work" && apt-get download --quiet --quiet prometheus prometheus-node-exporter >/dev/null 2>&1)
for package in "$work"/*.deb; do dpkg-deb --extract "$package" "$work/unpacked"; done
mkdir -p .cache/bin
for program in $missing; do mv "$work/unpacked/usr/bin/$program" .cache/bin/; done
