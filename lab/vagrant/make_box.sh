#!/bin/sh
# Builds the Vagrant box kdist/lxc from the lab's base image: the same Debian, plus the user that Vagrant logs in as.
# Run it as root: lab/vagrant/make_box.sh
set -eu
cd "$(dirname "$0")/../.."

image=$(.venv/bin/python -m lab image)
work=$(mktemp --directory --tmpdir="$(dirname "$image")" box.XXXXXX)
trap 'umount "$work/rootfs" 2>/dev/null || true; rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM # dash does not run the EXIT trap when a signal ends it

# The user is added in an overlay, so that the image stays unchanged.
mkdir "$work/upper" "$work/work" "$work/rootfs"
mount -t overlay kdist-box -o "lowerdir=$image,upperdir=$work/upper,workdir=$work/work" "$work/rootfs"
chroot "$work/rootfs" useradd --create-home --shell /bin/bash vagrant
key=$(find /usr/share/rubygems-integration /opt/vagrant -name vagrant.pub -path '*keys*' 2>/dev/null | head -n 1)
install -d -m 700 "$work/rootfs/home/vagrant/.ssh"
install -m 600 "$key" "$work/rootfs/home/vagrant/.ssh/authorized_keys"
chroot "$work/rootfs" chown --recursive vagrant: /home/vagrant/.ssh
echo 'vagrant ALL=(ALL) NOPASSWD: ALL' >"$work/rootfs/etc/sudoers.d/vagrant"
chmod 440 "$work/rootfs/etc/sudoers.d/vagrant"
# Vagrant's user and its key are public anyway, so the host key may be public too.
ssh-keygen -q -t ed25519 -N '' -C kdist-box -f "$work/rootfs/etc/ssh/ssh_host_ed25519_key"
# Vagrant's own network gives the first interface its address.
cat >"$work/rootfs/etc/systemd/network/10-eth0.network" <<'NETWORK'
[Match]
Name=eth0

[Network]
DHCP=yes
NETWORK
rm -f "$work/rootfs/etc/resolv.conf"

cat >"$work/metadata.json" <<'METADATA'
{"provider": "lxc", "version": "1.0.0", "template-opts": {}}
METADATA
cat >"$work/lxc-config" <<CONFIG
lxc.include = /usr/share/lxc/config/common.conf
lxc.arch = $(dpkg --print-architecture)
lxc.apparmor.profile = unconfined
CONFIG
tar --create --numeric-owner --use-compress-program='gzip -1' --file="$work/rootfs.tar.gz" --directory="$work" ./rootfs
tar --create --file="$work/kdist.box" --directory="$work" metadata.json lxc-config rootfs.tar.gz
vagrant box add --force --name kdist/lxc "$work/kdist.box"
echo "The box kdist/lxc is there: KDIST_BOX=kdist/lxc vagrant up --provider=lxc"
