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
 * struct kfi_ops_cm - calls for connections
 * @size: size of the structure in its provider's build, in bytes
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
 * Sets the address of a passive endpoint that does not listen yet. Other
 * endpoints have the address of their info. Returns -EINVAL if @addr is NULL or
 * not an IP address, or @addrlen is less than the family requires.
 */
static inline int kfi_setname(struct kfid *fid, void *addr, size_t addrlen)
{
	struct kfid_ep *ep = container_of(fid, struct kfid_ep, fid);

	return ep->cm->setname(fid, addr, addrlen);
}

/*
 * Copies the own address of an endpoint or passive endpoint. @addrlen is the
 * size of @addr, and is set to the size of the address. Returns -KFI_ETOOSMALL
 * if the address was truncated.
 */
static inline int kfi_getname(struct kfid *fid, void *addr, size_t *addrlen)
{
	struct kfid_ep *ep = container_of(fid, struct kfid_ep, fid);

	return ep->cm->getname(fid, addr, addrlen);
}

/* Copies the peer's address, as kfi_getname() copies the own address. */
static inline int kfi_getpeer(struct kfid_ep *ep, void *addr, size_t *addrlen)
{
	return ep->cm->getpeer(ep, addr, addrlen);
}

/*
 * Listens: connection requests become KFI_CONNREQ events. Returns
 * -EADDRINUSE, -EADDRNOTAVAIL if the address cannot be bound;
 * -EACCES if the port is below 1024, and the task lacks CAP_NET_BIND_SERVICE;
 * -KFI_ENOEQ if the passive endpoint is bound to no event queue.
 */
static inline int kfi_listen(struct kfid_pep *pep)
{
	return pep->cm->listen(pep);
}

/**
 * kfi_connect() - connects an endpoint
 * @ep: the endpoint
 * @addr: a whole socket address; NULL: the dest_addr of the endpoint's info
 * @param: private data for the peer
 * @paramlen: bytes of @param, up to KFI_OPT_CM_DATA_SIZE
 *
 * The outcome is an event: KFI_CONNECTED, or an error (kfi_eq_readerr()).
 *
 * Return: 0, or
 * -EINVAL if the endpoint was connected before, or lacks a bound queue;
 * -EINVAL if there is too much private data.
 */
static inline int kfi_connect(struct kfid_ep *ep, const void *addr, const void *param,
			      size_t paramlen)
{
	return ep->cm->connect(ep, addr, param, paramlen);
}

/*
 * Accepts the request that the endpoint was opened with. The outcome is an
 * event.
 */
static inline int kfi_accept(struct kfid_ep *ep, const void *param, size_t paramlen)
{
	return ep->cm->accept(ep, param, paramlen);
}

/*
 * Refuses a connection request (kfi_info.handle) and uses it up. Returns
 * -EINVAL if the request does not exist or was answered.
 */
static inline int kfi_reject(struct kfid_pep *pep, kfid_t handle, const void *param,
			     size_t paramlen)
{
	return pep->cm->reject(pep, handle, param, paramlen);
}

/* Disconnects. Both ends get a KFI_SHUTDOWN event. @flags: 0. */
static inline int kfi_shutdown(struct kfid_ep *ep, u64 flags)
{
	return ep->cm->shutdown(ep, flags);
}

/* Joins a multicast group. */
static inline int kfi_join(struct kfid_ep *ep, const void *addr, u64 flags, struct kfid_mc **mc,
			   void *context)
{
	return KFI_CHECK_OP(ep->cm, struct kfi_ops_cm, join) ?
		ep->cm->join(ep, addr, flags, mc, context) : -ENOSYS;
}

/* Returns the name of a multicast group. */
static inline kfi_addr_t kfi_mc_addr(struct kfid_mc *mc)
{
	return mc->addr;
}

#endif
