/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The RDMA headers for the Rust side, with helpers for their inline functions and macros. Helpers
 * contain no policy.
 */
#ifndef KVERBS_HELPERS_H
#define KVERBS_HELPERS_H

#include <rdma/ib_verbs.h>
#include <rdma/rdma_cm.h>
#include <rdma/ib_cm.h>
#include <rdma/ib_cache.h>

/* Devices. */
void kverbs_device_get(struct ib_device *dev);
void kverbs_device_put(struct ib_device *dev);
void kverbs_device_name(struct ib_device *dev, char *name, unsigned int size);

/* What the log says of a device. */
enum kverbs_trouble {
	KVERBS_TROUBLE_BOUNCES,		/* The device is not used. */
	KVERBS_TROUBLE_IWARP,		/* The device is not used. */
	KVERBS_TROUBLE_REVOKE,
	KVERBS_TROUBLE_DEREGISTER,
	KVERBS_TROUBLE_LOST,		/* Of a device that is removed. */
};
/* Writes a line with the device's name to the log. Each kind has a rate limit. */
void kverbs_say(struct ib_device *dev, enum kverbs_trouble kind, int err);

/* Returns whether the administrator allows durable writes. */
bool kverbs_commits(void);

void *kverbs_client_data(struct ib_device *dev, struct ib_client *client);
/* Returns whether the DMA layer copies between mapped memory and the device, or flushes caches. */
bool kverbs_bounces(struct ib_device *dev);
bool kverbs_is_rc_capable(struct ib_device *dev, u32 port);
bool kverbs_is_iwarp(struct ib_device *dev);

/* Links of a port: InfiniBand, Ethernet with RoCE up to version 1 or 2, or iWARP. */
enum kverbs_link {
	KVERBS_LINK_OTHER,
	KVERBS_LINK_IB,
	KVERBS_LINK_ROCE_V1,
	KVERBS_LINK_ROCE_V2,
	KVERBS_LINK_IWARP,
};
enum kverbs_link kverbs_port_link(struct ib_device *dev, u32 port);

/*
 * An entry of a port's GID table: the GID, its enum ib_gid_type, and the index of its interface, or
 * 0 without an interface in the namespace.
 */
struct kverbs_gid {
	u8 gid[16];
	u32 type;
	u32 ifindex;
};

/*
 * Stores entry @index of a port's GID table. Returns -ENOENT if the entry is empty, or -ERANGE if
 * it is past the table's end.
 */
int kverbs_read_gid(struct ib_device *dev, u32 port, int index, struct net *net,
		    struct kverbs_gid *out);

/* An address of an IPoIB interface, and the GID in the interface's hardware address. */
struct kverbs_ipoib_addr {
	u8 gid[16];
	struct sockaddr_storage addr;
};

/*
 * Stores the addresses of @net's IPoIB interfaces that are up, at most @max. Returns their number,
 * which may be larger.
 */
u32 kverbs_ipoib_addrs(struct net *net, struct kverbs_ipoib_addr *out, u32 max);
/* Stores the addresses of the interface of a port in @net, like kverbs_ipoib_addrs(). */
u32 kverbs_port_addrs(struct ib_device *dev, u32 port, struct net *net,
		      struct kverbs_ipoib_addr *out, u32 max);
/*
 * Stores the first address of the interface of a port. Returns the interface's namespace, with a
 * reference, or an error pointer.
 */
struct net *kverbs_port_addr(struct ib_device *dev, u32 port, struct sockaddr_storage *addr);
/*
 * Stores the GIDs of a connection's only path, 16 bytes each; zeros on iWARP. Returns -ENOTCONN if
 * the connection has no path, or two.
 */
int kverbs_path_gids(const struct rdma_cm_id *id, u8 *local, u8 *peer);
/* Stores the source address that @net's routes choose towards @dst. */
int kverbs_route_source(struct net *net, const struct sockaddr_storage *dst,
			struct sockaddr_storage *src);

