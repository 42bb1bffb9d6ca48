// SPDX-License-Identifier: GPL-2.0
/* Implementation by verbs alone: two queue pairs, each with a completion queue. */
#include <linux/inetdevice.h>
#include <linux/nsproxy.h>
#include <linux/random.h>
#include <linux/scatterlist.h>
#include <linux/slab.h>
#include <linux/string.h>

#include <rdma/ib_addr.h>
#include <rdma/ib_cache.h>
#include <rdma/ib_verbs.h>

#include "bench.h"

#define PORT	1
#define PAGES	(BUF_SIZE / PAGE_SIZE)

struct end {
	struct ib_cq	*cq;
	struct ib_qp	*qp;
	void		*buf;
	u64		dma;
	/* Identify the work requests in completions. */
	struct ib_cqe	send, recv;
	/* Completions counted by a worker of the RDMA core. */
	int		sent, received, failed;
};

static struct ib_device *dev;
static struct ib_pd *pd;
/* The posting end, and the other one, whose memory @mr makes accessible. */
static struct end near, far;
static struct ib_mr *mr;
/* A worker of the RDMA core polls completions, not the loop. */
static bool by_core;

static void count(struct ib_cq *cq, struct ib_wc *wc, bool sent)
{
	struct end *end = cq->cq_context;

	if (wc->status != IB_WC_SUCCESS)
		WRITE_ONCE(end->failed, 1);
	else if (sent)
		WRITE_ONCE(end->sent, end->sent + 1);
	else
		WRITE_ONCE(end->received, end->received + 1);
	wake_up(&bench_wait);
}

static void send_done(struct ib_cq *cq, struct ib_wc *wc)
{
	count(cq, wc, true);
}

static void recv_done(struct ib_cq *cq, struct ib_wc *wc)
{
	count(cq, wc, false);
}

static void on_completion(struct ib_cq *cq, void *context)
{
	wake_up(&bench_wait);
}

static int end_open(struct end *end)
{
	struct ib_cq_init_attr cq_attr = { .cqe = QUEUE_SIZE };
	struct ib_qp_init_attr attr = {
		.qp_type = IB_QPT_RC,
		.sq_sig_type = IB_SIGNAL_REQ_WR,
		.cap = {
			.max_send_wr = DEPTH_MAX + 2,
			.max_recv_wr = 2 * DEPTH_MAX + 1,
			.max_send_sge = 1,
			.max_recv_sge = 1,
		},
	};

	end->send.done = send_done;
	end->recv.done = recv_done;
	end->buf = kzalloc(BUF_SIZE, GFP_KERNEL);
	if (!end->buf)
		return -ENOMEM;
	end->dma = ib_dma_map_single(dev, end->buf, BUF_SIZE, DMA_BIDIRECTIONAL);
	if (ib_dma_mapping_error(dev, end->dma)) {
		end->dma = 0;
		return -EIO;
	}
	if (by_core)
		end->cq = ib_alloc_cq(dev, end, QUEUE_SIZE, 0, IB_POLL_WORKQUEUE);
	else
		end->cq = ib_create_cq(dev, on_completion, NULL, end, &cq_attr);
	if (IS_ERR(end->cq)) {
		int err = PTR_ERR(end->cq);

		end->cq = NULL;
		return err;
	}
	if (!by_core)
		ib_req_notify_cq(end->cq, IB_CQ_NEXT_COMP);
	attr.send_cq = end->cq;
	attr.recv_cq = end->cq;
	end->qp = ib_create_qp(pd, &attr);
	if (IS_ERR(end->qp)) {
		int err = PTR_ERR(end->qp);

		end->qp = NULL;
		return err;
	}
	return 0;
}

static void end_close(struct end *end)
{
	if (end->qp)
		ib_destroy_qp(end->qp);
	if (end->cq && by_core)
		ib_free_cq(end->cq);
	else if (end->cq)
		ib_destroy_cq(end->cq);
	if (end->dma)
		ib_dma_unmap_single(dev, end->dma, BUF_SIZE, DMA_BIDIRECTIONAL);
	kfree(end->buf);
	memset(end, 0, sizeof(*end));
}

