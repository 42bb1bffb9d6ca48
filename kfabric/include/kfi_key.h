/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Keys, for consumers written in C: what peers may reach of registered memory, and for how long.
 * These calls are kfabric's own, beside the published kfi API. Providers that offer them have
 * KFI_DYNAMIC_KEYS among their capabilities.
 *
 * A key is a slot: it is allocated once, then assigned to a part of the memory and revoked, any
 * number of times, which costs little. All calls may sleep.
 */
#ifndef KFI_KEY_H
#define KFI_KEY_H

#include <kfabric.h>
#include <kfi_domain.h>
#include <kfi_endpoint.h>

/* Capability: keys by these calls. Flag of registrations: the memory has only such. */
#define KFI_DYNAMIC_KEYS	(1ULL << 40)
/* Capability: endpoints with keys of their own (KFI_MR_ENDPOINT). */
#define KFI_EP_KEYS		(1ULL << 41)
/* Capability: keys that end with their first use (KFI_KEY_SINGLE_USE). */
#define KFI_SINGLE_USE_KEYS	(1ULL << 42)
/*
 * Flag of assignments: the device is not waited for. The keys are told at once, and are valid
 * before anything takes effect that is posted on their domain afterwards.
 */
#define KFI_KEY_ORDERED		(1ULL << 43)
/*
 * Flag of assignments: a key ends with the first operation that is done by it, whatever it was. Its
 * slot can be assigned again then without being revoked.
 */
#define KFI_KEY_SINGLE_USE	(1ULL << 44)

/* Class of keys. */
#define KFI_CLASS_KEY		0x100
/* Control command of memory: struct kfi_key_alloc. */
#define KFI_ALLOC_KEYS		0x100

/* Slots of one kfi_key_alloc(), and of one batch. */
#define KFI_KEY_BATCH_MAX	4096

/**
 * struct kfi_key_assignment - one of a batch
 * @key: the slot
 * @offset: first byte, counted from the memory's start
 * @len: bytes
 * @access: KFI_REMOTE_READ, KFI_REMOTE_WRITE; with both also KFI_ATOMIC
 *
 * The outcome is in @key.
 */
struct kfi_key_assignment {
	struct kfid_key	*key;
	u64		offset;
	u64		len;
	u64		access;
};

/**
 * struct kfi_key_failures - who hears of it when the device fails what was ordered
 * @cq: a completion queue of the keys' domain, which gets an error entry for keys that were ordered
 *	together: data says which of the batch is their first, and len how many of them came to be
 * @context: the entry's op_context
 */
struct kfi_key_failures {
	struct kfid_cq	*cq;
	void		*context;
};

/**
 * struct kfi_ops_key - what can be done with keys
 * @size: bytes of the structure that its provider knows
 * @assign: see kfi_key_assign_many()
 * @revoke: see kfi_key_revoke_many()
 */
struct kfi_ops_key {
	size_t	size;
	int	(*assign)(const struct kfi_key_assignment *batch, size_t count, u64 flags,
			  const struct kfi_key_failures *failures, size_t *done);
	int	(*revoke)(struct kfid_key **keys, size_t count, size_t *done);
};

/**
 * struct kfid_key - a slot
 * @fid: what every object begins with
 * @ops: calls
 * @key: its key, or KFI_KEY_NOTAVAIL
 * @addr: the address by which peers know the first byte
 */
struct kfid_key {
	struct kfid		fid;
	struct kfi_ops_key	*ops;
	u64			key;
	u64			addr;
};

/**
 * struct kfi_key_alloc - what KFI_ALLOC_KEYS is given
 * @ep: the endpoint whose keys they are to be, or NULL
 * @count: how many
 * @keys: where they go
 * @context: the context of each
 * @auth_key: the auth key that peers have to have proven, or NULL
 * @auth_key_size: bytes of it
 */
struct kfi_key_alloc {
	struct kfid_ep	*ep;
	size_t		count;
	struct kfid_key	**keys;
	void		*context;
	const u8	*auth_key;
	size_t		auth_key_size;
};

/**
 * kfi_key_alloc() - reserves slots
 * @mr: memory that was registered with KFI_DYNAMIC_KEYS
 * @ep: the endpoint with keys of its own whose peer alone is to reach them, or NULL
 * @count: how many, up to KFI_KEY_BATCH_MAX
 * @keys: where they go
 * @context: the context of each
 *
 * Each is closed by kfi_close(), which ends its key, before the memory is.
 *
 * Return: 0; -ENOSPC: the device has no more; -EINVAL: the memory has no dynamic keys, or the
 * endpoint none of its own. On failure none is reserved.
 */
