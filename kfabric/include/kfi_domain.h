/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Domains of the kfi API, and the objects opened on them: registered memory,
 * address vectors, queues.
 */
#ifndef KFI_DOMAIN_H
#define KFI_DOMAIN_H

#include <kfabric.h>
#include <kfi_eq.h>

struct bio_vec;
struct kfi_dax_range;
struct kvec;
struct scatterlist;

/* Flags of address vectors. */
#define KFI_SYMMETRIC		(1ULL << 59)
#define KFI_SYNC_ERR		(1ULL << 58)

/**
 * struct kfi_av_attr - attributes of an address vector
 * @type: type of the vector; all types behave the same
 * @rx_ctx_bits: bits of a name that select a receive context (kfi_rx_addr()),
 *	up to 32
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
 * struct kfi_ops_av - calls of an address vector
 * @size: size of the structure in its provider's build, in bytes
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
 * @fid: common start of all objects
 * @mem_desc: descriptor of the memory for local operations
 * @key: key value for peers, or KFI_KEY_NOTAVAIL
 * @iova: address of the first byte for peers
 */
struct kfid_mr {
	struct kfid	fid;
	void		*mem_desc;
	u64		key;
	u64		iova;
};

/**
 * struct kfi_mr_attr - memory for kfi_mr_regattr() to register
 * @type: selects the member of the union
 * @mr_iov: kernel addresses
 * @mr_biov: pages
 * @mr_sgl: a scatterlist
 * @mr_dax: memory of a block device (kfi_dax.h)
 * @iov_count: number of pieces
 * @access: as for kfi_mr_reg()
 * @offset: 0
 * @requested_key: not used if the provider has KFI_MR_PROV_KEY
 * @context: the object's context
 * @auth_key_size: bytes of @auth_key
 * @auth_key: auth key that peers must prove to access the memory. NULL: the
 *	domain's, or the bound endpoint's. Memory that is bound to an endpoint
 *	accepts no other auth key than the endpoint's
 */
