// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Named cases for libfabric's provider kfabric: both ends of connections in one process, by
 * libfabric's public calls alone.
 *
 *   FI_PROVIDER_PATH=FOLDER fi_cases DOMAIN ADDRESS CASE...
 *
 * DOMAIN is a name that fi_info prints, ADDRESS an IPv4 address of that domain. Each case prints
 * its name when it has passed. The program ends with status 1 at the first difference.
 */
#include <arpa/inet.h>
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
/* Counters of transmissions and receives that new endpoints have; NULL for none. */
static struct fid_cntr *to_bind[2];

static struct fi_info *offer(const char *device, const char *address)
{
	struct fi_info *hints = fi_allocinfo(), *found = NULL;

	CHECK(hints);
	hints->ep_attr->type = FI_EP_MSG;
	hints->mode = FI_RX_CQ_DATA;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED |
				      FI_MR_PROV_KEY;
	hints->domain_attr->name = strdup(device);
	hints->fabric_attr->prov_name = strdup("kfabric");
	OK(fi_getinfo(FI_VERSION(1, 18), address, "0", FI_SOURCE, hints, &found));
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
		OK(fi_ep_bind(e->ep, &to_bind[1]->fid, FI_RECV));
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

/* ---- memory ---- */

static void registration(void)
{
	uint8_t *mem = calloc(1, LEN);
	struct iovec iov[2] = { { mem + 1, 100 }, { mem + 200, 100 } };
	struct fi_mr_attr attr = {
		.mr_iov = iov, .iov_count = 1, .access = FI_REMOTE_READ, .context = mem,
	};
	struct fid_mr *mr, *other;

	CHECK(mem);
	OK(fi_mr_reg(domain, mem, LEN, FI_SEND | FI_RECV, 0, 0, 0, &mr, mem));
	CHECK(mr->fid.fclass == FI_CLASS_MR && mr->fid.context == mem && fi_mr_desc(mr));
	CHECK(fi_mr_key(mr) == FI_KEY_NOTAVAIL);
	OK(fi_mr_reg(domain, mem, LEN, FI_REMOTE_WRITE, 0, 0, 0, &other, NULL));
	CHECK(fi_mr_key(other) != FI_KEY_NOTAVAIL);
	OK(fi_close(&other->fid));
	OK(fi_close(&mr->fid));
	OK(fi_mr_regv(domain, iov, 1, FI_REMOTE_READ, 0, 0, 0, &mr, NULL));
	OK(fi_mr_regattr(domain, &attr, 0, &other));
	CHECK(other->fid.context == mem && fi_mr_key(other) != FI_KEY_NOTAVAIL);
	CHECK(fi_mr_key(other) != fi_mr_key(mr));
	OK(fi_close(&other->fid));
	OK(fi_close(&mr->fid));

	GIVES(-FI_EINVAL, fi_mr_regv(domain, iov, 2, FI_SEND, 0, 0, 0, &mr, NULL));
	GIVES(-FI_EINVAL, fi_mr_reg(domain, mem, 0, FI_SEND, 0, 0, 0, &mr, NULL));
	GIVES(-FI_EINVAL, fi_mr_reg(domain, mem, 1, FI_TAGGED, 0, 0, 0, &mr, NULL));
	GIVES(-FI_EBADFLAGS, fi_mr_reg(domain, mem, 1, FI_SEND, 0, 0, FI_RMA_EVENT, &mr, NULL));
	GIVES(-FI_EFAULT, fi_mr_reg(domain, (void *)4096, 1, FI_SEND, 0, 0, 0, &mr, NULL));
	attr.iface = FI_HMEM_CUDA;
	GIVES(-FI_EOPNOTSUPP, fi_mr_regattr(domain, &attr, 0, &mr));
	free(mem);
}

/* ---- one-sided operations ---- */

static void rma(void)
{
	struct end a, b;
	struct fi_cq_data_entry got;
	struct iovec iov[2];
	void *desc[2];
	struct fi_rma_iov range;
	struct fi_msg_rma msg = { .desc = desc, .msg_iov = iov, .rma_iov = &range,
				  .iov_count = 2, .rma_iov_count = 1, .context = &range };
	uint64_t at, key;

	pair(&a, &b);
	at = (uint64_t)(uintptr_t)b.mem;
	key = fi_mr_key(b.mr);
	desc[0] = desc[1] = fi_mr_desc(a.mr);

	fill(b.mem, LEN / 2, 1);
	OK(fi_read(a.ep, a.mem, LEN / 2, desc[0], 0, at, key, &at));
	completion(a.cq, &at, FI_RMA | FI_READ);
	CHECK(!memcmp(a.mem, b.mem, LEN / 2));

	iov[0] = (struct iovec){ a.mem + 100, 50 };
	iov[1] = (struct iovec){ a.mem + 1000, 30 };
	OK(fi_readv(a.ep, iov, desc, 2, 0, at + 7, key, &key));
	completion(a.cq, &key, FI_RMA | FI_READ);
	CHECK(!memcmp(a.mem + 100, b.mem + 7, 50) && !memcmp(a.mem + 1000, b.mem + 57, 30));

	fill(a.mem, LEN / 2, 2);
	OK(fi_write(a.ep, a.mem, LEN / 2, desc[0], 0, at + LEN / 2, key, &a));
	completion(a.cq, &a, FI_RMA | FI_WRITE);
	CHECK(!memcmp(a.mem, b.mem + LEN / 2, LEN / 2));

	OK(fi_writev(a.ep, iov, desc, 2, 0, at + 3, key, NULL));
	completion(a.cq, NULL, FI_RMA | FI_WRITE);
	CHECK(!memcmp(a.mem + 100, b.mem + 3, 50) && !memcmp(a.mem + 1000, b.mem + 53, 30));

	/* A write with data takes a receive of the peer. */
	OK(fi_recv(b.ep, b.mem, 0, NULL, 0, &b));
	fill(a.mem, 64, 3);
	OK(fi_writedata(a.ep, a.mem, 64, desc[0], 0xfeedbeef, 0, at + 9, key, &msg));
	completion(a.cq, &msg, FI_RMA | FI_WRITE);
	got = completion(b.cq, &b, FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA);
	CHECK(got.data == 0xfeedbeef && !memcmp(a.mem, b.mem + 9, 64));

	OK(fi_recv(b.ep, b.mem, 0, NULL, 0, &b));
	range = (struct fi_rma_iov){ .addr = at + 11, .len = 80, .key = key };
	msg.data = 77;
	OK(fi_writemsg(a.ep, &msg, FI_REMOTE_CQ_DATA | FI_COMPLETION | FI_FENCE));
	completion(a.cq, &range, FI_RMA | FI_WRITE);
	CHECK(completion(b.cq, &b, FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA).data == 77);
	CHECK(!memcmp(a.mem + 100, b.mem + 11, 50) && !memcmp(a.mem + 1000, b.mem + 61, 30));
	OK(fi_readmsg(a.ep, &msg, FI_COMPLETION));
	completion(a.cq, &range, FI_RMA | FI_READ);

	/* Injected memory may change at once, and needs no descriptor. Success has no completion. */
	fill(a.mem, 64, 5);
	OK(fi_inject_write(a.ep, a.mem, 64, 0, at, key));
	memset(a.mem, 0, 64);
	fill(a.mem + 64, 32, 6);
	OK(fi_recv(b.ep, b.mem, 0, NULL, 0, &b));
	OK(fi_inject_writedata(a.ep, a.mem + 64, 32, 5, 0, at + 64, key));
	CHECK(completion(b.cq, &b, FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA).data == 5);
	fill(a.mem, 64, 5);
	CHECK(!memcmp(a.mem, b.mem, 96));
	GIVES(-FI_EAGAIN, fi_cq_read(a.cq, &got, 1));

	/* Refused posts. */
	GIVES(-FI_EINVAL, fi_write(a.ep, a.mem, 8, NULL, 0, at, key, NULL));
	GIVES(-FI_EINVAL, fi_write(a.ep, a.mem - 1, 8, desc[0], 0, at, key, NULL));
	GIVES(-FI_EINVAL, fi_inject_write(a.ep, a.mem, info->tx_attr->inject_size + 1, 0, at, key));
	msg.rma_iov_count = 2;
	GIVES(-FI_EINVAL, fi_writemsg(a.ep, &msg, 0));
	msg.rma_iov_count = 1;
	GIVES(-FI_EBADFLAGS, fi_writemsg(a.ep, &msg, FI_MULTICAST));
	unpair(&a, &b);
}

/* Uses a key that does not allow the operation: the initiator gets an error. */
static void refused_key(int inject, int close_first, int past_end)
{
	struct end a, b;
	struct fi_eq_cm_entry entry;
	struct fi_cq_data_entry got;
	uint64_t at, key;

	pair(&a, &b);
	at = (uint64_t)(uintptr_t)b.mem;
	key = fi_mr_key(b.mr);
	fill(b.mem, 16, 1);
	if (close_first) {
		OK(fi_close(&b.mr->fid));
		b.mr = NULL;
	} else if (past_end) {
		at += LEN - 8;
	} else {
		key ^= 0x5a00;
	}
	if (inject) {
		/* There is no context for a failed inject. */
		OK(fi_inject_write(a.ep, a.mem, 16, 0, at, key));
		event(a.eq, FI_SHUTDOWN, &entry, NULL);
		GIVES(-FI_EAGAIN, fi_cq_read(a.cq, &got, 1));
	} else if (close_first) {
		OK(fi_read(a.ep, a.mem, 16, fi_mr_desc(a.mr), 0, at, key, &key));
		CHECK(failure(a.cq, &key).err == FI_EACCES);
		CHECK(!a.mem[1]);
	} else {
		OK(fi_write(a.ep, a.mem, 16, fi_mr_desc(a.mr), 0, at, key, &key));
		CHECK(failure(a.cq, &key).err == FI_EACCES);
	}
	if (b.mem[1] != 8)
		fail(__LINE__, "memory changed", b.mem[1]);
	unpair(&a, &b);
}

static void wrong_key(void)
{
	refused_key(0, 0, 0);
	refused_key(0, 0, 1);
	refused_key(1, 0, 0);
}

static void closed_region(void)
{
	refused_key(0, 1, 0);
}

/* ---- atomics ---- */

static void atomics(void)
{
	struct end a, b;
	struct fi_atomic_attr attr = { 0 };
	struct fi_cq_data_entry got;
	uint64_t value = 5, other = 7, *target, *old, at, key;
	struct fi_ioc operand = { &value, 1 }, compare = { &other, 1 }, result;
	struct fi_rma_ioc range;
	struct fi_msg_atomic msg = { .msg_iov = &operand, .iov_count = 1, .rma_iov = &range,
				     .rma_iov_count = 1, .datatype = FI_UINT64,
				     .op = FI_ATOMIC_WRITE, .context = &msg };
	size_t count = 0;
	void *desc;

	CHECK(info->caps & FI_ATOMIC);
	pair(&a, &b);
	desc = fi_mr_desc(a.mr);
	old = (uint64_t *)a.mem;
	target = (uint64_t *)b.mem;
	at = (uint64_t)(uintptr_t)target;
	key = fi_mr_key(b.mr);

	/* What kverbs has on any device: sum, swap of equal values, read. */
	OK(fi_query_atomic(domain, FI_UINT64, FI_SUM, &attr, FI_FETCH_ATOMIC));
	CHECK(attr.size == 8 && attr.count >= 1);
	OK(fi_fetch_atomicvalid(a.ep, FI_UINT64, FI_SUM, &count));
	CHECK(count == attr.count);
	OK(fi_compare_atomicvalid(a.ep, FI_UINT64, FI_CSWAP, &count));
	GIVES(-FI_EOPNOTSUPP, fi_atomicvalid(a.ep, FI_DOUBLE, FI_SUM, &count));
	GIVES(-FI_EOPNOTSUPP, fi_atomicvalid(a.ep, FI_UINT64, FI_CSWAP, &count));
	GIVES(-FI_EOPNOTSUPP, fi_query_atomic(domain, FI_UINT64, FI_SUM, &attr, FI_TAGGED));

	*target = 100;
	OK(fi_fetch_atomic(a.ep, &value, 1, NULL, old, desc, 0, at, key, FI_UINT64, FI_SUM, &a));
	completion(a.cq, &a, FI_ATOMIC | FI_READ);
	CHECK(*old == 100 && *target == 105);
	OK(fi_fetch_atomic(a.ep, &value, 1, NULL, old + 1, desc, 0, at, key, FI_UINT64,
			   FI_ATOMIC_READ, &a));
	completion(a.cq, &a, FI_ATOMIC | FI_READ);
	CHECK(old[1] == 105 && *target == 105);
	/* The comparand does not match, then it does. */
	for (int i = 0; i < 2; i++) {
		OK(fi_compare_atomic(a.ep, &value, 1, NULL, &other, NULL, old, desc, 0, at, key,
				     FI_UINT64, FI_CSWAP, &b));
		completion(a.cq, &b, FI_ATOMIC | FI_READ);
		CHECK(*old == 105 && *target == (i ? 5u : 105u));
		other = 105;
	}
	range = (struct fi_rma_ioc){ at, 1, key };
	result = (struct fi_ioc){ old, 1 };
	other = 5;
	value = 9;
	msg.op = FI_CSWAP;
	OK(fi_compare_atomicmsg(a.ep, &msg, &compare, NULL, 1, &result, &desc, 1, FI_COMPLETION));
	completion(a.cq, &msg, FI_ATOMIC | FI_READ);
	CHECK(*old == 5 && *target == 9);
	msg.op = FI_SUM;
	OK(fi_fetch_atomicmsg(a.ep, &msg, &result, &desc, 1, FI_COMPLETION));
	completion(a.cq, &msg, FI_ATOMIC | FI_READ);
	CHECK(*old == 9 && *target == 18);

	/* Without a result. */
	if (!fi_atomicvalid(a.ep, FI_UINT64, FI_SUM, &count)) {
		OK(fi_atomic(a.ep, &value, 1, NULL, 0, at, key, FI_UINT64, FI_SUM, &a));
		completion(a.cq, &a, FI_ATOMIC | FI_WRITE);
		CHECK(*target == 27);
		OK(fi_inject_atomic(a.ep, &value, 1, 0, at, key, FI_UINT64, FI_SUM));
		OK(fi_atomicmsg(a.ep, &msg, FI_COMPLETION));
		completion(a.cq, &msg, FI_ATOMIC | FI_WRITE);
		CHECK(*target == 45);
	}
	if (shm) {
		uint8_t bytes[3] = { 1, 2, 3 };

		OK(fi_atomicvalid(a.ep, FI_UINT8, FI_BXOR, &count));
		CHECK(count >= 3);
		b.mem[64] = 3;
		OK(fi_atomic(a.ep, bytes, 3, NULL, 0, at + 64, key, FI_UINT8, FI_BXOR, &a));
		completion(a.cq, &a, FI_ATOMIC | FI_WRITE);
		CHECK(b.mem[64] == 2 && b.mem[65] == 2 && b.mem[66] == 3);
	}
	GIVES(-FI_EAGAIN, fi_cq_read(a.cq, &got, 1));

	/* Refused posts. */
	GIVES(-FI_EINVAL, fi_fetch_atomic(a.ep, &value, 1, NULL, old, desc, 0, at + 1, key,
					  FI_UINT64, FI_SUM, &a));
	GIVES(-FI_EINVAL, fi_fetch_atomic(a.ep, &value, 1, NULL, old, NULL, 0, at, key, FI_UINT64,
					  FI_SUM, &a));
	GIVES(-FI_EMSGSIZE, fi_fetch_atomic(a.ep, a.mem + 512, 9, NULL, old, desc, 0, at, key,
					    FI_UINT64, FI_SUM, &a));
	GIVES(-FI_EOPNOTSUPP, fi_atomic(a.ep, &value, 1, NULL, 0, at, key, FI_FLOAT, FI_SUM, &a));
	/* A key that does not exist. */
	OK(fi_fetch_atomic(a.ep, &value, 1, NULL, old, desc, 0, at, key ^ 0x5a00, FI_UINT64,
			   FI_SUM, &key));
	CHECK(failure(a.cq, &key).err == FI_EACCES);
	unpair(&a, &b);
}

/* ---- messages ---- */

static void messages(void)
{
	struct end a, b;
	struct fi_cq_data_entry got;
	struct iovec iov[2];
	void *desc[2];
	struct fi_msg msg = { .msg_iov = iov, .desc = desc, .iov_count = 2, .context = &msg,
			      .data = 9 };

	pair(&a, &b);
	desc[0] = desc[1] = fi_mr_desc(a.mr);
	fill(a.mem, LEN / 2, 1);
	OK(fi_recv(b.ep, b.mem, LEN, fi_mr_desc(b.mr), 0, &b));
	OK(fi_send(a.ep, a.mem, LEN / 2, desc[0], 0, &a));
	completion(a.cq, &a, FI_MSG | FI_SEND);
	CHECK(completion(b.cq, &b, FI_MSG | FI_RECV).len == LEN / 2);
	CHECK(!memcmp(a.mem, b.mem, LEN / 2));

	/* Pieces on both sides. */
	iov[0] = (struct iovec){ b.mem, 10 };
	iov[1] = (struct iovec){ b.mem + 100, 60 };
	desc[0] = desc[1] = fi_mr_desc(b.mr);
	OK(fi_recvv(b.ep, iov, desc, 2, 0, NULL));
	OK(fi_recvmsg(b.ep, &msg, FI_COMPLETION));
	desc[0] = desc[1] = fi_mr_desc(a.mr);
	iov[0] = (struct iovec){ a.mem + 5, 30 };
	iov[1] = (struct iovec){ a.mem + 300, 40 };
	OK(fi_sendv(a.ep, iov, desc, 2, 0, &iov));
	completion(a.cq, &iov, FI_SEND);
	CHECK(completion(b.cq, NULL, FI_RECV).len == 70);
	CHECK(!memcmp(b.mem, a.mem + 5, 10) && !memcmp(b.mem + 100, a.mem + 15, 20));
	CHECK(!memcmp(b.mem + 120, a.mem + 300, 40));
	OK(fi_sendmsg(a.ep, &msg, FI_COMPLETION | FI_REMOTE_CQ_DATA | FI_MORE));
	completion(a.cq, &msg, FI_SEND);
	CHECK(completion(b.cq, &msg, FI_RECV | FI_REMOTE_CQ_DATA).data == 9);

	/* Completion data, injects, and an empty message. */
	for (int i = 0; i < 4; i++)
		OK(fi_recv(b.ep, b.mem + 64 * i, 64, fi_mr_desc(b.mr), 0, b.mem + i));
	OK(fi_senddata(a.ep, a.mem, 64, fi_mr_desc(a.mr), 0x1234567, 0, &a));
	completion(a.cq, &a, FI_SEND);
	OK(fi_inject(a.ep, a.mem, 64, 0));
	OK(fi_injectdata(a.ep, a.mem, 1, 8, 0));
	OK(fi_send(a.ep, NULL, 0, NULL, 0, &a));
	completion(a.cq, &a, FI_SEND);
	got = completion(b.cq, b.mem, FI_RECV | FI_REMOTE_CQ_DATA);
	CHECK(got.data == 0x1234567 && got.len == 64);
	got = completion(b.cq, b.mem + 1, FI_RECV);
	CHECK(!(got.flags & FI_REMOTE_CQ_DATA) && got.len == 64);
	got = completion(b.cq, b.mem + 2, FI_RECV | FI_REMOTE_CQ_DATA);
	CHECK(got.data == 8 && got.len == 1);
	CHECK(completion(b.cq, b.mem + 3, FI_RECV).len == 0);
	CHECK(!memcmp(b.mem, a.mem, 64) && !memcmp(b.mem + 64, a.mem, 64));
	GIVES(-FI_EAGAIN, fi_cq_read(a.cq, &got, 1));
	unpair(&a, &b);

	/* Selective completion: only what asks for it is reported. */
	pair_with(&a, &b, FI_SELECTIVE_COMPLETION);
	iov[0] = (struct iovec){ b.mem, 64 };
	desc[0] = fi_mr_desc(b.mr);
	msg.iov_count = 1;
	OK(fi_recv(b.ep, b.mem, 64, fi_mr_desc(b.mr), 0, &b));
	OK(fi_recvmsg(b.ep, &msg, FI_COMPLETION));
	iov[0] = (struct iovec){ a.mem, 64 };
	desc[0] = fi_mr_desc(a.mr);
	OK(fi_send(a.ep, a.mem, 8, fi_mr_desc(a.mr), 0, &a));
	OK(fi_sendmsg(a.ep, &msg, FI_COMPLETION));
	completion(a.cq, &msg, FI_SEND);
	completion(b.cq, &msg, FI_RECV);
	GIVES(-FI_EAGAIN, fi_cq_read(a.cq, &got, 1));
	GIVES(-FI_EAGAIN, fi_cq_read(b.cq, &got, 1));
	unpair(&a, &b);
}

/* A message that does not fit, and receives that are posted when a connection ends. */
static void failed_messages(void)
{
	struct end a, b;
	struct fi_eq_cm_entry entry;
	struct fi_cq_err_entry err;

	pair(&a, &b);
	OK(fi_recv(b.ep, b.mem, 16, fi_mr_desc(b.mr), 0, &b));
	OK(fi_recv(b.ep, b.mem, 16, fi_mr_desc(b.mr), 0, &b.mem));
	OK(fi_send(a.ep, a.mem, 32, fi_mr_desc(a.mr), 0, &a));
	err = failure(b.cq, &b);
	CHECK(err.err == FI_ETRUNC && (err.flags & FI_RECV));
	unpair(&a, &b);

	pair(&a, &b);
	OK(fi_recv(a.ep, a.mem, 16, fi_mr_desc(a.mr), 0, &a));
	OK(fi_recv(b.ep, b.mem, 16, fi_mr_desc(b.mr), 0, &b));
	OK(fi_shutdown(a.ep, 0));
	event(a.eq, FI_SHUTDOWN, &entry, NULL);
	CHECK(entry.fid == &a.ep->fid);
	event(b.eq, FI_SHUTDOWN, &entry, NULL);
	CHECK(entry.fid == &b.ep->fid);
	CHECK(failure(a.cq, &a).err == FI_ECANCELED);
	CHECK(failure(b.cq, &b).err == FI_ECANCELED);
	CHECK(fi_send(a.ep, a.mem, 1, fi_mr_desc(a.mr), 0, NULL) < 0);
	unpair(&a, &b);

	/* At the return of fi_close all completions are in the queue. */
	pair(&a, &b);
	for (int i = 0; i < 8; i++)
		OK(fi_recv(a.ep, a.mem, 16, fi_mr_desc(a.mr), 0, a.mem + i));
	OK(fi_close(&a.ep->fid));
	a.ep = NULL;
	for (int i = 0; i < 8; i++) {
		struct fi_cq_data_entry none;

		GIVES(-FI_EAVAIL, fi_cq_read(a.cq, &none, 1));
		GIVES(1, fi_cq_readerr(a.cq, &err, 0));
		CHECK(err.err == FI_ECANCELED && err.op_context == a.mem + i);
	}
	unpair(&a, &b);
}

static void cancel(void)
{
	struct end a, b;
	ssize_t rc;

	pair(&a, &b);
	OK(fi_recv(b.ep, b.mem, 16, fi_mr_desc(b.mr), 0, &b));
	OK(fi_recv(b.ep, b.mem, 16, fi_mr_desc(b.mr), 0, &a));
	rc = fi_cancel(&b.ep->fid, &b);
	if (shm) {
		OK(rc);
		CHECK(failure(b.cq, &b).err == FI_ECANCELED);
		GIVES(-FI_ENOENT, fi_cancel(&b.ep->fid, &b));
	} else {
		GIVES(-FI_EOPNOTSUPP, rc);
		OK(fi_send(a.ep, a.mem, 16, fi_mr_desc(a.mr), 0, &a));
		completion(a.cq, &a, FI_SEND);
		completion(b.cq, &b, FI_RECV);
	}
	OK(fi_send(a.ep, a.mem, 16, fi_mr_desc(a.mr), 0, &a));
	completion(a.cq, &a, FI_SEND);
	completion(b.cq, &a, FI_RECV);
	unpair(&a, &b);
}

/* ---- connections ---- */

static size_t data_size(struct fid *fid)
{
	size_t size = 0, len = sizeof(size);

	OK(fi_getopt(fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &size, &len));
	CHECK(len == sizeof(size) && size >= 24 && size <= 256);
	return size;
}

static void names(void)
{
	struct fid_eq *eq = open_eq();
	struct fid_pep *pep = open_pep(eq);
	struct sockaddr_in at, own, peer;
	struct fi_eq_cm_entry entry;
	struct end a, b;
	uint8_t data[256], sent[256];
	size_t len, max;

	fill(sent, sizeof(sent), 3);
	/* An address without a port, before the first event queue would listen. */
	at = *(struct sockaddr_in *)info->src_addr;
	at.sin_port = 0;
	OK(fi_setname(&pep->fid, &at, sizeof(at)));
	CHECK(fi_setname(&pep->fid, &at, 3) < 0);
	at = address(pep);
	OK(fi_setname(&pep->fid, &at, sizeof(at)));
	CHECK(address(pep).sin_port == at.sin_port);
	len = 4;
	GIVES(-FI_ETOOSMALL, fi_getname(&pep->fid, &own, &len));
	CHECK(len == sizeof(own));
	OK(fi_listen(pep));
	CHECK(fi_listen(pep) < 0);
	CHECK(fi_setname(&pep->fid, &at, sizeof(at)) < 0);
	len = 1;
	GIVES(-FI_ETOOSMALL, fi_getopt(&pep->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, data, &len));
	GIVES(-FI_ENOPROTOOPT, fi_getopt(&pep->fid, FI_OPT_ENDPOINT, -7, data, &len));

	/* Data of the greatest size in both directions, and the addresses of both ends. */
	open_end(&a, info, 0);
	max = data_size(&a.ep->fid);
	CHECK(max == data_size(&pep->fid));
	CHECK(fi_connect(a.ep, &at, sent, max + 1) < 0);
	OK(fi_connect(a.ep, &at, sent, max));
	len = event(eq, FI_CONNREQ, &entry, data);
	CHECK(len >= max && !memcmp(data, sent, max));
	CHECK(!strcmp(entry.info->domain_attr->name, info->domain_attr->name));
	CHECK(!strcmp(entry.info->fabric_attr->name, info->fabric_attr->name));
	CHECK(!strcmp(entry.info->fabric_attr->prov_name ? entry.info->fabric_attr->prov_name :
		      "kfabric", "kfabric"));
	open_end(&b, entry.info, 0);
	CHECK(max == data_size(&b.ep->fid));
	fi_freeinfo(entry.info);
	OK(fi_accept(b.ep, sent + 1, max));
	len = event(a.eq, FI_CONNECTED, &entry, data);
	CHECK(len >= max && !memcmp(data, sent + 1, max));
	event(b.eq, FI_CONNECTED, &entry, NULL);
	len = sizeof(own);
	OK(fi_getname(&a.ep->fid, &own, &len));
	len = sizeof(peer);
	OK(fi_getpeer(b.ep, &peer, &len));
	CHECK(own.sin_addr.s_addr == peer.sin_addr.s_addr);
	len = sizeof(peer);
	OK(fi_getpeer(a.ep, &peer, &len));
	CHECK(peer.sin_port == at.sin_port && peer.sin_addr.s_addr == at.sin_addr.s_addr);
	unpair(&a, &b);
	OK(fi_close(&pep->fid));
	OK(fi_close(&eq->fid));
}

/* Waits for the failure of a connect. */
static struct fi_eq_err_entry refusal(struct end *a, void *data, size_t size)
{
	char buf[64];
	uint32_t kind;
	struct fi_eq_err_entry err = { .err_data = data, .err_data_size = size };

