// SPDX-License-Identifier: GPL-2.0
/* Tests of atomics that the device supports, in all forms. */
#include <linux/minmax.h>
#include <linux/string.h>

#include "tests.h"

/* The old value, and the operand. */
#define THERE	10
#define GIVEN	7

enum form {
	BASE,
	FETCH,
	COMPARE,
};

struct ends {
	struct buf *there, *back;
	u64 *value, *old;
	u64 addr, key;
};

static bool both(struct test *t, struct ends *e)
{
	e->there = buf_get(t, KMALLOC, PAGE_SIZE, KFI_ATOMIC | KFI_REMOTE_READ | KFI_REMOTE_WRITE,
			   0);
	e->back = buf_get(t, KMALLOC, PAGE_SIZE, KFI_READ, 0);
	if (!e->there || !e->back)
		return false;
	e->value = (u64 *)e->there->at;
	e->old = (u64 *)e->back->at;
	e->addr = e->there->mr->iova;
	e->key = kfi_mr_key(e->there->mr);
	return EXPECT(t, e->key != KFI_KEY_NOTAVAIL);
}

static int valid(struct kfid_ep *ep, enum form form, enum kfi_datatype type, enum kfi_op op,
		 size_t *count)
{
	switch (form) {
	case BASE:
		return kfi_atomicvalid(ep, type, op, count);
	case FETCH:
		return kfi_fetch_atomicvalid(ep, type, op, count);
	default:
		return kfi_compare_atomicvalid(ep, type, op, count);
	}
}

/* Returns the value that replaces THERE. */
static u64 outcome(enum kfi_op op, u64 compare)
{
	switch (op) {
	case KFI_MIN:
		return min(THERE, GIVEN);
	case KFI_MAX:
		return max(THERE, GIVEN);
	case KFI_SUM:
		return THERE + GIVEN;
	case KFI_PROD:
		return THERE * GIVEN;
	case KFI_LOR:
	case KFI_LAND:
		return 1;
	case KFI_BOR:
		return THERE | GIVEN;
	case KFI_BAND:
		return THERE & GIVEN;
	case KFI_LXOR:
		return 0;
	case KFI_BXOR:
		return THERE ^ GIVEN;
	case KFI_ATOMIC_READ:
		return THERE;
	case KFI_ATOMIC_WRITE:
		return GIVEN;
	case KFI_CSWAP:
		return compare == THERE ? GIVEN : THERE;
	case KFI_CSWAP_NE:
		return compare != THERE ? GIVEN : THERE;
	case KFI_CSWAP_LE:
		return compare <= THERE ? GIVEN : THERE;
	case KFI_CSWAP_LT:
		return compare < THERE ? GIVEN : THERE;
	case KFI_CSWAP_GE:
		return compare >= THERE ? GIVEN : THERE;
	case KFI_CSWAP_GT:
		return compare > THERE ? GIVEN : THERE;
	default:
		return (GIVEN & compare) | (THERE & ~compare);
	}
}

static void begin(struct ends *e)
{
	*e->value = THERE;
	*e->old = 0;
}

/* Checks the completion, the new value, and the old value of a fetching atomic. */
static bool came(struct test *t, struct ends *e, enum form form, u64 wanted)
{
	return completed(t, &t->a, e, KFI_ATOMIC | (form == BASE ? KFI_WRITE : KFI_READ), 8) &&
	       EXPECT_EQ(t, *e->value, wanted) &&
	       EXPECT_EQ(t, *e->old, form == BASE ? 0 : THERE);
}

static bool once(struct test *t, struct ends *e, enum form form, enum kfi_op op, u64 compare)
{
	u64 given = GIVEN, *operand = op == KFI_ATOMIC_READ ? NULL : &given;
	void *desc = kfi_mr_desc(e->back->mr);
	ssize_t err;

	begin(e);
	switch (form) {
	case BASE:
		err = kfi_atomic(t->a.ep, &given, 1, NULL, 0, e->addr, e->key, KFI_UINT64, op, e);
		break;
	case FETCH:
		err = kfi_fetch_atomic(t->a.ep, operand, 1, NULL, e->old, desc, 0, e->addr, e->key,
				       KFI_UINT64, op, e);
		break;
	default:
		err = kfi_compare_atomic(t->a.ep, &given, 1, NULL, &compare, NULL, e->old, desc, 0,
					 e->addr, e->key, KFI_UINT64, op, e);
	}
	/* The operands were copied by the call. */
	given = ~0ULL;
	return EXPECT_EQ(t, err, 0) && came(t, e, form, outcome(op, compare));
}

