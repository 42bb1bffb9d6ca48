// SPDX-License-Identifier: GPL-2.0
/*
 * Block devices whose persistent memory is registered: opened by path, with a holder of their DAX
 * device. Their pages stay valid until kf_dax_close(), also if the device's driver is unbound: the
 * unbinding waits.
 *
 * Locking: kf_dax_lock protects the list of open devices. A device is in the list from before its
 * first notification until kf_dax_close() removes it. A notification of the DAX core uses the device
 * and its owner only while it holds this lock, one of the block layer only while it holds
 * bd_holder_lock. So none uses them after kf_dax_close() has returned. kf_dax_lock may be taken inside
 * of the DAX core's read section (SRCU) and of memory_failure(), so its holders do not wait for either.
 * A notification that may sleep without these locks holds the module: synchronize_rcu_tasks() does not
 * wait for a sleeping task.
 */
#include <linux/blkdev.h>
#include <linux/dax.h>
#include <linux/err.h>
#include <linux/list.h>
#include <linux/memremap.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/rcupdate.h>
#include <linux/sizes.h>
#include <linux/slab.h>

#include "helpers.h"

struct kf_dax {
	struct list_head list;
	struct file *file;
	struct dax_device *dax;
	/* The device of all pages, once one was looked up. The reference keeps their descriptors. */
	struct dev_pagemap *map;
	/* Argument of kf_dax_failed(). */
	void *owner;
	/* Place on the DAX device, in bytes. */
	u64 start;
	u64 size;
};

static LIST_HEAD(kf_daxes);
static DEFINE_MUTEX(kf_dax_lock);
/* Whether a device was opened since the module was loaded. */
static bool kf_dax_used;

/*
 * Called when memory of a DAX device has failed, and before the device is removed. The holder's
 * pointer may be stale here, because fs_put_dax() does not wait; so the device is looked up.
 */
static int kf_dax_notify(struct dax_device *dax, u64 offset, u64 len, int flags)
{
	struct kf_dax *of;
	int ret = -EOPNOTSUPP;

	/* The lock may put the task to sleep. */
	if (!try_module_get(THIS_MODULE))
		return ret;
	mutex_lock(&kf_dax_lock);
	list_for_each_entry(of, &kf_daxes, list) {
		if (of->dax != dax || offset >= of->start + of->size)
			continue;
		if (offset < of->start && len <= of->start - offset)
			continue;
		kf_dax_failed(of->owner, flags & MF_MEM_PRE_REMOVE ? -ENODEV : -EHWPOISON);
		ret = 0;
	}
	mutex_unlock(&kf_dax_lock);
	module_put(THIS_MODULE);
	return ret;
}

static const struct dax_holder_operations kf_dax_ops = {
	.notify_failure	= kf_dax_notify,
};

/*
 * Called before the block device is removed. The DAX core does not notify a holder that it gets
 * while it ends the DAX device. The holder's lock keeps the block device open.
 */
static void kf_dax_mark_dead(struct block_device *bdev, bool surprise)
	__releases(&bdev->bd_holder_lock)
{
	struct kf_dax *of = bdev->bd_holder;
	bool sync = !surprise && try_module_get(THIS_MODULE);

	kf_dax_failed(of->owner, -ENODEV);
	mutex_unlock(&bdev->bd_holder_lock);
	if (!sync)
		return;
	/* As for a block device without a holder: others may have written through the page cache. */
	sync_blockdev(bdev);
	module_put(THIS_MODULE);
}

static const struct blk_holder_ops kf_dax_blk_ops = {
	.mark_dead	= kf_dax_mark_dead,
};

struct kf_dax *kf_dax_open(const char *path, bool write, void *owner)
{
	blk_mode_t mode = BLK_OPEN_READ | (write ? BLK_OPEN_WRITE : 0);
	struct block_device *bdev;
	struct kf_dax *of;
	int ret;

