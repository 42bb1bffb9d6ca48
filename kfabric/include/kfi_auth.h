/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Grants, for consumers written in C: which programs may use an auth key. These calls are kfabric's
 * own, beside the published kfi API. What consumers in the kernel themselves open under an auth key
 * (kfi_ep_attr, kfi_domain_attr, kfi_mr_attr, kfi_key_alloc_auth()) needs no grant.
 */
#ifndef KFI_AUTH_H
#define KFI_AUTH_H

#include <kfabric.h>

struct net;
struct pid;

/* Rights of a grant: to open endpoints; to have keys: key slots, and memory with a key. */
#define KFI_AUTH_EP		1
#define KFI_AUTH_KEYS		2

/* What a grant looks at: all that is named must be true of who asks. */
#define KFI_MATCH_UID		1
#define KFI_MATCH_GID		2
#define KFI_MATCH_CGROUP	4
#define KFI_MATCH_NETNS		8
#define KFI_MATCH_PROCESS	16

/**
 * struct kfi_grant_attr - a grant
 * @auth_key: the auth key
 * @auth_key_size: bytes of it, 1 to KFI_AUTH_KEY_MAX
 * @match: KFI_MATCH_*; what it does not name is zero below
 * @rights: KFI_AUTH_*
 * @uid: the effective user, in the initial user namespace
 * @gid: a group, in the initial user namespace
 * @cgroup: the id of a cgroup (v2); those in it are meant, too
 * @net: the network namespace
 * @process: the process; no later one with its number is meant
 * @max_pinned: bytes in memory that is registered at once; 0: any
 * @max_keys: keys at once; 0: any
 * @max_eps: endpoints at once; 0: any
 * @lifetime_ms: for how long, in milliseconds; 0: without end
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
 * kfi_grant_add() - lets programs use an auth key
 * @attr: which, and what of it
 * @id: where the grant's number goes, which is never another's
 *
 * It stays until it is revoked or over, whatever becomes of the caller. May sleep.
 *
 * Return: 0; -EINVAL: nobody, nothing, or no auth key; -EBUSY: a grant of this auth key was revoked or
 * is over, and something opened under it has not ended yet; -ESRCH: the process is gone; -ENOSPC:
 * there are too many; -ENOMEM.
 */
int kfi_grant_add(const struct kfi_grant_attr *attr, u64 *id);

/**
 * kfi_grant_limit() - changes what a grant allows at once
 * @id: its number
 * @max_pinned: as in struct kfi_grant_attr, and so are the others
 * @max_keys: keys
 * @max_eps: endpoints
 *
 * What is beyond a lower limit stays.
 *
 * Return: 0; -ENOENT: no such grant, or it is over.
 */
int kfi_grant_limit(u64 id, u64 max_pinned, u32 max_keys, u32 max_eps);

/**
 * kfi_grant_extend() - changes for how long a grant is
 * @id: its number
 * @lifetime_ms: for how long from now on, in milliseconds; 0: without end
 *
 * Return: 0; -ENOENT: no such grant, or it is over.
 */
int kfi_grant_extend(u64 id, u64 lifetime_ms);

/**
 * kfi_grant_revoke() - ends a grant
 * @id: its number
 *
 * When it returns what programs have opened under it has ended: endpoints, and keys. May sleep.
 *
 * Return: 0; -ENOENT: no such grant, or it is over; -EINTR: the task is being killed, and a worker does
 * the rest.
 */
int kfi_grant_revoke(u64 id);

/* Whether programs need grants. */
bool kfi_auth_enforced(void);

#endif