/* Connects one end to the other. */
static int end_connect(struct end *end, const struct end *to, const struct ib_gid_attr *gid, u32 psn)
{
	struct ib_qp_attr attr = {
		.qp_state = IB_QPS_INIT,
		.port_num = PORT,
		.qp_access_flags = IB_ACCESS_REMOTE_READ | IB_ACCESS_REMOTE_WRITE,
	};
	union ib_gid dgid = gid->gid;
	struct ib_port_attr port;
	int err;

	err = ib_query_port(dev, PORT, &port);
	err = err ?: ib_modify_qp(end->qp, &attr, IB_QP_STATE | IB_QP_PKEY_INDEX | IB_QP_PORT |
						  IB_QP_ACCESS_FLAGS);
	if (err)
		return err;
	attr.qp_state = IB_QPS_RTR;
	attr.path_mtu = port.active_mtu;
	attr.dest_qp_num = to->qp->qp_num;
	attr.rq_psn = psn;
	attr.sq_psn = psn;
	attr.max_dest_rd_atomic = DEPTH_MAX;
	attr.max_rd_atomic = DEPTH_MAX;
	attr.ah_attr.type = rdma_ah_find_type(dev, PORT);
	rdma_ah_set_port_num(&attr.ah_attr, PORT);
	rdma_ah_set_grh(&attr.ah_attr, &dgid, 0, gid->index, 1, 0);
	err = rdma_read_gid_l2_fields(gid, NULL, attr.ah_attr.roce.dmac);
	err = err ?: ib_modify_qp(end->qp, &attr, IB_QP_STATE | IB_QP_AV | IB_QP_PATH_MTU |
						  IB_QP_DEST_QPN | IB_QP_RQ_PSN |
						  IB_QP_MAX_DEST_RD_ATOMIC | IB_QP_MIN_RNR_TIMER);
	if (err)
		return err;
	attr.qp_state = IB_QPS_RTS;
	attr.timeout = 17;
	attr.retry_cnt = 6;
	attr.rnr_retry = 6;
	return ib_modify_qp(end->qp, &attr, IB_QP_STATE | IB_QP_TIMEOUT | IB_QP_RETRY_CNT |
					    IB_QP_RNR_RETRY | IB_QP_SQ_PSN | IB_QP_MAX_QP_RD_ATOMIC);
}

/* Counts completions at an end. */
static noinline_for_stack int take(struct end *end, int *sent, int *received)
{
	struct ib_wc wcs[BATCH];
	int got, i;

	if (by_core) {
		*sent = READ_ONCE(end->sent);
		*received = READ_ONCE(end->received);
		return READ_ONCE(end->failed) ? -EIO : 0;
	}
	do {
		got = ib_poll_cq(end->cq, BATCH, wcs);
	} while (!got && ib_req_notify_cq(end->cq, IB_CQ_NEXT_COMP | IB_CQ_REPORT_MISSED_EVENTS) > 0);
	for (i = 0; i < got; i++) {
		if (wcs[i].status != IB_WC_SUCCESS)
			return -EIO;
		if (wcs[i].wr_cqe == &end->send)
			++*sent;
		else
			++*received;
	}
	return got < 0 ? got : 0;
}

/* Completions that the loop has already counted. */
static struct done told;

static int poll(enum kind kind, struct done *done)
{
	struct done now = told;
	int none = 0, err;

	err = take(&near, &now.sent, &none);
	if (!err && kind == BENCH_SEND)
		err = take(&far, &none, &now.received);
	if (err)
		return err;
	done->sent += now.sent - told.sent;
	done->received += now.received - told.received;
	if (now.sent == told.sent && now.received == told.received)
		return 0;
	told = now;
	return 1;
}

static int post_wr(struct end *end, struct ib_send_wr *wr, u64 dma, size_t len)
{
	struct ib_sge sge = {
		.addr = dma,
		.length = len,
		.lkey = pd->local_dma_lkey,
	};

	wr->wr_cqe = &end->send;
	wr->send_flags = IB_SEND_SIGNALED;
	if (len) {
		wr->sg_list = &sge;
		wr->num_sge = 1;
	}
	return ib_post_send(end->qp, wr, NULL);
}