/*
 * Charges one object (or, as a @handle, one opened device) to the current task's rdma cgroup, and
 * stores a reference to the cgroup in *@cg. Stores NULL if the kernel has no such cgroups. Returns
 * -EAGAIN if the cgroup's limit is reached.
 */
int kverbs_cg_charge(struct ib_device *dev, bool handle, void **cg);
void kverbs_cg_uncharge(struct ib_device *dev, bool handle, void *cg);

/* Returns the bytes of the current task's share. With CAP_SYS_RESOURCE, the share is not limited. */
u64 kverbs_user_limit(void);

/* Queues. */
int kverbs_post_send(struct ib_qp *qp, const struct ib_send_wr *wr,
		     const struct ib_send_wr **bad);
int kverbs_post_recv(struct ib_qp *qp, const struct ib_recv_wr *wr,
		     const struct ib_recv_wr **bad);
int kverbs_poll_cq(struct ib_cq *cq, int n, struct ib_wc *wc);
int kverbs_req_notify_cq(struct ib_cq *cq);
struct ib_cq *kverbs_create_cq(struct ib_device *dev, ib_comp_handler handler, void *context,
			       int cqe);
/*
 * Destroys a queue of kverbs_create_cq(). If a queue pair that stays uses the queue, or the driver
 * refuses, returns false: the handler may be called at any time.
 */
bool kverbs_destroy_cq(struct ib_cq *cq);
/*
 * Destroys a queue pair. If the driver refuses, logs it, keeps this module loaded and returns the
 * error: the queue pair, its protection domain and its context may be used at any time.
 */
int kverbs_try_destroy_qp(struct ib_qp *qp);
/* Moves a new RC queue pair to RTS, connected to itself. */
int kverbs_self_connect(struct ib_qp *qp, u32 port);
/* The connection of a queue pair of an iWARP device with another queue pair of this host. */
struct kverbs_loop;
/*
 * Connects a new queue pair of an iWARP device, for local requests, through the connection manager.
 * May sleep, for 10 s. Returns an error pointer if that fails. kverbs_loop_free() is called before
 * the queue pair is destroyed.
 */
struct kverbs_loop *kverbs_loop_new(struct ib_qp *qp, struct ib_cq *cq, u32 port);
void kverbs_loop_free(struct kverbs_loop *loop);
enum kverbs_ended {
	KVERBS_ENDED,
	/* The device did not flush in time. */
	KVERBS_ENDED_LATE,
	/*
	 * The driver refused, as kverbs_try_destroy_qp() says. The queue pair moved to RESET before, if
	 * the driver let it; on iWARP it did not.
	 */
	KVERBS_NOT_ENDED,
};
/*
 * Destroys a queue pair and its completion queue of kverbs_alloc_cq(), in bounded time. If the device
 * @flushes, waits up to ten seconds until all posted work requests have completed. No completion is
 * handled after the return.
 */
enum kverbs_ended kverbs_destroy_qp(struct ib_qp *qp, struct ib_cq *cq, bool flushes);

/*
 * Allocates a completion queue whose completions (struct ib_cqe) a worker handles, or a soft interrupt
 * with @softirq (with PREEMPT_RT a worker). kverbs_free_cq() frees it. Callers do not use cq->cq_context.
 * May sleep.
 */
struct ib_cq *kverbs_alloc_cq(struct ib_device *dev, int cqe, bool softirq, const char *caller);
/* Frees a completion queue without a queue pair, and waits for its handlers. May sleep. */
void kverbs_free_cq(struct ib_cq *cq);
/* Waits for the handlers of a completion queue that stays with its queue pair. None runs later. May sleep. */
void kverbs_abandon_cq(struct ib_cq *cq);

/* Mappings of memory. The device reads, and if @writes, it also writes. */
bool kverbs_uses_virt_dma(struct ib_device *dev);
u64 kverbs_dma_map_page(struct ib_device *dev, struct page *page, unsigned long offset,
			size_t size, bool writes);
