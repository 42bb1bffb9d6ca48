/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Atomics of the kfi API. What kfi_endpoint.h says of posting holds here, too. Providers that do
 * some have KFI_ATOMIC among their capabilities; which, the queries below tell.
 *
 * Operands, and values to compare with, are taken before the call returns: they need no registration,
 * and their descriptors are not looked at. Results are named as local memory is, which is registered
 * with KFI_READ. The peer's memory is registered with KFI_ATOMIC, KFI_REMOTE_READ and
 * KFI_REMOTE_WRITE, or its key assigned with these, and the address is a multiple of a value's size.
 *
 * Where the provider is kverbs KFI_ATOMIC_WRITE, of 8 bytes, is an RDMA WRITE, for verbs gives its
 * consumers in the kernel no other. It is ordered behind what its endpoint posted before, and readers see
 * the old value or the new one where the device stores 8 aligned bytes at once. It is not atomic against
 * additions and comparisons that other endpoints do to the value meanwhile: a device may read the value
 * for one of these, then store the written value, and then store over it. To set a value that others
 * change meanwhile, compare and swap.
 *
 * Beside what kfi_endpoint.h says calls return -EOPNOTSUPP: the domain does not do it; -EINVAL: there
 * is no such operation of this kind, or counts or the address do not fit; -EMSGSIZE: not as many at
 * once.
 */
#ifndef KFI_ATOMIC_H
#define KFI_ATOMIC_H

#include <kfabric.h>
#include <kfi_endpoint.h>

/* Flags of kfi_query_atomic(): of those that fetch, of those that compare. */
#define KFI_FETCH_ATOMIC	(1ULL << 58)
#define KFI_COMPARE_ATOMIC	(1ULL << 59)

struct kfi_ioc {
	void	*addr;
	size_t	count;
};

struct kfi_rma_ioc {
	u64	addr;
	size_t	count;
	u64	key;
};

struct kfi_atomic_attr {
	size_t	count;
	size_t	size;
};

/**
 * struct kfi_msg_atomic - an atomic, for the calls that take flags
 * @msg_iov: local values
 * @desc: descriptors, one for each local piece
 * @iov_count: how many local pieces
 * @addr: the peer
 * @rma_iov: the peer's values
 * @rma_iov_count: how many pieces of them: 1
 * @datatype: what they are
 * @op: what is done
 * @context: comes back in the completion
 * @data: with KFI_REMOTE_CQ_DATA: data for the peer's completion
 */
struct kfi_msg_atomic {
	const struct kfi_ioc		*msg_iov;
	void				**desc;
	size_t				iov_count;
	kfi_addr_t			addr;
	const struct kfi_rma_ioc	*rma_iov;
	size_t				rma_iov_count;
	enum kfi_datatype		datatype;
	enum kfi_op			op;
	void				*context;
	u64				data;
};

struct kfi_msg_fetch {
	struct kfi_ioc	*msg_iov;
	void		**desc;
	size_t		iov_count;
};

struct kfi_msg_compare {
	const struct kfi_ioc	*msg_iov;
	void			**desc;
	size_t			iov_count;
};

/**
 * struct kfi_ops_atomic - atomics
 * @size: bytes of the structure that its provider knows
 * @write: see kfi_atomic()
 * @writev: see kfi_atomicv()
 * @writemsg: see kfi_atomicmsg()
 * @inject: see kfi_inject_atomic()
 * @readwrite: see kfi_fetch_atomic()
 * @readwritev: see kfi_fetch_atomicv()
 * @readwritemsg: see kfi_fetch_atomicmsg()
 * @compwrite: see kfi_compare_atomic()
 * @compwritev: see kfi_compare_atomicv()
 * @compwritemsg: see kfi_compare_atomicmsg()
 * @writevalid: see kfi_atomicvalid()
 * @readwritevalid: see kfi_fetch_atomicvalid()
 * @compwritevalid: see kfi_compare_atomicvalid()
 */
