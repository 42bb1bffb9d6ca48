// SPDX-License-Identifier: GPL-2.0
/*
 * Verbs that take the place of rxe's: they count, delay, refuse, choose indices, and call rxe's.
 *
 * No destroying verb but dereg_mr() is refused, because the RDMA core warns of that.
 */
#include <linux/delay.h>
#include <linux/jiffies.h>
#include <linux/random.h>
#include <linux/sched.h>

#include "fake.h"

static void inside(void)
{
	atomic_inc(&fake_inside);
}

static void outside(void)
{
	atomic_dec(&fake_inside);
}

/* Delays a call by @us, or until the settings are reset. */
static void delay(struct fake_calls *calls, unsigned int us)
{
	unsigned long end = jiffies + usecs_to_jiffies(us);

	if (!preemptible()) {
		udelay(min(us, 1000U));
	} else if (us < 20000) {
		usleep_range(us, us + us / 8);
	} else {
		while (READ_ONCE(calls->delay_us) && time_before(jiffies, end))
			msleep(20);
	}
}

/*
 * Counts a call. Removes the device, or delays the call, if the settings say so. Returns an error if
 * the call is refused.
 */
static int begin(struct ib_device *dev, enum fake_verb verb)
{
	struct fake_calls *calls = &fake_calls[verb];
	unsigned int us = READ_ONCE(calls->delay_us);
	/* Pairs with the store in set_of_verb(). */
	int err = smp_load_acquire(&calls->err);

	inside();
	atomic64_inc(&calls->count);
	if (atomic_read(&calls->remove) > 0 && atomic_dec_and_test(&calls->remove))
		ib_unregister_device_queued(dev);
	if (us && (atomic_read(&calls->delays) < 0 || atomic_dec_if_positive(&calls->delays) >= 0))
		delay(calls, us);
	if (!err || atomic_dec_if_positive(&calls->skip) >= 0)
		return 0;
	if (atomic_read(&calls->times) >= 0 && atomic_dec_if_positive(&calls->times) < 0)
		return 0;
	atomic64_inc(&calls->refused);
	return err;
}

/* ---- indices of memory regions ---- */

/* Makes the next index the one that the order wants. rxe takes the next free one from there. */
static void choose(struct fake *fake)
{
	struct rxe_pool *pool = &to_rdev(fake->dev)->mr_pool;

	switch (READ_ONCE(fake_settings.order)) {
	case FAKE_ORDER_CYCLIC:
		break;
	case FAKE_ORDER_LOWEST:
		pool->next = pool->limit.min;
		break;
	case FAKE_ORDER_LIFO:
		if (fake->n_freed)
			pool->next = fake->freed[--fake->n_freed];
		break;
	case FAKE_ORDER_RANDOM:
		pool->next = get_random_u32_inclusive(pool->limit.min, pool->limit.max);
		break;
	}
	if (pool->next > pool->limit.max)
		pool->next = pool->limit.min;
}

static void note_freed(struct fake *fake, u32 index)
{
	mutex_lock(&fake->order);
	if (fake->n_freed < FAKE_FREED)
		fake->freed[fake->n_freed++] = index;
	mutex_unlock(&fake->order);
}

static struct ib_mr *alloc_mr(struct ib_pd *pd, enum ib_mr_type type, u32 max_num_sg)
{
	struct fake *fake = fake_find(pd->device);
	int err = begin(pd->device, FAKE_ALLOC_MR);
	struct ib_mr *mr = ERR_PTR(err);

	if (!err && max_num_sg > pd->device->attrs.max_fast_reg_page_list_len)
		mr = ERR_PTR(-EINVAL);
	else if (!err && fake) {
		mutex_lock(&fake->order);
		choose(fake);
		mr = fake_real.alloc_mr(pd, type, max_num_sg);
		mutex_unlock(&fake->order);
		/* No index is free: rxe's own pool is never so short of them. */
		if (mr == ERR_PTR(-EBUSY))
			mr = ERR_PTR(-ENOSPC);
	} else if (!err) {
		mr = fake_real.alloc_mr(pd, type, max_num_sg);
	}
	outside();
	return mr;
}

static struct ib_mr *reg_user_mr(struct ib_pd *pd, u64 start, u64 length, u64 virt, int access,
				 struct ib_dmah *dmah, struct ib_udata *udata)
{
	struct fake *fake = fake_find(pd->device);
	int err = begin(pd->device, FAKE_REG_USER_MR);
	int byte = READ_ONCE(fake_settings.user_byte);
	struct ib_mr *mr = ERR_PTR(err);

	if (!err && !udata && READ_ONCE(fake_settings.needs_udata)) {
		/* The driver would read through the null pointer. */
		atomic64_inc(&fake_without_udata);
		mr = ERR_PTR(-EFAULT);
	} else if (!err) {
		/* Not under the lock: the call may wait for the program's pages. */
		if (fake) {
			mutex_lock(&fake->order);
			choose(fake);
			mutex_unlock(&fake->order);
		}
		mr = fake_real.reg_user_mr(pd, start, length, virt, access, dmah, udata);
	}
	if (!IS_ERR(mr) && byte >= 0) {
		/* The caller does not know the key yet. */
		struct rxe_mr *rmr = to_rmr(mr);

		rmr->lkey = rmr->elem.index << 8 | byte;
		rmr->rkey = rmr->lkey;
		mr->lkey = rmr->lkey;
		mr->rkey = rmr->rkey;
	}
	outside();
	return mr;
}

