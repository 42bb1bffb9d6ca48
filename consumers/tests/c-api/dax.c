// SPDX-License-Identifier: GPL-2.0
/*
 * Tests of memory of a block device with a DAX device. The loading program unbinds the device's driver
 * when a test asks for it in the log, and binds the driver again.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/completion.h>
#include <linux/delay.h>
#include <linux/err.h>
#include <linux/module.h>
#include <linux/string.h>
#include <linux/uio.h>

#include <kfi_dax.h>

#include "tests.h"

/* Place of the registered memory on the device, and of writes in the memory. */
#define OFFSET	(2 * PAGE_SIZE)
#define SIZE	(16 * PAGE_SIZE)
#define TARGET	24
#define LEN	700

#define BOTH	(KFI_REMOTE_READ | KFI_REMOTE_WRITE)

static char *path;
module_param_named(dax, path, charp, 0444);
MODULE_PARM_DESC(dax, "Path of a block device whose memory the tests of dax.c use; the others are not run");

bool has_dax(void)
{
	return path;
}

/* A device and its failure. */
struct device {
	struct kfid_dax		*dax;
	struct completion	failed;
	atomic_t		calls;
	int			error;
};

static void on_failure(struct kfid_dax *dax, int error, void *context)
{
	struct device *dev = context;

	dev->error = error;
	atomic_inc(&dev->calls);
	complete(&dev->failed);
}

static bool open(struct test *t, struct device *dev)
{
	int i, err = -ENOENT;

	init_completion(&dev->failed);
	atomic_set(&dev->calls, 0);
	/* An earlier test may have made the device disappear. */
	for (i = 0; i < LIMIT_MS / 20; i++) {
		err = kfi_dax_open(path, KFI_READ | KFI_WRITE, on_failure, &dev->dax, dev);
		if (err != -ENOENT && err != -ENXIO && err != -EBUSY)
			break;
		msleep(20);
	}
	return EXPECT_EQ(t, err, 0);
}

static int reg(struct test *t, struct device *dev, u64 flags, struct kfid_mr **mr)
{
	return kfi_mr_reg_dax(t->st->domain, dev->dax, OFFSET, SIZE, BOTH, flags, mr, NULL);
}

/* write() is durable. */
static int write_with(struct test *t, struct buf *from, u64 addr, u64 key, u64 flags)
{
	struct kvec kv = { from->at, LEN };
	void *desc = kfi_mr_desc(from->mr);
	struct kfi_rma_iov range = { addr + TARGET, LEN, key };
	struct kfi_msg_rma msg = {
		.type = KFI_KVEC,
		.msg_iov = &kv,
		.desc = &desc,
		.iov_count = 1,
		.rma_iov = &range,
		.rma_iov_count = 1,
		.context = from,
	};

	return kfi_writemsg(t->a.ep, &msg, flags);
}

static int write(struct test *t, struct buf *from, u64 addr, u64 key)
{
	return write_with(t, from, addr, key, KFI_COMMIT_COMPLETE);
}

/* Commits the range of write_with(). */
static int commit(struct test *t, void *context, u64 addr, u64 key)
{
	struct kfi_rma_iov range = { addr + TARGET, LEN, key };
	struct kfi_msg_rma msg = {
		.rma_iov = &range,
		.rma_iov_count = 1,
		.context = context,
	};

	return kfi_commitmsg(t->a.ep, &msg, KFI_COMPLETION);
}

