/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Domains of the kfi API, and what is opened on them: memory, address vectors, queues.
 */
#ifndef KFI_DOMAIN_H
#define KFI_DOMAIN_H

#include <kfabric.h>
#include <kfi_eq.h>

struct bio_vec;
struct kvec;
struct scatterlist;

/* Flags of address vectors. */
#define KFI_SYMMETRIC		(1ULL << 59)
#define KFI_SYNC_ERR		(1ULL << 58)

/**
 * struct kfi_av_attr - an address vector
 * @type: its type, which makes no difference
 * @rx_ctx_bits: bits of names that are receive contexts' (kfi_rx_addr()), up to 32
 * @count: not used
 * @ep_per_node: not used
 * @name: NULL
 * @map_addr: not used
 * @flags: 0
 */
struct kfi_av_attr {
	enum kfi_av_type	type;
	int			rx_ctx_bits;
	size_t			count;
	size_t			ep_per_node;
	const char		*name;
	void			*map_addr;
	u64			flags;
};

/**
 * struct kfi_ops_av - what can be done with an address vector
 * @size: bytes of the structure that its provider knows
 * @insert: see kfi_av_insert()
 * @insertsvc: see kfi_av_insertsvc()
 * @insertsym: see kfi_av_insertsym()
 * @remove: see kfi_av_remove()
 * @lookup: see kfi_av_lookup()
 * @straddr: see kfi_av_straddr()
 */
struct kfi_ops_av {
	size_t		size;
	int		(*insert)(struct kfid_av *av, const void *addr, size_t count,
				  kfi_addr_t *kfi_addr, u64 flags, void *context);
	int		(*insertsvc)(struct kfid_av *av, const char *node, const char *service,
				     kfi_addr_t *kfi_addr, u64 flags, void *context);
	int		(*insertsym)(struct kfid_av *av, const char *node, size_t nodecnt,
				     const char *service, size_t svccnt, kfi_addr_t *kfi_addr,
				     u64 flags, void *context);
	int		(*remove)(struct kfid_av *av, kfi_addr_t *kfi_addr, size_t count,
				  u64 flags);
	int		(*lookup)(struct kfid_av *av, kfi_addr_t kfi_addr, void *addr,
				  size_t *addrlen);
	const char	*(*straddr)(struct kfid_av *av, const void *addr, char *buf, size_t *len);
};

struct kfid_av {
	struct kfid		fid;
	struct kfi_ops_av	*ops;
};

/**
 * struct kfid_mr - registered memory
 * @fid: what every object begins with
 * @mem_desc: names it in local operations
 * @key: its key for peers, or KFI_KEY_NOTAVAIL
 * @iova: the address by which peers know its first byte
 */
struct kfid_mr {
	struct kfid	fid;
	void		*mem_desc;
	u64		key;
	u64		iova;
};

/**
 * struct kfi_mr_attr - what kfi_mr_regattr() registers
 * @type: which of the union
 * @mr_iov: kernel addresses
 * @mr_biov: pages
 * @mr_sgl: a scatterlist
 * @iov_count: how many
 * @access: as for kfi_mr_reg()
 * @offset: 0
 * @requested_key: not used where the provider has KFI_MR_PROV_KEY
 * @context: the object's context
 * @auth_key_size: bytes of @auth_key
 * @auth_key: the auth key that peers have to have proven, instead of the domain's or, bound to an
 *	endpoint, of the endpoint's, which it then is
 */
struct kfi_mr_attr {
	enum kfi_iov_type			type;
	union {
		const struct kvec		*mr_iov;
		const struct bio_vec		*mr_biov;
		const struct scatterlist	*mr_sgl;
	};
	size_t					iov_count;
	u64					access;
	u64					offset;
	u64					requested_key;
	void					*context;
	size_t					auth_key_size;
	u8					*auth_key;
};

struct kfi_mr_modify {
	u64			flags;
	struct kfi_mr_attr	attr;
};

