/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The kfi API, version 1.7, for kernel consumers and providers written in C.
 * This header has queries (kfi_getinfo()), and the common start of all objects.
 *
 * Names, structures and values are those of the published kfi API. Some values
 * differ from those of libfabric and kfabric_uapi.h; for C code in the kernel,
 * this header's values apply. A file must not include both headers.
 */
#ifndef KFABRIC_H
#define KFABRIC_H

#include <linux/atomic.h>
#include <linux/completion.h>
#include <linux/errno.h>
#include <linux/init.h>
#include <linux/limits.h>
#include <linux/stddef.h>
#include <linux/types.h>

#define KFI_MAJOR_VERSION	1
#define KFI_MINOR_VERSION	7

enum {
	KFI_PATH_MAX	= 256,
	KFI_NAME_MAX	= 64,
	KFI_VERSION_MAX	= 64,
};

#define KFI_VERSION(major, minor)	(((major) << 16) | (minor))
#define KFI_MAJOR(version)		((version) >> 16)
#define KFI_MINOR(version)		((version) & 0xffff)
#define KFI_VERSION_GE(v1, v2)		((u32)(v1) >= (u32)(v2))
#define KFI_VERSION_LT(v1, v2)		((u32)(v1) < (u32)(v2))

struct kfid;
struct kfid_av;
struct kfid_cntr;
struct kfid_cq;
struct kfid_domain;
struct kfid_ep;
struct kfid_eq;
struct kfid_fabric;
struct kfid_mr;
struct kfid_pep;
struct kfid_poll;
struct kfid_stx;
struct kfid_wait;

typedef struct kfid *kfid_t;

/* A provider's own values of an enumeration have this bit. */
#define KFI_PROV_SPECIFIC	(1U << 31)

/*
 * Capabilities, and flags of calls. Bits 40 to 44 are in kfi_key.h. Each
 * provider defines bits 60 to 63.
 */
#define KFI_MSG			(1ULL << 1)
#define KFI_RMA			(1ULL << 2)
#define KFI_TAGGED		(1ULL << 3)
#define KFI_ATOMIC		(1ULL << 4)
#define KFI_ATOMICS		KFI_ATOMIC
#define KFI_MULTICAST		(1ULL << 5)
#define KFI_TAGGED_RMA		(1ULL << 6)

#define KFI_READ		(1ULL << 8)
#define KFI_WRITE		(1ULL << 9)
#define KFI_RECV		(1ULL << 10)
#define KFI_SEND		(1ULL << 11)
#define KFI_TRANSMIT		KFI_SEND
#define KFI_REMOTE_READ		(1ULL << 12)
#define KFI_REMOTE_WRITE	(1ULL << 13)

#define KFI_MULTI_RECV		(1ULL << 16)
#define KFI_REMOTE_CQ_DATA	(1ULL << 17)
#define KFI_MORE		(1ULL << 18)
#define KFI_PEEK		(1ULL << 19)
#define KFI_TRIGGER		(1ULL << 20)
#define KFI_FENCE		(1ULL << 21)

#define KFI_COMPLETION		(1ULL << 24)
#define KFI_EVENT		KFI_COMPLETION
#define KFI_INJECT		(1ULL << 25)
#define KFI_INJECT_COMPLETE	(1ULL << 26)
#define KFI_TRANSMIT_COMPLETE	(1ULL << 27)
#define KFI_DELIVERY_COMPLETE	(1ULL << 28)
#define KFI_AFFINITY		(1ULL << 29)
#define KFI_COMMIT_COMPLETE	(1ULL << 30)
#define KFI_TAGGED_MULTI_RECV	(1ULL << 31)

#define KFI_RMA_PMEM		(1ULL << 49)
#define KFI_SOURCE_ERR		(1ULL << 50)
#define KFI_LOCAL_COMM		(1ULL << 51)
#define KFI_REMOTE_COMM		(1ULL << 52)
#define KFI_SHARED_AV		(1ULL << 53)
#define KFI_PROV_ATTR_ONLY	(1ULL << 54)
#define KFI_NUMERICHOST		(1ULL << 55)
#define KFI_RMA_EVENT		(1ULL << 56)
#define KFI_SOURCE		(1ULL << 57)
#define KFI_NAMED_RX_CTX	(1ULL << 58)
#define KFI_DIRECTED_RECV	(1ULL << 59)

