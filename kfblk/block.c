// SPDX-License-Identifier: GPL-2.0
/*
 * The block device: a tag set, a disk, and the path of requests to Rust and back.
 *
 * Between kfblk_disk_new() and the return of kfblk_disk_del(), the block layer passes requests to
 * kfblk_rs_queue() or kfblk_rs_send(). Each accepted request ends once, by kfblk_rq_end() or
 * kfblk_rq_fail().
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
 * A request fails when its tries reach the limit. A connection that has ended because of the
 * request counts as KFBLK_FAULT tries. A connection that has completed others, and ended with the
 * request in flight, counts as one.
 */
#define KFBLK_FAULT	2
#define KFBLK_TRIES	16
/* Time after which a flush that could not commit is retried, in milliseconds. */
#define KFBLK_FLUSH_MS	10

struct kfblk_disk {
	void *owner;
	/* The export is block-backed: requests go to kfblk_rs_send(). */
	bool device;
	/* The export is persistent memory: flushes go to kfblk_rs_flush(). */
	bool commits;
	struct blk_mq_tag_set set;
	struct gendisk *gd;
	struct kfblk_counts __percpu *counts;
	int index;
	/* Ends the time for which requests wait for a connection. */
	struct delayed_work fast_fail;
	/* Calls kfblk_rs_look(), which queues the disk's work. */
	struct delayed_work look;
	/* Number of commits of ranges that have succeeded. */
	atomic_long_t progress;
	/* fast_fail has run: requests fail while there is no connection. */
	bool failing;
	/* One reference of the tag set's owner, one of the gendisk. */
	refcount_t refs;
};

struct kfblk_pdu {
	u32 tries;
	enum kfblk_verdict verdict;
	blk_status_t status;
	/* Of a flush: the disk's progress at the start, or at the last expiry. */
	long progress;
	struct kfblk_piece pieces[KFBLK_SEGMENTS];
};

static DEFINE_IDA(kfblk_ida);
/* Disks that are not freed yet. The last user of a removed disk may close it late. */
static atomic_t kfblk_disks = ATOMIC_INIT(0);
static DECLARE_WAIT_QUEUE_HEAD(kfblk_none);
static int kfblk_major;

/* Fills @pieces with the request's memory. Returns their number; 0 if they do not fit. */
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

/* Sends a request to a block-backed export. */
static int kfblk_send(struct blk_mq_hw_ctx *hctx, struct request *rq)
{
	struct kfblk_disk *disk = hctx->queue->queuedata;
	struct kfblk_order order = {
		.pos = blk_rq_pos(rq) << SECTOR_SHIFT,
		.len = blk_rq_bytes(rq),
	};

	switch (req_op(rq)) {
	case REQ_OP_READ:
		order.op = KFBLK_OP_READ;
		order.moves = true;
		break;
	case REQ_OP_WRITE:
		order.op = KFBLK_OP_WRITE;
		order.moves = true;
		if (rq->cmd_flags & REQ_FUA)
			order.flags = KFBLK_PAST_CACHE;
		break;
	case REQ_OP_FLUSH:
		order.op = KFBLK_OP_FLUSH;
		order.pos = 0;
		order.len = 0;
		break;
	case REQ_OP_DISCARD:
		order.op = KFBLK_OP_DISCARD;
		break;
	case REQ_OP_WRITE_ZEROES:
		order.op = KFBLK_OP_ZEROES;
		if (rq->cmd_flags & REQ_NOUNMAP)
			order.flags = KFBLK_KEEP_ROOM;
		break;
	default:
		return -EOPNOTSUPP;
	}
	return kfblk_rs_send(disk->owner, hctx->queue_num, rq->tag, &order);
}

/* Passes a flush of persistent memory on. */
static int kfblk_flush(struct blk_mq_hw_ctx *hctx, struct request *rq)
{
	struct kfblk_disk *disk = hctx->queue->queuedata;
	struct kfblk_pdu *pdu = blk_mq_rq_to_pdu(rq);

	pdu->progress = atomic_long_read(&disk->progress);
	return kfblk_rs_flush(disk->owner, hctx->queue_num, rq->tag);
}

struct kfblk_counts __percpu *kfblk_counts_new(u32 queues)
{
	return __alloc_percpu(queues * sizeof(struct kfblk_counts),
			      __alignof__(struct kfblk_counts));
}

void kfblk_counts_free(struct kfblk_counts __percpu *counts)
{
	free_percpu(counts);
}

/* Adds a queue's counters to @sum. */
void kfblk_counts_add(const struct kfblk_counts __percpu *counts, u32 queue,
		      struct kfblk_counts *sum)
{
	int cpu;