/* What atomics work on. */
enum kfi_datatype {
	KFI_INT8,
	KFI_UINT8,
	KFI_INT16,
	KFI_UINT16,
	KFI_INT32,
	KFI_UINT32,
	KFI_INT64,
	KFI_UINT64,
	KFI_FLOAT,
	KFI_DOUBLE,
	KFI_FLOAT_COMPLEX,
	KFI_DOUBLE_COMPLEX,
	KFI_LONG_DOUBLE,
	KFI_LONG_DOUBLE_COMPLEX,
	KFI_DATATYPE_LAST,
};

/* What atomics do. */
enum kfi_op {
	KFI_MIN,
	KFI_MAX,
	KFI_SUM,
	KFI_PROD,
	KFI_LOR,
	KFI_LAND,
	KFI_BOR,
	KFI_BAND,
	KFI_LXOR,
	KFI_BXOR,
	KFI_ATOMIC_READ,
	KFI_ATOMIC_WRITE,
	KFI_CSWAP,
	KFI_CSWAP_NE,
	KFI_CSWAP_LE,
	KFI_CSWAP_LT,
	KFI_CSWAP_GE,
	KFI_CSWAP_GT,
	KFI_MSWAP,
	KFI_ATOMIC_OP_LAST,
};

struct kfi_atomic_attr;
struct kfi_cntr_attr;
struct kfi_cq_attr;

/**
 * struct kfi_ops_domain - what can be opened on a domain
 * @size: bytes of the structure that its provider knows
 * @av_open: see kfi_av_open()
 * @cq_open: see kfi_cq_open()
 * @endpoint: see kfi_endpoint()
 * @scalable_ep: see kfi_scalable_ep()
 * @cntr_open: see kfi_cntr_open()
 * @poll_open: see kfi_poll_open()
 * @stx_ctx: see kfi_stx_context()
 * @srx_ctx: see kfi_srx_context()
 * @query_atomic: see kfi_query_atomic()
 */
struct kfi_ops_domain {
	size_t	size;
	int	(*av_open)(struct kfid_domain *domain, struct kfi_av_attr *attr,
			   struct kfid_av **av, void *context);
	int	(*cq_open)(struct kfid_domain *domain, struct kfi_cq_attr *attr,
			   struct kfid_cq **cq, kfi_comp_handler comp_handler, void *context);
	int	(*endpoint)(struct kfid_domain *domain, struct kfi_info *info,
			    struct kfid_ep **ep, void *context);
	int	(*scalable_ep)(struct kfid_domain *domain, struct kfi_info *info,
			       struct kfid_ep **sep, void *context);
	int	(*cntr_open)(struct kfid_domain *domain, struct kfi_cntr_attr *attr,
			     struct kfid_cntr **cntr, void *context);
	int	(*poll_open)(struct kfid_domain *domain, struct kfi_poll_attr *attr,
			     struct kfid_poll **pollset);
	int	(*stx_ctx)(struct kfid_domain *domain, struct kfi_tx_attr *attr,
			   struct kfid_stx **stx, void *context);
	int	(*srx_ctx)(struct kfid_domain *domain, struct kfi_rx_attr *attr,
			   struct kfid_ep **rx_ep, void *context);
	int	(*query_atomic)(struct kfid_domain *domain, enum kfi_datatype datatype,
				enum kfi_op op, struct kfi_atomic_attr *attr, u64 flags);
};

/**
 * struct kfi_ops_mr - how memory is registered
 * @size: bytes of the structure that its provider knows
 * @reg: see kfi_mr_reg()
 * @regv: see kfi_mr_regv()
 * @regbv: see kfi_mr_regbv()
 * @regattr: see kfi_mr_regattr()
 * @regsgl: see kfi_mr_regsgl()
 */