/*
 * Flag of kfi_ep_bind(): a successful operation has an entry only with
 * KFI_COMPLETION.
 */
#define KFI_SELECTIVE_COMPLETION (1ULL << 59)

/* Address formats. */
enum {
	KFI_FORMAT_UNSPEC,
	KFI_SOCKADDR,
	KFI_SOCKADDR_IN,
	KFI_SOCKADDR_IN6,
	KFI_SOCKADDR_IB,
	KFI_ADDR_GNI,
	KFI_ADDR_CXI,
};

/* The published header defines this macro, too. */
#ifndef UINT64_MAX
#define UINT64_MAX		U64_MAX
#endif

typedef u64 kfi_addr_t;

#define KFI_ADDR_UNSPEC		U64_MAX
#define KFI_ADDR_NOTAVAIL	U64_MAX
#define KFI_KEY_NOTAVAIL	U64_MAX
#define KFI_SHARED_CONTEXT	U64_MAX

/*
 * Maximum size of an auth key, in bytes. Endpoints with the same auth key can
 * connect to each other, after each has proven the key. They can access memory
 * and keys under this auth key; other endpoints cannot. An object without an
 * auth key uses its domain's. Kernel consumers need no grant (kfi_auth.h).
 */
#define KFI_AUTH_KEY_MAX	64

enum kfi_av_type {
	KFI_AV_UNSPEC,
	KFI_AV_MAP,
	KFI_AV_TABLE,
};

/*
 * Registration modes: requirements of the provider; in hints, modes that the
 * caller supports.
 *
 * KFI_MR_LOCAL: local buffers are in registered memory, and each call passes
 * the memory's descriptor (kfi_mr_desc()). KFI_MR_VIRT_ADDR: peers address the
 * first byte by kfid_mr.iova. KFI_MR_PROV_KEY: the provider chooses key values
 * (kfi_mr_key()). KFI_MR_ENDPOINT: the caller binds memory to an endpoint and
 * enables it before use.
 *
 * kfabric's own providers require KFI_MR_LOCAL of every caller. They require
 * KFI_MR_VIRT_ADDR and KFI_MR_PROV_KEY if peers can access the caller's memory:
 * its capabilities have KFI_REMOTE_READ or KFI_REMOTE_WRITE. KFI_RMA or
 * KFI_ATOMIC without a direction stands for all directions. If hints lack a
 * required mode, kfi_getinfo() returns -ENODATA. Hints without capabilities
 * find offers without remote access.
 */
#define KFI_MR_LOCAL		(1 << 1)
#define KFI_MR_RAW		(1 << 2)
#define KFI_MR_VIRT_ADDR	(1 << 3)
#define KFI_MR_PROV_KEY		(1 << 4)
#define KFI_MR_RMA_EVENT	(1 << 5)
#define KFI_MR_ENDPOINT		(1 << 6)

enum kfi_progress {
	KFI_PROGRESS_UNSPEC,
	KFI_PROGRESS_AUTO,
	KFI_PROGRESS_MANUAL,
};

enum kfi_threading {
	KFI_THREAD_UNSPEC,
	KFI_THREAD_SAFE,
	KFI_THREAD_FID,
	KFI_THREAD_DOMAIN,
	KFI_THREAD_COMPLETION,
	KFI_THREAD_ENDPOINT,
};

enum kfi_resource_mgmt {
	KFI_RM_UNSPEC,
	KFI_RM_DISABLED,
	KFI_RM_ENABLED,
};

/*
 * Ordering guarantees: a later read, write or send stays behind an earlier one.
 */
