/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Kernel functions for Rust code, as far as the kernel crate's bindings lack
 * them: inline functions, macros, and headers that the kernel's bindgen run does
 * not read. These functions hold no policy.
 *
 * bindgen makes Rust declarations from this header (src/sys/raw.rs).
 */
#ifndef KFABRIC_HELPERS_H
#define KFABRIC_HELPERS_H

#include <crypto/sha2.h>
#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/pid.h>
#include <linux/sched.h>
#include <linux/spinlock.h>
#include <net/net_namespace.h>

struct kf_dax;

/*
 * Called by the file operations in helpers.c; written in Rust
 * (src/chardev/fops.rs and queue_file.rs).
 */
int kf_dev_open(struct file *file, void **priv);
void kf_dev_release(void *priv);
long kf_dev_ioctl(void *priv, unsigned int cmd, unsigned long arg);
void kf_dev_show_fdinfo(void *priv, struct seq_file *m);
__poll_t kf_dev_poll(void *priv, struct file *file, struct poll_table_struct *table);
void kf_queue_release(void *priv);
__poll_t kf_queue_poll(void *priv, struct file *file, struct poll_table_struct *table);
void *kf_queue_ring(void *priv, unsigned long at, unsigned long *size, bool *writable);

int kf_dev_register(void);
void kf_dev_unregister(void);
struct file *kf_queue_file(void *priv);

/*
 * Returns whether the current task may request a provider's module now. Kernel threads may not.
 * Others than administrators (CAP_SYS_MODULE, CAP_NET_ADMIN) share a limited rate.
 */
bool kf_may_request_module(void);
/* Runs modprobe for a provider's module, and waits for it. May sleep. */
void kf_request_provider(const u8 *name, size_t len);

unsigned long kf_spin_lock_irqsave(spinlock_t *lock);
bool kf_spin_trylock_irqsave(spinlock_t *lock, unsigned long *flags);
void kf_spin_unlock_irqrestore(spinlock_t *lock, unsigned long flags);

struct net *kf_current_net(void);
struct net *kf_init_net(void);
struct net *kf_get_net(struct net *net);
void kf_put_net(struct net *net);
u32 kf_current_euid(void);
bool kf_net_is_root(const struct net *net, u32 uid);
bool kf_net_may_bind(struct net *net, u16 port);

struct mm_struct *kf_current_mm(void);
/* @besides: pages that count against the limit but not in mm->pinned_vm. */
bool kf_mm_charge(struct mm_struct *mm, unsigned long pages, unsigned long besides);
void kf_mm_charge_unchecked(struct mm_struct *mm, unsigned long pages);
void kf_mm_uncharge(struct mm_struct *mm, unsigned long pages);
/*
 * Returns whether no process uses @mm any more. The caller holds a reference.
 */
bool kf_mm_gone(struct mm_struct *mm);
/*
 * Returns the user to whose shares and limits the current task's resources count. Not for authority:
 * the user may have other rights than the task.
 */
u32 kf_current_payer(void);
u64 kf_user_limit(unsigned int what);
/*
 * Converts a CLOCK_MONOTONIC time of the current time namespace to the host's.
 */
s64 kf_monotonic_here(s64 ns);
void kf_mm_grab(struct mm_struct *mm);
void kf_mm_drop(struct mm_struct *mm);
bool kf_fatal_signal_pending(void);
struct task_struct *kf_current_task(void);
void kf_cond_resched(void);
unsigned long kf_page_to_pfn(const struct page *page);
/*
 * Returns 1 << @order contiguous, zeroed pages, or NULL. __free_pages() frees
 * them.
 */
struct page *kf_alloc_block(unsigned int order, bool easily);
void *kf_page_address(const struct page *page);
/* Properties of a run of pages, in the result of kf_page_facts(). */
#define KF_PAGES_DAX		1	/* each page is a ZONE_DEVICE page of a DAX device */
#define KF_PAGES_FOR_FILES	2	/* ... that file systems can use */
#define KF_PAGES_PERSISTENT	4	/* the platform describes the run as persistent memory */
#define KF_PAGES_POISONED	8	/* a page of a DAX device is known to be bad */
/* Returns the properties of @count contiguous pages. The caller keeps the pages. May sleep. */
unsigned int kf_page_facts(struct page *page, unsigned long count);
/*
 * Keeps the DAX device of a page that was pinned just now from being removed, until
 * kf_release_device(). Stores the device, or NULL for system RAM. Returns false if the device is
 * being removed: the page's descriptor must not be accessed.
 */
bool kf_hold_device(struct page *page, struct dev_pagemap **device);
/* Aligned blocks of so many pages are system RAM, or have one device. */
#define KF_PAGES_OF_ONE_DEVICE	512
void kf_release_device(struct dev_pagemap *device);
/* Logs that memory of a file on a DAX file system cannot be registered. */
void kf_log_dax_file(void);
void kf_unpin_range(struct page *page, unsigned long npages, bool dirty);

void kf_wait_init(struct wait_queue_head *head);
void kf_wait_wake(struct wait_queue_head *head);
void kf_wait_moved(struct wait_queue_head *head, const u64 *count, u64 seen);
int kf_wait_moved_killable(struct wait_queue_head *head, const u64 *count, u64 seen,
			   unsigned int ms);
int kf_wait_ready(struct wait_queue_head *head, bool (*ready)(const void *arg), const void *arg,
		  int ms);
void kf_wait_poll(struct file *file, struct wait_queue_head *head,
		  struct poll_table_struct *table);

