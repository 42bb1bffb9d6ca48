/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Event queues, completion queues and counters of the kfi API, and calls that wait for them.
 */
#ifndef KFI_EQ_H
#define KFI_EQ_H

#include <kfabric.h>

/**
 * enum kfi_wait_obj - wait object of a queue or counter
 * @KFI_WAIT_NONE: none; the consumer polls, or has a handler
 * @KFI_WAIT_UNSPEC: the consumer waits by calls (sread)
 * @KFI_WAIT_SET: a wait set
 * @KFI_WAIT_QUEUE: a wait queue of the kernel, which kfi_control() with KFI_GETWAIT returns. A
 *	waiter reads the queue: completions in the condition of a wait_event(); events, whose read
 *	may sleep, by wait_woken(). The calls that wait work, too
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
 * @size: connection requests that the queue can hold; 0: 64
 * @flags: KFI_AFFINITY, which is accepted and has no effect, or 0
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
 * struct kfi_eq_err_entry - an error event
 * @fid: the object that failed
 * @context: the object's context
 * @data: 0
 * @err: positive error number
 * @prov_errno: error number that the provider defines
 * @err_data: the peer's private data, valid until the next read of the queue
 * @err_data_size: bytes of @err_data
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
 * @fid: the endpoint; of KFI_CONNREQ: the passive endpoint
 * @info: of KFI_CONNREQ: the info with which the reader opens an endpoint; the reader frees it
 * @data: the peer's private data, truncated to the size of the buffer
 */
struct kfi_eq_cm_entry {
	struct kfid	*fid;
	struct kfi_info	*info;
	u8		data[];
};

/**
 * struct kfi_ops_eq - calls of an event queue
 * @size: size of the structure in its provider's build, in bytes
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
 * enum kfi_cq_format - format of the entries of a completion queue
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
 * struct kfi_cq_err_entry - completion of an operation that failed
 * @op_context: the operation's context
 * @flags: the operation's type, as KFI_* flags
 * @len: bytes that a receive has received
 * @buf: NULL
 * @data: the peer's data; of keys, see kfi_key.h
 * @tag: 0
 * @olen: bytes of the message that did not fit into the receive
 * @err: positive error number
 * @prov_errno: error number that the provider defines
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
 * @flags: KFI_AFFINITY, KFI_SEND and KFI_RECV, which are accepted and have no effect
 * @format: format of the entries
 * @wait_obj: KFI_WAIT_NONE, KFI_WAIT_UNSPEC or KFI_WAIT_QUEUE
 * @signaling_vector: not used
 * @wait_cond: meaning of the condition of kfi_cq_sread()
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
 * struct kfi_ops_cq - calls of a completion queue
 * @size: size of the structure in its provider's build, in bytes
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

/*
 * Attributes of a counter. A waiter calls kfi_cntr_wait(): @wait_obj is KFI_WAIT_NONE or
 * KFI_WAIT_UNSPEC.
 */
struct kfi_cntr_attr {
	enum kfi_cntr_events	events;
	enum kfi_wait_obj	wait_obj;
	struct kfid_wait	*wait_set;
	u64			flags;
};

/**
 * struct kfi_ops_cntr - calls of a counter
 * @size: size of the structure in its provider's build, in bytes
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

/* Returns the contexts of those queues and counters of a poll set that have something to read. */
static inline int kfi_poll(struct kfid_poll *pollset, void **context, int count)
{
	return pollset->ops->poll(pollset, context, count);
}

/* Adds a queue to a poll set. */
static inline int kfi_poll_add(struct kfid_poll *pollset, struct kfid *event_kfid, u64 flags)
{
	return pollset->ops->poll_add(pollset, event_kfid, flags);
}

/* Removes a queue from a poll set. */
static inline int kfi_poll_del(struct kfid_poll *pollset, struct kfid *event_kfid, u64 flags)
{
	return pollset->ops->poll_del(pollset, event_kfid, flags);
}

/**
 * kfi_eq_open() - opens an event queue
 * @fabric: the fabric
 * @attr: the queue's attributes; NULL: all zero
 * @eq: where the queue is stored
 * @event_handler: called for each event, or NULL
 * @context: the context of the queue, passed to the handler
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
 * kfi_eq_read() - reads and removes the oldest event
 * @eq: the queue
 * @event: where the event's type is stored: KFI_CONNREQ, KFI_CONNECTED or KFI_SHUTDOWN
 * @buf: a struct kfi_eq_cm_entry, followed by space for the peer's private data
 * @len: bytes of @buf
 * @flags: 0, or KFI_PEEK: the event stays in the queue, and its info is not returned
 *
 * May sleep.
 *
 * Return: bytes written, or
 * -EAGAIN if there is no event;
 * -KFI_EAVAIL if the oldest event is an error;
 * -KFI_ETOOSMALL if @len is less than the structure.
 */
static inline ssize_t kfi_eq_read(struct kfid_eq *eq, u32 *event, void *buf, size_t len,
				  u64 flags)
{
	return eq->ops->read(eq, event, buf, len, flags);
}

/*
 * Reads and removes the oldest event if it is an error. Returns the bytes written, or -EAGAIN if
 * the oldest event is not an error. May sleep.
 */
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
 * Like kfi_eq_read(), but waits up to @timeout milliseconds for an event. Returns -EAGAIN after the
 * timeout, and -EINTR after a signal. Negative @timeout: no limit. 0: no wait, but no limit if the
 * queue has KFI_WAIT_QUEUE, as in published providers. May sleep.
 */
