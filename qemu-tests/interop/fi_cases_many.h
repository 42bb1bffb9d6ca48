// SPDX-License-Identifier: MIT OR Apache-2.0
/* Cases of fi_cases.c: many sizes, domains, endpoints and messages at once. */
#include <sys/epoll.h>

/* ---- sizes ---- */

static void queue_sizes(void)
{
	struct fid_cq *cqs[24], *cq;
	struct fid_eq *eq;
	size_t n = 0;

	/* Powers of two. */
	for (size_t size = 1; size <= 1 << 20; size <<= 1) {
		struct fi_cq_attr attr = { .size = size, .format = FI_CQ_FORMAT_MSG,
					   .wait_obj = FI_WAIT_UNSPEC };
		struct fi_eq_attr eq_attr = { .size = size, .wait_obj = FI_WAIT_UNSPEC };

		/* More than 2^18 entries, or 2^16 events, is a wish. */
		OK(fi_cq_open(domain, &attr, &cq, NULL));
		OK(fi_close(&cq->fid));
		OK(fi_eq_open(fabric, &eq_attr, &eq, NULL));
		OK(fi_close(&eq->fid));
	}
	struct fi_cq_attr of_peer = { .flags = FI_PEER };

	/* The context would be a structure of another provider. */
	GIVES(-FI_EBADFLAGS, fi_cq_open(domain, &of_peer, &cq, NULL));
	/* Several at the same time. */
	for (n = 0; n < 24; n++)
		OK(fi_cq_open(domain, NULL, &cqs[n], NULL));
	while (n--)
		OK(fi_close(&cqs[n]->fid));
}

/* Connection data of each length with a request, an accept, and a refusal. */
static void data_lengths(void)
{
	struct fid_eq *eq = open_eq();
	struct fid_pep *pep = open_pep(eq);
	struct fi_eq_cm_entry entry;
	struct fi_eq_err_entry err;
	struct sockaddr_in at;
	uint8_t sent[256], data[256];
	struct end a, b;
	size_t max = data_size(&pep->fid), step = max > 64 ? 17 : 5;

	fill(sent, sizeof(sent), 8);
	OK(fi_listen(pep));
	at = address(pep);
	for (size_t len = 1; len <= max; len = len < max && len + step > max ? max : len + step) {
		open_end(&a, info, 0);
		OK(fi_connect(a.ep, &at, sent, len));
		CHECK(event(eq, FI_CONNREQ, &entry, data) >= len && !memcmp(data, sent, len));
		open_end(&b, entry.info, 0);
		fi_freeinfo(entry.info);
		OK(fi_accept(b.ep, sent + 1, len));
		CHECK(event(a.eq, FI_CONNECTED, &entry, data) >= len);
		CHECK(!memcmp(data, sent + 1, len));
		event(b.eq, FI_CONNECTED, &entry, NULL);
		unpair(&a, &b);
		open_end(&a, info, 0);
		OK(fi_connect(a.ep, &at, NULL, 0));
		event(eq, FI_CONNREQ, &entry, NULL);
		OK(fi_reject(pep, entry.info->handle, sent + 2, len));
		fi_freeinfo(entry.info);
		err = refusal(&a, NULL, 0);
		CHECK(err.err == FI_ECONNREFUSED && err.err_data_size >= len);
		CHECK(!memcmp(err.err_data, sent + 2, len));
		close_end(&a);
	}
	OK(fi_close(&pep->fid));
	OK(fi_close(&eq->fid));
}

/* ---- several domains ---- */

