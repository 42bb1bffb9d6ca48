// SPDX-License-Identifier: GPL-2.0
/* Inline functions and operation tables for Rust code. See helpers.h. */
#include <linux/anon_inodes.h>
#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/ioport.h>
#include <linux/kmod.h>
#include <linux/memremap.h>
#include <linux/mm.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/nsproxy.h>
#include <linux/poll.h>
#include <linux/ratelimit.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/seq_file.h>
#include <linux/time_namespace.h>
#include <linux/uidgid.h>
#include <linux/user_namespace.h>
#include <linux/vmalloc.h>
#include <linux/workqueue.h>

#include "helpers.h"

static int dev_open(struct inode *inode, struct file *file)
{
	return kf_dev_open(file, &file->private_data);
}

static int dev_release(struct inode *inode, struct file *file)
{
	kf_dev_release(file->private_data);
	return 0;
}

static long dev_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	return kf_dev_ioctl(file->private_data, cmd, arg);
}

static __poll_t dev_poll(struct file *file, poll_table *table)
{
	return kf_dev_poll(file->private_data, file, table);
}

static void dev_show_fdinfo(struct seq_file *m, struct file *file)
{
	kf_dev_show_fdinfo(file->private_data, m);
}

/*
 * .owner holds the module while a file is open. The kernel crate's miscdevice
 * sets no owner in Linux 7.2.
 */
static const struct file_operations kf_dev_fops = {
	.owner		= THIS_MODULE,
	.open		= dev_open,
	.release	= dev_release,
	.unlocked_ioctl	= dev_ioctl,
	.compat_ioctl	= compat_ptr_ioctl,
	.poll		= dev_poll,
	.show_fdinfo	= dev_show_fdinfo,
};

/*
 * A node with a known minor number loads the module when a program opens it. depmod makes such
 * nodes known from these aliases, and systemd creates them at boot. devices.txt reserves the
 * minor numbers from 243 to 254 for local use.
 */
#define KF_DEV_MINOR	250
MODULE_ALIAS_MISCDEV(KF_DEV_MINOR);
MODULE_ALIAS("devname:kfabric");

static struct miscdevice kf_dev = {
	.minor	= KF_DEV_MINOR,
	.name	= "kfabric",
	.fops	= &kf_dev_fops,
	.mode	= 0660,
};

int kf_dev_register(void)
{
	int ret = misc_register(&kf_dev);

	if (ret != -EBUSY)
		return ret;
	pr_info("kfabric: minor number %d is taken: opening the device does not load the module\n",
		KF_DEV_MINOR);
	kf_dev.minor = MISC_DYNAMIC_MINOR;
	return misc_register(&kf_dev);
}

void kf_dev_unregister(void)
{
	misc_deregister(&kf_dev);
}

static int queue_release(struct inode *inode, struct file *file)
{
	kf_queue_release(file->private_data);
	return 0;
}

static __poll_t queue_poll(struct file *file, poll_table *table)
{
	return kf_queue_poll(file->private_data, file, table);
}

static int queue_mmap(struct file *file, struct vm_area_struct *vma)
{
	unsigned long size, at;
	bool writable;
	void *ring = kf_queue_ring(file->private_data, vma->vm_pgoff, &size, &writable);
	int ret;

	if (!size)
		return -ENODEV;
	if (!ring || vma->vm_end - vma->vm_start > size)
		return -EINVAL;
	/*
	 * Refuse private mappings, which do not show new entries, and
	 * executable ones.
	 */
	if (!(vma->vm_flags & VM_SHARED))
		return -EINVAL;
	if (vma->vm_flags & VM_EXEC)
		return -EPERM;
	vm_flags_clear(vma, VM_MAYEXEC);
	if (!writable) {
		if (vma->vm_flags & VM_WRITE)
			return -EPERM;
		vm_flags_clear(vma, VM_MAYWRITE);
	}
	/*
	 * As remap_vmalloc_range(). That function accepts only vmalloc_user()
	 * memory, which cannot be charged to a cgroup.
	 */
	for (at = vma->vm_start; at < vma->vm_end; at += PAGE_SIZE, ring += PAGE_SIZE) {
		ret = vm_insert_page(vma, at, vmalloc_to_page(ring));
		if (ret)
			return ret;
	}
	vm_flags_set(vma, VM_DONTEXPAND | VM_DONTDUMP);
	return 0;
}

