// SPDX-License-Identifier: GPL-2.0
/* Tests of one-sided operations, in all forms. */
#include <linux/bvec.h>
#include <linux/scatterlist.h>
#include <linux/string.h>
#include <linux/uio.h>

#include "tests.h"

#define LEN	700
#define TARGET	16

struct ends {
	struct buf *local, *remote;
	struct kvec kv[2];
	struct bio_vec bv[2];
	struct scatterlist sg[2];
	void *desc[2];
	u64 addr, key;
};

static bool both(struct test *t, struct ends *e)
{
	int i;

	e->local = buf_get(t, KMALLOC, 2 * PAGE_SIZE, KFI_READ | KFI_WRITE, 0);
	e->remote = buf_get(t, VMALLOC, 4 * PAGE_SIZE, KFI_REMOTE_READ | KFI_REMOTE_WRITE, 0);
	if (!e->local || !e->remote)
		return false;
	sg_init_table(e->sg, 2);
	for (i = 0; i < 2; i++) {
		e->kv[i] = (struct kvec){ e->local->at + i * PAGE_SIZE, LEN };
		bvec_set_virt(&e->bv[i], e->kv[i].iov_base, LEN);
		sg_set_buf(&e->sg[i], e->kv[i].iov_base, LEN);
		e->desc[i] = kfi_mr_desc(e->local->mr);
	}
	e->addr = e->remote->mr->iova + TARGET;
	e->key = kfi_mr_key(e->remote->mr);
	return EXPECT(t, e->key != KFI_KEY_NOTAVAIL);
}

static void begin(struct ends *e, bool write, u8 seed)
{
	u8 *there = e->remote->at + TARGET, *here = e->local->at;

	memset(e->local->at, 0, e->local->len);
	memset(e->remote->at, 0, e->remote->len);
	if (write) {
		fill(here, LEN, seed);
		fill(here + PAGE_SIZE, LEN, seed + 1);
	} else {
		fill(there, LEN, seed);
		fill(there + LEN, LEN, seed + 1);
	}
}

static void check(struct test *t, struct ends *e, bool write, u8 seed)
{
	u8 *there = e->remote->at + TARGET, *here = e->local->at;

	completed(t, &t->a, e, KFI_RMA | (write ? KFI_WRITE : KFI_READ), 2 * LEN);
	EXPECT(t, filled(write ? there : here, LEN, seed));
	EXPECT(t, filled(write ? there + LEN : here + PAGE_SIZE, LEN, seed + 1));
	EXPECT(t, !e->remote->at[TARGET - 1] && !there[2 * LEN]);
}

static void forms(struct test *t)
{
	struct kfid_ep *ep = t->a.ep;
	struct kfi_msg_rma msg = {};
	struct kfi_rma_iov range;
	struct ends e;

	if (!both(t, &e))
		return;
	begin(&e, true, 1);
	EXPECT_EQ(t, kfi_writev(ep, e.kv, e.desc, 2, 0, e.addr, e.key, &e), 0);
	check(t, &e, true, 1);
	begin(&e, true, 2);
	EXPECT_EQ(t, kfi_writebv(ep, e.bv, e.desc, 2, 0, e.addr, e.key, &e), 0);
	check(t, &e, true, 2);
	begin(&e, true, 3);
	EXPECT_EQ(t, kfi_writesgl(ep, e.sg, e.desc, 2, 0, e.addr, e.key, &e), 0);
	check(t, &e, true, 3);
	begin(&e, false, 4);
	EXPECT_EQ(t, kfi_readv(ep, e.kv, e.desc, 2, 0, e.addr, e.key, &e), 0);
	check(t, &e, false, 4);
	begin(&e, false, 5);
	EXPECT_EQ(t, kfi_readbv(ep, e.bv, e.desc, 2, 0, e.addr, e.key, &e), 0);
	check(t, &e, false, 5);
	begin(&e, false, 6);
	EXPECT_EQ(t, kfi_readsgl(ep, e.sg, e.desc, 2, 0, e.addr, e.key, &e), 0);
	check(t, &e, false, 6);
	range = (struct kfi_rma_iov){ e.addr, 2 * LEN, e.key };
	msg.type = KFI_BVEC;
	msg.msg_biov = e.bv;
	msg.desc = e.desc;
	msg.iov_count = 2;
	msg.rma_iov = &range;
	msg.rma_iov_count = 1;
	msg.context = &e;
	begin(&e, true, 7);
	EXPECT_EQ(t, kfi_writemsg(ep, &msg, KFI_TRANSMIT_COMPLETE), 0);
	check(t, &e, true, 7);
	begin(&e, false, 8);
	EXPECT_EQ(t, kfi_readmsg(ep, &msg, KFI_COMPLETION), 0);
	check(t, &e, false, 8);
	range.len--;
	EXPECT_EQ(t, kfi_readmsg(ep, &msg, 0), -EINVAL);
	range.len++;
	msg.rma_iov_count = 2;
	EXPECT_EQ(t, kfi_readmsg(ep, &msg, 0), -EINVAL);
}

