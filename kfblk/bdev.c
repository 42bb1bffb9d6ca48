// SPDX-License-Identifier: GPL-2.0
/*
 * The block device behind an export: opened by path, and accessed by preallocated bios. Each
 * submitted bio ends once, in kfblk_rs_bio_end().
 */
#include <linux/bio.h>
#include <linux/blkdev.h>
#include <linux/err.h>
#include <linux/slab.h>

#include "helpers.h"

struct kfblk_bio {
	struct bio bio;
	struct bio_vec vecs[KFBLK_RUNS];
	void *owner;
	u32 slot;
};

static const blk_opf_t kfblk_ops[] = {
	[KFBLK_OP_READ]		= REQ_OP_READ,
	[KFBLK_OP_WRITE]	= REQ_OP_WRITE | REQ_SYNC | REQ_IDLE,
#ifdef KFABRIC_SEED_BUG_device_no_flush
	[KFBLK_OP_FLUSH]	= REQ_OP_WRITE,
#else
	[KFBLK_OP_FLUSH]	= REQ_OP_WRITE | REQ_PREFLUSH,
#endif
	[KFBLK_OP_DISCARD]	= REQ_OP_DISCARD,
	[KFBLK_OP_ZEROES]	= REQ_OP_WRITE_ZEROES,
};

/* Opens a block device exclusively for @holder. */
struct file *kfblk_bdev_open(const char *path, bool write, void *holder)
{
	blk_mode_t mode = BLK_OPEN_READ | (write ? BLK_OPEN_WRITE : 0);

	return bdev_file_open_by_path(path, mode, holder, NULL);
}

/* Closes the block device. No bio is in flight. */
void kfblk_bdev_close(struct file *file)
{
	bdev_fput(file);
}

u64 kfblk_bdev_capacity(struct file *file)
{
	return bdev_nr_bytes(file_bdev(file));
}

/* Returns the disk sequence number, which changes with each new disk or medium. */
u64 kfblk_bdev_seq(struct file *file)
{
	return file_bdev(file)->bd_disk->diskseq;
}

void kfblk_bdev_looks(struct file *file, struct kfblk_looks *looks)
{
	struct block_device *bdev = file_bdev(file);

	*looks = (struct kfblk_looks) {
		.block_size	= bdev_logical_block_size(bdev),
		.physical	= bdev_physical_block_size(bdev),
		.io_min		= bdev_io_min(bdev),
		.io_opt		= bdev_io_opt(bdev),
		.discard	= bdev_max_discard_sectors(bdev),
		.granularity	= bdev_discard_granularity(bdev),
		.zeroes		= bdev_write_zeroes_sectors(bdev),
		.cache		= bdev_write_cache(bdev),
		.fua		= bdev_fua(bdev),
		.rotational	= bdev_rot(bdev),
		.read_only	= bdev_read_only(bdev),
		.zoned		= bdev_is_zoned(bdev),
	};
}

struct kfblk_bio *kfblk_bio_new(void)
{
	return kzalloc_obj(struct kfblk_bio);
}

/* Frees a bio, which is not in flight. */
void kfblk_bio_free(struct kfblk_bio *of)
{
	kfree(of);
}

/* Reports the end of a bio. Context: any. */
static void kfblk_bio_end(struct bio *bio)
{
	struct kfblk_bio *of = container_of(bio, struct kfblk_bio, bio);
	int err = blk_status_to_errno(bio->bi_status);

	bio_uninit(bio);
	kfblk_rs_bio_end(of->owner, of->slot, err);
}

/* Submits a bio. If the operation moves bytes, @pieces stay until the bio has ended. May sleep. */
void kfblk_bio_submit(struct kfblk_bio *of, struct file *file, const struct kfblk_order *order,
		      const struct kfblk_piece *pieces, u32 count)
{
	struct bio *bio = &of->bio;
	u32 left = order->len;

	bio_init(bio, file_bdev(file), of->vecs, KFBLK_RUNS, kfblk_ops[order->op]);
	if (order->flags & KFBLK_PAST_CACHE)
		bio->bi_opf |= REQ_FUA;
	if (order->flags & KFBLK_KEEP_ROOM)
		bio->bi_opf |= REQ_NOUNMAP;
	bio->bi_iter.bi_sector = order->pos >> SECTOR_SHIFT;
	bio->bi_end_io = kfblk_bio_end;
	of->owner = order->owner;
	of->slot = order->slot;
	if (!order->moves) {
		bio->bi_iter.bi_size = left;
		left = 0;
	}
	for (; left && count; pieces++, count--) {
		u32 len = min(left, pieces->len);

		__bio_add_page(bio, pieces->page, len, pieces->offset);
		left -= len;
	}
	submit_bio(bio);
}
