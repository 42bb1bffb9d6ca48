// SPDX-License-Identifier: GPL-2.0
/*
 * A queue pair of an iWARP device connected to another one of this host, through the connection
 * manager. See helpers.h.
 *
 * iWARP runs over TCP: only the connection manager can connect a queue pair. The listener has a port
 * of the device's address, so that any host can send a request. A request is accepted only if it
 * has the secret of the one that this file sends. The accepting queue pair is in a protection domain
 * of its own, which has no memory.
 */
#include <linux/completion.h>
#include <linux/random.h>
#include <linux/slab.h>
#include <crypto/utils.h>
#include <rdma/ib_cache.h>

#include "helpers.h"

/* Time limit for the connection, which does not leave the host. */
#define LOOP_TIME (10 * HZ)

/* Attempts to find ports. rdma_cm does not know the ports of TCP's sockets, and may choose one of them. */
#define LOOP_TRIES 8

struct kverbs_loop {
	struct rdma_cm_id *listener;
	struct rdma_cm_id *active;
	struct rdma_cm_id *passive;
	struct ib_pd *pd;
	struct ib_qp *peer;
	u32 qp_num;
	u8 secret[32];
	struct completion done;
	int status;
};

static void loop_done(struct kverbs_loop *loop, int status)
{
	if (completion_done(&loop->done))
		return;
	loop->status = status;
	complete_all(&loop->done);
}

static int loop_request(struct rdma_cm_id *id, struct kverbs_loop *loop,
			const struct rdma_conn_param *asked)
{
	struct rdma_conn_param param = {
		.responder_resources = 1,
		.initiator_depth = 1,
		.qp_num = loop->peer->qp_num,
	};
	int ret;

	if (loop->passive || asked->private_data_len < sizeof(loop->secret) ||
	    crypto_memneq(asked->private_data, loop->secret, sizeof(loop->secret)))
		return -EACCES;
	ret = rdma_accept(id, &param);
	if (!ret)
		loop->passive = id;
	return ret;
}

/* A return value that is not 0 destroys @id, which is right only for a refused request. */
static int loop_event(struct rdma_cm_id *id, struct rdma_cm_event *event)
{
	struct kverbs_loop *loop = id->context;
	struct rdma_conn_param param = {
		.responder_resources = 1,
		.initiator_depth = 1,
		.qp_num = loop->qp_num,
		.private_data = loop->secret,
		.private_data_len = sizeof(loop->secret),
	};
	int ret = 0;

	if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST)
		return loop_request(id, loop, &event->param.conn);
	if (id != loop->active)
		return 0;
	switch (event->event) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		if (id->device != loop->pd->device)
			ret = -EHOSTUNREACH;
		else
			ret = rdma_resolve_route(id, jiffies_to_msecs(LOOP_TIME));
		break;
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		ret = rdma_connect_locked(id, &param);
		break;
	case RDMA_CM_EVENT_ESTABLISHED:
		loop_done(loop, 0);
		break;
	default:
		ret = event->status < 0 ? event->status : -ECONNABORTED;
		break;
	}
	if (ret)
		loop_done(loop, ret);
	return 0;
}

/* Ends the connection, or a failed attempt to connect. */
static void loop_end(struct kverbs_loop *loop)
{
	if (loop->listener)
		rdma_destroy_id(loop->listener);
	if (loop->active)
		rdma_destroy_id(loop->active);
	if (loop->passive)
		rdma_destroy_id(loop->passive);
	loop->listener = NULL;
	loop->active = NULL;
	loop->passive = NULL;
}

void kverbs_loop_free(struct kverbs_loop *loop)
{
	loop_end(loop);
	/* A queue pair that stays is in the protection domain, and uses the completion queue. */
	if (loop->pd && !(loop->peer && kverbs_try_destroy_qp(loop->peer)))
		ib_dealloc_pd(loop->pd);
	kfree(loop);
}

/* Connects to the listener, and waits until the queue pair can be used. */
static int loop_connect(struct kverbs_loop *loop, struct net *net, struct sockaddr_storage *addr)
{
	struct sockaddr *sa = (struct sockaddr *)addr;
	struct rdma_cm_id *id;
	int ret;

	id = rdma_create_id(net, loop_event, loop, RDMA_PS_TCP, IB_QPT_RC);
	if (IS_ERR(id))
		return PTR_ERR(id);
	loop->listener = id;
	ret = rdma_bind_addr(id, sa);
	if (!ret)
		ret = rdma_listen(id, 1);
	if (ret)
		return ret;
	id = rdma_create_id(net, loop_event, loop, RDMA_PS_TCP, IB_QPT_RC);
	if (IS_ERR(id))
		return PTR_ERR(id);
	loop->active = id;
	ret = rdma_resolve_addr(id, NULL, (struct sockaddr *)&loop->listener->route.addr.src_addr,
				jiffies_to_msecs(LOOP_TIME));
	if (ret)
		return ret;
	if (!wait_for_completion_timeout(&loop->done, LOOP_TIME))
		return -ETIMEDOUT;
	return loop->status;
}

struct kverbs_loop *kverbs_loop_new(struct ib_qp *qp, struct ib_cq *cq, u32 port)
{
	struct ib_device *dev = qp->device;
	struct ib_qp_init_attr attr = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.sq_sig_type = IB_SIGNAL_REQ_WR,
		.qp_type = IB_QPT_RC,
	};
	struct sockaddr_storage addr;
	struct kverbs_loop *loop;
	struct net *net;
	int tries, ret;

	net = kverbs_port_addr(dev, port, &addr);
	if (IS_ERR(net))
		return ERR_CAST(net);
	loop = kzalloc_obj(*loop, GFP_KERNEL_ACCOUNT);
	ret = -ENOMEM;
	if (!loop)
		goto out;
	init_completion(&loop->done);
	get_random_bytes(loop->secret, sizeof(loop->secret));
	loop->qp_num = qp->qp_num;
	loop->pd = ib_alloc_pd(dev, 0);
	if (IS_ERR(loop->pd)) {
		ret = PTR_ERR(loop->pd);
		loop->pd = NULL;
		goto err;
	}
	loop->peer = ib_create_qp(loop->pd, &attr);
	if (IS_ERR(loop->peer)) {
		ret = PTR_ERR(loop->peer);
		loop->peer = NULL;
		goto err;
	}
	ret = loop_connect(loop, net, &addr);
	for (tries = 1; ret == -EADDRINUSE && tries < LOOP_TRIES; tries++) {
		loop_end(loop);
		reinit_completion(&loop->done);
		ret = loop_connect(loop, net, &addr);
	}
	if (ret)
		goto err;
	/* Nothing else may connect. */
	rdma_destroy_id(loop->listener);
	loop->listener = NULL;
	put_net(net);
	return loop;
err:
	kverbs_loop_free(loop);
out:
	put_net(net);
	return ERR_PTR(ret);
}
