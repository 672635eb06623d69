#!/bin/sh
# keeper.sh [CGROUP.PROCS...] -- NSPAWN...: keeps a host running.
# Enters the host's cgroups and starts nspawn, and starts it again after each reboot, which nspawn reports by
# exit status 133.
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