struct kfi_ops_mr {
	size_t	size;
	int	(*reg)(struct kfid *fid, const void *buf, size_t len, u64 access, u64 offset,
		       u64 requested_key, u64 flags, struct kfid_mr **mr, void *context);
	int	(*regv)(struct kfid *fid, const struct kvec *iov, size_t count, u64 access,
			u64 offset, u64 requested_key, u64 flags, struct kfid_mr **mr,
			void *context);
	int	(*regbv)(struct kfid *fid, const struct bio_vec *biov, size_t count, u64 access,
			 u64 offset, u64 requested_key, u64 flags, struct kfid_mr **mr,
			 void *context);
	int	(*regattr)(struct kfid *fid, const struct kfi_mr_attr *attr, u64 flags,
			   struct kfid_mr **mr);
	int	(*regsgl)(struct kfid *fid, const struct scatterlist *sgl, size_t count,
			  u64 access, u64 offset, u64 requested_key, u64 flags,
			  struct kfid_mr **mr, void *context);
};

/* Of kfi_domain_bind(): registrations end with an event. */
#define KFI_REG_MR	(1ULL << 59)

/**
 * struct kfid_domain - a domain
 * @fid: what every object begins with
 * @ops: calls
 * @mr: calls that register memory
 */
struct kfid_domain {
	struct kfid		fid;
	struct kfi_ops_domain	*ops;
	struct kfi_ops_mr	*mr;
};

/**
 * kfi_domain() - opens a domain
 * @fabric: on which fabric
 * @info: names it (domain_attr->name). With KFI_MR_ENDPOINT in its mr_mode, memory of the domain
 *	is bound to an endpoint each, and is reached by that endpoint's peer alone
 * @domain: where it goes
 * @context: the caller's value
 *
 * May sleep.
 *
 * Return: 0; -ENODEV: no such domain; -EOPNOTSUPP: it has no such mode; -EINVAL: no auth key of that size.
 */
static inline int kfi_domain(struct kfid_fabric *fabric, struct kfi_info *info,
			     struct kfid_domain **domain, void *context)
{
	return fabric->ops->domain(fabric, info, domain, context);
}

/* Binds a domain to an event queue, where operations of it are to end with an event. */
static inline int kfi_domain_bind(struct kfid_domain *domain, struct kfid *fid, u64 flags)
{
	return domain->fid.ops->bind(&domain->fid, fid, flags);
}

/**
 * kfi_cq_open() - opens a completion queue
 * @domain: on which domain
 * @attr: what it is to be; NULL: as all zeroes
 * @cq: where it goes
 * @comp_handler: told of each entry, in any context, or NULL
 * @context: the handler's, and the queue's
 *
 * Return: 0 or a negative error number.
 */
static inline int kfi_cq_open(struct kfid_domain *domain, struct kfi_cq_attr *attr,
			      struct kfid_cq **cq, kfi_comp_handler comp_handler, void *context)
{
	return domain->ops->cq_open(domain, attr, cq, comp_handler, context);
}

/* Opens a counter. */
static inline int kfi_cntr_open(struct kfid_domain *domain, struct kfi_cntr_attr *attr,
				struct kfid_cntr **cntr, void *context)
{
	return domain->ops->cntr_open(domain, attr, cntr, context);
}

/* Opens a wait set. */
static inline int kfi_wait_open(struct kfid_fabric *fabric, struct kfi_wait_attr *attr,
				struct kfid_wait **waitset)
{
	return fabric->ops->wait_open(fabric, attr, waitset);
}

/* Opens a poll set. */
static inline int kfi_poll_open(struct kfid_domain *domain, struct kfi_poll_attr *attr,
				struct kfid_poll **pollset)
{
	return domain->ops->poll_open(domain, attr, pollset);
}

/**
 * kfi_mr_reg() - registers memory
 * @domain: with which domain
 * @buf: kernel address: of pages, of kmalloc() or vmalloc()
 * @len: bytes
 * @access: KFI_SEND, KFI_RECV, KFI_READ, KFI_WRITE, KFI_REMOTE_READ, KFI_REMOTE_WRITE; with the last
 *	two also KFI_ATOMIC, for peers' atomics
 * @offset: 0
 * @requested_key: not used where the provider has KFI_MR_PROV_KEY
 * @flags: KFI_DYNAMIC_KEYS (kfi_key.h) or 0
 * @mr: where it goes
 * @context: the caller's value
 *
 * With a remote right it has a key for all of it, unless it has dynamic ones. The memory is the
 * caller's, and stays until kfi_close() has succeeded. May sleep.
 *
 * Return: 0; -EFAULT: no kernel memory; -EINVAL: nothing, or unknown flags or rights; -EMSGSIZE:
 * more than the provider can export by one key.
 */