#define KFI_ORDER_NONE		0
#define KFI_ORDER_RAR		(1 << 0)
#define KFI_ORDER_RAW		(1 << 1)
#define KFI_ORDER_RAS		(1 << 2)
#define KFI_ORDER_WAR		(1 << 3)
#define KFI_ORDER_WAW		(1 << 4)
#define KFI_ORDER_WAS		(1 << 5)
#define KFI_ORDER_SAR		(1 << 6)
#define KFI_ORDER_SAW		(1 << 7)
#define KFI_ORDER_SAS		(1 << 8)
#define KFI_ORDER_STRICT	0x1ff
#define KFI_ORDER_DATA		(1 << 16)

enum kfi_ep_type {
	KFI_EP_UNSPEC,
	KFI_EP_MSG,
	KFI_EP_DGRAM,
	KFI_EP_RDM,
	KFI_EP_SOCK_STREAM,
	KFI_EP_SOCK_DGRAM,
};

/*
 * Protocols. Endpoints of the same protocol can communicate, whatever their
 * providers.
 */
enum {
	KFI_PROTO_UNSPEC,
	KFI_PROTO_RDMA_CM_IB_RC,
	KFI_PROTO_IWARP,
	KFI_PROTO_IB_UD,
	KFI_PROTO_UDP,
	KFI_PROTO_SOCK_TCP,
	KFI_PROTO_IWARP_RDM,
	KFI_PROTO_IB_RDM,
	KFI_PROTO_GNI,
	KFI_PROTO_CXI,
};

/**
 * enum kfi_iov_type - type of a list of memory, selects a union's member
 * @KFI_KVEC: kernel addresses: of pages, from kmalloc() or from vmalloc()
 * @KFI_BVEC: pages, with offset and length
 * @KFI_SGL: a scatterlist; its pages are used, mapped for a device or not
 * @KFI_DAX: memory of a block device (kfi_dax.h); for registrations only
 */
enum kfi_iov_type {
	KFI_KVEC = 1,
	KFI_BVEC,
	KFI_SGL,
	KFI_DAX = 0x100,
};

/* Traffic classes. */
enum {
	KFI_TC_UNSPEC		= 0,
	KFI_TC_DSCP		= 0x100,
	KFI_TC_LABEL		= 0x200,
	KFI_TC_BEST_EFFORT	= KFI_TC_LABEL,
	KFI_TC_LOW_LATENCY,
	KFI_TC_DEDICATED_ACCESS,
	KFI_TC_BULK_DATA,
	KFI_TC_SCAVENGER,
	KFI_TC_NETWORK_CTRL,
};

/* Returns the traffic class of a DSCP (differentiated services code point). */
static inline u32 kfi_tc_dscp_set(u8 dscp)
{
	return KFI_TC_DSCP | dscp;
}

/* Returns the DSCP of a traffic class, or 0 if the class has none. */
static inline u8 kfi_tc_dscp_get(u32 tclass)
{
	return tclass & KFI_TC_DSCP ? (u8)tclass : 0;
}

/* Modes: requirements of the provider, other than registration modes. */
#define KFI_CONTEXT		(1ULL << 59)
#define KFI_MSG_PREFIX		(1ULL << 58)
#define KFI_ASYNC_IOV		(1ULL << 57)
#define KFI_RX_CQ_DATA		(1ULL << 56)
#define KFI_LOCAL_MR		(1ULL << 55)
#define KFI_NOTIFY_FLAGS_ONLY	(1ULL << 54)
#define KFI_RESTRICTED_COMP	(1ULL << 53)
#define KFI_CONTEXT2		(1ULL << 52)

/**
 * struct kfi_tx_attr - transmit side of an endpoint
 * @caps: capabilities
 * @mode: modes
 * @op_flags: default flags, for calls without flags
 * @msg_order: KFI_ORDER_*, of messages and one-sided operations
 * @comp_order: KFI_ORDER_*, of completions
 * @inject_size: maximum bytes of an injected operation
 * @size: maximum number of outstanding operations
 * @iov_limit: maximum number of local pieces of an operation
 * @rma_iov_limit: maximum number of remote ranges of an operation
 * @tclass: traffic class
 */
