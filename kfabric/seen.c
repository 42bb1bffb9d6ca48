// SPDX-License-Identifier: GPL-2.0
/* Tracepoints, and counters in debugfs. See src/base/trace.rs and src/base/stats.rs. */
#include <linux/debugfs.h>

#include "helpers.h"

#define CREATE_TRACE_POINTS
#include "trace.h"

void kf_trace_key_assign(const void *slot, u64 generation, u64 offset, u64 len, u64 access,
			 u64 key, int err)
{
	trace_key_assign(slot, generation, offset, len, access, key, err);
}

void kf_trace_key_revoke(const void *slot, u64 generation, u64 key)
{
	trace_key_revoke(slot, generation, key);
}

void kf_trace_auth_decision(u64 process, u32 uid, u64 key, u64 grant, u32 rights,
			    const char *verdict, int err)
{
	trace_auth_decision(process, uid, key, grant, rights, verdict, err);
}

static struct dentry *stats;

/* As usual with debugfs, errors are ignored: the counters are missing then. */
void kf_stats_init(void)
{
	stats = debugfs_create_dir("kfabric", NULL);
}

void kf_stats_exit(void)
{
	debugfs_remove(stats);
}

struct dentry *kf_stats_dir(const char *name)
{
	return debugfs_create_dir(name, stats);
}

void kf_stats_count(struct dentry *dir, const char *name, u64 *count)
{
	debugfs_create_u64(name, 0444, dir, count);
}

void kf_stats_remove(struct dentry *dir)
{
	debugfs_remove(dir);
}