static int post(enum kind kind, size_t len)
{
	struct ib_rdma_wr wr = {};

	if (kind == BENCH_SEND) {
		wr.wr.opcode = IB_WR_SEND;
	} else {
		wr.wr.opcode = kind == BENCH_WRITE ? IB_WR_RDMA_WRITE : IB_WR_RDMA_READ;
		wr.remote_addr = mr->iova;
		wr.rkey = mr->rkey;
	}
	return post_wr(&near, &wr.wr, near.dma, len);
}

static int recv(size_t len)
{
	struct ib_sge sge = {
		.addr = far.dma,
		.length = len,
		.lkey = pd->local_dma_lkey,
	};
	struct ib_recv_wr wr = {
		.wr_cqe = &far.recv,
		.sg_list = &sge,
		.num_sge = 1,
	};

	return ib_post_recv(far.qp, &wr, NULL);
}

/* Makes the memory of the far end accessible. */
static int reach(void)
{
	struct ib_reg_wr wr = { .wr = { .opcode = IB_WR_REG_MR } };
	struct scatterlist sg;
	struct done done = {};
	int err, got = 0;

	mr = ib_alloc_mr(pd, IB_MR_TYPE_MEM_REG, PAGES);
	if (IS_ERR(mr)) {
		err = PTR_ERR(mr);
		mr = NULL;
		return err;
	}
	sg_init_one(&sg, far.buf, BUF_SIZE);
	sg_dma_address(&sg) = far.dma;
	sg_dma_len(&sg) = BUF_SIZE;
	err = ib_map_mr_sg(mr, &sg, 1, NULL, PAGE_SIZE);
	if (err != 1)
		return err < 0 ? err : -EINVAL;
	wr.mr = mr;
	wr.key = mr->rkey;
	wr.access = IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_READ | IB_ACCESS_REMOTE_WRITE;
	/* Posted by the end that is polled for all kinds. */
	err = post_wr(&near, &wr.wr, 0, 0);
	if (!err)
		wait_event(bench_wait, (got = poll(BENCH_WRITE, &done)));
	return err ?: min(got, 0);
}

/* Returns the device that has the address. */
static struct ib_device *device_at(const struct sockaddr_in *addr)
{
	struct net_device *ndev = ip_dev_find(current->nsproxy->net_ns, addr->sin_addr.s_addr);
	struct ib_device *found;

	if (!ndev)
		return NULL;
	found = ib_device_get_by_netdev(ndev, RDMA_DRIVER_UNKNOWN);
	dev_put(ndev);
	return found;
}

static int open(void)
{
	const struct ib_gid_attr *attr;
	union ib_gid gid;
	u32 psn = get_random_u32() & 0xffffff;
	struct sockaddr_in *source = kfi_source();
	int err;

	memset(&told, 0, sizeof(told));
	dev = device_at(source);
	if (!dev)
		return -ENODEV;
	pd = ib_alloc_pd(dev, 0);
	if (IS_ERR(pd)) {
		err = PTR_ERR(pd);
		pd = NULL;
		return err;
	}
	rdma_ip2gid((struct sockaddr *)source, &gid);
	attr = rdma_find_gid_by_port(dev, &gid, IB_GID_TYPE_ROCE_UDP_ENCAP, PORT, NULL);
	if (IS_ERR(attr))
		return PTR_ERR(attr);
	err = end_open(&near);
	err = err ?: end_open(&far);
	err = err ?: end_connect(&near, &far, attr, psn);
	err = err ?: end_connect(&far, &near, attr, psn);
	rdma_put_gid_attr(attr);
	return err ?: reach();
}

static void close(void)
{
	end_close(&near);
	end_close(&far);
	if (mr)
		ib_dereg_mr(mr);
	mr = NULL;
	if (pd)
		ib_dealloc_pd(pd);
	pd = NULL;
	if (dev)
		ib_device_put(dev);
	dev = NULL;
}

static int core_open(void)
{
	by_core = true;
	return open();
}

static int raw_open(void)
{
	by_core = false;
	return open();
}

const struct way core_way = {
	.name	= "core",
	.open	= core_open,
	.close	= close,
	.post	= post,
	.recv	= recv,
	.poll	= poll,
};

const struct way raw_way = {
	.name	= "raw",
	.open	= raw_open,
	.close	= close,
	.post	= post,
	.recv	= recv,
	.poll	= poll,
};
