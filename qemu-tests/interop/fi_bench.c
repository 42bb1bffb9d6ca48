// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * fi_bench PROVIDER TYPE DOMAIN ADDRESS [ROUNDS]: messages and one-sided transfers between two endpoints of a
 * libfabric provider, and registrations of memory, by libfabric's public calls. TYPE is msg or rdm. One thread owns both ends and
 * polls both queues, so the figures compare the ways of an operation through provider and kernel.
 * DOMAIN and ADDRESS may be "-" for a provider without addresses.
 *
 * Prints a line "VALUE UNIT CASE" for each figure. With a further argument, a number of rounds, it makes
 * only so many messages and then so many writes of 8 B. Before and after each of both it prints a line and
 * waits for one, so that a profiler can trace them.
 */
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#define MAX (4 << 20)
#define RIGHTS (FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE)

#define CHECK(call) check((call), #call)

static void check(ssize_t rc, const char *call)
{
	if (rc) {
		fprintf(stderr, "%s: %s\n", call, fi_strerror((int)-rc));
		exit(1);
	}
}

struct end {
	struct fid_ep *ep;
	struct fid_cq *cq;
	struct fid_av *av;
	struct fid_mr *mr;
	fi_addr_t peer;
	char *buf;
	void *desc;
	/* Completions that have been read, and those that are expected. */
	uint64_t done, wanted;
};

enum kind { MESSAGE, TAGGED, WRITE, READ };

static const char *const names[] = { "message", "tagged message", "write", "read" };
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fi_info *info;
/* Of both ends: a provider may connect only while this queue is read. */
static struct fid_eq *eq;
static struct end ends[2];
static int rdm;

/* ---- connecting ---- */

static void open_end(struct end *e, struct fi_info *of)
{
	struct fi_cq_attr cq = { .size = 512, .format = FI_CQ_FORMAT_DATA,
				 .wait_obj = FI_WAIT_NONE };
	struct fi_av_attr av = { .type = FI_AV_TABLE };

	CHECK(fi_endpoint(domain, of, &e->ep, NULL));
	CHECK(fi_cq_open(domain, &cq, &e->cq, NULL));
	CHECK(fi_ep_bind(e->ep, &e->cq->fid, FI_TRANSMIT | FI_RECV));
	if (rdm) {
		CHECK(fi_av_open(domain, &av, &e->av, NULL));
		CHECK(fi_ep_bind(e->ep, &e->av->fid, 0));
	} else {
		CHECK(fi_ep_bind(e->ep, &eq->fid, 0));
	}
	CHECK(fi_enable(e->ep));
	if (posix_memalign((void **)&e->buf, 4096, 2 * MAX))
		exit(1);
	memset(e->buf, 1, 2 * MAX);
	CHECK(fi_mr_reg(domain, e->buf, 2 * MAX, RIGHTS, 0, (uint64_t)(e - ends) + 1, 0, &e->mr,
			NULL));
	e->desc = fi_mr_desc(e->mr);
}

static void know(struct end *e, struct end *peer)
{
	char name[256];
	size_t len = sizeof(name);

	CHECK(fi_getname(&peer->ep->fid, name, &len));
	if (fi_av_insert(e->av, name, 1, &e->peer, 0, NULL) != 1)
		exit(1);
}

/* Waits for an event of a kind. */
static struct fi_info *event(uint32_t wanted)
{
	char buf[512];
	struct fi_eq_cm_entry entry;
	uint32_t kind = 0;
	ssize_t n = fi_eq_sread(eq, &kind, buf, sizeof(buf), 60000, 0);

	if (n < (ssize_t)sizeof(entry) || kind != wanted) {
		fprintf(stderr, "no event %u: %zd, %u\n", wanted, n, kind);
		exit(1);
	}
	memcpy(&entry, buf, sizeof(entry));
	return entry.info;
}

