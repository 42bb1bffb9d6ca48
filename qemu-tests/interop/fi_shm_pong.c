/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * fi_shm_pong LEN ROUNDS: messages between two endpoints of libfabric's own shm provider, both of
 * which this one thread polls, so that only the way of a message is counted. Prints the
 * nanoseconds of one message: a receive posted, the message sent, both completions read.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>

#define CHECK(call)                                                              \
	do {                                                                     \
		ssize_t ret_ = (call);                                           \
		if (ret_) {                                                      \
			fprintf(stderr, "%s: %s\n", #call, fi_strerror((int)-ret_)); \
			exit(1);                                                 \
		}                                                                \
	} while (0)

struct end {
	struct fid_ep *ep;
	struct fid_cq *cq;
	struct fid_av *av;
	fi_addr_t peer;
	char *buf;
};

static void open_end(struct fid_domain *domain, struct fi_info *info, struct end *end, size_t len)
{
	struct fi_cq_attr cq = { .format = FI_CQ_FORMAT_DATA, .wait_obj = FI_WAIT_NONE };
	struct fi_av_attr av = { .type = FI_AV_TABLE };

	CHECK(fi_endpoint(domain, info, &end->ep, NULL));
	CHECK(fi_cq_open(domain, &cq, &end->cq, NULL));
	CHECK(fi_av_open(domain, &av, &end->av, NULL));
	CHECK(fi_ep_bind(end->ep, &end->cq->fid, FI_TRANSMIT | FI_RECV));
	CHECK(fi_ep_bind(end->ep, &end->av->fid, 0));
	CHECK(fi_enable(end->ep));
	end->buf = calloc(2, len + 1);
}

static void know(struct end *end, struct end *peer)
{
	char name[256];
	size_t len = sizeof(name);

	CHECK(fi_getname(&peer->ep->fid, name, &len));
	if (fi_av_insert(end->av, name, 1, &end->peer, 0, NULL) != 1)
		exit(1);
}

static int reap(struct end *end)
{
	struct fi_cq_data_entry entry;
	ssize_t n = fi_cq_read(end->cq, &entry, 1);

	if (n < 0 && n != -FI_EAGAIN) {
		fprintf(stderr, "fi_cq_read: %s\n", fi_strerror((int)-n));
		exit(1);
	}
	return n == 1;
}

static void one(struct end *from, struct end *to, size_t len)
{
	int sent = 0, came = 0;
	ssize_t ret;

	CHECK(fi_recv(to->ep, to->buf + len, len, NULL, FI_ADDR_UNSPEC, NULL));
	do {
		ret = fi_send(from->ep, from->buf, len, NULL, from->peer, NULL);
		if (ret == -FI_EAGAIN)
			reap(to);
	} while (ret == -FI_EAGAIN);
	CHECK(ret);
	while (!sent || !came) {
		came |= reap(to);
		sent |= reap(from);
	}
}

static uint64_t now(void)
{
	struct timespec at;

	clock_gettime(CLOCK_MONOTONIC, &at);
	return at.tv_sec * 1000000000ull + at.tv_nsec;
}

int main(int argc, char **argv)
{
	struct fi_info *hints = fi_allocinfo(), *info;
	size_t len = argc > 1 ? strtoul(argv[1], NULL, 0) : 64;
	int rounds = argc > 2 ? atoi(argv[2]) : 1000, i;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct end a, b;
	uint64_t start;

	hints->caps = FI_MSG;
	hints->ep_attr->type = FI_EP_RDM;
	hints->fabric_attr->prov_name = strdup("shm");
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->mode = FI_CONTEXT;
	CHECK(fi_getinfo(FI_VERSION(1, 20), NULL, NULL, 0, hints, &info));
	CHECK(fi_fabric(info->fabric_attr, &fabric, NULL));
	CHECK(fi_domain(fabric, info, &domain, NULL));
	open_end(domain, info, &a, len);
	open_end(domain, info, &b, len);
	know(&a, &b);
	know(&b, &a);
	for (i = 0; i < 100; i++) {
		one(&a, &b, len);
		one(&b, &a, len);
	}
	start = now();
	for (i = 0; i < rounds; i++) {
		one(&a, &b, len);
		one(&b, &a, len);
	}
	printf("%.1f\n", (double)(now() - start) / (2.0 * rounds));
	return 0;
}
