// SPDX-License-Identifier: GPL-2.0
/* Tests of getinfo: offers, hints, and objects that do not exist. */
#include <linux/inet.h>
#include <linux/slab.h>
#include <linux/string.h>

#include <kfi_trigger.h>

#include "tests.h"

static struct kfi_info *good_hints(struct test *t)
{
	struct kfi_info *hints = kfi_allocinfo();

	if (!EXPECT(t, hints))
		return NULL;
	hints->caps = KFI_MSG | KFI_RMA;
	hints->mode = ~0ULL;
	hints->domain_attr->mr_mode = KFI_MR_LOCAL | KFI_MR_VIRT_ADDR | KFI_MR_PROV_KEY;
	hints->fabric_attr->prov_name = kstrdup(t->st->info->fabric_attr->prov_name, GFP_KERNEL);
	return hints;
}

/* Calls getinfo and frees the result. */
static int ask(u32 version, u64 flags, struct kfi_info *hints)
{
	struct kfi_info *info = NULL;
	int err = kfi_getinfo(version, NULL, NULL, flags, hints, &info);

	kfi_freeinfo(info);
	return err;
}

static void hints_are_heeded(struct test *t)
{
	struct kfi_info *hints = good_hints(t);
	char nobody[] = "nobody", *own;

	if (!hints)
		return;
	EXPECT_EQ(t, kfi_version(), KFI_VERSION(1, 7));
	EXPECT_EQ(t, ask(0, 0, NULL), 0);
	EXPECT_EQ(t, ask(KFI_VERSION(1, 7), 0, hints), 0);
	EXPECT_EQ(t, ask(KFI_VERSION(1, 8), 0, hints), -ENOSYS);
	EXPECT_EQ(t, ask(0, KFI_MORE, hints), -EINVAL);
	hints->caps |= KFI_TAGGED;
	EXPECT_EQ(t, ask(0, 0, hints), -ENODATA);
	hints->caps = KFI_MSG | KFI_SOURCE_ERR;
	EXPECT_EQ(t, ask(0, 0, hints), -ENODATA);
	hints->caps = KFI_MSG | (t->st->info->caps & (KFI_REMOTE_COMM | KFI_LOCAL_COMM));
	EXPECT(t, hints->caps != KFI_MSG);
	EXPECT_EQ(t, ask(0, 0, hints), 0);
	hints->caps = KFI_MSG | KFI_RMA;
	hints->domain_attr->mr_mode = 0;
	EXPECT_EQ(t, ask(0, 0, hints), -ENODATA);
	hints->domain_attr->mr_mode = KFI_MR_LOCAL | KFI_MR_VIRT_ADDR | KFI_MR_PROV_KEY;
	hints->ep_attr->type = KFI_EP_RDM;
	EXPECT_EQ(t, ask(0, 0, hints), -ENODATA);
	hints->ep_attr->type = KFI_EP_MSG;
	own = hints->fabric_attr->prov_name;
	hints->fabric_attr->prov_name = nobody;
	EXPECT_EQ(t, ask(0, 0, hints), -ENODATA);
	hints->fabric_attr->prov_name = own;
	hints->tx_attr->msg_order = KFI_ORDER_WAR;
	EXPECT_EQ(t, ask(0, 0, hints), -ENODATA);
	hints->tx_attr->msg_order = KFI_ORDER_SAS;
	EXPECT_EQ(t, ask(0, 0, hints), 0);
	kfi_freeinfo(hints);
}

/* Returns whether an info is of the station's fabric. */
static bool is_ours(struct test *t, const struct kfi_info *info)
{
	return !strcmp(info->fabric_attr->name, t->st->info->fabric_attr->name);
}

