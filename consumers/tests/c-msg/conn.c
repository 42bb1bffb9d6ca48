// SPDX-License-Identifier: GPL-2.0
/* Connections: open, wait, close. */
#include <linux/slab.h>
#include <linux/string.h>

#include "msg.h"

#define ACCESS	(KFI_SEND | KFI_RECV | KFI_READ | KFI_WRITE | KFI_REMOTE_READ | KFI_REMOTE_WRITE)

/* An event of a connection, with the peer's connection data. */
struct event {
	struct kfi_eq_cm_entry	entry;
	struct msg_remote	remote;
	/* The fabric may pad the data of a request. */
	u8			rest[256];
};

/* Returns the offer for an IPv4 address, with atomics if available; NULL if there is none. */
struct kfi_info *msg_info(const char *provider, const char *node, const char *service, u64 flags)
{
	struct kfi_info *hints = kfi_allocinfo(), *list = NULL, *one;
	int err;

	if (!hints)
		return NULL;
	hints->caps = KFI_MSG | KFI_RMA | KFI_ATOMIC;
	hints->mode = ~0ULL;
	hints->ep_attr->type = KFI_EP_MSG;
	hints->tx_attr->iov_limit = MSG_PIECES;
	hints->rx_attr->iov_limit = MSG_PIECES;
	hints->domain_attr->mr_mode = KFI_MR_LOCAL | KFI_MR_VIRT_ADDR | KFI_MR_PROV_KEY;
	if (provider) {
		hints->fabric_attr->prov_name = kstrdup(provider, GFP_KERNEL);
		if (!hints->fabric_attr->prov_name) {
			kfi_freeinfo(hints);
			return NULL;
		}
	}
	err = kfi_getinfo(kfi_version(), node, service, flags, hints, &list);
	if (err == -ENODATA) {
		hints->caps &= ~KFI_ATOMIC;
		err = kfi_getinfo(kfi_version(), node, service, flags, hints, &list);
	}
	kfi_freeinfo(hints);
	if (err)
		return NULL;
	for (one = list; one && one->addr_format != KFI_SOCKADDR_IN; one = one->next)
		;
	one = one ? kfi_dupinfo(one) : NULL;
	kfi_freeinfo(list);
	return one;
}

/* Listens. The place owns the info from now on. */
int msg_listen(struct msg_place *place, struct kfi_info *info)
{
	struct kfi_eq_attr attr = { .wait_obj = KFI_WAIT_QUEUE };
	int err;

	place->info = info;
	err = kfi_fabric(info->fabric_attr, &place->fabric, NULL);
	err = err ?: kfi_eq_open(place->fabric, &attr, &place->eq, NULL, NULL);
	err = err ?: kfi_passive_ep(place->fabric, info, &place->pep, NULL);
	err = err ?: kfi_pep_bind(place->pep, &place->eq->fid, 0);
	return err ?: kfi_listen(place->pep);
}

/* Closes an object, which may be NULL. */
static void close_one(struct kfid *fid, int *err)
{
	int failed = fid ? kfi_close(fid) : 0;

	*err = *err ?: failed;
}

#define CLOSE(object, err)	close_one((object) ? &(object)->fid : NULL, err)

int msg_place_close(struct msg_place *place)
{
	int err = 0;

	CLOSE(place->pep, &err);
	CLOSE(place->eq, &err);
	CLOSE(place->fabric, &err);
	kfi_freeinfo(place->info);
	return err;
}

static int register_space(struct msg_conn *conn, u64 caps)
{
	u64 access = ACCESS | (caps & KFI_ATOMIC);
	int i, err;

	conn->space = kzalloc_obj(*conn->space);
	if (!conn->space)
		return -ENOMEM;
	err = kfi_mr_reg(conn->domain, conn->space, sizeof(*conn->space), access, 0, 0, 0, &conn->mr,
			 NULL);
	for (i = 0; !err && i < MSG_PIECES; i++) {
		conn->pieces[i] = (struct kvec){ conn->space->data[i], MSG_PIECE };
		conn->descs[i] = kfi_mr_desc(conn->mr);
	}
	return err;
}

/* Opens all objects of a connection, with a separate fabric. */
static int conn_open(struct msg_conn *conn, struct kfi_info *info)
{
	struct kfi_eq_attr eq_attr = { .wait_obj = KFI_WAIT_QUEUE };
	struct kfi_cq_attr cq_attr = {
		.format = KFI_CQ_FORMAT_DATA,
		.wait_obj = KFI_WAIT_QUEUE,
	};
	int err;

	err = kfi_fabric(info->fabric_attr, &conn->fabric, NULL);
	err = err ?: kfi_domain(conn->fabric, info, &conn->domain, NULL);
	err = err ?: kfi_endpoint(conn->domain, info, &conn->ep, NULL);
	err = err ?: kfi_eq_open(conn->fabric, &eq_attr, &conn->eq, NULL, NULL);
	err = err ?: kfi_ep_bind(conn->ep, &conn->eq->fid, 0);
	cq_attr.size = info->tx_attr->size;
	cq_attr.flags = KFI_SEND;
	err = err ?: kfi_cq_open(conn->domain, &cq_attr, &conn->tx, NULL, NULL);
	err = err ?: kfi_ep_bind(conn->ep, &conn->tx->fid, KFI_SEND);
	cq_attr.size = info->rx_attr->size;
	cq_attr.flags = KFI_RECV;
	err = err ?: kfi_cq_open(conn->domain, &cq_attr, &conn->rx, NULL, NULL);
	err = err ?: kfi_ep_bind(conn->ep, &conn->rx->fid, KFI_RECV);
	err = err ?: register_space(conn, info->caps);
	return err ?: kfi_enable(conn->ep);
}