/* Returns whether the device offers atomics. */
static bool is_offered(struct test *t)
{
	struct kfi_info *hints = kfi_dupinfo(t->st->info), *info = NULL;
	int err;

	if (!EXPECT(t, hints))
		return false;
	hints->caps |= KFI_ATOMIC;
	err = kfi_getinfo(0, NULL, NULL, 0, hints, &info);
	EXPECT(t, err == 0 || err == -ENODATA);
	EXPECT(t, err || info->caps & KFI_ATOMIC);
	kfi_freeinfo(info);
	kfi_freeinfo(hints);
	return !err;
}

/* All atomics of 64 bits: the offered ones have the right result, and all queries agree. */
static void all(struct test *t)
{
	static const u64 flags[] = { 0, KFI_FETCH_ATOMIC, KFI_COMPARE_ATOMIC };
	struct kfi_atomic_attr attr;
	int form, op, offered = 0;
	struct ends e;

	if (!both(t, &e))
		return;
	for (form = BASE; form <= COMPARE; form++) {
		for (op = KFI_MIN; op < KFI_ATOMIC_OP_LAST; op++) {
			size_t count = 0;
			int err = valid(t->a.ep, form, KFI_UINT64, op, &count);

			attr = (struct kfi_atomic_attr){};
			EXPECT_EQ(t, kfi_query_atomic(t->st->domain, KFI_UINT64, op, &attr,
						      flags[form]), err);
			EXPECT_EQ(t, attr.count, count);
			if (err) {
				EXPECT(t, err == -EOPNOTSUPP || err == -EINVAL);
				continue;
			}
			EXPECT(t, count > 0);
			EXPECT_EQ(t, attr.size, 8);
			offered++;
			if (!once(t, &e, form, op, THERE) ||
			    (form == COMPARE && !once(t, &e, form, op, GIVEN)))
				return;
		}
	}
	EXPECT_EQ(t, offered != 0, is_offered(t));
}

/* Returns whether an atomic of 64 bits is offered. */
static bool has(struct test *t, enum form how, enum kfi_op op)
{
	return !valid(t->a.ep, how, KFI_UINT64, op, NULL);
}

static void lists(struct test *t)
{
	u64 given = GIVEN, compare = THERE;
	struct kfi_ioc ioc = { &given, 1 }, with = { &compare, 1 }, back;
	struct kfi_rma_ioc range;
	struct kfi_msg_atomic msg;
	struct ends e;
	void *desc;

	if (!both(t, &e))
		return;
	desc = kfi_mr_desc(e.back->mr);
	back = (struct kfi_ioc){ e.old, 1 };
	range = (struct kfi_rma_ioc){ e.addr, 1, e.key };
	msg = (struct kfi_msg_atomic){
		.msg_iov = &ioc,
		.iov_count = 1,
		.rma_iov = &range,
		.rma_iov_count = 1,
		.datatype = KFI_UINT64,
		.op = KFI_SUM,
		.context = &e,
	};
	if (has(t, BASE, KFI_SUM)) {
		begin(&e);
		EXPECT_EQ(t, kfi_atomicv(t->a.ep, &ioc, NULL, 1, 0, e.addr, e.key, KFI_UINT64,
					 KFI_SUM, &e), 0);
		came(t, &e, BASE, THERE + GIVEN);
		begin(&e);
		EXPECT_EQ(t, kfi_atomicmsg(t->a.ep, &msg, KFI_COMPLETION), 0);
		came(t, &e, BASE, THERE + GIVEN);
		begin(&e);
		EXPECT_EQ(t, kfi_atomicmsg(t->a.ep, &msg, KFI_INJECT), 0);
		came(t, &e, BASE, THERE + GIVEN);
		range.count = 2;
		EXPECT_EQ(t, kfi_atomicmsg(t->a.ep, &msg, 0), -EINVAL);
		range.count = 1;
		msg.rma_iov_count = 2;
		EXPECT_EQ(t, kfi_atomicmsg(t->a.ep, &msg, 0), -EINVAL);
		msg.rma_iov_count = 1;
		EXPECT_EQ(t, kfi_atomicmsg(t->a.ep, &msg, KFI_MULTI_RECV), -EINVAL);
	}
	if (has(t, BASE, KFI_SUM) && has(t, FETCH, KFI_SUM)) {
		/*
		 * An injected atomic has no completion; the fetching atomic after it returns its
		 * result.
		 */
		*e.value = THERE - GIVEN;
		EXPECT_EQ(t, kfi_inject_atomic(t->a.ep, &given, 1, 0, e.addr, e.key, KFI_UINT64,
					       KFI_SUM), 0);
		EXPECT_EQ(t, kfi_fetch_atomicv(t->a.ep, &ioc, NULL, 1, &back, &desc, 1, 0, e.addr,
					       e.key, KFI_UINT64, KFI_SUM, &e), 0);
		came(t, &e, FETCH, THERE + GIVEN);
		begin(&e);
		EXPECT_EQ(t, kfi_fetch_atomicmsg(t->a.ep, &msg, &back, &desc, 1, KFI_COMPLETION),
			  0);
		came(t, &e, FETCH, THERE + GIVEN);
		EXPECT_EQ(t, kfi_fetch_atomicmsg(t->a.ep, &msg, &back, NULL, 1, 0), -EINVAL);
		/* Operands are copied by the call in any case. */
		begin(&e);
		EXPECT_EQ(t, kfi_fetch_atomicmsg(t->a.ep, &msg, &back, &desc, 1, KFI_INJECT), 0);
		came(t, &e, FETCH, THERE + GIVEN);
	}
	if (has(t, COMPARE, KFI_CSWAP)) {
		begin(&e);
		EXPECT_EQ(t, kfi_compare_atomicv(t->a.ep, &ioc, NULL, 1, &with, NULL, 1, &back,
						 &desc, 1, 0, e.addr, e.key, KFI_UINT64, KFI_CSWAP,
						 &e), 0);
		came(t, &e, COMPARE, GIVEN);
		msg.op = KFI_CSWAP;
		begin(&e);
		EXPECT_EQ(t, kfi_compare_atomicmsg(t->a.ep, &msg, &with, NULL, 1, &back, &desc, 1,
						   KFI_COMPLETION), 0);
		came(t, &e, COMPARE, GIVEN);
		with.count = 0;
		EXPECT_EQ(t, kfi_compare_atomicmsg(t->a.ep, &msg, &with, NULL, 1, &back, &desc, 1,
						   0), -EINVAL);
	}
}