/* An open object in the hints selects its provider, fabric and domain. */
static void open_objects(struct test *t)
{
	struct kfi_fabric_attr other = {};
	struct kfid_fabric *fabric = NULL, not_ours = { .fid.fclass = KFI_CLASS_FABRIC };
	struct kfi_info *hints = good_hints(t), *info = NULL, *list, *one;
	char shm[] = "kshm", verbs[] = "kverbs", *own;

	if (!hints)
		return;
	own = hints->fabric_attr->prov_name;
	hints->fabric_attr->prov_name = NULL;
	hints->fabric_attr->fabric = t->st->fabric;
	hints->domain_attr->domain = t->st->domain;
	EXPECT_EQ(t, kfi_getinfo(0, NULL, NULL, 0, hints, &info), 0);
	for (one = info; one; one = one->next) {
		EXPECT(t, !strcmp(one->fabric_attr->prov_name, own));
		EXPECT(t, !strcmp(one->domain_attr->name, t->st->info->domain_attr->name));
		EXPECT(t, one->fabric_attr->fabric == t->st->fabric);
		EXPECT(t, one->domain_attr->domain == t->st->domain);
	}
	kfi_freeinfo(info);
	/* A domain of another fabric does not match. */
	hints->domain_attr->domain = NULL;
	hints->fabric_attr->fabric = &not_ours;
	EXPECT_EQ(t, ask(0, 0, hints), -ENODATA);
	hints->fabric_attr->fabric = NULL;
	other.prov_name = strcmp(own, shm) ? shm : verbs;
	if (!kfi_fabric(&other, &fabric, NULL)) {
		hints->fabric_attr->fabric = fabric;
		hints->domain_attr->domain = t->st->domain;
		EXPECT_EQ(t, ask(0, 0, hints), -ENODATA);
		hints->domain_attr->domain = NULL;
		hints->fabric_attr->prov_name = own;
		EXPECT_EQ(t, ask(0, 0, hints), -ENODATA);
		EXPECT_EQ(t, kfi_close(&fabric->fid), 0);
	}
	hints->fabric_attr->fabric = NULL;
	hints->fabric_attr->prov_name = own;
	if (!EXPECT_EQ(t, kfi_getinfo(0, NULL, NULL, 0, hints, &list), 0))
		list = NULL;
	for (one = list; one; one = one->next)
		EXPECT(t, !one->fabric_attr->fabric == !is_ours(t, one));
	kfi_freeinfo(list);
	kfi_freeinfo(hints);
}

/* An object that was closed, or never existed, is not accessed and matches nothing. */
static void closed_objects(struct test *t)
{
	struct kfi_info *hints = good_hints(t);
	struct kfid_fabric *fabric;
	struct kfid_domain *domain;

	if (!hints)
		return;
	hints->fabric_attr->fabric = (void *)0x1234;
	EXPECT_EQ(t, ask(0, 0, hints), -ENODATA);
	hints->domain_attr->domain = (void *)0x1234;
	EXPECT_EQ(t, ask(0, 0, hints), -ENODATA);
	hints->fabric_attr->fabric = NULL;
	EXPECT_EQ(t, ask(0, 0, hints), -ENODATA);
	hints->domain_attr->domain = (void *)t->st->fabric;
	EXPECT_EQ(t, ask(0, 0, hints), -ENODATA);
	hints->domain_attr->domain = NULL;
	if (!EXPECT_EQ(t, kfi_fabric(t->st->info->fabric_attr, &fabric, t), 0))
		goto out;
	if (EXPECT_EQ(t, kfi_domain(fabric, t->st->info, &domain, t), 0)) {
		hints->fabric_attr->fabric = fabric;
		hints->domain_attr->domain = domain;
		EXPECT_EQ(t, ask(0, 0, hints), 0);
		EXPECT_EQ(t, kfi_close(&domain->fid), 0);
		EXPECT_EQ(t, ask(0, 0, hints), -ENODATA);
		hints->domain_attr->domain = NULL;
		EXPECT_EQ(t, ask(0, 0, hints), 0);
	}
	EXPECT_EQ(t, kfi_close(&fabric->fid), 0);
	hints->fabric_attr->fabric = fabric;
	EXPECT_EQ(t, ask(0, 0, hints), -ENODATA);
	hints->fabric_attr->fabric = NULL;
out:
	kfi_freeinfo(hints);
}

/* Checks that all entries of our device name these objects. */
static void names(struct test *t, struct kfi_info *list, struct kfid_fabric *fabric,
		  struct kfid_domain *domain)
{
	struct kfi_info *one;
	int seen = 0;