static const struct file_operations kf_queue_fops = {
	.owner		= THIS_MODULE,
	.release	= queue_release,
	.poll		= queue_poll,
	.mmap		= queue_mmap,
	.llseek		= noop_llseek,
};

struct file *kf_queue_file(void *priv)
{
	return anon_inode_getfile("[kfabric]", &kf_queue_fops, priv, O_RDWR | O_CLOEXEC);
}

unsigned long kf_spin_lock_irqsave(spinlock_t *lock)
{
	unsigned long flags;

	spin_lock_irqsave(lock, flags);
	return flags;
}
EXPORT_SYMBOL_GPL(kf_spin_lock_irqsave);

bool kf_spin_trylock_irqsave(spinlock_t *lock, unsigned long *flags)
{
	return spin_trylock_irqsave(lock, *flags);
}
EXPORT_SYMBOL_GPL(kf_spin_trylock_irqsave);

void kf_spin_unlock_irqrestore(spinlock_t *lock, unsigned long flags)
{
	spin_unlock_irqrestore(lock, flags);
}
EXPORT_SYMBOL_GPL(kf_spin_unlock_irqrestore);

struct net *kf_current_net(void)
{
	return get_net(current->nsproxy->net_ns);
}

struct net *kf_init_net(void)
{
	return get_net(&init_net);
}

struct net *kf_get_net(struct net *net)
{
	return get_net(net);
}

void kf_put_net(struct net *net)
{
	put_net(net);
}

struct mm_struct *kf_current_mm(void)
{
	return current->mm;
}

/*
 * Uses the counter and the limit of ib_umem, so that the two pin counts add up. A refused charge
 * never shows in the counter: ib_umem adds before it compares, and would refuse a registration that
 * fits.
 */
bool kf_mm_charge(struct mm_struct *mm, unsigned long pages, unsigned long besides)
{
	unsigned long limit = rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT;
	s64 pinned = atomic64_read(&mm->pinned_vm);
	unsigned long sum;

	do {
		sum = pinned + pages;
		if ((sum > limit || besides > limit - sum) && !capable(CAP_IPC_LOCK))
			return false;
	} while (!atomic64_try_cmpxchg(&mm->pinned_vm, &pinned, sum));
	return true;
}

void kf_mm_charge_unchecked(struct mm_struct *mm, unsigned long pages)
{
	atomic64_add(pages, &mm->pinned_vm);
}
EXPORT_SYMBOL_GPL(kf_mm_charge_unchecked);

void kf_mm_uncharge(struct mm_struct *mm, unsigned long pages)
{
	atomic64_sub(pages, &mm->pinned_vm);
}
EXPORT_SYMBOL_GPL(kf_mm_uncharge);

bool kf_mm_gone(struct mm_struct *mm)
{
	return !atomic_read(&mm->mm_users);
}

/*
 * A user with subordinate user numbers (subuid(5)) can become any of them in a user namespace of its
 * own, and would have a share for each. All users there count as the owner of the outermost
 * namespace. A namespace that root has made, as for a system container, does not count: its users are
 * users of their own.
 */
u32 kf_current_payer(void)
{
	const struct user_namespace *ns;
	kuid_t uid = current_uid();

	/* Each namespace holds its parent. The last owner is that of the outermost one. */
	for (ns = current_user_ns(); ns != &init_user_ns; ns = ns->parent)
		if (!uid_eq(ns->owner, GLOBAL_ROOT_UID))
			uid = ns->owner;
	return from_kuid(&init_user_ns, uid);
}

static unsigned int kf_user_slots = 25;
module_param_named(user_slots, kf_user_slots, uint, 0644);
MODULE_PARM_DESC(user_slots, "percent of a device's key slots that one user may have (default 25)");

static unsigned int kf_user_requests = 16384;
module_param_named(user_requests, kf_user_requests, uint, 0644);
MODULE_PARM_DESC(user_requests, "unanswered connection requests that one user may have by one provider (default 16384)");

/*
 * Returns a user's limit by its number in src/base/share.rs. 0: percentage of slots,
 * 1: number of connection requests.
 */
u64 kf_user_limit(unsigned int what)
{
	return what == 0 ? READ_ONCE(kf_user_slots) : READ_ONCE(kf_user_requests);
}

