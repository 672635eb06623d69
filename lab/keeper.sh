#!/bin/sh
# keeper.sh [CGROUP.PROCS...] -- NSPAWN...: a host's power supply.
# Enters the host's cgroups and starts it, and again each time it reboots, for which nspawn exits with 133.
set -eu

while [ "$1" != -- ]; do
    echo $$ >"$1"
    shift
done
shift
while :; do
    status=0
    "$@" || status=$?
    echo "nspawn ended with $status"
    [ "$status" = 133 ] || exit "$status"
done
