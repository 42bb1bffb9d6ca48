/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Endpoints of the kfi API, and messages.
 *
 * Posting calls may be made from any context. They neither sleep nor allocate. Local memory is
 * named by address, page or list, and by the descriptor (kfi_mr_desc()) of the registration that
 * it lies in, one for each piece: every piece lies in one physically or virtually contiguous part
 * of it. The consumer leaves the memory alone until the operation has completed.
 *
 * They return 0; -EAGAIN: the endpoint or its queue is full, try when something has completed;
 * -EINVAL: no descriptor, memory outside of it, too many pieces, or flags that are not known;
 * -EACCES: memory that is not registered for it; -EMSGSIZE: more than a message may have;
 * -ENOTCONN; -EOPNOTSUPP: a completion of a level that there is not.
 */
#ifndef KFI_ENDPOINT_H
#define KFI_ENDPOINT_H

#include <linux/container_of.h>
#include <kfabric.h>
#include <kfi_domain.h>

/**
 * struct kfi_msg - a message, for kfi_sendmsg() and kfi_recvmsg()
 * @type: which of the union
 * @msg_iov: kernel addresses
 * @msg_biov: pages
 * @msg_sgl: a scatterlist
 * @desc: descriptors, one for each piece
 * @iov_count: how many pieces
 * @addr: not used by connected endpoints
 * @context: comes back in the completion
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

/* Options of endpoints: a size_t each. */
enum {
	KFI_OPT_MIN_MULTI_RECV,
	KFI_OPT_CM_DATA_SIZE,
};

/**
 * struct kfi_ops_ep - what can be done with an endpoint
 * @size: bytes of the structure that its provider knows
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
 * struct kfi_ops_msg - messages
 * @size: bytes of the structure that its provider knows
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
 * @fid: what every object begins with
 * @ops: calls
 * @cm: connections
 * @msg: messages
 * @rma: one-sided operations
 * @tagged: messages with tags
 * @atomic: atomics
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
 * struct kfid_pep - a passive endpoint; it begins as an endpoint does
 * @fid: what every object begins with
 * @ops: calls
 * @cm: connections
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
 * kfi_passive_ep() - opens an endpoint that listens
 * @fabric: on which fabric
 * @info: its address (src_addr); port 0: any
 * @pep: where it goes
 * @context: the caller's value
 *
 * Its address is taken when it listens.
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
 * @domain: on which domain
 * @info: what it is to be; of a KFI_CONNREQ: the side that accepts, and the request is used up
 * @ep: where it goes
 * @context: the caller's value
 *
 * May sleep.
 *
 * A request is accepted on a domain of its fabric and its device, by whichever object of that fabric:
 * that of the passive endpoint, or one that was opened since. An endpoint has one context on each side,
 * whatever tx_ctx_cnt and rx_ctx_cnt say.
 *
 * Return: 0; -EKEYREJECTED: the peer that asks has not proven to have the endpoint's auth key;
 * -EINVAL: more than the domain has, or KFI_SHARED_CONTEXT, or the request came in on another device,
 * or was answered, or its passive endpoint is closed; -ENOSYS: not of type KFI_EP_MSG.
 */
static inline int kfi_endpoint(struct kfid_domain *domain, struct kfi_info *info,
			       struct kfid_ep **ep, void *context)
{
	return domain->ops->endpoint(domain, info, ep, context);
}

/* Opens an endpoint of many contexts. */
static inline int kfi_scalable_ep(struct kfid_domain *domain, struct kfi_info *info,
				  struct kfid_ep **sep, void *context)
{
	return domain->ops->scalable_ep(domain, info, sep, context);
}

/*
 * Binds an endpoint: to an event queue; to a completion queue, for the sides that @flags names
 * (KFI_TRANSMIT, KFI_RECV), with KFI_SELECTIVE_COMPLETION if only operations with KFI_COMPLETION
 * are to have entries; to a counter, for the kinds that @flags names (KFI_SEND, KFI_RECV, KFI_READ,
 * KFI_WRITE). Before it is enabled.
 */
static inline int kfi_ep_bind(struct kfid_ep *ep, struct kfid *bfid, u64 flags)
{
	return ep->fid.ops->bind(&ep->fid, bfid, flags);
}

