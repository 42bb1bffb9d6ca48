#!/bin/busybox sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# The first process of a guest: mounts the build root, hands over to guest-init.
bb=/bin/busybox
$bb mount -t proc proc /proc
$bb mount -t sysfs sysfs /sys
$bb mount -t devtmpfs devtmpfs /dev
if $bb grep -q kfabric.probe /proc/cmdline; then
	echo "kfabric-probe: up" >/dev/console
	$bb poweroff -f
fi
fail() {
	echo "kfabric-init: $1" >/dev/console
	$bb poweroff -f
}
while read -r module; do
	$bb insmod "/m/$module" || fail "cannot load $module"
done </m/order
$bb mkdir -p /lower /rw /new
share=trans=virtio,version=9p2000.L,msize=262144
$bb mount -t 9p -o "$share,ro,cache=loose" kfabric-root /lower || fail "cannot mount the build root"
if $bb grep -q kfabric.installed /proc/cmdline; then
	# A machine of its own: its changes to the build root are on a disk, and systemd starts it.
	$bb mount -t ext4 /dev/vda /rw || fail "cannot mount the disk"
	$bb mount -t overlay -o lowerdir=/lower,upperdir=/rw/upper,workdir=/rw/work overlay /new || fail "cannot mount the overlay"
	release=$($bb uname -r)
	$bb mkdir /kernel
	$bb mount -t 9p -o "$share,ro,cache=loose" kfabric-modules /kernel || fail "cannot mount the kernel's modules"
	$bb mount --bind "/kernel/$release/kernel" "/new/usr/lib/modules/$release/kernel" || fail "cannot bind the kernel's modules"
	$bb mount --move /dev /new/dev
	$bb mount --move /proc /new/proc
	$bb mount --move /sys /new/sys
	exec $bb switch_root /new /sbin/init
fi
$bb mount -t tmpfs tmpfs /rw
$bb mkdir /rw/upper /rw/work
$bb mount -t overlay -o lowerdir=/lower,upperdir=/rw/upper,workdir=/rw/work overlay /new || fail "cannot mount the overlay"
$bb mkdir -p /new/usr/lib/modules /new/kfi /new/host
$bb mount -t 9p -o "$share,ro,cache=loose" kfabric-modules /new/usr/lib/modules || fail "cannot mount the kernel's modules"
$bb mount -t 9p -o "$share,ro,cache=loose" kfabric-run /new/kfi || fail "cannot mount the run's folder"
$bb mount --move /dev /new/dev
$bb mount --move /proc /new/proc
$bb mount --move /sys /new/sys
exec $bb switch_root /new /kfi/bin/guest-init