void kverbs_dma_unmap_page(struct ib_device *dev, u64 addr, size_t size,
			   bool writes);
int kverbs_dma_mapping_error(struct ib_device *dev, u64 addr);
u64 kverbs_dma_map_single(struct ib_device *dev, void *ptr, size_t size,
			  bool writes);
void kverbs_dma_unmap_single(struct ib_device *dev, u64 addr, size_t size,
			     bool writes);
void kverbs_dma_sync_for_device(struct ib_device *dev, u64 addr, size_t size,
				bool writes);
void kverbs_dma_sync_for_cpu(struct ib_device *dev, u64 addr, size_t size, bool writes);
unsigned int kverbs_dma_max_seg_size(struct ib_device *dev);
u32 kverbs_dma_max_page(struct ib_device *dev);
void kverbs_sg_init(struct scatterlist *sg, unsigned int n);
void kverbs_sg_set(struct scatterlist *sg, struct page *page, unsigned int len,
		   unsigned int offset);
void kverbs_sg_end(struct scatterlist *sg);
void kverbs_sg_unend(struct scatterlist *sg);
int kverbs_dma_map_sg(struct ib_device *dev, struct scatterlist *sg, int n,
		      bool writes);
void kverbs_dma_unmap_sg(struct ib_device *dev, struct scatterlist *sg, int n,
			 bool writes);
/*
 * Deregisters a region. After a success, no peer's write is executed through its key. May sleep.
 */
int kverbs_dereg_mr(struct ib_mr *mr);
void kverbs_rotate_key(struct ib_mr *mr, u8 key);
/* Returns whether the rights of a registration of user memory can be changed in place. */
bool kverbs_sets_access(struct ib_device *dev);
int kverbs_set_access(struct ib_mr *mr, int access);

u32 kverbs_random(void);

/* Return a time in seconds that never goes back, and the seconds for which key values rest. */
u32 kverbs_seconds(void);
u32 kverbs_key_rest(void);

/* Number of regions of each device that may rest until their key values come again. */
u32 kverbs_resting_regions(void);

/* Values of the parameter "revoke". */
enum kverbs_revoke {
	KVERBS_REVOKE_AUTO,
	KVERBS_REVOKE_DEREGISTER,
	KVERBS_REVOKE_INVALIDATE,
};

/* The parameter "revoke": enum kverbs_revoke. */
u32 kverbs_revoke(void);

/* The device's enum rdma_driver_id. */
u32 kverbs_driver(struct ib_device *dev);

/* The driver by whose policies keys are treated (parameter as_driver). */
u32 kverbs_policy_driver(struct ib_device *dev);

/* Returns whether the kernel can write cache lines back to persistent memory. */
bool kverbs_writes_back(void);
/* Writes the cache lines of bytes from the page's start plus @offset on back, without a fence. */
void kverbs_write_back(const struct page *page, size_t offset, size_t len);
/* Keeps the task on its processor, until kverbs_leave(). The task may sleep. */
void kverbs_stay(void);
void kverbs_leave(void);
/* Waits until the write-backs of this processor have reached the persistence domain. */
void kverbs_durable_fence(void);
void kverbs_cond_resched(void);

/* Returns a reference to the memory cgroup of the current task, or NULL without memory cgroups. */
struct mem_cgroup *kverbs_memcg_get(void);
void kverbs_memcg_put(struct mem_cgroup *memcg);
/* Charges the current task's memory to @memcg from now on. Returns the former value. */
struct mem_cgroup *kverbs_memcg_enter(struct mem_cgroup *memcg);

#ifdef CONFIG_KCOV
/*
 * Begins to record the executed code for the tracer of the provider's callbacks. Returns false if
 * it did not begin. The caller calls kverbs_cov_stop() if, and only if, this returned true.
 */
bool kverbs_cov_start(void);
void kverbs_cov_stop(void);
#endif

#endif
