/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The kfi API, version 1.7, for consumers and providers in the kernel that are written in C: what
 * there is (kfi_getinfo()), and what every object begins with.
 *
 * Names, structures and values are those of the published kfi API. Where a value differs from the
 * one that libfabric and kfabric_uapi.h have, this header's holds for C in the kernel, and the two
 * headers are not to be included together.
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

/* Values of enumerations that are one provider's own have this bit. */
#define KFI_PROV_SPECIFIC	(1U << 31)

/*
 * Capabilities, and flags of calls. Bits 40 to 44 are in kfi_key.h; bits 60 to 63 are a provider's
 * own.
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

/* Of kfi_ep_bind(): entries only for operations with KFI_COMPLETION. */
#define KFI_SELECTIVE_COMPLETION (1ULL << 59)

/* Formats of addresses. */
enum {
	KFI_FORMAT_UNSPEC,
	KFI_SOCKADDR,
	KFI_SOCKADDR_IN,
	KFI_SOCKADDR_IN6,
	KFI_SOCKADDR_IB,
	KFI_ADDR_GNI,
	KFI_ADDR_CXI,
};

/* The published header has it, too. */
#ifndef UINT64_MAX
#define UINT64_MAX		U64_MAX
#endif

typedef u64 kfi_addr_t;

#define KFI_ADDR_UNSPEC		U64_MAX
#define KFI_ADDR_NOTAVAIL	U64_MAX
#define KFI_KEY_NOTAVAIL	U64_MAX
#define KFI_SHARED_CONTEXT	U64_MAX

/*
 * Bytes of an auth key, at most. Endpoints with the same one can connect to each other, having proven
 * that they have it, and reach memory and keys under it; others cannot. What has none of its own has
 * its domain's. Consumers in the kernel need no grant (kfi_auth.h).
 */
#define KFI_AUTH_KEY_MAX	64

enum kfi_av_type {
	KFI_AV_UNSPEC,
	KFI_AV_MAP,
	KFI_AV_TABLE,
};

/*
 * Registration modes: what the provider wants; in hints, what the caller can do.
 *
 * KFI_MR_LOCAL: local buffers lie in registered memory, and calls are given its descriptor
 * (kfi_mr_desc()). KFI_MR_VIRT_ADDR: peers address the first byte by kfid_mr.iova. KFI_MR_PROV_KEY:
 * keys are the provider's choice (kfi_mr_key()). KFI_MR_ENDPOINT: memory is bound to an endpoint and
 * enabled before use.
 *
 * kfabric's own providers want KFI_MR_LOCAL of all, and KFI_MR_VIRT_ADDR and KFI_MR_PROV_KEY of those
 * that peers may reach: whose capabilities have KFI_REMOTE_READ or KFI_REMOTE_WRITE, or have KFI_RMA or
 * KFI_ATOMIC without a direction, which stands for all of them. Hints that say less find nothing
 * (-ENODATA); hints without capabilities find offers that no peer reaches.
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

/* What stays in order behind what: read, write and send after read, write and send. */
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

/* Protocols: endpoints of one protocol talk to each other, whatever their providers. */
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
 * enum kfi_iov_type - what a structure's union lists memory by
 * @KFI_KVEC: kernel addresses: of pages, of kmalloc() or vmalloc()
 * @KFI_BVEC: pages, with offset and length
 * @KFI_SGL: a scatterlist; its pages are what counts, mapped for a device or not
 */
