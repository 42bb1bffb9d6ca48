/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Atomics of the kfi API. The rules for posting calls in kfi_endpoint.h apply.
 * A provider with atomics has the capability KFI_ATOMIC; the queries below
 * return the supported operations.
 *
 * Operands and comparands are copied before the return: their memory needs no
 * registration, and their descriptors are ignored. Memory for results is named
 * as other local memory is, and is registered with KFI_READ. The peer's memory,
 * or its key, has the rights KFI_ATOMIC, KFI_REMOTE_READ and KFI_REMOTE_WRITE.
 * The address is a multiple of a value's size.
 *
 * On kverbs KFI_ATOMIC_WRITE is an RDMA WRITE of 8 bytes, since verbs has no
 * other for kernel consumers. The device executes the write after the
 * endpoint's earlier operations. Readers see the old or the new value if the
 * device stores 8 aligned bytes at once. The write is not atomic with respect
 * to other endpoints' concurrent additions and compare-and-swaps. For one of
 * these a device may read the value, then store the written value, and then
 * overwrite it. To set a value that other endpoints change concurrently, use a
 * compare-and-swap.
 *
 * Calls return the errors of kfi_endpoint.h, and
 * -EOPNOTSUPP if the domain does not support the operation;
 * -EINVAL if the operation does not exist in this form;
 * -EINVAL if the counts differ, or the address is not aligned;
 * -EMSGSIZE if there are too many values.
 */
#ifndef KFI_ATOMIC_H
#define KFI_ATOMIC_H

#include <kfabric.h>
#include <kfi_endpoint.h>

/*
 * Flags of kfi_query_atomic(): query fetching operations, comparing operations.
 */
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
 * struct kfi_msg_atomic - an atomic, for the calls with flags
 * @msg_iov: local values
 * @desc: descriptors, one for each local piece
 * @iov_count: number of local pieces
 * @addr: not used by connected endpoints
 * @rma_iov: the peer's values
 * @rma_iov_count: number of pieces in @rma_iov: 1
 * @datatype: data type of the values
 * @op: the operation
 * @context: returned in the completion
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
 * struct kfi_ops_atomic - calls for atomics
 * @size: size of the structure in its provider's build, in bytes
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

/* Changes values in the peer's memory. */
static inline ssize_t kfi_atomic(struct kfid_ep *ep, const void *buf, size_t count, void *desc,
				 kfi_addr_t dest_addr, u64 addr, u64 key,
				 enum kfi_datatype datatype, enum kfi_op op, void *context)
{
	return ep->atomic->write(ep, buf, count, desc, dest_addr, addr, key, datatype, op, context);
}

/* Like kfi_atomic(), but with operands in several pieces. */
static inline ssize_t kfi_atomicv(struct kfid_ep *ep, const struct kfi_ioc *iov, void **desc,
				  size_t count, kfi_addr_t dest_addr, u64 addr, u64 key,
				  enum kfi_datatype datatype, enum kfi_op op, void *context)
{
	return ep->atomic->writev(ep, iov, desc, count, dest_addr, addr, key, datatype, op,
				  context);
}

/* Like kfi_atomic(), but with flags. */
static inline ssize_t kfi_atomicmsg(struct kfid_ep *ep, const struct kfi_msg_atomic *msg, u64 flags)
{
	return ep->atomic->writemsg(ep, msg, flags);
}

/* Like kfi_atomic(), but without a completion on success. */
static inline ssize_t kfi_inject_atomic(struct kfid_ep *ep, const void *buf, size_t count,
					kfi_addr_t dest_addr, u64 addr, u64 key,
					enum kfi_datatype datatype, enum kfi_op op)
{
	return ep->atomic->inject(ep, buf, count, dest_addr, addr, key, datatype, op);
}

/* Changes values in the peer's memory, and fetches the previous values. */
static inline ssize_t kfi_fetch_atomic(struct kfid_ep *ep, const void *buf, size_t count,
				       void *desc, void *result, void *result_desc,
				       kfi_addr_t dest_addr, u64 addr, u64 key,
				       enum kfi_datatype datatype, enum kfi_op op, void *context)
{
	return ep->atomic->readwrite(ep, buf, count, desc, result, result_desc, dest_addr, addr,
				     key, datatype, op, context);
}

