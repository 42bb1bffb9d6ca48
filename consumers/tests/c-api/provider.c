// SPDX-License-Identifier: GPL-2.0
/* Tests of providers written in C: two at a time, by name, of which one calls getinfo. */
#include <linux/kthread.h>
#include <linux/slab.h>
#include <linux/string.h>

#include <kfi_enosys.h>
#include <kfi_prov.h>

#include "tests.h"

static int cleaned, asked;
static struct kfi_provider first, second;

static int fabric_close(struct kfid *fid)
{
	struct kfi_provider *provider = fid->context;

	kfi_close_id(fid);
	kfree(container_of(fid, struct kfid_fabric, fid));
	kfi_deref_provider(provider);
	return 0;
}

static struct kfi_ops fid_ops = {
	.size		= sizeof(struct kfi_ops),
	.close		= fabric_close,
	.bind		= kfi_no_bind,
	.control	= kfi_no_control,
	.ops_open	= kfi_no_ops_open,
};

static struct kfi_ops_fabric fabric_ops = {
	.size		= sizeof(struct kfi_ops_fabric),
	.domain		= kfi_no_domain,
	.passive_ep	= kfi_no_passive_ep,
	.eq_open	= kfi_no_eq_open,
	.wait_open	= kfi_no_wait_open,
};

/* The operations of a provider that supports none of these; here for the compiler to check. */
static struct kfi_ops_domain __maybe_unused no_domain_ops = {
	.size		= sizeof(struct kfi_ops_domain),
	.av_open	= kfi_no_av_open,
	.cq_open	= kfi_no_cq_open,
	.endpoint	= kfi_no_endpoint,
	.scalable_ep	= kfi_no_scalable_ep,
	.cntr_open	= kfi_no_cntr_open,
	.poll_open	= kfi_no_poll_open,
	.stx_ctx	= kfi_no_stx_ctx,
	.srx_ctx	= kfi_no_srx_ctx,
	.query_atomic	= kfi_no_query_atomic,
};

static struct kfi_ops_ep __maybe_unused no_ep_ops = {
	.size		= sizeof(struct kfi_ops_ep),
	.cancel		= kfi_no_cancel,
	.getopt		= kfi_no_getopt,
	.setopt		= kfi_no_setopt,
	.tx_ctx		= kfi_no_tx_ctx,
	.rx_ctx		= kfi_no_rx_ctx,
};

static struct kfi_ops_cm __maybe_unused no_cm_ops = {
	.size		= sizeof(struct kfi_ops_cm),
	.setname	= kfi_no_setname,
	.getname	= kfi_no_getname,
	.getpeer	= kfi_no_getpeer,
	.connect	= kfi_no_connect,
	.listen		= kfi_no_listen,
	.accept		= kfi_no_accept,
	.reject		= kfi_no_reject,
	.shutdown	= kfi_no_shutdown,
	.join		= kfi_no_join,
};

static struct kfi_ops_av __maybe_unused no_av_ops = {
	.size		= sizeof(struct kfi_ops_av),
	.insert		= kfi_no_av_insert,
	.insertsvc	= kfi_no_av_insertsvc,
	.insertsym	= kfi_no_av_insertsym,
};

static struct kfi_ops_eq __maybe_unused no_eq_ops = {
	.size		= sizeof(struct kfi_ops_eq),
	.write		= kfi_no_eq_write,
	.sread		= kfi_no_eq_sread,
};

static struct kfi_ops_cq __maybe_unused no_cq_ops = {
	.size		= sizeof(struct kfi_ops_cq),
	.readfrom	= kfi_no_cq_readfrom,
	.sread		= kfi_no_cq_sread,
	.sreadfrom	= kfi_no_cq_sreadfrom,
	.signal		= kfi_no_cq_signal,
};

static int open_fabric(struct kfi_provider *provider, struct kfid_fabric **fabric)
{
	struct kfid_fabric *made = kzalloc_obj(*made);

	if (!made)
		return -ENOMEM;
	kfi_init_id(&made->fid);
	made->fid.fclass = KFI_CLASS_FABRIC;
	made->fid.context = provider;
	made->fid.ops = &fid_ops;
	made->ops = &fabric_ops;
	kfi_ref_provider(provider);
	*fabric = made;
	return 0;
}

static int first_fabric(struct kfi_fabric_attr *attr, struct kfid_fabric **fabric, void *context)
{
	return open_fabric(&first, fabric);
}

static int second_fabric(struct kfi_fabric_attr *attr, struct kfid_fabric **fabric, void *context)
{
	return open_fabric(&second, fabric);
}

/* kfabric sets the provider's name. */
static int offer(struct kfi_info **info)
{
	*info = kfi_allocinfo();
	return *info ? 0 : -ENOMEM;
}

static int first_getinfo(u32 version, const char *node, const char *service, u64 flags,
			 struct kfi_info *hints, struct kfi_info **info)
{
	return offer(info);
}