struct kfi_ops_atomic {
	size_t	size;
	ssize_t	(*write)(struct kfid_ep *ep, const void *buf, size_t count, void *desc,
			 kfi_addr_t dest_addr, u64 addr, u64 key, enum kfi_datatype datatype,
			 enum kfi_op op, void *context);
	ssize_t	(*writev)(struct kfid_ep *ep, const struct kfi_ioc *iov, void **desc, size_t count,
			  kfi_addr_t dest_addr, u64 addr, u64 key, enum kfi_datatype datatype,
			  enum kfi_op op, void *context);
	ssize_t	(*writemsg)(struct kfid_ep *ep, const struct kfi_msg_atomic *msg, u64 flags);
	ssize_t	(*inject)(struct kfid_ep *ep, const void *buf, size_t count, kfi_addr_t dest_addr,
			  u64 addr, u64 key, enum kfi_datatype datatype, enum kfi_op op);
	ssize_t	(*readwrite)(struct kfid_ep *ep, const void *buf, size_t count, void *desc,
			     void *result, void *result_desc, kfi_addr_t dest_addr, u64 addr,
			     u64 key, enum kfi_datatype datatype, enum kfi_op op, void *context);
	ssize_t	(*readwritev)(struct kfid_ep *ep, const struct kfi_ioc *iov, void **desc,
			      size_t count, struct kfi_ioc *resultv, void **result_desc,
			      size_t result_count, kfi_addr_t dest_addr, u64 addr, u64 key,
			      enum kfi_datatype datatype, enum kfi_op op, void *context);
	ssize_t	(*readwritemsg)(struct kfid_ep *ep, const struct kfi_msg_atomic *msg,
				struct kfi_ioc *resultv, void **result_desc, size_t result_count,
				u64 flags);
	ssize_t	(*compwrite)(struct kfid_ep *ep, const void *buf, size_t count, void *desc,
			     const void *compare, void *compare_desc, void *result,
			     void *result_desc, kfi_addr_t dest_addr, u64 addr, u64 key,
			     enum kfi_datatype datatype, enum kfi_op op, void *context);
	ssize_t	(*compwritev)(struct kfid_ep *ep, const struct kfi_ioc *iov, void **desc,
			      size_t count, const struct kfi_ioc *comparev, void **compare_desc,
			      size_t compare_count, struct kfi_ioc *resultv, void **result_desc,
			      size_t result_count, kfi_addr_t dest_addr, u64 addr, u64 key,
			      enum kfi_datatype datatype, enum kfi_op op, void *context);
	ssize_t	(*compwritemsg)(struct kfid_ep *ep, const struct kfi_msg_atomic *msg,
				const struct kfi_ioc *comparev, void **compare_desc,
				size_t compare_count, struct kfi_ioc *resultv, void **result_desc,
				size_t result_count, u64 flags);
	int	(*writevalid)(struct kfid_ep *ep, enum kfi_datatype datatype, enum kfi_op op,
			      size_t *count);
	int	(*readwritevalid)(struct kfid_ep *ep, enum kfi_datatype datatype, enum kfi_op op,
				  size_t *count);
	int	(*compwritevalid)(struct kfid_ep *ep, enum kfi_datatype datatype, enum kfi_op op,
				  size_t *count);
};

/* Changes the peer's memory. */
static inline ssize_t kfi_atomic(struct kfid_ep *ep, const void *buf, size_t count, void *desc,
				 kfi_addr_t dest_addr, u64 addr, u64 key,
				 enum kfi_datatype datatype, enum kfi_op op, void *context)
{
	return ep->atomic->write(ep, buf, count, desc, dest_addr, addr, key, datatype, op, context);
}

/* The same, of several pieces. */
static inline ssize_t kfi_atomicv(struct kfid_ep *ep, const struct kfi_ioc *iov, void **desc,
				  size_t count, kfi_addr_t dest_addr, u64 addr, u64 key,
				  enum kfi_datatype datatype, enum kfi_op op, void *context)
{
	return ep->atomic->writev(ep, iov, desc, count, dest_addr, addr, key, datatype, op,
				  context);
}

/* The same, with flags. */
static inline ssize_t kfi_atomicmsg(struct kfid_ep *ep, const struct kfi_msg_atomic *msg, u64 flags)
{
	return ep->atomic->writemsg(ep, msg, flags);
}

/* The same of a little, which is taken before the call returns. */
static inline ssize_t kfi_inject_atomic(struct kfid_ep *ep, const void *buf, size_t count,
					kfi_addr_t dest_addr, u64 addr, u64 key,
					enum kfi_datatype datatype, enum kfi_op op)
{
	return ep->atomic->inject(ep, buf, count, dest_addr, addr, key, datatype, op);
}

/* Changes the peer's memory, and fetches what was there. */
static inline ssize_t kfi_fetch_atomic(struct kfid_ep *ep, const void *buf, size_t count,
				       void *desc, void *result, void *result_desc,
				       kfi_addr_t dest_addr, u64 addr, u64 key,
				       enum kfi_datatype datatype, enum kfi_op op, void *context)
{
	return ep->atomic->readwrite(ep, buf, count, desc, result, result_desc, dest_addr, addr,
				     key, datatype, op, context);
}