	for_each_possible_cpu(cpu) {
		const struct kfblk_counts *of = per_cpu_ptr(counts, cpu) + queue;

		sum->reads += READ_ONCE(of->reads);
		sum->writes += READ_ONCE(of->writes);
		sum->read_bytes += READ_ONCE(of->read_bytes);
		sum->written_bytes += READ_ONCE(of->written_bytes);
		sum->others += READ_ONCE(of->others);
		sum->errors += READ_ONCE(of->errors);
		sum->retries += READ_ONCE(of->retries);
		sum->commits += READ_ONCE(of->commits);
	}
}

static struct kfblk_counts __percpu *kfblk_counts_of(struct request *rq)
{
	struct kfblk_disk *disk = rq->q->queuedata;

	return disk->counts + rq->mq_hctx->queue_num;
}

/* Counts commits of ranges that have succeeded. Context: any. */
void kfblk_disk_add_commits(struct kfblk_disk *disk, u32 queue, u32 count)
{
	struct kfblk_counts __percpu *counts = disk->counts + queue;

	this_cpu_add(counts->commits, count);
	atomic_long_add(count, &disk->progress);
}

/* Counts a completed request, and ends it. */
static void kfblk_end(struct request *rq, blk_status_t status)
{
	const struct kfblk_disk *disk = rq->q->queuedata;
	struct kfblk_counts __percpu *counts = kfblk_counts_of(rq);

	if (status != BLK_STS_OK) {
		this_cpu_inc(counts->errors);
	} else if (req_op(rq) == REQ_OP_READ) {
		this_cpu_inc(counts->reads);
		this_cpu_add(counts->read_bytes, blk_rq_bytes(rq));
	} else if (req_op(rq) == REQ_OP_WRITE) {
		this_cpu_inc(counts->writes);
		this_cpu_add(counts->written_bytes, blk_rq_bytes(rq));
		if (disk->commits && rq->cmd_flags & REQ_FUA)
			this_cpu_inc(counts->commits);
	} else {
		this_cpu_inc(counts->others);
	}
	blk_mq_end_request(rq, status);
}

/*
 * Returns whether request-based dm has issued a request, which the block layer's worker must issue
 * instead. dm-rq.c issues its clones in RCU read-side sections, even if the queue below may block.
 * Keys cannot be assigned there. A clone is the only request with an end_io that is neither
 * passthrough nor a flush of this queue.
 */
static bool kfblk_is_clone(const struct request *rq)
{
	return rq->end_io && !(rq->rq_flags & (RQF_FLUSH_SEQ | RQF_DONTPREP));
}

/* Returns whether a request fails instead of waiting for the next connection. */
static bool kfblk_fails_fast(const struct kfblk_disk *disk, const struct request *rq)
{
	return blk_noretry_request(rq) || READ_ONCE(disk->failing);
}

/* Adds tries to a request. Returns whether they have reached the limit. */
static bool kfblk_is_spent(struct request *rq, u32 tries)
{
	struct kfblk_pdu *pdu = blk_mq_rq_to_pdu(rq);

	pdu->tries += tries;
	return pdu->tries >= KFBLK_TRIES;
}

/*
 * Handles a request without a connection. A request that may wait is parked on the requeue list,
 * without a kick. So it is not retried in a loop, and does not delay requests that fail fast. The
 * task that ends the wait kicks the list once no task is in this function (kfblk_disk_kick()).
 */
static blk_status_t kfblk_unconnected(struct kfblk_disk *disk, struct request *rq)
{
	if (kfblk_fails_fast(disk, rq)) {
		this_cpu_inc(kfblk_counts_of(rq)->errors);
		return BLK_STS_TRANSPORT;
	}
	blk_mq_requeue_request(rq, false);
	return BLK_STS_OK;
}

