// SPDX-License-Identifier: GPL-2.0
/* Tests of connections: connect, refuse, end. */
#include <linux/in.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "tests.h"

static void connect_and_shut_down(struct test *t)
{
	u32 event;

	EXPECT_EQ(t, kfi_connect(t->a.ep, &t->st->addr, NULL, 0), -EINVAL);
	EXPECT_EQ(t, kfi_shutdown(t->a.ep, 1), -EINVAL);
	EXPECT_EQ(t, kfi_shutdown(t->a.ep, 0), 0);
	EXPECT_EQ(t, side_event(&t->a, &event), 0);
	EXPECT_EQ(t, event, KFI_SHUTDOWN);
	EXPECT_EQ(t, side_event(&t->b, &event), 0);
	EXPECT_EQ(t, event, KFI_SHUTDOWN);
	EXPECT_EQ(t, kfi_inject(t->a.ep, "x", 1, 0), -ENOTCONN);
}

static void names(struct test *t)
{
	struct sockaddr_in own = {}, peer = {}, *listening = (struct sockaddr_in *)&t->st->addr;
	size_t len = sizeof(peer);

	EXPECT(t, listening->sin_port != 0);
	EXPECT_EQ(t, kfi_getpeer(t->a.ep, &peer, &len), 0);
	EXPECT_EQ(t, len, sizeof(peer));
	EXPECT(t, peer.sin_port == listening->sin_port);
	EXPECT(t, peer.sin_addr.s_addr == listening->sin_addr.s_addr);
	EXPECT_EQ(t, kfi_getname(&t->b.ep->fid, &own, &len), 0);
	EXPECT(t, own.sin_addr.s_addr == listening->sin_addr.s_addr);
	len = 4;
	EXPECT_EQ(t, kfi_getname(&t->b.ep->fid, &own, &len), -KFI_ETOOSMALL);
	EXPECT_EQ(t, len, sizeof(own));
	EXPECT_EQ(t, kfi_setname(&t->b.ep->fid, &own, len), -EOPNOTSUPP);
	EXPECT_EQ(t, kfi_getname(&t->b.ep->fid, &own, NULL), -EINVAL);
	EXPECT_EQ(t, kfi_getpeer(t->b.ep, NULL, &len), -KFI_ETOOSMALL);
	EXPECT_EQ(t, len, sizeof(own));
}

/* An address that is shorter than its family's, or missing, is refused. */
static void lengths(struct test *t)
{
	struct sockaddr_in *addr = t->st->info->src_addr, back;
	struct kfid_pep *pep;
	size_t len;

	if (!EXPECT_EQ(t, kfi_passive_ep(t->st->fabric, t->st->info, &pep, t), 0))
		return;
	for (len = 0; len < sizeof(*addr); len++)
		EXPECT_EQ(t, kfi_setname(&pep->fid, addr, len), -EINVAL);
	EXPECT_EQ(t, kfi_setname(&pep->fid, NULL, sizeof(*addr)), -EINVAL);
	EXPECT_EQ(t, kfi_setname(&pep->fid, addr, sizeof(*addr)), 0);
	EXPECT_EQ(t, kfi_setname(&pep->fid, addr, SIZE_MAX), 0);
	len = sizeof(back);
	EXPECT_EQ(t, kfi_getname(&pep->fid, &back, &len), 0);
	EXPECT(t, back.sin_addr.s_addr == addr->sin_addr.s_addr);
	EXPECT_EQ(t, kfi_close(&pep->fid), 0);
}

/* Opens a, which then connects to an address. */
static bool ask(struct test *t, const void *addr)
{
	struct kfi_info *info = kfi_dupinfo(t->st->info);
	bool asked;

	if (!EXPECT(t, info))
		return false;
	asked = side_open(t, &t->a, info, 0) && EXPECT_EQ(t, kfi_connect(t->a.ep, addr, NULL, 0), 0);
	kfi_freeinfo(info);
	return asked;
}

/* Checks that a's connect fails with this error. */
static bool told(struct test *t, int err, const void *said, size_t len)
{
	struct kfi_eq_err_entry error = {};
	struct kfi_eq_cm_entry entry;
	u32 event;

	if (!EXPECT_EQ(t, kfi_eq_sread(t->a.eq, &event, &entry, sizeof(entry), LIMIT_MS, 0),
		       -KFI_EAVAIL))
		return false;
	EXPECT_EQ(t, kfi_eq_read(t->a.eq, &event, &entry, sizeof(entry), 0), -KFI_EAVAIL);
	if (!EXPECT_EQ(t, kfi_eq_readerr(t->a.eq, &error, 0), sizeof(error)))
		return false;
	EXPECT_EQ(t, kfi_eq_readerr(t->a.eq, &error, 0), -EAGAIN);
	EXPECT(t, error.fid == &t->a.ep->fid && error.context == &t->a);
	EXPECT_EQ(t, error.err, err);
	EXPECT(t, !error.err_data == !error.err_data_size);
	return EXPECT(t, error.err_data_size >= len && !memcmp(error.err_data, said, len));
}

