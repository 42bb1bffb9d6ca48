// SPDX-License-Identifier: GPL-2.0
/*
 * The block device: a tag set, a disk, and requests on their way to Rust and back.
 *
 * Between kfblk_disk_new() and the return of kfblk_disk_del() requests come to kfblk_rs_queue(). Each
 * that was taken ends by kfblk_rq_end(), once.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/bio.h>
#include <linux/blk-mq.h>
#include <linux/blkdev.h>
#include <linux/highmem.h>
#include <linux/idr.h>
#include <linux/module.h>
#include <linux/rcupdate.h>
#include <linux/slab.h>
#include <linux/wait.h>
#include <linux/workqueue.h>

#include "helpers.h"

/* Pieces of a request, at most. */
#define KFBLK_SEGMENTS	64
/*
 * A request fails when its tries reach the limit. A connection that has ended because of the request
 * counts as KFBLK_FAULT tries; one that has served others, and ended with the request in flight, as one.
 */
#define KFBLK_FAULT	2
#define KFBLK_TRIES	16

struct kfblk_disk {
	void *owner;
	/* Requests go as messages: kfblk_rs_send(). */
	bool device;
	struct blk_mq_tag_set set;
	struct gendisk *gd;
	int index;
	/* Ends the time for which requests wait for a connection. */
	struct delayed_work fast_fail;
	/* That time is over: requests fail while there is no connection. */
	bool failing;
	/* One of the tag set's owner, one of the disk's last user. */
	refcount_t refs;
};

struct kfblk_pdu {
	u32 tries;
	enum kfblk_verdict verdict;
	blk_status_t status;
	struct kfblk_piece pieces[KFBLK_SEGMENTS];
};

static DEFINE_IDA(kfblk_ida);
/* Disks that are still somebody's, who may be the last to close one that was removed. */
static atomic_t kfblk_disks = ATOMIC_INIT(0);
static DECLARE_WAIT_QUEUE_HEAD(kfblk_none);
static int kfblk_major;

/* Names the request's memory; how many pieces that is. */
static u32 kfblk_map(struct request *rq, struct kfblk_piece *pieces)
{
	const u32 max = queue_max_segment_size(rq->q);
	struct req_iterator iter;
	struct bio_vec bv;
	u32 n = 0;

	rq_for_each_bvec(bv, rq, iter) {
		phys_addr_t at = bvec_phys(&bv);
		u32 left = bv.bv_len;
		u32 len;

		for (; left; left -= len, at += len) {
			struct kfblk_piece *last = n ? &pieces[n - 1] : NULL;

			if (last && last->len < max &&
			    page_to_phys(last->page) + last->offset + last->len == at) {
				len = min(left, max - last->len);
				last->len += len;
				continue;
			}
			if (n == KFBLK_SEGMENTS)
				return 0;
			len = min(left, max);
			pieces[n++] = (struct kfblk_piece) {
				.page = pfn_to_page(PHYS_PFN(at)),
				.offset = offset_in_page(at),
				.len = len,
			};
		}
	}
	return n;
}

/* A request of a disk that is a device. */
static int kfblk_send(struct blk_mq_hw_ctx *hctx, struct request *rq)
{
	struct kfblk_disk *disk = hctx->queue->queuedata;
	struct kfblk_order order = {
		.pos = blk_rq_pos(rq) << SECTOR_SHIFT,
		.len = blk_rq_bytes(rq),
	};

	/* The numbers are those of enum Op (pure/src/blk/device.rs). */
	switch (req_op(rq)) {
	case REQ_OP_READ:
		order.op = 0;
		order.moves = true;
		break;
	case REQ_OP_WRITE:
		order.op = 1;
		order.moves = true;
		if (rq->cmd_flags & REQ_FUA)
			order.flags = KFBLK_PAST_CACHE;
		break;
	case REQ_OP_FLUSH:
		order.op = 2;
		order.pos = 0;
		order.len = 0;
		break;
	case REQ_OP_DISCARD:
		order.op = 3;
		break;
	case REQ_OP_WRITE_ZEROES:
		order.op = 4;
		if (rq->cmd_flags & REQ_NOUNMAP)
			order.flags = KFBLK_KEEP_ROOM;
		break;
	default:
		return -EOPNOTSUPP;
	}
	return kfblk_rs_send(disk->owner, hctx->queue_num, rq->tag, &order);
}

