// SPDX-License-Identifier: GPL-2.0
/* Implementation by the kfi API. */
#include <linux/in6.h>
#include <linux/slab.h>
#include <linux/string.h>

#include <kfi_cm.h>
#include <kfi_domain.h>
#include <kfi_endpoint.h>
#include <kfi_eq.h>
#include <kfi_errno.h>
#include <kfi_rma.h>

#include "bench.h"

struct end {
	struct kfid_eq	*eq;
	struct kfid_cq	*cq;
	struct kfid_ep	*ep;
	struct kfid_mr	*mr;
	void		*buf;
};

static struct kfi_info *info;
static struct kfid_fabric *fabric;
static struct kfid_domain *domain;
static struct kfid_eq *eq;
static struct kfid_pep *pep;
/* The posting end, and the other one. */
static struct end near, far;

int kfi_find(void)
{
	struct kfi_info *hints = kfi_allocinfo(), *list, *one;
	int err;

	if (!hints)
		return -ENOMEM;
	hints->caps = KFI_MSG | KFI_RMA;
	hints->mode = ~0ULL;
	hints->ep_attr->type = KFI_EP_MSG;
	hints->domain_attr->mr_mode = KFI_MR_LOCAL | KFI_MR_VIRT_ADDR | KFI_MR_PROV_KEY;
	hints->fabric_attr->prov_name = kstrdup("kverbs", GFP_KERNEL);
	err = hints->fabric_attr->prov_name ?
	      kfi_getinfo(kfi_version(), NULL, NULL, 0, hints, &list) : -ENOMEM;
	kfi_freeinfo(hints);
	if (err)
		return err;
	for (one = list; one; one = one->next)
		if (one->addr_format == KFI_SOCKADDR_IN && one->src_addr)
			break;
	info = one ? kfi_dupinfo(one) : NULL;
	kfi_freeinfo(list);
	return info ? 0 : -ENODEV;
}

void kfi_forget(void)
{
	kfi_freeinfo(info);
}

struct sockaddr_in *kfi_source(void)
{
	return info->src_addr;
}

static void on_completion(struct kfid_cq *cq, void *context)
{
	wake_up(&bench_wait);
}

static int end_open(struct end *end, struct kfi_info *of)
{
	struct kfi_cq_attr attr = {
		.size = QUEUE_SIZE,
		.format = KFI_CQ_FORMAT_DATA,
	};
	int err;

	end->buf = kzalloc(BUF_SIZE, GFP_KERNEL);
	if (!end->buf)
		return -ENOMEM;
	of->tx_attr->size = DEPTH_MAX;
	of->rx_attr->size = 2 * DEPTH_MAX;
	err = kfi_mr_reg(domain, end->buf, BUF_SIZE,
			 KFI_SEND | KFI_RECV | KFI_READ | KFI_WRITE | KFI_REMOTE_READ |
			 KFI_REMOTE_WRITE, 0, 0, 0, &end->mr, NULL);
	err = err ?: kfi_eq_open(fabric, NULL, &end->eq, NULL, NULL);
	err = err ?: kfi_cq_open(domain, &attr, &end->cq, on_completion, NULL);
	err = err ?: kfi_endpoint(domain, of, &end->ep, NULL);
	err = err ?: kfi_ep_bind(end->ep, &end->eq->fid, 0);
	err = err ?: kfi_ep_bind(end->ep, &end->cq->fid, KFI_TRANSMIT | KFI_RECV);
	return err ?: kfi_enable(end->ep);
}

static void end_close(struct end *end)
{
	if (end->ep)
		WARN_ON(kfi_close(&end->ep->fid));
	if (end->cq)
		WARN_ON(kfi_close(&end->cq->fid));
	if (end->eq)
		WARN_ON(kfi_close(&end->eq->fid));
	if (end->mr)
		WARN_ON(kfi_close(&end->mr->fid));
	kfree(end->buf);
	memset(end, 0, sizeof(*end));
}

static int connected(struct end *end)
{
	struct kfi_eq_cm_entry entry;
	u32 event;
	ssize_t got = kfi_eq_sread(end->eq, &event, &entry, sizeof(entry), LIMIT_MS, 0);

	if (got < 0)
		return got;
	return event == KFI_CONNECTED ? 0 : -EPROTO;
}

static int join(void)
{
	struct kfi_info *own = kfi_dupinfo(info);
	struct kfi_eq_cm_entry entry = {};
	struct sockaddr_in6 addr;
	size_t len = sizeof(addr);
	ssize_t got;
	u32 event;
	int err;

	if (!own)
		return -ENOMEM;
	err = kfi_getname(&pep->fid, &addr, &len);
	err = err ?: end_open(&near, own);
	kfi_freeinfo(own);
	err = err ?: kfi_connect(near.ep, &addr, NULL, 0);
	if (err)
		return err;
	got = kfi_eq_sread(eq, &event, &entry, sizeof(entry), LIMIT_MS, 0);
	if (got < 0)
		return got;
	err = end_open(&far, entry.info);
	kfi_freeinfo(entry.info);
	err = err ?: kfi_accept(far.ep, NULL, 0);
	err = err ?: connected(&near);
	return err ?: connected(&far);
}

static int open(void)
{
	int err = kfi_fabric(info->fabric_attr, &fabric, NULL);

	err = err ?: kfi_domain(fabric, info, &domain, NULL);
	err = err ?: kfi_eq_open(fabric, NULL, &eq, NULL, NULL);
	err = err ?: kfi_passive_ep(fabric, info, &pep, NULL);
	err = err ?: kfi_pep_bind(pep, &eq->fid, 0);
	err = err ?: kfi_listen(pep);
	return err ?: join();
}

static void close(void)
{
	end_close(&near);
	end_close(&far);
	if (pep)
		WARN_ON(kfi_close(&pep->fid));
	if (eq)
		WARN_ON(kfi_close(&eq->fid));
	if (domain)
		WARN_ON(kfi_close(&domain->fid));
	if (fabric)
		WARN_ON(kfi_close(&fabric->fid));
}

static int post(enum kind kind, size_t len)
{
	void *desc = kfi_mr_desc(near.mr);

	switch (kind) {
	case BENCH_SEND:
		return kfi_send(near.ep, near.buf, len, desc, 0, NULL);
	case BENCH_WRITE:
		return kfi_write(near.ep, near.buf, len, desc, 0, far.mr->iova,
				 kfi_mr_key(far.mr), NULL);
	default:
		return kfi_read(near.ep, near.buf, len, desc, 0, far.mr->iova,
				kfi_mr_key(far.mr), NULL);
	}
}

static int recv(size_t len)
{
	return kfi_recv(far.ep, far.buf, len, kfi_mr_desc(far.mr), 0, NULL);
}

/* Reads completions and returns their number. */
static ssize_t take(struct kfid_cq *cq)
{
	struct kfi_cq_data_entry entries[BATCH];
	ssize_t got = kfi_cq_read(cq, entries, BATCH);

	return got == -EAGAIN ? 0 : got;
}

static int poll(enum kind kind, struct done *done)
{
	ssize_t sent = take(near.cq), received = 0;

	if (kind == BENCH_SEND)
		received = take(far.cq);
	if (sent < 0 || received < 0)
		return -EIO;
	done->sent += sent;
	done->received += received;
	return sent || received;
}

const struct way kfi_way = {
	.name	= "kfi",
	.open	= open,
	.close	= close,
	.post	= post,
	.recv	= recv,
	.poll	= poll,
};
