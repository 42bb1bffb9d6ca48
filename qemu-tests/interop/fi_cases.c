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
#define _GNU_SOURCE
#include "fi_cases.h"
#include "fi_cases_data.h"
#include "fi_cases_info.h"
#include "fi_cases_keys.h"
#include "fi_cases_pmem.h"
#include "fi_cases_rdm.h"
#include "fi_cases_rings.h"
#include "fi_cases_signals.h"
#include "fi_cases_close.h"

/* ---- connections ---- */

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
	GIVES(-FI_EINVAL, fi_connect(a.ep, &at, sent, max + 1));
	OK(fi_connect(a.ep, &at, sent, max));
	len = event(eq, FI_CONNREQ, &entry, data);
	CHECK(len >= max && !memcmp(data, sent, max));
	CHECK(!strcmp(entry.info->domain_attr->name, info->domain_attr->name));
	CHECK(!strcmp(entry.info->fabric_attr->name, info->fabric_attr->name));
	/* The passive endpoint's info is repeated. */
	CHECK(entry.info->fabric_attr->prov_name &&
	      !strcmp(entry.info->fabric_attr->prov_name, provider()));
	CHECK(entry.info->fabric_attr->api_version == info->fabric_attr->api_version);
	CHECK(entry.info->domain_attr->threading == info->domain_attr->threading);
	CHECK(entry.info->domain_attr->data_progress == info->domain_attr->data_progress);
	CHECK(entry.info->domain_attr->mr_mode == info->domain_attr->mr_mode);
	CHECK(entry.info->tx_attr->size == info->tx_attr->size);
	CHECK(entry.info->rx_attr->size == info->rx_attr->size);
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
	struct fi_info *stale = NULL;
	struct fid_ep *none;
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
		if (!i)
			stale = entry.info;
		else
			fi_freeinfo(entry.info);
		err = refusal(&a, i ? data : NULL, i ? sizeof(data) : 0);
		CHECK(err.err == FI_ECONNREFUSED);
		CHECK(err.err_data_size == 3 && !memcmp(err.err_data, "no\x7f", 3));
		close_end(&a);
	}
	/* The info of an answered request opens no endpoint, also not for a later request. */
	GIVES(-FI_EINVAL, fi_endpoint(domain, stale, &none, NULL));
	open_end(&a, info, 0);
	OK(fi_connect(a.ep, &at, NULL, 0));
	event(eq, FI_CONNREQ, &entry, NULL);
	GIVES(-FI_EINVAL, fi_endpoint(domain, stale, &none, NULL));
	GIVES(-FI_EINVAL, fi_reject(pep, stale->handle, NULL, 0));
	fi_freeinfo(stale);
	OK(fi_reject(pep, entry.info->handle, NULL, 0));
	fi_freeinfo(entry.info);
	CHECK(refusal(&a, NULL, 0).err == FI_ECONNREFUSED);
	close_end(&a);
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

#include "fi_cases_many.h"

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
	GIVES(-FI_ETOOSMALL, fi_eq_read(eq, &kind, &got, sizeof(got) - 1, 0));
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
	/* An event without data. */
	GIVES(0, fi_eq_write(eq, FI_NOTIFY, NULL, 0, 0));
	GIVES(0, fi_eq_read(eq, &kind, NULL, 0, 0));
	OK(fi_close(&eq->fid));

	/* Wait objects: the program is told which one there is. */
	static const enum fi_wait_obj objects[][2] = {
		{ FI_WAIT_NONE, FI_WAIT_NONE }, { FI_WAIT_UNSPEC, FI_WAIT_FD },
		{ FI_WAIT_FD, FI_WAIT_FD }, { FI_WAIT_YIELD, FI_WAIT_YIELD },
	};
	for (size_t i = 0; i < sizeof(objects) / sizeof(objects[0]); i++) {
		struct fi_eq_attr attr = { .size = 1 << i, .wait_obj = objects[i][0] };
		struct fi_cq_attr cq_attr = { .wait_obj = objects[i][0] };
		struct fid_cq *cq;
		enum fi_wait_obj object = FI_WAIT_UNSPEC;
		int wanted = objects[i][1] == FI_WAIT_FD ? 0 : -FI_ENODATA;

		OK(fi_eq_open(fabric, &attr, &eq, NULL));
		OK(fi_control(&eq->fid, FI_GETWAITOBJ, &object));
		CHECK(object == objects[i][1]);
		GIVES(wanted, fi_control(&eq->fid, FI_GETWAIT, &fd));
		OK(fi_cq_open(domain, &cq_attr, &cq, NULL));
		OK(fi_control(&cq->fid, FI_GETWAITOBJ, &object));
		CHECK(object == objects[i][1]);
		GIVES(wanted, fi_control(&cq->fid, FI_GETWAIT, &fd));
		OK(fi_close(&cq->fid));
		OK(fi_close(&eq->fid));
		cq_attr.wait_obj = FI_WAIT_MUTEX_COND;
		GIVES(-FI_ENOSYS, fi_cq_open(domain, &cq_attr, &cq, NULL));
		cq_attr = (struct fi_cq_attr){ .format = 99 };
		GIVES(-FI_EINVAL, fi_cq_open(domain, &cq_attr, &cq, NULL));
	}
}

