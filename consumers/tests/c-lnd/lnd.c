// SPDX-License-Identifier: GPL-2.0
/*
 * The driver. Handlers only queue work. Work items read completions and distinguish these by their
 * flags. A post that fails with -EAGAIN is retried later.
 */
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "lnd.h"

#define ENTRIES	8

static void post_or_replay(struct lnd_tn *tn)
{
	struct lnd_ep *ep = tn->ep;
	unsigned long flags;
	int err = tn->post(tn);

	if (!err)
		return;
	if ((err == -EAGAIN || (err == -ENOTCONN && !READ_ONCE(ep->connected))) &&
	    !READ_ONCE(ep->closing)) {
		spin_lock_irqsave(&ep->lock, flags);
		list_add_tail(&tn->list, &ep->to_replay);
		ep->replayed++;
		spin_unlock_irqrestore(&ep->lock, flags);
		queue_delayed_work(ep->wq, &ep->replay, msecs_to_jiffies(LND_REPLAY_MS));
		return;
	}
	tn->status = err;
	complete(&tn->done);
}

static void replay(struct work_struct *work)
{
	struct lnd_ep *ep = container_of(work, struct lnd_ep, replay.work);
	struct lnd_tn *tn, *next;
	LIST_HEAD(list);

	spin_lock_irq(&ep->lock);
	list_splice_init(&ep->to_replay, &list);
	spin_unlock_irq(&ep->lock);
	list_for_each_entry_safe(tn, next, &list, list) {
		list_del_init(&tn->list);
		post_or_replay(tn);
	}
}

static int post_message(struct lnd_tn *tn)
{
	return kfi_send(tn->ep->ep, tn->msg, sizeof(*tn->msg), kfi_mr_desc(tn->ep->space_mr), 0, tn);
}

static int post_buf(struct lnd_buf *buf)
{
	return kfi_recv(buf->ep->ep, buf->msg, LND_MSG_SIZE, kfi_mr_desc(buf->ep->space_mr), 0, buf);
}

static unsigned int pages_of(const struct lnd_tn *tn)
{
	return le32_to_cpu(tn->request.len) / PAGE_SIZE;
}

/* Moves some of the bulk data of a peer's request. */
static int post_some(struct lnd_tn *tn, unsigned int pages)
{
	void *desc[LND_PIECES];
	struct kfi_rma_iov range = {
		.addr = le64_to_cpu(tn->request.addr) + tn->posted * PAGE_SIZE,
		.len = pages * PAGE_SIZE,
		.key = le64_to_cpu(tn->request.key),
	};
	struct kfi_msg_rma msg = {
		.type = KFI_BVEC,
		.msg_biov = &tn->ep->bulk[tn->posted],
		.desc = desc,
		.iov_count = pages,
		.rma_iov = &range,
		.rma_iov_count = 1,
		.context = tn,
	};
	unsigned int i;

	for (i = 0; i < pages; i++)
		desc[i] = kfi_mr_desc(tn->ep->bulk_mr);
	if (le32_to_cpu(tn->request.kind) == LND_GET)
		return kfi_writemsg(tn->ep->ep, &msg, KFI_COMPLETION | KFI_TRANSMIT_COMPLETE);
	return kfi_readmsg(tn->ep->ep, &msg, KFI_COMPLETION);
}

/* Moves the remaining bulk data, as far as the queue has space. */
static int post_bulk(struct lnd_tn *tn)
{
	while (tn->posted < pages_of(tn)) {
		unsigned int pages = min_t(unsigned int, pages_of(tn) - tn->posted, LND_PIECES);
		int err = post_some(tn, pages);

		if (err)
			return err;
		tn->posted += pages;
	}
	return 0;
}

static void answer(struct lnd_tn *tn)
{
	tn->msg->cookie = tn->request.cookie;
	tn->msg->kind = cpu_to_le32(LND_DONE);
	tn->post = post_message;
	post_or_replay(tn);
}

/* Handles a received message. */
static void came(struct lnd_ep *ep, const struct lnd_msg *msg)
{
	u32 kind = le32_to_cpu(msg->kind), len = le32_to_cpu(msg->len);
	struct lnd_tn *tn;
	int slot;

	if (kind == LND_DONE) {
		tn = xchg(&ep->waiting, NULL);
		if (tn && tn->request.cookie == msg->cookie)
			complete(&tn->done);
		else
			atomic_inc(&ep->strange);
		return;
	}
	slot = find_first_bit(&ep->free_answers, LND_BUFS);
	if (slot == LND_BUFS || (kind != LND_GET && kind != LND_PUT) || !len ||
	    len % PAGE_SIZE || len > LND_PAGES * PAGE_SIZE) {
		atomic_inc(&ep->strange);
		return;
	}
	clear_bit(slot, &ep->free_answers);
	tn = &ep->answers[slot];
	tn->request = *msg;
	tn->posted = 0;
	tn->over = 0;
	tn->post = post_bulk;
	post_or_replay(tn);
}