static void durable(struct test *t)
{
	struct buf *from = buf_get(t, PAGES, PAGE_SIZE, KFI_WRITE, 0);
	struct buf *to = buf_get(t, PAGES, PAGE_SIZE, BOTH, 0);
	struct kfid_mr *mr, *local;
	struct device dev;
	u64 bytes = 0;
	void *desc;
	u8 *at;

	if (!from || !to || !open(t, &dev))
		return;
	EXPECT(t, dev.dax->size >= OFFSET + SIZE);
	if (!EXPECT_EQ(t, reg(t, &dev, KFI_RMA_PMEM, &mr), 0))
		goto out;
	at = kfi_dax_address(dev.dax, OFFSET + TARGET, &bytes);
	if (!EXPECT(t, !IS_ERR(at)))
		goto out_mr;
	EXPECT(t, bytes == dev.dax->size - OFFSET - TARGET);
	memset(at, 0, LEN);
	fill(from->at, LEN, 3);
	EXPECT_EQ(t, write(t, from, mr->iova, kfi_mr_key(mr)), 0);
	completed(t, &t->a, from, KFI_RMA | KFI_WRITE, LEN);
	EXPECT(t, filled(at, LEN, 3));
	fill(from->at, LEN, 4);
	EXPECT_EQ(t, write_with(t, from, mr->iova, kfi_mr_key(mr), KFI_COMPLETION), 0);
	completed(t, &t->a, from, KFI_RMA | KFI_WRITE, LEN);
	EXPECT_EQ(t, commit(t, &dev, mr->iova, kfi_mr_key(mr)), 0);
	completed(t, &t->a, &dev, KFI_RMA | KFI_WRITE, 0);
	EXPECT(t, filled(at, LEN, 4));
	/* The consumer's own operations name the memory by address. */
	EXPECT_EQ(t, kfi_mr_reg_dax(t->st->domain, dev.dax, OFFSET, SIZE, KFI_WRITE, 0, &local, NULL),
		  0);
	desc = kfi_mr_desc(local);
	EXPECT_EQ(t, kfi_write(t->a.ep, at, LEN, desc, 0, to->mr->iova, kfi_mr_key(to->mr), to), 0);
	completed(t, &t->a, to, KFI_RMA | KFI_WRITE, LEN);
	EXPECT(t, filled(to->at, LEN, 4));
	EXPECT_EQ(t, kfi_close(&local->fid), 0);
out_mr:
	EXPECT_EQ(t, kfi_close(&mr->fid), 0);
out:
	EXPECT_EQ(t, kfi_close(&dev.dax->fid), 0);
	EXPECT_EQ(t, atomic_read(&dev.calls), 0);
}

static void refusals(struct test *t)
{
	struct kfid_domain *domain = t->st->domain;
	struct device dev, other;
	struct kfid_mr *mr;
	u64 size;

	EXPECT_EQ(t, kfi_dax_open("/dev/null", KFI_READ, NULL, &other.dax, NULL), -ENOTBLK);
	EXPECT_EQ(t, kfi_dax_open("/dev/there-is-none", KFI_READ, NULL, &other.dax, NULL), -ENOENT);
	EXPECT_EQ(t, kfi_dax_open(path, KFI_WRITE, NULL, &other.dax, NULL), -EINVAL);
	EXPECT_EQ(t, kfi_dax_open(path, KFI_READ | KFI_SEND, NULL, &other.dax, NULL), -EINVAL);
	if (!open(t, &dev))
		return;
	size = dev.dax->size;
	EXPECT_EQ(t, kfi_dax_open(path, KFI_READ, NULL, &other.dax, NULL), -EBUSY);
	EXPECT_EQ(t, kfi_mr_reg_dax(domain, dev.dax, 1, SIZE, BOTH, 0, &mr, NULL), -EINVAL);
	EXPECT_EQ(t, kfi_mr_reg_dax(domain, dev.dax, 0, 0, BOTH, 0, &mr, NULL), -EINVAL);
	EXPECT_EQ(t, kfi_mr_reg_dax(domain, dev.dax, size, SIZE, BOTH, 0, &mr, NULL), -EINVAL);
	EXPECT_EQ(t, kfi_mr_reg_dax(domain, dev.dax, -PAGE_SIZE, SIZE, BOTH, 0, &mr, NULL), -EINVAL);
	EXPECT_EQ(t, kfi_mr_reg_dax(domain, NULL, 0, SIZE, BOTH, 0, &mr, NULL), -EINVAL);
	EXPECT_EQ(t, PTR_ERR(kfi_dax_address(dev.dax, size, NULL)), -EINVAL);
	EXPECT_EQ(t, kfi_close(&dev.dax->fid), 0);
	if (!EXPECT_EQ(t, kfi_dax_open(path, KFI_READ, NULL, &other.dax, NULL), 0))
		return;
	EXPECT_EQ(t, kfi_mr_reg_dax(domain, other.dax, 0, SIZE, BOTH, 0, &mr, NULL), -EACCES);
	EXPECT_EQ(t, kfi_mr_reg_dax(domain, other.dax, 0, SIZE, KFI_REMOTE_READ, 0, &mr, NULL), 0);
	/* The memory outlives the device's close. */
	EXPECT_EQ(t, kfi_close(&other.dax->fid), 0);
	EXPECT_EQ(t, kfi_dax_open(path, KFI_READ, NULL, &other.dax, NULL), -EBUSY);
	EXPECT_EQ(t, kfi_close(&mr->fid), 0);
}