/*
 * Whether a request was issued by request-based dm, and is to be issued by the block layer's own worker:
 * dm-rq.c issues its clones in RCU read-side sections, whatever the queue below says of blocking, and keys
 * cannot be assigned there. A clone is the only request with an end_io that is neither passthrough nor a
 * flush of our own queue's.
 */
static bool kfblk_is_clone(const struct request *rq)
{
	return rq->end_io && !(rq->rq_flags & (RQF_FLUSH_SEQ | RQF_DONTPREP));
}

/* Whether a request of a disk without a connection fails instead of waiting for the next one. */
static bool kfblk_fails_fast(const struct kfblk_disk *disk, const struct request *rq)
{
	return blk_noretry_request(rq) || READ_ONCE(disk->failing);
}

/* Counts tries of a request; whether it has had all of them. */
static bool kfblk_is_spent(struct request *rq, u32 tries)
{
	struct kfblk_pdu *pdu = blk_mq_rq_to_pdu(rq);

	pdu->tries += tries;
	return pdu->tries >= KFBLK_TRIES;
}

/*
 * There is no connection. A request that may wait is parked on the requeue list, without a kick:
 * there it neither is tried again and again, nor stands in the way of one that fails fast. Whoever
 * ends the waiting kicks the list when no task is here any more (kfblk_disk_kick()).
 */
static blk_status_t kfblk_unconnected(struct kfblk_disk *disk, struct request *rq)
{
	if (kfblk_fails_fast(disk, rq))
		return BLK_STS_TRANSPORT;
	blk_mq_requeue_request(rq, false);
	return BLK_STS_OK;
}

static blk_status_t kfblk_queue_rq(struct blk_mq_hw_ctx *hctx, const struct blk_mq_queue_data *bd)
{
	struct kfblk_disk *disk = hctx->queue->queuedata;
	struct request *rq = bd->rq;
	struct kfblk_pdu *pdu = blk_mq_rq_to_pdu(rq);
	u32 n;
	int ret;

	switch (req_op(rq)) {
	case REQ_OP_READ:
		break;
	case REQ_OP_FLUSH:
	case REQ_OP_DISCARD:
	case REQ_OP_WRITE_ZEROES:
		if (!disk->device)
			return BLK_STS_NOTSUPP;
		break;
	case REQ_OP_WRITE:
		/* The block layer only warns of it, and the target's key would end the connection. */
		if (get_disk_ro(disk->gd))
			return BLK_STS_IOERR;
		break;
	default:
		return BLK_STS_NOTSUPP;
	}
	if (disk->device && kfblk_is_clone(rq)) {
		pdu->tries = 0;
		rq->rq_flags |= RQF_DONTPREP;
		blk_mq_requeue_request(rq, true);
		return BLK_STS_OK;
	}
	n = disk->device ? 0 : kfblk_map(rq, pdu->pieces);
	if (!n && !disk->device)
		return BLK_STS_IOERR;
	if (!(rq->rq_flags & RQF_DONTPREP)) {
		pdu->tries = 0;
		rq->rq_flags |= RQF_DONTPREP;
	}
	blk_mq_start_request(rq);
	if (disk->device)
		ret = kfblk_send(hctx, rq);
	else
		ret = kfblk_rs_queue(disk->owner, hctx->queue_num, rq->tag,
				     req_op(rq) == REQ_OP_WRITE, blk_rq_pos(rq) << SECTOR_SHIFT,
				     pdu->pieces, n);
	switch (ret) {
	case 0:
		return BLK_STS_OK;
	case -EAGAIN:
		return BLK_STS_RESOURCE;
	case -ENOTCONN:
		return kfblk_unconnected(disk, rq);
	case -EREMOTEIO:
		return kfblk_is_spent(rq, KFBLK_FAULT) ? BLK_STS_IOERR : BLK_STS_RESOURCE;
	default:
		return errno_to_blk_status(ret);
	}
}