static void single(struct test *t)
{
	struct kfi_cq_tagged_entry entry = {};
	struct buf *inbox;
	struct ends e;

	if (!both(t, &e))
		return;
	inbox = buf_get(t, PAGES, PAGE_SIZE, KFI_RECV, 0);
	if (!inbox)
		return;
	fill(e.local->at, LEN, 9);
	EXPECT_EQ(t, kfi_write(t->a.ep, e.local->at, LEN, e.desc[0], 0, e.addr, e.key, &e), 0);
	completed(t, &t->a, &e, KFI_RMA | KFI_WRITE, LEN);
	EXPECT(t, filled(e.remote->at + TARGET, LEN, 9));
	memset(e.local->at, 0, LEN);
	EXPECT_EQ(t, kfi_read(t->a.ep, e.local->at, LEN, e.desc[0], 0, e.addr, e.key, &e), 0);
	completed(t, &t->a, &e, KFI_RMA | KFI_READ, LEN);
	EXPECT(t, filled(e.local->at, LEN, 9));
	/* With completion data, the write uses up a receive of the peer. */
	EXPECT_EQ(t, kfi_recv(t->b.ep, inbox->at, 100, kfi_mr_desc(inbox->mr), 0, inbox), 0);
	EXPECT_EQ(t, kfi_recv(t->b.ep, inbox->at, 100, kfi_mr_desc(inbox->mr), 0, inbox), 0);
	EXPECT_EQ(t, kfi_writedata(t->a.ep, e.local->at, LEN, e.desc[0], 21, 0, e.addr, e.key, &e),
		  0);
	completed(t, &t->a, &e, KFI_RMA | KFI_WRITE, LEN);
	EXPECT_EQ(t, next_entry(&t->b, &entry), 1);
	EXPECT_EQ(t, entry.flags, KFI_RMA | KFI_REMOTE_WRITE | KFI_REMOTE_CQ_DATA);
	EXPECT_EQ(t, entry.data, 21);
	EXPECT_EQ(t, kfi_inject_writedata(t->a.ep, "short", 5, 22, 0, e.addr, e.key), 0);
	EXPECT_EQ(t, next_entry(&t->b, &entry), 1);
	EXPECT_EQ(t, entry.data, 22);
	EXPECT(t, !memcmp(e.remote->at + TARGET, "short", 5));
	EXPECT_EQ(t, kfi_inject_write(t->a.ep, "other", 5, 0, e.addr, e.key), 0);
	/* A read is executed after earlier writes. */
	EXPECT_EQ(t, kfi_read(t->a.ep, e.local->at, 5, e.desc[0], 0, e.addr, e.key, &e), 0);
	completed(t, &t->a, &e, KFI_RMA | KFI_READ, 5);
	EXPECT(t, !memcmp(e.local->at, "other", 5));
}

/* An operation with KFI_INJECT completes as any other, and its buffer can be reused at once. */
static void injected(struct test *t)
{
	struct kfi_msg_rma msg = { .type = KFI_KVEC, .iov_count = 1, .rma_iov_count = 1 };
	struct kfi_cq_tagged_entry entry;
	struct kfi_rma_iov range;
	struct ends e;
	struct kvec kv;
	u8 given[8];

	if (!both(t, &e))
		return;
	begin(&e, true, 1);
	fill(given, sizeof(given), 7);
	kv = (struct kvec){ given, sizeof(given) };
	range = (struct kfi_rma_iov){ e.addr, sizeof(given), e.key };
	msg.msg_iov = &kv;
	msg.rma_iov = &range;
	msg.context = &msg;
	EXPECT_EQ(t, kfi_writemsg(t->a.ep, &msg, KFI_INJECT), 0);
	memset(given, 0, sizeof(given));
	completed(t, &t->a, &msg, KFI_RMA | KFI_WRITE, sizeof(given));
	EXPECT(t, filled(e.remote->at + TARGET, sizeof(given), 7));
	EXPECT_EQ(t, kfi_inject_write(t->a.ep, given, sizeof(given), 0, e.addr, e.key), 0);
	EXPECT_EQ(t, kfi_read(t->a.ep, e.local->at, 8, e.desc[0], 0, e.addr, e.key, &e), 0);
	completed(t, &t->a, &e, KFI_RMA | KFI_READ, 8);
	EXPECT_EQ(t, kfi_cq_read(t->a.cq, &entry, 1), -EAGAIN);
}

