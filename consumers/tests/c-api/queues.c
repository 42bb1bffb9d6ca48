// SPDX-License-Identifier: GPL-2.0
/* Tests of completion queues, by reads and by handlers, and of counters. */
#include <linux/delay.h>
#include <linux/kthread.h>
#include <linux/string.h>

#include "tests.h"

#define ROUNDS	20

/* Sends one message and reads its completions. */
static bool once(struct test *t, struct buf *buf)
{
	return EXPECT_EQ(t, kfi_recv(t->b.ep, buf->at, 100, kfi_mr_desc(buf->mr), 0, buf), 0) &&
	       EXPECT_EQ(t, kfi_send(t->a.ep, buf->at + 100, 100, kfi_mr_desc(buf->mr), 0, buf), 0);
}

static void handlers(struct test *t)
{
	struct buf *buf = buf_get(t, KMALLOC, 200, ALL_RIGHTS, 0);
	int i;

	if (!buf)
		return;
	for (i = 0; i < ROUNDS; i++) {
		if (!once(t, buf))
			return;
		completed(t, &t->a, buf, KFI_MSG | KFI_SEND, 100);
		completed(t, &t->b, buf, KFI_MSG | KFI_RECV, 100);
	}
	/* The handler is called for each completion; the last call may be a little later. */
	wait_event_timeout(t->a.wait, atomic_read(&t->a.told) == ROUNDS,
			   msecs_to_jiffies(LIMIT_MS));
	wait_event_timeout(t->b.wait, atomic_read(&t->b.told) == ROUNDS,
			   msecs_to_jiffies(LIMIT_MS));
	EXPECT_EQ(t, atomic_read(&t->a.told), ROUNDS);
	EXPECT_EQ(t, atomic_read(&t->b.told), ROUNDS);
}

static int signaller(void *cq)
{
	msleep(50);
	kfi_cq_signal(cq);
	return 0;
}

static void waiting(struct test *t)
{
	struct buf *buf = buf_get(t, KMALLOC, 200, ALL_RIGHTS, 0);
	struct kfi_cq_tagged_entry entries[2] = {};
	struct task_struct *task;
	kfi_addr_t addr = 0;
	char text[40];

	if (!buf)
		return;
	EXPECT_EQ(t, kfi_cq_sread(t->b.cq, entries, 1, NULL, 0), -EAGAIN);
	EXPECT_EQ(t, kfi_cq_sread(t->b.cq, entries, 1, NULL, 20), -EAGAIN);
	if (!once(t, buf))
		return;
	EXPECT_EQ(t, kfi_cq_sreadfrom(t->b.cq, entries, 2, &addr, NULL, LIMIT_MS), 1);
	EXPECT(t, entries[0].op_context == buf && addr == KFI_ADDR_NOTAVAIL);
	EXPECT_EQ(t, kfi_cq_readerr(t->b.cq, NULL, 0), -EAGAIN);
	task = kthread_run(signaller, t->b.cq, "kfi_test_c_api");
	if (EXPECT(t, !IS_ERR(task))) {
		EXPECT_EQ(t, kfi_cq_sread(t->b.cq, entries, 1, NULL, LIMIT_MS), -EAGAIN);
		/* Until the reader has returned from the signal. */
		msleep(100);
	}
	EXPECT(t, strstr(kfi_cq_strerror(t->b.cq, 5, NULL, text, sizeof(text)), "5"));
	EXPECT(t, kfi_eq_strerror(t->b.eq, 5, NULL, NULL, 0));
}

/* Waits for one completion on the kernel's wait queue. Returns whether it has arrived. */
static bool by_head(struct test *t, struct kfid_cq *cq, struct wait_queue_head *head, void *context)
{
	struct kfi_cq_entry entry = {};
	ssize_t got = -EAGAIN;

	wait_event_timeout(*head, (got = kfi_cq_read(cq, &entry, 1)) != -EAGAIN,
			   msecs_to_jiffies(LIMIT_MS));
	return EXPECT_EQ(t, got, 1) && EXPECT(t, entry.op_context == context);
}

/*
 * Waits for the next event on the kernel's wait queue. A read of an event may sleep, so it cannot
 * be a wait condition.
 */
static ssize_t event_by_head(struct kfid_eq *eq, struct wait_queue_head *head, u32 *event)
{
	DEFINE_WAIT_FUNC(wait, woken_wake_function);
	long left = msecs_to_jiffies(LIMIT_MS);
	struct kfi_eq_cm_entry cm;
	ssize_t got;

	add_wait_queue(head, &wait);
	/*
	 * Ordering: pairs with the barrier of the waker, which looks for waiters after it has added
	 * an event.
	 */
	smp_mb();
	while ((got = kfi_eq_read(eq, event, &cm, sizeof(cm), 0)) == -EAGAIN && left)
		left = wait_woken(&wait, TASK_UNINTERRUPTIBLE, left);
	remove_wait_queue(head, &wait);
	return got;
}

