/* SPDX-License-Identifier: GPL-2.0 */
/*
 * One-sided operations of the kfi API. The rules for posting calls in
 * kfi_endpoint.h apply.
 */
#ifndef KFI_RMA_H
#define KFI_RMA_H

#include <kfabric.h>
#include <kfi_endpoint.h>

/**
 * struct kfi_rma_iov - a range of the peer's memory
 * @addr: address that the peer passed to the caller
 * @len: bytes
 * @key: key value
 */
struct kfi_rma_iov {
	u64	addr;
	size_t	len;
	u64	key;
};

/**
 * struct kfi_msg_rma - argument of kfi_readmsg(), kfi_writemsg() and kfi_commitmsg()
 * @type: selects the member of the union
 * @msg_iov: kernel addresses
 * @msg_biov: pages
 * @msg_sgl: a scatterlist
 * @desc: descriptors, one for each local piece
 * @iov_count: number of local pieces
 * @addr: not used by connected endpoints
 * @rma_iov: the peer's ranges, with as many bytes as the local pieces
 * @rma_iov_count: number of the peer's ranges, up to rma_iov_limit
 * @context: returned in the completion
 * @data: with KFI_REMOTE_CQ_DATA: data for the peer's completion
 */
struct kfi_msg_rma {
	enum kfi_iov_type			type;
	union {
		const struct kvec		*msg_iov;
		const struct bio_vec		*msg_biov;
		const struct scatterlist	*msg_sgl;
	};
	void					**desc;
	size_t					iov_count;
	kfi_addr_t				addr;
	const struct kfi_rma_iov		*rma_iov;
	size_t					rma_iov_count;
	void					*context;
	u64					data;
};

/**
 * struct kfi_ops_rma - calls for one-sided operations
 * @size: size of the structure in its provider's build, in bytes
 * @read: see kfi_read()
 * @readv: see kfi_readv()
 * @readbv: see kfi_readbv()
 * @readmsg: see kfi_readmsg()
 * @write: see kfi_write()
 * @writev: see kfi_writev()
 * @writebv: see kfi_writebv()
 * @writemsg: see kfi_writemsg()
 * @inject: see kfi_inject_write()
 * @writedata: see kfi_writedata()
 * @injectdata: see kfi_inject_writedata()
 * @readsgl: see kfi_readsgl()
 * @writesgl: see kfi_writesgl()
 * @commitmsg: see kfi_commitmsg()
 */
struct kfi_ops_rma {
	size_t	size;
	ssize_t	(*read)(struct kfid_ep *ep, void *buf, size_t len, void *desc, kfi_addr_t src_addr,
			u64 addr, u64 key, void *context);
	ssize_t	(*readv)(struct kfid_ep *ep, const struct kvec *iov, void **desc, size_t count,
			 kfi_addr_t src_addr, u64 addr, u64 key, void *context);
	ssize_t	(*readbv)(struct kfid_ep *ep, const struct bio_vec *biov, void **desc, size_t count,
			  kfi_addr_t src_addr, u64 addr, u64 key, void *context);
	ssize_t	(*readmsg)(struct kfid_ep *ep, const struct kfi_msg_rma *msg, u64 flags);
	ssize_t	(*write)(struct kfid_ep *ep, const void *buf, size_t len, void *desc,
			 kfi_addr_t dest_addr, u64 addr, u64 key, void *context);
	ssize_t	(*writev)(struct kfid_ep *ep, const struct kvec *iov, void **desc, size_t count,
			  kfi_addr_t dest_addr, u64 addr, u64 key, void *context);
	ssize_t	(*writebv)(struct kfid_ep *ep, const struct bio_vec *biov, void **desc,
			   size_t count, kfi_addr_t dest_addr, u64 addr, u64 key, void *context);
	ssize_t	(*writemsg)(struct kfid_ep *ep, const struct kfi_msg_rma *msg, u64 flags);
	ssize_t	(*inject)(struct kfid_ep *ep, const void *buf, size_t len, kfi_addr_t dest_addr,
			  u64 addr, u64 key);
	ssize_t	(*writedata)(struct kfid_ep *ep, const void *buf, size_t len, void *desc, u64 data,
			     kfi_addr_t dest_addr, u64 addr, u64 key, void *context);
	ssize_t	(*injectdata)(struct kfid_ep *ep, const void *buf, size_t len, u64 data,
			      kfi_addr_t dest_addr, u64 addr, u64 key);
	ssize_t	(*readsgl)(struct kfid_ep *ep, const struct scatterlist *sgl, void **desc,
			   size_t count, kfi_addr_t src_addr, u64 addr, u64 key, void *context);
	ssize_t	(*writesgl)(struct kfid_ep *ep, const struct scatterlist *sgl, void **desc,
			    size_t count, kfi_addr_t dest_addr, u64 addr, u64 key, void *context);
	ssize_t	(*commitmsg)(struct kfid_ep *ep, const struct kfi_msg_rma *msg, u64 flags);
};

