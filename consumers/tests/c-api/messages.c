// SPDX-License-Identifier: GPL-2.0
/* Tests of messages, in all forms. */
#include <linux/bvec.h>
#include <linux/irqflags.h>
#include <linux/scatterlist.h>
#include <linux/spinlock.h>
#include <linux/string.h>
#include <linux/uio.h>

#include "tests.h"

#define LEN	300
/* Start of the second piece. */
#define SECOND	(PAGE_SIZE + 8)

static bool two(struct test *t, struct buf **from, struct buf **to)
{
	*from = buf_get(t, KMALLOC, 2 * PAGE_SIZE, ALL_RIGHTS, 0);
	*to = buf_get(t, PAGES, 2 * PAGE_SIZE, ALL_RIGHTS, 0);
	if (!*from || !*to)
		return false;
	fill((*from)->at, LEN, 1);
	fill((*from)->at + SECOND, LEN, 2);
	return true;
}

/* Checks that both pieces have arrived at the right places. */
static bool came(struct test *t, struct buf *from, struct buf *to)
{
	bool good = completed(t, &t->a, from, KFI_MSG | KFI_SEND, 2 * LEN) &&
		    completed(t, &t->b, to, KFI_MSG | KFI_RECV, 2 * LEN) &&
		    EXPECT(t, filled(to->at, LEN, 1)) &&
		    EXPECT(t, filled(to->at + SECOND, LEN, 2));

	memset(to->at, 0, to->len);
	return good;
}

static void forms(struct test *t)
{
	struct scatterlist from_sg[2], to_sg[2];
	struct bio_vec from_bv[2], to_bv[2];
	struct kvec from_kv[2], to_kv[2];
	struct kfi_msg msg = {};
	struct buf *from, *to;
	void *fd[2], *td[2];
	int i;

	if (!two(t, &from, &to))
		return;
	sg_init_table(from_sg, 2);
	sg_init_table(to_sg, 2);
	for (i = 0; i < 2; i++) {
		from_kv[i] = (struct kvec){ from->at + i * SECOND, LEN };
		to_kv[i] = (struct kvec){ to->at + i * SECOND, LEN };
		bvec_set_virt(&from_bv[i], from_kv[i].iov_base, LEN);
		bvec_set_virt(&to_bv[i], to_kv[i].iov_base, LEN);
		sg_set_buf(&from_sg[i], from_kv[i].iov_base, LEN);
		sg_set_buf(&to_sg[i], to_kv[i].iov_base, LEN);
		fd[i] = kfi_mr_desc(from->mr);
		td[i] = kfi_mr_desc(to->mr);
	}
	EXPECT_EQ(t, kfi_recvv(t->b.ep, to_kv, td, 2, 0, to), 0);
	EXPECT_EQ(t, kfi_sendv(t->a.ep, from_kv, fd, 2, 0, from), 0);
	came(t, from, to);
	EXPECT_EQ(t, kfi_recvbv(t->b.ep, to_bv, td, 2, 0, to), 0);
	EXPECT_EQ(t, kfi_sendbv(t->a.ep, from_bv, fd, 2, 0, from), 0);
	came(t, from, to);
	EXPECT_EQ(t, kfi_recvsgl(t->b.ep, to_sg, td, 2, 0, to), 0);
	EXPECT_EQ(t, kfi_sendsgl(t->a.ep, from_sg, fd, 2, 0, from), 0);
	came(t, from, to);
	msg.type = KFI_BVEC;
	msg.msg_biov = to_bv;
	msg.desc = td;
	msg.iov_count = 2;
	msg.context = to;
	EXPECT_EQ(t, kfi_recvmsg(t->b.ep, &msg, 0), 0);
	msg.type = KFI_SGL;
	msg.msg_sgl = from_sg;
	msg.desc = fd;
	msg.context = from;
	EXPECT_EQ(t, kfi_sendmsg(t->a.ep, &msg, KFI_COMPLETION | KFI_FENCE | KFI_MORE), 0);
	came(t, from, to);
	msg.type = 0;
	EXPECT_EQ(t, kfi_sendmsg(t->a.ep, &msg, 0), -EINVAL);
}