struct kfi_tx_attr {
	u64		caps;
	u64		mode;
	u64		op_flags;
	u64		msg_order;
	u64		comp_order;
	size_t		inject_size;
	size_t		size;
	size_t		iov_limit;
	size_t		rma_iov_limit;
	u32		tclass;
};

/**
 * struct kfi_rx_attr - receive side of an endpoint
 * @caps: capabilities
 * @mode: modes
 * @op_flags: default flags, for calls without flags
 * @msg_order: KFI_ORDER_*, of messages
 * @comp_order: KFI_ORDER_*, of completions
 * @total_buffered_recv: bytes that the provider buffers if no receive is posted
 * @size: maximum number of posted receives
 * @iov_limit: maximum number of pieces of a receive
 */
struct kfi_rx_attr {
	u64		caps;
	u64		mode;
	u64		op_flags;
	u64		msg_order;
	u64		comp_order;
	size_t		total_buffered_recv;
	size_t		size;
	size_t		iov_limit;
};

/**
 * struct kfi_ep_attr - attributes of an endpoint
 * @type: type of the endpoint
 * @protocol: KFI_PROTO_*
 * @protocol_version: version of the protocol
 * @max_msg_size: maximum bytes of an operation
 * @msg_prefix_size: bytes left free before a message (KFI_MSG_PREFIX)
 * @max_order_raw_size: maximum bytes for which reads stay behind writes
 * @max_order_war_size: maximum bytes for which writes stay behind reads
 * @max_order_waw_size: maximum bytes for which writes stay behind writes
 * @mem_tag_format: mask of the significant bits of a tag
 * @tx_ctx_cnt: number of transmit contexts
 * @rx_ctx_cnt: number of receive contexts
 * @auth_key_size: bytes of @auth_key
 * @auth_key: auth key of the endpoint; NULL: the domain's. Of a passive
 *	endpoint: the auth key that peers must prove. Of a connection request:
 *	the auth key that the peer has proven
 */
struct kfi_ep_attr {
	enum kfi_ep_type	type;
	u32			protocol;
	u32			protocol_version;
	size_t			max_msg_size;
	size_t			msg_prefix_size;
	size_t			max_order_raw_size;
	size_t			max_order_war_size;
	size_t			max_order_waw_size;
	u64			mem_tag_format;
	size_t			tx_ctx_cnt;
	size_t			rx_ctx_cnt;
	size_t			auth_key_size;
	u8			*auth_key;
};

/**
 * struct kfi_domain_attr - attributes of a domain
 * @domain: the open domain, see kfi_getinfo()
 * @name: name of the domain
 * @threading: calls that the caller serializes
 * @control_progress: whether control operations progress without calls
 * @data_progress: whether data operations progress without calls
 * @resource_mgmt: whether a full queue refuses operations or is overrun
 * @av_type: type of address vectors
 * @mr_mode: KFI_MR_*
 * @mr_key_size: bytes of a key value
 * @cq_data_size: bytes of data in a completion
 * @cq_cnt: optimal number of completion queues
 * @ep_cnt: number of endpoints
 * @tx_ctx_cnt: number of transmit contexts
 * @rx_ctx_cnt: number of receive contexts
 * @max_ep_tx_ctx: maximum number of transmit contexts of an endpoint
 * @max_ep_rx_ctx: maximum number of receive contexts of an endpoint
 * @max_ep_stx_ctx: maximum number of shared transmit contexts
 * @max_ep_srx_ctx: maximum number of shared receive contexts
 * @cntr_cnt: number of counters
 * @mr_iov_limit: maximum number of pieces of a registration
 * @caps: capabilities of the domain
 * @mode: modes
 * @auth_key: auth key of objects on the domain that have none of their own
 * @auth_key_size: bytes of @auth_key
 * @max_err_data: maximum bytes of an error's data
 * @mr_cnt: number of registrations
 * @tclass: traffic class
 */