static int sender(void *test)
{
	struct test *t = test;

	msleep(50);
	return kfi_send(t->a.ep, NULL, 0, NULL, 0, t);
}

/* Queues that are waited for by a wait queue, without a time limit. */
static void wait_queues(struct test *t)
{
	struct kfi_cq_attr cq_attr = { .wait_obj = KFI_WAIT_QUEUE, .flags = KFI_SEND | KFI_RECV };
	struct kfi_eq_attr eq_attr = { .wait_obj = KFI_WAIT_QUEUE };
	struct kfi_info *info = kfi_dupinfo(t->st->info), *request = NULL;
	struct wait_queue_head *cq_head = NULL, *eq_head = NULL;
	struct kfi_cq_entry entry = {};
	struct kfi_eq_cm_entry cm = {};
	struct task_struct *task;
	u32 event = 0;

	if (!EXPECT(t, info))
		return;
	if (EXPECT_EQ(t, kfi_eq_open(t->st->fabric, &eq_attr, &t->a.eq, NULL, t), 0) &&
	    EXPECT_EQ(t, kfi_cq_open(t->st->domain, &cq_attr, &t->a.cq, NULL, t), 0) &&
	    EXPECT_EQ(t, kfi_endpoint(t->st->domain, info, &t->a.ep, t), 0)) {
		EXPECT_EQ(t, kfi_ep_bind(t->a.ep, &t->a.eq->fid, 0), 0);
		EXPECT_EQ(t, kfi_ep_bind(t->a.ep, &t->a.cq->fid, KFI_TRANSMIT | KFI_RECV), 0);
		EXPECT_EQ(t, kfi_control(&t->a.cq->fid, KFI_GETWAIT, NULL), -EINVAL);
		EXPECT_EQ(t, kfi_control(&t->a.cq->fid, KFI_BACKLOG, NULL), -ENOSYS);
		EXPECT_EQ(t, kfi_control(&t->a.cq->fid, KFI_GETWAIT, &cq_head), 0);
		EXPECT_EQ(t, kfi_control(&t->a.eq->fid, KFI_GETWAIT, &eq_head), 0);
		if (EXPECT_EQ(t, kfi_connect(t->a.ep, &t->st->addr, NULL, 0), 0))
			request = next_request(t);
	}
	if (!request || !side_open(t, &t->b, request, 0) ||
	    !EXPECT_EQ(t, kfi_accept(t->b.ep, NULL, 0), 0) || !EXPECT(t, cq_head && eq_head))
		goto out;
	if (!EXPECT_EQ(t, event_by_head(t->a.eq, eq_head, &event), sizeof(cm)) ||
	    !EXPECT_EQ(t, event, KFI_CONNECTED) ||
	    !EXPECT_EQ(t, side_event(&t->b, &event), 0))
		goto out;
	EXPECT_EQ(t, kfi_recv(t->b.ep, NULL, 0, NULL, 0, t), 0);
	EXPECT_EQ(t, kfi_recv(t->b.ep, NULL, 0, NULL, 0, t), 0);
	EXPECT_EQ(t, kfi_send(t->a.ep, NULL, 0, NULL, 0, t), 0);
	by_head(t, t->a.cq, cq_head, t);
	/* No limit, by 0: no operation is posted when the wait begins. */
	task = kthread_run(sender, t, "kfi_test_c_api");
	if (EXPECT(t, !IS_ERR(task))) {
		EXPECT_EQ(t, kfi_cq_sread(t->a.cq, &entry, 1, NULL, 0), 1);
		EXPECT(t, entry.op_context == t);
	}
	/* No limit, by a negative number. */
	EXPECT_EQ(t, kfi_recv(t->b.ep, NULL, 0, NULL, 0, t), 0);
	EXPECT_EQ(t, kfi_send(t->a.ep, NULL, 0, NULL, 0, request), 0);
	EXPECT_EQ(t, kfi_cq_sread(t->a.cq, &entry, 1, NULL, -1), 1);
	EXPECT(t, entry.op_context == request);
	EXPECT_EQ(t, kfi_shutdown(t->b.ep, 0), 0);
	EXPECT_EQ(t, kfi_eq_sread(t->a.eq, &event, &cm, sizeof(cm), 0, 0), sizeof(cm));
	EXPECT_EQ(t, event, KFI_SHUTDOWN);
out:
	pair_close(t);
	kfi_freeinfo(request);
	kfi_freeinfo(info);
}

