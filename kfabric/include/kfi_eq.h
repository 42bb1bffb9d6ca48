/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Queues of the kfi API: events, completions, counters; and what waits for them.
 */
#ifndef KFI_EQ_H
#define KFI_EQ_H

#include <kfabric.h>

/**
 * enum kfi_wait_obj - what a consumer waits by
 * @KFI_WAIT_NONE: nothing; it reads, or has a handler
 * @KFI_WAIT_UNSPEC: the calls that wait (sread)
 * @KFI_WAIT_SET: a wait set
 * @KFI_WAIT_QUEUE: a wait queue of the kernel, which kfi_control() with KFI_GETWAIT gives. A waiter
 *	looks by reading: completions in the condition of a wait_event(); events, which may sleep, by
 *	wait_woken(). The calls that wait work, too
 */
enum kfi_wait_obj {
	KFI_WAIT_NONE,
	KFI_WAIT_UNSPEC,
	KFI_WAIT_SET,
	KFI_WAIT_QUEUE,
};

struct kfi_wait_attr {
	enum kfi_wait_obj	wait_obj;
	u64			flags;
};

struct kfi_ops_wait {
	size_t	size;
	int	(*wait)(struct kfid_wait *waitset, int timeout);
};

struct kfid_wait {
	struct kfid		kfid;
	struct kfi_ops_wait	*ops;
};

struct kfi_poll_attr {
	u64	flags;
};

struct kfi_ops_poll {
	size_t	size;
	int	(*poll)(struct kfid_poll *pollset, void **context, int count);
	int	(*poll_add)(struct kfid_poll *pollset, struct kfid *event_kfid, u64 flags);
	int	(*poll_del)(struct kfid_poll *pollset, struct kfid *event_kfid, u64 flags);
};

struct kfid_poll {
	struct kfid		fid;
	struct kfi_ops_poll	*ops;
};

/**
 * struct kfi_eq_attr - an event queue
 * @size: requests to connect that may wait in it; 0: 64
 * @flags: KFI_AFFINITY, which is taken and has no effect, or 0
 * @wait_obj: KFI_WAIT_NONE, KFI_WAIT_UNSPEC or KFI_WAIT_QUEUE
 * @signaling_vector: not used
 * @wait_set: not used
 */
struct kfi_eq_attr {
	size_t			size;
	u64			flags;
	enum kfi_wait_obj	wait_obj;
	int			signaling_vector;
	struct kfid_wait	*wait_set;
};

/* Events. */
enum {
	KFI_NOTIFY,
	KFI_CONNREQ,
	KFI_CONNECTED,
	KFI_SHUTDOWN,
	KFI_MR_COMPLETE,
	KFI_AV_COMPLETE,
	KFI_JOIN_COMPLETE,
};

struct kfi_eq_entry {
	struct kfid	*fid;
	void		*context;
	u64		data;
};

/**
 * struct kfi_eq_err_entry - an event that is an error
 * @fid: of which object
 * @context: the object's context
 * @data: 0
 * @err: positive error number
 * @prov_errno: the provider's own
 * @err_data: what the peer said, until the queue is read again
 * @err_data_size: bytes of it
 */
struct kfi_eq_err_entry {
	struct kfid	*fid;
	void		*context;
	u64		data;
	int		err;
	int		prov_errno;
	void		*err_data;
	size_t		err_data_size;
};

/**
 * struct kfi_eq_cm_entry - KFI_CONNREQ, KFI_CONNECTED, KFI_SHUTDOWN
 * @fid: the endpoint; with KFI_CONNREQ the passive endpoint
 * @info: with KFI_CONNREQ: to open an endpoint with; the reader frees it
 * @data: what the peer said, as far as there is room
 */
struct kfi_eq_cm_entry {
	struct kfid	*fid;
	struct kfi_info	*info;
	u8		data[];
};

/**
 * struct kfi_ops_eq - what can be done with an event queue
 * @size: bytes of the structure that its provider knows
 * @read: see kfi_eq_read()
 * @readerr: see kfi_eq_readerr()
 * @write: see kfi_eq_write()
 * @sread: see kfi_eq_sread()
 * @strerror: see kfi_eq_strerror()
 */
struct kfi_ops_eq {
	size_t		size;
	ssize_t		(*read)(struct kfid_eq *eq, u32 *event, void *buf, size_t len, u64 flags);
	ssize_t		(*readerr)(struct kfid_eq *eq, struct kfi_eq_err_entry *buf, u64 flags);
	ssize_t		(*write)(struct kfid_eq *eq, u32 event, const void *buf, size_t len,
				 u64 flags);
	ssize_t		(*sread)(struct kfid_eq *eq, u32 *event, void *buf, size_t len,
				 int timeout, u64 flags);
	const char	*(*strerror)(struct kfid_eq *eq, int prov_errno, const void *err_data,
				     char *buf, size_t len);
};

