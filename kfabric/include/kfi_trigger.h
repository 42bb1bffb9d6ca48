/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Triggered operations of the kfi API: operations that start when a counter
 * reaches a value. If a provider does not support them, kfi_control() returns
 * -ENOSYS.
 */
#ifndef KFI_TRIGGER_H
#define KFI_TRIGGER_H

#include <kfabric.h>
#include <kfi_atomic.h>
#include <kfi_rma.h>
#include <kfi_tagged.h>

enum kfi_trigger_event {
	KFI_TRIGGER_THRESHOLD,
};

enum kfi_op_type {
	KFI_OP_RECV,
	KFI_OP_SEND,
	KFI_OP_TRECV,
	KFI_OP_TSEND,
	KFI_OP_READ,
	KFI_OP_WRITE,
	KFI_OP_ATOMIC,
	KFI_OP_FETCH_ATOMIC,
	KFI_OP_COMPARE_ATOMIC,
	KFI_OP_CNTR_SET,
	KFI_OP_CNTR_ADD,
};

struct kfi_trigger_threshold {
	struct kfid_cntr	*cntr;
	size_t			threshold;
};

struct kfi_op_msg {
	struct kfid_ep		*ep;
	struct kfi_msg		msg;
	u64			flags;
};

struct kfi_op_tagged {
	struct kfid_ep		*ep;
	struct kfi_msg_tagged	msg;
	u64			flags;
};

struct kfi_op_rma {
	struct kfid_ep		*ep;
	struct kfi_msg_rma	msg;
	u64			flags;
};

struct kfi_op_atomic {
	struct kfid_ep		*ep;
	struct kfi_msg_atomic	msg;
	u64			flags;
};

struct kfi_op_fetch_atomic {
	struct kfid_ep		*ep;
	struct kfi_msg_atomic	msg;
	struct kfi_msg_fetch	fetch;
	u64			flags;
};

struct kfi_op_compare_atomic {
	struct kfid_ep		*ep;
	struct kfi_msg_atomic	msg;
	struct kfi_msg_fetch	fetch;
	struct kfi_msg_compare	compare;
	u64			flags;
};

struct kfi_op_cntr {
	struct kfid_cntr	*cntr;
	u64			value;
};

/* This structure must have the size of struct kfi_context. */
struct kfi_triggered_context {
	enum kfi_trigger_event			event_type;
	union {
		struct kfi_trigger_threshold	threshold;
		void				*internal[3];
	} trigger;
};

/* This structure must have the size of struct kfi_context2. */
struct kfi_triggered_context2 {
	enum kfi_trigger_event			event_type;
	union {
		struct kfi_trigger_threshold	threshold;
		void				*internal[7];
	} trigger;
};

/**
 * struct kfi_deferred_work - a triggered operation
 * @context: for the provider's own use
 * @threshold: value of @triggering_cntr that starts the operation
 * @triggering_cntr: counter that starts the operation
 * @completion_cntr: counter that counts the operation's completion
 * @op_type: selects the member of the union
 * @op: the operation
 */
struct kfi_deferred_work {
	struct kfi_context2			context;
	u64					threshold;
	struct kfid_cntr			*triggering_cntr;
	struct kfid_cntr			*completion_cntr;
	enum kfi_op_type			op_type;
	union {
		struct kfi_op_msg		*msg;
		struct kfi_op_tagged		*tagged;
		struct kfi_op_rma		*rma;
		struct kfi_op_atomic		*atomic;
		struct kfi_op_fetch_atomic	*fetch_atomic;
		struct kfi_op_compare_atomic	*compare_atomic;
		struct kfi_op_cntr		*cntr;
	} op;
};

#endif