/* A provider built on others calls their getinfo. */
static int second_getinfo(u32 version, const char *node, const char *service, u64 flags,
			  struct kfi_info *hints, struct kfi_info **info)
{
	struct kfi_info *below;

	if (!kfi_getinfo(version, NULL, NULL, 0, NULL, &below)) {
		asked++;
		kfi_freeinfo(below);
	}
	return offer(info);
}

static void cleanup(void)
{
	cleaned++;
}

static struct kfi_provider first = {
	.version	= 1,
	.kfi_version	= KFI_VERSION(1, 7),
	.name		= "kfitest-c1",
	.kgetinfo	= first_getinfo,
	.kfabric	= first_fabric,
	.cleanup	= cleanup,
};

static struct kfi_provider second = {
	.version	= 1,
	.kfi_version	= KFI_VERSION(1, 1),
	.name		= "kfitest-c2",
	.kgetinfo	= second_getinfo,
	.kfabric	= second_fabric,
};

/* Returns the number of infos of a provider. */
static int count(const char *name)
{
	struct kfi_info *list = NULL, *info;
	int found = 0;

	kfi_getinfo(0, NULL, NULL, 0, NULL, &list);
	for (info = list; info; info = info->next)
		found += info->fabric_attr->prov_name &&
			 !strcmp(info->fabric_attr->prov_name, name);
	kfi_freeinfo(list);
	return found;
}

static int deregister(void *provider)
{
	int err = kfi_provider_deregister(provider);

	while (!kthread_should_stop())
		schedule_timeout_interruptible(1);
	return err;
}

static void two(struct test *t)
{
	struct kfi_provider bad = first;
	struct kfi_fabric_attr attr = {}, wanted = {};
	struct kfi_info hints = {}, *list;
	struct kfid_fabric *fabric;
	struct task_struct *task;
	char name[] = "kfitest-c1";
	int users;

	EXPECT_EQ(t, kfi_provider_deregister(&first), -ENOENT);
	EXPECT_EQ(t, kfi_provider_register(NULL), -EINVAL);
	bad.name = NULL;
	EXPECT_EQ(t, kfi_provider_register(&bad), -EINVAL);
	bad.name = t->st->info->fabric_attr->prov_name;
	EXPECT_EQ(t, kfi_provider_register(&bad), -EEXIST);
	bad.name = "kfitest-c3";
	bad.kfi_version = KFI_VERSION(1, 8);
	EXPECT_EQ(t, kfi_provider_register(&bad), -ENOSYS);
	if (!EXPECT_EQ(t, kfi_provider_register(&first), 0))
		return;
	if (EXPECT_EQ(t, kfi_provider_register(&second), 0)) {
		EXPECT_EQ(t, kfi_provider_register(&second), -EEXIST);
		asked = 0;
		EXPECT_EQ(t, count("kfitest-c1"), 1);
		EXPECT_EQ(t, count("kfitest-c2"), 1);
		EXPECT_EQ(t, asked, 2);
		EXPECT(t, count(t->st->info->fabric_attr->prov_name) > 0);
		/* Hints with a fabric of another provider do not match these. */
		hints.fabric_attr = &wanted;
		wanted.fabric = t->st->fabric;
		hints.caps = KFI_TAGGED;
		asked = 0;
		EXPECT_EQ(t, kfi_getinfo(0, NULL, NULL, 0, &hints, &list), -ENODATA);
		EXPECT_EQ(t, asked, 0);
		EXPECT_EQ(t, kfi_provider_deregister(&second), 0);
		EXPECT_EQ(t, count("kfitest-c2"), 0);
	}
	attr.prov_name = name;
	users = module_refcount(THIS_MODULE);
	if (EXPECT_EQ(t, kfi_fabric(&attr, &fabric, t), 0)) {
		EXPECT(t, fabric->ops == &fabric_ops);
		/* The provider's module stays referenced while the fabric is open. */
		EXPECT_EQ(t, module_refcount(THIS_MODULE), users + 1);
		/*
		 * Deregistration waits for open objects; meanwhile getinfo does not find the
		 * provider.
		 */
		task = kthread_run(deregister, &first, "kfi_test_c_api");
		if (EXPECT(t, !IS_ERR(task))) {
			while (count("kfitest-c1"))
				schedule_timeout_interruptible(1);
			EXPECT_EQ(t, cleaned, 0);
			EXPECT_EQ(t, kfi_close(&fabric->fid), 0);
			EXPECT_EQ(t, kthread_stop(task), 0);
			EXPECT_EQ(t, cleaned, 1);
			EXPECT_EQ(t, module_refcount(THIS_MODULE), users);
			return;
		}
		kfi_close(&fabric->fid);
	}
	EXPECT_EQ(t, kfi_provider_deregister(&first), 0);
}

const struct group provider_tests[] = {
	{ "two_providers_in_c", two, false },
	{}
};