	for (one = list; one; one = one->next) {
		if (strcmp(one->domain_attr->name, t->st->info->domain_attr->name))
			continue;
		seen++;
		EXPECT(t, one->fabric_attr->fabric == fabric);
		EXPECT(t, one->domain_attr->domain == domain);
	}
	EXPECT(t, seen != 0);
	kfi_freeinfo(list);
}

/*
 * Entries name the first open object. With an object in the hints they name this one, and the first
 * open object on it.
 */
static void first_instances(struct test *t)
{
	struct kfi_info *hints = good_hints(t), *list = NULL;
	struct kfid_fabric *fabric;
	struct kfid_domain *domain;

	if (!hints)
		return;
	if (!EXPECT_EQ(t, kfi_fabric(t->st->info->fabric_attr, &fabric, t), 0))
		goto out;
	hints->fabric_attr->fabric = fabric;
	if (EXPECT_EQ(t, kfi_getinfo(0, NULL, NULL, 0, hints, &list), 0))
		names(t, list, fabric, NULL);
	if (EXPECT_EQ(t, kfi_domain(fabric, t->st->info, &domain, t), 0)) {
		if (EXPECT_EQ(t, kfi_getinfo(0, NULL, NULL, 0, hints, &list), 0))
			names(t, list, fabric, domain);
		hints->fabric_attr->fabric = NULL;
		if (EXPECT_EQ(t, kfi_getinfo(0, NULL, NULL, 0, hints, &list), 0))
			names(t, list, t->st->fabric, t->st->domain);
		hints->domain_attr->domain = domain;
		if (EXPECT_EQ(t, kfi_getinfo(0, NULL, NULL, 0, hints, &list), 0))
			names(t, list, fabric, domain);
		hints->domain_attr->domain = NULL;
		/* Without a module, no object is named. */
		if (EXPECT_EQ(t, (kfi_getinfo)(0, NULL, NULL, 0, hints, &list), 0))
			names(t, list, NULL, NULL);
		EXPECT_EQ(t, kfi_close(&domain->fid), 0);
	}
	EXPECT_EQ(t, kfi_close(&fabric->fid), 0);
out:
	hints->fabric_attr->fabric = NULL;
	kfi_freeinfo(hints);
}

/* Only callers that support all modes of memory can be targets. */
static void modes(struct test *t)
{
	static const int all = KFI_MR_LOCAL | KFI_MR_VIRT_ADDR | KFI_MR_PROV_KEY;
	struct kfi_info *hints = good_hints(t), *info = NULL;

	if (!hints)
		return;
	/* All modes would include KFI_LOCAL_MR, which implies KFI_MR_LOCAL. */
	hints->mode = 0;
	hints->caps = KFI_MSG;
	hints->domain_attr->mr_mode = KFI_MR_LOCAL;
	EXPECT_EQ(t, ask(0, 0, hints), 0);
	hints->caps = KFI_MSG | KFI_RMA | KFI_READ | KFI_WRITE;
	EXPECT_EQ(t, ask(0, 0, hints), 0);
	hints->caps = KFI_MSG | KFI_RMA | KFI_READ | KFI_WRITE | KFI_REMOTE_READ;
	EXPECT_EQ(t, ask(0, 0, hints), -ENODATA);
	hints->caps = KFI_MSG | KFI_RMA;
	EXPECT_EQ(t, ask(0, 0, hints), -ENODATA);
	hints->domain_attr->mr_mode = all & ~KFI_MR_PROV_KEY;
	EXPECT_EQ(t, ask(0, 0, hints), -ENODATA);
	hints->domain_attr->mr_mode = all & ~KFI_MR_LOCAL;
	EXPECT_EQ(t, ask(0, 0, hints), -ENODATA);
	hints->domain_attr->mr_mode = all;
	EXPECT_EQ(t, ask(0, 0, hints), 0);
	hints->caps = 0;
	hints->domain_attr->mr_mode = KFI_MR_LOCAL;
	if (EXPECT_EQ(t, kfi_getinfo(0, NULL, NULL, 0, hints, &info), 0))
		EXPECT(t, !(info->caps & (KFI_REMOTE_READ | KFI_REMOTE_WRITE)));
	kfi_freeinfo(info);
	kfi_freeinfo(hints);
}