/* Binds a passive endpoint to the event queue that its requests go to. */
static inline int kfi_pep_bind(struct kfid_pep *pep, struct kfid *bfid, u64 flags)
{
	return pep->fid.ops->bind(&pep->fid, bfid, flags);
}

/* Binds a scalable endpoint. */
static inline int kfi_scalable_ep_bind(struct kfid_ep *sep, struct kfid *bfid, u64 flags)
{
	return sep->fid.ops->bind(&sep->fid, bfid, flags);
}

/* Readies an endpoint to take receives; kfi_connect() and kfi_accept() do it if it was not done. */
static inline int kfi_enable(struct kfid_ep *ep)
{
	return ep->fid.ops->control(&ep->fid, KFI_ENABLE, NULL);
}

/* Ends a posted receive of this context with -ECANCELED. -EOPNOTSUPP: it cannot. */
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
 * Asks for an option. KFI_OPT_CM_DATA_SIZE: bytes that fit in a request to connect: of an endpoint in
 * its own, of a passive endpoint in one that comes to it. An auth key leaves less room.
 */
static inline int kfi_getopt(struct kfid *fid, int level, int optname, void *optval, size_t *optlen)
{
	struct kfid_ep *ep = container_of(fid, struct kfid_ep, fid);

	return ep->ops->getopt(fid, level, optname, optval, optlen);
}

/* Another name of an endpoint, with flags of its own. */
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

/* Opens a transmit context that endpoints share. */
static inline int kfi_stx_context(struct kfid_domain *domain, struct kfi_tx_attr *attr,
				  struct kfid_stx **stx, void *context)
{
	return domain->ops->stx_ctx(domain, attr, stx, context);
}

/* Opens a receive context that endpoints share. */
static inline int kfi_srx_context(struct kfid_domain *domain, struct kfi_rx_attr *attr,
				  struct kfid_ep **rx_ep, void *context)
{
	return domain->ops->srx_ctx(domain, attr, rx_ep, context);
}

/* Takes a message. */
static inline ssize_t kfi_recv(struct kfid_ep *ep, void *buf, size_t len, void *desc,
			       kfi_addr_t src_addr, void *context)
{
	return ep->msg->recv(ep, buf, len, desc, src_addr, context);
}

/* Takes a message into several pieces. */
static inline ssize_t kfi_recvv(struct kfid_ep *ep, const struct kvec *iov, void **desc,
				size_t count, kfi_addr_t src_addr, void *context)
{
	return ep->msg->recvv(ep, iov, desc, count, src_addr, context);
}

/* Takes a message into pages. */
static inline ssize_t kfi_recvbv(struct kfid_ep *ep, const struct bio_vec *biov, void **desc,
				 size_t count, kfi_addr_t src_addr, void *context)
{
	return ep->msg->recvbv(ep, biov, desc, count, src_addr, context);
}

/* Takes a message into a scatterlist. */
static inline ssize_t kfi_recvsgl(struct kfid_ep *ep, const struct scatterlist *sgl, void **desc,
				  size_t count, kfi_addr_t src_addr, void *context)
{
	return ep->msg->recvsgl(ep, sgl, desc, count, src_addr, context);
}

/* Takes a message, with flags: KFI_COMPLETION. */
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
 * Sends a message, with flags: KFI_COMPLETION, KFI_INJECT, KFI_REMOTE_CQ_DATA, KFI_FENCE. With
 * KFI_INJECT it is short and taken before the call returns, as by kfi_inject(), and yet completes as
 * others do.
 */
static inline ssize_t kfi_sendmsg(struct kfid_ep *ep, const struct kfi_msg *msg, u64 flags)
{
	return ep->msg->sendmsg(ep, msg, flags);
}

/* Sends a short message, which is taken before the call returns. It has no completion unless it fails. */
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

/* kfi_inject() with data for the peer's completion. */
static inline ssize_t kfi_injectdata(struct kfid_ep *ep, const void *buf, size_t len, u64 data,
				     kfi_addr_t dest_addr)
{
	return ep->msg->injectdata(ep, buf, len, data, dest_addr);
}

#endif