static void reject(struct test *t)
{
	struct kfi_info *request;
	struct kfid_ep *ep;

	if (!ask(t, &t->st->addr))
		return;
	request = next_request(t);
	if (!request)
		return;
	EXPECT_EQ(t, kfi_reject(t->st->pep, &t->a.ep->fid, "no", 2), -EINVAL);
	EXPECT_EQ(t, kfi_reject(t->st->pep, request->handle, "no", 2), 0);
	EXPECT_EQ(t, kfi_reject(t->st->pep, request->handle, "no", 2), -EINVAL);
	EXPECT_EQ(t, kfi_endpoint(t->st->domain, request, &ep, NULL), -EINVAL);
	told(t, ECONNREFUSED, "no", 2);
	kfi_freeinfo(request);
}

/* The value of an answered request does not name another request. */
static void stale_request(struct test *t)
{
	struct kfi_info *request;
	kfid_t first;

	if (!ask(t, &t->st->addr))
		return;
	request = next_request(t);
	if (!request)
		return;
	first = request->handle;
	EXPECT_EQ(t, kfi_reject(t->st->pep, first, NULL, 0), 0);
	kfi_freeinfo(request);
	told(t, ECONNREFUSED, "", 0);
	side_close(t, &t->a);
	if (!ask(t, &t->st->addr))
		return;
	request = next_request(t);
	if (!request)
		return;
	EXPECT(t, request->handle != first);
	EXPECT_EQ(t, kfi_reject(t->st->pep, first, NULL, 0), -EINVAL);
	if (side_open(t, &t->b, request, 0))
		pair_connect(t, request);
	kfi_freeinfo(request);
}

static void nobody_listens(struct test *t)
{
	struct sockaddr_in addr;

	memcpy(&addr, &t->st->addr, sizeof(addr));
	addr.sin_port = cpu_to_be16(9);
	if (ask(t, &addr))
		told(t, ECONNREFUSED, "", 0);
}

/* The close of a passive endpoint refuses a request that was read, and makes its info stale. */
static void listener_closes(struct test *t)
{
	struct kfi_info *info = kfi_dupinfo(t->st->info), *request = NULL;
	struct kfid_pep *own, *pep = t->st->pep;
	struct kfid_eq *eq = t->st->eq;
	struct sockaddr_in6 addr;
	size_t len = sizeof(addr);
	struct kfid_ep *ep;

	if (!EXPECT(t, info))
		return;
	if (EXPECT_EQ(t, kfi_eq_open(t->st->fabric, NULL, &t->st->eq, NULL, t), 0)) {
		if (EXPECT_EQ(t, kfi_passive_ep(t->st->fabric, info, &own, t), 0)) {
			t->st->pep = own;
			EXPECT_EQ(t, kfi_listen(own), -KFI_ENOEQ);
			EXPECT_EQ(t, kfi_pep_bind(own, &t->st->domain->fid, 0), -EINVAL);
			EXPECT_EQ(t, kfi_pep_bind(own, &t->st->eq->fid, 0), 0);
			EXPECT_EQ(t, kfi_listen(own), 0);
			EXPECT_EQ(t, kfi_listen(own), -EINVAL);
			EXPECT_EQ(t, kfi_getname(&own->fid, &addr, &len), 0);
			if (ask(t, &addr))
				request = next_request(t);
			EXPECT_EQ(t, kfi_close(&own->fid), 0);
		}
		EXPECT_EQ(t, kfi_close(&t->st->eq->fid), 0);
	}
	t->st->pep = pep;
	t->st->eq = eq;
	if (request) {
		EXPECT_EQ(t, kfi_endpoint(t->st->domain, request, &ep, NULL), -EINVAL);
		told(t, ECONNREFUSED, "", 0);
	}
	kfi_freeinfo(request);
	kfi_freeinfo(info);
}