static void formats(struct test *t)
{
	struct kfi_cq_attr attr = { .size = 8 };
	struct kfid_domain *domain = t->st->domain;
	struct kfid_cq *cq;
	int format;

	for (format = KFI_CQ_FORMAT_UNSPEC; format <= KFI_CQ_FORMAT_TAGGED; format++) {
		attr.format = format;
		if (EXPECT_EQ(t, kfi_cq_open(domain, &attr, &cq, NULL, NULL), 0))
			EXPECT_EQ(t, kfi_close(&cq->fid), 0);
	}
	attr.format = format;
	EXPECT_EQ(t, kfi_cq_open(domain, &attr, &cq, NULL, NULL), -EINVAL);
	attr.format = KFI_CQ_FORMAT_MSG;
	attr.wait_obj = KFI_WAIT_SET;
	EXPECT_EQ(t, kfi_cq_open(domain, &attr, &cq, NULL, NULL), -ENOSYS);
	attr.wait_obj = KFI_WAIT_UNSPEC;
	attr.flags = KFI_MORE;
	EXPECT_EQ(t, kfi_cq_open(domain, &attr, &cq, NULL, NULL), -EINVAL);
	attr.flags = KFI_SEND | KFI_RECV | KFI_AFFINITY;
	if (EXPECT_EQ(t, kfi_cq_open(domain, &attr, &cq, NULL, NULL), 0)) {
		struct wait_queue_head *head;

		EXPECT_EQ(t, kfi_control(&cq->fid, KFI_GETWAIT, &head), -ENOSYS);
		EXPECT_EQ(t, kfi_close(&cq->fid), 0);
	}
	attr.size = SIZE_MAX;
	EXPECT_EQ(t, kfi_cq_open(domain, &attr, &cq, NULL, NULL), -EINVAL);
	if (EXPECT_EQ(t, kfi_cq_open(domain, NULL, &cq, NULL, NULL), 0))
		EXPECT_EQ(t, kfi_close(&cq->fid), 0);
}

/* Completion entries only on request. */
static void selective(struct test *t)
{
	struct kfi_cq_tagged_entry entry;
	struct kfi_msg msg = { .type = KFI_KVEC };
	struct buf *buf;

	if (!pair_open(t, t->st->domain, KFI_SELECTIVE_COMPLETION))
		return;
	buf = buf_get(t, KMALLOC, 200, ALL_RIGHTS, 0);
	if (!buf || !once(t, buf))
		return;
	msg.context = &msg;
	/* Also for injected messages. */
	EXPECT_EQ(t, kfi_recv(t->b.ep, NULL, 0, NULL, 0, t), 0);
	EXPECT_EQ(t, kfi_sendmsg(t->a.ep, &msg, KFI_INJECT), 0);
	EXPECT_EQ(t, kfi_recvmsg(t->b.ep, &msg, KFI_COMPLETION), 0);
	EXPECT_EQ(t, kfi_sendmsg(t->a.ep, &msg, KFI_COMPLETION | KFI_INJECT), 0);
	completed(t, &t->a, &msg, KFI_MSG | KFI_SEND, 0);
	completed(t, &t->b, &msg, KFI_MSG | KFI_RECV, 0);
	EXPECT_EQ(t, kfi_cq_read(t->a.cq, &entry, 1), -EAGAIN);
	EXPECT_EQ(t, kfi_cq_read(t->b.cq, &entry, 1), -EAGAIN);
}

static void counters(struct test *t)
{
	struct kfi_cntr_attr attr = {};
	struct kfid_cntr *cntr;

	attr.wait_obj = KFI_WAIT_QUEUE;
	EXPECT_EQ(t, kfi_cntr_open(t->st->domain, &attr, &cntr, t), -ENOSYS);
	attr.wait_obj = KFI_WAIT_UNSPEC;
	if (!EXPECT_EQ(t, kfi_cntr_open(t->st->domain, &attr, &cntr, t), 0))
		return;
	EXPECT_EQ(t, kfi_cntr_read(cntr), 0);
	EXPECT_EQ(t, kfi_cntr_set(cntr, 5), 0);
	EXPECT_EQ(t, kfi_cntr_add(cntr, 2), 0);
	EXPECT_EQ(t, kfi_cntr_read(cntr), 7);
	EXPECT_EQ(t, kfi_cntr_wait(cntr, 7, 0), 0);
	EXPECT_EQ(t, kfi_cntr_wait(cntr, 8, 10), -ETIMEDOUT);
	EXPECT_EQ(t, kfi_cntr_seterr(cntr, 3), 0);
	EXPECT_EQ(t, kfi_cntr_adderr(cntr, 1), 0);
	EXPECT_EQ(t, kfi_cntr_readerr(cntr), 4);
	EXPECT_EQ(t, kfi_close(&cntr->fid), 0);
}

