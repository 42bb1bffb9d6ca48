// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Loads several libfabrics into one process, with the plug-in below each of them, and sends messages
 * between two endpoints of each library, in turns, while the objects of all libraries are open.
 *
 *   fi_two MODE DOMAIN ADDRESS LIBRARY...
 *
 * MODE is `one` if the libraries are in the namespace of the program, and `own` if each library is in
 * a namespace of its own (dlmopen). The program is not linked to libfabric. It prints the version of
 * each library, and ends with status 1 at the first failure.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
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

#define LEN 4096
#define LIBRARIES 4
#define ROUNDS 20
/* Of waits, in seconds: emulated processors are slow. */
#define PATIENCE 120

#define CHECK(condition) do { \
	if (!(condition)) { \
		fprintf(stderr, "%s:%d: %s: %s\n", which, __LINE__, kind, #condition); \
		exit(1); \
	} \
} while (0)
#define OK(call) do { \
	long rc_ = (call); \
	if (rc_) { \
		fprintf(stderr, "%s:%d: %s: %s: %ld\n", which, __LINE__, kind, #call, rc_); \
		exit(1); \
	} \
} while (0)

/* The library and the kind of endpoint in use, for messages. */
static const char *which = "", *kind = "";

/* Functions of one libfabric. */
struct library {
	const char *path;
	uint32_t (*version)(void);
	int (*getinfo)(uint32_t, const char *, const char *, uint64_t, const struct fi_info *,
		       struct fi_info **);
	void (*freeinfo)(struct fi_info *);
	struct fi_info *(*dupinfo)(const struct fi_info *);
	int (*fabric)(struct fi_fabric_attr *, struct fid_fabric **, void *);
};

struct end {
	struct fid_ep *ep;
	struct fid_cq *cq;
	struct fid_av *av;
	struct fid_mr *mr;
	fi_addr_t peer;
	unsigned char *buf;
};

/* Two endpoints of one library. */
struct pair {
	struct library *of;
	const char *kind;
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_eq *eq;
	struct fid_pep *pep;
	struct end ends[2];
};

static void load(struct library *lib, const char *path, int own)
{
	void *at = own ? dlmopen(LM_ID_NEWLM, path, RTLD_NOW | RTLD_LOCAL) :
			 dlopen(path, RTLD_NOW | RTLD_LOCAL);

	which = lib->path = path;
	if (!at)
		fprintf(stderr, "%s\n", dlerror());
	CHECK(at);
	*(void **)&lib->version = dlsym(at, "fi_version");
	*(void **)&lib->getinfo = dlsym(at, "fi_getinfo");
	*(void **)&lib->freeinfo = dlsym(at, "fi_freeinfo");
	*(void **)&lib->dupinfo = dlsym(at, "fi_dupinfo");
	*(void **)&lib->fabric = dlsym(at, "fi_fabric");
	CHECK(lib->version && lib->getinfo && lib->freeinfo && lib->dupinfo && lib->fabric);
	printf("%u.%u\n", FI_MAJOR(lib->version()), FI_MINOR(lib->version()));
	fflush(stdout);
}

static int is_rdm(const struct pair *p)
{
	return !strcmp(p->kind, "rdm");
}

static void open_end(struct pair *p, struct end *e, struct fi_info *info)
{
	struct fi_cq_attr cq = { .size = 64, .format = FI_CQ_FORMAT_CONTEXT,
				 .wait_obj = FI_WAIT_NONE };
	struct fi_av_attr av = { .type = FI_AV_TABLE };

	OK(fi_endpoint(p->domain, info, &e->ep, NULL));
	OK(fi_cq_open(p->domain, &cq, &e->cq, NULL));
	OK(fi_ep_bind(e->ep, &e->cq->fid, FI_TRANSMIT | FI_RECV));
	if (is_rdm(p)) {
		OK(fi_av_open(p->domain, &av, &e->av, NULL));
		OK(fi_ep_bind(e->ep, &e->av->fid, 0));
	} else {
		OK(fi_ep_bind(e->ep, &p->eq->fid, 0));
	}
	OK(fi_enable(e->ep));
	CHECK(!posix_memalign((void **)&e->buf, LEN, 2 * LEN));
	OK(fi_mr_reg(p->domain, e->buf, 2 * LEN, FI_SEND | FI_RECV, 0, (uint64_t)(e - p->ends) + 1,
		     0, &e->mr, NULL));
}

/* Waits for an event of a connection. */
static struct fi_info *event(struct pair *p, uint32_t wanted)
{
	char buf[512];
	struct fi_eq_cm_entry entry;
	uint32_t found = 0;
	ssize_t n = fi_eq_sread(p->eq, &found, buf, sizeof(buf), PATIENCE * 1000, 0);

	CHECK(n >= (ssize_t)sizeof(entry) && found == wanted);
	memcpy(&entry, buf, sizeof(entry));
	return entry.info;
}

