// SPDX-License-Identifier: GPL-2.0
/*
 * The persistent memory behind an export: a block device with a DAX device, opened by path. Its
 * pages stay valid until kfblk_pmem_close(), also if the device's driver is unbound: the unbinding
 * waits. An open device holds a reference to the module.
 */
#include <linux/blkdev.h>
#include <linux/dax.h>
#include <linux/err.h>
#include <linux/list.h>
#include <linux/memremap.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/slab.h>

#include "helpers.h"

struct kfblk_pmem {
	struct list_head list;
	struct file *file;
	struct dax_device *dax;
	/* The device of all pages. The reference keeps their descriptors. */
	struct dev_pagemap *map;
	/* Argument of kfblk_rs_pmem_failed(); changed with kfblk_pmem_lock held. */
	void *owner;
	/* Place on the DAX device, in bytes. */
	u64 start;
	u64 size;
	bool failed;
};

static LIST_HEAD(kfblk_pmems);
static DEFINE_MUTEX(kfblk_pmem_lock);

/*
 * Called when memory of a DAX device has failed, and before the device is removed. The holder's
 * pointer may be stale here, because fs_put_dax() does not wait; so the device is looked up.
 */
static int kfblk_pmem_notify(struct dax_device *dax, u64 offset, u64 len, int flags)
{
	struct kfblk_pmem *of;
	int ret = -EOPNOTSUPP;

	mutex_lock(&kfblk_pmem_lock);
	list_for_each_entry(of, &kfblk_pmems, list) {
		if (of->dax != dax || offset >= of->start + of->size)
			continue;
		if (offset < of->start && len <= of->start - offset)
			continue;
		WRITE_ONCE(of->failed, true);
		if (of->owner)
			kfblk_rs_pmem_failed(of->owner);
		ret = 0;
	}
	mutex_unlock(&kfblk_pmem_lock);
	return ret;
}

static const struct dax_holder_operations kfblk_pmem_ops = {
	.notify_failure	= kfblk_pmem_notify,
};

/*
 * Opens a block device exclusively. Returns an error pointer: -EOPNOTSUPP if it has no DAX device,
 * if another user has that device, or if the block device is stacked.
 */
struct kfblk_pmem *kfblk_pmem_open(const char *path, bool write)
{
	blk_mode_t mode = BLK_OPEN_READ | (write ? BLK_OPEN_WRITE : 0);
	struct block_device *bdev;
	struct kfblk_pmem *of;
	int ret;

	/* A provider may drop the memory late, by a call into this module. */
	if (!try_module_get(THIS_MODULE))
		return ERR_PTR(-ENODEV);
	of = kzalloc_obj(*of);
	if (!of) {
		ret = -ENOMEM;
		goto out_module;
	}
	of->file = bdev_file_open_by_path(path, mode, of, NULL);
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
	mutex_lock(&kfblk_pmem_lock);
	of->dax = fs_dax_get_by_bdev(bdev, &of->start, of, &kfblk_pmem_ops);
	if (of->dax)
		list_add(&of->list, &kfblk_pmems);
	mutex_unlock(&kfblk_pmem_lock);
	if (!of->dax) {
		ret = -EOPNOTSUPP;
		goto out_close;
	}
	return of;

out_close:
	bdev_fput(of->file);
out_free:
	kfree(of);
out_module:
	module_put(THIS_MODULE);
	return ERR_PTR(ret);
}

/* Closes the block device. Nobody uses its pages. */
void kfblk_pmem_close(struct kfblk_pmem *of)
{
	mutex_lock(&kfblk_pmem_lock);
	list_del(&of->list);
	mutex_unlock(&kfblk_pmem_lock);
	put_dev_pagemap(of->map);
	fs_put_dax(of->dax, of);
	invalidate_bdev(file_bdev(of->file));
	bdev_fput(of->file);
	kfree(of);
	/* The module's exit waits for tasks that are still in its text (kfblk_block_exit()). */
	module_put(THIS_MODULE);
}

/* Returns the block device, for kfblk_bdev_capacity() and kfblk_bdev_looks(). */
struct file *kfblk_pmem_file(struct kfblk_pmem *of)
{
	return of->file;
}

/*
 * Returns page @index, and in @count the number of pages from there on that are contiguous, at most
 * @most. Returns an error pointer:
 * - -EHWPOISON if the page has a known bad block;
 * - -ENODEV if the device is being removed;
 * - -EOPNOTSUPP if the memory has no pages, or belongs to several devices.
 */
struct page *kfblk_pmem_pages(struct kfblk_pmem *of, u64 index, u64 most, u64 *count)
{
	struct dev_pagemap *map = NULL;
	unsigned long pfn;
	bool pages = false;
	long ret;
	int id;

	/* The kernel has no such function then, and kfblk_pmem_open() has failed. */
	if (!IS_ENABLED(CONFIG_DAX))
		return ERR_PTR(-EOPNOTSUPP);
	id = dax_read_lock();
	ret = dax_direct_access(of->dax, PHYS_PFN(of->start) + index, min_t(u64, most, INT_MAX),
				DAX_ACCESS, NULL, &pfn);
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
	if (!of->map) {
		of->map = map;
	} else {
		bool same = of->map == map;

		put_dev_pagemap(map);
		if (!same)
			return ERR_PTR(-EOPNOTSUPP);
	}
	/* A driver may return more pages than were asked for. */
	*count = min_t(u64, ret, most);
	return pfn_to_page(pfn);
}

/* Sets the argument of kfblk_rs_pmem_failed(), or none. After the return no earlier one is used. */
void kfblk_pmem_watch(struct kfblk_pmem *of, void *owner)
{
	mutex_lock(&kfblk_pmem_lock);
	of->owner = owner;
	mutex_unlock(&kfblk_pmem_lock);
}

/* Returns whether memory of the device has failed, or the device is removed. */
bool kfblk_pmem_has_failed(const struct kfblk_pmem *of)
{
	return READ_ONCE(of->failed);
}