static inline ssize_t kfi_eq_sread(struct kfid_eq *eq, u32 *event, void *buf, size_t len,
				   int timeout, u64 flags)
{
	return eq->ops->sread(eq, event, buf, len, timeout, flags);
}

/* Returns a text for a provider's error number. */
static inline const char *kfi_eq_strerror(struct kfid_eq *eq, int prov_errno,
					  const void *err_data, char *buf, size_t len)
{
	return eq->ops->strerror(eq, prov_errno, err_data, buf, len);
}

/**
 * kfi_cq_read() - reads and removes completions
 * @cq: the queue
 * @buf: entries of the queue's format
 * @count: number of entries that fit into @buf
 *
 * Context: any. If @count is 0, no completion is removed.
 *
 * Return: number of completions, or
 * -EAGAIN if the queue is empty;
 * -KFI_EAVAIL if the oldest completion is an error.
 */
static inline ssize_t kfi_cq_read(struct kfid_cq *cq, void *buf, size_t count)
{
	return cq->ops->read(cq, buf, count);
}

/*
 * Like kfi_cq_read(), but also returns source addresses: always KFI_ADDR_NOTAVAIL, as a connected
 * endpoint has one peer.
 */
static inline ssize_t kfi_cq_readfrom(struct kfid_cq *cq, void *buf, size_t count,
				      kfi_addr_t *src_addr)
{
	return cq->ops->readfrom(cq, buf, count, src_addr);
}

/*
 * Reads and removes the oldest completion if it is an error. Returns 1, or -EAGAIN if the oldest
 * completion is not an error. Context: any.
 */
static inline ssize_t kfi_cq_readerr(struct kfid_cq *cq, struct kfi_cq_err_entry *buf, u64 flags)
{
	return cq->ops->readerr(cq, buf, flags);
}

/**
 * kfi_cq_sread() - waits for completions, and reads and removes them
 * @cq: the queue
 * @buf: entries of the queue's format
 * @count: number of entries that fit into @buf
 * @cond: with KFI_CQ_COND_THRESHOLD: points to a size_t, the number of completions to wait for
 * @timeout: milliseconds; negative: no limit; 0: no wait, but no limit if the queue has
 *	KFI_WAIT_QUEUE, as in published providers
 *
 * Sleeps.
 *
 * Return: as kfi_cq_read(). Also -EAGAIN after the timeout or after kfi_cq_signal(), and -EINTR
 * after a signal.
 */
static inline ssize_t kfi_cq_sread(struct kfid_cq *cq, void *buf, size_t count, const void *cond,
				   int timeout)
{
	return cq->ops->sread(cq, buf, count, cond, timeout);
}

/* Like kfi_cq_sread(), but also returns source addresses, as kfi_cq_readfrom(). */
static inline ssize_t kfi_cq_sreadfrom(struct kfid_cq *cq, void *buf, size_t count,
				       kfi_addr_t *src_addr, const void *cond, int timeout)
{
	return cq->ops->sreadfrom(cq, buf, count, src_addr, cond, timeout);
}

/*
 * Ends the wait of all waiters of a queue. If there is no waiter, ends the next wait. Context: any.
 */
static inline int kfi_cq_signal(struct kfid_cq *cq)
{
	return cq->ops->signal(cq);
}

/* Returns a text for a provider's error number. */
static inline const char *kfi_cq_strerror(struct kfid_cq *cq, int prov_errno,
					  const void *err_data, char *buf, size_t len)
{
	return cq->ops->strerror(cq, prov_errno, err_data, buf, len);
}

/* Returns the number of operations that succeeded. Context: any. */
static inline u64 kfi_cntr_read(struct kfid_cntr *cntr)
{
	return cntr->ops->read(cntr);
}

/* Returns the number of operations that failed. Context: any. */
static inline u64 kfi_cntr_readerr(struct kfid_cntr *cntr)
{
	return cntr->ops->readerr(cntr);
}

/* Adds to the number of operations that succeeded. Context: any. */
static inline int kfi_cntr_add(struct kfid_cntr *cntr, u64 value)
{
	return cntr->ops->add(cntr, value);
}

/* Adds to the number of operations that failed. Context: any. */
static inline int kfi_cntr_adderr(struct kfid_cntr *cntr, u64 value)
{
	return KFI_CHECK_OP(cntr->ops, struct kfi_ops_cntr, adderr) ?
		cntr->ops->adderr(cntr, value) : -ENOSYS;
}

/* Sets the number of operations that succeeded. Context: any. */
static inline int kfi_cntr_set(struct kfid_cntr *cntr, u64 value)
{
	return cntr->ops->set(cntr, value);
}

/* Sets the number of operations that failed. Context: any. */
static inline int kfi_cntr_seterr(struct kfid_cntr *cntr, u64 value)
{
	return KFI_CHECK_OP(cntr->ops, struct kfi_ops_cntr, seterr) ?
		cntr->ops->seterr(cntr, value) : -ENOSYS;
}

/*
 * Waits until @threshold operations have succeeded, up to @timeout milliseconds (negative: no
 * limit). Returns -KFI_EAVAIL if an operation failed meanwhile, -ETIMEDOUT, or -EINTR.
 */
static inline int kfi_cntr_wait(struct kfid_cntr *cntr, u64 threshold, int timeout)
{
	return cntr->ops->wait(cntr, threshold, timeout);
}

#endif
