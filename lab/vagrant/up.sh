#!/bin/sh
# up.sh [PROVIDER [VAGRANT'S ARGUMENTS]]: starts the Vagrantfile's machines and deploys kdist to them.
# Ansible is the one of .venv; LXC gets the box of `make vagrant-box`, and its bridge where no systemd starts it.
set -eu
cd "$(dirname "$0")/../.."

provider=${1:-${VAGRANT_DEFAULT_PROVIDER:-virtualbox}}
[ $# = 0 ] || shift
PATH=$PWD/.venv/bin:$PATH
export PATH

if [ "$provider" = lxc ]; then
    export KDIST_BOX="${KDIST_BOX:-kdist/lxc}"
    [ -d /sys/class/net/lxcbr0 ] || /usr/libexec/lxc/lxc-net start
fi
# One after another: the last machine deploys to all, and must not be the first that is up.
exec vagrant up --no-parallel --provider="$provider" "$@"