static void addresses(struct test *t)
{
	struct kfi_info *hints = good_hints(t), *info = NULL;
	struct sockaddr_in *at, *own = t->st->info->src_addr;
	char node[INET_ADDRSTRLEN];

	if (!hints)
		return;
	snprintf(node, sizeof(node), "%pI4", &own->sin_addr);
	EXPECT_EQ(t, kfi_getinfo(0, node, "4711", KFI_SOURCE, hints, &info), 0);
	if (info) {
		at = info->src_addr;
		EXPECT_EQ(t, info->src_addrlen, sizeof(*at));
		EXPECT(t, at->sin_addr.s_addr == own->sin_addr.s_addr);
		EXPECT_EQ(t, be16_to_cpu(at->sin_port), 4711);
		EXPECT(t, !info->dest_addr);
	}
	kfi_freeinfo(info);
	info = NULL;
	EXPECT_EQ(t, kfi_getinfo(0, node, "4711", 0, hints, &info), 0);
	if (info) {
		at = info->dest_addr;
		EXPECT(t, at && at->sin_addr.s_addr == own->sin_addr.s_addr);
		EXPECT(t, at && be16_to_cpu(at->sin_port) == 4711);
	}
	kfi_freeinfo(info);
	/* A name that is not an address matches nothing. */
	EXPECT_EQ(t, kfi_getinfo(0, "nowhere", NULL, 0, hints, &info), -ENODATA);
	EXPECT_EQ(t, kfi_getinfo(0, node, "nothing", 0, hints, &info), -ENODATA);
	hints->src_addr = kmemdup(own, sizeof(*own), GFP_KERNEL);
	if (EXPECT(t, hints->src_addr)) {
		hints->src_addrlen = sizeof(*own) - 1;
		EXPECT_EQ(t, ask(0, 0, hints), -EINVAL);
		hints->src_addrlen = sizeof(*own);
		EXPECT_EQ(t, ask(0, 0, hints), 0);
	}
	kfi_freeinfo(hints);
}

static void copies_and_texts(struct test *t)
{
	struct kfi_info *info = t->st->info, *copy = kfi_dupinfo(info), *empty = kfi_dupinfo(NULL);
	u64 caps = KFI_MSG | KFI_REMOTE_COMM;
	u32 version = KFI_VERSION(1, 7), type = KFI_EP_MSG, none = 77;

	EXPECT_EQ(t, info->fabric_attr->api_version, KFI_VERSION(1, 7));
	EXPECT(t, info->caps & KFI_DYNAMIC_KEYS);
	EXPECT(t, info->domain_attr->mr_mode & KFI_MR_LOCAL);
	if (EXPECT(t, copy) && EXPECT(t, empty)) {
		EXPECT(t, copy->src_addr != info->src_addr);
		EXPECT(t, !memcmp(copy->src_addr, info->src_addr, info->src_addrlen));
		EXPECT(t, !strcmp(copy->domain_attr->name, info->domain_attr->name));
		EXPECT(t, !memcmp(copy->tx_attr, info->tx_attr, sizeof(*info->tx_attr)));
		EXPECT(t, empty->tx_attr && !empty->caps && !empty->src_addr);
	}
	kfi_freeinfo(copy);
	kfi_freeinfo(empty);
	kfi_freeinfo(NULL);
	EXPECT(t, !strcmp(kfi_tostr(&caps, KFI_TYPE_CAPS), "KFI_MSG, KFI_REMOTE_COMM"));
	EXPECT(t, !strcmp(kfi_tostr(&version, KFI_TYPE_VERSION), "1.7"));
	EXPECT(t, !strcmp(kfi_tostr(&type, KFI_TYPE_EP_TYPE), "KFI_EP_MSG"));
	EXPECT(t, !strcmp(kfi_tostr(&none, KFI_TYPE_EP_TYPE), "77"));
	EXPECT(t, strstr(kfi_tostr(info, KFI_TYPE_INFO), info->fabric_attr->prov_name));
	EXPECT(t, kfi_strerror(-KFI_EAVAIL) == kfi_strerror(KFI_EAVAIL));
	EXPECT(t, strcmp(kfi_strerror(EINVAL), kfi_strerror(KFI_EOVERRUN)));
}

