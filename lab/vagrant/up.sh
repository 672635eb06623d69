#!/bin/sh
# up.sh [PROVIDER [VAGRANT'S ARGUMENTS]]: starts the Vagrantfile's machines and deploys kdist to them.
# It uses the Ansible of .venv. For LXC it uses the box of `make vagrant-box`, and starts LXC's bridge if nothing has.
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
# Start machines one after another: the last one deploys to all, so all others must be up before it.
exec vagrant up --no-parallel --provider="$provider" "$@"