/* Handles the completion of a send, read or write. */
static void sent(struct lnd_tn *tn, u64 flags)
{
	struct lnd_ep *ep = tn->ep;

	/* Our own request waits for its answer. */
	if (tn < ep->answers || tn >= ep->answers + LND_BUFS)
		return;
	if (flags & KFI_RMA) {
		if (++tn->over == DIV_ROUND_UP(pages_of(tn), LND_PIECES))
			answer(tn);
		return;
	}
	set_bit(tn - ep->answers, &ep->free_answers);
}

static void entry_done(struct lnd_ep *ep, const struct kfi_cq_data_entry *entry)
{
	struct lnd_buf *buf;

	switch (entry->flags) {
	case KFI_MSG | KFI_RECV:
		buf = entry->op_context;
		if (entry->len >= sizeof(struct lnd_msg))
			came(ep, buf->msg);
		post_buf(buf);
		break;
	case KFI_MSG | KFI_SEND:
	case KFI_RMA | KFI_READ:
	case KFI_RMA | KFI_WRITE:
		sent(entry->op_context, entry->flags);
		break;
	default:
		atomic_inc(&ep->strange);
	}
}

static void entry_failed(struct lnd_ep *ep, const struct kfi_cq_err_entry *error)
{
	if (error->err != ECANCELED && !READ_ONCE(ep->closing))
		atomic_inc(&ep->strange);
}

static void drain(struct lnd_ep *ep, struct kfid_cq *cq)
{
	struct kfi_cq_data_entry entries[ENTRIES];
	struct kfi_cq_err_entry error;
	ssize_t got, i;

	for (;;) {
		got = kfi_cq_read(cq, entries, ENTRIES);
		if (got == -KFI_EAVAIL) {
			if (kfi_cq_readerr(cq, &error, 0) == 1)
				entry_failed(ep, &error);
			continue;
		}
		if (got < 0)
			return;
		for (i = 0; i < got; i++)
			entry_done(ep, &entries[i]);
	}
}

static void tx_work(struct work_struct *work)
{
	struct lnd_ep *ep = container_of(work, struct lnd_ep, tx_work);

	drain(ep, ep->tx_cq);
}

static void rx_work(struct work_struct *work)
{
	struct lnd_ep *ep = container_of(work, struct lnd_ep, rx_work);

	drain(ep, ep->rx_cq);
}

static void on_tx(struct kfid_cq *cq, void *context)
{
	struct lnd_ep *ep = context;

	queue_work(ep->wq, &ep->tx_work);
}

static void on_rx(struct kfid_cq *cq, void *context)
{
	struct lnd_ep *ep = context;

	queue_work(ep->wq, &ep->rx_work);
}

static int open_memory(struct lnd_ep *ep)
{
	size_t space = 2 * LND_BUFS * LND_MSG_SIZE;
	int i, err;

	ep->space = kzalloc(space, GFP_KERNEL);
	if (!ep->space)
		return -ENOMEM;
	err = kfi_mr_reg(ep->domain, ep->space, space, KFI_SEND | KFI_RECV, 0, 0, 0,
			 &ep->space_mr, ep);
	if (err)
		return err;
	for (i = 0; i < LND_BUFS; i++) {
		ep->bufs[i].ep = ep;
		ep->bufs[i].msg = (void *)(ep->space + i * LND_MSG_SIZE);
		ep->answers[i].ep = ep;
		ep->answers[i].msg = (void *)(ep->space + (LND_BUFS + i) * LND_MSG_SIZE);
		init_completion(&ep->answers[i].done);
	}
	/* The last buffer is for requests. */
	ep->free_answers = GENMASK(LND_BUFS - 2, 0);
	for (i = 0; i < LND_PAGES; i++) {
		struct page *page = alloc_page(GFP_KERNEL | __GFP_ZERO);

		if (!page)
			return -ENOMEM;
		bvec_set_page(&ep->bulk[i], page, PAGE_SIZE, 0);
	}
	return kfi_mr_regbv(ep->domain, ep->bulk, LND_PAGES,
			    KFI_READ | KFI_WRITE | KFI_REMOTE_READ | KFI_REMOTE_WRITE, 0, 0, 0,
			    &ep->bulk_mr, ep);
}

int lnd_ep_open(struct lnd_ep *ep, struct kfid_fabric *fabric, struct kfid_domain *domain,
		struct kfi_info *info)
{
	struct kfi_cq_attr attr = {
		.flags = KFI_AFFINITY,
		.format = KFI_CQ_FORMAT_DATA,
		.wait_obj = KFI_WAIT_NONE,
		.wait_cond = KFI_CQ_COND_NONE,
	};
	int i, err;

