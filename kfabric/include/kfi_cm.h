/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Connections of the kfi API. All calls may sleep.
 */
#ifndef KFI_CM_H
#define KFI_CM_H

#include <kfabric.h>
#include <kfi_endpoint.h>

struct kfid_mc {
	struct kfid	fid;
	kfi_addr_t	addr;
};

/**
 * struct kfi_ops_cm - connections
 * @size: bytes of the structure that its provider knows
 * @setname: see kfi_setname()
 * @getname: see kfi_getname()
 * @getpeer: see kfi_getpeer()
 * @connect: see kfi_connect()
 * @listen: see kfi_listen()
 * @accept: see kfi_accept()
 * @reject: see kfi_reject()
 * @shutdown: see kfi_shutdown()
 * @join: see kfi_join()
 */
struct kfi_ops_cm {
	size_t	size;
	int	(*setname)(struct kfid *fid, void *addr, size_t addrlen);
	int	(*getname)(struct kfid *fid, void *addr, size_t *addrlen);
	int	(*getpeer)(struct kfid_ep *ep, void *addr, size_t *addrlen);
	int	(*connect)(struct kfid_ep *ep, const void *addr, const void *param,
			   size_t paramlen);
	int	(*listen)(struct kfid_pep *pep);
	int	(*accept)(struct kfid_ep *ep, const void *param, size_t paramlen);
	int	(*reject)(struct kfid_pep *pep, kfid_t handle, const void *param, size_t paramlen);
	int	(*shutdown)(struct kfid_ep *ep, u64 flags);
	int	(*join)(struct kfid_ep *ep, const void *addr, u64 flags, struct kfid_mc **mc,
			void *context);
};

/*
 * Sets a passive endpoint's address, before it listens. Others have it by their info. -EINVAL: NULL, or
 * no IP address, or @addrlen is less than its family takes.
 */
static inline int kfi_setname(struct kfid *fid, void *addr, size_t addrlen)
{
	struct kfid_ep *ep = container_of(fid, struct kfid_ep, fid);

	return ep->cm->setname(fid, addr, addrlen);
}

/*
 * Asks for an endpoint's own address, passive or not. @addrlen: in: bytes of @addr, out: bytes of
 * the address. -KFI_ETOOSMALL: it was cut off.
 */
static inline int kfi_getname(struct kfid *fid, void *addr, size_t *addrlen)
{
	struct kfid_ep *ep = container_of(fid, struct kfid_ep, fid);

	return ep->cm->getname(fid, addr, addrlen);
}

/* Asks for the peer's address, as kfi_getname() does for the own. */
static inline int kfi_getpeer(struct kfid_ep *ep, void *addr, size_t *addrlen)
{
	return ep->cm->getpeer(ep, addr, addrlen);
}

/*
 * Listens: requests to connect come as KFI_CONNREQ from now on. -EADDRINUSE, -EADDRNOTAVAIL: its
 * address; -EACCES: its port is below 1024, and the calling task lacks CAP_NET_BIND_SERVICE;
 * -KFI_ENOEQ: it is bound to no event queue.
 */
static inline int kfi_listen(struct kfid_pep *pep)
{
	return pep->cm->listen(pep);
}

/**
 * kfi_connect() - connects
 * @ep: the endpoint
 * @addr: a socket address, as long as its family takes; NULL: the dest_addr of its info
 * @param: something for the peer
 * @paramlen: bytes of it, up to KFI_OPT_CM_DATA_SIZE
 *
 * The outcome is an event: KFI_CONNECTED, or an error (kfi_eq_readerr()).
 *
 * Return: 0; -EINVAL: connected before, not completely bound, or too much for the peer.
 */
static inline int kfi_connect(struct kfid_ep *ep, const void *addr, const void *param,
			      size_t paramlen)
{
	return ep->cm->connect(ep, addr, param, paramlen);
}

/* Accepts the request that the endpoint was opened with; the outcome is an event. */
static inline int kfi_accept(struct kfid_ep *ep, const void *param, size_t paramlen)
{
	return ep->cm->accept(ep, param, paramlen);
}

/* Refuses a request (kfi_info.handle), which is used up. -EINVAL: there is none such. */
static inline int kfi_reject(struct kfid_pep *pep, kfid_t handle, const void *param,
			     size_t paramlen)
{
	return pep->cm->reject(pep, handle, param, paramlen);
}

/* Ends a connection; both sides hear of it by an event. @flags: 0. */
static inline int kfi_shutdown(struct kfid_ep *ep, u64 flags)
{
	return ep->cm->shutdown(ep, flags);
}

/* Joins a group of many. */
static inline int kfi_join(struct kfid_ep *ep, const void *addr, u64 flags, struct kfid_mc **mc,
			   void *context)
{
	return KFI_CHECK_OP(ep->cm, struct kfi_ops_cm, join) ?
		ep->cm->join(ep, addr, flags, mc, context) : -ENOSYS;
}

/* The address of such a group. */
static inline kfi_addr_t kfi_mc_addr(struct kfid_mc *mc)
{
	return mc->addr;
}

#endif
