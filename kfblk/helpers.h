/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the C and the Rust of kfblk say to each other. The C is glue: to the block layer (block.c), to
 * configfs (configfs.c), to inline functions (helpers.c). Nothing there decides anything.
 */
#ifndef KFBLK_HELPERS_H
#define KFBLK_HELPERS_H

#include <linux/types.h>

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
	u32 piece;		/* bytes of contiguous memory, at most */
	u32 queues;
	u32 depth;		/* requests of a queue */
	u32 timeout_ms;
	bool read_only;
};

/* How a request ended. */
enum kfblk_verdict {
	KFBLK_DONE,
	KFBLK_AGAIN,		/* its connection has ended */
	KFBLK_BLAMED,		/* the same, and because of it */
	KFBLK_FAILED,
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
void kfblk_disk_name(const struct kfblk_disk *disk, char *name, unsigned int size);
void kfblk_rq_end(struct kfblk_disk *disk, u32 queue, u32 tag, enum kfblk_verdict verdict);

/* Called by block.c; written in Rust (src/disk/request.rs). */
int kfblk_rs_queue(void *owner, u32 queue, u32 tag, bool write, u64 pos,
		   struct kfblk_piece *pieces, u32 count);
void kfblk_rs_timeout(void *owner);

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
int kfblk_rs_store(enum kfblk_kind kind, void *object, u32 attr, const char *page, size_t len);
int kfblk_rs_link(void *port, void *subsystem);
void kfblk_rs_unlink(void *port, void *subsystem);

/* helpers.c */
struct workqueue_struct *kfblk_wq_alloc(const char *name);
void kfblk_wq_free(struct workqueue_struct *wq);
int kfblk_parse_addr(struct net *net, const char *addr, const char *port, u8 *out, u32 *len);
unsigned int kfblk_noio_save(void);
void kfblk_noio_restore(unsigned int flags);
void kfblk_random(void *data, unsigned long len);
unsigned long kfblk_spare_pages(void);
bool kfblk_breathe(void);
u32 kfblk_cpus(void);
void kfblk_node_name(char *name, unsigned int size);

#endif