static void not_offered(struct test *t)
{
	struct kfid_domain *domain = t->st->domain;
	struct kfid_wait *wait;
	struct kfid_poll *poll;
	struct kfid_stx *stx;
	struct kfid_ep *ep;
	u64 value = 0;
	void *ops;

	EXPECT_EQ(t, kfi_scalable_ep(domain, t->st->info, &ep, NULL), -ENOSYS);
	EXPECT_EQ(t, kfi_stx_context(domain, NULL, &stx, NULL), -ENOSYS);
	EXPECT_EQ(t, kfi_srx_context(domain, NULL, &ep, NULL), -ENOSYS);
	EXPECT_EQ(t, kfi_poll_open(domain, NULL, &poll), -ENOSYS);
	EXPECT_EQ(t, kfi_wait_open(t->st->fabric, NULL, &wait), -ENOSYS);
	EXPECT_EQ(t, kfi_open_ops(&domain->fid, "nothing", 0, &ops, NULL), -ENOSYS);
	EXPECT_EQ(t, kfi_domain_bind(domain, &t->st->eq->fid, KFI_REG_MR), -ENOSYS);
	EXPECT_EQ(t, kfi_control(&domain->fid, KFI_QUEUE_WORK, NULL), -ENOSYS);
	EXPECT_EQ(t, kfi_eq_write(t->st->eq, KFI_NOTIFY, &value, sizeof(value), 0), -ENOSYS);
	EXPECT_EQ(t, kfi_tsend(t->a.ep, &value, 8, NULL, 0, 1, NULL), -ENOSYS);
	EXPECT_EQ(t, kfi_trecv(t->a.ep, &value, 8, NULL, 0, 1, 0, NULL), -ENOSYS);
	EXPECT_EQ(t, kfi_tx_context(t->a.ep, 0, NULL, &ep, NULL), -ENOSYS);
	EXPECT_EQ(t, kfi_rx_context(t->a.ep, 0, NULL, &ep, NULL), -ENOSYS);
	EXPECT_EQ(t, kfi_ep_alias(t->a.ep, &ep, 0), -ENOSYS);
	EXPECT_EQ(t, kfi_join(t->a.ep, NULL, 0, NULL, NULL), -ENOSYS);
}

static void wrong_names(struct test *t)
{
	char nobody[] = "nobody";
	struct kfi_fabric_attr attr = { .prov_name = nobody };
	struct kfi_info *info = kfi_dupinfo(t->st->info);
	struct kfid_domain *domain;
	struct kfid_fabric *fabric;
	char *name;

	EXPECT_EQ(t, kfi_fabric(&attr, &fabric, NULL), -ENODEV);
	attr.prov_name = NULL;
	EXPECT_EQ(t, kfi_fabric(&attr, &fabric, NULL), -EINVAL);
	attr.prov_name = t->st->info->fabric_attr->prov_name;
	attr.name = nobody;
	EXPECT_EQ(t, kfi_fabric(&attr, &fabric, NULL), -ENODEV);
	if (!EXPECT(t, info))
		return;
	name = info->domain_attr->name;
	info->domain_attr->name = nobody;
	EXPECT_EQ(t, kfi_domain(t->st->fabric, info, &domain, NULL), -ENODEV);
	info->domain_attr->name = name;
	info->domain_attr->auth_key_size = 4;
	EXPECT_EQ(t, kfi_domain(t->st->fabric, info, &domain, NULL), -EINVAL);
	info->domain_attr->auth_key_size = 0;
	kfi_freeinfo(info);
}

const struct group info_tests[] = {
	{ "hints_are_heeded", hints_are_heeded, false },
	{ "open_objects_are_heeded", open_objects, false },
	{ "getinfo_with_closed_objects_in_hints_finds_nothing", closed_objects, false },
	{ "getinfo_with_open_objects_names_the_first", first_instances, false },
	{ "getinfo_with_remote_rights_needs_all_modes", modes, false },
	{ "addresses_as_texts", addresses, false },
	{ "copies_and_texts", copies_and_texts, false },
	{ "wrong_names", wrong_names, false },
	{ "not_offered", not_offered, true },
	{}
};