/* Ends a request with the target's error. What the target cannot do it is not asked for again. */
static void kfblk_refused(struct request *rq, blk_status_t status)
{
	if (status == BLK_STS_NOTSUPP) {
		if (req_op(rq) == REQ_OP_WRITE_ZEROES)
			blk_queue_disable_write_zeroes(rq->q);
		else if (req_op(rq) == REQ_OP_DISCARD)
			blk_queue_disable_discard(rq->q);
		/* The caller has another way, so the block layer is not to complain. */
		rq->rq_flags |= RQF_QUIET;
	}
	blk_mq_end_request(rq, status);
}

static void kfblk_complete(struct request *rq)
{
	struct kfblk_disk *disk = rq->q->queuedata;
	struct kfblk_pdu *pdu = blk_mq_rq_to_pdu(rq);
	u32 tries = 0;

	switch (pdu->verdict) {
	case KFBLK_DONE:
		blk_mq_end_request(rq, BLK_STS_OK);
		break;
	case KFBLK_ERROR:
		kfblk_refused(rq, pdu->status);
		break;
	case KFBLK_BLAMED:
		tries = KFBLK_FAULT - 1;
		fallthrough;
	case KFBLK_SUSPECT:
		tries++;
		fallthrough;
	case KFBLK_AGAIN:
		if (kfblk_is_spent(rq, tries))
			blk_mq_end_request(rq, BLK_STS_IOERR);
		else if (kfblk_fails_fast(disk, rq))
			blk_mq_end_request(rq, BLK_STS_TRANSPORT);
		else
			/* Until the disk is dead: then it fails where it is tried. */
			blk_mq_requeue_request(rq, true);
		break;
	default:
		blk_mq_end_request(rq, BLK_STS_IOERR);
	}
}

static enum blk_eh_timer_return kfblk_timeout(struct request *rq)
{
	struct kfblk_disk *disk = rq->q->queuedata;

	/* The connection is what ends; with it, the request. */
	kfblk_rs_timeout(disk->owner);
	return BLK_EH_RESET_TIMER;
}

static void kfblk_fast_fail(struct work_struct *work)
{
	struct kfblk_disk *disk = container_of(to_delayed_work(work), struct kfblk_disk, fast_fail);

	WRITE_ONCE(disk->failing, true);
	pr_warn("%s: requests fail until there is a connection again\n", disk->gd->disk_name);
	kfblk_disk_kick(disk);
}

static const struct blk_mq_ops kfblk_mq_ops = {
	.queue_rq	= kfblk_queue_rq,
	.complete	= kfblk_complete,
	.timeout	= kfblk_timeout,
};

static void kfblk_put(struct kfblk_disk *disk)
{
	if (refcount_dec_and_test(&disk->refs)) {
		ida_free(&kfblk_ida, disk->index);
		kfree(disk);
		if (atomic_dec_and_test(&kfblk_disks))
			wake_up_all(&kfblk_none);
	}
}

static void kfblk_free_disk(struct gendisk *gd)
{
	kfblk_put(gd->private_data);
}

static const struct block_device_operations kfblk_fops = {
	.owner		= THIS_MODULE,
	.free_disk	= kfblk_free_disk,
};

struct kfblk_disk *kfblk_disk_new(void *owner, const struct kfblk_shape *shape)
{
	/*
	 * What memory has acknowledged is there, and there is nothing behind that: no cache to flush, no
	 * FUA. A device has what it says.
	 */
	struct queue_limits lim = {
		.logical_block_size	= shape->block_size,
		.physical_block_size	= shape->physical,
		.io_min			= shape->io_min,
		.io_opt			= shape->io_opt,
		.max_hw_sectors		= shape->request >> SECTOR_SHIFT,
		.max_hw_discard_sectors	= shape->discard >> SECTOR_SHIFT,
		.discard_granularity	= shape->granularity,
		.max_write_zeroes_sectors = shape->zeroes >> SECTOR_SHIFT,
		.max_segments		= KFBLK_SEGMENTS,
		.max_segment_size	= shape->piece,
		.dma_alignment		= SECTOR_SIZE - 1,
	};
	struct kfblk_disk *disk;
	int ret;