struct kfid_eq {
	struct kfid		fid;
	struct kfi_ops_eq	*ops;
	kfi_event_handler	event_handler;
};

/**
 * enum kfi_cq_format - what an entry of a completion queue has
 * @KFI_CQ_FORMAT_UNSPEC: as KFI_CQ_FORMAT_CONTEXT
 * @KFI_CQ_FORMAT_CONTEXT: struct kfi_cq_entry
 * @KFI_CQ_FORMAT_MSG: struct kfi_cq_msg_entry
 * @KFI_CQ_FORMAT_DATA: struct kfi_cq_data_entry
 * @KFI_CQ_FORMAT_TAGGED: struct kfi_cq_tagged_entry
 */
enum kfi_cq_format {
	KFI_CQ_FORMAT_UNSPEC,
	KFI_CQ_FORMAT_CONTEXT,
	KFI_CQ_FORMAT_MSG,
	KFI_CQ_FORMAT_DATA,
	KFI_CQ_FORMAT_TAGGED,
};

struct kfi_cq_entry {
	void	*op_context;
};

struct kfi_cq_msg_entry {
	void	*op_context;
	u64	flags;
	size_t	len;
};

struct kfi_cq_data_entry {
	void	*op_context;
	u64	flags;
	size_t	len;
	void	*buf;
	u64	data;
};

struct kfi_cq_tagged_entry {
	void	*op_context;
	u64	flags;
	size_t	len;
	void	*buf;
	u64	data;
	u64	tag;
};

/**
 * struct kfi_cq_err_entry - an operation that failed
 * @op_context: the operation's context
 * @flags: what it was
 * @len: bytes that came, of a receive
 * @buf: NULL
 * @data: the peer's data; of keys, see kfi_key.h
 * @tag: 0
 * @olen: bytes that did not fit
 * @err: positive error number
 * @prov_errno: the provider's own
 * @err_data: NULL
 * @err_data_size: 0
 */
struct kfi_cq_err_entry {
	void	*op_context;
	u64	flags;
	size_t	len;
	void	*buf;
	u64	data;
	u64	tag;
	size_t	olen;
	int	err;
	int	prov_errno;
	void	*err_data;
	size_t	err_data_size;
};

enum kfi_cq_wait_cond {
	KFI_CQ_COND_NONE,
	KFI_CQ_COND_THRESHOLD,
};

/**
 * struct kfi_cq_attr - a completion queue
 * @size: entries; 0: 1024
 * @flags: KFI_AFFINITY, KFI_SEND and KFI_RECV, which are taken and have no effect
 * @format: what an entry has
 * @wait_obj: KFI_WAIT_NONE, KFI_WAIT_UNSPEC or KFI_WAIT_QUEUE
 * @signaling_vector: not used
 * @wait_cond: what ends a wait
 * @wait_set: not used
 */
struct kfi_cq_attr {
	size_t			size;
	u64			flags;
	enum kfi_cq_format	format;
	enum kfi_wait_obj	wait_obj;
	int			signaling_vector;
	enum kfi_cq_wait_cond	wait_cond;
	struct kfid_wait	*wait_set;
};

/**
 * struct kfi_ops_cq - what can be done with a completion queue
 * @size: bytes of the structure that its provider knows
 * @read: see kfi_cq_read()
 * @readfrom: see kfi_cq_readfrom()
 * @readerr: see kfi_cq_readerr()
 * @sread: see kfi_cq_sread()
 * @sreadfrom: see kfi_cq_sreadfrom()
 * @signal: see kfi_cq_signal()
 * @strerror: see kfi_cq_strerror()
 */
struct kfi_ops_cq {
	size_t		size;
	ssize_t		(*read)(struct kfid_cq *cq, void *buf, size_t count);
	ssize_t		(*readfrom)(struct kfid_cq *cq, void *buf, size_t count,
				    kfi_addr_t *src_addr);
	ssize_t		(*readerr)(struct kfid_cq *cq, struct kfi_cq_err_entry *buf, u64 flags);
	ssize_t		(*sread)(struct kfid_cq *cq, void *buf, size_t count, const void *cond,
				 int timeout);
	ssize_t		(*sreadfrom)(struct kfid_cq *cq, void *buf, size_t count,
				     kfi_addr_t *src_addr, const void *cond, int timeout);
	int		(*signal)(struct kfid_cq *cq);
	const char	*(*strerror)(struct kfid_cq *cq, int prov_errno, const void *err_data,
				     char *buf, size_t len);
};

struct kfid_cq {
	struct kfid		fid;
	struct kfi_ops_cq	*ops;
	kfi_comp_handler	comp_handler;
};