void *kf_ring_alloc(unsigned long size);
void kf_ring_free(void *ring);

/* Says once that the current program uses a short auth key. */
void kf_say_short_key(void);
void kf_task_comm(struct task_struct *task, u8 comm[TASK_COMM_LEN]);
int kf_task_tgid(struct task_struct *task);

struct workqueue_struct *kf_wq_alloc(const char *name, int max_active);
void kf_wq_flush(struct workqueue_struct *wq);
void kf_wq_free(struct workqueue_struct *wq);
void kf_cpu_relax(void);
unsigned int kf_noio_save(void);
void kf_noio_restore(unsigned int flags);

/*
 * Fault injection: return 0, or the negative errno that a test injects
 * (fault.c).
 */
void kf_fault_init(void);
void kf_fault_exit(void);
int kf_fault_pin(void);
int kf_fault_device(void);
int kf_fault_dereg(void);
int kf_fault_answer(void);
int kf_fault_cookie(void);

/* The requester of an auth key's use: the current task's process (auth.c). */
struct kf_asker {
	u64 process;		/* inode number of the process's pidfd */
	u64 cgroup;		/* id of the cgroup (v2) */
	u32 uid;		/* effective */
	u32 gid;		/* effective */
	u8 comm[TASK_COMM_LEN];
};

/*
 * More about the requester, for the agent. kf_auth_told_put() drops the
 * references.
 */
struct kf_told {
	struct group_info *groups;
	struct cgroup *cgroup;	/* NULL if it is not known */
	u64 userns;
};

/* Called by the worker in auth.c; written in Rust (src/auth/reaper.rs). */
void kf_auth_tick(void);

int kf_auth_init(void);
void kf_auth_exit(void);
void kf_auth_kick(unsigned int ms);
u64 kf_auth_hash(const void *data, unsigned long len);
bool kf_auth_same(const void *a, const void *b, unsigned long len);
void kf_auth_wipe(void *data, unsigned long len);
void kf_auth_hmac(const void *key, unsigned long key_len, const void *data, unsigned long len,
		  u8 out[SHA256_DIGEST_SIZE]);
void kf_auth_random(void *data, unsigned long len);
u64 kf_auth_now_ms(void);
u64 kf_auth_now_ns(void);
void kf_auth_asker(struct kf_asker *asker);
void kf_auth_told(struct kf_told *told, u64 cgroup);
void kf_auth_told_put(struct kf_told *told);
bool kf_auth_told_groups_current(const struct kf_told *told);
unsigned int kf_auth_told_groups(const struct kf_told *told, unsigned int from, u32 *out,
				 unsigned int room);
int kf_auth_told_path(const struct kf_told *told, char *buf, unsigned long len);
bool kf_auth_in_group(u32 gid);
bool kf_auth_in_cgroup(u64 id);
u64 kf_auth_net_cookie(const struct net *net);
int kf_auth_netns(int fd, u64 *cookie);
int kf_auth_pidfd(int fd, u64 *process);
struct pid *kf_auth_pid(void);
void kf_auth_pid_put(struct pid *pid);
int kf_auth_pid_nr(struct pid *pid);
bool kf_auth_pid_gone(struct pid *pid);

/*
 * Persistent memory of block devices (dax.c). kf_dax_open() opens a block device exclusively and
 * returns an error pointer: -EOPNOTSUPP if it has no DAX device, if another user has that device, or
 * if the block device is stacked. @owner exists until kf_dax_close(). These functions may sleep.
 */
struct kf_dax *kf_dax_open(const char *path, bool write, void *owner);
/* Closes the block device. Its pages are not in use. */
void kf_dax_close(struct kf_dax *of);
/* Waits for notifications, at the module's exit. No device is open. */
void kf_dax_exit(void);
struct file *kf_dax_file(struct kf_dax *of);
/*
 * Returns whether the kernel treats the processors' caches as persistent for the device's memory, so
 * that dax_flush() writes nothing back. May change at any time. May be called in any context.
 */
bool kf_dax_caches_persist(const struct kf_dax *of);
/* Bytes of the block device. */
u64 kf_dax_size(const struct kf_dax *of);
/*
 * Returns page @index, and in @count the number of pages from there on that are contiguous, at most
 * @most and 1 GiB. Returns an error pointer:
 * - -EHWPOISON if one of these pages has a known bad block;
 * - -ENODEV if the device is being removed;
 * - -EOPNOTSUPP if the memory has no pages, or belongs to several devices.
 */
struct page *kf_dax_pages(struct kf_dax *of, u64 index, u64 most, u64 *count);
/*
 * Called by dax.c when memory of the device has failed (-EHWPOISON), or before the device is removed
 * (-ENODEV); written in Rust (src/memory/dax.rs). The caller holds a lock, so this must neither wait
 * nor close the device.
 */
void kf_dax_failed(void *owner, int error);

/* Tracepoints and debugfs counters (seen.c). */
void kf_trace_auth_decision(u64 process, u32 uid, u64 key, u64 grant, u32 rights,
			    const char *verdict, int err);
void kf_trace_key_assign(const void *slot, u64 generation, u64 offset, u64 len, u64 access,
			 u64 key, int err);
void kf_trace_key_revoke(const void *slot, u64 generation, u64 key);
void kf_stats_init(void);
void kf_stats_exit(void);
struct dentry *kf_stats_dir(const char *name);
void kf_stats_count(struct dentry *dir, const char *name, u64 *count);
void kf_stats_remove(struct dentry *dir);

#endif
