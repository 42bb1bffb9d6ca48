// SPDX-License-Identifier: MIT OR Apache-2.0
/* Connections, queues and checks for the cases of fi_cases.c, which includes this file. */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LEN 65536
#define LIMIT_MS 60000
#define RIGHTS (FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE)

static const char *name;

#define CHECK(cond) do { if (!(cond)) fail(__LINE__, #cond, 0); } while (0)
/* The call must return this value. */
#define GIVES(wanted, call) do { \
	long gives_ = (long)(call); \
	if (gives_ != (long)(wanted)) \
		fail(__LINE__, #call, gives_); \
} while (0)
#define OK(call) GIVES(0, call)

static void fail(int line, const char *text, long value)
{
	fprintf(stderr, "fi_cases: %s: line %d: %s: %ld (%s)\n", name, line, text, value,
		value < 0 ? fi_strerror((int)-value) : "");
	exit(1);
}

/*
 * Functions of infos are looked up: a linked program would demand the symbols' newest versions, which older
 * libraries lack.
 */
static void *look_up(const char *function)
{
	static void *library;
	void *at;

	if (!library)
		library = dlopen("libfabric.so.1", RTLD_NOW | RTLD_GLOBAL);
	at = library ? dlsym(library, function) : NULL;
	if (!at) {
		fprintf(stderr, "fi_cases: %s\n", dlerror());
		exit(1);
	}
	return at;
}

#define LOOKED_UP(function) ((__typeof__(&function))look_up(#function))
#define fi_getinfo(...) LOOKED_UP(fi_getinfo)(__VA_ARGS__)
#define fi_dupinfo(of) LOOKED_UP(fi_dupinfo)(of)
#define fi_allocinfo() fi_dupinfo(NULL)
#define fi_freeinfo(of) LOOKED_UP(fi_freeinfo)(of)

/* The interface that most cases use: that of the headers, or of an older library. */
static uint32_t newest(void)
{
	const uint32_t own = FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION), of = fi_version();

	return of < own ? of : own;
}

/* An endpoint with queues and memory of its own. */
struct end {
	struct fid_eq *eq;
	struct fid_cq *cq;
	struct fid_ep *ep;
	struct fid_mr *mr;
	uint8_t *mem;
};

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static enum fi_cq_format format = FI_CQ_FORMAT_DATA;
static int shm;
/* Whether messages move only while the program reads the queues of both ends. */
static int rings;
/* Counters of transmissions and receives that new endpoints have; NULL for none. */
static struct fid_cntr *to_bind[2];

/* The provider's name: that of the plug-in, or its alias. */
static const char *provider(void)
{
	const char *alias = getenv("FI_CASES_PROVIDER");

	return alias ? alias : "kfabric";
}

/* Hints that most cases use, for the device of an info. */
static struct fi_info *hints_of(const char *device)
{
	struct fi_info *hints = fi_allocinfo();

	CHECK(hints);
	hints->ep_attr->type = FI_EP_MSG;
	hints->mode = FI_RX_CQ_DATA;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED |
				      FI_MR_PROV_KEY;
	hints->domain_attr->name = strdup(device);
	hints->fabric_attr->prov_name = strdup(provider());
	return hints;
}

static struct fi_info *offer(const char *device, const char *address)
{
	struct fi_info *hints = hints_of(device), *found = NULL;

	OK(fi_getinfo(newest(), address, "0", FI_SOURCE, hints, &found));
	fi_freeinfo(hints);
	return found;
}

static struct fid_eq *open_eq(void)
{
	struct fi_eq_attr attr = { .size = 16, .flags = FI_WRITE, .wait_obj = FI_WAIT_FD };
	struct fid_eq *eq;

	OK(fi_eq_open(fabric, &attr, &eq, NULL));
	return eq;
}

static struct fid_cq *open_cq(void)
{
	struct fi_cq_attr attr = { .size = 64, .format = format, .wait_obj = FI_WAIT_FD };
	struct fid_cq *cq;

	OK(fi_cq_open(domain, &attr, &cq, NULL));
	return cq;
}

/* Reads an event of a kind, and its data. Returns the number of bytes of the data. */
static size_t event(struct fid_eq *eq, uint32_t wanted, struct fi_eq_cm_entry *entry, void *data)
{
	char buf[sizeof(*entry) + 256];
	uint32_t kind = 0;
	ssize_t n = fi_eq_sread(eq, &kind, buf, sizeof(buf), LIMIT_MS, 0);

	if (n < (ssize_t)sizeof(*entry))
		fail(__LINE__, "an event", n);
	GIVES(wanted, kind);
	memcpy(entry, buf, sizeof(*entry));
	n -= (ssize_t)sizeof(*entry);
	if (data)
		memcpy(data, buf + sizeof(*entry), (size_t)n);
	return (size_t)n;
}

/* Waits for a completion; the queue has format DATA. */
static struct fi_cq_data_entry completion(struct fid_cq *cq, void *context, uint64_t flags)
{
	struct fi_cq_data_entry entry;
	struct fi_cq_err_entry err = { 0 };
	ssize_t n = fi_cq_sread(cq, &entry, 1, NULL, LIMIT_MS);

