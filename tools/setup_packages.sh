#!/bin/sh
# Checks for programs and headers that the distribution provides; installs missing packages as root, else names them.
#   setup_packages.sh build    a Python that makes virtual environments, its headers, a compiler
#   setup_packages.sh demo     Java, for ZooKeeper and Spark
#   setup_packages.sh suites   what building librdkafka's own tests needs
#   setup_packages.sh lab      what the lab needs to make its hosts
#   setup_packages.sh vagrant  Vagrant with LXC, and what making its box needs
#   setup_packages.sh peer     a JDK, Maven and kcat for the tests with peers; XFS for those on a loop disk
# It looks for the program or header, not the package: a JDK from elsewhere serves as well as Debian's.
set -eu
cd "$(dirname "$0")/.."

missing_build() {
    python=$(tools/python.sh 2>/dev/null || echo /usr/bin/python3)
    "$python" -c 'import ensurepip, venv' 2>/dev/null || echo python3-venv
    "$python" -c 'import sysconfig; open(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null ||
        echo python3-dev
    command -v gcc >/dev/null || echo gcc
}

missing_demo() {
    command -v java >/dev/null || echo default-jre-headless
}

missing_peer() {
    command -v javac >/dev/null || echo default-jdk-headless
    command -v mvn >/dev/null || echo maven
    command -v kcat >/dev/null || echo kcat
    # A user who may not mount a loop disk does not need mkfs either.
    ! unshare --mount true 2>/dev/null || [ -x /usr/sbin/mkfs.xfs ] || echo xfsprogs
}

missing_suites() {
    command -v make >/dev/null || echo make
    command -v g++ >/dev/null || { echo g++ rapidjson-dev libzstd-dev libssl-dev zlib1g-dev && return; }
    finds_header rapidjson/document.h || echo rapidjson-dev
    finds_header zstd.h || echo libzstd-dev
    finds_header openssl/ssl.h || echo libssl-dev
    finds_header zlib.h || echo zlib1g-dev
}

finds_header() {
    echo "#include <$1>" | g++ -x c++ -E - >/dev/null 2>&1
}

missing_lab() {
    command -v systemd-nspawn >/dev/null || echo systemd-container
    command -v mmdebstrap >/dev/null || echo mmdebstrap
    command -v ip >/dev/null || echo iproute2
    command -v nft >/dev/null || [ -x /usr/sbin/nft ] || echo nftables
    command -v ssh >/dev/null || echo openssh-client
    [ -x /usr/sbin/xfs_io ] || echo xfsprogs
}

missing_vagrant() {
    for package in vagrant vagrant-lxc lxc libarchive-tools dnsmasq-base uidmap redir rsync sudo bridge-utils; do
        dpkg-query --show --showformat='${db:Status-Abbrev}' "$package" 2>/dev/null | grep --quiet '^ii' || echo "$package"
    done
}

packages=$("missing_$1" | xargs)
[ -n "$packages" ] || exit 0

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "kdist needs packages that are not here; as root: apt-get install $packages" >&2
    exit 1
fi

echo "Installing $packages"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086 # the words of $packages must be split
if ! { apt-get update --quiet --quiet &&
    apt-get install --yes --quiet --quiet --no-install-recommends -o DPkg::Lock::Timeout=300 $packages; } \
    >"$log" 2>&1 </dev/null; then
    cat "$log" >&2
    exit 1
fi
still=$("missing_$1" | xargs)
if [ -n "$still" ]; then
    echo "kdist still does not find what $still should have brought." >&2
    exit 1
fi
