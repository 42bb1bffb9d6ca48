// SPDX-License-Identifier: GPL-2.0
/*
 * kfi_test_c_api: tests of the kfi API for consumers written in C. Loading the module runs the
 * tests, which takes some seconds, and prints results in KTAP. The load fails with EIO if a test
 * fails.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/module.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "tests.h"

static const struct group *const groups[] = {
	info_tests, connection_tests, vector_tests, memory_tests, message_tests, rma_tests,
	atomic_tests, queue_tests, reader_tests, key_tests, auth_tests, provider_tests,
};

/* Tests of a DAX device, if there is one. */
static const struct group *const device_groups[] = { dax_tests };

static char *provider;
module_param(provider, charp, 0444);
MODULE_PARM_DESC(provider, "Name of the provider to use; without, the best");

bool expect(struct test *t, bool holds, const char *what, const char *file, int line)
{
	if (!holds) {
		t->failed = true;
		pr_info("# %s:%d: does not hold: %s\n", file, line, what);
	}
	return holds;
}

bool expect_eq(struct test *t, long long got, long long wanted, const char *what,
	       const char *file, int line)
{
	if (got != wanted) {
		t->failed = true;
		pr_info("# %s:%d: %s is %lld, not %lld\n", file, line, what, got, wanted);
	}
	return got == wanted;
}

static void on_event(struct kfid_eq *eq, void *context)
{
	struct station *st = context;

	atomic_inc(&st->events);
}

/* Returns whether the address can be listened on as it is. */
static bool is_plain(const struct kfi_info *info)
{
	return info->addr_format == KFI_SOCKADDR_IN && info->src_addr &&
	       strncmp(info->fabric_attr->prov_name, "kfitest-", 8);
}

static int station_open(struct station *st)
{
	struct kfi_info *hints = kfi_allocinfo(), *list, *info;
	size_t len = sizeof(st->addr);
	int err;

	if (!hints)
		return -ENOMEM;
	hints->caps = KFI_MSG | KFI_RMA | KFI_DYNAMIC_KEYS;
	hints->mode = ~0ULL;
	hints->ep_attr->type = KFI_EP_MSG;
	hints->domain_attr->mr_mode = KFI_MR_LOCAL | KFI_MR_VIRT_ADDR | KFI_MR_PROV_KEY;
	if (provider) {
		hints->fabric_attr->prov_name = kstrdup(provider, GFP_KERNEL);
		if (!hints->fabric_attr->prov_name) {
			kfi_freeinfo(hints);
			return -ENOMEM;
		}
	}
	err = kfi_getinfo(kfi_version(), NULL, NULL, 0, hints, &list);
	kfi_freeinfo(hints);
	if (err)
		return err;
	for (info = list; info && !is_plain(info); info = info->next)
		;
	st->info = info ? kfi_dupinfo(info) : NULL;
	kfi_freeinfo(list);
	if (!st->info)
		return -ENODEV;
	err = kfi_fabric(st->info->fabric_attr, &st->fabric, st);
	if (err)
		goto no_fabric;
	err = kfi_domain(st->fabric, st->info, &st->domain, st);
	if (err)
		goto no_domain;
	err = kfi_eq_open(st->fabric, NULL, &st->eq, on_event, st);
	if (err)
		goto no_eq;
	err = kfi_passive_ep(st->fabric, st->info, &st->pep, st);
	if (err)
		goto no_pep;
	err = kfi_pep_bind(st->pep, &st->eq->fid, 0);
	err = err ?: kfi_listen(st->pep);
	err = err ?: kfi_getname(&st->pep->fid, &st->addr, &len);
	if (!err)
		return 0;
	kfi_close(&st->pep->fid);
no_pep:
	kfi_close(&st->eq->fid);
no_eq:
	kfi_close(&st->domain->fid);
no_domain:
	kfi_close(&st->fabric->fid);
no_fabric:
	kfi_freeinfo(st->info);
	return err;
}

static void station_close(struct test *t)
{
	struct station *st = t->st;

	EXPECT(t, atomic_read(&st->events) != 0);
	EXPECT_EQ(t, kfi_close(&st->fabric->fid), -EBUSY);
	EXPECT_EQ(t, kfi_close(&st->eq->fid), -EBUSY);
	EXPECT_EQ(t, kfi_close(&st->pep->fid), 0);
	EXPECT_EQ(t, kfi_close(&st->eq->fid), 0);
	EXPECT_EQ(t, kfi_close(&st->domain->fid), 0);
	EXPECT_EQ(t, kfi_close(&st->fabric->fid), 0);
	kfi_freeinfo(st->info);
}

static bool tell(const struct test *t, int number)
{
	pr_info("%sok %d %s\n", t->failed ? "not " : "", number, t->name);
	return !t->failed;
}

/* Runs one test and returns whether it passed. */
static bool run(struct test *t, const struct group *one, int number)
{
	t->name = one->name;
	t->failed = false;
	INIT_LIST_HEAD(&t->bufs);
	side_init(&t->a);
	side_init(&t->b);
	if (!one->pair || pair_open(t, t->st->domain, 0))
		one->run(t);
	pair_close(t);
	bufs_put(t);
	return tell(t, number);
}

static int __init tests_init(void)
{
	struct station st = {};
	struct test t = { .st = &st };
	const struct group *const *these = has_dax() ? device_groups : groups;
	int i, count = has_dax() ? ARRAY_SIZE(device_groups) : ARRAY_SIZE(groups);
	int plan = 1, number = 0, failed = 0;
	const struct group *one;
	int err = station_open(&st);

	if (err)
		return err;
	for (i = 0; i < count; i++)
		for (one = these[i]; one->name; one++)
			plan++;
	pr_info("KTAP version 1\n");
	pr_info("1..%d\n", plan);
	pr_info("# provider %s, domain %s\n", st.info->fabric_attr->prov_name,
		st.info->domain_attr->name);
	for (i = 0; i < count; i++)
		for (one = these[i]; one->name; one++)
			failed += !run(&t, one, ++number);
	t.name = "nothing_is_left";
	t.failed = false;
	station_close(&t);
	failed += !tell(&t, ++number);
	pr_info("# %d passed, %d failed\n", number - failed, failed);
	return failed ? -EIO : 0;
}
module_init(tests_init);

static void __exit tests_exit(void)
{
}
module_exit(tests_exit);

MODULE_DESCRIPTION("Tests of the kfi API for consumers in C");
MODULE_LICENSE("GPL");
