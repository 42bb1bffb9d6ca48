#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Usage: keep-symbols.sh RELEASE
#
# Keeps the list of the built modules' symbols, against which other modules are built, beside the sources.
set -eu
cat kfabric/Module.symvers >"/usr/src/kfabric-@VERSION@/Module.symvers.$1"
