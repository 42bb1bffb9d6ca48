// SPDX-License-Identifier: GPL-2.0
/* Tests of several readers of one queue, and of handlers that post. */
#include <linux/jiffies.h>
#include <linux/kthread.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/spinlock.h>

#include "tests.h"

#define ROUNDS	20

/* A reader that waits for one entry of a queue, or for one event. */
struct reader {
	struct test *t;
	struct task_struct *task;
	/* The reader waits for events. */
	bool events;
	ssize_t got;
	void *context;
	struct kfi_info *info;
};

static int read_one(void *arg)
{
	struct reader *reader = arg;
	struct test *t = reader->t;
	struct kfi_cq_tagged_entry entry = {};
	struct kfi_eq_cm_entry event = {};
	u32 kind;

	ssize_t got;

	if (reader->events)
		got = kfi_eq_sread(t->st->eq, &kind, &event, sizeof(event), LIMIT_MS, 0);
	else
		got = kfi_cq_sread(t->b.cq, &entry, 1, NULL, LIMIT_MS);
	reader->info = event.info;
	reader->context = entry.op_context;
	WRITE_ONCE(reader->got, got);
	while (!kthread_should_stop())
		schedule_timeout_interruptible(1);
	return 0;
}

/* Starts two readers and returns when both wait. */
static bool start(struct test *t, struct reader *readers, bool events)
{
	int i;

	for (i = 0; i < 2; i++) {
		readers[i] = (struct reader){ .t = t, .events = events };
		readers[i].task = kthread_run(read_one, &readers[i], "kfi_test_c_api");
		if (!EXPECT(t, !IS_ERR(readers[i].task)))
			return false;
		while (!(READ_ONCE(readers[i].task->__state) & TASK_INTERRUPTIBLE))
			schedule_timeout_uninterruptible(1);
	}
	return true;
}

/* Waits until @count readers have an entry, and a little longer for those that should have none. */
static void let_read(const struct reader *readers, int count)
{
	unsigned long end = jiffies + msecs_to_jiffies(LIMIT_MS);

	while (!!READ_ONCE(readers[0].got) + !!READ_ONCE(readers[1].got) < count &&
	       time_before(jiffies, end))
		schedule_timeout_uninterruptible(1);
	schedule_timeout_uninterruptible(msecs_to_jiffies(20));
}

static void stop(struct reader *reader)
{
	if (!IS_ERR_OR_NULL(reader->task))
		kthread_stop(reader->task);
	reader->task = NULL;
}

static bool post_one(struct test *t, struct buf *buf, size_t at)
{
	void *desc = kfi_mr_desc(buf->mr);

	return EXPECT_EQ(t, kfi_recv(t->b.ep, buf->at + at, 1, desc, 0, buf->at + at), 0) &&
	       EXPECT_EQ(t, kfi_send(t->a.ep, buf->at, 1, desc, 0, NULL), 0);
}

/* Two readers wait at a completion queue: one entry wakes one of them, and not the other. */
static void of_completions(struct test *t)
{
	struct buf *buf = buf_get(t, KMALLOC, 200, ALL_RIGHTS, 0);
	struct reader readers[2] = {};

	if (!buf)
		return;
	if (start(t, readers, false) && post_one(t, buf, 100)) {
		let_read(readers, 1);
		post_one(t, buf, 101);
		let_read(readers, 2);
	}
	stop(&readers[0]);
	stop(&readers[1]);
	EXPECT_EQ(t, readers[0].got, 1);
	EXPECT_EQ(t, readers[1].got, 1);
	EXPECT(t, readers[0].context != readers[1].context);
}

/* A signal wakes all waiters. */
static void signalled(struct test *t)
{
	struct reader readers[2] = {};

	if (start(t, readers, false)) {
		EXPECT_EQ(t, kfi_cq_signal(t->b.cq), 0);
		let_read(readers, 2);
		EXPECT_EQ(t, readers[0].got, -EAGAIN);
		EXPECT_EQ(t, readers[1].got, -EAGAIN);
	}
	/* The remaining reader, if any. */
	kfi_cq_signal(t->b.cq);
	stop(&readers[0]);
	stop(&readers[1]);
}

static bool ask(struct test *t, struct side *side)
{
	struct kfi_info *info = kfi_dupinfo(t->st->info);
	bool asked;

	if (!EXPECT(t, info))
		return false;
	asked = side_open(t, side, info, 0) &&
		EXPECT_EQ(t, kfi_connect(side->ep, &t->st->addr, NULL, 0), 0);
	kfi_freeinfo(info);
	return asked;
}

/* Two readers wait at an event queue. */
static void of_events(struct test *t)
{
	struct reader readers[2] = {};
	int i;

	if (start(t, readers, true) && ask(t, &t->a)) {
		let_read(readers, 1);
		if (ask(t, &t->b))
			let_read(readers, 2);
	}
	for (i = 0; i < 2; i++) {
		stop(&readers[i]);
		EXPECT_EQ(t, readers[i].got, sizeof(struct kfi_eq_cm_entry));
		if (readers[i].info)
			EXPECT_EQ(t, kfi_reject(t->st->pep, readers[i].info->handle, NULL, 0), 0);
		kfi_freeinfo(readers[i].info);
	}
}

/* State shared by the handler and the poster. */
static DEFINE_SPINLOCK(posting);
static struct buf *posted;
static int left, refused;

static void post_under_lock(struct side *side)
{
	unsigned long flags;

	spin_lock_irqsave(&posting, flags);
	if (left) {
		left--;
		if (kfi_send(side->ep, posted->at, 1, kfi_mr_desc(posted->mr), 0, posted))
			refused++;
	}
	spin_unlock_irqrestore(&posting, flags);
}

/* A handler posts under a lock that is also held around other posts. */
static void handler_posts(struct test *t)
{
	int i;

	posted = buf_get(t, KMALLOC, 200, ALL_RIGHTS, 0);
	if (!posted)
		return;
	for (i = 0; i < ROUNDS; i++)
		EXPECT_EQ(t, kfi_recv(t->b.ep, posted->at + 100, 1, kfi_mr_desc(posted->mr), 0,
				      posted), 0);
	left = ROUNDS;
	refused = 0;
	t->a.hook = post_under_lock;
	/* The first post; each completion triggers the next one. */
	post_under_lock(&t->a);
	for (i = 0; i < ROUNDS; i++) {
		if (!completed(t, &t->a, posted, KFI_MSG | KFI_SEND, 1) ||
		    !completed(t, &t->b, posted, KFI_MSG | KFI_RECV, 1))
			break;
	}
	EXPECT_EQ(t, refused, 0);
}

const struct group reader_tests[] = {
	{ "two_wait_for_completions", of_completions, true },
	{ "a_signal_is_for_all", signalled, true },
	{ "two_wait_for_events", of_events, false },
	{ "handler_posts_under_a_lock", handler_posts, true },
	{}
};
