/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Interface between the C and the Rust of kfblk. The C is glue: to the block layer (block.c), to
 * configfs (configfs.c), and to inline functions (helpers.c). Decisions are made in Rust.
 *
 * bindgen generates Rust bindings of this header (src/sys/raw.rs).
 */
#ifndef KFBLK_HELPERS_H
#define KFBLK_HELPERS_H

#include <linux/percpu.h>
#include <linux/types.h>

/* Numbers of operations and their flags, generated from pure/src/blk/device.rs. */
#include "ops_generated.h"

/* Maximum number of pieces of the memory for a block-backed request. */
#define KFBLK_RUNS	4

struct file;
struct kfblk_bio;
struct kfblk_counts;
struct net;
struct page;
struct workqueue_struct;
struct kfblk_disk;

/* A piece of a request's memory; LentPiece in kfabric/src/memory/borrowed.rs. */
struct kfblk_piece {
	struct page *page;
	u32 offset;
	u32 len;
	u64 mapped;
};

/* Counters of a queue's requests. */
struct kfblk_counts {
	u64 reads;		/* requests that succeeded */
	u64 writes;		/* requests that succeeded */
	u64 read_bytes;
	u64 written_bytes;
	u64 others;		/* flushes, discards and writes of zeroes that succeeded */
	u64 errors;		/* requests that failed */
	u64 retries;		/* requests sent again after the end of a connection; 0 at a target */
	u64 commits;		/* ranges and writes made durable in persistent memory; 0 at a target */
};

/* Properties of a disk. */
struct kfblk_shape {
	/* One element for each queue. */
	struct kfblk_counts __percpu *counts;
	u64 capacity;		/* bytes */
	u32 block_size;		/* bytes */
	u32 chunk;		/* bytes; no request goes across a multiple of it */
	u32 piece;		/* bytes of contiguous memory, at most; memory-backed only */
	u32 queues;
	u32 depth;		/* requests of a queue */
	u32 timeout_ms;
	u32 physical;		/* bytes, as all fields up to zeroes */
	u32 io_min;
	u32 io_opt;
	u32 request;		/* longest request; 0: a chunk */
	u32 discard;
	u32 granularity;
	u32 zeroes;
	bool read_only;
	bool device;		/* block-backed: requests go to kfblk_rs_send() */
	bool cache;
	bool fua;
	bool rotational;
	bool commits;		/* persistent memory: flushes go to kfblk_rs_flush() */
};

/* Outcome of a request. */
enum kfblk_verdict {
	KFBLK_DONE,
	KFBLK_AGAIN,		/* the connection has ended */
	KFBLK_BLAMED,		/* the request has ended the connection */
	KFBLK_FAILED,
	KFBLK_SUSPECT,		/* the connection has ended, and had served others */
	/* The request ends with the target's errno. */
	KFBLK_ERROR,
	KFBLK_RENEWED,		/* the connection was replaced, without a fault */
};

/* A request to a block-backed export or its device. */
struct kfblk_order {
	void *owner;		/* argument of kfblk_rs_bio_end() */
	u64 pos;		/* bytes */
	u32 len;		/* bytes */
	u32 slot;		/* the owner's number */
	u8 op;			/* enum kfblk_op */
	u8 flags;		/* enum kfblk_op_flag */
	bool moves;		/* the request has a payload */
};

/* Properties of the block device behind an export. */
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

/* Kinds of log lines, each with a rate limit of its own. */
enum kfblk_log {
	KFBLK_LOG_DISK,
	KFBLK_LOG_CLIENT,
	KFBLK_LOG_REFUSAL,
	KFBLK_LOG_PORT,
	KFBLK_LOG_RENEWAL,
	KFBLK_LOG_KINDS,
};

/* block.c */
int kfblk_block_init(void);
struct kfblk_counts __percpu *kfblk_counts_new(u32 queues);
void kfblk_counts_free(struct kfblk_counts __percpu *counts);
void kfblk_counts_add(const struct kfblk_counts __percpu *counts, u32 queue,
		      struct kfblk_counts *sum);
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