struct kfi_domain_attr {
	struct kfid_domain	*domain;
	char			*name;
	enum kfi_threading	threading;
	enum kfi_progress	control_progress;
	enum kfi_progress	data_progress;
	enum kfi_resource_mgmt	resource_mgmt;
	enum kfi_av_type	av_type;
	int			mr_mode;
	size_t			mr_key_size;
	size_t			cq_data_size;
	size_t			cq_cnt;
	size_t			ep_cnt;
	size_t			tx_ctx_cnt;
	size_t			rx_ctx_cnt;
	size_t			max_ep_tx_ctx;
	size_t			max_ep_rx_ctx;
	size_t			max_ep_stx_ctx;
	size_t			max_ep_srx_ctx;
	size_t			cntr_cnt;
	size_t			mr_iov_limit;
	u64			caps;
	u64			mode;
	u8			*auth_key;
	size_t			auth_key_size;
	size_t			max_err_data;
	size_t			mr_cnt;
	u32			tclass;
};

/**
 * struct kfi_fabric_attr - attributes of a fabric
 * @fabric: the open fabric, see kfi_getinfo()
 * @name: name of the fabric; NULL: the provider's first
 * @prov_name: name of the provider
 * @prov_version: version of the provider
 * @api_version: version of the API that the provider implements
 */
struct kfi_fabric_attr {
	struct kfid_fabric	*fabric;
	char			*name;
	char			*prov_name;
	u32			prov_version;
	u32			api_version;
};

/**
 * struct kfi_info - an offer of a provider, or the caller's hints
 * @next: next info of the list, or NULL
 * @caps: capabilities
 * @mode: modes
 * @addr_format: format of the addresses
 * @src_addrlen: bytes of @src_addr
 * @dest_addrlen: bytes of @dest_addr
 * @src_addr: the caller's address
 * @dest_addr: the peer's address
 * @handle: the connection request of a KFI_CONNREQ event: a value that no other
 *	request ever has. Callers pass the value on and never follow it
 * @tx_attr: the transmit side
 * @rx_attr: the receive side
 * @ep_attr: the endpoint
 * @domain_attr: the domain
 * @fabric_attr: the fabric
 *
 * The info owns all memory that it points to, except @handle and open objects.
 * The memory is from kmalloc(), and kfi_freeinfo() frees it.
 */
struct kfi_info {
	struct kfi_info		*next;
	u64			caps;
	u64			mode;
	u32			addr_format;
	size_t			src_addrlen;
	size_t			dest_addrlen;
	void			*src_addr;
	void			*dest_addr;
	kfid_t			handle;
	struct kfi_tx_attr	*tx_attr;
	struct kfi_rx_attr	*rx_attr;
	struct kfi_ep_attr	*ep_attr;
	struct kfi_domain_attr	*domain_attr;
	struct kfi_fabric_attr	*fabric_attr;
};

/* Classes of objects. */
enum {
	KFI_CLASS_UNSPEC,
	KFI_CLASS_FABRIC,
	KFI_CLASS_DOMAIN,
	KFI_CLASS_EP,
	KFI_CLASS_SEP,
	KFI_CLASS_RX_CTX,
	KFI_CLASS_SRX_CTX,
	KFI_CLASS_TX_CTX,
	KFI_CLASS_STX_CTX,
	KFI_CLASS_PEP,
	KFI_CLASS_INTERFACE,
	KFI_CLASS_AV,
	KFI_CLASS_MR,
	KFI_CLASS_EQ,
	KFI_CLASS_CQ,
	KFI_CLASS_CNTR,
	KFI_CLASS_WAIT,
	KFI_CLASS_POLL,
	KFI_CLASS_CONNREQ,
};

struct kfi_eq_attr;
struct kfi_wait_attr;

/*
 * Called for entries in a completion queue. Context: any; must not sleep. The
 * handler may post and read. It may take locks that callers hold while they
 * post: no posting call calls it directly.
 */
typedef void (*kfi_comp_handler)(struct kfid_cq *cq, void *context);
/*
 * Called for events in an event queue. Context: process. The handler schedules
 * work and returns.
 */
