#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Usage: kernel-rust.sh RELEASE CONFIG SYMVERS
#
# Makes the Rust metadata of kernel RELEASE in the current folder, an unpacked source tree. CONFIG and
# SYMVERS are the kernel's own configuration and Module.symvers. Fails if the tree does not match the
# kernel. `cargo xtask setup` and the package kfabric-dkms run this script.
set -eu

release=$1 config=$2 symvers=$3

fail() {
	echo "kernel-rust: $*" >&2
	exit 1
}

cp "$config" .config
cp "$symvers" Module.symvers
# The part of the release after the version number.
printf '%s' "$release" | sed 's/^[0-9.]*//' >localversion
make olddefconfig
make -j"$(nproc)" modules_prepare

named=$(cat include/config/kernel.release)
[ "$named" = "$release" ] || fail "the tree calls itself $named, the kernel $release"

# A missing tool or another compiler changes the configuration silently, and with it the layout of the
# kernel's structures. The numbers of the tools for C are not compared: their features are options of
# their own.
options() {
	grep '^CONFIG_' "$1" | grep -Ev '^CONFIG_(CC_VERSION_TEXT|GCC_VERSION|AS_VERSION|LD_VERSION|PAHOLE_VERSION)=' |
		LC_ALL=C sort
}
options "$config" >.config-theirs
options .config >.config-ours
changed=$(diff .config-theirs .config-ours | grep '^[<>]' | tr '\n' ' ') || true
[ -z "$changed" ] || fail "the tree is not configured as the kernel was (< kernel, > tree): $changed"

cut -f 2 "$symvers" | LC_ALL=C sort -u >.symbols-theirs
sed -n 's/^[^(]*(\([^)]*\)).*/\1/p' rust/exports_kernel_generated.h | LC_ALL=C sort -u >.symbols-ours
strange=$(LC_ALL=C comm -13 .symbols-theirs .symbols-ours | head -n 1)
[ -z "$strange" ] || fail "Rust symbols of the tree are unknown to the kernel, the first: $strange"
rm -f .config-theirs .config-ours .symbols-theirs .symbols-ours
