/* SPDX-License-Identifier: GPL-2.0 */
/*
 * For providers of the kfi API that are written in C. (Those written in Rust implement
 * kfabric::provider instead, and serve programs, too.)
 */
#ifndef KFI_PROV_H
#define KFI_PROV_H

#include <linux/init.h>
#include <linux/module.h>
#include <kfabric.h>

/**
 * struct kfi_provider - a provider
 * @version: its version
 * @kfi_version: the version of this API that it was written for
 * @context: for kfabric's own use
 * @name: its name, which no other provider has
 * @kgetinfo: lists what it offers, as kfi_getinfo() does
 * @kfabric: opens one of its fabrics
 * @cleanup: called when it has been deregistered; may be NULL
 * @comp: done when @ref_cnt is 0
 * @ref_cnt: who uses it
 *
 * @kgetinfo and @kfabric are called without a lock, and may themselves call kfi_getinfo() and
 * kfi_fabric(). Whoever calls them holds the provider's module, and so does who has a reference
 * (kfi_ref_provider()): a provider takes one for each object that it makes.
 */
struct kfi_provider {
	u32			version;
	u32			kfi_version;
	struct kfi_context	context;
	const char		*name;
	int			(*kgetinfo)(u32 version, const char *node, const char *service,
					    u64 flags, struct kfi_info *hints,
					    struct kfi_info **info);
	int			(*kfabric)(struct kfi_fabric_attr *attr,
					   struct kfid_fabric **fabric, void *context);
	void			(*cleanup)(void);
	struct completion	comp;
	atomic_t		ref_cnt;
};

/**
 * kfi_provider_register_by() - adds a provider
 * @provider: stays until it was deregistered
 * @owner: its module
 *
 * Return: 0; -EEXIST: there is one of that name, in whichever language; -EINVAL: no name, or a
 * name longer than 31 bytes, or a call is missing; -ENOSYS: written for another major version, or
 * a later one, of this API; -ENOMEM.
 */
int kfi_provider_register_by(struct kfi_provider *provider, struct module *owner);

/* kfi_provider_register_by() of the module that calls. */
int kfi_provider_register(struct kfi_provider *provider);
#define kfi_provider_register(provider) kfi_provider_register_by(provider, THIS_MODULE)

/**
 * kfi_provider_deregister() - takes a provider out
 * @provider: one that was registered
 *
 * Returns when nobody calls it any more and all references (kfi_ref_provider()) are gone. May
 * sleep; not to be called from @kgetinfo or @kfabric.
 *
 * Return: 0; -ENOENT: it is not registered, and nothing was waited for.
 */
int kfi_provider_deregister(struct kfi_provider *provider);

/* Keeps a provider, and its module: for each object that it makes, in a call of kfabric's. */
static inline void kfi_ref_provider(struct kfi_provider *provider)
{
	__module_get(provider->context.internal[0]);
	atomic_inc(&provider->ref_cnt);
}

/* Lets go of it. */
static inline void kfi_deref_provider(struct kfi_provider *provider)
{
	struct module *owner = provider->context.internal[0];

	if (atomic_dec_and_test(&provider->ref_cnt))
		complete(&provider->comp);
	module_put(owner);
}

/* Readies a new object's counting, with one reference. */
static inline void kfi_init_id(struct kfid *fid)
{
	init_completion(&fid->comp);
	atomic_set(&fid->ref_cnt, 1);
}

/* Keeps an object: while it is used, or used by another one. */
static inline void kfi_ref_id(struct kfid *fid)
{
	atomic_inc(&fid->ref_cnt);
}

/* Lets go of it. */
static inline void kfi_deref_id(struct kfid *fid)
{
	if (atomic_dec_and_test(&fid->ref_cnt))
		complete(&fid->comp);
}

/* Lets go of the first reference, and waits for all others. */
static inline void kfi_close_id(struct kfid *fid)
{
	kfi_deref_id(fid);
	wait_for_completion(&fid->comp);
}

#endif