/* A request can be accepted on a fabric opened later, but not on one of another provider. */
static void fabric_anew(struct test *t)
{
	struct kfi_fabric_attr other = {};
	struct kfid_fabric *fabric = NULL, *first = t->st->fabric, *strange = NULL;
	struct kfid_domain *domain = NULL, *foreign;
	struct kfi_info *request, *list = NULL;
	char shm[] = "kshm", verbs[] = "kverbs";
	struct kfid_ep *ep;

	if (!ask(t, &t->st->addr))
		return;
	request = next_request(t);
	if (!request)
		return;
	other.prov_name = strcmp(request->fabric_attr->prov_name, shm) ? shm : verbs;
	if (!kfi_fabric(&other, &strange, NULL) &&
	    !kfi_getinfo(0, NULL, NULL, 0, NULL, &list)) {
		struct kfi_info *one = list;

		while (one && strcmp(one->fabric_attr->prov_name, other.prov_name))
			one = one->next;
		if (one && !kfi_domain(strange, one, &foreign, NULL)) {
			EXPECT_EQ(t, kfi_endpoint(foreign, request, &ep, NULL), -EINVAL);
			EXPECT_EQ(t, kfi_close(&foreign->fid), 0);
		}
	}
	kfi_freeinfo(list);
	if (strange)
		EXPECT_EQ(t, kfi_close(&strange->fid), 0);
	if (EXPECT_EQ(t, kfi_fabric(request->fabric_attr, &fabric, t), 0) &&
	    EXPECT_EQ(t, kfi_domain(fabric, request, &domain, t), 0)) {
		/* Queues of this side are on its own fabric. */
		request->domain_attr->domain = domain;
		t->st->fabric = fabric;
		if (side_open(t, &t->b, request, 0))
			pair_connect(t, request);
		t->st->fabric = first;
	}
	pair_close(t);
	if (domain)
		EXPECT_EQ(t, kfi_close(&domain->fid), 0);
	if (fabric)
		EXPECT_EQ(t, kfi_close(&fabric->fid), 0);
	kfi_freeinfo(request);
}

static void half_bound(struct test *t)
{
	struct kfid_ep *ep;
	size_t value = 0, len = sizeof(value);
	bool opened;

	/* The maximum number of contexts of a scalable endpoint, which this endpoint is not. */
	t->st->info->ep_attr->tx_ctx_cnt = SIZE_MAX;
	EXPECT_EQ(t, kfi_endpoint(t->st->domain, t->st->info, &ep, NULL), -EINVAL);
	t->st->info->ep_attr->tx_ctx_cnt = 4;
	opened = EXPECT_EQ(t, kfi_endpoint(t->st->domain, t->st->info, &ep, NULL), 0);
	t->st->info->ep_attr->tx_ctx_cnt = 1;
	if (!opened)
		return;
	EXPECT_EQ(t, kfi_enable(ep), -EINVAL);
	EXPECT_EQ(t, kfi_connect(ep, &t->st->addr, NULL, 0), -EINVAL);
	EXPECT_EQ(t, kfi_ep_bind(ep, &t->st->domain->fid, 0), -EINVAL);
	EXPECT_EQ(t, kfi_getopt(&ep->fid, KFI_OPT_ENDPOINT, KFI_OPT_CM_DATA_SIZE, &value, &len), 0);
	EXPECT(t, value > 0);
	EXPECT_EQ(t, kfi_getopt(&ep->fid, KFI_OPT_ENDPOINT, KFI_OPT_CM_DATA_SIZE, NULL, &len),
		  -EINVAL);
	EXPECT_EQ(t, kfi_getopt(&ep->fid, KFI_OPT_ENDPOINT, KFI_OPT_CM_DATA_SIZE, &value, NULL),
		  -EINVAL);
	EXPECT_EQ(t, kfi_getopt(&ep->fid, KFI_OPT_ENDPOINT, KFI_OPT_MIN_MULTI_RECV, &value, &len),
		  -ENOPROTOOPT);
	EXPECT_EQ(t, kfi_setopt(&ep->fid, KFI_OPT_ENDPOINT, KFI_OPT_MIN_MULTI_RECV, &value, len),
		  -ENOPROTOOPT);
	EXPECT_EQ(t, kfi_close(&ep->fid), 0);
}

const struct group connection_tests[] = {
	{ "connect_and_shut_down", connect_and_shut_down, true },
	{ "names_of_both_sides", names, true },
	{ "setname_with_a_short_address_is_refused", lengths, false },
	{ "request_with_the_fabric_opened_anew_is_accepted", fabric_anew, false },
	{ "reject_with_data", reject, false },
	{ "stale_request", stale_request, false },
	{ "nobody_listens", nobody_listens, false },
	{ "listener_closes", listener_closes, false },
	{ "half_bound", half_bound, false },
	{}
};