/*
 * Waits for an event, with a negative timeout or with 0: a queue with KFI_WAIT_QUEUE then waits for
 * ever.
 */
static ssize_t next_event(struct kfid_eq *eq, u32 wanted, struct event *event, int timeout)
{
	struct kfi_eq_err_entry error = {};
	u32 kind = 0;
	ssize_t got = kfi_eq_sread(eq, &kind, event, sizeof(*event), timeout, 0);

	if (got == -KFI_EAVAIL && kfi_eq_readerr(eq, &error, 0) > 0)
		return -error.err;
	if (got < 0)
		return got;
	return kind == wanted ? got : -EPROTO;
}

static int learn_remote(struct msg_conn *conn, const struct event *event, ssize_t got)
{
	if (got < (ssize_t)(sizeof(event->entry) + sizeof(event->remote)))
		return -EBADMSG;
	conn->addr = le64_to_cpu(event->remote.addr);
	conn->key = le64_to_cpu(event->remote.key);
	return 0;
}

static struct msg_remote own(const struct msg_conn *conn)
{
	return (struct msg_remote){
		.addr = cpu_to_le64(conn->mr->iova),
		.key = cpu_to_le64(kfi_mr_key(conn->mr)),
	};
}

/* Waits for a client and accepts it on a newly opened fabric. */
int msg_accept(struct msg_place *place, struct msg_conn *conn)
{
	struct msg_remote mine;
	struct event event = {};
	ssize_t got;
	int err;

	conn->step = "a request comes";
	got = next_event(place->eq, KFI_CONNREQ, &event, 0);
	if (got < 0)
		return got;
	err = learn_remote(conn, &event, got);
	conn->step = "it is accepted on a fabric opened anew";
	err = err ?: conn_open(conn, event.entry.info);
	kfi_freeinfo(event.entry.info);
	if (err)
		return err;
	mine = own(conn);
	/* The client may send its token as soon as it is connected. */
	err = msg_expect_token(conn);
	err = err ?: kfi_accept(conn->ep, &mine, sizeof(mine));
	if (err)
		return err;
	got = next_event(conn->eq, KFI_CONNECTED, &event, -1);
	return got < 0 ? got : 0;
}

int msg_connect(struct msg_conn *conn, struct kfi_info *info)
{
	struct msg_remote mine;
	struct event event = {};
	ssize_t got;
	int err;

	conn->step = "it connects";
	err = conn_open(conn, info);
	if (err)
		return err;
	mine = own(conn);
	err = kfi_connect(conn->ep, NULL, &mine, sizeof(mine));
	if (err)
		return err;
	got = next_event(conn->eq, KFI_CONNECTED, &event, -1);
	return got < 0 ? got : learn_remote(conn, &event, got);
}

/*
 * Closes a connection. With @ends this side disconnects; without, it waits until the peer has
 * disconnected.
 */
int msg_conn_close(struct msg_conn *conn, bool ends)
{
	struct event event;
	int err = 0;

	if (conn->step) {
		/* A step has failed, so there is no event to wait for. */
	} else if (ends) {
		err = kfi_shutdown(conn->ep, 0);
	} else {
		ssize_t got = next_event(conn->eq, KFI_SHUTDOWN, &event, 0);

		err = got < 0 ? got : 0;
	}
	CLOSE(conn->ep, &err);
	CLOSE(conn->eq, &err);
	CLOSE(conn->tx, &err);
	CLOSE(conn->rx, &err);
	CLOSE(conn->mr, &err);
	CLOSE(conn->domain, &err);
	CLOSE(conn->fabric, &err);
	kfree(conn->space);
	return err;
}

/* Waits for one completion and checks it. */
int msg_wait(struct msg_conn *conn, struct kfid_cq *cq, void *context, u64 flags, u64 *data)
{
	/* With 0 and with a negative number in turn. */
	int timeout = conn->told % 2 ? 0 : -1;
	struct kfi_cq_err_entry error = {};
	struct kfi_cq_data_entry entry = {};
	ssize_t got = kfi_cq_sread(cq, &entry, 1, NULL, timeout);

	if (got == -KFI_EAVAIL && kfi_cq_readerr(cq, &error, 0) == 1)
		return -error.err;
	if (got != 1)
		return got < 0 ? got : -EPROTO;
	if (entry.op_context != context || entry.flags != flags)
		return -EBADMSG;
	if (data)
		*data = entry.data;
	return 0;
}

/* Posts the receive of the peer's next token. */
int msg_expect_token(struct msg_conn *conn)
{
	return kfi_recv(conn->ep, conn->space->in, MSG_TOKEN, conn->descs[0], 0, conn->space->in);
}

/* Sends a token, which lets the peer go on. */
int msg_tell(struct msg_conn *conn)
{
	int err;

	conn->told++;
	conn->space->out[0] = cpu_to_le32(conn->told);
	err = kfi_send(conn->ep, conn->space->out, MSG_TOKEN, conn->descs[0], 0, conn->space->out);
	return err ?: msg_wait(conn, conn->tx, conn->space->out, KFI_MSG | KFI_SEND, NULL);
}

/* Waits for the peer's token. The caller then posts another receive. */
int msg_hear(struct msg_conn *conn)
{
	int err = msg_wait(conn, conn->rx, conn->space->in, KFI_MSG | KFI_RECV, NULL);

	conn->heard++;
	if (!err && le32_to_cpu(conn->space->in[0]) != conn->heard)
		err = -EILSEQ;
	return err;
}
