// SPDX-License-Identifier: MIT OR Apache-2.0
/* Cases of fi_cases.c: the end of objects, also in a forked child. */
#include <malloc.h>

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
	/* ofi_rxm posts to an endpoint that it has just closed. */
	struct fid_ep *closed = a.ep;
	OK(fi_close(&closed->fid));
	a.ep = NULL;
	GIVES(-FI_ENOTCONN, fi_recv(closed, a.mem, 8, fi_mr_desc(a.mr), 0, &a));
	GIVES(-FI_ENOTCONN, fi_send(closed, a.mem, 8, fi_mr_desc(a.mr), 0, &a));
	unpair(&a, &b);
	/* What an endpoint lacks is named. */
	OK(fi_endpoint(domain, info, &a.ep, NULL));
	GIVES(-FI_ENOEQ, fi_enable(a.ep));
	eq = open_eq();
	OK(fi_ep_bind(a.ep, &eq->fid, 0));
	GIVES(-FI_ENOCQ, fi_enable(a.ep));
	OK(fi_close(&a.ep->fid));
	/* A kind of operations without directions needs both sides. */
	static const uint64_t kinds[] = { FI_MSG, FI_RMA, FI_MSG | FI_SEND };
	struct fi_info *only = fi_dupinfo(info);
	struct fid_cq *cq = open_cq();

	for (int i = 0; i < 3; i++) {
		only->caps = kinds[i];
		OK(fi_endpoint(domain, only, &a.ep, NULL));
		OK(fi_ep_bind(a.ep, &eq->fid, 0));
		OK(fi_ep_bind(a.ep, &cq->fid, FI_TRANSMIT));
		GIVES(i < 2 ? -FI_ENOCQ : 0, fi_enable(a.ep));
		OK(fi_close(&a.ep->fid));
	}
	fi_freeinfo(only);
	OK(fi_close(&cq->fid));
	OK(fi_close(&eq->fid));
}

/* Closes endpoints of two queues, of which the program reads only that of the receives. Returns the bytes
 * that the program has allocated. */
static size_t close_many(struct fid_cq *tx, struct fid_cq *rx, int count)
{
	struct fi_cq_data_entry got;
	struct fid_ep *ep;

	for (int i = 0; i < count; i++) {
		OK(fi_endpoint(domain, info, &ep, NULL));
		OK(fi_ep_bind(ep, &tx->fid, FI_TRANSMIT | FI_SELECTIVE_COMPLETION));
		OK(fi_ep_bind(ep, &rx->fid, FI_RECV));
		OK(fi_close(&ep->fid));
		GIVES(-FI_EAGAIN, fi_cq_read(rx, &got, 1));
	}
	return mallinfo2().uordblks;
}

/* The memory of closed endpoints is freed although a queue is never read. */
static void unread_queue(void)
{
	struct fid_cq *tx = open_cq(), *rx = open_cq();
	size_t before = close_many(tx, rx, 600), after = close_many(tx, rx, 1000);

	/* An endpoint has more than 256 bytes. */
	CHECK(after < before + 1000 * 128);
	OK(fi_close(&tx->fid));
	OK(fi_close(&rx->fid));
}

/* A child calls whatever it has of its parent, whose objects stay as they are. */
static void in_child(struct end *a)
{
	struct fi_cq_data_entry got;
	struct fid_fabric *own;

	GIVES(-FI_EOPBADSTATE, fi_send(a->ep, a->mem, 8, fi_mr_desc(a->mr), 0, a));
	GIVES(-FI_EOPBADSTATE, fi_cq_read(a->cq, &got, 1));
	GIVES(-FI_EOPBADSTATE, fi_shutdown(a->ep, 0));
	CHECK(fi_cq_strerror(a->cq, 1, NULL, NULL, 0));
	OK(fi_close(&a->ep->fid));
	OK(fi_close(&a->mr->fid));
	OK(fi_close(&a->cq->fid));
	OK(fi_close(&a->eq->fid));
	OK(fi_close(&domain->fid));
	OK(fi_close(&fabric->fid));
	/* Objects of its own work. */
	OK(fi_fabric(info->fabric_attr, &own, NULL));
	fabric = own;
	OK(fi_domain(fabric, info, &domain, NULL));
	OK(fi_close(&open_cq()->fid));
	OK(fi_close(&domain->fid));
	OK(fi_close(&own->fid));
	_exit(0);
}

static void forked(void)
{
	struct fi_cq_data_entry got;
	struct end a, b;
	int status;
	pid_t pid;

	pair(&a, &b);
	OK(fi_recv(b.ep, b.mem, 8, fi_mr_desc(b.mr), 0, &b));
	OK(fi_send(a.ep, a.mem, 8, fi_mr_desc(a.mr), 0, &a));
	CHECK(polled(&b, &a).len == 8);
	/* The completion of the send is left for the parent. */
	pid = fork();
	CHECK(pid >= 0);
	if (!pid)
		in_child(&a);
	GIVES(pid, waitpid(pid, &status, 0));
	GIVES(0, status);
	polled(&a, &b);
	OK(fi_recv(b.ep, b.mem, 8, fi_mr_desc(b.mr), 0, &b));
	OK(fi_send(a.ep, a.mem, 8, fi_mr_desc(a.mr), 0, &a));
	CHECK(polled(&b, &a).len == 8);
	polled(&a, &b);
	GIVES(-FI_EAGAIN, fi_cq_read(a.cq, &got, 1));
	unpair(&a, &b);
}