/* Reads the peer's memory. */
static inline ssize_t kfi_read(struct kfid_ep *ep, void *buf, size_t len, void *desc,
			       kfi_addr_t src_addr, u64 addr, u64 key, void *context)
{
	return ep->rma->read(ep, buf, len, desc, src_addr, addr, key, context);
}

/* Reads into several pieces. */
static inline ssize_t kfi_readv(struct kfid_ep *ep, const struct kvec *iov, void **desc,
				size_t count, kfi_addr_t src_addr, u64 addr, u64 key, void *context)
{
	return ep->rma->readv(ep, iov, desc, count, src_addr, addr, key, context);
}

/* Reads into pages. */
static inline ssize_t kfi_readbv(struct kfid_ep *ep, const struct bio_vec *biov, void **desc,
				 size_t count, kfi_addr_t src_addr, u64 addr, u64 key,
				 void *context)
{
	return ep->rma->readbv(ep, biov, desc, count, src_addr, addr, key, context);
}

/* Reads into a scatterlist. */
static inline ssize_t kfi_readsgl(struct kfid_ep *ep, const struct scatterlist *sgl, void **desc,
				  size_t count, kfi_addr_t src_addr, u64 addr, u64 key,
				  void *context)
{
	return ep->rma->readsgl(ep, sgl, desc, count, src_addr, addr, key, context);
}

/* Reads, with flags: KFI_COMPLETION, KFI_FENCE. */
static inline ssize_t kfi_readmsg(struct kfid_ep *ep, const struct kfi_msg_rma *msg, u64 flags)
{
	return ep->rma->readmsg(ep, msg, flags);
}

/* Writes the peer's memory. */
static inline ssize_t kfi_write(struct kfid_ep *ep, const void *buf, size_t len, void *desc,
				kfi_addr_t dest_addr, u64 addr, u64 key, void *context)
{
	return ep->rma->write(ep, buf, len, desc, dest_addr, addr, key, context);
}

/* Writes from several pieces. */
static inline ssize_t kfi_writev(struct kfid_ep *ep, const struct kvec *iov, void **desc,
				 size_t count, kfi_addr_t dest_addr, u64 addr, u64 key,
				 void *context)
{
	return ep->rma->writev(ep, iov, desc, count, dest_addr, addr, key, context);
}

/* Writes from pages. */
static inline ssize_t kfi_writebv(struct kfid_ep *ep, const struct bio_vec *biov, void **desc,
				  size_t count, kfi_addr_t dest_addr, u64 addr, u64 key,
				  void *context)
{
	return ep->rma->writebv(ep, biov, desc, count, dest_addr, addr, key, context);
}

/* Writes from a scatterlist. */
static inline ssize_t kfi_writesgl(struct kfid_ep *ep, const struct scatterlist *sgl, void **desc,
				   size_t count, kfi_addr_t dest_addr, u64 addr, u64 key,
				   void *context)
{
	return ep->rma->writesgl(ep, sgl, desc, count, dest_addr, addr, key, context);
}

/*
 * Writes, with flags: KFI_COMPLETION, KFI_INJECT, KFI_REMOTE_CQ_DATA,
 * KFI_FENCE, KFI_DELIVERY_COMPLETE, KFI_COMMIT_COMPLETE.
 *
 * With KFI_DELIVERY_COMPLETE the write completes when its bytes are visible at
 * the target, with KFI_COMMIT_COMPLETE when they are durable there. Returns
 * -EOPNOTSUPP if the provider does not reach the level. If the target's memory
 * is not persistent, a durable write completes with EOPNOTSUPP, and the
 * connection stays. kshm writes nothing then; kverbs has written the bytes.
 */
