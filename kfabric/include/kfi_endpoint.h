/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Endpoints of the kfi API, and messages.
 *
 * Posting calls may run in any context; they neither sleep nor allocate. The
 * caller names local memory by address, page or list. For each piece it passes
 * the descriptor (kfi_mr_desc()) of a registration. Each piece must be within
 * one part of that registration that is physically or virtually contiguous. The
 * consumer does not use the memory until the operation has completed.
 *
 * Posting calls return 0, or
 * -EAGAIN if the endpoint or its queue is full; the caller posts again after a
 *   completion;
 * -EINVAL if a piece has no descriptor or is outside its registration;
 * -EINVAL if there are too many pieces, or a flag is unknown;
 * -EACCES if the memory is not registered for the operation;
 * -EMSGSIZE if the operation is longer than max_msg_size;
 * -ENOTCONN if the endpoint is not connected;
 * -EOPNOTSUPP if a flag asks for a completion level that kfabric does not
 *   support.
 */
#ifndef KFI_ENDPOINT_H
#define KFI_ENDPOINT_H

#include <linux/container_of.h>
#include <kfabric.h>
#include <kfi_domain.h>

/**
 * struct kfi_msg - a message, for kfi_sendmsg() and kfi_recvmsg()
 * @type: selects the member of the union
 * @msg_iov: kernel addresses
 * @msg_biov: pages
 * @msg_sgl: a scatterlist
 * @desc: descriptors, one for each piece
 * @iov_count: number of pieces
 * @addr: not used by connected endpoints
 * @context: returned in the completion
 * @data: with KFI_REMOTE_CQ_DATA: data for the peer's completion
 */
struct kfi_msg {
	enum kfi_iov_type			type;
	union {
		const struct kvec		*msg_iov;
		const struct bio_vec		*msg_biov;
		const struct scatterlist	*msg_sgl;
	};
	void					**desc;
	size_t					iov_count;
	kfi_addr_t				addr;
	void					*context;
	u64					data;
};

/* Levels of options. */
enum {
	KFI_OPT_ENDPOINT,
};

/* Options of endpoints; the value of each is a size_t. */
enum {
	KFI_OPT_MIN_MULTI_RECV,
	KFI_OPT_CM_DATA_SIZE,
};

/**
 * struct kfi_ops_ep - calls of an endpoint
 * @size: size of the structure in its provider's build, in bytes
 * @cancel: see kfi_cancel()
 * @getopt: see kfi_getopt()
 * @setopt: see kfi_setopt()
 * @tx_ctx: see kfi_tx_context()
 * @rx_ctx: see kfi_rx_context()
 */
struct kfi_ops_ep {
	size_t	size;
	ssize_t	(*cancel)(struct kfid *fid, void *context);
	int	(*getopt)(struct kfid *fid, int level, int optname, void *optval, size_t *optlen);
	int	(*setopt)(struct kfid *fid, int level, int optname, const void *optval,
			  size_t optlen);
	int	(*tx_ctx)(struct kfid_ep *sep, int index, struct kfi_tx_attr *attr,
			  struct kfid_ep **tx_ep, void *context);
	int	(*rx_ctx)(struct kfid_ep *sep, int index, struct kfi_rx_attr *attr,
			  struct kfid_ep **rx_ep, void *context);
};

/**
 * struct kfi_ops_msg - calls for messages
 * @size: size of the structure in its provider's build, in bytes
 * @recv: see kfi_recv()
 * @recvv: see kfi_recvv()
 * @recvbv: see kfi_recvbv()
 * @recvmsg: see kfi_recvmsg()
 * @send: see kfi_send()
 * @sendv: see kfi_sendv()
 * @sendbv: see kfi_sendbv()
 * @sendmsg: see kfi_sendmsg()
 * @inject: see kfi_inject()
 * @senddata: see kfi_senddata()
 * @injectdata: see kfi_injectdata()
 * @recvsgl: see kfi_recvsgl()
 * @sendsgl: see kfi_sendsgl()
 */
