// SPDX-License-Identifier: GPL-2.0
/*
 * Completion queues of endpoints and channels. See helpers.h.
 */
#include <linux/irq_work.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/workqueue.h>

#include "helpers.h"

/* Completions that a soft interrupt handles in a row. */
#define NOTICE_BATCH 16

/* The notifications of a completion queue whose completions a soft interrupt handles. */
struct notice {
	struct irq_work work;
	struct ib_cq *cq;
	/* The RDMA core's handler, which raises the soft interrupt. */
	ib_comp_handler raise;
	/* True if the queue is being freed. */
	bool over;
	/* The task that reported last, and how often it had been switched out then. Hints only. */
	const struct task_struct *task;
	unsigned long switches;
};

static void notice_work(struct irq_work *work)
{
	struct notice *notice = container_of(work, struct notice, work);

	notice->raise(notice->cq, notice);
}

/* Returns whether the current task has reported to the queue before, and no other has run on its processor since. */
static bool is_in_a_row(struct notice *notice)
{
	unsigned long switches = current->nvcsw + current->nivcsw;
	bool row = READ_ONCE(notice->task) == current && READ_ONCE(notice->switches) == switches;

	WRITE_ONCE(notice->task, current);
	WRITE_ONCE(notice->switches, switches);
	return row;
}

/*
 * Software devices may report completions from tasks. A soft interrupt that is raised in a task waits for
 * ksoftirqd, with a task switch there and back. Raised in an interrupt, it runs when that ends, so the
 * processor interrupts itself. That is for the first of several completions in a row: the others are
 * handled together.
 */
static void notified(struct ib_cq *cq, void *context)
{
	struct notice *notice = context;

	/* kverbs_free_cq() waits for the end of this section. */
	rcu_read_lock();
	if (!READ_ONCE(notice->over)) {
		if (in_interrupt() || is_in_a_row(notice))
			notice->raise(cq, notice);
		else
			irq_work_queue(&notice->work);
	}
	rcu_read_unlock();
}

struct ib_cq *kverbs_alloc_cq(struct ib_device *dev, int cqe, bool softirq, const char *caller)
{
	struct notice *notice;
	struct ib_cq *cq;

	/* With PREEMPT_RT a task runs soft interrupts: a worker costs fewer task switches. */
	if (!softirq || IS_ENABLED(CONFIG_PREEMPT_RT))
		return __ib_alloc_cq_any(dev, NULL, cqe, IB_POLL_WORKQUEUE, caller);
	notice = kzalloc_obj(*notice, GFP_KERNEL_ACCOUNT);
	if (!notice)
		return ERR_PTR(-ENOMEM);
	cq = __ib_alloc_cq_any(dev, notice, cqe, IB_POLL_SOFTIRQ, caller);
	if (IS_ERR(cq)) {
		kfree(notice);
		return cq;
	}
	/*
	 * The soft interrupt checks its time after as many completions. Each wakes all pollers of a
	 * program's queue, whose number the program chooses.
	 */
	cq->iop.weight = NOTICE_BATCH;
	init_irq_work(&notice->work, notice_work);
	notice->cq = cq;
	notice->raise = cq->comp_handler;
	/* No queue pair uses the queue yet, so it reports nothing. */
	cq->comp_handler = notified;
	return cq;
}

/* Waits until no soft interrupt handles completions of the queue. None does later. */
static void disable(struct notice *notice)
{
	WRITE_ONCE(notice->over, true);
	/*
	 * A soft interrupt uses the queue for a moment after the point to which irq_poll_disable()
	 * waits, and some drivers report from a task after the queue pair has ended. Both are over
	 * after a grace period.
	 */
	irq_poll_disable(&notice->cq->iop);
	synchronize_rcu_expedited();
	irq_work_sync(&notice->work);
}

void kverbs_free_cq(struct ib_cq *cq)
{
	struct notice *notice = cq->cq_context;

	if (notice) {
		disable(notice);
		/* ib_free_cq() disables it again, and would wait for ever. */
		irq_poll_enable(&cq->iop);
	}
	ib_free_cq(cq);
	kfree(notice);
}

void kverbs_abandon_cq(struct ib_cq *cq)
{
	struct notice *notice = cq->cq_context;

	if (notice)
		disable(notice);
	else
		disable_work_sync(&cq->work);
}