static void domains(void)
{
	struct fid_domain *all[3], *first = domain;
	struct fid_mr *mr;
	struct end a, b;
	uint8_t mem[64] = { 0 };

	for (int i = 0; i < 3; i++) {
		OK(fi_domain(fabric, info, &all[i], &all[i]));
		CHECK(all[i]->fid.context == &all[i] && all[i]->fid.fclass == FI_CLASS_DOMAIN);
	}
	/* Each works without the others. */
	for (int i = 2; i >= 0; i--) {
		domain = all[i];
		pair(&a, &b);
		OK(fi_recv(b.ep, b.mem, 8, fi_mr_desc(b.mr), 0, &b));
		OK(fi_send(a.ep, a.mem, 8, fi_mr_desc(a.mr), 0, &a));
		completion(a.cq, &a, FI_SEND);
		completion(b.cq, &b, FI_RECV);
		/* Memory of another domain is refused. */
		OK(fi_mr_reg(first, mem, sizeof(mem), FI_SEND, 0, 0, 0, &mr, NULL));
		CHECK(fi_send(a.ep, mem, 8, fi_mr_desc(mr), 0, &a) < 0);
		OK(fi_close(&mr->fid));
		unpair(&a, &b);
		OK(fi_close(&domain->fid));
	}
	domain = first;
}

/* ---- waiting with epoll ---- */

/* Waits for a completion as fi_trywait's manual page shows. */
static void by_epoll(int set, struct end *e, void *context)
{
	struct fi_cq_data_entry got;
	struct fid *fids[] = { &e->cq->fid };
	struct epoll_event ready;

	for (;;) {
		ssize_t n = fi_cq_read(e->cq, &got, 1);
		int rc;

		if (n == 1)
			break;
		GIVES(-FI_EAGAIN, n);
		rc = fi_trywait(fabric, fids, 1);
		if (rc == -FI_EAGAIN)
			continue;
		OK(rc);
		CHECK(epoll_wait(set, &ready, 1, LIMIT_MS) == 1 && ready.data.ptr == e);
	}
	CHECK(got.op_context == context);
}

static void waits_by_epoll(void)
{
	struct end ends[2];
	int sets[2];

	pair(&ends[0], &ends[1]);
	for (int i = 0; i < 2; i++) {
		struct epoll_event event = { .events = EPOLLIN, .data.ptr = &ends[i] };
		int fd;

		OK(fi_control(&ends[i].cq->fid, FI_GETWAIT, &fd));
		sets[i] = epoll_create1(0);
		OK(epoll_ctl(sets[i], EPOLL_CTL_ADD, fd, &event));
	}
	for (int i = 0; i < 50; i++) {
		struct end *from = &ends[i & 1], *to = &ends[!(i & 1)];

		OK(fi_recv(to->ep, to->mem, 64, fi_mr_desc(to->mr), 0, to));
		OK(fi_send(from->ep, from->mem + 64, 64, fi_mr_desc(from->mr), 0, from));
		by_epoll(sets[!(i & 1)], to, to);
		by_epoll(sets[i & 1], from, from);
	}
	close(sets[0]);
	close(sets[1]);
	unpair(&ends[0], &ends[1]);
}

/* ---- more messages than there is room for ---- */

/* Sends far more messages than receives are posted; each arrives, in order. */
static void flood(void)
{
	enum { ALL = 3000 };
	struct fi_cq_data_entry got[8];
	struct end a, b;
	int sent = 0, posted = 0, received = 0, completed = 0;
	long start = now_ms();

	pair(&a, &b);
	while (received < ALL || completed < ALL) {
		ssize_t n;

		while (sent < ALL) {
			n = fi_senddata(a.ep, a.mem, 16, fi_mr_desc(a.mr), (uint64_t)sent, 0, &a);
			if (n == -FI_EAGAIN)
				break;
			OK(n);
			sent++;
		}
		while (posted < ALL && posted - received < 32) {
			n = fi_recv(b.ep, b.mem, 16, fi_mr_desc(b.mr), 0, &b);
			if (n == -FI_EAGAIN)
				break;
			OK(n);
			posted++;
		}
		n = fi_cq_read(a.cq, got, 8);
		CHECK(n > 0 || n == -FI_EAGAIN);
		completed += n > 0 ? (int)n : 0;
		n = fi_cq_read(b.cq, got, 8);
		CHECK(n > 0 || n == -FI_EAGAIN);
		for (int i = 0; i < n; i++)
			CHECK(got[i].data == (uint64_t)received++);
		CHECK(now_ms() - start < LIMIT_MS);
	}
	unpair(&a, &b);
}