struct kfi_ops_msg {
	size_t	size;
	ssize_t	(*recv)(struct kfid_ep *ep, void *buf, size_t len, void *desc, kfi_addr_t src_addr,
			void *context);
	ssize_t	(*recvv)(struct kfid_ep *ep, const struct kvec *iov, void **desc, size_t count,
			 kfi_addr_t src_addr, void *context);
	ssize_t	(*recvbv)(struct kfid_ep *ep, const struct bio_vec *biov, void **desc, size_t count,
			  kfi_addr_t src_addr, void *context);
	ssize_t	(*recvmsg)(struct kfid_ep *ep, const struct kfi_msg *msg, u64 flags);
	ssize_t	(*send)(struct kfid_ep *ep, const void *buf, size_t len, void *desc,
			kfi_addr_t dest_addr, void *context);
	ssize_t	(*sendv)(struct kfid_ep *ep, const struct kvec *iov, void **desc, size_t count,
			 kfi_addr_t dest_addr, void *context);
	ssize_t	(*sendbv)(struct kfid_ep *ep, const struct bio_vec *biov, void **desc, size_t count,
			  kfi_addr_t dest_addr, void *context);
	ssize_t	(*sendmsg)(struct kfid_ep *ep, const struct kfi_msg *msg, u64 flags);
	ssize_t	(*inject)(struct kfid_ep *ep, const void *buf, size_t len, kfi_addr_t dest_addr);
	ssize_t	(*senddata)(struct kfid_ep *ep, const void *buf, size_t len, void *desc, u64 data,
			    kfi_addr_t dest_addr, void *context);
	ssize_t	(*injectdata)(struct kfid_ep *ep, const void *buf, size_t len, u64 data,
			      kfi_addr_t dest_addr);
	ssize_t	(*recvsgl)(struct kfid_ep *ep, const struct scatterlist *sgl, void **desc,
			   size_t count, kfi_addr_t src_addr, void *context);
	ssize_t	(*sendsgl)(struct kfid_ep *ep, const struct scatterlist *sgl, void **desc,
			   size_t count, kfi_addr_t dest_addr, void *context);
};

struct kfi_ops_atomic;
struct kfi_ops_cm;
struct kfi_ops_rma;
struct kfi_ops_tagged;

/**
 * struct kfid_ep - an endpoint
 * @fid: common start of all objects
 * @ops: calls of the endpoint
 * @cm: calls for connections
 * @msg: calls for messages
 * @rma: calls for one-sided operations
 * @tagged: calls for tagged messages
 * @atomic: calls for atomics
 */
struct kfid_ep {
	struct kfid		fid;
	struct kfi_ops_ep	*ops;
	struct kfi_ops_cm	*cm;
	struct kfi_ops_msg	*msg;
	struct kfi_ops_rma	*rma;
	struct kfi_ops_tagged	*tagged;
	struct kfi_ops_atomic	*atomic;
};

/**
 * struct kfid_pep - a passive endpoint; begins with fields of an endpoint
 * @fid: common start of all objects
 * @ops: calls of the endpoint
 * @cm: calls for connections
 */
struct kfid_pep {
	struct kfid		fid;
	struct kfi_ops_ep	*ops;
	struct kfi_ops_cm	*cm;
};

struct kfid_stx {
	struct kfid		fid;
	struct kfi_ops_ep	*ops;
};

/**
 * kfi_passive_ep() - opens a passive endpoint
 * @fabric: the fabric
 * @info: info with the address (src_addr); port 0: any free port
 * @pep: where the passive endpoint is stored
 * @context: the passive endpoint's context
 *
 * kfi_listen() binds the address, not this call.
 *
 * Return: 0 or a negative error number.
 */
static inline int kfi_passive_ep(struct kfid_fabric *fabric, struct kfi_info *info,
				 struct kfid_pep **pep, void *context)
{
	return fabric->ops->passive_ep(fabric, info, pep, context);
}

/**
 * kfi_endpoint() - opens an endpoint
 * @domain: the domain
 * @info: the endpoint's attributes. With the info of a KFI_CONNREQ, the
 *	endpoint is the accepting end, and the call uses up the request
 * @ep: where the endpoint is stored
 * @context: the endpoint's context
 *
 * May sleep.
 *
 * A consumer accepts a request on a domain of the request's fabric and device.
 * It may use any object of that fabric: that of the passive endpoint, or one
 * opened later. An endpoint has one context on each side; tx_ctx_cnt and
 * rx_ctx_cnt are ignored.
 *
 * Return: 0, or
 * -EKEYREJECTED if the requesting peer has not proven the endpoint's auth key;
 * -EINVAL if an attribute exceeds the domain's limits, or is
 *   KFI_SHARED_CONTEXT;
 * -EINVAL if the request arrived on another device, was answered, or its
 *   passive endpoint is closed;
 * -ENOSYS if the type is not KFI_EP_MSG.
 */