/* A write that asks to be visible completes after its bytes are there, also with KFI_INJECT. */
static void visible(struct test *t)
{
	struct kfi_msg_rma msg = { .type = KFI_KVEC, .iov_count = 2, .rma_iov_count = 1 };
	struct kfi_rma_iov range;
	struct ends e;

	if (!both(t, &e))
		return;
	range = (struct kfi_rma_iov){ e.addr, 2 * LEN, e.key };
	msg.msg_iov = e.kv;
	msg.desc = e.desc;
	msg.rma_iov = &range;
	msg.context = &e;
	begin(&e, true, 1);
	EXPECT_EQ(t, kfi_writemsg(t->a.ep, &msg, KFI_DELIVERY_COMPLETE), 0);
	check(t, &e, true, 1);
	range.len = 8;
	msg.iov_count = 1;
	e.kv[0].iov_len = 8;
	fill(e.local->at, 8, 5);
	EXPECT_EQ(t, kfi_writemsg(t->a.ep, &msg, KFI_DELIVERY_COMPLETE | KFI_INJECT), 0);
	completed(t, &t->a, &e, KFI_RMA | KFI_WRITE, 8);
	EXPECT(t, filled(e.remote->at + TARGET, 8, 5));
	/* Other operations have no such level. */
	EXPECT_EQ(t, kfi_readmsg(t->a.ep, &msg, KFI_DELIVERY_COMPLETE), -EOPNOTSUPP);
}

static void wrong_key(struct test *t)
{
	struct ends e;

	if (!both(t, &e))
		return;
	begin(&e, true, 1);
	EXPECT_EQ(t, kfi_write(t->a.ep, e.local->at, LEN, e.desc[0], 0, e.addr, e.key ^ 0x5500, &e),
		  0);
	failed_with(t, &t->a, &e, 0);
	EXPECT(t, !e.remote->at[TARGET]);
}

/* Memory of the kernel is not persistent, so no commit succeeds. */
static void commits(struct test *t)
{
	struct kfi_rma_iov range;
	struct kfi_msg_rma msg = { .rma_iov = &range, .rma_iov_count = 1 };
	struct ends e;
	ssize_t ret;

	if (!both(t, &e))
		return;
	range = (struct kfi_rma_iov){ e.addr, 2 * LEN, e.key };
	msg.context = &e;
	ret = kfi_commitmsg(t->a.ep, &msg, KFI_COMPLETION);
	if (t->st->info->caps & KFI_RMA_PMEM) {
		EXPECT_EQ(t, ret, 0);
		failed_with(t, &t->a, &e, EOPNOTSUPP);
		begin(&e, true, 1);
		EXPECT_EQ(t, kfi_writev(t->a.ep, e.kv, e.desc, 2, 0, e.addr, e.key, &e), 0);
		check(t, &e, true, 1);
	} else {
		EXPECT_EQ(t, ret, -EOPNOTSUPP);
	}
	EXPECT_EQ(t, kfi_commitmsg(t->a.ep, &msg, KFI_INJECT), -EINVAL);
	msg.rma_iov_count = 2;
	EXPECT_EQ(t, kfi_commitmsg(t->a.ep, &msg, 0), -EINVAL);
	msg.rma_iov_count = 1;
	msg.msg_iov = e.kv;
	msg.desc = e.desc;
	msg.iov_count = 2;
	EXPECT_EQ(t, kfi_commitmsg(t->a.ep, &msg, 0), -EINVAL);
}

/* Notes a write of 8 bytes. */
static int noted(struct kfi_written *written, u64 key, u64 addr)
{
	struct kfi_rma_iov range = { addr, 8, key };

	return kfi_written_note(written, &range);
}

static void written(struct test *t)
{
	struct kfi_written *all = kfi_written_alloc();
	struct kfi_rma_iov range;
	u64 key;

	EXPECT(t, all);
	if (!all)
		return;
	EXPECT(t, !kfi_written_take(all, 8, &range));
	for (key = 0; key < KFI_WRITTEN_RANGES; key++)
		EXPECT_EQ(t, noted(all, key, 64), 0);
	EXPECT_EQ(t, noted(all, key, 64), -ENOSPC);
	/* The bytes between two ranges of one key, and a range that touches. */
	EXPECT_EQ(t, noted(all, key - 1, 80), 0);
	EXPECT_EQ(t, noted(all, key - 1, 56), 0);
	EXPECT(t, kfi_written_take(all, 24, &range));
	EXPECT(t, range.key == key - 1 && range.addr == 56 && range.len == 24);
	EXPECT(t, kfi_written_take(all, 24, &range));
	EXPECT(t, range.key == key - 1 && range.addr == 80 && range.len == 8);
	kfi_written_forget(all, 0);
	for (key--; key > 1; key--) {
		EXPECT(t, kfi_written_take(all, 24, &range));
		EXPECT(t, range.key == key - 1 && range.addr == 64 && range.len == 8);
	}
	EXPECT(t, !kfi_written_take(all, 24, &range));
	kfi_written_free(all);
	kfi_written_free(NULL);
}

const struct group rma_tests[] = {
	{ "rma_in_all_forms", forms, true },
	{ "rma_one_piece", single, true },
	{ "writemsg_with_inject_completes", injected, true },
	{ "write_visible_at_completion", visible, true },
	{ "rma_wrong_key", wrong_key, true },
	{ "commits_of_volatile_memory_fail", commits, true },
	{ "written_ranges_are_taken", written, true },
	{}
};