enum kfi_cntr_events {
	KFI_CNTR_EVENTS_COMP,
};

/* A counter is waited for by kfi_cntr_wait(): @wait_obj is KFI_WAIT_NONE or KFI_WAIT_UNSPEC. */
struct kfi_cntr_attr {
	enum kfi_cntr_events	events;
	enum kfi_wait_obj	wait_obj;
	struct kfid_wait	*wait_set;
	u64			flags;
};

/**
 * struct kfi_ops_cntr - what can be done with a counter
 * @size: bytes of the structure that its provider knows
 * @read: see kfi_cntr_read()
 * @readerr: see kfi_cntr_readerr()
 * @add: see kfi_cntr_add()
 * @set: see kfi_cntr_set()
 * @wait: see kfi_cntr_wait()
 * @adderr: see kfi_cntr_adderr()
 * @seterr: see kfi_cntr_seterr()
 */
struct kfi_ops_cntr {
	size_t	size;
	u64	(*read)(struct kfid_cntr *cntr);
	u64	(*readerr)(struct kfid_cntr *cntr);
	int	(*add)(struct kfid_cntr *cntr, u64 value);
	int	(*set)(struct kfid_cntr *cntr, u64 value);
	int	(*wait)(struct kfid_cntr *cntr, u64 threshold, int timeout);
	int	(*adderr)(struct kfid_cntr *cntr, u64 value);
	int	(*seterr)(struct kfid_cntr *cntr, u64 value);
};

struct kfid_cntr {
	struct kfid		fid;
	struct kfi_ops_cntr	*ops;
};

/* Waits on a wait set. */
static inline int kfi_wait(struct kfid_wait *waitset, int timeout)
{
	return waitset->ops->wait(waitset, timeout);
}

/* Asks a poll set who has something to read. */
static inline int kfi_poll(struct kfid_poll *pollset, void **context, int count)
{
	return pollset->ops->poll(pollset, context, count);
}

/* Adds a queue to a poll set. */
static inline int kfi_poll_add(struct kfid_poll *pollset, struct kfid *event_kfid, u64 flags)
{
	return pollset->ops->poll_add(pollset, event_kfid, flags);
}

/* Takes it out again. */
static inline int kfi_poll_del(struct kfid_poll *pollset, struct kfid *event_kfid, u64 flags)
{
	return pollset->ops->poll_del(pollset, event_kfid, flags);
}

/**
 * kfi_eq_open() - opens an event queue
 * @fabric: on which fabric
 * @attr: what it is to be; NULL: as all zeroes
 * @eq: where it goes
 * @event_handler: told of each event, or NULL
 * @context: the handler's, and the queue's
 *
 * Return: 0 or a negative error number.
 */
static inline int kfi_eq_open(struct kfid_fabric *fabric, struct kfi_eq_attr *attr,
			      struct kfid_eq **eq, kfi_event_handler event_handler,
			      void *context)
{
	return fabric->ops->eq_open(fabric, attr, eq, event_handler, context);
}

/**
 * kfi_eq_read() - takes the oldest event
 * @eq: the queue
 * @event: KFI_CONNREQ, KFI_CONNECTED or KFI_SHUTDOWN
 * @buf: a struct kfi_eq_cm_entry with room for the peer's data behind it
 * @len: bytes of @buf
 * @flags: KFI_PEEK: the event stays, without its info; or 0
 *
 * May sleep.
 *
 * Return: bytes written; -EAGAIN: no event; -KFI_EAVAIL: the oldest one is an error;
 * -KFI_ETOOSMALL: less than the structure.
 */
static inline ssize_t kfi_eq_read(struct kfid_eq *eq, u32 *event, void *buf, size_t len,
				  u64 flags)
{
	return eq->ops->read(eq, event, buf, len, flags);
}

/* Takes the oldest event if it is an error. Bytes written; -EAGAIN: it is not. May sleep. */
static inline ssize_t kfi_eq_readerr(struct kfid_eq *eq, struct kfi_eq_err_entry *buf, u64 flags)
{
	return eq->ops->readerr(eq, buf, flags);
}

/* Adds an event. */
static inline ssize_t kfi_eq_write(struct kfid_eq *eq, u32 event, const void *buf, size_t len,
				   u64 flags)
{
	return eq->ops->write(eq, event, buf, len, flags);
}

/*
 * kfi_eq_read() that waits, up to @timeout milliseconds: -EAGAIN when they have passed, -EINTR for a
 * signal. Negative: for ever. 0: it does not wait; but of a queue with KFI_WAIT_QUEUE for ever, as in
 * published providers.
 */
static inline ssize_t kfi_eq_sread(struct kfid_eq *eq, u32 *event, void *buf, size_t len,
				   int timeout, u64 flags)
{
	return eq->ops->sread(eq, event, buf, len, timeout, flags);
}