enum kfi_iov_type {
	KFI_KVEC = 1,
	KFI_BVEC,
	KFI_SGL,
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

/* The traffic class of a code point of differentiated services. */
static inline u32 kfi_tc_dscp_set(u8 dscp)
{
	return KFI_TC_DSCP | dscp;
}

/* The code point of a traffic class; 0 if it is not one. */
static inline u8 kfi_tc_dscp_get(u32 tclass)
{
	return tclass & KFI_TC_DSCP ? (u8)tclass : 0;
}

/* Modes: what a provider wants of its user beside registrations. */
#define KFI_CONTEXT		(1ULL << 59)
#define KFI_MSG_PREFIX		(1ULL << 58)
#define KFI_ASYNC_IOV		(1ULL << 57)
#define KFI_RX_CQ_DATA		(1ULL << 56)
#define KFI_LOCAL_MR		(1ULL << 55)
#define KFI_NOTIFY_FLAGS_ONLY	(1ULL << 54)
#define KFI_RESTRICTED_COMP	(1ULL << 53)
#define KFI_CONTEXT2		(1ULL << 52)

/**
 * struct kfi_tx_attr - the transmit side of an endpoint
 * @caps: capabilities
 * @mode: modes
 * @op_flags: flags of operations whose call has none
 * @msg_order: KFI_ORDER_*, of messages and one-sided operations
 * @comp_order: KFI_ORDER_*, of completions
 * @inject_size: bytes that may be injected
 * @size: operations it holds
 * @iov_limit: local pieces of one operation
 * @rma_iov_limit: remote ranges of one operation
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
 * struct kfi_rx_attr - the receive side of an endpoint
 * @caps: capabilities
 * @mode: modes
 * @op_flags: flags of operations whose call has none
 * @msg_order: KFI_ORDER_*, of messages
 * @comp_order: KFI_ORDER_*, of completions
 * @total_buffered_recv: bytes that are kept for want of a receive
 * @size: receives it holds
 * @iov_limit: pieces of one receive
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
 * struct kfi_ep_attr - an endpoint
 * @type: its type
 * @protocol: KFI_PROTO_*
 * @protocol_version: the protocol's version
 * @max_msg_size: bytes of the longest operation
 * @msg_prefix_size: bytes left free before a message (KFI_MSG_PREFIX)
 * @max_order_raw_size: bytes up to which reads stay behind writes
 * @max_order_war_size: bytes up to which writes stay behind reads
 * @max_order_waw_size: bytes up to which writes stay behind writes
 * @mem_tag_format: which bits of a tag matter
 * @tx_ctx_cnt: transmit contexts
 * @rx_ctx_cnt: receive contexts
 * @auth_key_size: bytes of @auth_key
 * @auth_key: the key of its job, instead of its domain's. Of a passive endpoint: what peers have to
 *	prove; of a request to connect: what the peer has proven
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
 * struct kfi_domain_attr - a domain
 * @domain: the domain, if it is open (see kfi_getinfo())
 * @name: its name
 * @threading: which calls the caller has wait for each other
 * @control_progress: who makes control calls go on
 * @data_progress: who makes operations go on
 * @resource_mgmt: whether full queues are refused or overrun
 * @av_type: type of its address vectors
 * @mr_mode: KFI_MR_*
 * @mr_key_size: bytes of a key
 * @cq_data_size: bytes of data in a completion
 * @cq_cnt: completion queues that are good to have
 * @ep_cnt: endpoints
 * @tx_ctx_cnt: transmit contexts
 * @rx_ctx_cnt: receive contexts
 * @max_ep_tx_ctx: transmit contexts of one endpoint
 * @max_ep_rx_ctx: receive contexts of one endpoint
 * @max_ep_stx_ctx: shared transmit contexts
 * @max_ep_srx_ctx: shared receive contexts
 * @cntr_cnt: counters
 * @mr_iov_limit: pieces of one registration
 * @caps: capabilities of the domain
 * @mode: modes
 * @auth_key: the auth key of what is opened on it without one of its own
 * @auth_key_size: bytes of @auth_key
 * @max_err_data: bytes that come with an error
 * @mr_cnt: registrations
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
 * struct kfi_fabric_attr - a fabric
 * @fabric: the fabric, if it is open (see kfi_getinfo())
 * @name: its name; NULL: the provider's first
 * @prov_name: the provider's name
 * @prov_version: the provider's version
 * @api_version: the version of this API that it speaks
 */
struct kfi_fabric_attr {
	struct kfid_fabric	*fabric;
	char			*name;
	char			*prov_name;
	u32			prov_version;
	u32			api_version;
};

/**
 * struct kfi_info - what a provider offers, or, as hints, what the caller wants
 * @next: the next of the list, or NULL
 * @caps: capabilities
 * @mode: modes
 * @addr_format: format of the addresses
 * @src_addrlen: bytes of @src_addr
 * @dest_addrlen: bytes of @dest_addr
 * @src_addr: own address
 * @dest_addr: the peer's address
 * @handle: with a request to connect: the request, by a value that is never another's, to be passed
 *	on and not followed
 * @tx_attr: the transmit side
 * @rx_attr: the receive side
 * @ep_attr: the endpoint
 * @domain_attr: the domain
 * @fabric_attr: the fabric
 *
 * All that it points to but @handle and open objects is kmalloc()ed and the info's own:
 * kfi_freeinfo() frees it.
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
 * Told of entries in a completion queue. Any context: it must not sleep. It may post and read, and take
 * locks that are held around calls that post: it is not called inside of those.
 */
typedef void (*kfi_comp_handler)(struct kfid_cq *cq, void *context);
/* Told of events in an event queue. Process context; it is to schedule work, and not to do it. */
typedef void (*kfi_event_handler)(struct kfid_eq *eq, void *context);

/**
 * struct kfi_ops - what can be done with any object
 * @size: bytes of the structure that its provider knows
 * @close: ends it
 * @bind: binds it to another object
 * @control: a KFI_* control command
 * @ops_open: finds a provider's own calls
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
 * struct kfid - what every object begins with
 * @fclass: KFI_CLASS_*
 * @context: the consumer's value
 * @ops: calls
 * @comp: done when @ref_cnt is 0
 * @ref_cnt: for providers, see kfi_prov.h
 */
struct kfid {
	size_t			fclass;
	void			*context;
	struct kfi_ops		*ops;
	struct completion	comp;
	atomic_t		ref_cnt;
};

/* The version of the API that kfabric.ko speaks: KFI_VERSION(1, 7). */
u32 kfi_version(void);

/**
 * kfi_getinfo() - lists what there is
 * @version: the version of the API that the caller speaks; 0: any
 * @node: an address as text, or NULL
 * @service: a port as text, or NULL
 * @flags: KFI_SOURCE: @node and @service are the caller's own; KFI_NUMERICHOST: no other than
 *	numbers, which holds anyway
 * @hints: what is wanted, or NULL
 * @info: where the list goes, best first
 *
 * Looks from the network namespace of the current task. A field of @hints that is zero or NULL
 * means that the caller does not care, but modes: there it serves none. Hence a caller that has
 * @hints->domain_attr, as all have that call kfi_allocinfo(), sets mr_mode in it: KFI_MR_LOCAL, and
 * KFI_MR_VIRT_ADDR and KFI_MR_PROV_KEY if peers may reach its memory. May sleep.
 *
 * A fabric or a domain in @hints restricts what is found to it. It is compared with those that are
 * open in this namespace, and never followed: one that was closed finds nothing, unless a later one
 * has its place. In the answer @fabric_attr->fabric and @domain_attr->domain are those of @hints; else,
 * of the fabrics of this name that the calling module has open, the one that it opened first, and of
 * the domains of this name that it has open on that fabric the first; NULL: it has none. An info holds
 * nothing.
 *
 * Return: 0; -ENODATA: nothing matches, or @node or @service is no number, or a fabric or domain in
 * @hints is not open; -ENOSYS: a newer version than this; -EINVAL: an address in @hints is none, or no
 * such flags; -ENOMEM.
 */
int kfi_getinfo(u32 version, const char *node, const char *service, u64 flags,
		struct kfi_info *hints, struct kfi_info **info);
#define kfi_getinfo(...) kfi_getinfo_by(THIS_MODULE, __VA_ARGS__)

/* kfi_getinfo() for a module. */
int kfi_getinfo_by(struct module *user, u32 version, const char *node, const char *service,
		   u64 flags, struct kfi_info *hints, struct kfi_info **info);

/* Frees a list, and all that belongs to it. */
void kfi_freeinfo(struct kfi_info *info);

/* An info that says nothing, with all its attributes. NULL: no memory. */
struct kfi_info *kfi_allocinfo(void);

/* A copy of one info (not of those behind it), with the same handle. NULL for @info: a new one. */
struct kfi_info *kfi_dupinfo(const struct kfi_info *info);

/**
 * struct kfi_ops_fabric - what can be done with a fabric
 * @size: bytes of the structure that its provider knows
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
 * @fid: what every object begins with
 * @ops: calls
 * @api_version: the version of the API that it speaks
 */
struct kfid_fabric {
	struct kfid		fid;
	struct kfi_ops_fabric	*ops;
	u32			api_version;
};

/**
 * kfi_fabric() - opens a fabric
 * @attr: provider and name, as an info has them
 * @fabric: where it goes
 * @context: the caller's value
 *
 * It sees the network namespace of the current task, which stays as long. May sleep.
 *
 * A fabric may be opened more than once, for instance for each connection. Each time makes an object
 * of its own, on which its domains, queues and passive endpoints are opened.
 *
 * Return: 0; -ENODEV: no such provider or fabric; -EINVAL: no provider named; -ENOMEM.
 */
int kfi_fabric(struct kfi_fabric_attr *attr, struct kfid_fabric **fabric, void *context);
#define kfi_fabric(...) kfi_fabric_by(THIS_MODULE, __VA_ARGS__)

/* kfi_fabric() for a module. */
int kfi_fabric_by(struct module *user, struct kfi_fabric_attr *attr, struct kfid_fabric **fabric,
		  void *context);

/* Whether a table is large enough to have a call, and has it. */
#define KFI_CHECK_OP(ops, opstype, op) \
	((ops)->size > offsetof(opstype, op) && (ops)->op)

/**
 * kfi_close() - ends an object
 * @fid: the object
 *
 * May sleep. When it has succeeded no handler is called for the object any more, be it a queue or an
 * endpoint; and memory that was registered is no more used by any device.
 *
 * LOOK AT WHAT IT RETURNS, AND CLOSE IN THIS ORDER: endpoints and passive endpoints; queues, counters
 * and memory; the domain; the fabric. An object that another one is bound to or opened on stays open
 * (-EBUSY): a consumer that closes an event queue before the passive endpoint that is bound to it, and
 * ignores the error, leaks the queue and the fabric, and kfabric.ko cannot be unloaded.
 *
 * Return: 0; -EBUSY: something is open on it or uses it, and it stays. Memory that operations still
 * use after a second is one such case: it has no key any more then, nor will it take operations, and
 * kfi_close() is to be called again.
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

/* Commands of kfi_control(), with what they are given. kfi_key.h has more. */
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

/* A control command. -ENOSYS: the object does not know it. */
static inline int kfi_control(struct kfid *fid, int command, void *arg)
{
	return fid->ops->control(fid, command, arg);
}

/* Another name of an object, with flags of its own. */
static inline int kfi_alias(struct kfid *fid, struct kfid **alias_fid, u64 flags)
{
	struct kfi_alias alias = {
		.fid = alias_fid,
		.flags = flags,
	};

	return kfi_control(fid, KFI_ALIAS, &alias);
}

/* A provider's own calls, by their name. */
static inline int kfi_open_ops(struct kfid *fid, const char *name, u64 flags, void **ops,
			       void *context)
{
	return fid->ops->ops_open(fid, name, flags, ops, context);
}

/* What kfi_tostr() is given. */
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
 * kfi_tostr() - a value as text, for messages
 * @data: points to the value
 * @datatype: what it is
 *
 * Return: a text in one of a few places that take turns: it is good until the call has been made
 * three times more, by whomever.
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

/* There are no parameters but those of modules. */
static inline int kfi_getparams(struct kfi_param **params, int *count)
{
	*params = NULL;
	*count = 0;
	return 0;
}

static inline void kfi_freeparams(struct kfi_param *params)
{
}

/* Room for a provider's own use, where it has the mode KFI_CONTEXT. */
struct kfi_context {
	void	*internal[4];
};

/* The same for KFI_CONTEXT2. */
struct kfi_context2 {
	void	*internal[8];
};

#endif