/* Every provider with atomics supports writes of 8 bytes, by all calls, in order. */
static void writes(struct test *t)
{
	u64 given = GIVEN;
	struct kfi_ioc ioc = { &given, 1 };
	struct kfi_rma_ioc range;
	struct kfi_msg_atomic msg = {
		.msg_iov = &ioc,
		.iov_count = 1,
		.rma_iov = &range,
		.rma_iov_count = 1,
		.datatype = KFI_INT64,
		.op = KFI_ATOMIC_WRITE,
	};
	struct kfi_cq_tagged_entry entry;
	struct ends e;

	if (!both(t, &e) || !is_offered(t))
		return;
	range = (struct kfi_rma_ioc){ e.addr, 1, e.key };
	msg.context = &e;
	EXPECT(t, has(t, BASE, KFI_ATOMIC_WRITE));
	if (!once(t, &e, BASE, KFI_ATOMIC_WRITE, 0))
		return;
	begin(&e);
	EXPECT_EQ(t, kfi_atomicv(t->a.ep, &ioc, NULL, 1, 0, e.addr, e.key, KFI_UINT64,
				 KFI_ATOMIC_WRITE, &e), 0);
	came(t, &e, BASE, GIVEN);
	begin(&e);
	EXPECT_EQ(t, kfi_atomicmsg(t->a.ep, &msg, KFI_INJECT), 0);
	came(t, &e, BASE, GIVEN);
	/* A write after a sum; the fetch after it returns the written value. */
	begin(&e);
	EXPECT_EQ(t, kfi_atomic(t->a.ep, &given, 1, NULL, 0, e.addr, e.key, KFI_UINT64, KFI_SUM,
				&e), 0);
	EXPECT_EQ(t, kfi_inject_atomic(t->a.ep, &given, 1, 0, e.addr, e.key, KFI_UINT64,
				       KFI_ATOMIC_WRITE), 0);
	EXPECT_EQ(t, kfi_fetch_atomic(t->a.ep, NULL, 1, NULL, e.old, kfi_mr_desc(e.back->mr), 0,
				      e.addr, e.key, KFI_UINT64, KFI_ATOMIC_READ, &e), 0);
	completed(t, &t->a, &e, KFI_ATOMIC | KFI_WRITE, 8);
	completed(t, &t->a, &e, KFI_ATOMIC | KFI_READ, 8);
	EXPECT_EQ(t, *e.old, GIVEN);
	EXPECT_EQ(t, *e.value, GIVEN);
	EXPECT_EQ(t, kfi_cq_read(t->a.cq, &entry, 1), -EAGAIN);
	EXPECT_EQ(t, kfi_atomic(t->a.ep, &given, 1, NULL, 0, e.addr + 4, e.key, KFI_UINT64,
				KFI_ATOMIC_WRITE, &e), -EINVAL);
}