static inline int kfi_endpoint(struct kfid_domain *domain, struct kfi_info *info,
			       struct kfid_ep **ep, void *context)
{
	return domain->ops->endpoint(domain, info, ep, context);
}

/* Opens a scalable endpoint, which has many contexts. */
static inline int kfi_scalable_ep(struct kfid_domain *domain, struct kfi_info *info,
				  struct kfid_ep **sep, void *context)
{
	return domain->ops->scalable_ep(domain, info, sep, context);
}

/*
 * Binds an endpoint to another object, before the endpoint is enabled:
 *
 * - to an event queue;
 * - to a completion queue, for the sides in @flags (KFI_TRANSMIT, KFI_RECV).
 *   With KFI_SELECTIVE_COMPLETION, a successful operation has an entry only
 *   with KFI_COMPLETION; a failed operation always has one;
 * - to a counter, for the kinds of operations in @flags (KFI_SEND, KFI_RECV,
 *   KFI_READ, KFI_WRITE).
 */
static inline int kfi_ep_bind(struct kfid_ep *ep, struct kfid *bfid, u64 flags)
{
	return ep->fid.ops->bind(&ep->fid, bfid, flags);
}

/* Binds a passive endpoint to the event queue for its connection requests. */
static inline int kfi_pep_bind(struct kfid_pep *pep, struct kfid *bfid, u64 flags)
{
	return pep->fid.ops->bind(&pep->fid, bfid, flags);
}

/* Binds a scalable endpoint to another object. */
static inline int kfi_scalable_ep_bind(struct kfid_ep *sep, struct kfid *bfid, u64 flags)
{
	return sep->fid.ops->bind(&sep->fid, bfid, flags);
}

/*
 * Enables an endpoint: receives can be posted. kfi_connect() and kfi_accept()
 * enable an endpoint that is not enabled yet.
 */
static inline int kfi_enable(struct kfid_ep *ep)
{
	return ep->fid.ops->control(&ep->fid, KFI_ENABLE, NULL);
}

/*
 * Cancels one posted receive of this context: it completes with -ECANCELED.
 * Returns -EOPNOTSUPP if the provider cannot cancel receives.
 */
static inline ssize_t kfi_cancel(struct kfid *fid, void *context)
{
	struct kfid_ep *ep = container_of(fid, struct kfid_ep, fid);

	return ep->ops->cancel(fid, context);
}

/* Sets an option. */
static inline int kfi_setopt(struct kfid *fid, int level, int optname, const void *optval,
			     size_t optlen)
{
	struct kfid_ep *ep = container_of(fid, struct kfid_ep, fid);

	return ep->ops->setopt(fid, level, optname, optval, optlen);
}

/*
 * Returns the value of an option. KFI_OPT_CM_DATA_SIZE is the maximum number of
 * bytes of private data in a connection request that the endpoint sends. For a
 * passive endpoint it is that of a request that arrives. An auth key reduces the
 * number.
 */
static inline int kfi_getopt(struct kfid *fid, int level, int optname, void *optval, size_t *optlen)
{
	struct kfid_ep *ep = container_of(fid, struct kfid_ep, fid);

	return ep->ops->getopt(fid, level, optname, optval, optlen);
}

/* Creates an alias of an endpoint, with flags of its own. */
static inline int kfi_ep_alias(struct kfid_ep *ep, struct kfid_ep **alias_ep, u64 flags)
{
	struct kfid *fid;
	int err = kfi_alias(&ep->fid, &fid, flags);

	if (!err)
		*alias_ep = container_of(fid, struct kfid_ep, fid);
	return err;
}

/* Opens a transmit context of a scalable endpoint. */
static inline int kfi_tx_context(struct kfid_ep *ep, int index, struct kfi_tx_attr *attr,
				 struct kfid_ep **tx_ep, void *context)
{
	return ep->ops->tx_ctx(ep, index, attr, tx_ep, context);
}

/* Opens a receive context of a scalable endpoint. */
static inline int kfi_rx_context(struct kfid_ep *ep, int index, struct kfi_rx_attr *attr,
				 struct kfid_ep **rx_ep, void *context)
{
	return ep->ops->rx_ctx(ep, index, attr, rx_ep, context);
}

/* Opens a transmit context for endpoints to share. */
static inline int kfi_stx_context(struct kfid_domain *domain, struct kfi_tx_attr *attr,
				  struct kfid_stx **stx, void *context)
{
	return domain->ops->stx_ctx(domain, attr, stx, context);
}