/* Several endpoints with one completion queue at each side. */
static void shared_queue(void)
{
	enum { EPS = 4 };
	struct fid_eq *eq = open_eq();
	struct fid_pep *pep = open_pep(eq);
	struct fid_cq *cqs[2] = { open_cq(), open_cq() };
	struct fi_eq_cm_entry entry;
	struct sockaddr_in at;
	struct fid_ep *eps[2][EPS];
	struct fid_eq *eqs[2] = { open_eq(), open_eq() };
	struct fid_mr *mr;
	uint8_t *mem = calloc(1, LEN);
	int seen = 0;

	CHECK(mem);
	OK(fi_mr_reg(domain, mem, LEN, RIGHTS, 0, 0, 0, &mr, NULL));
	OK(fi_listen(pep));
	at = address(pep);
	for (int i = 0; i < EPS; i++) {
		for (int side = 0; side < 2; side++) {
			struct fi_info *of = side ? entry.info : info;

			OK(fi_endpoint(domain, of, &eps[side][i], &eps[side][i]));
			OK(fi_ep_bind(eps[side][i], &eqs[side]->fid, 0));
			OK(fi_ep_bind(eps[side][i], &cqs[side]->fid, FI_TRANSMIT | FI_RECV));
			OK(fi_enable(eps[side][i]));
			if (side) {
				fi_freeinfo(of);
				OK(fi_accept(eps[1][i], NULL, 0));
			} else {
				OK(fi_connect(eps[0][i], &at, NULL, 0));
				event(eq, FI_CONNREQ, &entry, NULL);
			}
		}
		for (int side = 0; side < 2; side++) {
			event(eqs[side], FI_CONNECTED, &entry, NULL);
			CHECK(entry.fid == &eps[side][i]->fid);
		}
	}
	for (int i = 0; i < EPS; i++)
		OK(fi_recv(eps[1][i], mem, 8, fi_mr_desc(mr), 0, &eps[1][i]));
	for (int i = EPS - 1; i >= 0; i--) {
		OK(fi_send(eps[0][i], mem + 64, 8, fi_mr_desc(mr), 0, &eps[0][i]));
		completion(cqs[0], &eps[0][i], FI_SEND);
		completion(cqs[1], &eps[1][i], FI_RECV);
		seen++;
	}
	CHECK(seen == EPS);
	GIVES(-FI_EBUSY, fi_close(&cqs[0]->fid));
	/* One connection ends; the others stay. */
	OK(fi_close(&eps[0][0]->fid));
	event(eqs[1], FI_SHUTDOWN, &entry, NULL);
	CHECK(entry.fid == &eps[1][0]->fid);
	OK(fi_recv(eps[0][1], mem, 8, fi_mr_desc(mr), 0, &eps[0][1]));
	OK(fi_send(eps[1][1], mem + 64, 8, fi_mr_desc(mr), 0, &eps[1][1]));
	completion(cqs[1], &eps[1][1], FI_SEND);
	completion(cqs[0], &eps[0][1], FI_RECV);
	for (int i = 0; i < EPS; i++) {
		if (i)
			OK(fi_close(&eps[0][i]->fid));
		OK(fi_close(&eps[1][i]->fid));
	}
	OK(fi_close(&mr->fid));
	for (int side = 0; side < 2; side++) {
		OK(fi_close(&cqs[side]->fid));
		OK(fi_close(&eqs[side]->fid));
	}
	OK(fi_close(&pep->fid));
	OK(fi_close(&eq->fid));
	free(mem);
}
