#!/bin/sh
# A hook that LXC calls: gives a container its own data disks and kernel settings, and removes them afterwards.
#   lxc_hook.sh DIRECTORY SIZE_MIB DISK... -- NAME lxc HOOK [...]
# DISK is the stable name, like kdist-k2-d01; its image is DIRECTORY/DISK.img.
set -eu

directory=$1 size_mib=$2
shift 2
disks=
while [ "$1" != -- ]; do
    disks="$disks $1"
    shift
done
# LXC appends the container's name, "lxc" and the kind of hook.
name=$2 hook=$4
settings=$(dirname "$0")/../image/etc/lab-settings

loops() { losetup --noheadings --output NAME --associated "$directory/$1.img"; }

pre_start() {
    mkdir -p "$directory"
    for disk in $disks; do
        [ -e "$directory/$disk.img" ] || truncate --size="${size_mib}M" "$directory/$disk.img"
        [ -n "$(loops "$disk")" ] || losetup --find "$directory/$disk.img"
    done
}

# Runs in the container's mount namespace before it starts: its /dev exists, this machine's files are still visible.
autodev() {
    dev=$LXC_ROOTFS_MOUNT/dev
    # vagrant-lxc adds the hooks to the container's settings again at each start, so LXC calls them several times.
    [ ! -d "$dev/disk/by-id" ] || return 0
    mkdir -p "$dev/disk/by-id"
    for disk in $disks; do
        device=$(loops "$disk")
        number=$(cat "/sys/block/${device#/dev/}/dev")
        mknod --mode=660 "$dev/${device#/dev/}" b "${number%:*}" "${number#*:}"
        ln -s "../../${device#/dev/}" "$dev/disk/by-id/$disk"
    done
    # Kernel settings of the whole machine: the container reads and writes files of its own instead.
    mkdir -p "$dev/.settings"
    while read -r setting; do
        [ -e "/proc/sys/$setting" ] && [ -e "$LXC_ROOTFS_MOUNT/proc/sys/$setting" ] || continue
        copy=$dev/.settings/$(echo "$setting" | tr / _)
        cat "/proc/sys/$setting" >"$copy" && mount --bind "$copy" "$LXC_ROOTFS_MOUNT/proc/sys/$setting"
    done <"$settings"
}

post_stop() {
    for disk in $disks; do
        for device in $(loops "$disk"); do losetup --detach "$device"; done
    done
}

destroy() {
    post_stop
    for disk in $disks; do rm -f "$directory/$disk.img"; done
    rmdir "$directory" 2>/dev/null || true
    # kdist_disks makes mount points immutable, so that lxc-destroy could not remove them.
    chattr -f -i "$(lxc-config lxc.lxcpath)/$name/rootfs/data"/* || true
}

case $hook in
pre-start) pre_start ;;
autodev) autodev ;;
post-stop) post_stop ;;
destroy) destroy ;;
*) echo "lxc_hook.sh: unknown hook $hook" >&2 && exit 1 ;;
esac