static inline int kfi_mr_reg(struct kfid_domain *domain, const void *buf, size_t len, u64 access,
			     u64 offset, u64 requested_key, u64 flags, struct kfid_mr **mr,
			     void *context)
{
	return domain->mr->reg(&domain->fid, buf, len, access, offset, requested_key, flags, mr,
			       context);
}

/*
 * kfi_mr_reg() of several pieces, as one range of addresses. All but the first begin at a page,
 * all but the last end at one: -EINVAL.
 */
static inline int kfi_mr_regv(struct kfid_domain *domain, const struct kvec *iov, size_t count,
			      u64 access, u64 offset, u64 requested_key, u64 flags,
			      struct kfid_mr **mr, void *context)
{
	return domain->mr->regv(&domain->fid, iov, count, access, offset, requested_key, flags,
				mr, context);
}

/* kfi_mr_regv() of pages. */
static inline int kfi_mr_regbv(struct kfid_domain *domain, const struct bio_vec *biov,
			       size_t count, u64 access, u64 offset, u64 requested_key,
			       u64 flags, struct kfid_mr **mr, void *context)
{
	return domain->mr->regbv(&domain->fid, biov, count, access, offset, requested_key, flags,
				 mr, context);
}

/* kfi_mr_regv() of a scatterlist. */
static inline int kfi_mr_regsgl(struct kfid_domain *domain, const struct scatterlist *sgl,
				size_t count, u64 access, u64 offset, u64 requested_key,
				u64 flags, struct kfid_mr **mr, void *context)
{
	return domain->mr->regsgl(&domain->fid, sgl, count, access, offset, requested_key, flags,
				  mr, context);
}

/* kfi_mr_regv(), kfi_mr_regbv() or kfi_mr_regsgl(), as the attributes say. */
static inline int kfi_mr_regattr(struct kfid_domain *domain, const struct kfi_mr_attr *attr,
				 u64 flags, struct kfid_mr **mr)
{
	return domain->mr->regattr(&domain->fid, attr, flags, mr);
}

/* What names the memory in local operations. */
static inline void *kfi_mr_desc(struct kfid_mr *mr)
{
	return mr->mem_desc;
}

/* Its key, or KFI_KEY_NOTAVAIL. */
static inline u64 kfi_mr_key(struct kfid_mr *mr)
{
	return mr->key;
}

/* A key that is longer than 64 bits. */
static inline int kfi_mr_raw_attr(struct kfid_mr *mr, u64 *base_addr, u8 *raw_key,
				  size_t *key_size, u64 flags)
{
	struct kfi_mr_raw_attr attr = {
		.flags = flags,
		.base_addr = base_addr,
		.raw_key = raw_key,
		.key_size = key_size,
	};

	return mr->fid.ops->control(&mr->fid, KFI_GET_RAW_MR, &attr);
}

/* A short name for a peer's key that is longer than 64 bits. */
static inline int kfi_mr_map_raw(struct kfid_domain *domain, u64 base_addr, u8 *raw_key,
				 size_t key_size, u64 *key, u64 flags)
{
	struct kfi_mr_map_raw map = {
		.flags = flags,
		.base_addr = base_addr,
		.raw_key = raw_key,
		.key_size = key_size,
		.key = key,
	};

	return domain->fid.ops->control(&domain->fid, KFI_MAP_RAW_MR, &map);
}

/* Gives such a name up. */
static inline int kfi_mr_unmap_key(struct kfid_domain *domain, u64 key)
{
	return domain->fid.ops->control(&domain->fid, KFI_UNMAP_KEY, &key);
}

/* Binds memory to an endpoint, where the domain has KFI_MR_ENDPOINT; before kfi_mr_enable(). */
static inline int kfi_mr_bind(struct kfid_mr *mr, struct kfid *bfid, u64 flags)
{
	return mr->fid.ops->bind(&mr->fid, bfid, flags);
}

