// SPDX-License-Identifier: MIT OR Apache-2.0
/* The cases of fi_cases.c for endpoints that ofi_rxm makes. */
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

static struct fi_info *rdm_info;
static struct fid_fabric *wide;
static struct fid_domain *dom;
static void *desc[2];

/* Opens two endpoints, which know each other. */
static void open_rdm(uint64_t caps)
{
	struct fi_info *hints = fi_allocinfo();
	struct fi_cq_attr cq_attr = { .size = 64, .format = FI_CQ_FORMAT_TAGGED };
	struct fi_av_attr av_attr = { .type = FI_AV_TABLE };
	struct sockaddr_in names[2];
	char port[2] = "0", layered[32];
	char host[INET_ADDRSTRLEN];

	CHECK(hints);
	inet_ntop(AF_INET, &((struct sockaddr_in *)info->src_addr)->sin_addr, host, sizeof(host));
	hints->ep_attr->type = FI_EP_RDM;
	hints->caps = caps;
	hints->domain_attr->mr_mode = info->domain_attr->mr_mode;
	hints->domain_attr->name = strdup(info->domain_attr->name);
	snprintf(layered, sizeof(layered), "%s;ofi_rxm", provider());
	hints->fabric_attr->prov_name = strdup(layered);
	OK(fi_getinfo(FI_VERSION(1, 17), host, port, FI_SOURCE, hints, &rdm_info));
	fi_freeinfo(hints);
	OK(fi_fabric(rdm_info->fabric_attr, &wide, NULL));
	OK(fi_domain(wide, rdm_info, &dom, NULL));
	for (int i = 0; i < 2; i++) {
		struct rdm *e = &ends[i];
		size_t len = sizeof(names[i]);

		OK(fi_cq_open(dom, &cq_attr, &e->cq, NULL));
		OK(fi_av_open(dom, &av_attr, &e->av, NULL));
		OK(fi_endpoint(dom, rdm_info, &e->ep, NULL));
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
}

static void close_rdm(void)
{
	for (int i = 0; i < 2; i++) {
		OK(fi_close(&ends[i].ep->fid));
		OK(fi_close(&ends[i].mr->fid));
		OK(fi_close(&ends[i].av->fid));
		OK(fi_close(&ends[i].cq->fid));
		free(ends[i].mem);
	}
	OK(fi_close(&dom->fid));
	OK(fi_close(&wide->fid));
	fi_freeinfo(rdm_info);
}

static void rdm(void)
{
	struct rdm *a = &ends[0], *b = &ends[1];
	struct fi_cq_tagged_entry got;
	uint64_t key, at, *target, one = 1;
	static const size_t sizes[] = { 0, 8, 4096, LEN / 2 };

	open_rdm(FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC);
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

	close_rdm();
}

/* Messages that arrive before they are asked for, in another order. */
static void rdm_unexpected(void)
{
	struct rdm *a = &ends[0], *b = &ends[1];
	struct fi_cq_tagged_entry got;

	open_rdm(FI_MSG | FI_TAGGED);
	for (uint64_t i = 0; i < 32; i++) {
		a->mem[i] = (uint8_t)i;
		POST(fi_tinject(a->ep, a->mem + i, 1, a->peer, 100 + i));
	}
	for (uint64_t i = 32; i-- > 0;) {
		POST(fi_trecv(b->ep, b->mem, 8, desc[1], FI_ADDR_UNSPEC, 100 + i, 0, b));
		OK(arrives(1, b, FI_RECV | FI_TAGGED, &got));
		CHECK(got.tag == 100 + i && got.len == 1 && b->mem[0] == i);
	}
	close_rdm();
}

/* Looks for a tagged message of a sender at end 1. Returns FI_ENOMSG if there is none. */
static int peek(fi_addr_t from, uint64_t tag, uint64_t flags, void *context,
		struct fi_cq_tagged_entry *got)
{
	struct fi_msg_tagged msg = { .addr = from, .tag = tag, .context = context };

	POST(fi_trecvmsg(ends[1].ep, &msg, FI_PEEK | flags));
	return arrives(1, context, FI_RECV | FI_TAGGED, got);
}

/* Receives of several messages each, of one sender alone, and of messages that a peek has found. */
static void rdm_receives(void)
{
	enum { TAG = 5 };
	struct rdm *a = &ends[0], *b = &ends[1];
	struct fi_cq_tagged_entry got;
	struct sockaddr_in own;
	struct fi_context2 found;
	struct iovec iov;
	size_t least = 0, part, len = sizeof(least);
	fi_addr_t self;
	int rc;

	open_rdm(FI_MSG | FI_TAGGED | FI_MULTI_RECV | FI_DIRECTED_RECV);
	/* One receive takes messages until less than the least space is left: five of its eight parts. */
	OK(fi_getopt(&b->ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, &len));
	CHECK(least && least <= LEN / 2);
	part = least / 4;
	iov = (struct iovec){ b->mem, 2 * least };
	struct fi_msg several = { .msg_iov = &iov, .desc = &desc[1], .iov_count = 1,
				  .addr = FI_ADDR_UNSPEC, .context = b };
	POST(fi_recvmsg(b->ep, &several, FI_MULTI_RECV));
	for (size_t i = 0; i < 5; i++) {
		fill(a->mem, part, (int)i);
		POST(fi_send(a->ep, a->mem, part, desc[0], a->peer, a));
		OK(arrives(0, a, FI_SEND | FI_MSG, &got));
		OK(arrives(1, b, FI_RECV | FI_MSG, &got));
		CHECK(got.buf == b->mem + i * part && got.len == part);
		CHECK(!memcmp(got.buf, a->mem, part));
		CHECK(i == 4 || !(got.flags & FI_MULTI_RECV));
	}
	/* The end of the receive may be a completion of its own. */
	if (!(got.flags & FI_MULTI_RECV))
		OK(arrives(1, b, FI_MULTI_RECV, &got));

	/* Two messages of one tag: the first one is that of the receiver itself. */
	len = sizeof(own);
	OK(fi_getname(&b->ep->fid, &own, &len));
	GIVES(1, fi_av_insert(b->av, &own, 1, &self, 0, NULL));
	POST(fi_trecv(b->ep, b->mem, part, desc[1], b->peer, TAG, 0, a));
	GIVES(FI_ENOMSG, peek(self, TAG, 0, &found, &got));
	fill(b->mem + part, 8, 1);
	POST(fi_tsend(b->ep, b->mem + part, 8, desc[1], self, TAG, b));
	OK(arrives(1, b, FI_SEND | FI_TAGGED, &got));
	do {
		rc = peek(self, TAG, 0, &found, &got);
	} while (rc == FI_ENOMSG);
	OK(rc);
	CHECK(got.len == 8 && got.tag == TAG);
	fill(a->mem, 16, 2);
	POST(fi_tsend(a->ep, a->mem, 16, desc[0], a->peer, TAG, a));
	OK(arrives(0, a, FI_SEND | FI_TAGGED, &got));
	OK(arrives(1, a, FI_RECV | FI_TAGGED, &got));
	CHECK(got.len == 16 && !memcmp(a->mem, b->mem, 16));

	/* A peek claims the other message, which no other receive gets then. */
	GIVES(FI_ENOMSG, peek(b->peer, TAG, FI_CLAIM, &found, &got));
	OK(peek(FI_ADDR_UNSPEC, TAG, FI_CLAIM, &found, &got));
	CHECK(got.len == 8 && got.tag == TAG);
	GIVES(FI_ENOMSG, peek(FI_ADDR_UNSPEC, TAG, 0, b, &got));
	iov = (struct iovec){ b->mem, part };
	struct fi_msg_tagged claim = { .msg_iov = &iov, .desc = &desc[1], .iov_count = 1,
				       .addr = self, .tag = TAG, .context = &found };
	POST(fi_trecvmsg(b->ep, &claim, FI_CLAIM));
	OK(arrives(1, &found, FI_RECV | FI_TAGGED, &got));
	CHECK(got.len == 8 && !memcmp(b->mem, b->mem + part, 8));
	close_rdm();
}