/* A provider's error as text. */
static inline const char *kfi_eq_strerror(struct kfid_eq *eq, int prov_errno,
					  const void *err_data, char *buf, size_t len)
{
	return eq->ops->strerror(eq, prov_errno, err_data, buf, len);
}

/**
 * kfi_cq_read() - takes completions
 * @cq: the queue
 * @buf: entries of the queue's format
 * @count: how many there is room for
 *
 * Any context. With @count 0 nothing is taken.
 *
 * Return: how many were taken; -EAGAIN: there are none; -KFI_EAVAIL: the oldest one is an error.
 */
static inline ssize_t kfi_cq_read(struct kfid_cq *cq, void *buf, size_t count)
{
	return cq->ops->read(cq, buf, count);
}

/* kfi_cq_read() that tells whom they are of. Connected endpoints have one peer: KFI_ADDR_NOTAVAIL. */
static inline ssize_t kfi_cq_readfrom(struct kfid_cq *cq, void *buf, size_t count,
				      kfi_addr_t *src_addr)
{
	return cq->ops->readfrom(cq, buf, count, src_addr);
}

/* Takes the oldest completion if it is an error. 1; -EAGAIN: it is not. Any context. */
static inline ssize_t kfi_cq_readerr(struct kfid_cq *cq, struct kfi_cq_err_entry *buf, u64 flags)
{
	return cq->ops->readerr(cq, buf, flags);
}

/**
 * kfi_cq_sread() - takes completions, and waits for them
 * @cq: the queue
 * @buf: entries of the queue's format
 * @count: how many there is room for
 * @cond: with KFI_CQ_COND_THRESHOLD: a size_t, entries to wait for
 * @timeout: milliseconds; negative: for ever; 0: it does not wait, but of a queue with
 *	KFI_WAIT_QUEUE for ever, as in published providers
 *
 * Sleeps.
 *
 * Return: as kfi_cq_read(); -EAGAIN also: the time is up, or kfi_cq_signal(); -EINTR: a signal.
 */
static inline ssize_t kfi_cq_sread(struct kfid_cq *cq, void *buf, size_t count, const void *cond,
				   int timeout)
{
	return cq->ops->sread(cq, buf, count, cond, timeout);
}

/* kfi_cq_sread() that tells whom they are of. */
static inline ssize_t kfi_cq_sreadfrom(struct kfid_cq *cq, void *buf, size_t count,
				       kfi_addr_t *src_addr, const void *cond, int timeout)
{
	return cq->ops->sreadfrom(cq, buf, count, src_addr, cond, timeout);
}

/* Ends the wait of who waits, or of the next who would. Any context. */
static inline int kfi_cq_signal(struct kfid_cq *cq)
{
	return cq->ops->signal(cq);
}

/* A provider's error as text. */
static inline const char *kfi_cq_strerror(struct kfid_cq *cq, int prov_errno,
					  const void *err_data, char *buf, size_t len)
{
	return cq->ops->strerror(cq, prov_errno, err_data, buf, len);
}

/* Operations that succeeded. Any context. */
static inline u64 kfi_cntr_read(struct kfid_cntr *cntr)
{
	return cntr->ops->read(cntr);
}

/* Operations that failed. Any context. */
static inline u64 kfi_cntr_readerr(struct kfid_cntr *cntr)
{
	return cntr->ops->readerr(cntr);
}

/* Adds to the first. Any context. */
static inline int kfi_cntr_add(struct kfid_cntr *cntr, u64 value)
{
	return cntr->ops->add(cntr, value);
}

/* Adds to the second. Any context. */
static inline int kfi_cntr_adderr(struct kfid_cntr *cntr, u64 value)
{
	return KFI_CHECK_OP(cntr->ops, struct kfi_ops_cntr, adderr) ?
		cntr->ops->adderr(cntr, value) : -ENOSYS;
}

/* Sets the first. Any context. */
static inline int kfi_cntr_set(struct kfid_cntr *cntr, u64 value)
{
	return cntr->ops->set(cntr, value);
}

/* Sets the second. Any context. */
static inline int kfi_cntr_seterr(struct kfid_cntr *cntr, u64 value)
{
	return KFI_CHECK_OP(cntr->ops, struct kfi_ops_cntr, seterr) ?
		cntr->ops->seterr(cntr, value) : -ENOSYS;
}

/*
 * Waits until @threshold operations have succeeded, up to @timeout milliseconds (negative: for
 * ever). -KFI_EAVAIL: one failed meanwhile; -ETIMEDOUT; -EINTR.
 */
static inline int kfi_cntr_wait(struct kfid_cntr *cntr, u64 threshold, int timeout)
{
	return cntr->ops->wait(cntr, threshold, timeout);
}

#endif