	GIVES(-FI_EAVAIL, fi_eq_sread(a->eq, &kind, buf, sizeof(buf), LIMIT_MS, 0));
	GIVES(sizeof(err), fi_eq_readerr(a->eq, &err, 0));
	CHECK(err.fid == &a->ep->fid && err.context == a);
	CHECK(fi_eq_strerror(a->eq, err.prov_errno, err.err_data, buf, sizeof(buf)) && buf[0]);
	return err;
}

static void reject(void)
{
	struct fid_eq *eq = open_eq();
	struct fid_pep *pep = open_pep(eq);
	struct fi_eq_cm_entry entry;
	struct fi_eq_err_entry err;
	struct sockaddr_in at;
	char data[256];
	struct end a;

	OK(fi_listen(pep));
	at = address(pep);
	/* Once into memory of the provider, once into that of the program. */
	for (int i = 0; i < 2; i++) {
		open_end(&a, info, 0);
		OK(fi_connect(a.ep, &at, "please", 6));
		CHECK(event(eq, FI_CONNREQ, &entry, data) >= 6 && !memcmp(data, "please", 6));
		OK(fi_reject(pep, entry.info->handle, "no\x7f", 3));
		GIVES(-FI_EINVAL, fi_reject(pep, entry.info->handle, NULL, 0));
		fi_freeinfo(entry.info);
		err = refusal(&a, i ? data : NULL, i ? sizeof(data) : 0);
		CHECK(err.err == FI_ECONNREFUSED);
		CHECK(err.err_data_size >= 3 && !memcmp(err.err_data, "no\x7f", 3));
		close_end(&a);
	}
	/* A request that is never read is refused when the listener closes. */
	open_end(&a, info, 0);
	OK(fi_connect(a.ep, &at, NULL, 0));
	struct pollfd p = { .events = POLLIN };
	OK(fi_control(&eq->fid, FI_GETWAIT, &p.fd));
	CHECK(poll(&p, 1, LIMIT_MS) == 1);
	uint32_t kind = 0;
	GIVES(sizeof(entry), fi_eq_read(eq, &kind, &entry, sizeof(entry), FI_PEEK));
	CHECK(kind == FI_CONNREQ);
	OK(fi_close(&pep->fid));
	CHECK(refusal(&a, NULL, 0).err == FI_ECONNREFUSED);
	GIVES(-FI_EAGAIN, fi_eq_read(eq, &kind, &entry, sizeof(entry), 0));
	/* No listener any more. */
	close_end(&a);
	open_end(&a, info, 0);
	OK(fi_connect(a.ep, &at, NULL, 0));
	CHECK(refusal(&a, NULL, 0).err == FI_ECONNREFUSED);
	close_end(&a);
	OK(fi_close(&eq->fid));
}

/* ---- auth keys ---- */

static uint8_t one_key[32], other_key[32];

/* Gives an info another auth key for endpoints; NULL for none. */
static void set_key(struct fi_info *of, const uint8_t *key)
{
	free(of->ep_attr->auth_key);
	of->ep_attr->auth_key = key ? malloc(sizeof(one_key)) : NULL;
	of->ep_attr->auth_key_size = key ? sizeof(one_key) : 0;
	if (key)
		memcpy(of->ep_attr->auth_key, key, sizeof(one_key));
}

/* Connects with an auth key that the listener has not. */
static void refused_peer(struct sockaddr_in *at, const uint8_t *key)
{
	struct end a;
	int err;

	set_key(info, key);
	open_end(&a, info, 0);
	OK(fi_connect(a.ep, at, NULL, 0));
	err = refusal(&a, NULL, 0).err;
	if (err != FI_EKEYREJECTED && err != FI_ECONNREFUSED)
		fail(__LINE__, "refusal", -err);
	close_end(&a);
}

static void auth_keys(void)
{
	struct fid_eq *eq = open_eq();
	struct fi_eq_cm_entry entry;
	struct fi_mr_attr attr = { .iov_count = 1, .access = FI_REMOTE_READ };
	struct iovec iov;
	struct fid_pep *pep;
	struct fid_mr *mr;
	struct sockaddr_in at;
	struct end a, b;
	uint64_t remote;

	fill(one_key, sizeof(one_key), 101);
	fill(other_key, sizeof(other_key), 102);
	set_key(info, one_key);
	pep = open_pep(eq);
	CHECK(data_size(&pep->fid) == 24);
	OK(fi_listen(pep));
	at = address(pep);
	refused_peer(&at, other_key);
	refused_peer(&at, NULL);

	set_key(info, one_key);
	open_end(&a, info, 0);
	CHECK(data_size(&a.ep->fid) == 24);
	OK(fi_connect(a.ep, &at, "0123456789abcdefghijklmn", 24));
	CHECK(event(eq, FI_CONNREQ, &entry, NULL) >= 24);
	CHECK(entry.info->ep_attr->auth_key_size == sizeof(one_key) &&
	      !memcmp(entry.info->ep_attr->auth_key, one_key, sizeof(one_key)));
	open_end(&b, entry.info, 0);
	fi_freeinfo(entry.info);
	OK(fi_accept(b.ep, NULL, 0));
	event(a.eq, FI_CONNECTED, &entry, NULL);
	event(b.eq, FI_CONNECTED, &entry, NULL);

	/* Memory under the connection's auth key can be read, memory under another cannot. */
	fill(b.mem, 64, 1);
	iov = (struct iovec){ b.mem, 64 };
	remote = (uint64_t)(uintptr_t)b.mem;
	attr.mr_iov = &iov;
	attr.auth_key = one_key;
	attr.auth_key_size = sizeof(one_key);
	OK(fi_mr_regattr(domain, &attr, 0, &mr));
	OK(fi_read(a.ep, a.mem, 64, fi_mr_desc(a.mr), 0, remote, fi_mr_key(mr), &a));
	completion(a.cq, &a, FI_READ);
	CHECK(!memcmp(a.mem, b.mem, 64));
	OK(fi_close(&mr->fid));
	attr.auth_key = other_key;
	OK(fi_mr_regattr(domain, &attr, 0, &mr));
	OK(fi_read(a.ep, a.mem + 64, 64, fi_mr_desc(a.mr), 0, remote, fi_mr_key(mr), &a));
	CHECK(failure(a.cq, &a).err == FI_EACCES);
	CHECK(!a.mem[65]);
	OK(fi_close(&mr->fid));
	unpair(&a, &b);
	OK(fi_close(&pep->fid));
	OK(fi_close(&eq->fid));
	set_key(info, NULL);
}

/* The auth key of a file, for all endpoints and regions of domains; the environment names it. */
static void key_file(void)
{
	const char *file = getenv("FI_KFABRIC_AUTH_KEY_FILE");
	struct fid_domain *none;
	struct end a, b;

	CHECK(file);
	pair(&a, &b);
	CHECK(data_size(&a.ep->fid) == 24);
	fill(b.mem, 64, 1);
	OK(fi_read(a.ep, a.mem, 64, fi_mr_desc(a.mr), 0, (uint64_t)(uintptr_t)b.mem,
		   fi_mr_key(b.mr), &a));
	completion(a.cq, &a, FI_READ);
	CHECK(!memcmp(a.mem, b.mem, 64));
	unpair(&a, &b);
	/* Without the auth key that the administrator named no domain is opened. */
	OK(chmod(file, 0644));
	GIVES(-FI_EACCES, fi_domain(fabric, info, &none, NULL));
	OK(unlink(file));
	GIVES(-FI_ENOENT, fi_domain(fabric, info, &none, NULL));
	CHECK(fi_passive_ep(fabric, info, (struct fid_pep **)&none, NULL) == -FI_ENOENT);
}

/* ---- event queues ---- */

static void events(void)
{
	struct fid_eq *eq = open_eq();
	struct fi_eq_entry entry = { .fid = &eq->fid, .context = &entry, .data = 5 }, got = { 0 };
	struct fi_eq_err_entry err = { 0 };
	uint32_t kind = 0;
	long start;
	int fd;

	OK(fi_control(&eq->fid, FI_GETWAIT, &fd));
	CHECK(!readable(fd));
	GIVES(-FI_EAGAIN, fi_eq_read(eq, &kind, &got, sizeof(got), 0));
	GIVES(-FI_EAGAIN, fi_eq_readerr(eq, &err, 0));
	start = now_ms();
	GIVES(-FI_EAGAIN, fi_eq_sread(eq, &kind, &got, sizeof(got), 50, 0));
	CHECK(now_ms() - start >= 50);
	GIVES(-FI_EAGAIN, fi_eq_sread(eq, &kind, &got, sizeof(got), 0, 0));
	OK(fi_trywait(fabric, (struct fid *[]){ &eq->fid }, 1));

	for (int i = 0; i < 40; i++) {
		entry.data = (uint64_t)i;
		GIVES(sizeof(entry), fi_eq_write(eq, FI_NOTIFY, &entry, sizeof(entry), 0));
	}
	CHECK(readable(fd));
	GIVES(-FI_EAGAIN, fi_trywait(fabric, (struct fid *[]){ &eq->fid }, 1));
	GIVES(-FI_ETOOSMALL, fi_eq_read(eq, &kind, &got, 1, 0));
	for (int i = 0; i < 40; i++) {
		GIVES(sizeof(got), fi_eq_read(eq, &kind, &got, sizeof(got), FI_PEEK));
		CHECK(got.data == (uint64_t)i);
		memset(&got, 0, sizeof(got));
		GIVES(sizeof(got), fi_eq_sread(eq, &kind, &got, sizeof(got), -1, 0));
		CHECK(kind == FI_NOTIFY && got.data == (uint64_t)i && got.context == &entry &&
		      got.fid == &eq->fid);
	}
	CHECK(!readable(fd));
	GIVES(-FI_EAGAIN, fi_eq_read(eq, &kind, &got, sizeof(got), FI_PEEK));
	OK(fi_close(&eq->fid));
}

/* ---- completion queues ---- */

struct waiter {
	struct fid_cq *cq;
	ssize_t rc;
};

static void *wait_thread(void *arg)
{
	struct waiter *w = arg;
	struct fi_cq_data_entry entry;

	w->rc = fi_cq_sread(w->cq, &entry, 1, NULL, -1);
	return NULL;
}

static void completions(void)
{
	struct waiter w;
	struct fi_cq_err_entry err = { 0 };
	struct fi_cq_tagged_entry got[4];
	struct end a, b;
	pthread_t thread;
	fi_addr_t from[4] = { 0 };
	long start;
	int fd;

	pair(&a, &b);
	OK(fi_control(&a.cq->fid, FI_GETWAIT, &fd));
	CHECK(!readable(fd));
	GIVES(-FI_EAGAIN, fi_cq_read(a.cq, got, 1));
	GIVES(-FI_EAGAIN, fi_cq_readerr(a.cq, &err, 0));
	start = now_ms();
	GIVES(-FI_EAGAIN, fi_cq_sread(a.cq, got, 1, NULL, 50));
	CHECK(now_ms() - start >= 50);
	OK(fi_trywait(fabric, (struct fid *[]){ &a.cq->fid, &a.eq->fid }, 2));

	/* A signal wakes one wait, which reads nothing, before or while it waits. */
	OK(fi_cq_signal(a.cq));
	GIVES(-FI_EAGAIN, fi_cq_sread(a.cq, got, 1, NULL, -1));
	w = (struct waiter){ .cq = a.cq };
	OK(pthread_create(&thread, NULL, wait_thread, &w));
	usleep(20000);
	OK(fi_cq_signal(a.cq));
	OK(pthread_join(thread, NULL));
	GIVES(-FI_EAGAIN, w.rc);

	OK(fi_recv(b.ep, b.mem, 8, fi_mr_desc(b.mr), 0, &b));
	OK(fi_recv(b.ep, b.mem, 8, fi_mr_desc(b.mr), 0, &b));
	OK(pthread_create(&thread, NULL, wait_thread, &w));
	OK(fi_send(a.ep, a.mem, 8, fi_mr_desc(a.mr), 0, &a));
	OK(pthread_join(thread, NULL));
	GIVES(1, w.rc);
	OK(fi_send(a.ep, a.mem, 8, fi_mr_desc(a.mr), 0, &a));
	CHECK(poll(&(struct pollfd){ .fd = fd, .events = POLLIN }, 1, LIMIT_MS) == 1);
	GIVES(-FI_EAGAIN, fi_trywait(fabric, (struct fid *[]){ &a.cq->fid }, 1));
	GIVES(1, fi_cq_readfrom(a.cq, got, 4, from));
	CHECK(from[0] == FI_ADDR_NOTAVAIL);
	CHECK(!readable(fd));
	OK(fi_trywait(fabric, (struct fid *[]){ &a.cq->fid }, 1));
	unpair(&a, &b);

	/* Each format has its own entries. */
	for (enum fi_cq_format f = FI_CQ_FORMAT_CONTEXT; f <= FI_CQ_FORMAT_TAGGED; f++) {
		static const size_t size[] = { 0, sizeof(struct fi_cq_entry),
			sizeof(struct fi_cq_msg_entry), sizeof(struct fi_cq_data_entry),
			sizeof(struct fi_cq_tagged_entry) };

		format = f;
		pair(&a, &b);
		format = FI_CQ_FORMAT_DATA;
		OK(fi_recv(b.ep, b.mem, 8, fi_mr_desc(b.mr), 0, &b));
		memset(got, 0xee, sizeof(got));
		OK(fi_senddata(a.ep, a.mem, 8, fi_mr_desc(a.mr), 6, 0, &a));
		GIVES(1, fi_cq_sread(b.cq, got, 4, NULL, LIMIT_MS));
		CHECK(got[0].op_context == &b && ((uint8_t *)got)[size[f]] == 0xee);
		CHECK(f < FI_CQ_FORMAT_MSG || (got[0].flags & FI_RECV && got[0].len == 8));
		CHECK(f < FI_CQ_FORMAT_DATA || got[0].data == 6);
		CHECK(f < FI_CQ_FORMAT_TAGGED || got[0].tag == 0);
		GIVES(1, fi_cq_sread(a.cq, got, 4, NULL, LIMIT_MS));
		CHECK(got[0].op_context == &a);
		unpair(&a, &b);
	}
}

/* ---- counters ---- */

static void counters(void)
{
	struct fi_cntr_attr attr = { .events = FI_CNTR_EVENTS_COMP };
	struct fid_cntr *sent, *received;
	struct fi_cq_data_entry got;
	struct end a, b;
	long start;

	OK(fi_cntr_open(domain, &attr, &sent, NULL));
	OK(fi_cntr_open(domain, NULL, &received, &b));
	CHECK(received->fid.context == &b && received->fid.fclass == FI_CLASS_CNTR);
	attr.wait_obj = FI_WAIT_FD;
	GIVES(-FI_ENOSYS, fi_cntr_open(domain, &attr, (struct fid_cntr **)&got, NULL));

	/* By the program alone. */
	CHECK(fi_cntr_read(sent) == 0 && fi_cntr_readerr(sent) == 0);
	OK(fi_cntr_add(sent, 3));
	OK(fi_cntr_add(sent, 4));
	CHECK(fi_cntr_read(sent) == 7);
	OK(fi_cntr_wait(sent, 7, -1));
	start = now_ms();
	GIVES(-FI_ETIMEDOUT, fi_cntr_wait(sent, 8, 50));
	CHECK(now_ms() - start >= 50);
	OK(fi_cntr_adderr(sent, 2));
	CHECK(fi_cntr_readerr(sent) == 2);
	OK(fi_cntr_seterr(sent, 0));
	OK(fi_cntr_set(sent, 0));
	CHECK(fi_cntr_read(sent) == 0 && fi_cntr_readerr(sent) == 0);

	/* Bound to endpoints: `open_end` binds them. */
	to_bind[0] = sent;
	to_bind[1] = received;
	pair(&a, &b);
	to_bind[0] = to_bind[1] = NULL;
	GIVES(-FI_EBUSY, fi_close(&sent->fid));
	for (int i = 0; i < 3; i++)
		OK(fi_recv(b.ep, b.mem, 8, fi_mr_desc(b.mr), 0, &b));
	OK(fi_send(a.ep, a.mem, 8, fi_mr_desc(a.mr), 0, &a));
	OK(fi_inject(a.ep, a.mem, 8, 0));
	OK(fi_write(a.ep, a.mem, 8, fi_mr_desc(a.mr), 0, (uint64_t)(uintptr_t)b.mem,
		    fi_mr_key(b.mr), &a));
	OK(fi_cntr_wait(sent, 3, LIMIT_MS));
	OK(fi_cntr_wait(received, 2, LIMIT_MS));
	CHECK(fi_cntr_read(sent) == 3 && fi_cntr_read(received) == 2);
	completion(a.cq, &a, FI_SEND);
	completion(a.cq, &a, FI_WRITE);
	completion(b.cq, &b, FI_RECV);
	completion(b.cq, &b, FI_RECV);
	/* The last receive fails when the endpoint closes. */
	OK(fi_close(&b.ep->fid));
	b.ep = NULL;
	CHECK(failure(b.cq, &b).err == FI_ECANCELED);
	CHECK(fi_cntr_readerr(received) == 1 && fi_cntr_read(received) == 2);
	unpair(&a, &b);
	OK(fi_close(&sent->fid));
	OK(fi_close(&received->fid));
}

/* ---- closing ---- */

static void close_order(void)
{
	struct fid_eq *eq = open_eq();
	struct fid_pep *pep = open_pep(eq);
	struct end a, b;

	GIVES(-FI_EBUSY, fi_close(&fabric->fid));
	OK(fi_listen(pep));
	GIVES(-FI_EBUSY, fi_close(&eq->fid));
	OK(fi_close(&pep->fid));
	OK(fi_close(&eq->fid));
	pair(&a, &b);
	GIVES(-FI_EBUSY, fi_close(&domain->fid));
	GIVES(-FI_EBUSY, fi_close(&a.cq->fid));
	GIVES(-FI_EBUSY, fi_close(&a.eq->fid));
	/* Nothing of this has done harm. */
	OK(fi_recv(b.ep, b.mem, 8, fi_mr_desc(b.mr), 0, &b));
	OK(fi_send(a.ep, a.mem, 8, fi_mr_desc(a.mr), 0, &a));
	completion(a.cq, &a, FI_SEND);
	completion(b.cq, &b, FI_RECV);
	unpair(&a, &b);
	/* What an endpoint lacks is named. */
	OK(fi_endpoint(domain, info, &a.ep, NULL));
	GIVES(-FI_ENOEQ, fi_enable(a.ep));
	eq = open_eq();
	OK(fi_ep_bind(a.ep, &eq->fid, 0));
	GIVES(-FI_ENOCQ, fi_enable(a.ep));
	OK(fi_close(&a.ep->fid));
	OK(fi_close(&eq->fid));
}

/* ---- endpoints of type FI_EP_RDM, by ofi_rxm ---- */

struct rdm {
	struct fid_cq *cq;
	struct fid_av *av;
	struct fid_ep *ep;
	struct fid_mr *mr;
	uint8_t *mem;
	fi_addr_t peer;
};

static struct rdm ends[2];

/* Waits for a completion at end `n`. Both ends make progress. A failure is returned as its error. */
static int arrives(int n, void *context, uint64_t flags, struct fi_cq_tagged_entry *entry)
{
	struct fi_cq_err_entry err = { 0 };
	long start = now_ms();

	while (now_ms() - start < LIMIT_MS) {
		ssize_t rc = fi_cq_read(ends[n].cq, entry, 1);

		if (rc == -FI_EAVAIL) {
			GIVES(1, fi_cq_readerr(ends[n].cq, &err, 0));
			CHECK(err.op_context == context);
			return err.err;
		}
		if (rc == 1) {
			CHECK(entry->op_context == context && (entry->flags & flags) == flags);
			return 0;
		}
		GIVES(-FI_EAGAIN, rc);
		/* Moves messages of the other end, and reads no completion. */
		fi_cq_read(ends[1 - n].cq, NULL, 0);
	}
	fail(__LINE__, "no completion", n);
	return 0;
}

/* Repeats a call while the connection is being made. */
#define POST(call) do { \
	long post_, start_ = now_ms(); \
	do { \
		post_ = (long)(call); \
		for (int e_ = 0; e_ < 2; e_++) \
			fi_cq_read(ends[e_].cq, NULL, 0); \
	} while (post_ == -FI_EAGAIN && now_ms() - start_ < LIMIT_MS); \
	if (post_) \
		fail(__LINE__, #call, post_); \
} while (0)

static void rdm(void)
{
	struct fi_info *hints = fi_allocinfo(), *of;
	struct fi_cq_attr cq_attr = { .size = 64, .format = FI_CQ_FORMAT_TAGGED };
	struct fi_av_attr av_attr = { .type = FI_AV_TABLE };
	struct sockaddr_in names[2];
	struct fid_fabric *wide;
	struct fid_domain *dom;
	struct rdm *a = &ends[0], *b = &ends[1];
	struct fi_cq_tagged_entry got;
	uint64_t key, at, *target, one = 1;
	void *desc[2];
	char port[2] = "0";
	char host[INET_ADDRSTRLEN];
	static const size_t sizes[] = { 0, 8, 4096, LEN / 2 };

	CHECK(hints);
	inet_ntop(AF_INET, &((struct sockaddr_in *)info->src_addr)->sin_addr, host, sizeof(host));
	hints->ep_attr->type = FI_EP_RDM;
	hints->caps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC;
	hints->domain_attr->mr_mode = info->domain_attr->mr_mode;
	hints->domain_attr->name = strdup(info->domain_attr->name);
	hints->fabric_attr->prov_name = strdup("kfabric;ofi_rxm");
	OK(fi_getinfo(FI_VERSION(1, 18), host, port, FI_SOURCE, hints, &of));
	fi_freeinfo(hints);
	OK(fi_fabric(of->fabric_attr, &wide, NULL));
	OK(fi_domain(wide, of, &dom, NULL));
	for (int i = 0; i < 2; i++) {
		struct rdm *e = &ends[i];
		size_t len = sizeof(names[i]);

		OK(fi_cq_open(dom, &cq_attr, &e->cq, NULL));
		OK(fi_av_open(dom, &av_attr, &e->av, NULL));
		OK(fi_endpoint(dom, of, &e->ep, NULL));
		OK(fi_ep_bind(e->ep, &e->cq->fid, FI_TRANSMIT | FI_RECV));
		OK(fi_ep_bind(e->ep, &e->av->fid, 0));
		OK(fi_enable(e->ep));
		e->mem = calloc(1, LEN);
		CHECK(e->mem);
		OK(fi_mr_reg(dom, e->mem, LEN, RIGHTS, 0, (uint64_t)i, 0, &e->mr, NULL));
		OK(fi_getname(&e->ep->fid, &names[i], &len));
		desc[i] = fi_mr_desc(e->mr);
	}
	for (int i = 0; i < 2; i++)
		GIVES(1, fi_av_insert(ends[i].av, &names[1 - i], 1, &ends[i].peer, 0, NULL));

	/* Tagged messages of each protocol of ofi_rxm; the receive is posted before or after. */
	for (size_t i = 0; i < 2 * sizeof(sizes) / sizeof(sizes[0]); i++) {
		size_t len = sizes[i / 2];

		fill(a->mem, len, (int)i);
		if (i & 1)
			POST(fi_trecv(b->ep, b->mem, LEN, desc[1], FI_ADDR_UNSPEC, 0x10, 0xf, &b));
		POST(fi_tsend(a->ep, a->mem, len, desc[0], a->peer, 0x10 + i, &a));
		if (!(i & 1))
			POST(fi_trecv(b->ep, b->mem, LEN, desc[1], FI_ADDR_UNSPEC, 0x10, 0xf, &b));
		OK(arrives(1, &b, FI_RECV | FI_TAGGED, &got));
		CHECK(got.tag == 0x10 + i && got.len == len && !memcmp(a->mem, b->mem, len));
		OK(arrives(0, &a, FI_SEND | FI_TAGGED, &got));
	}
	/* The other direction, without a tag. */
	POST(fi_recv(a->ep, a->mem, LEN, desc[0], FI_ADDR_UNSPEC, &a));
	POST(fi_inject(b->ep, b->mem, 64, b->peer));
	OK(arrives(0, &a, FI_RECV | FI_MSG, &got));
	CHECK(got.len == 64);
	POST(fi_trecv(b->ep, b->mem, LEN, desc[1], FI_ADDR_UNSPEC, 1, 0, &b));
	OK(fi_cancel(&b->ep->fid, &b));
	GIVES(FI_ECANCELED, arrives(1, &b, 0, &got));

	/* One-sided operations, and atomics, which ofi_rxm makes of messages. */
	key = fi_mr_key(b->mr);
	at = (uint64_t)(uintptr_t)b->mem;
	fill(a->mem, LEN / 2, 77);
	POST(fi_write(a->ep, a->mem, LEN / 2, desc[0], a->peer, at, key, &a));
	OK(arrives(0, &a, FI_RMA | FI_WRITE, &got));
	CHECK(!memcmp(a->mem, b->mem, LEN / 2));
	fill(b->mem, LEN / 2, 78);
	POST(fi_read(a->ep, a->mem, LEN / 2, desc[0], a->peer, at, key, &a));
	OK(arrives(0, &a, FI_RMA | FI_READ, &got));
	CHECK(!memcmp(a->mem, b->mem, LEN / 2));
	target = (uint64_t *)b->mem;
	*target = 41;
	POST(fi_fetch_atomic(a->ep, &one, 1, NULL, a->mem, desc[0], a->peer, at, key, FI_UINT64,
			     FI_SUM, &a));
	OK(arrives(0, &a, FI_ATOMIC | FI_READ, &got));
	CHECK(*target == 42 && *(uint64_t *)a->mem == 41);

	for (int i = 0; i < 2; i++) {
		OK(fi_close(&ends[i].ep->fid));
		OK(fi_close(&ends[i].mr->fid));
		OK(fi_close(&ends[i].av->fid));
		OK(fi_close(&ends[i].cq->fid));
		free(ends[i].mem);
	}
	OK(fi_close(&dom->fid));
	OK(fi_close(&wide->fid));
	fi_freeinfo(of);
}

static const struct {
	const char *name;
	void (*run)(void);
} cases[] = {
	{ "registration", registration },
	{ "rma", rma },
	{ "wrong_key", wrong_key },
	{ "closed_region", closed_region },
	{ "atomics", atomics },
	{ "messages", messages },
	{ "failed_messages", failed_messages },
	{ "cancel", cancel },
	{ "names", names },
	{ "reject", reject },
	{ "auth_keys", auth_keys },
	{ "key_file", key_file },
	{ "events", events },
	{ "completions", completions },
	{ "counters", counters },
	{ "close_order", close_order },
	{ "rdm", rdm },
};

int main(int argc, char **argv)
{
	if (argc < 4) {
		fprintf(stderr, "usage: fi_cases DOMAIN ADDRESS CASE...\n");
		return 2;
	}
	name = "setup";
	info = offer(argv[1], argv[2]);
	shm = !strncmp(info->fabric_attr->name, "kshm", 4);
	for (int i = 3; i < argc; i++) {
		size_t n = sizeof(cases) / sizeof(cases[0]), at = 0;

		while (at < n && strcmp(cases[at].name, argv[i]))
			at++;
		name = argv[i];
		CHECK(at < n);
		OK(fi_fabric(info->fabric_attr, &fabric, NULL));
		OK(fi_domain(fabric, info, &domain, NULL));
		long start = now_ms();
		cases[at].run();
		OK(fi_close(&domain->fid));
		OK(fi_close(&fabric->fid));
		printf("%s: %ld ms\n", name, now_ms() - start);
		fflush(stdout);
	}
	fi_freeinfo(info);
	return 0;
}