	memset(ep, 0, sizeof(*ep));
	ep->domain = domain;
	spin_lock_init(&ep->lock);
	INIT_LIST_HEAD(&ep->to_replay);
	INIT_WORK(&ep->tx_work, tx_work);
	INIT_WORK(&ep->rx_work, rx_work);
	INIT_DELAYED_WORK(&ep->replay, replay);
	ep->wq = alloc_ordered_workqueue("kfi_test_c_lnd", WQ_MEM_RECLAIM);
	if (!ep->wq)
		return -ENOMEM;
	err = open_memory(ep);
	if (err)
		return err;
	/* A small queue, so that some posts have to wait. */
	info->tx_attr->size = 2;
	info->tx_attr->op_flags = KFI_COMPLETION;
	info->tx_attr->iov_limit = LND_PIECES;
	info->rx_attr->size = LND_BUFS;
	info->rx_attr->op_flags = KFI_COMPLETION;
	err = kfi_eq_open(fabric, NULL, &ep->eq, NULL, ep);
	if (err)
		return err;
	attr.size = 16;
	err = kfi_cq_open(domain, &attr, &ep->tx_cq, on_tx, ep);
	if (err)
		return err;
	attr.size = LND_BUFS;
	err = kfi_cq_open(domain, &attr, &ep->rx_cq, on_rx, ep);
	if (err)
		return err;
	err = kfi_endpoint(domain, info, &ep->ep, ep);
	if (err)
		return err;
	err = kfi_ep_bind(ep->ep, &ep->eq->fid, 0);
	err = err ?: kfi_ep_bind(ep->ep, &ep->tx_cq->fid, KFI_TRANSMIT);
	err = err ?: kfi_ep_bind(ep->ep, &ep->rx_cq->fid, KFI_RECV);
	err = err ?: kfi_enable(ep->ep);
	for (i = 0; !err && i < LND_BUFS; i++)
		err = post_buf(&ep->bufs[i]);
	return err;
}

void lnd_ep_close(struct lnd_ep *ep)
{
	int i;

	WRITE_ONCE(ep->closing, true);
	if (ep->ep) {
		kfi_cancel(&ep->ep->fid, &ep->bufs[0]);
		cancel_delayed_work_sync(&ep->replay);
		kfi_close(&ep->ep->fid);
	}
	/* No handler is called any more, so no work is queued from here on. */
	if (ep->wq)
		destroy_workqueue(ep->wq);
	if (ep->rx_cq)
		kfi_close(&ep->rx_cq->fid);
	if (ep->tx_cq)
		kfi_close(&ep->tx_cq->fid);
	if (ep->eq)
		kfi_close(&ep->eq->fid);
	if (ep->bulk_mr)
		WARN_ON(kfi_close(&ep->bulk_mr->fid));
	if (ep->space_mr)
		WARN_ON(kfi_close(&ep->space_mr->fid));
	for (i = 0; i < LND_PAGES; i++)
		if (ep->bulk[i].bv_page)
			__free_page(ep->bulk[i].bv_page);
	kfree(ep->space);
}

/*
 * Requests that the peer write to, or read from, the first pages of our bulk data. One request at a
 * time. After a request without an answer there is no other, because its buffer stays in use until
 * the endpoint is closed.
 */
int lnd_request(struct lnd_ep *ep, enum lnd_kind kind, unsigned int pages)
{
	struct lnd_tn *tn = &ep->own;

	if (tn->status == -ETIMEDOUT)
		return tn->status;
	*tn = (struct lnd_tn) {
		.ep = ep,
		.post = post_message,
		.msg = ep->answers[LND_BUFS - 1].msg,
	};
	init_completion(&tn->done);
	*tn->msg = (struct lnd_msg) {
		.cookie = cpu_to_le64((unsigned long)tn),
		.addr = cpu_to_le64(ep->bulk_mr->iova),
		.key = cpu_to_le64(kfi_mr_key(ep->bulk_mr)),
		.len = cpu_to_le32(pages * PAGE_SIZE),
		.kind = cpu_to_le32(kind),
	};
	tn->request = *tn->msg;
	WRITE_ONCE(ep->waiting, tn);
	post_or_replay(tn);
	if (!wait_for_completion_timeout(&tn->done, msecs_to_jiffies(LND_LIMIT_MS)))
		tn->status = -ETIMEDOUT;
	WRITE_ONCE(ep->waiting, NULL);
	/* The completion of the message may still be outstanding. */
	flush_work(&ep->tx_work);
	return tn->status;
}