typedef void (*kfi_event_handler)(struct kfid_eq *eq, void *context);

/**
 * struct kfi_ops - calls that every object has
 * @size: size of the structure in its provider's build, in bytes
 * @close: closes the object
 * @bind: binds the object to another object
 * @control: performs a control command (KFI_*)
 * @ops_open: returns a provider's own calls
 */
struct kfi_ops {
	size_t	size;
	int	(*close)(struct kfid *fid);
	int	(*bind)(struct kfid *fid, struct kfid *bfid, u64 flags);
	int	(*control)(struct kfid *fid, int command, void *arg);
	int	(*ops_open)(struct kfid *fid, const char *name, u64 flags, void **ops,
			    void *context);
};

/**
 * struct kfid - common start of all objects
 * @fclass: KFI_CLASS_*
 * @context: the consumer's context
 * @ops: calls of the object
 * @comp: completed when @ref_cnt is 0
 * @ref_cnt: for providers, see kfi_prov.h
 */
struct kfid {
	size_t			fclass;
	void			*context;
	struct kfi_ops		*ops;
	struct completion	comp;
	atomic_t		ref_cnt;
};

/*
 * Returns the version of the API that kfabric.ko implements, KFI_VERSION(1, 7).
 */
u32 kfi_version(void);

/**
 * kfi_getinfo() - lists the providers' offers
 * @version: version of the API that the caller uses; 0: any
 * @node: address as text, or NULL
 * @service: port as text, or NULL
 * @flags: KFI_SOURCE: @node and @service are the caller's own; KFI_NUMERICHOST:
 *	@node is a number, as is always required
 * @hints: requirements, or NULL
 * @info: where the list is stored, best offer first
 *
 * The call searches in the network namespace of the current task. May sleep.
 *
 * If a field of @hints is zero or NULL, every value matches. Modes are the
 * exception: zero means that the caller supports none. kfi_allocinfo()
 * allocates @hints->domain_attr, so its callers must set mr_mode there:
 * KFI_MR_LOCAL, and also KFI_MR_VIRT_ADDR and KFI_MR_PROV_KEY if peers can
 * access the caller's memory.
 *
 * If @hints names an open fabric or domain, only offers on it match. Its
 * pointer is compared with the objects that are open in this namespace, and
 * never followed. A closed object matches no offer, unless a later object has
 * the same address.
 *
 * The returned @fabric_attr->fabric and @domain_attr->domain are those of
 * @hints. If @hints names none, fabric is the first one of this name that the
 * calling module opened. domain is the first one of this name that the module
 * opened on that fabric. Either is NULL if the module has none open. An info
 * keeps no object open.
 *
 * Return: 0, or
 * -ENODATA if no offer matches;
 * -ENODATA if @node or @service is not a number;
 * -ENODATA if a fabric or domain in @hints is not open;
 * -ENOSYS if @version is newer than that of kfabric.ko;
 * -EINVAL if an address in @hints is not valid, or a flag is unknown;
 * -ENOMEM if there is no memory.
 */
int kfi_getinfo(u32 version, const char *node, const char *service, u64 flags,
		struct kfi_info *hints, struct kfi_info **info);
#define kfi_getinfo(...) kfi_getinfo_by(THIS_MODULE, __VA_ARGS__)

/* Like kfi_getinfo(), for the calling module @user. */
int kfi_getinfo_by(struct module *user, u32 version, const char *node, const char *service,
		   u64 flags, struct kfi_info *hints, struct kfi_info **info);

/* Frees a list of infos, and all memory that the infos own. */
void kfi_freeinfo(struct kfi_info *info);

/* Returns an empty info with all attributes, or NULL if there is no memory. */
struct kfi_info *kfi_allocinfo(void);

/*
 * Returns a copy of one info, with the same handle and without @info->next. If
 * @info is NULL, returns a new info. Returns NULL if there is no memory.
 */
struct kfi_info *kfi_dupinfo(const struct kfi_info *info);

