#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Slurm's Epilog: takes a job's grants back, as root on each node. When it returns, whatever of the
# job is left has no endpoint and no key.
set -eu

job=${SLURM_JOB_ID:?is not set: Slurm runs this}
socket=${KFI_SOCKET:-/run/kfi-authd/socket}
state=${KFI_STATE:-/run/kfi-jobs}

case $job in *[!0-9]*|'') echo "not a job: $job" >&2; exit 1;; esac

# No file: the prolog did not come that far, and gave nothing.
[ -s "$state/$job" ] || { rm -f "$state/$job"; exit 0; }
# One word for each number. If the daemon is not there, the device itself will do.
kfi auth --daemon="$socket" revoke $(cat "$state/$job") ||
	kfi auth revoke $(cat "$state/$job")
rm -f "$state/$job"