/* Tells of a changed mapping. Not needed for the kernel's memory. */
static inline int kfi_mr_refresh(struct kfid_mr *mr, const struct kvec *iov, size_t count,
				 u64 flags)
{
	struct kfi_mr_modify modify = {
		.flags = flags,
		.attr = {
			.type = KFI_KVEC,
			.mr_iov = iov,
			.iov_count = count,
		},
	};

	return mr->fid.ops->control(&mr->fid, KFI_REFRESH, &modify);
}

/* Has memory that is bound to an endpoint registered; key and address are known then. */
static inline int kfi_mr_enable(struct kfid_mr *mr)
{
	return mr->fid.ops->control(&mr->fid, KFI_ENABLE, NULL);
}

/*
 * Opens an address vector: a list of peers' addresses. Endpoints of type KFI_EP_MSG are connected, so
 * they are not bound to one, and take no names from it: who wants to connect looks an address up.
 * NULL for @attr: all zeroes. -ENOSYS: it has a name, to be shared.
 */
static inline int kfi_av_open(struct kfid_domain *domain, struct kfi_av_attr *attr,
			      struct kfid_av **av, void *context)
{
	return domain->ops->av_open(domain, attr, av, context);
}

/* Binds one to an event queue, where insertions are to end with an event. -ENOSYS: they do not. */
static inline int kfi_av_bind(struct kfid_av *av, struct kfid *fid, u64 flags)
{
	return av->fid.ops->bind(&av->fid, fid, flags);
}

/*
 * Inserts addresses (IPv4 or IPv6), one behind the other; how many were. The name of one that was not is
 * KFI_ADDR_NOTAVAIL, and with KFI_SYNC_ERR @context has room for as many ints, which get 0 or the error
 * number of each. -EINVAL: no such flags.
 */
static inline int kfi_av_insert(struct kfid_av *av, const void *addr, size_t count,
				kfi_addr_t *kfi_addr, u64 flags, void *context)
{
	return av->ops->insert(av, addr, count, kfi_addr, flags, context);
}

/* kfi_av_insert() of an address that is a text. -EINVAL: it is none. */
static inline int kfi_av_insertsvc(struct kfid_av *av, const char *node, const char *service,
				   kfi_addr_t *kfi_addr, u64 flags, void *context)
{
	return av->ops->insertsvc(av, node, service, kfi_addr, flags, context);
}

/* The same of addresses that follow each other: of each node all ports, then of the next node. */
static inline int kfi_av_insertsym(struct kfid_av *av, const char *node, size_t nodecnt,
				   const char *service, size_t svccnt, kfi_addr_t *kfi_addr,
				   u64 flags, void *context)
{
	return av->ops->insertsym(av, node, nodecnt, service, svccnt, kfi_addr, flags, context);
}

/* Takes addresses out, whose names may be others' then. -EINVAL: one was not there. */
static inline int kfi_av_remove(struct kfid_av *av, kfi_addr_t *kfi_addr, size_t count, u64 flags)
{
	return av->ops->remove(av, kfi_addr, count, flags);
}

/* The address that was inserted. -KFI_ETOOSMALL: what there is room for; @addrlen says its size. */
static inline int kfi_av_lookup(struct kfid_av *av, kfi_addr_t kfi_addr, void *addr,
				size_t *addrlen)
{
	return av->ops->lookup(av, kfi_addr, addr, addrlen);
}

/* An address as text, cut where there is no room; @len then says how much it takes. */
static inline const char *kfi_av_straddr(struct kfid_av *av, const void *addr, char *buf,
					 size_t *len)
{
	return av->ops->straddr(av, addr, buf, len);
}

/* The address of one of a peer's receive contexts. */
static inline kfi_addr_t kfi_rx_addr(kfi_addr_t kfi_addr, int rx_index, int rx_ctx_bits)
{
	return rx_ctx_bits ? ((kfi_addr_t)rx_index << (64 - rx_ctx_bits)) | kfi_addr : kfi_addr;
}

#endif