static inline ssize_t kfi_writemsg(struct kfid_ep *ep, const struct kfi_msg_rma *msg, u64 flags)
{
	return ep->rma->writemsg(ep, msg, flags);
}

/*
 * Makes earlier writes of this endpoint to the range of @msg->rma_iov durable,
 * with flags: KFI_COMPLETION, KFI_REMOTE_CQ_DATA, KFI_FENCE. Moves no bytes:
 * @msg->iov_count is 0, else -EINVAL. With KFI_REMOTE_CQ_DATA the peer's
 * completion follows the commit.
 *
 * Returns -EOPNOTSUPP if the domain has no durable writes, -EMSGSIZE if the range
 * is longer than the domain's max_msg_size, and -ENOSYS if the endpoint's
 * provider has no commits. Completes with EOPNOTSUPP if the memory is
 * not persistent, EKEYREVOKED if the key has ended, EACCES if the key does not
 * permit a write to the range; the connection stays, but ends after refusals with
 * eight different keys, or 4,096 refusals.
 */
static inline ssize_t kfi_commitmsg(struct kfid_ep *ep, const struct kfi_msg_rma *msg, u64 flags)
{
	return KFI_CHECK_OP(ep->rma, struct kfi_ops_rma, commitmsg) ?
		ep->rma->commitmsg(ep, msg, flags) : -ENOSYS;
}

/*
 * Writes a few bytes, which are copied before the return. The write has a
 * completion only if it fails.
 */
static inline ssize_t kfi_inject_write(struct kfid_ep *ep, const void *buf, size_t len,
				       kfi_addr_t dest_addr, u64 addr, u64 key)
{
	return ep->rma->inject(ep, buf, len, dest_addr, addr, key);
}

/*
 * Writes, with data for a completion at the peer. The completion uses up one of
 * the peer's posted receives.
 */
static inline ssize_t kfi_writedata(struct kfid_ep *ep, const void *buf, size_t len, void *desc,
				    u64 data, kfi_addr_t dest_addr, u64 addr, u64 key,
				    void *context)
{
	return ep->rma->writedata(ep, buf, len, desc, data, dest_addr, addr, key, context);
}

/* Like kfi_inject_write(), but with data for a completion at the peer. */
static inline ssize_t kfi_inject_writedata(struct kfid_ep *ep, const void *buf, size_t len,
					   u64 data, kfi_addr_t dest_addr, u64 addr, u64 key)
{
	return ep->rma->injectdata(ep, buf, len, data, dest_addr, addr, key);
}

/* Number of ranges of a struct kfi_written. */
#define KFI_WRITTEN_RANGES 64

/*
 * The ranges that an endpoint has written since their last commit. A consumer that
 * commits everything at certain moments notes each posted write, and then commits
 * the ranges that kfi_written_take() returns, until it returns false. A range is
 * noted again if its commit was not posted, or completed with an error. Before a key
 * is revoked, its ranges are committed or forgotten: the peer ends a connection after
 * commits under eight keys that have ended. The consumer serializes the calls for one
 * structure.
 */
struct kfi_written;

/* Returns an empty set, or NULL. Context: process; may sleep. */
struct kfi_written *kfi_written_alloc(void);

/* Frees a set, or does nothing for NULL. Context: process. */
void kfi_written_free(struct kfi_written *written);

/*
 * Notes a posted write. Ranges that touch become one. If more than
 * KFI_WRITTEN_RANGES are needed, two of one key become one with the bytes between
 * them, which is harmless. Context: any.
 *
 * Returns -ENOSPC, and notes nothing, if the set is full and each range has another
 * key. The caller commits these, and then notes the write again.
 */
int kfi_written_note(struct kfi_written *written, const struct kfi_rma_iov *range);

/* Forgets the ranges of a key. Context: any. */
void kfi_written_forget(struct kfi_written *written, u64 key);

/*
 * Removes a range, or at most @most bytes of one, and stores it at @range.
 * @most is at most the domain's max_msg_size, and not 0. Returns false if there is
 * none. Context: any.
 */
bool kfi_written_take(struct kfi_written *written, size_t most, struct kfi_rma_iov *range);

#endif