struct kfi_mr_attr {
	enum kfi_iov_type			type;
	union {
		const struct kvec		*mr_iov;
		const struct bio_vec		*mr_biov;
		const struct scatterlist	*mr_sgl;
		const struct kfi_dax_range	*mr_dax;
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

/* Data types of atomics. */
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

/* Operations of atomics. */
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
 * struct kfi_ops_domain - calls that open objects on a domain
 * @size: size of the structure in its provider's build, in bytes
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
 * struct kfi_ops_mr - calls that register memory
 * @size: size of the structure in its provider's build, in bytes
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

/* Flag of kfi_domain_bind(): a registration completes with an event. */
#define KFI_REG_MR	(1ULL << 59)

/**
 * struct kfid_domain - a domain
 * @fid: common start of all objects
 * @ops: calls of the domain
 * @mr: calls that register memory
 */
struct kfid_domain {
	struct kfid		fid;
	struct kfi_ops_domain	*ops;
	struct kfi_ops_mr	*mr;
};

/**
 * kfi_domain() - opens a domain
 * @fabric: the fabric
 * @info: info whose domain_attr->name names the domain. If its mr_mode has
 *	KFI_MR_ENDPOINT, each region of the domain must be bound to an endpoint.
 *	Only that endpoint's peer can access the region
 * @domain: where the domain is stored
 * @context: the domain's context
 *
 * May sleep.
 *
 * Return: 0, or
 * -ENODEV if the fabric has no domain of this name;
 * -EOPNOTSUPP if the domain does not support KFI_MR_ENDPOINT;
 * -EINVAL if the auth key's size is not valid.
 */
static inline int kfi_domain(struct kfid_fabric *fabric, struct kfi_info *info,
			     struct kfid_domain **domain, void *context)
{
	return fabric->ops->domain(fabric, info, domain, context);
}

/* Binds a domain to an event queue, for events of its operations. */
static inline int kfi_domain_bind(struct kfid_domain *domain, struct kfid *fid, u64 flags)
{
	return domain->fid.ops->bind(&domain->fid, fid, flags);
}

/**
 * kfi_cq_open() - opens a completion queue
 * @domain: the domain
 * @attr: the queue's attributes; NULL: all zero
 * @cq: where the queue is stored
 * @comp_handler: called for each entry, in any context, or NULL
 * @context: the context of the queue, passed to the handler
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
 * @domain: the domain
 * @buf: kernel address: of pages, from kmalloc() or from vmalloc()
 * @len: bytes
 * @access: KFI_SEND, KFI_RECV, KFI_READ, KFI_WRITE, KFI_REMOTE_READ,
 *	KFI_REMOTE_WRITE; with both remote rights also KFI_ATOMIC, for peers'
 *	atomics
 * @offset: 0
 * @requested_key: not used if the provider has KFI_MR_PROV_KEY
 * @flags: KFI_DYNAMIC_KEYS (kfi_key.h) and KFI_RMA_PMEM (the memory must be
 *	persistent), or 0
 * @mr: where the registered memory is stored
 * @context: the context of the registered memory
 *
 * If @access has a remote right and @flags has no KFI_DYNAMIC_KEYS, the memory
 * has one key for all of its bytes. The caller owns the memory and keeps it until kfi_close() has
 * succeeded. May sleep.
 *
 * Return: 0, or
 * -EFAULT if the address is not memory of the kernel;
 * -EINVAL if @len is 0, a flag or right is unknown, or the memory is not
 * persistent as KFI_RMA_PMEM requires;
 * -EOPNOTSUPP with KFI_RMA_PMEM if the provider or the processor cannot make
 * writes to the memory durable;
 * -EMSGSIZE if one key of the provider cannot export as much memory.
 */
static inline int kfi_mr_reg(struct kfid_domain *domain, const void *buf, size_t len, u64 access,
			     u64 offset, u64 requested_key, u64 flags, struct kfid_mr **mr,
			     void *context)
{
	return domain->mr->reg(&domain->fid, buf, len, access, offset, requested_key, flags, mr,
			       context);
}

/*
 * Like kfi_mr_reg(), but registers several pieces as one range of addresses.
 * All pieces except the first begin at a page's start, and all except the last
 * end at a page's end; otherwise returns -EINVAL.
 */
static inline int kfi_mr_regv(struct kfid_domain *domain, const struct kvec *iov, size_t count,
			      u64 access, u64 offset, u64 requested_key, u64 flags,
			      struct kfid_mr **mr, void *context)
{
	return domain->mr->regv(&domain->fid, iov, count, access, offset, requested_key, flags,
				mr, context);
}

/* Like kfi_mr_regv(), but registers pages. */
static inline int kfi_mr_regbv(struct kfid_domain *domain, const struct bio_vec *biov,
			       size_t count, u64 access, u64 offset, u64 requested_key,
			       u64 flags, struct kfid_mr **mr, void *context)
{
	return domain->mr->regbv(&domain->fid, biov, count, access, offset, requested_key, flags,
				 mr, context);
}

/* Like kfi_mr_regv(), but registers a scatterlist. */
static inline int kfi_mr_regsgl(struct kfid_domain *domain, const struct scatterlist *sgl,
				size_t count, u64 access, u64 offset, u64 requested_key,
				u64 flags, struct kfid_mr **mr, void *context)
{
	return domain->mr->regsgl(&domain->fid, sgl, count, access, offset, requested_key, flags,
				  mr, context);
}

/*
 * Registers memory as kfi_mr_regv(), kfi_mr_regbv(), kfi_mr_regsgl() or
 * kfi_mr_reg_dax(); @attr selects which.
 */
static inline int kfi_mr_regattr(struct kfid_domain *domain, const struct kfi_mr_attr *attr,
				 u64 flags, struct kfid_mr **mr)
{
	return domain->mr->regattr(&domain->fid, attr, flags, mr);
}

/* Returns the descriptor of the memory for local operations. */
static inline void *kfi_mr_desc(struct kfid_mr *mr)
{
	return mr->mem_desc;
}

/* Returns the key value of the memory, or KFI_KEY_NOTAVAIL. */
static inline u64 kfi_mr_key(struct kfid_mr *mr)
{
	return mr->key;
}

/* Stores a key that is longer than 64 bits. */
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

/* Stores a short name for a peer's key that is longer than 64 bits. */
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

/* Releases a name of kfi_mr_map_raw(). */
static inline int kfi_mr_unmap_key(struct kfid_domain *domain, u64 key)
{
	return domain->fid.ops->control(&domain->fid, KFI_UNMAP_KEY, &key);
}

/*
 * Binds memory to an endpoint before kfi_mr_enable(), if the domain has
 * KFI_MR_ENDPOINT.
 */
static inline int kfi_mr_bind(struct kfid_mr *mr, struct kfid *bfid, u64 flags)
{
	return mr->fid.ops->bind(&mr->fid, bfid, flags);
}

/*
 * Reports a changed mapping of the memory. The kernel's own memory does not
 * need this call.
 */
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

/*
 * Registers memory that is bound to an endpoint. After the return key and
 * address are valid.
 */
static inline int kfi_mr_enable(struct kfid_mr *mr)
{
	return mr->fid.ops->control(&mr->fid, KFI_ENABLE, NULL);
}

/*
 * Opens an address vector: a table of peers' addresses. Endpoints of type
 * KFI_EP_MSG are connected: they are not bound to an address vector, and their
 * calls ignore its names. To connect, a consumer looks up the address. NULL for
 * @attr: all zero. Returns -ENOSYS if the attributes have a name.
 */
static inline int kfi_av_open(struct kfid_domain *domain, struct kfi_av_attr *attr,
			      struct kfid_av **av, void *context)
{
	return domain->ops->av_open(domain, attr, av, context);
}

/*
 * Binds an address vector to an event queue, for events of insertions. Returns
 * -ENOSYS: insertions complete in the call.
 */
static inline int kfi_av_bind(struct kfid_av *av, struct kfid *fid, u64 flags)
{
	return av->fid.ops->bind(&av->fid, fid, flags);
}

/*
 * Inserts IPv4 and IPv6 addresses that follow each other in memory. Returns the
 * number of inserted addresses, or -EINVAL if a flag is unknown. An address
 * that was not inserted gets the name KFI_ADDR_NOTAVAIL. With KFI_SYNC_ERR,
 * @context points to @count ints; each is set to 0 or to the address's error
 * number.
 */
static inline int kfi_av_insert(struct kfid_av *av, const void *addr, size_t count,
				kfi_addr_t *kfi_addr, u64 flags, void *context)
{
	return av->ops->insert(av, addr, count, kfi_addr, flags, context);
}

/*
 * Like kfi_av_insert(), but for an address as text. Returns -EINVAL if the text
 * is not an address.
 */
static inline int kfi_av_insertsvc(struct kfid_av *av, const char *node, const char *service,
				   kfi_addr_t *kfi_addr, u64 flags, void *context)
{
	return av->ops->insertsvc(av, node, service, kfi_addr, flags, context);
}

/*
 * Like kfi_av_insertsvc(), but for consecutive addresses and ports: all ports
 * of a node come before the next node.
 */
static inline int kfi_av_insertsym(struct kfid_av *av, const char *node, size_t nodecnt,
				   const char *service, size_t svccnt, kfi_addr_t *kfi_addr,
				   u64 flags, void *context)
{
	return av->ops->insertsym(av, node, nodecnt, service, svccnt, kfi_addr, flags, context);
}

/*
 * Removes addresses; later insertions may use their names again. Returns
 * -EINVAL if a name has no address.
 */
static inline int kfi_av_remove(struct kfid_av *av, kfi_addr_t *kfi_addr, size_t count, u64 flags)
{
	return av->ops->remove(av, kfi_addr, count, flags);
}

/*
 * Copies the address that has this name, and stores its size in @addrlen. If
 * the buffer is too small, the address is truncated, and the call returns
 * -KFI_ETOOSMALL.
 */
static inline int kfi_av_lookup(struct kfid_av *av, kfi_addr_t kfi_addr, void *addr,
				size_t *addrlen)
{
	return av->ops->lookup(av, kfi_addr, addr, addrlen);
}

/*
 * Returns an address as text, truncated to the buffer. @len is set to the size
 * of the whole text.
 */
static inline const char *kfi_av_straddr(struct kfid_av *av, const void *addr, char *buf,
					 size_t *len)
{
	return av->ops->straddr(av, addr, buf, len);
}

/* Returns the name of one of a peer's receive contexts. */
static inline kfi_addr_t kfi_rx_addr(kfi_addr_t kfi_addr, int rx_index, int rx_ctx_bits)
{
	return rx_ctx_bits ? ((kfi_addr_t)rx_index << (64 - rx_ctx_bits)) | kfi_addr : kfi_addr;
}

#endif