	of = kzalloc_obj(*of);
	if (!of)
		return ERR_PTR(-ENOMEM);
	of->owner = owner;
	WRITE_ONCE(kf_dax_used, true);
	of->file = bdev_file_open_by_path(path, mode, of, &kf_dax_blk_ops);
	if (IS_ERR(of->file)) {
		ret = PTR_ERR(of->file);
		goto out_free;
	}
	bdev = file_bdev(of->file);
	/*
	 * A stacked device (dm) passes the memory of lower devices on, without their notifications,
	 * and can move its blocks to other memory. It has no parent; a driver's device has.
	 */
	if (!disk_to_dev(bdev->bd_disk)->parent) {
		ret = -EOPNOTSUPP;
		goto out_close;
	}
	of->size = bdev_nr_bytes(bdev);
	/* Peers neither see nor update the page cache of the block device. */
	ret = sync_blockdev(bdev);
	if (ret)
		goto out_close;
	invalidate_bdev(bdev);
	/* One hold of the lock: a failure from the first call on finds the entry. */
	mutex_lock(&kf_dax_lock);
	of->dax = fs_dax_get_by_bdev(bdev, &of->start, of, &kf_dax_ops);
	if (of->dax)
		list_add(&of->list, &kf_daxes);
	mutex_unlock(&kf_dax_lock);
	if (!of->dax) {
		ret = -EOPNOTSUPP;
		goto out_close;
	}
	return of;

out_close:
	bdev_fput(of->file);
out_free:
	kfree(of);
	return ERR_PTR(ret);
}

void kf_dax_close(struct kf_dax *of)
{
	mutex_lock(&kf_dax_lock);
	list_del(&of->list);
	mutex_unlock(&kf_dax_lock);
	put_dev_pagemap(of->map);
	fs_put_dax(of->dax, of);
	invalidate_bdev(file_bdev(of->file));
	bdev_fput(of->file);
	kfree(of);
}

void kf_dax_exit(void)
{
	/* The last notifications may still be in this module's text. */
	if (kf_dax_used)
		synchronize_rcu_tasks();
}

struct file *kf_dax_file(struct kf_dax *of)
{
	return of->file;
}

bool kf_dax_caches_persist(const struct kf_dax *of)
{
	return !dax_write_cache_enabled(of->dax);
}

u64 kf_dax_size(const struct kf_dax *of)
{
	return of->size;
}

struct page *kf_dax_pages(struct kf_dax *of, u64 index, u64 most, u64 *count)
{
	/* nd_pmem counts the sectors that it checks for bad blocks in 32 bits (__pmem_direct_access()). */
	const u64 limit = SZ_1G >> PAGE_SHIFT;
	struct dev_pagemap *map = NULL, *first;
	unsigned long pfn;
	bool pages = false;
	long ret;
	int id;

	/* The kernel has no such function then, and kf_dax_open() has failed. */
	if (!IS_ENABLED(CONFIG_FS_DAX))
		return ERR_PTR(-EOPNOTSUPP);
	id = dax_read_lock();
	most = min(most, limit);
	ret = dax_direct_access(of->dax, PHYS_PFN(of->start) + index, most, DAX_ACCESS, NULL, &pfn);
	if (ret > 0) {
		pages = pfn_valid(pfn) && is_zone_device_page(pfn_to_page(pfn));
		map = pages ? get_dev_pagemap(pfn) : NULL;
	}
	dax_read_unlock(id);
	if (ret == -ENXIO)
		return ERR_PTR(-ENODEV);
	if (ret < 0)
		return ERR_PTR(ret);
	if (!ret)
		return ERR_PTR(-EIO);
	if (!map)
		return ERR_PTR(pages ? -ENODEV : -EOPNOTSUPP);
	/* The first caller's reference is kept. */
	first = cmpxchg(&of->map, NULL, map);
	if (first) {
		put_dev_pagemap(map);
		if (first != map)
			return ERR_PTR(-EOPNOTSUPP);
	}
	/* A driver may return more pages than were asked for. */
	*count = min_t(u64, ret, most);
	return pfn_to_page(pfn);
}