static int dereg_mr(struct ib_mr *mr, struct ib_udata *udata)
{
	struct fake *fake = fake_find(mr->device);
	u32 index = to_rmr(mr)->elem.index;
	int ret = begin(mr->device, FAKE_DEREG_MR);

	if (!ret) {
		fake_end_lie(mr);
		if (!udata && fake_lie_of_dereg(mr))
			goto out;
		ret = fake_real.dereg_mr(mr, udata);
		if (!ret && fake)
			note_freed(fake, index);
	}
out:
	outside();
	return ret;
}

/* ---- verbs that are only counted, delayed and refused ---- */

static int alloc_pd(struct ib_pd *pd, struct ib_udata *udata)
{
	int ret = begin(pd->device, FAKE_ALLOC_PD) ?: fake_real.alloc_pd(pd, udata);

	outside();
	return ret;
}

static int dealloc_pd(struct ib_pd *pd, struct ib_udata *udata)
{
	int ret;

	begin(pd->device, FAKE_DEALLOC_PD);
	ret = fake_real.dealloc_pd(pd, udata);
	outside();
	return ret;
}

static int create_cq(struct ib_cq *cq, const struct ib_cq_init_attr *attr,
		     struct uverbs_attr_bundle *attrs)
{
	int ret = begin(cq->device, FAKE_CREATE_CQ) ?: fake_real.create_cq(cq, attr, attrs);

	outside();
	return ret;
}

static int destroy_cq(struct ib_cq *cq, struct ib_udata *udata)
{
	int ret;

	begin(cq->device, FAKE_DESTROY_CQ);
	ret = fake_real.destroy_cq(cq, udata);
	outside();
	return ret;
}

static int create_qp(struct ib_qp *qp, struct ib_qp_init_attr *attr, struct ib_udata *udata)
{
	int ret = begin(qp->device, FAKE_CREATE_QP) ?: fake_real.create_qp(qp, attr, udata);

	outside();
	return ret;
}

static int modify_qp(struct ib_qp *qp, struct ib_qp_attr *attr, int mask, struct ib_udata *udata)
{
	int ret = begin(qp->device, FAKE_MODIFY_QP);

	/* A queue pair that cannot be ended would never be free of its peer. */
	if (!ret || (mask & IB_QP_STATE &&
		     (attr->qp_state == IB_QPS_ERR || attr->qp_state == IB_QPS_RESET)))
		ret = fake_real.modify_qp(qp, attr, mask, udata);
	outside();
	return ret;
}

static int destroy_qp(struct ib_qp *qp, struct ib_udata *udata)
{
	int ret;

	begin(qp->device, FAKE_DESTROY_QP);
	ret = fake_real.destroy_qp(qp, udata);
	outside();
	return ret;
}

static int map_mr_sg(struct ib_mr *mr, struct scatterlist *sg, int n, unsigned int *offset)
{
	int ret = begin(mr->device, FAKE_MAP_MR_SG) ?: fake_real.map_mr_sg(mr, sg, n, offset);

	outside();
	return ret;
}

static int post_send(struct ib_qp *qp, const struct ib_send_wr *wr, const struct ib_send_wr **bad)
{
	int ret;

	/* The connection manager's own messages are not the provider's. */
	if (qp->qp_type != IB_QPT_RC)
		return fake_real.post_send(qp, wr, bad);
	ret = begin(qp->device, FAKE_POST_SEND);
	if (ret) {
		*bad = wr;
	} else {
		fake_before_send(qp, wr);
		ret = fake_real.post_send(qp, wr, bad);
	}
	outside();
	return ret;
}

static int post_recv(struct ib_qp *qp, const struct ib_recv_wr *wr, const struct ib_recv_wr **bad)
{
	int ret;

	if (qp->qp_type != IB_QPT_RC)
		return fake_real.post_recv(qp, wr, bad);
	ret = begin(qp->device, FAKE_POST_RECV);
	if (ret)
		*bad = wr;
	else
		ret = fake_real.post_recv(qp, wr, bad);
	outside();
	return ret;
}

static int poll_cq(struct ib_cq *cq, int n, struct ib_wc *wc)
{
	int ret;

	inside();
	ret = fake_real.poll_cq(cq, n, wc);
	if (ret > 0)
		fake_polled(cq);
	outside();
	return ret;
}

/* Puts the verbs into a device's table. */
void fake_hook(struct ib_device_ops *ops)
{
	ops->alloc_pd = alloc_pd;
	ops->dealloc_pd = dealloc_pd;
	ops->create_cq = create_cq;
	ops->destroy_cq = destroy_cq;
	ops->create_qp = create_qp;
	ops->modify_qp = modify_qp;
	ops->destroy_qp = destroy_qp;
	ops->alloc_mr = alloc_mr;
	ops->reg_user_mr = reg_user_mr;
	ops->dereg_mr = dereg_mr;
	ops->map_mr_sg = map_mr_sg;
	ops->post_send = post_send;
	ops->post_recv = post_recv;
	ops->poll_cq = poll_cq;
}