	if (n == -FI_EAVAIL) {
		fi_cq_readerr(cq, &err, 0);
		fail(__LINE__, "a completion", -err.err);
	}
	GIVES(1, n);
	CHECK(entry.op_context == context);
	CHECK((entry.flags & flags) == flags);
	return entry;
}

/* Waits for a failed completion. */
static struct fi_cq_err_entry failure(struct fid_cq *cq, void *context)
{
	struct fi_cq_data_entry entry;
	struct fi_cq_err_entry err = { 0 };
	char text[6];
	const char *whole;

	GIVES(-FI_EAVAIL, fi_cq_sread(cq, &entry, 1, NULL, LIMIT_MS));
	GIVES(1, fi_cq_readerr(cq, &err, 0));
	CHECK(err.op_context == context);
	CHECK(err.err > 0);
	whole = fi_cq_strerror(cq, err.prov_errno, err.err_data, NULL, 0);
	CHECK(whole && strlen(whole) > sizeof(text));
	fi_cq_strerror(cq, err.prov_errno, err.err_data, text, sizeof(text));
	CHECK(strlen(text) == sizeof(text) - 1 && !strncmp(text, whole, sizeof(text) - 1));
	return err;
}

static void open_end(struct end *e, struct fi_info *of, uint64_t bits)
{
	memset(e, 0, sizeof(*e));
	e->eq = open_eq();
	e->cq = open_cq();
	e->mem = calloc(1, LEN);
	CHECK(e->mem);
	/* An endpoint uses memory under its own auth key; NULL is the domain's. */
	struct iovec iov = { e->mem, LEN };
	struct fi_mr_attr attr = {
		.mr_iov = &iov, .iov_count = 1, .access = RIGHTS,
		.auth_key = of->ep_attr->auth_key, .auth_key_size = of->ep_attr->auth_key_size,
	};
	OK(fi_mr_regattr(domain, &attr, 0, &e->mr));
	OK(fi_endpoint(domain, of, &e->ep, e));
	OK(fi_ep_bind(e->ep, &e->eq->fid, 0));
	OK(fi_ep_bind(e->ep, &e->cq->fid, FI_TRANSMIT | FI_RECV | bits));
	if (to_bind[0]) {
		OK(fi_ep_bind(e->ep, &to_bind[0]->fid, FI_SEND | FI_WRITE));
		GIVES(-FI_ENOSYS, fi_ep_bind(e->ep, &to_bind[1]->fid, FI_REMOTE_WRITE));
		/* No peer's operation counts: the info has no FI_RMA_EVENT. */
		OK(fi_ep_bind(e->ep, &to_bind[1]->fid, FI_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE));
	}
	OK(fi_enable(e->ep));
}

static void close_end(struct end *e)
{
	if (e->ep)
		OK(fi_close(&e->ep->fid));
	if (e->mr)
		OK(fi_close(&e->mr->fid));
	OK(fi_close(&e->cq->fid));
	OK(fi_close(&e->eq->fid));
	free(e->mem);
}

static struct fid_pep *open_pep(struct fid_eq *eq)
{
	struct fid_pep *pep;

	OK(fi_passive_ep(fabric, info, &pep, NULL));
	OK(fi_pep_bind(pep, &eq->fid, 0));
	return pep;
}

static struct sockaddr_in address(struct fid_pep *pep)
{
	struct sockaddr_in at;
	size_t len = sizeof(at);

	OK(fi_getname(&pep->fid, &at, &len));
	CHECK(len == sizeof(at) && at.sin_family == AF_INET && at.sin_port);
	return at;
}

/* Connects two endpoints with `bits` in their binds. */
static void pair_with(struct end *a, struct end *b, uint64_t bits)
{
	struct fid_eq *eq = open_eq();
	struct fid_pep *pep = open_pep(eq);
	struct fi_eq_cm_entry entry;
	struct sockaddr_in at;

	OK(fi_listen(pep));
	at = address(pep);
	open_end(a, info, bits);
	OK(fi_connect(a->ep, &at, NULL, 0));
	event(eq, FI_CONNREQ, &entry, NULL);
	CHECK(entry.fid == &pep->fid);
	open_end(b, entry.info, bits);
	fi_freeinfo(entry.info);
	OK(fi_accept(b->ep, NULL, 0));
	event(a->eq, FI_CONNECTED, &entry, NULL);
	CHECK(entry.fid == &a->ep->fid);
	event(b->eq, FI_CONNECTED, &entry, NULL);
	CHECK(entry.fid == &b->ep->fid);
	OK(fi_close(&pep->fid));
	OK(fi_close(&eq->fid));
}

static void pair(struct end *a, struct end *b)
{
	pair_with(a, b, 0);
}

static void unpair(struct end *a, struct end *b)
{
	close_end(a);
	close_end(b);
}

static size_t data_size(struct fid *fid)
{
	size_t size = 0, len = sizeof(size);

	OK(fi_getopt(fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &size, &len));
	CHECK(len == sizeof(size) && size >= 24 && size <= 256);
	return size;
}

static long now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static int readable(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return poll(&p, 1, 0) == 1;
}

static void fill(uint8_t *at, size_t len, int seed)
{
	for (size_t i = 0; i < len; i++)
		at[i] = (uint8_t)(i * 7 + (size_t)seed);
}