static inline int kfi_key_alloc(struct kfid_mr *mr, struct kfid_ep *ep, size_t count,
				struct kfid_key **keys, void *context)
{
	struct kfi_key_alloc alloc = {
		.ep = ep,
		.count = count,
		.keys = keys,
		.context = context,
	};

	return kfi_control(&mr->fid, KFI_ALLOC_KEYS, &alloc);
}

/**
 * kfi_key_alloc_auth() - reserves slots under an auth key of their own
 * @mr: as for kfi_key_alloc()
 * @ep: as for kfi_key_alloc()
 * @auth_key: the key of a job, whose endpoints alone are to reach them
 * @auth_key_size: bytes of it, 1 to KFI_AUTH_KEY_MAX
 * @count: as for kfi_key_alloc()
 * @keys: as for kfi_key_alloc()
 * @context: as for kfi_key_alloc()
 *
 * Without one, keys are for endpoints with the memory's auth key, or @ep's.
 *
 * Return: as kfi_key_alloc(); -EINVAL also: too many bytes, or the memory is bound to an endpoint with
 * another one; -EOPNOTSUPP: the provider cannot keep auth keys apart.
 */
static inline int kfi_key_alloc_auth(struct kfid_mr *mr, struct kfid_ep *ep, const u8 *auth_key,
				     size_t auth_key_size, size_t count, struct kfid_key **keys,
				     void *context)
{
	struct kfi_key_alloc alloc = {
		.ep = ep,
		.count = count,
		.keys = keys,
		.context = context,
		.auth_key = auth_key,
		.auth_key_size = auth_key_size,
	};

	return kfi_control(&mr->fid, KFI_ALLOC_KEYS, &alloc);
}

/**
 * kfi_key_assign_many() - gives many slots their keys, in order
 * @batch: which slots, and what peers may reach by them
 * @count: how many, at least one
 * @flags: KFI_KEY_ORDERED, KFI_KEY_SINGLE_USE
 * @failures: with KFI_KEY_ORDERED: who hears of failures, or NULL
 * @done: where it goes how many from the start have their keys, or NULL
 *
 * Without KFI_KEY_ORDERED the keys are valid everywhere when it returns; the device is waited for
 * once for 64 of them.
 *
 * Return: 0; -EBUSY: a slot has a key; -EINVAL: not inside of the memory; -EACCES: rights that the
 * memory was not registered with; -EMSGSIZE: more than one key can have; -EAGAIN: the queue is
 * full; -EOPNOTSUPP: there are no keys for one use. Slots from the first that is refused have no keys of this call.
 */
static inline int kfi_key_assign_many(const struct kfi_key_assignment *batch, size_t count,
				      u64 flags, const struct kfi_key_failures *failures,
				      size_t *done)
{
	return batch->key->ops->assign(batch, count, flags, failures, done);
}

/* kfi_key_assign_many() of one. */
static inline int kfi_key_assign(struct kfid_key *key, u64 offset, u64 len, u64 access, u64 flags)
{
	struct kfi_key_assignment one = {
		.key = key,
		.offset = offset,
		.len = len,
		.access = access,
	};

	return key->ops->assign(&one, 1, flags, NULL, NULL);
}

/**
 * kfi_key_revoke_many() - ends many keys
 * @keys: the slots; their order changes
 * @count: how many, at least one
 * @done: where it goes how many keys were ended, or NULL
 *
 * When it returns nothing is read or written through any of the keys any more, however late a
 * peer's packets are. Slots without a key are passed over.
 *
 * Return: 0; -EINTR: the task was killed while something else was under way on a slot.
 */
static inline int kfi_key_revoke_many(struct kfid_key **keys, size_t count, size_t *done)
{
	return keys[0]->ops->revoke(keys, count, done);
}

/* Ends a key, as kfi_key_revoke_many() does. -EINVAL: it has none. */
static inline int kfi_key_revoke(struct kfid_key *key)
{
	size_t done;
	int err = key->ops->revoke(&key, 1, &done);

	return err ?: done ? 0 : -EINVAL;
}

#endif