	disk = kzalloc_obj(*disk);
	if (!disk)
		return ERR_PTR(-ENOMEM);
	disk->owner = owner;
	disk->device = shape->device;
	INIT_DELAYED_WORK(&disk->fast_fail, kfblk_fast_fail);
	if (shape->device) {
		/* A key is for pages without gaps. */
		lim.virt_boundary_mask = PAGE_SIZE - 1;
		lim.max_segment_size = UINT_MAX;
	} else {
		lim.max_hw_sectors = shape->chunk >> SECTOR_SHIFT;
		lim.chunk_sectors = shape->chunk >> SECTOR_SHIFT;
	}
	if (shape->cache)
		lim.features |= BLK_FEAT_WRITE_CACHE;
	if (shape->fua)
		lim.features |= BLK_FEAT_FUA;
	if (shape->rotational)
		lim.features |= BLK_FEAT_ROTATIONAL;
	atomic_inc(&kfblk_disks);
	refcount_set(&disk->refs, 1);
	disk->set.ops = &kfblk_mq_ops;
	disk->set.nr_hw_queues = shape->queues;
	disk->set.queue_depth = shape->depth;
	disk->set.numa_node = NUMA_NO_NODE;
	disk->set.cmd_size = sizeof(struct kfblk_pdu);
	/* Keys are assigned, which may wait. */
	disk->set.flags = shape->device ? BLK_MQ_F_BLOCKING : 0;
	disk->set.timeout = msecs_to_jiffies(shape->timeout_ms);
	ret = blk_mq_alloc_tag_set(&disk->set);
	if (ret)
		goto out_free;
	disk->index = ida_alloc_max(&kfblk_ida, (MINORMASK >> 4), GFP_KERNEL);
	if (disk->index < 0) {
		ret = disk->index;
		goto out_tags;
	}
	disk->gd = blk_mq_alloc_disk(&disk->set, &lim, disk);
	if (IS_ERR(disk->gd)) {
		ret = PTR_ERR(disk->gd);
		goto out_ida;
	}
	/* The disk's own, given back by kfblk_free_disk(). */
	refcount_inc(&disk->refs);
	disk->gd->major = kfblk_major;
	disk->gd->first_minor = disk->index << 4;
	disk->gd->minors = 16;
	disk->gd->fops = &kfblk_fops;
	disk->gd->private_data = disk;
	snprintf(disk->gd->disk_name, DISK_NAME_LEN, "kfblk%d", disk->index);
	set_capacity(disk->gd, shape->capacity >> SECTOR_SHIFT);
	set_disk_ro(disk->gd, shape->read_only);
	return disk;

out_ida:
	ida_free(&kfblk_ida, disk->index);
out_tags:
	blk_mq_free_tag_set(&disk->set);
out_free:
	kfree(disk);
	if (atomic_dec_and_test(&kfblk_disks))
		wake_up_all(&kfblk_none);
	return ERR_PTR(ret);
}

int kfblk_disk_add(struct kfblk_disk *disk)
{
	return add_disk(disk->gd);
}

/* No request comes after this. Those on their way end before it returns. */
void kfblk_disk_del(struct kfblk_disk *disk)
{
	del_gendisk(disk->gd);
}

/* After kfblk_disk_del(), or instead of it if it was never added. */
void kfblk_disk_free(struct kfblk_disk *disk)
{
	bool added = test_bit(GD_ADDED, &disk->gd->state);

	cancel_delayed_work_sync(&disk->fast_fail);
	put_disk(disk->gd);
	blk_mq_free_tag_set(&disk->set);
	/* Of what was never added the block layer gives nothing back. */
	if (!added)
		kfblk_put(disk);
	kfblk_put(disk);
}

/* Nobody is in kfblk_rs_queue() when this returns, nor comes there until kfblk_disk_resume(). */
void kfblk_disk_quiesce(struct kfblk_disk *disk)
{
	blk_mq_quiesce_tagset(&disk->set);
}

void kfblk_disk_resume(struct kfblk_disk *disk)
{
	blk_mq_unquiesce_tagset(&disk->set);
	blk_mq_kick_requeue_list(disk->gd->queue);
}

/* Requests that were parked are tried again: what has changed is seen by all that come from here on. */
void kfblk_disk_kick(struct kfblk_disk *disk)
{
	/* One that has not seen the change is parked when this returns. */
	blk_mq_wait_quiesce_done(&disk->set);
	blk_mq_kick_requeue_list(disk->gd->queue);
}

/* There is no connection: in @ms milliseconds requests no longer wait for one. */
void kfblk_disk_fail_in(struct kfblk_disk *disk, u64 ms)
{
	schedule_delayed_work(&disk->fast_fail, msecs_to_jiffies(min_t(u64, ms, INT_MAX)));
}

