/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Tracepoints: /sys/kernel/tracing/events/kfabric/.
 *
 * An event identifies a slot by the slot's address; %p prints a hash of it. The
 * generation is the number of keys that the slot has had.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM kfabric

#if !defined(KFABRIC_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define KFABRIC_TRACE_H

#include <linux/tracepoint.h>

/* A slot's assignment has ended: the key is valid, or @err is the error. */
TRACE_EVENT(key_assign,
	TP_PROTO(const void *slot, u64 generation, u64 offset, u64 len, u64 access, u64 key,
		 int err),
	TP_ARGS(slot, generation, offset, len, access, key, err),
	TP_STRUCT__entry(
		__field(const void *, slot)
		__field(u64, generation)
		__field(u64, offset)
		__field(u64, len)
		__field(u64, access)
		__field(u64, key)
		__field(int, err)
	),
	TP_fast_assign(
		__entry->slot = slot;
		__entry->generation = generation;
		__entry->offset = offset;
		__entry->len = len;
		__entry->access = access;
		__entry->key = key;
		__entry->err = err;
	),
	TP_printk("slot=%p generation=%llu offset=%llu length=%llu access=%#llx key=%#llx err=%d",
		  __entry->slot, __entry->generation, __entry->offset, __entry->len,
		  __entry->access, __entry->key, __entry->err)
);

/* A slot's key is revoked: no byte is read or written through it any more. */
TRACE_EVENT(key_revoke,
	TP_PROTO(const void *slot, u64 generation, u64 key),
	TP_ARGS(slot, generation, key),
	TP_STRUCT__entry(
		__field(const void *, slot)
		__field(u64, generation)
		__field(u64, key)
	),
	TP_fast_assign(
		__entry->slot = slot;
		__entry->generation = generation;
		__entry->key = key;
	),
	TP_printk("slot=%p generation=%llu key=%#llx",
		  __entry->slot, __entry->generation, __entry->key)
);

/*
 * The decision on a process's use of an auth key. The event has the inode
 * number of the process's pidfd and the number of the auth key, and nothing of
 * the auth key's bytes.
 */
TRACE_EVENT(auth_decision,
	TP_PROTO(u64 process, u32 uid, u64 auth, u64 grant, u32 rights, const char *verdict,
		 int err),
	TP_ARGS(process, uid, auth, grant, rights, verdict, err),
	TP_STRUCT__entry(
		__field(u64, process)
		__field(u32, uid)
		__field(u64, auth)
		__field(u64, grant)
		__field(u32, rights)
		__string(verdict, verdict)
		__field(int, err)
	),
	TP_fast_assign(
		__entry->process = process;
		__entry->uid = uid;
		__entry->auth = auth;
		__entry->grant = grant;
		__entry->rights = rights;
		__assign_str(verdict);
		__entry->err = err;
	),
	TP_printk("process=%llu uid=%u auth=%llu grant=%llu rights=%#x verdict=%s err=%d",
		  __entry->process, __entry->uid, __entry->auth, __entry->grant,
		  __entry->rights, __get_str(verdict), __entry->err)
);

#endif

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