static void open_pair(struct pair *p, const char *domain, const char *address)
{
	struct fi_info *hints = p->of->dupinfo(NULL), *asked;
	struct fi_eq_attr eq = { .size = 16, .wait_obj = FI_WAIT_FD };
	char name[256];
	size_t len = sizeof(name);

	CHECK(hints);
	hints->ep_attr->type = is_rdm(p) ? FI_EP_RDM : FI_EP_MSG;
	hints->caps = FI_MSG;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED |
				      FI_MR_PROV_KEY;
	hints->domain_attr->name = strdup(domain);
	hints->fabric_attr->prov_name = strdup(is_rdm(p) ? "kfabric;ofi_rxm" : "kfabric");
	/* The newest interface of this library, whose structures it gives to the plug-in. */
	OK(p->of->getinfo(p->of->version(), address, "0", FI_SOURCE, hints, &p->info));
	/* Greatest values of counters, which libfabric 2.5 has behind the last field of these headers. */
	if (!is_rdm(p) && p->of->version() >= FI_VERSION(2, 5)) {
		const uint64_t *limits = (const uint64_t *)(p->info->domain_attr + 1);

		CHECK(limits[0] == UINT64_MAX && limits[1] == UINT64_MAX);
	}
	OK(p->of->fabric(p->info->fabric_attr, &p->fabric, NULL));
	OK(fi_domain(p->fabric, p->info, &p->domain, NULL));
	p->of->freeinfo(hints);
	if (is_rdm(p)) {
		for (int i = 0; i < 2; i++)
			open_end(p, &p->ends[i], p->info);
		for (int i = 0; i < 2; i++) {
			len = sizeof(name);
			OK(fi_getname(&p->ends[1 - i].ep->fid, name, &len));
			CHECK(fi_av_insert(p->ends[i].av, name, 1, &p->ends[i].peer, 0, NULL) == 1);
		}
		return;
	}
	OK(fi_eq_open(p->fabric, &eq, &p->eq, NULL));
	OK(fi_passive_ep(p->fabric, p->info, &p->pep, NULL));
	OK(fi_pep_bind(p->pep, &p->eq->fid, 0));
	OK(fi_listen(p->pep));
	OK(fi_getname(&p->pep->fid, name, &len));
	open_end(p, &p->ends[0], p->info);
	OK(fi_connect(p->ends[0].ep, name, NULL, 0));
	asked = event(p, FI_CONNREQ);
	open_end(p, &p->ends[1], asked);
	p->of->freeinfo(asked);
	OK(fi_accept(p->ends[1].ep, NULL, 0));
	event(p, FI_CONNECTED);
	event(p, FI_CONNECTED);
}

/* Reads a queue. Returns the number of completions. */
static int reap(struct end *e)
{
	struct fi_cq_entry entry;
	ssize_t n = fi_cq_read(e->cq, &entry, 1);

	CHECK(n == 1 || n == -FI_EAGAIN);
	return n == 1;
}

/* Sends a message from one end to the other one, and checks its bytes. */
static void exchange(struct pair *p, int round)
{
	struct end *from = &p->ends[round & 1], *to = &p->ends[1 - (round & 1)];
	time_t end = time(NULL) + PATIENCE;
	int sent = 0, done[2] = { 0 };

	memset(from->buf, round + 1, LEN);
	memset(to->buf + LEN, 0, LEN);
	OK(fi_recv(to->ep, to->buf + LEN, LEN, fi_mr_desc(to->mr), FI_ADDR_UNSPEC, NULL));
	while (!done[0] || !done[1]) {
		CHECK(time(NULL) < end);
		if (!sent) {
			ssize_t rc = fi_send(from->ep, from->buf, LEN, fi_mr_desc(from->mr),
					     from->peer, NULL);

			CHECK(!rc || rc == -FI_EAGAIN);
			sent = !rc;
		}
		done[0] += reap(from);
		done[1] += reap(to);
	}
	CHECK(!memcmp(from->buf, to->buf + LEN, LEN));
}

static void close_pair(struct pair *p)
{
	for (int i = 0; i < 2; i++) {
		struct end *e = &p->ends[i];

		OK(fi_close(&e->ep->fid));
		OK(fi_close(&e->mr->fid));
		OK(fi_close(&e->cq->fid));
		if (e->av)
			OK(fi_close(&e->av->fid));
		free(e->buf);
	}
	if (p->pep)
		OK(fi_close(&p->pep->fid));
	if (p->eq)
		OK(fi_close(&p->eq->fid));
	OK(fi_close(&p->domain->fid));
	OK(fi_close(&p->fabric->fid));
	p->of->freeinfo(p->info);
}

int main(int argc, char **argv)
{
	static struct library libraries[LIBRARIES];
	static struct pair pairs[2 * LIBRARIES];
	int n = argc - 4;

	if (n < 1 || n > LIBRARIES)
		return 2;
	for (int i = 0; i < n; i++)
		load(&libraries[i], argv[4 + i], !strcmp(argv[1], "own"));
	for (int i = 0; i < 2 * n; i++) {
		pairs[i].of = &libraries[i % n];
		pairs[i].kind = i < n ? "msg" : "rdm";
		which = pairs[i].of->path;
		kind = pairs[i].kind;
		open_pair(&pairs[i], argv[2], argv[3]);
	}
	for (int round = 0; round < ROUNDS; round++) {
		for (int i = 0; i < 2 * n; i++) {
			which = pairs[i].of->path;
			kind = pairs[i].kind;
			exchange(&pairs[i], round);
		}
	}
	for (int i = 0; i < 2 * n; i++) {
		which = pairs[i].of->path;
		kind = pairs[i].kind;
		close_pair(&pairs[i]);
	}
	return 0;
}