/**
 * struct kfi_ops_fabric - calls of a fabric
 * @size: size of the structure in its provider's build, in bytes
 * @domain: see kfi_domain()
 * @passive_ep: see kfi_passive_ep()
 * @eq_open: see kfi_eq_open()
 * @wait_open: see kfi_wait_open()
 */
struct kfi_ops_fabric {
	size_t	size;
	int	(*domain)(struct kfid_fabric *fabric, struct kfi_info *info,
			  struct kfid_domain **dom, void *context);
	int	(*passive_ep)(struct kfid_fabric *fabric, struct kfi_info *info,
			      struct kfid_pep **pep, void *context);
	int	(*eq_open)(struct kfid_fabric *fabric, struct kfi_eq_attr *attr,
			   struct kfid_eq **eq, kfi_event_handler event_handler, void *context);
	int	(*wait_open)(struct kfid_fabric *fabric, struct kfi_wait_attr *attr,
			     struct kfid_wait **waitset);
};

/**
 * struct kfid_fabric - a fabric
 * @fid: common start of all objects
 * @ops: calls of the fabric
 * @api_version: version of the API that the fabric implements
 */
struct kfid_fabric {
	struct kfid		fid;
	struct kfi_ops_fabric	*ops;
	u32			api_version;
};

/**
 * kfi_fabric() - opens a fabric
 * @attr: provider and name, as in an info
 * @fabric: where the fabric is stored
 * @context: the fabric's context
 *
 * The fabric uses the network namespace of the current task, and keeps that
 * namespace until it is closed. May sleep.
 *
 * A consumer may open a fabric more than once, for instance for each
 * connection. Each call creates a separate object, with its own domains, queues
 * and passive endpoints.
 *
 * Return: 0, or
 * -ENODEV if there is no such provider or fabric;
 * -EINVAL if @attr names no provider;
 * -ENOMEM if there is no memory.
 */
int kfi_fabric(struct kfi_fabric_attr *attr, struct kfid_fabric **fabric, void *context);
#define kfi_fabric(...) kfi_fabric_by(THIS_MODULE, __VA_ARGS__)

/* kfi_fabric() for a module. */
int kfi_fabric_by(struct module *user, struct kfi_fabric_attr *attr, struct kfid_fabric **fabric,
		  void *context);

/* Returns whether a table is large enough for a call, and has the call. */
#define KFI_CHECK_OP(ops, opstype, op) \
	((ops)->size > offsetof(opstype, op) && (ops)->op)

/**
 * kfi_close() - closes an object
 * @fid: the object
 *
 * May sleep. After a successful return no handler is called for the queue or
 * endpoint. After a successful return no device uses the registered memory.
 *
 * CHECK THE RETURN VALUE, AND CLOSE IN THIS ORDER: endpoints and passive
 * endpoints; queues, counters and memory; the domain; the fabric. An object
 * stays open (-EBUSY) if another object is bound to it or opened on it. Suppose
 * a consumer closes an event queue before the passive endpoint that is bound to
 * it, and ignores the error. Then the queue and the fabric leak, and kfabric.ko
 * cannot be unloaded.
 *
 * If operations still use memory after 1 s (LINGER_MS, src/capi/mr.rs), its
 * close fails with -EBUSY, too. The memory then has no key and accepts no
 * operations. The consumer must call kfi_close() again.
 *
 * Return: 0, or
 * -EBUSY if another object or an operation uses the object: it stays open.
 */
static inline int kfi_close(struct kfid *fid)
{
	return fid->ops->close(fid);
}

struct kfi_alias {
	struct kfid	**fid;
	u64		flags;
};

struct kfi_mr_raw_attr {
	u64		flags;
	u64		*base_addr;
	u8		*raw_key;
	size_t		*key_size;
};

struct kfi_mr_map_raw {
	u64		flags;
	u64		base_addr;
	u8		*raw_key;
	size_t		key_size;
	u64		*key;
};