/* There is a connection. One caller of this and of kfblk_disk_fail_in() at a time. */
void kfblk_disk_fail_no_more(struct kfblk_disk *disk)
{
	cancel_delayed_work_sync(&disk->fast_fail);
	WRITE_ONCE(disk->failing, false);
}

void kfblk_disk_name(const struct kfblk_disk *disk, char *name, unsigned int size)
{
	strscpy(name, disk->gd->disk_name, size);
}

/* Any context. */
void kfblk_rq_end(struct kfblk_disk *disk, u32 queue, u32 tag, enum kfblk_verdict verdict)
{
	struct request *rq = blk_mq_tag_to_rq(disk->set.tags[queue], tag);
	struct kfblk_pdu *pdu = blk_mq_rq_to_pdu(rq);

	pdu->verdict = verdict;
	blk_mq_complete_request(rq);
}

/* What a target says is an error of the device, and not what has the layers above try again for ever. */
static blk_status_t status_of(int err)
{
	switch (err) {
	case -ENOSPC:
	case -EOPNOTSUPP:
	case -EROFS:
	case -ENODATA:
	case -EILSEQ:
	case -ETIMEDOUT:
		return errno_to_blk_status(err);
	default:
		return BLK_STS_IOERR;
	}
}

/* Ends a request with the target's @err. Any context. */
void kfblk_rq_fail(struct kfblk_disk *disk, u32 queue, u32 tag, int err)
{
	struct request *rq = blk_mq_tag_to_rq(disk->set.tags[queue], tag);
	struct kfblk_pdu *pdu = blk_mq_rq_to_pdu(rq);

	pdu->verdict = KFBLK_ERROR;
	pdu->status = status_of(err);
	blk_mq_complete_request(rq);
}

/* Names the request's memory, for as long as it is under way. Any context. */
const struct kfblk_piece *kfblk_rq_pieces(struct kfblk_disk *disk, u32 queue, u32 tag, u32 *count)
{
	struct request *rq = blk_mq_tag_to_rq(disk->set.tags[queue], tag);
	struct kfblk_pdu *pdu = blk_mq_rq_to_pdu(rq);

	*count = kfblk_map(rq, pdu->pieces);
	return pdu->pieces;
}

/* Copies a request's bytes to or from our own, in @pieces, which are as many. Any context. */
void kfblk_rq_copy(struct kfblk_disk *disk, u32 queue, u32 tag,
		   const struct kfblk_piece *pieces, u32 count, bool to_request)
{
	struct request *rq = blk_mq_tag_to_rq(disk->set.tags[queue], tag);
	struct req_iterator iter;
	struct bio_vec bv;
	u32 at = 0;

	rq_for_each_segment(bv, rq, iter) {
		u8 *theirs = bvec_kmap_local(&bv);
		u32 done = 0;

		while (done < bv.bv_len && count) {
			u32 len = min(bv.bv_len - done, pieces->len - at);
			u8 *ours = (u8 *)page_address(pieces->page) + pieces->offset + at;

			if (to_request)
				memcpy(theirs + done, ours, len);
			else
				memcpy(ours, theirs + done, len);
			done += len;
			at += len;
			if (at == pieces->len) {
				at = 0;
				pieces++;
				count--;
			}
		}
		kunmap_local(theirs);
	}
}

u64 kfblk_disk_capacity(const struct kfblk_disk *disk)
{
	return (u64)get_capacity(disk->gd) << SECTOR_SHIFT;
}

/* The device has another size now. */
void kfblk_disk_resize(struct kfblk_disk *disk, u64 capacity)
{
	set_capacity_and_notify(disk->gd, capacity >> SECTOR_SHIFT);
}

int kfblk_block_init(void)
{
	kfblk_major = register_blkdev(0, "kfblk");
	return kfblk_major < 0 ? kfblk_major : 0;
}

void kfblk_block_exit(void)
{
	wait_event(kfblk_none, !atomic_read(&kfblk_disks));
	/* Whoever was the last is out of this module's text then. */
	synchronize_rcu_tasks();
	unregister_blkdev(kfblk_major, "kfblk");
	ida_destroy(&kfblk_ida);
}
