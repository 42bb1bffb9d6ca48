#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Slurm's Prolog: grants a job's processes the use of its auth keys. Run as root on each node.
#
# Installs a grant per auth key, for the job's user in the job's control group. The control group must
# exist before the prolog runs: set PrologFlags=Contain in slurm.conf. KFI_CGROUP is its path; if it
# is empty, the grants cover the user's processes anywhere on the node.
#
# Slurm drains the node if this script fails.
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
	# Recorded at once, so that the epilog revokes this grant even if the next one fails.
	kfi auth --daemon="$socket" grant --key "$key" --uid "$uid" \
		${cgroup:+--cgroup "$cgroup"} --lifetime "$lifetime" >> "$state/$job"
done