/* Opens a receive context for endpoints to share. */
static inline int kfi_srx_context(struct kfid_domain *domain, struct kfi_rx_attr *attr,
				  struct kfid_ep **rx_ep, void *context)
{
	return domain->ops->srx_ctx(domain, attr, rx_ep, context);
}

/* Posts a receive of a message. */
static inline ssize_t kfi_recv(struct kfid_ep *ep, void *buf, size_t len, void *desc,
			       kfi_addr_t src_addr, void *context)
{
	return ep->msg->recv(ep, buf, len, desc, src_addr, context);
}

/* Posts a receive into several pieces. */
static inline ssize_t kfi_recvv(struct kfid_ep *ep, const struct kvec *iov, void **desc,
				size_t count, kfi_addr_t src_addr, void *context)
{
	return ep->msg->recvv(ep, iov, desc, count, src_addr, context);
}

/* Posts a receive into pages. */
static inline ssize_t kfi_recvbv(struct kfid_ep *ep, const struct bio_vec *biov, void **desc,
				 size_t count, kfi_addr_t src_addr, void *context)
{
	return ep->msg->recvbv(ep, biov, desc, count, src_addr, context);
}

/* Posts a receive into a scatterlist. */
static inline ssize_t kfi_recvsgl(struct kfid_ep *ep, const struct scatterlist *sgl, void **desc,
				  size_t count, kfi_addr_t src_addr, void *context)
{
	return ep->msg->recvsgl(ep, sgl, desc, count, src_addr, context);
}

/* Posts a receive, with flags: KFI_COMPLETION. */
static inline ssize_t kfi_recvmsg(struct kfid_ep *ep, const struct kfi_msg *msg, u64 flags)
{
	return ep->msg->recvmsg(ep, msg, flags);
}

/* Sends a message. */
static inline ssize_t kfi_send(struct kfid_ep *ep, const void *buf, size_t len, void *desc,
			       kfi_addr_t dest_addr, void *context)
{
	return ep->msg->send(ep, buf, len, desc, dest_addr, context);
}

/* Sends a message from several pieces. */
static inline ssize_t kfi_sendv(struct kfid_ep *ep, const struct kvec *iov, void **desc,
				size_t count, kfi_addr_t dest_addr, void *context)
{
	return ep->msg->sendv(ep, iov, desc, count, dest_addr, context);
}

/* Sends a message from pages. */
static inline ssize_t kfi_sendbv(struct kfid_ep *ep, const struct bio_vec *biov, void **desc,
				 size_t count, kfi_addr_t dest_addr, void *context)
{
	return ep->msg->sendbv(ep, biov, desc, count, dest_addr, context);
}

/* Sends a message from a scatterlist. */
static inline ssize_t kfi_sendsgl(struct kfid_ep *ep, const struct scatterlist *sgl, void **desc,
				  size_t count, kfi_addr_t dest_addr, void *context)
{
	return ep->msg->sendsgl(ep, sgl, desc, count, dest_addr, context);
}

/*
 * Sends a message, with flags: KFI_COMPLETION, KFI_INJECT, KFI_REMOTE_CQ_DATA,
 * KFI_FENCE. With KFI_INJECT, the payload is short and copied before the
 * return, as by kfi_inject(), but the message has a completion as other
 * messages have.
 */
static inline ssize_t kfi_sendmsg(struct kfid_ep *ep, const struct kfi_msg *msg, u64 flags)
{
	return ep->msg->sendmsg(ep, msg, flags);
}

/*
 * Sends a short message, whose payload is copied before the return. The message
 * has a completion only if it fails.
 */
static inline ssize_t kfi_inject(struct kfid_ep *ep, const void *buf, size_t len,
				 kfi_addr_t dest_addr)
{
	return ep->msg->inject(ep, buf, len, dest_addr);
}

/* Sends a message, with data for the peer's completion. */
static inline ssize_t kfi_senddata(struct kfid_ep *ep, const void *buf, size_t len, void *desc,
				   u64 data, kfi_addr_t dest_addr, void *context)
{
	return ep->msg->senddata(ep, buf, len, desc, data, dest_addr, context);
}

/* Like kfi_inject(), but with data for the peer's completion. */
static inline ssize_t kfi_injectdata(struct kfid_ep *ep, const void *buf, size_t len, u64 data,
				     kfi_addr_t dest_addr)
{
	return ep->msg->injectdata(ep, buf, len, data, dest_addr);
}

#endif