static void join(void)
{
	struct fi_eq_attr attr = { .size = 16, .wait_obj = FI_WAIT_FD };
	struct fid_pep *pep;
	struct fi_info *asked;
	char name[256];
	size_t len = sizeof(name);

	if (rdm) {
		for (int i = 0; i < 2; i++)
			open_end(&ends[i], info);
		for (int i = 0; i < 2; i++)
			know(&ends[i], &ends[1 - i]);
		return;
	}
	CHECK(fi_eq_open(fabric, &attr, &eq, NULL));
	CHECK(fi_passive_ep(fabric, info, &pep, NULL));
	CHECK(fi_pep_bind(pep, &eq->fid, 0));
	CHECK(fi_listen(pep));
	CHECK(fi_getname(&pep->fid, name, &len));
	open_end(&ends[0], info);
	CHECK(fi_connect(ends[0].ep, name, NULL, 0));
	asked = event(FI_CONNREQ);
	open_end(&ends[1], asked);
	CHECK(fi_accept(ends[1].ep, NULL, 0));
	event(FI_CONNECTED);
	event(FI_CONNECTED);
}

/* ---- operations ---- */

/* Reads completions of both ends. Returns their number. */
static int reap(void)
{
	struct fi_cq_data_entry entries[16];
	int all = 0;

	for (int i = 0; i < 2; i++) {
		ssize_t n = fi_cq_read(ends[i].cq, entries, 16);

		if (n > 0) {
			ends[i].done += (uint64_t)n;
			all += (int)n;
		} else if (n != -FI_EAGAIN) {
			struct fi_cq_err_entry err = { 0 };

			fi_cq_readerr(ends[i].cq, &err, 0);
			fprintf(stderr, "end %d: %s: %s\n", i, fi_strerror((int)-n),
				fi_strerror(err.err));
			exit(1);
		}
	}
	return all;
}

/* Waits for all expected completions. The kernel's workers run while there is nothing to read. */
static void finish(void)
{
	while (ends[0].done < ends[0].wanted || ends[1].done < ends[1].wanted)
		if (!reap())
			sched_yield();
}

#define POST(call) do { \
	ssize_t rc_; \
	while ((rc_ = (call)) == -FI_EAGAIN) \
		if (!reap()) \
			sched_yield(); \
	check(rc_, #call); \
} while (0)

static void receive(struct end *e, enum kind kind, size_t len)
{
	if (kind == MESSAGE)
		POST(fi_recv(e->ep, e->buf + MAX, len, e->desc, FI_ADDR_UNSPEC, NULL));
	else if (kind == TAGGED)
		POST(fi_trecv(e->ep, e->buf + MAX, len, e->desc, FI_ADDR_UNSPEC, 7, 0, NULL));
	else
		return;
	e->wanted++;
}

static void transmit(struct end *e, struct end *to, enum kind kind, size_t len)
{
	int virtual = info->domain_attr->mr_mode == 1 ||
		      (info->domain_attr->mr_mode & FI_MR_VIRT_ADDR);
	uint64_t at = virtual ? (uint64_t)(uintptr_t)to->buf : 0, key = fi_mr_key(to->mr);

	switch (kind) {
	case MESSAGE:
		POST(fi_send(e->ep, e->buf, len, e->desc, e->peer, NULL));
		break;
	case TAGGED:
		POST(fi_tsend(e->ep, e->buf, len, e->desc, e->peer, 7, NULL));
		break;
	case WRITE:
		POST(fi_write(e->ep, e->buf, len, e->desc, e->peer, at, key, NULL));
		break;
	case READ:
		POST(fi_read(e->ep, e->buf, len, e->desc, e->peer, at, key, NULL));
	}
	e->wanted++;
}

/* ---- measuring ---- */

static uint64_t now(void)
{
	struct timespec at;

	clock_gettime(CLOCK_MONOTONIC, &at);
	return (uint64_t)at.tv_sec * 1000000000 + (uint64_t)at.tv_nsec;
}

static const char *size_name(size_t len)
{
	static char text[32];

	if (len >= 1 << 20)
		snprintf(text, sizeof(text), "%zu MiB", len >> 20);
	else if (len >= 1 << 10)
		snprintf(text, sizeof(text), "%zu KiB", len >> 10);
	else
		snprintf(text, sizeof(text), "%zu B", len);
	return text;
}

/* `rounds` times `depth` operations at once. Messages change their direction after each round. */
static uint64_t run(enum kind kind, size_t len, int rounds, int depth)
{
	uint64_t start = now();

	for (int i = 0; i < rounds; i++) {
		int n = kind == MESSAGE || kind == TAGGED ? i & 1 : 0;
		struct end *from = &ends[n], *to = &ends[1 - n];

		for (int j = 0; j < depth; j++)
			receive(to, kind, len);
		for (int j = 0; j < depth; j++)
			transmit(from, to, kind, len);
		finish();
	}
	return now() - start;
}