/* Like kfi_fetch_atomic(), but with several pieces. */
static inline ssize_t kfi_fetch_atomicv(struct kfid_ep *ep, const struct kfi_ioc *iov, void **desc,
					size_t count, struct kfi_ioc *resultv, void **result_desc,
					size_t result_count, kfi_addr_t dest_addr, u64 addr,
					u64 key, enum kfi_datatype datatype, enum kfi_op op,
					void *context)
{
	return ep->atomic->readwritev(ep, iov, desc, count, resultv, result_desc, result_count,
				      dest_addr, addr, key, datatype, op, context);
}

/* Like kfi_fetch_atomic(), but with flags. */
static inline ssize_t kfi_fetch_atomicmsg(struct kfid_ep *ep, const struct kfi_msg_atomic *msg,
					  struct kfi_ioc *resultv, void **result_desc,
					  size_t result_count, u64 flags)
{
	return ep->atomic->readwritemsg(ep, msg, resultv, result_desc, result_count, flags);
}

/*
 * Fetches values of the peer's memory, and changes each value for which the
 * comparison with its comparand holds.
 */
static inline ssize_t kfi_compare_atomic(struct kfid_ep *ep, const void *buf, size_t count,
					 void *desc, const void *compare, void *compare_desc,
					 void *result, void *result_desc, kfi_addr_t dest_addr,
					 u64 addr, u64 key, enum kfi_datatype datatype,
					 enum kfi_op op, void *context)
{
	return ep->atomic->compwrite(ep, buf, count, desc, compare, compare_desc, result,
				     result_desc, dest_addr, addr, key, datatype, op, context);
}

/* Like kfi_compare_atomic(), but with several pieces. */
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

/* Like kfi_compare_atomic(), but with flags. */
static inline ssize_t kfi_compare_atomicmsg(struct kfid_ep *ep, const struct kfi_msg_atomic *msg,
					    const struct kfi_ioc *comparev, void **compare_desc,
					    size_t compare_count, struct kfi_ioc *resultv,
					    void **result_desc, size_t result_count, u64 flags)
{
	return ep->atomic->compwritemsg(ep, msg, comparev, compare_desc, compare_count, resultv,
					result_desc, result_count, flags);
}

/* Stores the maximum number of values of kfi_atomic(). */
static inline int kfi_atomicvalid(struct kfid_ep *ep, enum kfi_datatype datatype, enum kfi_op op,
				  size_t *count)
{
	return ep->atomic->writevalid(ep, datatype, op, count);
}

/* Stores the maximum number of values of kfi_fetch_atomic(). */
static inline int kfi_fetch_atomicvalid(struct kfid_ep *ep, enum kfi_datatype datatype,
					enum kfi_op op, size_t *count)
{
	return ep->atomic->readwritevalid(ep, datatype, op, count);
}

/* Stores the maximum number of values of kfi_compare_atomic(). */
static inline int kfi_compare_atomicvalid(struct kfid_ep *ep, enum kfi_datatype datatype,
					  enum kfi_op op, size_t *count)
{
	return ep->atomic->compwritevalid(ep, datatype, op, count);
}

/*
 * Stores the maximum number of values of an operation on the domain, and the
 * size of each value. @flags: 0 for kfi_atomic(), KFI_FETCH_ATOMIC for
 * kfi_fetch_atomic(), KFI_COMPARE_ATOMIC for kfi_compare_atomic().
 */
static inline int kfi_query_atomic(struct kfid_domain *domain, enum kfi_datatype datatype,
				   enum kfi_op op, struct kfi_atomic_attr *attr, u64 flags)
{
	return KFI_CHECK_OP(domain->ops, struct kfi_ops_domain, query_atomic) ?
		domain->ops->query_atomic(domain, datatype, op, attr, flags) : -ENOSYS;
}

#endif
