/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Registration of kfi providers that are written in C. (Providers written in
 * Rust implement kfabric::provider instead, and also serve programs.)
 */
#ifndef KFI_PROV_H
#define KFI_PROV_H

#include <linux/init.h>
#include <linux/module.h>
#include <kfabric.h>

/**
 * struct kfi_provider - a provider
 * @version: version of the provider
 * @kfi_version: version of this API that the provider was written for
 * @context: for kfabric's own use
 * @name: name of the provider; unique among all providers
 * @kgetinfo: lists the provider's offers, as kfi_getinfo()
 * @kfabric: opens a fabric of the provider
 * @cleanup: called after the deregistration; may be NULL
 * @comp: completed when @ref_cnt is 0
 * @ref_cnt: number of references to the provider
 *
 * kfabric calls @kgetinfo and @kfabric without a lock; they may call
 * kfi_getinfo() and kfi_fabric(). The caller holds the provider's module during
 * these calls. Each reference (kfi_ref_provider()) holds the module, too. A
 * provider takes a reference for each object that it creates.
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
 * kfi_provider_register_by() - registers a provider
 * @provider: the provider; must exist until it is deregistered
 * @owner: the provider's module
 *
 * Return: 0, or
 * -EEXIST if a provider of this name is registered, in C or in Rust;
 * -EINVAL if there is no name, or a name longer than 31 bytes;
 * -EINVAL if @kgetinfo or @kfabric is missing;
 * -ENOSYS if the provider was written for another major or a later minor
 *   version;
 * -ENOMEM if there is no memory.
 */
int kfi_provider_register_by(struct kfi_provider *provider, struct module *owner);

/* Like kfi_provider_register_by(), with the calling module as the owner. */
int kfi_provider_register(struct kfi_provider *provider);
#define kfi_provider_register(provider) kfi_provider_register_by(provider, THIS_MODULE)

/**
 * kfi_provider_deregister() - deregisters a provider
 * @provider: a registered provider
 *
 * Waits until no call of the provider runs and all references
 * (kfi_ref_provider()) are dropped. May sleep. Must not be called from
 * @kgetinfo or @kfabric.
 *
 * Return: 0, or
 * -ENOENT if the provider is not registered: the call does not wait then.
 */
int kfi_provider_deregister(struct kfi_provider *provider);

/*
 * Takes a reference to a provider and its module. A provider takes one for each
 * object that it creates, in a call from kfabric.
 */
static inline void kfi_ref_provider(struct kfi_provider *provider)
{
	__module_get(provider->context.internal[0]);
	atomic_inc(&provider->ref_cnt);
}

/* Drops a reference to a provider and its module. */
static inline void kfi_deref_provider(struct kfi_provider *provider)
{
	struct module *owner = provider->context.internal[0];

	if (atomic_dec_and_test(&provider->ref_cnt))
		complete(&provider->comp);
	module_put(owner);
}

/* Initialises the reference count of a new object to 1. */
static inline void kfi_init_id(struct kfid *fid)
{
	init_completion(&fid->comp);
	atomic_set(&fid->ref_cnt, 1);
}

/*
 * Takes a reference to an object, for its use by a call or by another object.
 */
static inline void kfi_ref_id(struct kfid *fid)
{
	atomic_inc(&fid->ref_cnt);
}

/* Drops a reference to an object. */
static inline void kfi_deref_id(struct kfid *fid)
{
	if (atomic_dec_and_test(&fid->ref_cnt))
		complete(&fid->comp);
}

/*
 * Drops the first reference to an object, and waits until all others are
 * dropped.
 */
static inline void kfi_close_id(struct kfid *fid)
{
	kfi_deref_id(fid);
	wait_for_completion(&fid->comp);
}

#endif
