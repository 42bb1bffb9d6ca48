// SPDX-License-Identifier: GPL-2.0
/*
 * kfi_example_c: a small kernel consumer of kfabric. Loading the module connects two endpoints
 * within the host, writes to one side's memory through a key, revokes the key, and closes all.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/in.h>
#include <linux/module.h>
#include <linux/slab.h>

#include <kfi_cm.h>
#include <kfi_errno.h>
#include <kfi_key.h>
#include <kfi_rma.h>

#define OFFSET	100	/* place of the text in the server's page */

static const char text[] = "hello from a peer!";
static char *pages;
static struct kfi_info *info;
static struct kfid_fabric *fabric;
static struct kfid_domain *domain;
static struct kfid_eq *eq;
static struct kfid_cq *cq;
static struct kfid_pep *listener;
static struct kfid_ep *client, *server;
static struct kfid_mr *source, *target;
static struct kfid_key *key;

static int open_endpoint(struct kfi_info *of, struct kfid_ep **ep)
{
	int err = kfi_endpoint(domain, of, ep, NULL);

	err = err ?: kfi_ep_bind(*ep, &eq->fid, 0);
	err = err ?: kfi_ep_bind(*ep, &cq->fid, KFI_TRANSMIT | KFI_RECV);
	return err ?: kfi_enable(*ep);
}

/* Waits for an event. The caller frees the info of a connection request. */
static int next_event(u32 wanted, struct kfi_eq_cm_entry *entry)
{
	u32 event = 0;
	ssize_t got = kfi_eq_sread(eq, &event, entry, sizeof(*entry), 10 * MSEC_PER_SEC, 0);

	return got < 0 ? got : event == wanted ? 0 : -EPROTO;
}

/* Writes the text through a key. Returns the completion's error. */
static int put(const struct kfid_key *to)
{
	struct kfi_cq_err_entry error = {};
	struct kfi_cq_data_entry done;
	ssize_t got = kfi_write(client, pages, sizeof(text), kfi_mr_desc(source), 0, to->addr,
				to->key, NULL);

	got = got ?: kfi_cq_sread(cq, &done, 1, NULL, 10 * MSEC_PER_SEC);
	if (got == -KFI_EAVAIL && kfi_cq_readerr(cq, &error, 0) == 1)
		return -error.err;
	return got == 1 ? 0 : got;
}

static int exchange(void)
{
	struct kfi_cq_attr attr = { .size = 16, .format = KFI_CQ_FORMAT_DATA };
	struct kfi_info *hints = kfi_allocinfo();
	struct kfi_eq_cm_entry entry = {};
	struct sockaddr_in addr;
	size_t len = sizeof(addr);
	struct kfid_key old;
	int err = -ENOMEM;

	if (!hints)
		return err;
	/* Step 1: ask for an offer of the provider within the host, and open the common objects. */
	hints->caps = KFI_MSG | KFI_RMA | KFI_DYNAMIC_KEYS;
	hints->addr_format = KFI_SOCKADDR_IN;
	hints->ep_attr->type = KFI_EP_MSG;
	hints->domain_attr->mr_mode = KFI_MR_LOCAL | KFI_MR_VIRT_ADDR | KFI_MR_PROV_KEY;
	hints->fabric_attr->prov_name = kstrdup("kshm", GFP_KERNEL);
	if (hints->fabric_attr->prov_name)
		err = kfi_getinfo(kfi_version(), NULL, NULL, 0, hints, &info);
	kfi_freeinfo(hints);
	err = err ?: kfi_fabric(info->fabric_attr, &fabric, NULL);
	err = err ?: kfi_domain(fabric, info, &domain, NULL);
	err = err ?: kfi_eq_open(fabric, NULL, &eq, NULL, NULL);
	err = err ?: kfi_cq_open(domain, &attr, &cq, NULL, NULL);
	/* Step 2: listen, connect, accept. Both endpoints use the same queues. */
	err = err ?: kfi_passive_ep(fabric, info, &listener, NULL);
	err = err ?: kfi_pep_bind(listener, &eq->fid, 0);
	err = err ?: kfi_listen(listener);
	err = err ?: kfi_getname(&listener->fid, &addr, &len);
	err = err ?: open_endpoint(info, &client);
	err = err ?: kfi_connect(client, &addr, NULL, 0);
	err = err ?: next_event(KFI_CONNREQ, &entry);
	err = err ?: open_endpoint(entry.info, &server);
	kfi_freeinfo(entry.info);
	err = err ?: kfi_accept(server, NULL, 0);
	err = err ?: next_event(KFI_CONNECTED, &entry);
	err = err ?: next_event(KFI_CONNECTED, &entry);
	/* Step 3: register a page of each side. A key opens a part of the server's to peers. */
	pages = kzalloc(2 * PAGE_SIZE, GFP_KERNEL);
	if (err || !pages)
		return err ?: -ENOMEM;
	memcpy(pages, text, sizeof(text));
	err = kfi_mr_reg(domain, pages, PAGE_SIZE, KFI_WRITE, 0, 0, 0, &source, NULL);
	err = err ?: kfi_mr_reg(domain, pages + PAGE_SIZE, PAGE_SIZE, KFI_REMOTE_WRITE, 0, 0,
				KFI_DYNAMIC_KEYS, &target, NULL);
	err = err ?: kfi_key_alloc(target, NULL, 1, &key, NULL);
	err = err ?: kfi_key_assign(key, OFFSET, sizeof(text), KFI_REMOTE_WRITE, 0);
	/* Step 4: write. A real server sends the address and the key to the client. */
	err = err ?: put(key);
	if (err || memcmp(pages + PAGE_SIZE + OFFSET, text, sizeof(text)))
		return err ?: -EIO;
	pr_info("wrote %zu bytes through the key\n", sizeof(text));
	/* Step 5: revoke. No byte moves through the key any more; a write ends the connection. */
	old = *key;
	err = kfi_key_revoke(key) ?: put(&old) == -EACCES ? 0 : -EIO;
	if (!err)
		pr_info("the revoked key was refused\n");
	return err;
}

#define FID(object)	((object) ? &(object)->fid : NULL)

static int __init example_init(void)
{
	int err = exchange();
	/* Step 6: close, children first. A parent refuses to close while a child is open. */
	struct kfid *const opened[] = {
		FID(key), FID(target), FID(source), FID(client), FID(server), FID(listener),
		FID(cq), FID(eq), FID(domain), FID(fabric),
	};

	for (int i = 0; i < ARRAY_SIZE(opened); i++)
		err = (opened[i] ? kfi_close(opened[i]) : 0) ?: err;
	kfi_freeinfo(info);
	kfree(pages);
	pr_info("closed everything: %d\n", err);
	return err;
}
module_init(example_init);

static void __exit example_exit(void)
{
}
module_exit(example_exit);

MODULE_DESCRIPTION("A small consumer of kfabric in C");
MODULE_LICENSE("GPL");