/* Opens a connection, and expects that a write by a key fails and changes no byte. */
static void write_fails(struct test *t, struct buf *from, const u8 *at, u64 addr, u64 key)
{
	pair_close(t);
	if (!pair_open(t, t->st->domain, 0))
		return;
	EXPECT_EQ(t, write(t, from, addr, key), 0);
	failed_with(t, &t->a, from, 0);
	EXPECT(t, filled(at, LEN, 5));
}

static void failure(struct test *t)
{
	struct buf *from = buf_get(t, PAGES, PAGE_SIZE, KFI_WRITE, 0);
	struct kfid_mr *own, *shared, *none;
	u64 key, addr, assigned, place;
	struct kfid_key *slots[2], *more;
	struct device dev;
	u8 *at;

	if (!from || !open(t, &dev))
		return;
	if (!EXPECT_EQ(t, reg(t, &dev, KFI_RMA_PMEM, &own), 0))
		goto out;
	if (!EXPECT_EQ(t, reg(t, &dev, KFI_RMA_PMEM | KFI_DYNAMIC_KEYS, &shared), 0))
		goto out_own;
	if (!EXPECT_EQ(t, kfi_key_alloc(shared, NULL, 2, slots, NULL), 0))
		goto out_shared;
	EXPECT_EQ(t, kfi_key_assign(slots[0], 0, SIZE, BOTH, 0), 0);
	key = kfi_mr_key(own);
	addr = own->iova;
	assigned = slots[0]->key;
	place = slots[0]->addr;
	at = kfi_dax_address(dev.dax, OFFSET + TARGET, NULL);
	if (!EXPECT(t, !IS_ERR(at)))
		goto out_slots;
	fill(from->at, LEN, 4);
	EXPECT_EQ(t, write(t, from, addr, key), 0);
	completed(t, &t->a, from, KFI_RMA | KFI_WRITE, LEN);
	EXPECT(t, filled(at, LEN, 4));
	fill(from->at, LEN, 5);
	EXPECT_EQ(t, write(t, from, place, assigned), 0);
	completed(t, &t->a, from, KFI_RMA | KFI_WRITE, LEN);
	EXPECT(t, filled(at, LEN, 5));
	pr_info("# unbind\n");
	if (!EXPECT(t, wait_for_completion_timeout(&dev.failed, msecs_to_jiffies(LIMIT_MS))))
		goto out_slots;
	EXPECT_EQ(t, dev.error, -ENODEV);
	/* The unbinding waits for this test, so the mapping stays. */
	fill(from->at, LEN, 6);
	write_fails(t, from, at, addr, key);
	write_fails(t, from, at, place, assigned);
	EXPECT_EQ(t, kfi_key_assign(slots[0], 0, SIZE, BOTH, 0), -ENODEV);
	EXPECT_EQ(t, kfi_key_assign(slots[1], 0, SIZE, BOTH, 0), -ENODEV);
	EXPECT_EQ(t, kfi_key_alloc(shared, NULL, 1, &more, NULL), -ENODEV);
	EXPECT_EQ(t, reg(t, &dev, 0, &none), -ENODEV);
	EXPECT_EQ(t, PTR_ERR(kfi_dax_address(dev.dax, 0, NULL)), -ENODEV);
out_slots:
	EXPECT_EQ(t, kfi_close(&slots[0]->fid), 0);
	EXPECT_EQ(t, kfi_close(&slots[1]->fid), 0);
out_shared:
	EXPECT_EQ(t, kfi_close(&shared->fid), 0);
out_own:
	EXPECT_EQ(t, kfi_close(&own->fid), 0);
out:
	EXPECT_EQ(t, kfi_close(&dev.dax->fid), 0);
	EXPECT_EQ(t, atomic_read(&dev.calls), 1);
}

const struct group dax_tests[] = {
	{ "dax_memory_written_durably", durable, true },
	{ "dax_open_and_registration_with_faults_are_refused", refusals, false },
	{ "dax_p03_removed_device_ends_keys", failure, true },
	{}
};
