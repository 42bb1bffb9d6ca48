/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Persistent memory of block devices, for consumers written in C. These calls
 * extend the published kfi API. A consumer opens a block device with a DAX
 * device, such as /dev/pmem0 in the mode fsdax, and registers ranges of its
 * memory. When the memory fails, or the device is removed, all keys of the
 * memory are revoked, whether or not the consumer does anything.
 */
#ifndef KFI_DAX_H
#define KFI_DAX_H

#include <kfabric.h>
#include <kfi_domain.h>

/* Class of open devices. */
#define KFI_CLASS_DAX	0x101

/**
 * struct kfid_dax - an open block device
 * @fid: common start of all objects
 * @size: bytes of the device
 */
struct kfid_dax {
	struct kfid	fid;
	u64		size;
};

/**
 * struct kfi_dax_range - memory of a device, for kfi_mr_regattr() with KFI_DAX
 * @dax: the device
 * @offset: first byte, a multiple of PAGE_SIZE
 * @len: bytes
 */
struct kfi_dax_range {
	struct kfid_dax	*dax;
	u64		offset;
	u64		len;
};

/**
 * typedef kfi_dax_handler - a consumer's handler of failures
 * @dax: the device
 * @error: -EHWPOISON if memory of the device has failed, -ENODEV if the device
 *	is being removed
 * @context: the device's context
 *
 * Called once at most, after all keys of the device's memory were revoked. The
 * removal of the device waits until the consumer has closed the registered
 * memory and the device. After -EHWPOISON a removal is not reported.
 *
 * Context: process; may sleep. Must not close @dax: the close waits for the
 * return.
 */
typedef void (*kfi_dax_handler)(struct kfid_dax *dax, int error, void *context);

/**
 * kfi_dax_open() - opens a block device for its persistent memory
 * @path: path of the block device, for the current task
 * @access: KFI_READ, or KFI_READ | KFI_WRITE if devices and peers may write
 * @handler: called when the memory fails, or NULL. It may be called before the
 *	return
 * @dax: where the device is stored
 * @context: the device's context, passed to the handler
 *
 * The device is open exclusively: no file system can be mounted on it.
 * kfi_close() may be called while memory of the device is registered. It waits
 * for the handler, so its caller holds no lock that the handler takes. After its
 * return, the handler neither runs nor is called. The block device is closed
 * when its last memory is no longer used, which may be later than the close of
 * that memory. Until then keys still end with a failure.
 *
 * Context: process; may sleep.
 *
 * Return: 0, or
 * -EBUSY if the device has another holder;
 * -ENOTBLK if @path names no block device;
 * -EOPNOTSUPP if the device has no DAX device, another user has its DAX device,
 *   or the device is stacked;
 * -EHWPOISON or -ENODEV if the memory fails, or the device is removed, during
 *   the call. Without a handler the call may succeed, and the next use fails;
 * -ENOMEM;
 * -EINVAL if @access is none of the two;
 * other errors of opening a file.
 */
int kfi_dax_open(const char *path, u64 access, kfi_dax_handler handler, struct kfid_dax **dax,
		 void *context);

/**
 * kfi_dax_address() - returns where the kernel has mapped memory of a device
 * @dax: the device
 * @offset: first byte, less than the device's size
 * @len: where the number of bytes is stored that follow contiguously from
 *	@offset on, at most 1 GiB, or NULL
 *
 * The address is valid while @dax is open. If memory of the device can be
 * registered with KFI_RMA_PMEM, stores by processors are durable after
 * arch_wb_cache_pmem() and pmem_wmb(); if the device's attribute dax/write_cache
 * is 0, after pmem_wmb() alone. Otherwise only a flush of the block device makes
 * them durable.
 *
 * Context: process; may sleep.
 *
 * Return: the address, or an error pointer:
 * -EINVAL if @offset is not inside the device;
 * -EHWPOISON if the memory from @offset on has a known bad block, or memory of
 *   the device has failed;
 * -ENODEV if the device is being removed;
 * -EIO or -ERANGE if the driver does not map the range;
 * -EOPNOTSUPP if the memory has no pages, or belongs to several devices.
 */
void *kfi_dax_address(struct kfid_dax *dax, u64 offset, u64 *len);

/**
 * kfi_mr_reg_dax() - registers memory of a device
 * @domain: the domain
 * @dax: the device
 * @offset: first byte, a multiple of PAGE_SIZE
 * @len: bytes
 * @access: as for kfi_mr_reg()
 * @flags: as for kfi_mr_reg()
 * @mr: where the registered memory is stored
 * @context: the context of the registered memory
 *
 * As kfi_mr_reg(). Operations of the consumer name the memory by descriptor and
 * kfi_dax_address(). kfi_mr_regattr() with the type KFI_DAX and a struct
 * kfi_dax_range does the same, with an auth key if wanted.
 *
 * Context: process; may sleep.
 *
 * Return: as kfi_mr_reg(), or
 * -EINVAL if the range is empty or not inside the device, or @offset is no
 *   multiple;
 * -EACCES if @access needs writing, and @dax was opened without KFI_WRITE;
 * -EHWPOISON if the range has a known bad block, or memory of the device has
 *   failed;
 * -ENODEV if the device is being removed;
 * -EOPNOTSUPP if the memory has no pages, or belongs to several devices.
 * kfi_key_alloc() and kfi_key_assign_many() return -EHWPOISON and -ENODEV in the
 * same cases; at the moment of the failure the latter may return -ENOENT.
 */
static inline int kfi_mr_reg_dax(struct kfid_domain *domain, struct kfid_dax *dax, u64 offset,
				 u64 len, u64 access, u64 flags, struct kfid_mr **mr,
				 void *context)
{
	struct kfi_dax_range range = {
		.dax = dax,
		.offset = offset,
		.len = len,
	};
	struct kfi_mr_attr attr = {
		.type = KFI_DAX,
		.mr_dax = &range,
		.iov_count = 1,
		.access = access,
		.context = context,
	};

	return kfi_mr_regattr(domain, &attr, flags, mr);
}

#endif