/* Several values in one operation, if the device supports that. */
static void several(struct test *t)
{
	u32 given[4] = { 1, 2, 3, 4 }, *there;
	struct kfi_ioc ioc[2] = { { given, 3 }, { given + 3, 1 } };
	size_t count = 0, i;
	struct ends e;

	if (!both(t, &e) || valid(t->a.ep, BASE, KFI_UINT32, KFI_SUM, &count) || count < 4)
		return;
	there = (u32 *)e.there->at;
	for (i = 0; i < 4; i++)
		there[i] = 100;
	EXPECT_EQ(t, kfi_atomicv(t->a.ep, ioc, NULL, 2, 0, e.addr, e.key, KFI_UINT32, KFI_SUM, &e),
		  0);
	completed(t, &t->a, &e, KFI_ATOMIC | KFI_WRITE, 16);
	for (i = 0; i < 4; i++)
		EXPECT_EQ(t, there[i], 101 + i);
	EXPECT_EQ(t, kfi_atomic(t->a.ep, given, count + 1, NULL, 0, e.addr, e.key, KFI_UINT32,
				KFI_SUM, &e), -EMSGSIZE);
}

static void refused(struct test *t)
{
	struct kfid_ep *ep = t->a.ep;
	struct kfi_atomic_attr attr;
	struct buf *plain;
	u64 given = GIVEN;
	struct ends e;
	size_t count;

	if (!both(t, &e))
		return;
	plain = buf_get(t, KMALLOC, PAGE_SIZE, KFI_REMOTE_READ | KFI_REMOTE_WRITE, 0);
	if (!plain)
		return;
	EXPECT_EQ(t, kfi_atomicvalid(ep, KFI_DOUBLE, KFI_SUM, &count), -EOPNOTSUPP);
	EXPECT_EQ(t, kfi_atomicvalid(ep, KFI_DATATYPE_LAST, KFI_SUM, &count), -EINVAL);
	EXPECT_EQ(t, kfi_atomicvalid(ep, KFI_UINT64, KFI_ATOMIC_OP_LAST, &count), -EINVAL);
	EXPECT_EQ(t, kfi_atomicvalid(ep, KFI_UINT64, KFI_CSWAP, &count), -EINVAL);
	EXPECT_EQ(t, kfi_query_atomic(t->st->domain, KFI_UINT64, KFI_SUM, &attr, KFI_MORE),
		  -EINVAL);
	if (!has(t, BASE, KFI_SUM))
		return;
	EXPECT_EQ(t, kfi_atomic(ep, NULL, 1, NULL, 0, e.addr, e.key, KFI_UINT64, KFI_SUM, &e),
		  -EINVAL);
	EXPECT_EQ(t, kfi_atomic(ep, &given, 0, NULL, 0, e.addr, e.key, KFI_UINT64, KFI_SUM, &e),
		  -EINVAL);
	EXPECT_EQ(t, kfi_atomic(ep, &given, 1, NULL, 0, e.addr + 1, e.key, KFI_UINT64, KFI_SUM,
				&e), -EINVAL);
	EXPECT_EQ(t, kfi_atomic(ep, &given, 1, NULL, 0, e.addr, e.key, KFI_UINT64, KFI_CSWAP, &e),
		  -EINVAL);
	EXPECT_EQ(t, kfi_fetch_atomic(ep, &given, 1, NULL, e.old, NULL, 0, e.addr, e.key,
				      KFI_UINT64, KFI_SUM, &e), -EINVAL);
	EXPECT_EQ(t, kfi_fetch_atomic(ep, &given, 1, NULL, e.value, kfi_mr_desc(e.there->mr), 0,
				      e.addr, e.key, KFI_UINT64, KFI_SUM, &e), -EACCES);
	/* Memory without the right is not changed, and the connection ends. */
	EXPECT_EQ(t, kfi_atomic(ep, &given, 1, NULL, 0, plain->mr->iova, kfi_mr_key(plain->mr),
				KFI_UINT64, KFI_SUM, &e), 0);
	failed_with(t, &t->a, &e, 0);
	EXPECT(t, !memchr_inv(plain->at, 0, plain->len));
}

const struct group atomic_tests[] = {
	{ "atomics_of_all_kinds", all, true },
	{ "atomics_in_all_forms", lists, true },
	{ "atomic_write_of_8_bytes_is_in_order", writes, true },
	{ "atomics_of_several_values", several, true },
	{ "atomics_that_are_refused", refused, true },
	{}
};
