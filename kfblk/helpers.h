/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the C and the Rust of kfblk say to each other. The C is glue: to the block layer (block.c), to
 * configfs (configfs.c), to inline functions (helpers.c). Nothing there decides anything.
 */
#ifndef KFBLK_HELPERS_H
#define KFBLK_HELPERS_H

#include <linux/types.h>

/* Pieces that memory for a request of a device is in, at most. */
#define KFBLK_RUNS	4

struct file;
struct kfblk_bio;
struct net;
struct page;
struct workqueue_struct;
struct kfblk_disk;

/* A piece of a request's memory; the Rust side has it as LentPiece. */
struct kfblk_piece {
	struct page *page;
	u32 offset;
	u32 len;
	u64 mapped;
};

/* What a disk looks like. */
struct kfblk_shape {
	u64 capacity;		/* bytes */
	u32 block_size;		/* bytes */
	u32 chunk;		/* bytes; no request goes across a multiple of it */
	u32 piece;		/* bytes of contiguous memory, at most; not of a device */
	u32 queues;
	u32 depth;		/* requests of a queue */
	u32 timeout_ms;
	u32 physical;		/* bytes; as what follows */
	u32 io_min;
	u32 io_opt;
	u32 request;		/* of the longest; 0: as long as a chunk */
	u32 discard;
	u32 granularity;
	u32 zeroes;
	bool read_only;
	bool device;		/* its requests go to kfblk_rs_send() */
	bool cache;
	bool fua;
	bool rotational;
};

/* How a request ended. */
enum kfblk_verdict {
	KFBLK_DONE,
	KFBLK_AGAIN,		/* its connection has ended */
	KFBLK_BLAMED,		/* the same, and because of it */
	KFBLK_FAILED,
	KFBLK_SUSPECT,		/* its connection has ended, and had served others */
	/* With the target's own errno. */
	KFBLK_ERROR,
};

/* What is to be done with a device; the numbers are those of pure/src/blk/device.rs. */
#define KFBLK_PAST_CACHE	1
#define KFBLK_KEEP_ROOM		2

struct kfblk_order {
	void *owner;
	u64 pos;		/* bytes */
	u32 len;		/* bytes */
	u32 slot;
	u8 op;
	u8 flags;
	bool moves;
};

/* What the device behind an export looks like. */
struct kfblk_looks {
	u32 block_size;		/* bytes */
	u32 physical;		/* bytes */
	u32 io_min;		/* bytes */
	u32 io_opt;		/* bytes */
	u32 discard;		/* sectors */
	u32 granularity;	/* bytes */
	u32 zeroes;		/* sectors */
	bool cache;
	bool fua;
	bool rotational;
	bool read_only;
	bool zoned;
};

/* block.c */
int kfblk_block_init(void);
void kfblk_block_exit(void);
struct kfblk_disk *kfblk_disk_new(void *owner, const struct kfblk_shape *shape);
int kfblk_disk_add(struct kfblk_disk *disk);
void kfblk_disk_del(struct kfblk_disk *disk);
void kfblk_disk_free(struct kfblk_disk *disk);
void kfblk_disk_quiesce(struct kfblk_disk *disk);
void kfblk_disk_resume(struct kfblk_disk *disk);
void kfblk_disk_kick(struct kfblk_disk *disk);
void kfblk_disk_fail_in(struct kfblk_disk *disk, u64 ms);
void kfblk_disk_fail_no_more(struct kfblk_disk *disk);
void kfblk_disk_name(const struct kfblk_disk *disk, char *name, unsigned int size);
void kfblk_rq_end(struct kfblk_disk *disk, u32 queue, u32 tag, enum kfblk_verdict verdict);

u64 kfblk_disk_capacity(const struct kfblk_disk *disk);
void kfblk_disk_resize(struct kfblk_disk *disk, u64 capacity);
void kfblk_rq_fail(struct kfblk_disk *disk, u32 queue, u32 tag, int err);
const struct kfblk_piece *kfblk_rq_pieces(struct kfblk_disk *disk, u32 queue, u32 tag, u32 *count);
void kfblk_rq_copy(struct kfblk_disk *disk, u32 queue, u32 tag,
		   const struct kfblk_piece *pieces, u32 count, bool to_request);

/*
 * Called by block.c; written in Rust (src/disk/request.rs). Of what they return -EAGAIN means later,
 * -ENOTCONN that there is no connection now, and -EREMOTEIO later, if it is not the request's own fault.
 */
int kfblk_rs_queue(void *owner, u32 queue, u32 tag, bool write, u64 pos,
		   struct kfblk_piece *pieces, u32 count);
int kfblk_rs_send(void *owner, u32 queue, u32 tag, const struct kfblk_order *order);
void kfblk_rs_timeout(void *owner);

/* bdev.c */
struct file *kfblk_bdev_open(const char *path, bool write, void *holder);
void kfblk_bdev_close(struct file *file);
u64 kfblk_bdev_capacity(struct file *file);
u64 kfblk_bdev_seq(struct file *file);
void kfblk_bdev_looks(struct file *file, struct kfblk_looks *looks);
struct kfblk_bio *kfblk_bio_new(void);
void kfblk_bio_free(struct kfblk_bio *of);
void kfblk_bio_submit(struct kfblk_bio *of, struct file *file, const struct kfblk_order *order,
		      const struct kfblk_piece *pieces, u32 count);

/* Called by bdev.c; written in Rust (src/export/device.rs). */
void kfblk_rs_bio_end(void *owner, u32 slot, int err);

/* configfs.c */
int kfblk_configfs_init(void);
void kfblk_configfs_exit(void);

/* Called by configfs.c; written in Rust (src/config.rs). */
enum kfblk_kind {
	KFBLK_SUBSYSTEM,
	KFBLK_PORT,
	KFBLK_DISK,
};

void *kfblk_rs_make(enum kfblk_kind kind, const char *name, int *err);
void kfblk_rs_end(enum kfblk_kind kind, void *object);
void kfblk_rs_put(enum kfblk_kind kind, void *object);
ssize_t kfblk_rs_show(enum kfblk_kind kind, void *object, u32 attr, char *page);
ssize_t kfblk_rs_show_all(void *object, u32 attr, void *buf, size_t len);
int kfblk_rs_store(enum kfblk_kind kind, void *object, u32 attr, const char *page, size_t len);
int kfblk_rs_link(void *port, void *subsystem);
void kfblk_rs_unlink(void *port, void *subsystem);

/* helpers.c */
struct workqueue_struct *kfblk_wq_alloc(const char *name);
void kfblk_wq_free(struct workqueue_struct *wq);
int kfblk_parse_addr(struct net *net, const char *addr, const char *port, u8 *out, u32 *len);
void kfblk_random(void *data, unsigned long len);
unsigned long kfblk_spare_pages(void);
bool kfblk_breathe(void);
u32 kfblk_cpus(void);
void kfblk_node_name(char *name, unsigned int size);

#endif
