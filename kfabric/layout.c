// SPDX-License-Identifier: GPL-2.0
/*
 * The C compiler's sizes and offsets. This file is compiled to assembly only.
 * Kbuild makes constants from it, which src/sys/raw.rs compares with those of
 * bindgen.
 */
#include <linux/kbuild.h>

#include "helpers.h"

#define SIZE(sym, type) DEFINE(SIZEOF_##sym, sizeof(type))
#define AT(sym, type, field) DEFINE(OFFSET_##sym, offsetof(type, field))

int main(void)
{
	SIZE(ASKER, struct kf_asker);
	AT(ASKER_PROCESS, struct kf_asker, process);
	AT(ASKER_CGROUP, struct kf_asker, cgroup);
	AT(ASKER_UID, struct kf_asker, uid);
	AT(ASKER_GID, struct kf_asker, gid);
	AT(ASKER_COMM, struct kf_asker, comm);
	SIZE(TOLD, struct kf_told);
	AT(TOLD_GROUPS, struct kf_told, groups);
	AT(TOLD_CGROUP, struct kf_told, cgroup);
	AT(TOLD_USERNS, struct kf_told, userns);
	SIZE(SPINLOCK, spinlock_t);
	SIZE(WAIT_QUEUE_HEAD, struct wait_queue_head);
	return 0;
}
