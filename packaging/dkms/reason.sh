#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Usage: reason.sh RELEASE HEADERS
#
# Prints why the modules cannot be built for kernel RELEASE with its HEADERS, and what helps. Prints nothing
# if they can be built. dkms.conf passes over such a kernel, because a failed build would leave its header
# package unconfigured.
set -eu

release=$1 headers=$2
config=$headers/.config

if [ ! -e "$config" ]; then
	echo "$headers is not configured: install linux-headers-$release"
	exit
fi
number=${release%%[!0-9.]*}
series=$(echo "$number" | cut -d . -f 1,2)
case "|@SERIES@|" in
*"|$series|"*) ;;
*)
	echo "its series $series is none of $(echo '@SERIES@' | tr '|' ' ')"
	exit
	;;
esac
for option in RUST INFINIBAND_ADDR_TRANS; do
	if ! grep -q "^CONFIG_$option=[ym]" "$config"; then
		echo "it is built without CONFIG_$option"
		exit
	fi
done
# Another compiler lays out structures differently.
wanted=$(sed -n 's/^CONFIG_RUSTC_VERSION=//p' "$config")
named=$(rustc --version 2>/dev/null | cut -d ' ' -f 2)
found=$(echo "$named" | sed 's/-.*//' | awk -F . '{ print $1 * 100000 + $2 * 100 + $3 }')
if [ "$found" != "$wanted" ]; then
	echo "it is built by rustc $((wanted / 100000)).$((wanted / 100 % 1000)).$((wanted % 100)); here is rustc ${named:-none}"
	exit
fi
[ ! -e "$headers/rust/libkernel.rmeta" ] || exit 0
# Debian's headers lack the Rust metadata, which is made from the source package of their version.
version() {
	dpkg-query --show --showformat '${Version}' "$1" 2>/dev/null || true
}
theirs=$(version "linux-headers-$release")
source=$(version "linux-source-$series")
case $source in
"") ;;
"$theirs") exit 0 ;;
# Headers that no package has.
"$number"[-~+]*) [ -n "$theirs" ] || exit 0 ;;
esac
echo "linux-source-$series=${theirs:-$number} is not installed (but: ${source:-none}); install it"