static void latency(enum kind kind, size_t len, int rounds)
{
	run(kind, len, 2, 1);
	printf("%.3f us %s, %s\n", (double)run(kind, len, rounds, 1) / rounds / 1e3, names[kind],
	       size_name(len));
	fflush(stdout);
}

static void rate(enum kind kind, size_t len, int rounds, int depth)
{
	double each;

	run(kind, len, 2, depth);
	each = (double)run(kind, len, rounds, depth) / rounds / depth;
	if (len < 4096)
		printf("%.1f /s %s, %s, %d at once\n", 1e9 / each, names[kind], size_name(len),
		       depth);
	else
		printf("%.3f MiB/s %s, %s, %d at once\n", (double)len / (1 << 20) * 1e9 / each,
		       names[kind], size_name(len), depth);
	fflush(stdout);
}

/* Registers memory with all rights, and closes the registration. */
static uint64_t registrations(size_t len, int rounds)
{
	uint64_t start = now();

	for (int i = 0; i < rounds; i++) {
		struct fid_mr *mr;

		CHECK(fi_mr_reg(domain, ends[0].buf, len, RIGHTS, 0, 3, 0, &mr, NULL));
		CHECK(fi_close(&mr->fid));
	}
	return now() - start;
}

static void registration(size_t len, int rounds)
{
	registrations(len, 2);
	printf("%.3f us registration, %s\n", (double)registrations(len, rounds) / rounds / 1e3,
	       size_name(len));
	fflush(stdout);
}

/* Prints a line, and waits for one. */
static void say(const char *line)
{
	puts(line);
	fflush(stdout);
	if (getchar() == EOF)
		exit(1);
}

static void held(enum kind kind, int rounds)
{
	run(kind, 8, 20, 1);
	say("warm");
	run(kind, 8, rounds, 1);
	say("done");
}

int main(int argc, char **argv)
{
	struct fi_info *hints = fi_allocinfo();
	static const struct {
		size_t len;
		int rounds;
	} sizes[] = { { 8, 200 }, { 1 << 10, 100 }, { 4 << 10, 100 }, { 64 << 10, 20 },
		      { 1 << 20, 4 }, { 4 << 20, 2 } };

	if ((argc != 5 && argc != 6) || !hints)
		return 2;
	rdm = !strcmp(argv[2], "rdm");
	hints->ep_attr->type = rdm ? FI_EP_RDM : FI_EP_MSG;
	hints->caps = rdm ? FI_MSG | FI_TAGGED | FI_RMA : FI_MSG | FI_RMA;
	hints->mode = FI_CONTEXT | FI_CONTEXT2 | FI_RX_CQ_DATA;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED |
				      FI_MR_PROV_KEY;
	hints->fabric_attr->prov_name = strdup(argv[1]);
	/* This client makes progress by itself, which lets messages of kshm go through rings. */
	hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
	if (strcmp(argv[3], "-"))
		hints->domain_attr->name = strdup(argv[3]);
	if (strcmp(argv[4], "-"))
		CHECK(fi_getinfo(FI_VERSION(1, 20), argv[4], "0", FI_SOURCE, hints, &info));
	else
		CHECK(fi_getinfo(FI_VERSION(1, 20), NULL, NULL, 0, hints, &info));
	CHECK(fi_fabric(info->fabric_attr, &fabric, NULL));
	CHECK(fi_domain(fabric, info, &domain, NULL));
	join();
	if (argc == 6) {
		held(MESSAGE, atoi(argv[5]));
		held(WRITE, atoi(argv[5]));
		return 0;
	}
	for (enum kind kind = MESSAGE; kind <= READ; kind++) {
		if (kind == TAGGED && !rdm)
			continue;
		for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
			latency(kind, sizes[i].len, sizes[i].rounds);
		rate(kind, 8, 10, 64);
		rate(kind, 64 << 10, 4, 16);
		rate(kind, 1 << 20, 2, 4);
	}
	registration(4 << 10, 100);
	registration(1 << 20, 20);
	return 0;
}
