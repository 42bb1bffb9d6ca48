/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Tagged messages of the kfi API. The rules for posting calls in kfi_endpoint.h
 * apply. If the provider lacks KFI_TAGGED, all calls return -ENOSYS.
 */
#ifndef KFI_TAGGED_H
#define KFI_TAGGED_H

#include <kfabric.h>
#include <kfi_endpoint.h>

/*
 * Flags with KFI_PEEK: reserve the message for this context; discard a reserved
 * message.
 */
#define KFI_CLAIM	(1ULL << 59)
#define KFI_DISCARD	(1ULL << 58)

/**
 * struct kfi_msg_tagged - argument of kfi_tsendmsg() and kfi_trecvmsg()
 * @type: selects the member of the union
 * @msg_iov: kernel addresses
 * @msg_biov: pages
 * @msg_sgl: a scatterlist
 * @desc: descriptors, one for each piece
 * @iov_count: number of pieces
 * @addr: the peer
 * @tag: the tag
 * @ignore: mask of tag bits that are not compared
 * @context: returned in the completion
 * @data: with KFI_REMOTE_CQ_DATA: data for the peer's completion
 */
struct kfi_msg_tagged {
	enum kfi_iov_type			type;
	union {
		const struct kvec		*msg_iov;
		const struct bio_vec		*msg_biov;
		const struct scatterlist	*msg_sgl;
	};
	void					**desc;
	size_t					iov_count;
	kfi_addr_t				addr;
	u64					tag;
	u64					ignore;
	void					*context;
	u64					data;
};

/**
 * struct kfi_ops_tagged - calls for tagged messages
 * @size: size of the structure in its provider's build, in bytes
 * @recv: see kfi_trecv()
 * @recvv: see kfi_trecvv()
 * @recvbv: see kfi_trecvbv()
 * @recvmsg: see kfi_trecvmsg()
 * @send: see kfi_tsend()
 * @sendv: see kfi_tsendv()
 * @sendbv: see kfi_tsendbv()
 * @sendmsg: see kfi_tsendmsg()
 * @inject: see kfi_tinject()
 * @senddata: see kfi_tsenddata()
 * @injectdata: see kfi_tinjectdata()
 * @recvsgl: see kfi_trecvsgl()
 * @sendsgl: see kfi_tsendsgl()
 */
struct kfi_ops_tagged {
	size_t	size;
	ssize_t	(*recv)(struct kfid_ep *ep, void *buf, size_t len, void *desc, kfi_addr_t src_addr,
			u64 tag, u64 ignore, void *context);
	ssize_t	(*recvv)(struct kfid_ep *ep, const struct kvec *iov, void **desc, size_t count,
			 kfi_addr_t src_addr, u64 tag, u64 ignore, void *context);
	ssize_t	(*recvbv)(struct kfid_ep *ep, const struct bio_vec *biov, void **desc, size_t count,
			  kfi_addr_t src_addr, u64 tag, u64 ignore, void *context);
	ssize_t	(*recvmsg)(struct kfid_ep *ep, const struct kfi_msg_tagged *msg, u64 flags);
	ssize_t	(*send)(struct kfid_ep *ep, const void *buf, size_t len, void *desc,
			kfi_addr_t dest_addr, u64 tag, void *context);
	ssize_t	(*sendv)(struct kfid_ep *ep, const struct kvec *iov, void **desc, size_t count,
			 kfi_addr_t dest_addr, u64 tag, void *context);
	ssize_t	(*sendbv)(struct kfid_ep *ep, const struct bio_vec *biov, void **desc, size_t count,
			  kfi_addr_t dest_addr, u64 tag, void *context);
	ssize_t	(*sendmsg)(struct kfid_ep *ep, const struct kfi_msg_tagged *msg, u64 flags);
	ssize_t	(*inject)(struct kfid_ep *ep, const void *buf, size_t len, kfi_addr_t dest_addr,
			  u64 tag);
	ssize_t	(*senddata)(struct kfid_ep *ep, const void *buf, size_t len, void *desc, u64 data,
			    kfi_addr_t dest_addr, u64 tag, void *context);
	ssize_t	(*injectdata)(struct kfid_ep *ep, const void *buf, size_t len, u64 data,
			      kfi_addr_t dest_addr, u64 tag);
	ssize_t	(*recvsgl)(struct kfid_ep *ep, const struct scatterlist *sgl, void **desc,
			   size_t count, kfi_addr_t src_addr, u64 tag, u64 ignore, void *context);
	ssize_t	(*sendsgl)(struct kfid_ep *ep, const struct scatterlist *sgl, void **desc,
			   size_t count, kfi_addr_t dest_addr, u64 tag, void *context);
};