static blk_status_t kfblk_queue_rq(struct blk_mq_hw_ctx *hctx, const struct blk_mq_queue_data *bd)
{
	struct kfblk_disk *disk = hctx->queue->queuedata;
	struct request *rq = bd->rq;
	struct kfblk_pdu *pdu = blk_mq_rq_to_pdu(rq);
	bool moves;
	u32 n;
	int ret;

	switch (req_op(rq)) {
	case REQ_OP_READ:
		break;
	case REQ_OP_FLUSH:
		if (!disk->device && !disk->commits)
			return BLK_STS_NOTSUPP;
		break;
	case REQ_OP_DISCARD:
	case REQ_OP_WRITE_ZEROES:
		if (!disk->device)
			return BLK_STS_NOTSUPP;
		break;
	case REQ_OP_WRITE:
		/* The block layer only warns. A write without the right would end the connection. */
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
	moves = !disk->device && req_op(rq) != REQ_OP_FLUSH;
	n = moves ? kfblk_map(rq, pdu->pieces) : 0;
	if (!n && moves)
		return BLK_STS_IOERR;
	if (!(rq->rq_flags & RQF_DONTPREP)) {
		pdu->tries = 0;
		rq->rq_flags |= RQF_DONTPREP;
	}
	blk_mq_start_request(rq);
	if (disk->device)
		ret = kfblk_send(hctx, rq);
	else if (!moves)
		ret = kfblk_flush(hctx, rq);
	else
		ret = kfblk_rs_queue(disk->owner, hctx->queue_num, rq->tag,
				     req_op(rq) == REQ_OP_WRITE,
				     disk->commits && rq->cmd_flags & REQ_FUA,
				     blk_rq_pos(rq) << SECTOR_SHIFT, pdu->pieces, n);
	switch (ret) {
	case 0:
		return BLK_STS_OK;
	case -EAGAIN:
		return BLK_STS_RESOURCE;
	case -ENOTCONN:
		return kfblk_unconnected(disk, rq);
	case -EREMOTEIO:
		if (!kfblk_is_spent(rq, KFBLK_FAULT))
			return BLK_STS_RESOURCE;
		this_cpu_inc(kfblk_counts_of(rq)->errors);
		return BLK_STS_IOERR;
	default:
		this_cpu_inc(kfblk_counts_of(rq)->errors);
		return errno_to_blk_status(ret);
	}
}

/* Ends a request with the target's error. Disables unsupported operations. */
static void kfblk_refused(struct request *rq, blk_status_t status)
{
	if (status == BLK_STS_NOTSUPP) {
		if (req_op(rq) == REQ_OP_WRITE_ZEROES)
			blk_queue_disable_write_zeroes(rq->q);
		else if (req_op(rq) == REQ_OP_DISCARD)
			blk_queue_disable_discard(rq->q);
		/* The caller has a fallback, so suppress the block layer's error message. */
		rq->rq_flags |= RQF_QUIET;
	}
	kfblk_end(rq, status);
}

/*
 * Retries a request. Once the disk is dead, the retry fails the request. A flush of persistent memory
 * may have found no place for its commits, and nothing tells when there is one: it waits.
 */
static void kfblk_retry(struct kfblk_disk *disk, struct request *rq)
{
	bool waits = disk->commits && req_op(rq) == REQ_OP_FLUSH;

	blk_mq_requeue_request(rq, !waits);
	if (waits)
		blk_mq_delay_kick_requeue_list(rq->q, KFBLK_FLUSH_MS);
}

static void kfblk_complete(struct request *rq)
{
	struct kfblk_disk *disk = rq->q->queuedata;
	struct kfblk_pdu *pdu = blk_mq_rq_to_pdu(rq);
	u32 tries = 0;

	switch (pdu->verdict) {
	case KFBLK_DONE:
		kfblk_end(rq, BLK_STS_OK);
		break;
	case KFBLK_ERROR:
		kfblk_refused(rq, pdu->status);
		break;
	case KFBLK_RENEWED:
		this_cpu_inc(kfblk_counts_of(rq)->retries);
		kfblk_retry(disk, rq);
		break;
	case KFBLK_BLAMED:
		tries = KFBLK_FAULT - 1;
		fallthrough;
	case KFBLK_SUSPECT:
		tries++;
		fallthrough;
	case KFBLK_AGAIN:
		if (kfblk_is_spent(rq, tries)) {
			kfblk_end(rq, BLK_STS_IOERR);
		} else if (kfblk_fails_fast(disk, rq)) {
			kfblk_end(rq, BLK_STS_TRANSPORT);
		} else {
			this_cpu_inc(kfblk_counts_of(rq)->retries);
			kfblk_retry(disk, rq);
		}
		break;
	default:
		kfblk_end(rq, BLK_STS_IOERR);
	}
}

static enum blk_eh_timer_return kfblk_timeout(struct request *rq)
{
	struct kfblk_disk *disk = rq->q->queuedata;
	struct kfblk_pdu *pdu = blk_mq_rq_to_pdu(rq);

	/* The flush of a large disk takes long. It is late only if no commit succeeds. */
	if (disk->commits && req_op(rq) == REQ_OP_FLUSH) {
		long now = atomic_long_read(&disk->progress);

		if (now != pdu->progress) {
			pdu->progress = now;
			return BLK_EH_RESET_TIMER;
		}
	}
	/* Ends the connection, which then ends the request. */
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

static void kfblk_look(struct work_struct *work)
{
	struct kfblk_disk *disk = container_of(to_delayed_work(work), struct kfblk_disk, look);

	kfblk_rs_look(disk->owner);
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
	 * Memory has no volatile cache, so a memory-backed export needs neither flush nor FUA.
	 * Persistent memory needs both: the target's processors have caches. A block-backed export
	 * has the features of its device.
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
	disk->commits = shape->commits;
	disk->counts = shape->counts;
	INIT_DELAYED_WORK(&disk->fast_fail, kfblk_fast_fail);
	INIT_DELAYED_WORK(&disk->look, kfblk_look);
	if (shape->device) {
		/* A key covers pages without gaps. */
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
	/* The queue may block, because it assigns keys. */
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
	/* Reference of the gendisk, dropped by kfblk_free_disk(). */
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

/* Removes the disk. No request comes after the return, and requests in flight have ended. */
void kfblk_disk_del(struct kfblk_disk *disk)
{
	del_gendisk(disk->gd);
}

/* Frees the disk, after kfblk_disk_del(), or if the disk was never added. */
void kfblk_disk_free(struct kfblk_disk *disk)
{
	bool added = test_bit(GD_ADDED, &disk->gd->state);

	cancel_delayed_work_sync(&disk->fast_fail);
	cancel_delayed_work_sync(&disk->look);
	put_disk(disk->gd);
	blk_mq_free_tag_set(&disk->set);
	/* If the disk was never added, the block layer does not call kfblk_free_disk(). */
	if (!added)
		kfblk_put(disk);
	kfblk_put(disk);
}

/* Holds requests back: no task is in kfblk_rs_queue() from the return until kfblk_disk_resume(). */
void kfblk_disk_quiesce(struct kfblk_disk *disk)
{
	blk_mq_quiesce_tagset(&disk->set);
}

void kfblk_disk_resume(struct kfblk_disk *disk)
{
	blk_mq_unquiesce_tagset(&disk->set);
	blk_mq_kick_requeue_list(disk->gd->queue);
}

/* Retries parked requests. All later requests see changes that were made before the call. */
void kfblk_disk_kick(struct kfblk_disk *disk)
{
	/* After this wait, requests that have not seen the change are parked. */
	blk_mq_wait_quiesce_done(&disk->set);
	blk_mq_kick_requeue_list(disk->gd->queue);
}

/* Starts the time, @ms milliseconds, after which requests no longer wait for a connection. */
void kfblk_disk_fail_in(struct kfblk_disk *disk, u64 ms)
{
	schedule_delayed_work(&disk->fast_fail, msecs_to_jiffies(min_t(u64, ms, INT_MAX)));
}

/* Lets requests wait for a connection again. Not concurrent with kfblk_disk_fail_in(). */
void kfblk_disk_fail_no_more(struct kfblk_disk *disk)
{
	cancel_delayed_work_sync(&disk->fast_fail);
	WRITE_ONCE(disk->failing, false);
}

void kfblk_disk_name(const struct kfblk_disk *disk, char *name, unsigned int size)
{
	strscpy(name, disk->gd->disk_name, size);
}

/* Ends a request with @verdict. Context: any. */
void kfblk_rq_end(struct kfblk_disk *disk, u32 queue, u32 tag, enum kfblk_verdict verdict)
{
	struct request *rq = blk_mq_tag_to_rq(disk->set.tags[queue], tag);
	struct kfblk_pdu *pdu = blk_mq_rq_to_pdu(rq);

	pdu->verdict = verdict;
	blk_mq_complete_request(rq);
}

/* Maps a target's errno to a status that does not make upper layers retry for ever. */
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

/* Returns the request's memory, valid until the request ends. Context: any. */
const struct kfblk_piece *kfblk_rq_pieces(struct kfblk_disk *disk, u32 queue, u32 tag, u32 *count)
{
	struct request *rq = blk_mq_tag_to_rq(disk->set.tags[queue], tag);
	struct kfblk_pdu *pdu = blk_mq_rq_to_pdu(rq);

	*count = kfblk_map(rq, pdu->pieces);
	return pdu->pieces;
}

/* Copies bytes between a request and @count @pieces. Context: any. */
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

/* Queues the disk's work in @ms milliseconds, if that is not due earlier. */
void kfblk_disk_look_in(struct kfblk_disk *disk, u32 ms)
{
	schedule_delayed_work(&disk->look, msecs_to_jiffies(ms));
}

/* Sets the capacity of the disk. */
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
	/* The last callers of wake_up_all() and module_put() may still be in this module's text. */
	synchronize_rcu_tasks();
	unregister_blkdev(kfblk_major, "kfblk");
	ida_destroy(&kfblk_ida);
}
