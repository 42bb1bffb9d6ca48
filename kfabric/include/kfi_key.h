/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Dynamic keys, for consumers written in C: a key opens a part of registered
 * memory to peers until it is revoked. These calls extend the published kfi
 * API. Providers that support them have the capability KFI_DYNAMIC_KEYS.
 *
 * A consumer allocates a key slot once. Then it assigns the slot to a part of
 * the memory and revokes it, any number of times, at low cost. All calls may
 * sleep.
 */
#ifndef KFI_KEY_H
#define KFI_KEY_H

#include <kfabric.h>
#include <kfi_domain.h>
#include <kfi_endpoint.h>

/*
 * Capability: dynamic keys. Flag of registrations: the memory has dynamic keys
 * only.
 */
#define KFI_DYNAMIC_KEYS	(1ULL << 40)
/* Capability: endpoints with endpoint-scoped keys (KFI_MR_ENDPOINT). */
#define KFI_EP_KEYS		(1ULL << 41)
/* Capability: keys that their first use ends (KFI_KEY_SINGLE_USE). */
#define KFI_SINGLE_USE_KEYS	(1ULL << 42)
/*
 * Flag of assignments: the call does not wait for the device. The key values
 * are stored before the return. The keys become valid before any operation that
 * is posted on the domain afterwards takes effect.
 */
#define KFI_KEY_ORDERED		(1ULL << 43)
/*
 * Flag of assignments: the first operation that uses the key ends it. Its slot
 * can then be assigned again without a revocation.
 */
#define KFI_KEY_SINGLE_USE	(1ULL << 44)

/* Class of key slots. */
#define KFI_CLASS_KEY		0x100
/*
 * Control command of registered memory; its argument is a struct kfi_key_alloc.
 */
#define KFI_ALLOC_KEYS		0x100

/* Maximum number of slots in one kfi_key_alloc(), and in one batch. */
#define KFI_KEY_BATCH_MAX	4096

/**
 * struct kfi_key_assignment - one assignment of a batch
 * @key: the slot
 * @offset: first byte, relative to the start of the memory
 * @len: bytes
 * @access: KFI_REMOTE_READ, KFI_REMOTE_WRITE; with both also KFI_ATOMIC
 *
 * The key value and its address are stored in @key.
 */
struct kfi_key_assignment {
	struct kfid_key	*key;
	u64		offset;
	u64		len;
	u64		access;
};

/**
 * struct kfi_key_failures - where failures of ordered assignments are reported
 * @cq: completion queue of the slots' domain. If the device fails keys that were
 *	assigned together, the queue gets one error entry. Its data is the index
 *	of the first of these keys in the batch. Its len is the number of valid
 *	ones
 * @context: the entry's op_context
 */
struct kfi_key_failures {
	struct kfid_cq	*cq;
	void		*context;
};

/**
 * struct kfi_ops_key - calls of key slots
 * @size: size of the structure in its provider's build, in bytes
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
 * struct kfid_key - a key slot
 * @fid: common start of all objects
 * @ops: calls of the slot
 * @key: the slot's key value, or KFI_KEY_NOTAVAIL
 * @addr: address of the key's first byte for peers
 */
struct kfid_key {
	struct kfid		fid;
	struct kfi_ops_key	*ops;
	u64			key;
	u64			addr;
};

/**
 * struct kfi_key_alloc - argument of KFI_ALLOC_KEYS
 * @ep: endpoint to which the slots are bound, or NULL
 * @count: number of slots
 * @keys: where the slots are stored
 * @context: the context of each slot
 * @auth_key: auth key that peers must prove, or NULL
 * @auth_key_size: bytes of @auth_key
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
 * kfi_key_alloc() - allocates key slots
 * @mr: memory that was registered with KFI_DYNAMIC_KEYS
 * @ep: endpoint with endpoint-scoped keys, whose peer alone can use the keys,
 *	or NULL
 * @count: number of slots, up to KFI_KEY_BATCH_MAX
 * @keys: where the slots are stored
 * @context: the context of each slot
 *
 * The consumer closes each slot by kfi_close() before it closes the memory. The
 * close revokes the slot's key.
 *
 * Return: 0, or
 * -ENOSPC if the device has no more keys;
 * -EINVAL if the memory has no dynamic keys, or the endpoint has no
 *   endpoint-scoped keys.
 * On failure no slot is allocated.
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
 * kfi_key_alloc_auth() - allocates key slots with an auth key of their own
 * @mr: as for kfi_key_alloc()
 * @ep: as for kfi_key_alloc()
 * @auth_key: auth key of a job; only endpoints with this auth key can use the
 *	slots' keys
 * @auth_key_size: bytes of @auth_key, 1 to KFI_AUTH_KEY_MAX
 * @count: as for kfi_key_alloc()
 * @keys: as for kfi_key_alloc()
 * @context: as for kfi_key_alloc()
 *
 * Slots of kfi_key_alloc() use the auth key of the memory or of @ep.
 *
 * Return: as kfi_key_alloc(), or
 * -EINVAL if @auth_key_size is not valid, or the memory is bound to an endpoint
 *   with another auth key;
 * -EOPNOTSUPP if the provider cannot keep auth keys apart.
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
 * kfi_key_assign_many() - assigns many slots, in order
 * @batch: the assignments
 * @count: number of assignments, at least 1
 * @flags: KFI_KEY_ORDERED, KFI_KEY_SINGLE_USE
 * @failures: with KFI_KEY_ORDERED: where failures are reported, or NULL
 * @done: where the number of assigned slots, from the start, is stored, or NULL
 *
 * Without KFI_KEY_ORDERED the keys are valid everywhere after the return. The
 * call waits for the device once for each 64 keys.
 *
 * Return: 0, or
 * -EBUSY if a slot has a key;
 * -EINVAL if the range is not within the memory;
 * -EACCES if the memory was not registered with the rights;
 * -EMSGSIZE if one key cannot cover as many bytes;
 * -EAGAIN if the queue of ordered assignments or the completion queue is full;
 * -EOPNOTSUPP if the provider has no single-use keys or no ordered assignments.
 * The first slot that fails and all later slots get no key from this call.
 */
static inline int kfi_key_assign_many(const struct kfi_key_assignment *batch, size_t count,
				      u64 flags, const struct kfi_key_failures *failures,
				      size_t *done)
{
	return batch->key->ops->assign(batch, count, flags, failures, done);
}

/* Like kfi_key_assign_many(), but assigns one slot. */
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
 * kfi_key_revoke_many() - revokes the keys of many slots
 * @keys: the slots; the call changes their order
 * @count: number of slots, at least 1
 * @done: where the number of revoked keys is stored, or NULL
 *
 * After the return no byte is read or written through any of the keys, even by
 * a packet that a peer sent earlier. Slots without a key are skipped.
 *
 * Return: 0, or
 * -EINTR if the task was killed while it waited for another step of a slot.
 */
static inline int kfi_key_revoke_many(struct kfid_key **keys, size_t count, size_t *done)
{
	return keys[0]->ops->revoke(keys, count, done);
}

/*
 * Revokes a slot's key as kfi_key_revoke_many(). Returns -EINVAL if the slot
 * has no key.
 */
static inline int kfi_key_revoke(struct kfid_key *key)
{
	size_t done;
	int err = key->ops->revoke(&key, 1, &done);

	return err ?: done ? 0 : -EINVAL;
}

#endif
