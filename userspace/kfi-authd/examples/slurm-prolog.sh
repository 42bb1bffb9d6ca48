#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Slurm's Prolog: gives a job's processes its auth keys, as root on each node.
#
# A grant for each key, for the job's user and in the job's control group. For that to be there
# before the prolog runs, slurm.conf has PrologFlags=Contain. KFI_CGROUP says where it is; empty:
# the user's processes anywhere on the node.
#
# A failure here drains the node, which is what Slurm does with a prolog that fails.
set -eu

job=${SLURM_JOB_ID:?is not set: Slurm runs this}
uid=${SLURM_JOB_UID:?is not set: Slurm runs this}
keys=${KFI_KEYS:-compute storage}
lifetime=${KFI_LIFETIME:-7d}
socket=${KFI_SOCKET:-/run/kfi-authd/socket}
cgroup=${KFI_CGROUP-/system.slice/slurmstepd.scope/job_$job}
state=${KFI_STATE:-/run/kfi-jobs}

case $job in *[!0-9]*|'') echo "not a job: $job" >&2; exit 1;; esac

umask 077
mkdir -p "$state"
: > "$state/$job"
for key in $keys; do
	# The number goes into the file at once: what was granted is taken back even if the next fails.
	kfi auth --daemon="$socket" grant --key "$key" --uid "$uid" \
		${cgroup:+--cgroup "$cgroup"} --lifetime "$lifetime" >> "$state/$job"
done
