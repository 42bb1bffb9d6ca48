#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Usage: prepare.sh RELEASE HEADERS
#
# Makes ./kernel-tree, the tree that the modules are built against: HEADERS themselves if they contain the
# Rust metadata, or else a tree from the distribution's source package.
set -eu

release=$1 headers=$2
here=$(dirname "$0")

fail() {
	echo "kfabric: $*" >&2
	exit 1
}

rm -rf kernel-tree
if [ -e "$headers/rust/libkernel.rmeta" ]; then
	ln -s "$headers" kernel-tree
	exit
fi
series=$(echo "$release" | sed -n 's/^\([0-9]*\.[0-9]*\).*/\1/p')
source=/usr/src/linux-source-$series.tar.xz
[ -e "$source" ] ||
	fail "$source is missing: install the package linux-source-$series of the version of kernel $release"
mkdir kernel-tree
# Without most of the files that only a whole kernel needs.
top="linux-source-$series"
tar -xJf "$source" --strip-components=1 -C kernel-tree \
	--exclude="$top/drivers/*.c" --exclude="$top/fs/*.c" --exclude="$top/net/*.c" \
	--exclude="$top/sound/*.c" --exclude="$top/Documentation/[!K]*" \
	--exclude="$top/tools/testing/*" --exclude="$top/arch/[!x]*/*.[chS]" \
	--exclude="$top/arch/[!x]*/*.dts*"
cp "$here/kernel-rust.sh" kernel-tree/
cd kernel-tree
sh ./kernel-rust.sh "$release" "$headers/.config" "$headers/Module.symvers" ||
	fail "no Rust metadata of kernel $release: is linux-source-$series of the kernel's version installed, and its rustc?"