/*
 * The requests for modules by callers without privileges, of all users together. Each forks a
 * modprobe with the rights of root.
 */
static struct ratelimit_state kf_load_limit =
	RATELIMIT_STATE_INIT_FLAGS("kf_load_limit", 10 * HZ, 10, RATELIMIT_MSG_ON_RELEASE);

bool kf_may_request_module(void)
{
	/*
	 * A kernel thread that tries again, as a port of kfblk does, must not load a module that the
	 * administrator has just unloaded. And modprobe may need the disk that this task serves.
	 */
	if (current->flags & (PF_KTHREAD | PF_MEMALLOC | PF_MEMALLOC_NOIO))
		return false;
	/* No audit record: a task without the capabilities is not refused, but shares a limit. */
	return ns_capable_noaudit(&init_user_ns, CAP_SYS_MODULE) ||
	       ns_capable_noaudit(&init_user_ns, CAP_NET_ADMIN) || __ratelimit(&kf_load_limit);
}

void kf_request_provider(const u8 *name, size_t len)
{
	/* A failure shows by the provider, which is still missing. */
	request_module("kfabric-provider-%.*s", (int)len, name);
}

s64 kf_monotonic_here(s64 ns)
{
	return timens_ktime_to_host(CLOCK_MONOTONIC, ns);
}

void kf_mm_grab(struct mm_struct *mm)
{
	mmgrab(mm);
}

void kf_mm_drop(struct mm_struct *mm)
{
	mmdrop(mm);
}

bool kf_fatal_signal_pending(void)
{
	return fatal_signal_pending(current);
}

struct task_struct *kf_current_task(void)
{
	return current;
}

void kf_cond_resched(void)
{
	cond_resched();
}

/* With @easily, fails instead of reclaiming much or killing a process. */
struct page *kf_alloc_block(unsigned int order, bool easily)
{
	/* UNACCOUNTED: The memory belongs to a kernel consumer. */
	gfp_t gfp = GFP_KERNEL | __GFP_ZERO | __GFP_NOWARN;

	return alloc_pages(easily ? gfp | __GFP_NORETRY : gfp, order);
}

unsigned long kf_page_to_pfn(const struct page *page)
{
	return page_to_pfn(page);
}

void *kf_page_address(const struct page *page)
{
	return page_address(page);
}

/*
 * Returns whether one of @count contiguous pages of DAX devices is known to be bad. The flag of a
 * folio stands for all its pages, as mf_generic_kill_procs() sets it.
 */
static bool kf_is_poisoned(struct page *page, unsigned long count)
{
	unsigned long at = page_to_pfn(page), end = at + count;

	while (at < end) {
		struct folio *folio = page_folio(pfn_to_page(at));

		if (folio_test_hwpoison(folio))
			return true;
		at = folio_pfn(folio) + folio_nr_pages(folio);
		cond_resched();
	}
	return false;
}

/*
 * The type of a page's memory can change only at the start of a subsection. The descriptions of
 * the resource tree stay with memory that kmem has made system RAM, so they count only for
 * ZONE_DEVICE pages. The lock of the resource tree is taken only for those.
 */
unsigned int kf_page_facts(struct page *page, unsigned long count)
{
	unsigned long pfn = page_to_pfn(page), end = pfn + count, at = pfn;
	unsigned int facts = KF_PAGES_DAX | KF_PAGES_FOR_FILES;

	do {
		struct page *one = pfn_to_page(at);

		if (!is_zone_device_page(one))
			return 0;
		switch (page_pgmap(one)->type) {
		case MEMORY_DEVICE_FS_DAX:
			break;
		case MEMORY_DEVICE_GENERIC:
			facts &= ~KF_PAGES_FOR_FILES;
			break;
		default:
			return 0;
		}
		at = ALIGN(at + 1, PAGES_PER_SUBSECTION);
		cond_resched();
	} while (at < end);
	if (region_intersects(PFN_PHYS(pfn), count << PAGE_SHIFT, IORESOURCE_MEM,
			      IORES_DESC_PERSISTENT_MEMORY) == REGION_INTERSECTS)
		facts |= KF_PAGES_PERSISTENT;
	if (kf_is_poisoned(page, count))
		facts |= KF_PAGES_POISONED;
	return facts;
}