void kfblk_disk_add_commits(struct kfblk_disk *disk, u32 queue, u32 count);
u64 kfblk_disk_capacity(const struct kfblk_disk *disk);
void kfblk_disk_look_in(struct kfblk_disk *disk, u32 ms);
void kfblk_disk_resize(struct kfblk_disk *disk, u64 capacity);
void kfblk_rq_fail(struct kfblk_disk *disk, u32 queue, u32 tag, int err);
const struct kfblk_piece *kfblk_rq_pieces(struct kfblk_disk *disk, u32 queue, u32 tag, u32 *count);
void kfblk_rq_copy(struct kfblk_disk *disk, u32 queue, u32 tag,
		   const struct kfblk_piece *pieces, u32 count, bool to_request);

/*
 * Called by block.c; written in Rust (src/disk/). They return 0 or:
 * - -EAGAIN if the request must be retried later;
 * - -ENOTCONN if there is no connection;
 * - -EREMOTEIO if the request must be retried later, and may itself be the cause.
 */
int kfblk_rs_queue(void *owner, u32 queue, u32 tag, bool write, bool durable, u64 pos,
		   struct kfblk_piece *pieces, u32 count);
int kfblk_rs_flush(void *owner, u32 queue, u32 tag);
int kfblk_rs_send(void *owner, u32 queue, u32 tag, const struct kfblk_order *order);
void kfblk_rs_timeout(void *owner);
void kfblk_rs_look(void *owner);

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

/* Called by bdev.c; written in Rust (src/export/block/). */
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

/* Attributes of the folders of each kind. */
enum kfblk_subsystem_attr {
	KFBLK_SUBSYSTEM_ATTR_SIZE,
	KFBLK_SUBSYSTEM_ATTR_READ_ONLY,
	KFBLK_SUBSYSTEM_ENABLE,
	KFBLK_SUBSYSTEM_CLIENTS,
	KFBLK_SUBSYSTEM_FENCE,
	KFBLK_SUBSYSTEM_ADMIT,
	KFBLK_SUBSYSTEM_ATTR_ALLOW_ANY_HOST,
	KFBLK_SUBSYSTEM_AUTH_KEY,
	KFBLK_SUBSYSTEM_ALLOWED_HOSTS,
	KFBLK_SUBSYSTEM_STATISTICS,
	KFBLK_SUBSYSTEM_DEVICE_PATH,
	KFBLK_SUBSYSTEM_REVALIDATE_SIZE,
	KFBLK_SUBSYSTEM_DEVICE_UUID,
	KFBLK_SUBSYSTEM_ATTR_PMEM,
};

enum kfblk_port_attr {
	KFBLK_PORT_ADDR_TRTYPE,
	KFBLK_PORT_ADDR_TRADDR,
	KFBLK_PORT_ADDR_TRSVCID,
};

/* The attributes up to KFBLK_DISK_CLIENT are texts. */
enum kfblk_disk_attr {
	KFBLK_DISK_ADDR_TRTYPE,
	KFBLK_DISK_ADDR_TRADDR,
	KFBLK_DISK_ADDR_TRSVCID,
	KFBLK_DISK_SUBSYSTEM,
	KFBLK_DISK_CLIENT,
	KFBLK_DISK_NR_IO_QUEUES,
	KFBLK_DISK_CTRL_LOSS_TMO,
	KFBLK_DISK_RECONNECT_DELAY,
	KFBLK_DISK_ENABLE,
	KFBLK_DISK_STATE,
	KFBLK_DISK_DEVICE,
	KFBLK_DISK_AUTH_KEY,
	KFBLK_DISK_FAST_IO_FAIL_TMO,
	KFBLK_DISK_STATISTICS,
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
int kfblk_parse_addr(struct net *net, const char *addr, const char *port, u8 *out, u32 *len);
void kfblk_random(void *data, unsigned long len);
unsigned long kfblk_spare_pages(void);
bool kfblk_breathe(void);
u32 kfblk_cpus(void);
void kfblk_node_name(char *name, unsigned int size);
bool kfblk_may_log(enum kfblk_log kind);

#endif
