// SPDX-License-Identifier: GPL-2.0
/*
 * How a key ends.
 *
 * A real fence: before a local invalidation is posted, the region is made invalid, and its last
 * access ends. So the completion shows that no peer has access.
 *
 * A lie: the completion comes as usual, but when the owner has seen it, the region is valid again,
 * for lie_ms or until the owner uses it. A deregistration returns at once, and is executed later.
 */
#include <linux/delay.h>
#include <linux/jiffies.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/workqueue.h>

#include "fake.h"

/* Milliseconds to wait for the last access: rxe itself waits for so long. */
#define FENCE_MS 50000

struct lie {
	struct list_head list;
	struct ib_device *dev;
	struct ib_mr *mr;
	/* Until the completion was polled from here, the lie has not begun. */
	struct ib_cq *cq;
	bool dereg;
	unsigned long end;
};

static DEFINE_SPINLOCK(lock);
static LIST_HEAD(lies);
static void end_due(struct work_struct *unused);
static DECLARE_DELAYED_WORK(work, end_due);

static void set_state(struct ib_mr *mr, enum rxe_mr_state state)
{
	WRITE_ONCE(to_rmr(mr)->state, state);
}

static bool is_due(const struct lie *lie, const void *unused)
{
	return !lie->cq && time_after_eq(jiffies, lie->end);
}

static bool is_of_mr(const struct lie *lie, const void *mr)
{
	return lie->mr == mr && !lie->dereg;
}

static bool is_of_device(const struct lie *lie, const void *dev)
{
	return !dev || lie->dev == dev;
}

/*
 * Ends the lies that @ends selects. When it returns, no region of such a lie is used here, except
 * those whose deregistration another caller executes.
 */
static void end_those(bool (*ends)(const struct lie *lie, const void *of), const void *of)
{
	struct lie *lie, *next;
	unsigned long flags;
	LIST_HEAD(deregs);

	spin_lock_irqsave(&lock, flags);
	list_for_each_entry_safe(lie, next, &lies, list) {
		if (!ends(lie, of))
			continue;
		list_del(&lie->list);
		if (lie->dereg) {
			list_add_tail(&lie->list, &deregs);
			continue;
		}
		/* Under the lock: the region's owner takes it before it deregisters the region. */
		if (!lie->cq)
			set_state(lie->mr, RXE_MR_STATE_FREE);
		kfree(lie);
	}
	spin_unlock_irqrestore(&lock, flags);
	/* These regions have no owner any more. */
	list_for_each_entry_safe(lie, next, &deregs, list) {
		fake_real.dereg_mr(lie->mr, NULL);
		kfree(lie);
	}
}

static void end_due(struct work_struct *unused)
{
	end_those(is_due, NULL);
	if (!list_empty(&lies))
		schedule_delayed_work(&work, 1);
}

/* Ends the lie of a region. Its owner calls this before it uses or deregisters the region. */
void fake_end_lie(struct ib_mr *mr)
{
	end_those(is_of_mr, mr);
}

/* Ends all lies. */
void fake_end_lies(void)
{
	end_those(is_of_device, NULL);
	/* The work may be deregistering a region. */
	flush_delayed_work(&work);
}

/* Ends the lies of a device that is being removed. None begins there any more. */
void fake_remove(struct fake *fake)
{
	unsigned long flags;

	spin_lock_irqsave(&lock, flags);
	WRITE_ONCE(fake->gone, true);
	spin_unlock_irqrestore(&lock, flags);
	end_those(is_of_device, fake->dev);
	flush_delayed_work(&work);
}

static bool begin(struct ib_mr *mr, struct ib_cq *cq)
{
	struct fake *fake = fake_find(mr->device);
	struct lie *lie = fake ? kmalloc_obj(*lie, GFP_ATOMIC) : NULL;
	unsigned long flags;
	bool gone;

	if (!lie)
		return false;
	*lie = (struct lie){
		.dev = mr->device,
		.mr = mr,
		.cq = cq,
		.dereg = !cq,
		.end = jiffies + msecs_to_jiffies(fake_settings.lie_ms),
	};
	spin_lock_irqsave(&lock, flags);
	gone = fake->gone;
	if (!gone)
		list_add_tail(&lie->list, &lies);
	spin_unlock_irqrestore(&lock, flags);
	if (gone) {
		kfree(lie);
		return false;
	}
	schedule_delayed_work(&work, 1);
	return true;
}

/* Begins the lie of a deregistration, if it shall lie. The caller returns success then. */
bool fake_lie_of_dereg(struct ib_mr *mr)
{
	return READ_ONCE(fake_settings.fence) == FAKE_FENCE_LIE &&
	       to_rmr(mr)->state == RXE_MR_STATE_VALID && begin(mr, NULL);
}

/* Begins the lies whose completion may have been polled. */
void fake_polled(struct ib_cq *cq)
{
	struct lie *lie;
	unsigned long flags;

	if (list_empty(&lies))
		return;
	spin_lock_irqsave(&lock, flags);
	list_for_each_entry(lie, &lies, list) {
		if (lie->cq != cq)
			continue;
		lie->cq = NULL;
		lie->end = jiffies + msecs_to_jiffies(fake_settings.lie_ms);
		set_state(lie->mr, RXE_MR_STATE_VALID);
	}
	spin_unlock_irqrestore(&lock, flags);
}

/* Makes the region invalid and waits for its last access. */
static void fence(struct rxe_mr *mr)
{
	unsigned long end = jiffies + msecs_to_jiffies(FENCE_MS);

	WRITE_ONCE(mr->state, RXE_MR_STATE_FREE);
	/* Pairs with the reference that rxe takes before it reads the state. */
	smp_mb();
	while (kref_read(&mr->elem.ref_cnt) > 1) {
		if (WARN_ON_ONCE(time_after(jiffies, end)))
			break;
		usleep_range(50, 200);
	}
}

static struct rxe_mr *region_of(struct rxe_dev *rxe, u32 key)
{
	struct rxe_pool_elem *elem;

	rcu_read_lock();
	elem = xa_load(&rxe->mr_pool.xa, key >> 8);
	rcu_read_unlock();
	return elem ? elem->obj : NULL;
}

/* Looks at work requests before rxe does. */
void fake_before_send(struct ib_qp *qp, const struct ib_send_wr *wr)
{
	struct rxe_dev *rxe = to_rdev(qp->device);
	enum fake_fence kind = READ_ONCE(fake_settings.fence);

	for (; wr; wr = wr->next) {
		struct rxe_mr *mr;

		if (wr->opcode == IB_WR_REG_MR)
			fake_end_lie(reg_wr(wr)->mr);
		if (wr->opcode != IB_WR_LOCAL_INV || kind == FAKE_FENCE_DEVICE)
			continue;
		/* The owner keeps the region until the invalidation has completed. */
		mr = region_of(rxe, wr->ex.invalidate_rkey);
		if (!mr || mr->rkey != wr->ex.invalidate_rkey)
			continue;
		if (kind == FAKE_FENCE_REAL)
			fence(mr);
		else
			begin(&mr->ibmr, qp->send_cq);
	}
}

void fake_fence_exit(void)
{
	cancel_delayed_work_sync(&work);
	end_those(is_of_device, NULL);
}
