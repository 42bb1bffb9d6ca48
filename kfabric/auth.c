// SPDX-License-Identifier: GPL-2.0
/*
 * Kernel functions for auth keys: the requester's identity, HMAC, and a worker
 * that examines grants. See src/auth.rs.
 */
#include <crypto/sha2.h>
#include <crypto/utils.h>
#include <linux/capability.h>
#include <linux/cgroup.h>
#include <linux/cred.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <linux/module.h>
#include <linux/pid.h>
#include <linux/poll.h>
#include <linux/random.h>
#include <linux/sched/signal.h>
#include <linux/siphash.h>
#include <linux/string.h>
#include <linux/timekeeping.h>
#include <linux/user_namespace.h>
#include <linux/workqueue.h>
#include <net/ip.h>

#include "helpers.h"

static siphash_key_t kf_auth_seed;
static struct workqueue_struct *kf_auth_wq;

static void auth_work(struct work_struct *work)
{
	kf_auth_tick();
}

static DECLARE_DELAYED_WORK(kf_auth_work, auth_work);

int kf_auth_init(void)
{
	get_random_bytes(&kf_auth_seed, sizeof(kf_auth_seed));
	kf_auth_wq = alloc_workqueue("kfabric_auth", WQ_UNBOUND, 1);
	return kf_auth_wq ? 0 : -ENOMEM;
}

void kf_auth_exit(void)
{
	cancel_delayed_work_sync(&kf_auth_work);
	destroy_workqueue(kf_auth_wq);
}

void kf_auth_kick(unsigned int ms)
{
	mod_delayed_work(kf_auth_wq, &kf_auth_work, msecs_to_jiffies(ms));
}

u64 kf_auth_hash(const void *data, unsigned long len)
{
	return siphash(data, len, &kf_auth_seed);
}

bool kf_auth_same(const void *a, const void *b, unsigned long len)
{
	return crypto_memneq(a, b, len) == 0;
}
EXPORT_SYMBOL_GPL(kf_auth_same);

void kf_auth_wipe(void *data, unsigned long len)
{
	memzero_explicit(data, len);
}

void kf_auth_hmac(const void *key, unsigned long key_len, const void *data, unsigned long len,
		  u8 out[SHA256_DIGEST_SIZE])
{
	u8 size = key_len;
	struct hmac_sha256_ctx ctx;

	/*
	 * HMAC pads the key with zeros. The length in the text makes a key and
	 * the same key followed by zeros two keys.
	 */
	hmac_sha256_init_usingrawkey(&ctx, key, key_len);
	hmac_sha256_update(&ctx, &size, sizeof(size));
	hmac_sha256_update(&ctx, data, len);
	hmac_sha256_final(&ctx, out);
}
EXPORT_SYMBOL_GPL(kf_auth_hmac);

void kf_auth_random(void *data, unsigned long len)
{
	get_random_bytes(data, len);
}
EXPORT_SYMBOL_GPL(kf_auth_random);

u64 kf_auth_now_ms(void)
{
	return ktime_to_ms(ktime_get_boottime());
}

u64 kf_auth_now_ns(void)
{
	return ktime_get_boottime_ns();
}
EXPORT_SYMBOL_GPL(kf_auth_now_ns);

void kf_auth_asker(struct kf_asker *asker)
{
	const struct cred *cred = current_cred();

	memset(asker, 0, sizeof(*asker));
	asker->process = task_tgid(current)->ino;
	asker->uid = from_kuid(&init_user_ns, cred->euid);
	asker->gid = from_kgid(&init_user_ns, cred->egid);
#ifdef CONFIG_CGROUPS
	rcu_read_lock();
	asker->cgroup = cgroup_id(task_dfl_cgroup(current));
	rcu_read_unlock();
#endif
	kf_task_comm(current, asker->comm);
}

/*
 * Stores more about the current task, for the agent. If the task has left the
 * cgroup with the id @cgroup, told->cgroup is NULL.
 */
void kf_auth_told(struct kf_told *told, u64 cgroup)
{
#ifdef CONFIG_CGROUPS
	struct cgroup *cgrp;
#endif

	told->groups = get_current_groups();
	told->userns = current_user_ns()->ns.inum;
	told->cgroup = NULL;
#ifdef CONFIG_CGROUPS
	rcu_read_lock();
	cgrp = task_dfl_cgroup(current);
	if (cgroup_id(cgrp) == cgroup && cgroup_tryget(cgrp))
		told->cgroup = cgrp;
	rcu_read_unlock();
#endif
}

