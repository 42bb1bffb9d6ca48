#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Slurm's Epilog: revokes a job's grants. Run as root on each node. After the return the job's remaining
# processes have no endpoint and no key.
set -eu

job=${SLURM_JOB_ID:?is not set: Slurm runs this}
socket=${KFI_SOCKET:-/run/kfi-authd/socket}
state=${KFI_STATE:-/run/kfi-jobs}

case $job in *[!0-9]*|'') echo "not a job: $job" >&2; exit 1;; esac

# Without the file, the prolog has not installed any grant.
[ -s "$state/$job" ] || { rm -f "$state/$job"; exit 0; }
# One word per number. Without the daemon, revokes on the device itself.
kfi auth --daemon="$socket" revoke $(cat "$state/$job") ||
	kfi auth revoke $(cat "$state/$job")
rm -f "$state/$job"