/*
 * A pin does not keep the driver of device-dax memory from being unbound, which frees the
 * descriptors of the pages. A reference of the device does: the unbinding waits for it. The
 * descriptor may be gone already, so it is not accessed.
 */
bool kf_hold_device(struct page *page, struct dev_pagemap **device)
{
	unsigned long pfn = page_to_pfn(page);
	struct page *online = pfn_to_online_page(pfn);

	BUILD_BUG_ON(PAGES_PER_SUBSECTION % KF_PAGES_OF_ONE_DEVICE);
	*device = NULL;
	/* Also found in a section that a device shares with system RAM, which keeps its descriptors. */
	if (online)
		return !is_zone_device_page(online);
	*device = get_dev_pagemap(pfn);
	return *device;
}

void kf_release_device(struct dev_pagemap *device)
{
	put_dev_pagemap(device);
}

void kf_log_dax_file(void)
{
	pr_info_ratelimited("kfabric: memory of a file on a DAX file system cannot be registered; map a device-dax device (/dev/daxX.Y) instead\n");
}

void kf_unpin_range(struct page *page, unsigned long npages, bool dirty)
{
	unpin_user_page_range_dirty_lock(page, npages, dirty);
}

void kf_wait_init(struct wait_queue_head *head)
{
	init_waitqueue_head(head);
}

void kf_wait_wake(struct wait_queue_head *head)
{
	/* The barrier in wq_has_sleeper() pairs with that in poll_wait(). */
	if (wq_has_sleeper(head))
		wake_up_all(head);
}

void kf_wait_moved(struct wait_queue_head *head, const u64 *count, u64 seen)
{
	wait_event(*head, READ_ONCE(*count) != seen);
}

int kf_wait_moved_killable(struct wait_queue_head *head, const u64 *count, u64 seen,
			   unsigned int ms)
{
	long left = ms ? msecs_to_jiffies(ms) : MAX_SCHEDULE_TIMEOUT;

	left = wait_event_killable_timeout(*head, READ_ONCE(*count) != seen, left);
	return left < 0 ? -EINTR : 0;
}

/*
 * Waits up to @ms milliseconds (negative: no limit). Returns 1 if @ready
 * returns true, 0 after the timeout, or -EINTR after a signal.
 */
int kf_wait_ready(struct wait_queue_head *head, bool (*ready)(const void *arg), const void *arg,
		  int ms)
{
	long left = ms < 0 ? MAX_SCHEDULE_TIMEOUT : msecs_to_jiffies(ms);

	left = wait_event_interruptible_timeout(*head, ready(arg), left);
	return left < 0 ? -EINTR : left > 0;
}

void kf_wait_poll(struct file *file, struct wait_queue_head *head, struct poll_table_struct *table)
{
	poll_wait(file, head, table);
}

void *kf_ring_alloc(unsigned long size)
{
	/* No warning in the log if this fails: the program chose the size. */
	return __vmalloc(size, GFP_KERNEL_ACCOUNT | __GFP_ZERO | __GFP_NOWARN);
}

void kf_ring_free(void *ring)
{
	vfree(ring);
}

void kf_say_short_key(void)
{
	pr_warn_once("kfabric: %s[%d] uses an auth key of less than 16 bytes: peers can guess the key\n",
		     current->comm, task_pid_nr(current));
}

void kf_task_comm(struct task_struct *task, u8 comm[TASK_COMM_LEN])
{
	char buf[TASK_COMM_LEN];

	get_task_comm(buf, task);
	memcpy(comm, buf, TASK_COMM_LEN);
}

/*
 * Returns the process's number in the current task's PID namespace, or 0 if it
 * has none there.
 */
int kf_task_tgid(struct task_struct *task)
{
	return task_tgid_vnr(task);
}

struct workqueue_struct *kf_wq_alloc(const char *name, int max_active)
{
	return alloc_workqueue("%s", WQ_UNBOUND | WQ_MEM_RECLAIM, max_active, name);
}

void kf_wq_flush(struct workqueue_struct *wq)
{
	flush_workqueue(wq);
}

void kf_wq_free(struct workqueue_struct *wq)
{
	destroy_workqueue(wq);
}

void kf_cpu_relax(void)
{
	cpu_relax();
}

unsigned int kf_noio_save(void)
{
	return memalloc_noio_save();
}

void kf_noio_restore(unsigned int flags)
{
	memalloc_noio_restore(flags);
}
