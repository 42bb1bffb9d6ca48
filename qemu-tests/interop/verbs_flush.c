// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Measures durable writes by the flush operation of user-space verbs, for
 * comparison.
 *
 *   verbs_flush serve DEVICE-DAX ADDRESS PORT
 *   verbs_flush write ADDRESS PORT BYTES ROUNDS
 *
 * The server registers the device's first 2 MiB, prints a line when it listens,
 * and ends after its client. The client prints the nanoseconds that one write
 * and the flush behind it take, averaged over ROUNDS, waiting for events.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define LEN (2u << 20)

struct remote {
	uint64_t addr;
	uint32_t key;
};

static void *need(const char *what, void *got)
{
	if (!got || got == MAP_FAILED) {
		perror(what);
		exit(1);
	}
	return got;
}

static void good(const char *what, int ret)
{
	if (ret) {
		fprintf(stderr, "%s: %s\n", what, strerror(ret < 0 ? errno : ret));
		exit(1);
	}
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static struct rdma_cm_event *event(struct rdma_event_channel *ch, enum rdma_cm_event_type kind)
{
	struct rdma_cm_event *got;

	good("event", rdma_get_cm_event(ch, &got));
	if (got->event != kind) {
		fprintf(stderr, "%s instead of %s\n", rdma_event_str(got->event),
			rdma_event_str(kind));
		exit(1);
	}
	return got;
}

static void make_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_comp_channel *ch)
{
	struct ibv_cq *cq = need("cq", ibv_create_cq(id->verbs, 16, NULL, ch, 0));
	struct ibv_qp_init_attr_ex attr = {
		.qp_type = IBV_QPT_RC, .send_cq = cq, .recv_cq = cq, .pd = pd,
		.cap = { .max_send_wr = 8, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_FLUSH,
	};

	good("queue pair with flush", rdma_create_qp_ex(id, &attr));
}

static void place(struct sockaddr_in *at, char **argv)
{
	at->sin_family = AF_INET;
	at->sin_port = htons((uint16_t)atoi(argv[1]));
	good("address", inet_pton(AF_INET, argv[0], &at->sin_addr) != 1);
}

static void serve(char **argv)
{
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
		     IBV_ACCESS_FLUSH_PERSISTENT;
	struct rdma_event_channel *ch = need("channel", rdma_create_event_channel());
	struct sockaddr_in at = { 0 };
	struct rdma_cm_id *listener, *id;
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	struct rdma_cm_event *request;
	struct remote mine;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	int fd = open(argv[0], O_RDWR);
	void *mem;

	good(argv[0], fd < 0 ? -1 : 0);
	mem = need("map", mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
	place(&at, argv + 1);
	good("id", rdma_create_id(ch, &listener, NULL, RDMA_PS_TCP));
	good("bind", rdma_bind_addr(listener, (struct sockaddr *)&at));
	good("listen", rdma_listen(listener, 1));
	puts("listening");
	fflush(stdout);
	request = event(ch, RDMA_CM_EVENT_CONNECT_REQUEST);
	id = request->id;
	pd = need("domain", ibv_alloc_pd(id->verbs));
	mr = need("registration for flush", ibv_reg_mr(pd, mem, LEN, access));
	make_qp(id, pd, NULL);
	mine = (struct remote){ (uintptr_t)mem, mr->rkey };
	param.private_data = &mine;
	param.private_data_len = sizeof(mine);
	good("accept", rdma_accept(id, &param));
	rdma_ack_cm_event(request);
	rdma_ack_cm_event(event(ch, RDMA_CM_EVENT_ESTABLISHED));
	rdma_ack_cm_event(event(ch, RDMA_CM_EVENT_DISCONNECTED));
}

static void one(struct ibv_qp_ex *qp, struct ibv_mr *mr, size_t len, const struct remote *to)
{
	struct ibv_comp_channel *ch = qp->qp_base.send_cq->channel;
	struct ibv_cq *cq = qp->qp_base.send_cq;
	struct ibv_wc wc;
	void *context;
	int n;

	ibv_wr_start(qp);
	qp->wr_id = 1;
	qp->wr_flags = 0;
	ibv_wr_rdma_write(qp, to->key, to->addr);
	ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)mr->addr, (uint32_t)len);
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_flush(qp, to->key, to->addr, len, IBV_FLUSH_PERSISTENT, IBV_FLUSH_RANGE);
	good("post", ibv_wr_complete(qp));
	while (!(n = ibv_poll_cq(cq, 1, &wc))) {
		good("completion", ibv_get_cq_event(ch, &cq, &context));
		ibv_ack_cq_events(cq, 1);
		good("notify", ibv_req_notify_cq(cq, 0));
	}
	if (n < 0 || wc.status != IBV_WC_SUCCESS) {
		fprintf(stderr, "flush: %s\n", n < 0 ? "poll" : ibv_wc_status_str(wc.status));
		exit(1);
	}
}

static void write_to(char **argv)
{
	struct rdma_event_channel *ch = need("channel", rdma_create_event_channel());
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	size_t len = (size_t)atol(argv[2]);
	long rounds = atol(argv[3]);
	struct sockaddr_in at = { 0 };
	struct rdma_cm_event *up;
	struct rdma_cm_id *id;
	struct remote to;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	double start;

	place(&at, argv);
	good("id", rdma_create_id(ch, &id, NULL, RDMA_PS_TCP));
	good("address", rdma_resolve_addr(id, NULL, (struct sockaddr *)&at, 10000));
	rdma_ack_cm_event(event(ch, RDMA_CM_EVENT_ADDR_RESOLVED));
	good("route", rdma_resolve_route(id, 10000));
	rdma_ack_cm_event(event(ch, RDMA_CM_EVENT_ROUTE_RESOLVED));
	pd = need("domain", ibv_alloc_pd(id->verbs));
	mr = need("registration", ibv_reg_mr(pd, need("memory", calloc(1, len)), len,
					     IBV_ACCESS_LOCAL_WRITE));
	make_qp(id, pd, need("channel", ibv_create_comp_channel(id->verbs)));
	good("notify", ibv_req_notify_cq(id->qp->send_cq, 0));
	good("connect", rdma_connect(id, &param));
	up = event(ch, RDMA_CM_EVENT_ESTABLISHED);
	memcpy(&to, up->param.conn.private_data, sizeof(to));
	rdma_ack_cm_event(up);
	for (long i = -1; i < rounds; i++) {
		if (i == 0)
			start = now();
		one(ibv_qp_to_qp_ex(id->qp), mr, len, &to);
	}
	printf("%.0f\n", (now() - start) / (double)rounds);
	rdma_disconnect(id);
}

int main(int argc, char **argv)
{
	if (argc == 5 && !strcmp(argv[1], "serve"))
		serve(argv + 2);
	else if (argc == 6 && !strcmp(argv[1], "write"))
		write_to(argv + 2);
	else
		return 2;
	return 0;
}