/* An endpoint with a counter. */
static void counted(struct test *t)
{
	struct kfi_info *info = kfi_dupinfo(t->st->info), *request = NULL;
	struct kfid_cntr *cntr = NULL;
	int i;

	if (!EXPECT(t, info))
		return;
	if (EXPECT_EQ(t, kfi_cntr_open(t->st->domain, NULL, &cntr, t), 0) &&
	    EXPECT_EQ(t, kfi_eq_open(t->st->fabric, NULL, &t->a.eq, NULL, t), 0) &&
	    EXPECT_EQ(t, kfi_cq_open(t->st->domain, NULL, &t->a.cq, NULL, t), 0) &&
	    EXPECT_EQ(t, kfi_endpoint(t->st->domain, info, &t->a.ep, t), 0)) {
		EXPECT_EQ(t, kfi_ep_bind(t->a.ep, &t->a.eq->fid, 0), 0);
		EXPECT_EQ(t, kfi_ep_bind(t->a.ep, &t->a.cq->fid, KFI_TRANSMIT | KFI_RECV), 0);
		EXPECT_EQ(t, kfi_ep_bind(t->a.ep, &cntr->fid, KFI_SEND), 0);
		EXPECT_EQ(t, kfi_close(&cntr->fid), -EBUSY);
		/* The connect enables the endpoint. */
		if (EXPECT_EQ(t, kfi_connect(t->a.ep, &t->st->addr, NULL, 0), 0))
			request = next_request(t);
	}
	if (request && side_open(t, &t->b, request, 0) && pair_connect(t, request)) {
		for (i = 0; i < ROUNDS; i++)
			EXPECT_EQ(t, kfi_recv(t->b.ep, NULL, 0, NULL, 0, t), 0);
		for (i = 0; i < ROUNDS; i++)
			EXPECT_EQ(t, kfi_send(t->a.ep, NULL, 0, NULL, 0, t), 0);
		EXPECT_EQ(t, kfi_cntr_wait(cntr, ROUNDS, LIMIT_MS), 0);
		EXPECT_EQ(t, kfi_cntr_read(cntr), ROUNDS);
	}
	pair_close(t);
	if (cntr)
		EXPECT_EQ(t, kfi_close(&cntr->fid), 0);
	kfi_freeinfo(request);
	kfi_freeinfo(info);
}

static void events(struct test *t)
{
	struct kfi_eq_cm_entry entry;
	u32 event;

	EXPECT_EQ(t, kfi_eq_read(t->a.eq, &event, &entry, sizeof(entry), 0), -EAGAIN);
	EXPECT_EQ(t, kfi_eq_sread(t->a.eq, &event, &entry, sizeof(entry), 10, 0), -EAGAIN);
	EXPECT_EQ(t, kfi_shutdown(t->a.ep, 0), 0);
	EXPECT_EQ(t, kfi_eq_sread(t->a.eq, &event, &entry, 1, LIMIT_MS, 0), -KFI_ETOOSMALL);
	EXPECT_EQ(t, kfi_eq_read(t->a.eq, &event, &entry, sizeof(entry), KFI_PEEK), sizeof(entry));
	EXPECT_EQ(t, event, KFI_SHUTDOWN);
	EXPECT_EQ(t, kfi_eq_read(t->a.eq, &event, &entry, sizeof(entry), KFI_MORE), -EINVAL);
	EXPECT_EQ(t, kfi_eq_read(t->a.eq, &event, &entry, sizeof(entry), 0), sizeof(entry));
	EXPECT_EQ(t, kfi_eq_read(t->a.eq, &event, &entry, sizeof(entry), 0), -EAGAIN);
}

/* Posted receives complete with the end of the connection. */
static void cancelled(struct test *t)
{
	struct buf *buf = buf_get(t, KMALLOC, 200, ALL_RIGHTS, 0);

	if (!buf)
		return;
	EXPECT_EQ(t, kfi_recv(t->b.ep, buf->at, 100, kfi_mr_desc(buf->mr), 0, buf), 0);
	EXPECT_EQ(t, kfi_shutdown(t->a.ep, 0), 0);
	failed_with(t, &t->b, buf, 0);
}

const struct group queue_tests[] = {
	{ "handlers_are_called", handlers, true },
	{ "queues_are_waited_for", waiting, true },
	{ "queues_of_all_formats", formats, false },
	{ "sread_with_a_wait_queue_waits_for_ever", wait_queues, false },
	{ "selective_completion", selective, false },
	{ "counters", counters, false },
	{ "counted_operations", counted, false },
	{ "events_are_read", events, true },
	{ "receives_end_with_the_connection", cancelled, true },
	{}
};
