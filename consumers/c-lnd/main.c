// SPDX-License-Identifier: GPL-2.0
/*
 * kfi_c_lnd: loading it opens the device as Lustre's kfilnd does, connects it to itself, moves data
 * both ways, and tells in KTAP; it fails with EIO if a test does not pass.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/in6.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "lnd.h"

#define ROUNDS	50

static struct kfi_info *info;
static struct kfid_fabric *fabric;
static struct kfid_domain *domain;
static struct kfid_eq *eq;
static struct kfid_pep *pep;
static struct lnd_ep *client, *target;

static int tell(int number, const char *name, int err)
{
	if (err)
		pr_info("# failed: %d, %s\n", err, kfi_strerror(err));
	pr_info("%sok %d %s\n", err ? "not " : "", number, name);
	return err;
}

static int open_domain(void)
{
	struct kfi_info *hints = kfi_allocinfo(), *list, *one;
	int err;

	if (!hints)
		return -ENOMEM;
	hints->caps = KFI_MSG | KFI_RMA | KFI_SEND | KFI_RECV | KFI_READ | KFI_WRITE |
		      KFI_REMOTE_READ | KFI_REMOTE_WRITE | KFI_REMOTE_COMM;
	hints->mode = ~0ULL;
	hints->ep_attr->type = KFI_EP_MSG;
	hints->ep_attr->max_msg_size = LND_PAGES * PAGE_SIZE;
	hints->domain_attr->mr_mode = KFI_MR_LOCAL | KFI_MR_VIRT_ADDR | KFI_MR_PROV_KEY;
	hints->domain_attr->mr_key_size = 4;
	hints->domain_attr->resource_mgmt = KFI_RM_DISABLED;
	hints->tx_attr->op_flags = KFI_COMPLETION;
	hints->tx_attr->iov_limit = LND_PIECES;
	hints->rx_attr->op_flags = KFI_COMPLETION;
	err = kfi_getinfo(0, NULL, NULL, 0, hints, &list);
	kfi_freeinfo(hints);
	if (err)
		return err;
	for (one = list; one; one = one->next)
		if (one->addr_format == KFI_SOCKADDR_IN &&
		    strncmp(one->fabric_attr->prov_name, "kfitest-", 8))
			break;
	info = one ? kfi_dupinfo(one) : NULL;
	kfi_freeinfo(list);
	if (!info)
		return -ENODEV;
	err = kfi_fabric(info->fabric_attr, &fabric, NULL);
	return err ?: kfi_domain(fabric, info, &domain, NULL);
}

static int listen(void)
{
	int err = kfi_eq_open(fabric, NULL, &eq, NULL, NULL);

	err = err ?: kfi_passive_ep(fabric, info, &pep, NULL);
	err = err ?: kfi_pep_bind(pep, &eq->fid, 0);
	return err ?: kfi_listen(pep);
}

static int connected(struct lnd_ep *ep)
{
	struct kfi_eq_cm_entry entry;
	u32 event;
	ssize_t got = kfi_eq_sread(ep->eq, &event, &entry, sizeof(entry), LND_LIMIT_MS, 0);

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
	err = err ?: lnd_ep_open(client, fabric, domain, own);
	kfi_freeinfo(own);
	err = err ?: kfi_connect(client->ep, &addr, NULL, 0);
	if (err)
		return err;
	got = kfi_eq_sread(eq, &event, &entry, sizeof(entry), LND_LIMIT_MS, 0);
	if (got < 0)
		return got;
	err = lnd_ep_open(target, fabric, domain, entry.info);
	kfi_freeinfo(entry.info);
	err = err ?: kfi_accept(target->ep, NULL, 0);
	err = err ?: connected(client);
	return err ?: connected(target);
}

static void paint(struct lnd_ep *ep, u8 seed)
{
	int i;

	for (i = 0; i < LND_PAGES; i++)
		memset(page_address(ep->bulk[i].bv_page), seed + i, PAGE_SIZE);
}

static int painted(struct lnd_ep *ep, u8 seed, int pages)
{
	int i;

	for (i = 0; i < pages; i++)
		if (memchr_inv(page_address(ep->bulk[i].bv_page), seed + i, PAGE_SIZE))
			return -EBADMSG;
	return 0;
}

/* Moves data one way, of all sizes. */
static int move(enum lnd_kind kind)
{
	struct lnd_ep *from = kind == LND_GET ? target : client;
	struct lnd_ep *to = kind == LND_GET ? client : target;
	int i, err = 0;

	for (i = 0; !err && i < ROUNDS; i++) {
		int pages = 1 + i % LND_PAGES;

		paint(from, 3 * i);
		paint(to, 0);
		err = lnd_request(client, kind, pages);
		err = err ?: painted(to, 3 * i, pages);
	}
	return err;
}

static int nothing_strange(void)
{
	pr_info("# %u posts had to wait\n", client->replayed + target->replayed);
	return atomic_read(&client->strange) || atomic_read(&target->strange) ? -EPROTO : 0;
}

static int close_all(void)
{
	int err = 0;

	if (client)
		lnd_ep_close(client);
	if (target)
		lnd_ep_close(target);
	if (pep)
		err = err ?: kfi_close(&pep->fid);
	if (eq)
		err = err ?: kfi_close(&eq->fid);
	if (domain)
		err = err ?: kfi_close(&domain->fid);
	if (fabric)
		err = err ?: kfi_close(&fabric->fid);
	kfi_freeinfo(info);
	kfree(client);
	kfree(target);
	return err;
}

static int __init lnd_init(void)
{
	int err;

	client = kzalloc_obj(*client);
	target = kzalloc_obj(*target);
	if (!client || !target) {
		kfree(client);
		kfree(target);
		return -ENOMEM;
	}
	pr_info("KTAP version 1\n");
	pr_info("1..7\n");
	err = tell(1, "domain_is_opened", open_domain());
	err = tell(2, "it_listens", err ?: listen());
	err = tell(3, "it_connects", err ?: join());
	err = tell(4, "data_is_got", err ?: move(LND_GET));
	err = tell(5, "data_is_put", err ?: move(LND_PUT));
	err = tell(6, "nothing_strange_came", err ?: nothing_strange());
	if (tell(7, "all_is_closed", close_all()))
		err = -EIO;
	return err ? -EIO : 0;
}
module_init(lnd_init);

static void __exit lnd_exit(void)
{
}
module_exit(lnd_exit);

MODULE_DESCRIPTION("Messages with bulk data over kfabric, in the shape of kfilnd");
MODULE_LICENSE("GPL");
