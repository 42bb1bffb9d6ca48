/* SPDX-License-Identifier: GPL-2.0 */
/*
 * An rxe device that behaves like another card. main.c finds the devices and changes them,
 * settings.c reads the settings, verbs.c has the verbs that take the place of rxe's, fence.c
 * the ways in which a key ends.
 */
#ifndef KFI_FAKE_DEVICE_H
#define KFI_FAKE_DEVICE_H

#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/types.h>

#include "rxe.h"

/* The verbs that are counted, and that may be delayed or refused. */
enum fake_verb {
	FAKE_ALLOC_PD,
	FAKE_DEALLOC_PD,
	FAKE_CREATE_CQ,
	FAKE_DESTROY_CQ,
	FAKE_CREATE_QP,
	FAKE_MODIFY_QP,
	FAKE_DESTROY_QP,
	FAKE_ALLOC_MR,
	FAKE_REG_USER_MR,
	FAKE_DEREG_MR,
	FAKE_MAP_MR_SG,
	FAKE_POST_SEND,
	FAKE_POST_RECV,
	FAKE_VERB_COUNT,
};

/* Limits of the device, in the order of fake_limits. Those of objects come first. */
enum fake_limit {
	FAKE_MAX_QP,
	FAKE_MAX_CQ,
	FAKE_MAX_MR,
	FAKE_MAX_PD,
	FAKE_OBJECTS,
	FAKE_LIMIT_COUNT = 13,
};

/* A limit: its name, which is that of the member of struct ib_device_attr, and its place there. */
struct fake_limit_of {
	const char *name;
	size_t offset;
};

/* Which free index of a memory region is the next one. */
enum fake_order {
	FAKE_ORDER_CYCLIC,	/* rxe's own */
	FAKE_ORDER_LOWEST,
	FAKE_ORDER_LIFO,	/* the one that was freed last */
	FAKE_ORDER_RANDOM,
};

/* The meaning of a completed local invalidation, or of a deregistration. */
enum fake_fence {
	FAKE_FENCE_DEVICE,	/* rxe's own: the deregistration is a fence */
	FAKE_FENCE_REAL,	/* a local invalidation is a fence, too */
	FAKE_FENCE_LIE,		/* neither: peers have access for lie_ms more */
};

/* Calls of a verb, and the treatment of the next ones. */
struct fake_calls {
	atomic64_t count;
	atomic64_t refused;
	unsigned int delay_us;
	atomic_t delays;	/* calls to delay; negative: all */
	int err;		/* 0: no call is refused */
	atomic_t skip;		/* calls before the first refused one */
	atomic_t times;		/* calls to refuse; negative: all */
	atomic_t remove;	/* calls until the device is removed; 0: it is not */
};

struct fake_settings {
	s64 limits[FAKE_LIMIT_COUNT];	/* -1: rxe's own */
	enum fake_order order;
	unsigned int index_bits;	/* 0: rxe's own */
	int user_byte;			/* low byte of keys of reg_user_mr(); -1: random */
	enum fake_fence fence;
	unsigned int lie_ms;
	bool needs_udata;		/* reg_user_mr() without udata is refused, and counted */
	bool rereg;			/* rights of user memory can be changed in place */
	bool bounces;			/* DMA is said to bounce */
};

/* A changed device. It stays until the module is unloaded, because a call may still use it. */
struct fake {
	struct list_head list;
	struct ib_device *dev;
	bool gone;
	struct ib_device_ops ops;
	struct ib_device_attr attrs;
	struct ib_device_attr rxe_attr;
	struct xa_limit mr_limit;
	unsigned int max_elem[FAKE_OBJECTS];
	/* Serializes the choice of an index. */
	struct mutex order;
	u32 *freed;
	unsigned int n_freed;
};

/* Indices that are remembered for FAKE_ORDER_LIFO. */
#define FAKE_FREED 65536

extern const char * const fake_verbs[FAKE_VERB_COUNT];
extern const struct fake_limit_of fake_limits[FAKE_LIMIT_COUNT];
extern struct fake_settings fake_settings;
extern struct fake_calls fake_calls[FAKE_VERB_COUNT];
extern atomic64_t fake_without_udata;
/* rxe's verbs, which are the same for each of its devices. */
extern struct ib_device_ops fake_real;
/* Calls of verbs.c that have not returned. */
extern atomic_t fake_inside;

/* main.c */
struct fake *fake_find(struct ib_device *dev);
void fake_apply_all(void);

/* settings.c */
void fake_default(void);
int fake_set(char *text);
int fake_show(struct seq_file *s, void *unused);

/* verbs.c */
void fake_hook(struct ib_device_ops *ops);

/* fence.c */
void fake_fence_exit(void);
void fake_before_send(struct ib_qp *qp, const struct ib_send_wr *wr);
void fake_polled(struct ib_cq *cq);
void fake_end_lie(struct ib_mr *mr);
void fake_end_lies(void);
void fake_remove(struct fake *fake);
bool fake_lie_of_dereg(struct ib_mr *mr);

#endif
