// SPDX-License-Identifier: GPL-2.0
/* The device: look-up, open, listen. */
#include <linux/slab.h>
#include <linux/string.h>

#include "lnd.h"

static struct kfi_info *wanted(const char *provider)
{
	struct kfi_info *hints = kfi_allocinfo();

	if (!hints)
		return NULL;
	hints->caps = KFI_MSG | KFI_RMA | KFI_SEND | KFI_RECV | KFI_READ | KFI_WRITE |
		      KFI_REMOTE_READ | KFI_REMOTE_WRITE;
	hints->mode = ~0ULL;
	hints->ep_attr->type = KFI_EP_MSG;
	hints->ep_attr->max_msg_size = LND_PAGES * PAGE_SIZE;
	hints->domain_attr->mr_mode = KFI_MR_LOCAL | KFI_MR_VIRT_ADDR | KFI_MR_PROV_KEY;
	hints->domain_attr->mr_key_size = 4;
	hints->domain_attr->resource_mgmt = KFI_RM_DISABLED;
	hints->tx_attr->op_flags = KFI_COMPLETION;
	hints->tx_attr->iov_limit = LND_PIECES;
	hints->rx_attr->op_flags = KFI_COMPLETION;
	if (provider) {
		hints->fabric_attr->prov_name = kstrdup(provider, GFP_KERNEL);
		if (!hints->fabric_attr->prov_name) {
			kfi_freeinfo(hints);
			return NULL;
		}
	} else {
		/* Request that other hosts can be reached, which is not the default. */
		hints->caps |= KFI_REMOTE_COMM;
	}
	return hints;
}

/* Opens the device of an address; a NULL @node stands for any. */
int lnd_dev_open(struct lnd_dev *dev, const char *provider, const char *node, const char *service,
		 u64 flags)
{
	struct kfi_info *hints = wanted(provider), *list, *one;
	int err;

	memset(dev, 0, sizeof(*dev));
	if (!hints)
		return -ENOMEM;
	err = kfi_getinfo(0, node, service, flags, hints, &list);
	kfi_freeinfo(hints);
	if (err)
		return err;
	for (one = list; one; one = one->next)
		if (one->addr_format == KFI_SOCKADDR_IN &&
		    strncmp(one->fabric_attr->prov_name, "kfitest-", 8))
			break;
	dev->info = one ? kfi_dupinfo(one) : NULL;
	kfi_freeinfo(list);
	if (!dev->info)
		return -ENODEV;
	err = kfi_fabric(dev->info->fabric_attr, &dev->fabric, NULL);
	return err ?: kfi_domain(dev->fabric, dev->info, &dev->domain, NULL);
}

int lnd_dev_listen(struct lnd_dev *dev)
{
	int err = kfi_eq_open(dev->fabric, NULL, &dev->eq, NULL, NULL);

	err = err ?: kfi_passive_ep(dev->fabric, dev->info, &dev->pep, NULL);
	err = err ?: kfi_pep_bind(dev->pep, &dev->eq->fid, 0);
	return err ?: kfi_listen(dev->pep);
}

/* Waits for a peer and accepts it. */
int lnd_dev_accept(struct lnd_dev *dev, struct lnd_ep *ep)
{
	struct kfi_eq_cm_entry entry = {};
	ssize_t got;
	u32 event;
	int err;

	got = kfi_eq_sread(dev->eq, &event, &entry, sizeof(entry), LND_LIMIT_MS, 0);
	if (got < 0)
		return got;
	err = lnd_ep_open(ep, dev->fabric, dev->domain, entry.info);
	kfi_freeinfo(entry.info);
	return err ?: kfi_accept(ep->ep, NULL, 0);
}

/* Waits until the endpoint is connected. */
int lnd_connected(struct lnd_ep *ep)
{
	struct kfi_eq_err_entry error = {};
	struct kfi_eq_cm_entry entry;
	u32 event;
	ssize_t got = kfi_eq_sread(ep->eq, &event, &entry, sizeof(entry), LND_LIMIT_MS, 0);

	if (got == -KFI_EAVAIL && kfi_eq_readerr(ep->eq, &error, 0) > 0)
		return -error.err;
	if (got < 0)
		return got;
	if (event != KFI_CONNECTED)
		return -EPROTO;
	WRITE_ONCE(ep->connected, true);
	return 0;
}

int lnd_dev_close(struct lnd_dev *dev)
{
	int err = 0;

	if (dev->pep)
		err = err ?: kfi_close(&dev->pep->fid);
	if (dev->eq)
		err = err ?: kfi_close(&dev->eq->fid);
	if (dev->domain)
		err = err ?: kfi_close(&dev->domain->fid);
	if (dev->fabric)
		err = err ?: kfi_close(&dev->fabric->fid);
	kfi_freeinfo(dev->info);
	return err;
}

void lnd_paint(struct lnd_ep *ep, u8 seed)
{
	int i;

	for (i = 0; i < LND_PAGES; i++)
		memset(page_address(ep->bulk[i].bv_page), seed + i, PAGE_SIZE);
}

int lnd_painted(struct lnd_ep *ep, u8 seed, int pages)
{
	int i;

	for (i = 0; i < pages; i++)
		if (memchr_inv(page_address(ep->bulk[i].bv_page), (u8)(seed + i), PAGE_SIZE))
			return -EBADMSG;
	return 0;
}