/* Commands of kfi_control(), with their arguments. kfi_key.h has more. */
enum {
	KFI_GETFIDFLAG,		/* u64 * */
	KFI_SETFIDFLAG,		/* u64 * */
	KFI_GETOPSFLAG,		/* u64 * */
	KFI_SETOPSFLAG,		/* u64 * */
	KFI_ALIAS,		/* struct kfi_alias * */
	KFI_GETWAIT,		/* struct wait_queue_head ** */
	KFI_ENABLE,		/* NULL */
	KFI_BACKLOG,		/* int * */
	KFI_GET_RAW_MR,		/* struct kfi_mr_raw_attr * */
	KFI_MAP_RAW_MR,		/* struct kfi_mr_map_raw * */
	KFI_UNMAP_KEY,		/* u64 * */
	KFI_QUEUE_WORK,		/* struct kfi_deferred_work * */
	KFI_CANCEL_WORK,	/* struct kfi_deferred_work * */
	KFI_FLUSH_WORK,		/* NULL */
	KFI_REFRESH,		/* struct kfi_mr_modify * */
};

/*
 * Performs a control command. Returns -ENOSYS if the object does not support
 * it.
 */
static inline int kfi_control(struct kfid *fid, int command, void *arg)
{
	return fid->ops->control(fid, command, arg);
}

/* Creates an alias of an object, with flags of its own. */
static inline int kfi_alias(struct kfid *fid, struct kfid **alias_fid, u64 flags)
{
	struct kfi_alias alias = {
		.fid = alias_fid,
		.flags = flags,
	};

	return kfi_control(fid, KFI_ALIAS, &alias);
}

/* Returns a provider's own calls, by their name. */
static inline int kfi_open_ops(struct kfid *fid, const char *name, u64 flags, void **ops,
			       void *context)
{
	return fid->ops->ops_open(fid, name, flags, ops, context);
}

/* Types of the values that kfi_tostr() formats. */
enum kfi_type {
	KFI_TYPE_INFO,
	KFI_TYPE_EP_TYPE,
	KFI_TYPE_CAPS,
	KFI_TYPE_OP_FLAGS,
	KFI_TYPE_ADDR_FORMAT,
	KFI_TYPE_TX_ATTR,
	KFI_TYPE_RX_ATTR,
	KFI_TYPE_EP_ATTR,
	KFI_TYPE_DOMAIN_ATTR,
	KFI_TYPE_FABRIC_ATTR,
	KFI_TYPE_THREADING,
	KFI_TYPE_PROGRESS,
	KFI_TYPE_PROTOCOL,
	KFI_TYPE_MSG_ORDER,
	KFI_TYPE_MODE,
	KFI_TYPE_AV_TYPE,
	KFI_TYPE_ATOMIC_TYPE,
	KFI_TYPE_ATOMIC_OP,
	KFI_TYPE_VERSION,
	KFI_TYPE_EQ_EVENT,
	KFI_TYPE_CQ_EVENT_FLAGS,
	KFI_TYPE_MR_MODE,
	KFI_TYPE_OP_TYPE,
};

/**
 * kfi_tostr() - returns a value as text, for messages
 * @data: points to the value
 * @datatype: type of the value
 *
 * Return: text in one of four buffers that all callers share. The text stays
 * valid for three later calls, by any task; the fourth overwrites it.
 */
char *kfi_tostr(const void *data, enum kfi_type datatype);

enum kfi_param_type {
	KFI_PARAM_STRING,
	KFI_PARAM_INT,
	KFI_PARAM_BOOL,
};

struct kfi_param {
	const char		*name;
	enum kfi_param_type	type;
	const char		*help_string;
	const char		*value;
};

/* kfabric has no parameters other than module parameters. */
static inline int kfi_getparams(struct kfi_param **params, int *count)
{
	*params = NULL;
	*count = 0;
	return 0;
}

static inline void kfi_freeparams(struct kfi_param *params)
{
}

/* Memory for the provider's own use, if it has the mode KFI_CONTEXT. */
struct kfi_context {
	void	*internal[4];
};

/* Memory for the provider's own use, if it has the mode KFI_CONTEXT2. */
struct kfi_context2 {
	void	*internal[8];
};

#endif