/* The same, of several pieces. */
static inline ssize_t kfi_fetch_atomicv(struct kfid_ep *ep, const struct kfi_ioc *iov, void **desc,
					size_t count, struct kfi_ioc *resultv, void **result_desc,
					size_t result_count, kfi_addr_t dest_addr, u64 addr,
					u64 key, enum kfi_datatype datatype, enum kfi_op op,
					void *context)
{
	return ep->atomic->readwritev(ep, iov, desc, count, resultv, result_desc, result_count,
				      dest_addr, addr, key, datatype, op, context);
}

/* The same, with flags. */
static inline ssize_t kfi_fetch_atomicmsg(struct kfid_ep *ep, const struct kfi_msg_atomic *msg,
					  struct kfi_ioc *resultv, void **result_desc,
					  size_t result_count, u64 flags)
{
	return ep->atomic->readwritemsg(ep, msg, resultv, result_desc, result_count, flags);
}

/* Changes the peer's memory if it compares, and fetches what was there. */
static inline ssize_t kfi_compare_atomic(struct kfid_ep *ep, const void *buf, size_t count,
					 void *desc, const void *compare, void *compare_desc,
					 void *result, void *result_desc, kfi_addr_t dest_addr,
					 u64 addr, u64 key, enum kfi_datatype datatype,
					 enum kfi_op op, void *context)
{
	return ep->atomic->compwrite(ep, buf, count, desc, compare, compare_desc, result,
				     result_desc, dest_addr, addr, key, datatype, op, context);
}

/* The same, of several pieces. */
static inline ssize_t kfi_compare_atomicv(struct kfid_ep *ep, const struct kfi_ioc *iov,
					  void **desc, size_t count, const struct kfi_ioc *comparev,
					  void **compare_desc, size_t compare_count,
					  struct kfi_ioc *resultv, void **result_desc,
					  size_t result_count, kfi_addr_t dest_addr, u64 addr,
					  u64 key, enum kfi_datatype datatype, enum kfi_op op,
					  void *context)
{
	return ep->atomic->compwritev(ep, iov, desc, count, comparev, compare_desc, compare_count,
				      resultv, result_desc, result_count, dest_addr, addr, key,
				      datatype, op, context);
}

/* The same, with flags. */
static inline ssize_t kfi_compare_atomicmsg(struct kfid_ep *ep, const struct kfi_msg_atomic *msg,
					    const struct kfi_ioc *comparev, void **compare_desc,
					    size_t compare_count, struct kfi_ioc *resultv,
					    void **result_desc, size_t result_count, u64 flags)
{
	return ep->atomic->compwritemsg(ep, msg, comparev, compare_desc, compare_count, resultv,
					result_desc, result_count, flags);
}

/* How many values kfi_atomic() takes of a kind. */
static inline int kfi_atomicvalid(struct kfid_ep *ep, enum kfi_datatype datatype, enum kfi_op op,
				  size_t *count)
{
	return ep->atomic->writevalid(ep, datatype, op, count);
}

/* How many values kfi_fetch_atomic() takes of a kind. */
static inline int kfi_fetch_atomicvalid(struct kfid_ep *ep, enum kfi_datatype datatype,
					enum kfi_op op, size_t *count)
{
	return ep->atomic->readwritevalid(ep, datatype, op, count);
}

/* How many values kfi_compare_atomic() takes of a kind. */
static inline int kfi_compare_atomicvalid(struct kfid_ep *ep, enum kfi_datatype datatype,
					  enum kfi_op op, size_t *count)
{
	return ep->atomic->compwritevalid(ep, datatype, op, count);
}

/*
 * What the domain can do of a kind: how many values at once, and bytes of each. KFI_FETCH_ATOMIC,
 * KFI_COMPARE_ATOMIC: of kfi_fetch_atomic(), of kfi_compare_atomic().
 */
static inline int kfi_query_atomic(struct kfid_domain *domain, enum kfi_datatype datatype,
				   enum kfi_op op, struct kfi_atomic_attr *attr, u64 flags)
{
	return KFI_CHECK_OP(domain->ops, struct kfi_ops_domain, query_atomic) ?
		domain->ops->query_atomic(domain, datatype, op, attr, flags) : -ENOSYS;
}

#endif