/* Posts a receive of a tagged message. */
static inline ssize_t kfi_trecv(struct kfid_ep *ep, void *buf, size_t len, void *desc,
				kfi_addr_t src_addr, u64 tag, u64 ignore, void *context)
{
	return ep->tagged->recv(ep, buf, len, desc, src_addr, tag, ignore, context);
}

/* Posts a tagged receive into several pieces. */
static inline ssize_t kfi_trecvv(struct kfid_ep *ep, const struct kvec *iov, void **desc,
				 size_t count, kfi_addr_t src_addr, u64 tag, u64 ignore,
				 void *context)
{
	return ep->tagged->recvv(ep, iov, desc, count, src_addr, tag, ignore, context);
}

/* Posts a tagged receive into pages. */
static inline ssize_t kfi_trecvbv(struct kfid_ep *ep, const struct bio_vec *biov, void **desc,
				  size_t count, kfi_addr_t src_addr, u64 tag, u64 ignore,
				  void *context)
{
	return ep->tagged->recvbv(ep, biov, desc, count, src_addr, tag, ignore, context);
}

/* Posts a tagged receive into a scatterlist. */
static inline ssize_t kfi_trecvsgl(struct kfid_ep *ep, const struct scatterlist *sgl, void **desc,
				   size_t count, kfi_addr_t src_addr, u64 tag, u64 ignore,
				   void *context)
{
	return ep->tagged->recvsgl(ep, sgl, desc, count, src_addr, tag, ignore, context);
}

/* Posts a tagged receive, with flags. */
static inline ssize_t kfi_trecvmsg(struct kfid_ep *ep, const struct kfi_msg_tagged *msg, u64 flags)
{
	return ep->tagged->recvmsg(ep, msg, flags);
}

/* Sends a tagged message. */
static inline ssize_t kfi_tsend(struct kfid_ep *ep, const void *buf, size_t len, void *desc,
				kfi_addr_t dest_addr, u64 tag, void *context)
{
	return ep->tagged->send(ep, buf, len, desc, dest_addr, tag, context);
}

/* Sends a tagged message from several pieces. */
static inline ssize_t kfi_tsendv(struct kfid_ep *ep, const struct kvec *iov, void **desc,
				 size_t count, kfi_addr_t dest_addr, u64 tag, void *context)
{
	return ep->tagged->sendv(ep, iov, desc, count, dest_addr, tag, context);
}

/* Sends a tagged message from pages. */
static inline ssize_t kfi_tsendbv(struct kfid_ep *ep, const struct bio_vec *biov, void **desc,
				  size_t count, kfi_addr_t dest_addr, u64 tag, void *context)
{
	return ep->tagged->sendbv(ep, biov, desc, count, dest_addr, tag, context);
}

/* Sends a tagged message from a scatterlist. */
static inline ssize_t kfi_tsendsgl(struct kfid_ep *ep, const struct scatterlist *sgl, void **desc,
				   size_t count, kfi_addr_t dest_addr, u64 tag, void *context)
{
	return ep->tagged->sendsgl(ep, sgl, desc, count, dest_addr, tag, context);
}

/* Sends a tagged message, with flags. */
static inline ssize_t kfi_tsendmsg(struct kfid_ep *ep, const struct kfi_msg_tagged *msg, u64 flags)
{
	return ep->tagged->sendmsg(ep, msg, flags);
}

/* Sends a short tagged message, whose payload is copied before the return. */
static inline ssize_t kfi_tinject(struct kfid_ep *ep, const void *buf, size_t len,
				  kfi_addr_t dest_addr, u64 tag)
{
	return ep->tagged->inject(ep, buf, len, dest_addr, tag);
}

/* Sends a tagged message, with data for the peer's completion. */
static inline ssize_t kfi_tsenddata(struct kfid_ep *ep, const void *buf, size_t len, void *desc,
				    u64 data, kfi_addr_t dest_addr, u64 tag, void *context)
{
	return ep->tagged->senddata(ep, buf, len, desc, data, dest_addr, tag, context);
}

/* Like kfi_tinject(), but with data for the peer's completion. */
static inline ssize_t kfi_tinjectdata(struct kfid_ep *ep, const void *buf, size_t len, u64 data,
				      kfi_addr_t dest_addr, u64 tag)
{
	return ep->tagged->injectdata(ep, buf, len, data, dest_addr, tag);
}

#endif
