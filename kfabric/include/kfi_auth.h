/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Grants, for consumers written in C: a grant permits programs to use an auth
 * key. These calls extend the published kfi API. Kernel consumers need no grant
 * for objects that they open under an auth key themselves (kfi_ep_attr,
 * kfi_domain_attr, kfi_mr_attr, kfi_key_alloc_auth()).
 */
#ifndef KFI_AUTH_H
#define KFI_AUTH_H

#include <kfabric.h>

struct net;
struct pid;

/*
 * Rights of a grant: to open endpoints; to have keys, which are key slots and
 * memory with a key.
 */
#define KFI_AUTH_EP		1
#define KFI_AUTH_KEYS		2

/*
 * Conditions of a grant: the requesting process must satisfy all that are set.
 */
#define KFI_MATCH_UID		1
#define KFI_MATCH_GID		2
#define KFI_MATCH_CGROUP	4
#define KFI_MATCH_NETNS		8
#define KFI_MATCH_PROCESS	16

/**
 * struct kfi_grant_attr - attributes of a grant
 * @auth_key: the auth key
 * @auth_key_size: bytes of @auth_key, 1 to KFI_AUTH_KEY_MAX
 * @match: KFI_MATCH_*; the fields of the other conditions are zero
 * @rights: KFI_AUTH_*
 * @uid: effective user, in the initial user namespace
 * @gid: a group, in the initial user namespace
 * @cgroup: id of a cgroup (v2); processes in its descendants match, too
 * @net: network namespace
 * @process: process; a later process with the same number does not match
 * @max_pinned: bytes of memory registered at the same time; 0: no limit
 * @max_keys: keys at the same time; 0: no limit
 * @max_eps: endpoints at the same time; 0: no limit
 * @lifetime_ms: lifetime in milliseconds; 0: no end
 */
struct kfi_grant_attr {
	const u8	*auth_key;
	size_t		auth_key_size;
	u32		match;
	u32		rights;
	u32		uid;
	u32		gid;
	u64		cgroup;
	struct net	*net;
	struct pid	*process;
	u64		max_pinned;
	u32		max_keys;
	u32		max_eps;
	u64		lifetime_ms;
};

/**
 * kfi_grant_add() - permits programs to use an auth key
 * @attr: the grant's attributes
 * @id: where the grant's number is stored; no other grant ever has it
 *
 * The grant exists until it is revoked or its lifetime ends, even if the
 * caller's module is unloaded. May sleep.
 *
 * Return: 0, or
 * -EINVAL if @attr has no condition, no right or no valid auth key;
 * -EBUSY if an earlier grant for this auth key has ended and an object under it
 *   still exists;
 * -ESRCH if the process has exited;
 * -ENOSPC if there are too many grants;
 * -ENOMEM if there is no memory.
 */
int kfi_grant_add(const struct kfi_grant_attr *attr, u64 *id);

/**
 * kfi_grant_limit() - changes the limits of a grant
 * @id: the grant's number
 * @max_pinned: bytes of memory registered at the same time; 0: no limit
 * @max_keys: keys at the same time; 0: no limit
 * @max_eps: endpoints at the same time; 0: no limit
 *
 * Objects above a lowered limit remain.
 *
 * Return: 0, or
 * -ENOENT if the grant does not exist or has ended.
 */
int kfi_grant_limit(u64 id, u64 max_pinned, u32 max_keys, u32 max_eps);

/**
 * kfi_grant_extend() - changes the end of a grant
 * @id: the grant's number
 * @lifetime_ms: milliseconds from now until the grant ends; 0: no end
 *
 * Return: 0, or
 * -ENOENT if the grant does not exist or has ended.
 */
int kfi_grant_extend(u64 id, u64 lifetime_ms);

/**
 * kfi_grant_revoke() - revokes a grant
 * @id: the grant's number
 *
 * After the return all programs' endpoints under the grant are disconnected,
 * and all keys under it are revoked. May sleep.
 *
 * Return: 0, or
 * -ENOENT if the grant does not exist or has ended;
 * -EINTR if the task is being killed: a worker completes the revocation.
 */
int kfi_grant_revoke(u64 id);

/* Returns whether programs need grants. */
bool kfi_auth_enforced(void);

#endif