/* ---- completion queues ---- */

struct waiter {
	struct fid_cq *cq;
	ssize_t rc;
	int done;
};

static void *wait_thread(void *arg)
{
	struct waiter *w = arg;
	struct fi_cq_data_entry entry;

	w->rc = fi_cq_sread(w->cq, &entry, 1, NULL, -1);
	__atomic_store_n(&w->done, 1, __ATOMIC_RELEASE);
	return NULL;
}

static int is_done(struct waiter *w)
{
	return __atomic_load_n(&w->done, __ATOMIC_ACQUIRE);
}

/* Returns whether one signal has woken two threads, which read nothing. Under load a thread may come
 * to wait after the signal. */
static int both_wake(struct fid_cq *cq)
{
	struct waiter w[2] = { { .cq = cq }, { .cq = cq } };
	pthread_t thread[2];
	long start;
	int both;

	for (int i = 0; i < 2; i++)
		OK(pthread_create(&thread[i], NULL, wait_thread, &w[i]));
	usleep(50000);
	OK(fi_cq_signal(cq));
	for (start = now_ms(); now_ms() - start < 1000 && !(is_done(&w[0]) && is_done(&w[1]));)
		usleep(1000);
	both = is_done(&w[0]) && is_done(&w[1]);
	for (start = now_ms(); !is_done(&w[0]) || !is_done(&w[1]); usleep(10000)) {
		CHECK(now_ms() - start < LIMIT_MS);
		OK(fi_cq_signal(cq));
	}
	for (int i = 0; i < 2; i++) {
		OK(pthread_join(thread[i], NULL));
		GIVES(-FI_EAGAIN, w[i].rc);
	}
	/* A signal that met no thread is for the next wait. */
	fi_trywait(fabric, (struct fid *[]){ &cq->fid }, 1);
	return both;
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
	/* The descriptor of a queue with rings says nothing before. */
	if (rings)
		OK(fi_trywait(fabric, (struct fid *[]){ &a.cq->fid }, 1));
	CHECK(!readable(fd));
	GIVES(-FI_EAGAIN, fi_cq_read(a.cq, got, 1));
	GIVES(-FI_EAGAIN, fi_cq_readerr(a.cq, &err, 0));
	start = now_ms();
	GIVES(-FI_EAGAIN, fi_cq_sread(a.cq, got, 1, NULL, 50));
	CHECK(now_ms() - start >= 50);
	OK(fi_trywait(fabric, (struct fid *[]){ &a.cq->fid, &a.eq->fid }, 2));

	/* A signal wakes all threads that wait, which read nothing; else the next wait. */
	OK(fi_cq_signal(a.cq));
	GIVES(-FI_EAGAIN, fi_cq_sread(a.cq, got, 1, NULL, -1));
	for (int i = 0; i < 10 && !both_wake(a.cq); i++)
		CHECK(i < 9);
	/* A signal makes the descriptor readable until fi_trywait. */
	CHECK(!readable(fd));
	OK(fi_cq_signal(a.cq));
	CHECK(readable(fd));
	GIVES(-FI_EAGAIN, fi_cq_read(a.cq, got, 1));
	GIVES(-FI_EAGAIN, fi_trywait(fabric, (struct fid *[]){ &a.cq->fid }, 1));
	OK(fi_trywait(fabric, (struct fid *[]){ &a.cq->fid }, 1));
	CHECK(!readable(fd));
	/* The descriptor also shows a signal that a thread has taken: another thread may poll. */
	w = (struct waiter){ .cq = a.cq };
	OK(pthread_create(&thread, NULL, wait_thread, &w));
	OK(fi_cq_signal(a.cq));
	OK(pthread_join(thread, NULL));
	CHECK(readable(fd));
	GIVES(-FI_EAGAIN, fi_trywait(fabric, (struct fid *[]){ &a.cq->fid }, 1));
	OK(fi_trywait(fabric, (struct fid *[]){ &a.cq->fid }, 1));
	CHECK(!readable(fd));

	OK(fi_recv(b.ep, b.mem, 8, fi_mr_desc(b.mr), 0, &b));
	OK(fi_recv(b.ep, b.mem, 8, fi_mr_desc(b.mr), 0, &b));
	w = (struct waiter){ .cq = a.cq };
	OK(pthread_create(&thread, NULL, wait_thread, &w));
	OK(fi_send(a.ep, a.mem, 8, fi_mr_desc(a.mr), 0, &a));
	OK(pthread_join(thread, NULL));
	GIVES(1, w.rc);
	OK(fi_send(a.ep, a.mem, 8, fi_mr_desc(a.mr), 0, &a));
	CHECK(poll(&(struct pollfd){ .fd = fd, .events = POLLIN }, 1, LIMIT_MS) == 1);
	GIVES(-FI_EAGAIN, fi_trywait(fabric, (struct fid *[]){ &a.cq->fid }, 1));
	GIVES(1, fi_cq_readfrom(a.cq, got, 4, from));
	CHECK(from[0] == FI_ADDR_NOTAVAIL);
	CHECK(rings || !readable(fd));
	OK(fi_trywait(fabric, (struct fid *[]){ &a.cq->fid }, 1));
	CHECK(!readable(fd));
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
	attr.wait_obj = FI_WAIT_MUTEX_COND;
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

/* Waits for the descriptor of a counter until the counter has a value. */
static void reaches(struct fid_cntr *cntr, int fd, uint64_t value)
{
	struct fid *fids[] = { &cntr->fid };

	while (fi_cntr_read(cntr) < value) {
		int rc = fi_trywait(fabric, fids, 1);

		if (rc == -FI_EAGAIN)
			continue;
		OK(rc);
		CHECK(poll(&(struct pollfd){ .fd = fd, .events = POLLIN }, 1, LIMIT_MS) == 1);
	}
}

/* Waits until the program may wait for a counter's descriptor, which is not readable then. */
static void settled(struct fid_cntr *cntr, int fd)
{
	long start = now_ms();

	do {
		fi_cntr_read(cntr);
		fi_cntr_readerr(cntr);
		OK(fi_trywait(fabric, (struct fid *[]){ &cntr->fid }, 1));
		if (now_ms() - start > LIMIT_MS)
			fail(__LINE__, "the descriptor stays readable", 0);
	} while (poll(&(struct pollfd){ .fd = fd, .events = POLLIN }, 1, 5));
}

static long cpu_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Every change makes the descriptor readable at once, also one to a smaller value. */
static void changes(struct fid_cntr *cntr, int fd)
{
	long start = now_ms(), cpu;

	for (uint64_t i = 20; i > 0; i--) {
		OK(fi_cntr_set(cntr, i));
		settled(cntr, fd);
		OK(i & 1 ? fi_cntr_set(cntr, i - 1) : fi_cntr_seterr(cntr, i));
		CHECK(poll(&(struct pollfd){ .fd = fd, .events = POLLIN }, 1, LIMIT_MS) == 1);
	}
	CHECK(now_ms() - start < 5000);
	/* At the greatest value nothing is waited for in a loop. */
	OK(fi_cntr_set(cntr, UINT64_MAX));
	settled(cntr, fd);
	cpu = cpu_ms();
	CHECK(poll(&(struct pollfd){ .fd = fd, .events = POLLIN }, 1, 300) == 0);
	CHECK(cpu_ms() - cpu < 150);
	OK(fi_cntr_seterr(cntr, 0));
	OK(fi_cntr_set(cntr, 0));
	settled(cntr, fd);
}

static void *add_thread(void *arg)
{
	for (int i = 0; i < 20; i++) {
		usleep(1000);
		OK(fi_cntr_add(arg, 1));
	}
	return NULL;
}

static void counter_descriptors(void)
{
	struct fi_cntr_attr attr = { .events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_FD };
	struct fid_cntr *sent, *received, *plain;
	enum fi_wait_obj object = FI_WAIT_NONE;
	struct fi_cq_data_entry got;
	struct end a, b;
	pthread_t thread;
	int fds[2];

	OK(fi_cntr_open(domain, NULL, &plain, NULL));
	GIVES(-FI_ENODATA, fi_control(&plain->fid, FI_GETWAIT, &fds[0]));
	OK(fi_close(&plain->fid));
	OK(fi_cntr_open(domain, &attr, &sent, NULL));
	OK(fi_cntr_open(domain, &attr, &received, NULL));
	OK(fi_control(&sent->fid, FI_GETWAITOBJ, &object));
	CHECK(object == FI_WAIT_FD);
	OK(fi_control(&sent->fid, FI_GETWAIT, &fds[0]));
	OK(fi_control(&received->fid, FI_GETWAIT, &fds[1]));
	OK(fi_trywait(fabric, (struct fid *[]){ &sent->fid, &received->fid }, 2));
	CHECK(!readable(fds[0]));
	OK(pthread_create(&thread, NULL, add_thread, sent));
	reaches(sent, fds[0], 20);
	OK(pthread_join(thread, NULL));
	OK(fi_cntr_adderr(sent, 1));
	CHECK(poll(&(struct pollfd){ .fd = fds[0], .events = POLLIN }, 1, LIMIT_MS) == 1);
	/* A read of the value has not seen the error. */
	fi_cntr_read(sent);
	GIVES(-FI_EAGAIN, fi_trywait(fabric, (struct fid *[]){ &sent->fid }, 1));
	CHECK(fi_cntr_readerr(sent) == 1);
	OK(fi_trywait(fabric, (struct fid *[]){ &sent->fid }, 1));
	OK(fi_cntr_set(sent, 0));
	GIVES(-FI_EAGAIN, fi_trywait(fabric, (struct fid *[]){ &sent->fid }, 1));
	changes(sent, fds[0]);

	to_bind[0] = sent;
	to_bind[1] = received;
	pair(&a, &b);
	to_bind[0] = to_bind[1] = NULL;
	GIVES(-FI_EBUSY, fi_close(&sent->fid));
	for (uint64_t i = 1; i <= 4; i++) {
		OK(fi_recv(b.ep, b.mem, 8, fi_mr_desc(b.mr), 0, &b));
		OK(fi_send(a.ep, a.mem, 8, fi_mr_desc(a.mr), 0, &a));
		reaches(received, fds[1], i);
		reaches(sent, fds[0], i);
		CHECK(fi_cq_read(a.cq, &got, 1) == 1 && fi_cq_read(b.cq, &got, 1) == 1);
	}
	unpair(&a, &b);
	OK(fi_close(&sent->fid));
	OK(fi_close(&received->fid));
}

static const struct {
	const char *name;
	void (*run)(void);
} cases[] = {
	{ "registration", registration },
	{ "rma", rma },
	{ "durable", durable },
	{ "wrong_key", wrong_key },
	{ "closed_region", closed_region },
	{ "atomics", atomics },
	{ "messages", messages },
	{ "failed_messages", failed_messages },
	{ "failed_injects", failed_injects },
	{ "old_program", old_program },
	{ "cancel", cancel },
	{ "getinfo", getinfo },
	{ "endpoints", endpoints },
	{ "taken_address", taken_address },
	{ "names", names },
	{ "reject", reject },
	{ "auth_keys", auth_keys },
	{ "key_file", key_file },
	{ "events", events },
	{ "completions", completions },
	{ "signals", signals },
	{ "counters", counters },
	{ "counter_descriptors", counter_descriptors },
	{ "sub_regions", sub_regions },
	{ "single_use", single_use },
	{ "endpoint_keys", endpoint_keys },
	{ "close_in_use", close_in_use },
	{ "close_order", close_order },
	{ "unread_queue", unread_queue },
	{ "forked", forked },
	{ "queue_sizes", queue_sizes },
	{ "data_lengths", data_lengths },
	{ "domains", domains },
	{ "waits_by_epoll", waits_by_epoll },
	{ "flood", flood },
	{ "shared_queue", shared_queue },
	{ "rings_chosen", rings_chosen },
	{ "rings_closed_region", rings_closed_region },
	{ "rings_closed_long", rings_closed_long },
	{ "rings_closed_part", rings_closed_part },
	{ "rings_cancel", rings_cancel },
	{ "rings_turn", rings_turn },
	{ "rings_order", rings_order },
	{ "rings_sleepers", rings_sleepers },
	{ "rings_transmit_complete", rings_transmit_complete },
	{ "rdm", rdm },
	{ "rdm_unexpected", rdm_unexpected },
	{ "rdm_receives", rdm_receives },
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
	rings = shm && info->domain_attr->data_progress == FI_PROGRESS_MANUAL;
	CHECK(rings || !shm || !getenv("FI_KFABRIC_RINGS") || strcmp(getenv("FI_KFABRIC_RINGS"), "1"));
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