void kf_auth_told_put(struct kf_told *told)
{
	put_group_info(told->groups);
#ifdef CONFIG_CGROUPS
	if (told->cgroup)
		cgroup_put(told->cgroup);
#endif
}

/*
 * Returns whether the current task has the same group set. Group sets are
 * immutable, so equal pointers mean equal groups.
 */
bool kf_auth_told_groups_current(const struct kf_told *told)
{
	return current_cred()->group_info == told->groups;
}

/*
 * Copies up to @room groups, beginning with group number @from. Returns the
 * number of all groups.
 */
unsigned int kf_auth_told_groups(const struct kf_told *told, unsigned int from, u32 *out,
				 unsigned int room)
{
	const struct group_info *groups = told->groups;
	unsigned int i;

	for (i = 0; i < room && from + i < groups->ngroups; i++)
		out[i] = from_kgid(&init_user_ns, groups->gid[from + i]);
	return groups->ngroups;
}

/*
 * Stores the cgroup's path from the root of the hierarchy. Returns its length.
 */
int kf_auth_told_path(const struct kf_told *told, char *buf, unsigned long len)
{
	int n = -ENOENT;
#ifdef CONFIG_CGROUPS
	if (told->cgroup)
		n = cgroup_path(told->cgroup, buf, len);
#endif
	return n >= 0 && n >= len ? -ENAMETOOLONG : n;
}

bool kf_auth_in_group(u32 gid)
{
	kgid_t kgid = make_kgid(&init_user_ns, gid);

	return gid_valid(kgid) && in_egroup_p(kgid);
}

/*
 * Returns whether the current task is in the cgroup or in a descendant of it.
 */
bool kf_auth_in_cgroup(u64 id)
{
	bool found = false;
#ifdef CONFIG_CGROUPS
	struct cgroup *cgrp;

	rcu_read_lock();
	for (cgrp = task_dfl_cgroup(current); cgrp && !found; cgrp = cgroup_parent(cgrp))
		found = cgroup_id(cgrp) == id;
	rcu_read_unlock();
#endif
	return found;
}

u64 kf_auth_net_cookie(const struct net *net)
{
	return net->net_cookie;
}

/* Stores the cookie of the network namespace that @fd refers to. */
int kf_auth_netns(int fd, u64 *cookie)
{
	struct net *net = get_net_ns_by_fd(fd);

	if (IS_ERR(net))
		return -EBADF;
	*cookie = net->net_cookie;
	put_net(net);
	return 0;
}

/*
 * Stores the inode number of the pidfd @fd. pidfs gives each process a number
 * that no other process ever has.
 */
int kf_auth_pidfd(int fd, u64 *process)
{
	struct file *file = fget(fd);
	__poll_t gone;

	if (!file)
		return -EBADF;
	if (file_inode(file)->i_sb->s_magic != PID_FS_MAGIC) {
		fput(file);
		return -EBADF;
	}
	*process = file_inode(file)->i_ino;
	gone = vfs_poll(file, NULL) & EPOLLIN;
	fput(file);
	return gone ? -ESRCH : 0;
}

struct pid *kf_auth_pid(void)
{
	return get_pid(task_tgid(current));
}

void kf_auth_pid_put(struct pid *pid)
{
	put_pid(pid);
}

/*
 * Returns the process's number in the current task's PID namespace, or 0 if it
 * has none there.
 */
int kf_auth_pid_nr(struct pid *pid)
{
	return pid_vnr(pid);
}

/* Returns whether the process has exited. */
bool kf_auth_pid_gone(struct pid *pid)
{
	bool gone;

	rcu_read_lock();
	gone = !pid_task(pid, PIDTYPE_TGID);
	rcu_read_unlock();
	return gone;
}

u32 kf_current_euid(void)
{
	return from_kuid(&init_user_ns, current_euid());
}

/*
 * Returns whether @uid is root of the host, or of the user namespace that owns
 * @net.
 */
bool kf_net_is_root(const struct net *net, u32 uid)
{
	kuid_t kuid = make_kuid(&init_user_ns, uid);

	return uid_eq(kuid, GLOBAL_ROOT_UID) || uid_eq(kuid, make_kuid(net->user_ns, 0));
}

bool kf_net_may_bind(struct net *net, u16 port)
{
	return !inet_port_requires_bind_service(net, port) ||
	       ns_capable(net->user_ns, CAP_NET_BIND_SERVICE);
}