static void with_data(struct test *t)
{
	struct kfi_cq_tagged_entry entry = {};
	struct buf *from, *to;
	struct kfi_msg msg = {};
	struct scatterlist sg;
	struct kvec kv;
	int i;

	if (!two(t, &from, &to))
		return;
	for (i = 0; i < 5; i++)
		EXPECT_EQ(t, kfi_recv(t->b.ep, to->at + i * 100, 100, kfi_mr_desc(to->mr), 0, to), 0);
	EXPECT_EQ(t, kfi_senddata(t->a.ep, from->at, 50, kfi_mr_desc(from->mr), 0x1234, 0, from), 0);
	completed(t, &t->a, from, KFI_MSG | KFI_SEND, 50);
	EXPECT_EQ(t, next_entry(&t->b, &entry), 1);
	EXPECT_EQ(t, entry.flags, KFI_MSG | KFI_RECV | KFI_REMOTE_CQ_DATA);
	EXPECT_EQ(t, entry.data, 0x1234);
	EXPECT_EQ(t, entry.len, 50);
	/* An injected message has no completion, and its buffer can be reused at once. */
	EXPECT_EQ(t, kfi_inject(t->a.ep, from->at, 16, 0), 0);
	completed(t, &t->b, to, KFI_MSG | KFI_RECV, 16);
	EXPECT_EQ(t, kfi_injectdata(t->a.ep, from->at, 16, 7, 0), 0);
	EXPECT_EQ(t, next_entry(&t->b, &entry), 1);
	EXPECT_EQ(t, entry.data, 7);
	kv = (struct kvec){ from->at, 16 };
	msg.type = KFI_KVEC;
	msg.msg_iov = &kv;
	msg.iov_count = 1;
	/* A message with KFI_INJECT completes as any other. */
	msg.context = &msg;
	EXPECT_EQ(t, kfi_sendmsg(t->a.ep, &msg, KFI_INJECT), 0);
	completed(t, &t->b, to, KFI_MSG | KFI_RECV, 16);
	completed(t, &t->a, &msg, KFI_MSG | KFI_SEND, 16);
	EXPECT(t, filled(to->at + 300, 16, 1));
	/* An empty message needs no memory. */
	sg_init_table(&sg, 1);
	msg.type = KFI_SGL;
	msg.msg_sgl = &sg;
	EXPECT_EQ(t, kfi_sendmsg(t->a.ep, &msg, KFI_INJECT), 0);
	completed(t, &t->b, to, KFI_MSG | KFI_RECV, 0);
	completed(t, &t->a, &msg, KFI_MSG | KFI_SEND, 0);
	/* A scatterlist with fewer entries than the message states is refused. */
	sg_init_one(&sg, from->at, 16);
	msg.iov_count = 2;
	EXPECT_EQ(t, kfi_sendmsg(t->a.ep, &msg, KFI_INJECT), -EINVAL);
	EXPECT_EQ(t, kfi_cq_read(t->a.cq, &entry, 1), -EAGAIN);
	EXPECT_EQ(t, kfi_inject(t->a.ep, from->at, PAGE_SIZE, 0), -EMSGSIZE);
}

static void refused(struct test *t)
{
	struct buf *from, *to, *local;
	struct kfi_msg msg = {};
	void *desc;

	if (!two(t, &from, &to))
		return;
	local = buf_get(t, KMALLOC, 100, KFI_SEND, 0);
	if (!local)
		return;
	desc = kfi_mr_desc(from->mr);
	EXPECT_EQ(t, kfi_send(t->a.ep, from->at, 10, NULL, 0, NULL), -EINVAL);
	EXPECT_EQ(t, kfi_send(t->a.ep, to->at, 10, desc, 0, NULL), -EINVAL);
	EXPECT_EQ(t, kfi_send(t->a.ep, from->at + from->len - 5, 10, desc, 0, NULL), -EINVAL);
	EXPECT_EQ(t, kfi_send(t->a.ep, from->at - 1, 10, desc, 0, NULL), -EINVAL);
	EXPECT_EQ(t, kfi_recv(t->a.ep, local->at, 10, kfi_mr_desc(local->mr), 0, NULL), -EACCES);
	msg.type = KFI_KVEC;
	EXPECT_EQ(t, kfi_sendmsg(t->a.ep, &msg, KFI_DELIVERY_COMPLETE), -EOPNOTSUPP);
	EXPECT_EQ(t, kfi_sendmsg(t->a.ep, &msg, KFI_COMMIT_COMPLETE), -EOPNOTSUPP);
	EXPECT_EQ(t, kfi_sendmsg(t->a.ep, &msg, KFI_MULTI_RECV), -EINVAL);
	/* No operation was posted, and the endpoint still works. */
	EXPECT_EQ(t, kfi_recv(t->b.ep, to->at, 10, kfi_mr_desc(to->mr), 0, to), 0);
	EXPECT_EQ(t, kfi_send(t->a.ep, NULL, 0, NULL, 0, from), 0);
	completed(t, &t->a, from, KFI_MSG | KFI_SEND, 0);
	completed(t, &t->b, to, KFI_MSG | KFI_RECV, 0);
}

/* Posts in atomic context. */
static void from_atomic_context(struct test *t)
{
	static DEFINE_SPINLOCK(lock);
	struct buf *from, *to;
	unsigned long flags;
	int recv, send, read;
	struct kfi_cq_tagged_entry entry;

	if (!two(t, &from, &to))
		return;
	spin_lock_irqsave(&lock, flags);
	recv = kfi_recv(t->b.ep, to->at, LEN, kfi_mr_desc(to->mr), 0, to);
	send = kfi_send(t->a.ep, from->at, LEN, kfi_mr_desc(from->mr), 0, from);
	read = kfi_cq_read(t->b.cq, &entry, 0);
	spin_unlock_irqrestore(&lock, flags);
	EXPECT_EQ(t, recv, 0);
	EXPECT_EQ(t, send, 0);
	EXPECT_EQ(t, read, -EAGAIN);
	completed(t, &t->a, from, KFI_MSG | KFI_SEND, LEN);
	completed(t, &t->b, to, KFI_MSG | KFI_RECV, LEN);
	EXPECT(t, filled(to->at, LEN, 1));
}

/* A message that is longer than the receive. */
static void too_long_for_the_receive(struct test *t)
{
	struct buf *from, *to;

	if (!two(t, &from, &to))
		return;
	EXPECT_EQ(t, kfi_recv(t->b.ep, to->at, 10, kfi_mr_desc(to->mr), 0, to), 0);
	EXPECT_EQ(t, kfi_send(t->a.ep, from->at, LEN, kfi_mr_desc(from->mr), 0, from), 0);
	failed_with(t, &t->b, to, 0);
	failed_with(t, &t->a, from, 0);
	EXPECT(t, to->at[10] == 0);
}

const struct group message_tests[] = {
	{ "messages_in_all_forms", forms, true },
	{ "messages_with_data", with_data, true },
	{ "messages_that_are_refused", refused, true },
	{ "messages_from_atomic_context", from_atomic_context, true },
	{ "message_too_long_for_the_receive", too_long_for_the_receive, true },
	{}
};
