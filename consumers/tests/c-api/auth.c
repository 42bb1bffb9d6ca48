// SPDX-License-Identifier: GPL-2.0
/* Tests of auth keys of endpoints, domains, memory and keys; and of grants. */
#include <linux/bvec.h>
#include <linux/cred.h>
#include <linux/delay.h>
#include <linux/minmax.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/uio.h>

#include <kfi_auth.h>

#include "tests.h"

#define BOTH	(KFI_REMOTE_READ | KFI_REMOTE_WRITE)

static const u8 ours[] = "the key of a job", other[] = "another one";

/* Sets the auth key in an endpoint's attributes. */
static bool name_key(struct test *t, struct kfi_ep_attr *attr, const u8 *key, size_t size)
{
	kfree(attr->auth_key);
	attr->auth_key = kmemdup(key, size, GFP_KERNEL);
	attr->auth_key_size = size;
	return EXPECT(t, attr->auth_key);
}

/* A listener under an auth key, and the former station. */
struct place {
	struct station was;
	bool open;
};

/* Replaces the station's listener until the end of the test. */
static bool listen_under(struct test *t, struct place *place, struct kfi_info *info)
{
	struct station *st = t->st;
	size_t len = sizeof(st->addr);

	place->was = *st;
	place->open = false;
	st->info = info;
	if (!EXPECT_EQ(t, kfi_eq_open(st->fabric, NULL, &st->eq, NULL, st), 0))
		return false;
	if (!EXPECT_EQ(t, kfi_passive_ep(st->fabric, info, &st->pep, st), 0)) {
		kfi_close(&st->eq->fid);
		return false;
	}
	place->open = true;
	return EXPECT_EQ(t, kfi_pep_bind(st->pep, &st->eq->fid, 0), 0) &&
	       EXPECT_EQ(t, kfi_listen(st->pep), 0) &&
	       EXPECT_EQ(t, kfi_getname(&st->pep->fid, &st->addr, &len), 0);
}

static void listen_no_more(struct test *t, struct place *place)
{
	struct station *st = t->st;

	if (place->open) {
		EXPECT_EQ(t, kfi_close(&st->pep->fid), 0);
		EXPECT_EQ(t, kfi_close(&st->eq->fid), 0);
	}
	st->info = place->was.info;
	st->eq = place->was.eq;
	st->pep = place->was.pep;
	st->addr = place->was.addr;
}

/* Writes by a key and returns the result. */
static int put(struct test *t, struct buf *from, u64 addr, u64 key)
{
	struct kfi_cq_tagged_entry entry;
	struct kfi_cq_err_entry error = {};
	ssize_t got;

	if (!EXPECT_EQ(t, kfi_write(t->a.ep, from->at, from->len, kfi_mr_desc(from->mr), 0, addr,
				    key, from), 0))
		return -EIO;
	got = next_entry(&t->a, &entry);
	if (got == 1)
		return 0;
	EXPECT_EQ(t, got, -KFI_EAVAIL);
	EXPECT_EQ(t, kfi_cq_readerr(t->a.cq, &error, 0), 1);
	return -error.err;
}

/* Registers memory under an auth key, over memory that another registration covers. */
static struct kfid_mr *shared(struct test *t, struct buf *buf, const u8 *key, size_t size, u64 flags)
{
	struct kvec iov = { buf->at, buf->len };
	struct kfi_mr_attr attr = {
		.type = KFI_KVEC,
		.mr_iov = &iov,
		.iov_count = 1,
		.access = BOTH,
		.context = t,
		.auth_key = (u8 *)key,
		.auth_key_size = size,
	};
	struct kfid_mr *mr = NULL;

	return EXPECT_EQ(t, kfi_mr_regattr(t->st->domain, &attr, flags, &mr), 0) ? mr : NULL;
}

/* Memory under the auth key can be accessed, and no other memory of the domain. */
static void reach(struct test *t)
{
	struct buf *from = buf_get(t, KMALLOC, 100, KFI_WRITE, 0);
	struct buf *to = buf_get(t, PAGES, PAGE_SIZE, BOTH, 0);
	struct kfid_key *key = NULL;
	struct kfid_mr *mr, *dynamic;

	if (!from || !to)
		return;
	fill(from->at, from->len, 3);
	mr = shared(t, to, ours, sizeof(ours), 0);
	dynamic = shared(t, to, other, sizeof(other), KFI_DYNAMIC_KEYS);
	if (mr && dynamic) {
		EXPECT_EQ(t, put(t, from, mr->iova, kfi_mr_key(mr)), 0);
		EXPECT(t, filled(to->at, from->len, 3));
		memset(to->at, 0, to->len);
		EXPECT_EQ(t, kfi_key_alloc_auth(dynamic, NULL, ours, KFI_AUTH_KEY_MAX + 1, 1, &key,
						t), -EINVAL);
		if (EXPECT_EQ(t, kfi_key_alloc_auth(dynamic, NULL, ours, sizeof(ours), 1, &key, t),
			      0)) {
			EXPECT_EQ(t, kfi_key_assign(key, 10, 100, BOTH, 0), 0);
			EXPECT_EQ(t, put(t, from, key->addr, key->key), 0);
			EXPECT(t, filled(to->at + 10, from->len, 3));
			EXPECT_EQ(t, kfi_close(&key->fid), 0);
		}
		memset(to->at, 0, to->len);
		/*
		 * The domain has no auth key, so this memory is for endpoints without one. The
		 * write ends the connection.
		 */
		EXPECT(t, put(t, from, to->mr->iova, kfi_mr_key(to->mr)) < 0);
		EXPECT(t, !memchr_inv(to->at, 0, to->len));
	}
	if (mr)
		EXPECT_EQ(t, kfi_close(&mr->fid), 0);
	if (dynamic)
		EXPECT_EQ(t, kfi_close(&dynamic->fid), 0);
}

/* Returns an object's maximum size of connection data. */
static size_t room(struct test *t, struct kfid *fid)
{
	size_t value = 0, len = sizeof(value);

	EXPECT_EQ(t, kfi_getopt(fid, KFI_OPT_ENDPOINT, KFI_OPT_CM_DATA_SIZE, &value, &len), 0);
	return value;
}

/* Connection data of this maximum size fits into a request; one more byte does not. */
static void connect_with_all(struct test *t)
{
	struct kfi_info *info = kfi_dupinfo(t->st->info), *request = NULL;
	u8 said[256];
	size_t fits;

	if (!EXPECT(t, info))
		return;
	fill(said, sizeof(said), 5);
	if (side_open(t, &t->a, info, 0)) {
		fits = room(t, &t->a.ep->fid);
		EXPECT_EQ(t, room(t, &t->st->pep->fid), fits);
		EXPECT(t, fits > 0 && fits < sizeof(said));
		EXPECT_EQ(t, kfi_connect(t->a.ep, &t->st->addr, said, fits + 1), -EINVAL);
		if (EXPECT_EQ(t, kfi_connect(t->a.ep, &t->st->addr, said, fits), 0))
			request = next_request(t);
		if (request) {
			fits = min(fits, sizeof(t->b.said));
			EXPECT(t, t->b.said_len >= fits && !memcmp(t->b.said, said, fits));
			EXPECT_EQ(t, kfi_reject(t->st->pep, request->handle, NULL, 0), 0);
		}
	}
	kfi_freeinfo(request);
	kfi_freeinfo(info);
	side_close(t, &t->a);
}

static void data_sizes(struct test *t)
{
	struct kfi_info *info = kfi_dupinfo(t->st->info);
	struct place place;

	connect_with_all(t);
	if (!EXPECT(t, info))
		return;
	if (name_key(t, info->ep_attr, ours, sizeof(ours))) {
		if (listen_under(t, &place, info))
			connect_with_all(t);
		listen_no_more(t, &place);
	}
	kfi_freeinfo(info);
}

static void of_endpoints(struct test *t)
{
	struct kfi_info *info = kfi_dupinfo(t->st->info);
	struct place place;

	if (!EXPECT(t, info))
		return;
	if (name_key(t, info->ep_attr, ours, sizeof(ours))) {
		/*
		 * The request has the auth key that the peer has proven, and is accepted with it.
		 */
		if (listen_under(t, &place, info) && pair_open(t, t->st->domain, 0))
			reach(t);
		pair_close(t);
		bufs_put(t);
		listen_no_more(t, &place);
	}
	kfi_freeinfo(info);
}

/* Objects opened on a domain without their own auth key have the domain's. */
static void of_a_domain(struct test *t)
{
	struct kfi_info *info = kfi_dupinfo(t->st->info);
	struct kfid_domain *domain;
	struct buf *from, *to;
	struct place place;

	if (!EXPECT(t, info))
		return;
	info->domain_attr->auth_key = kmemdup(ours, sizeof(ours), GFP_KERNEL);
	info->domain_attr->auth_key_size = sizeof(ours);
	if (EXPECT(t, info->domain_attr->auth_key) &&
	    EXPECT_EQ(t, kfi_domain(t->st->fabric, info, &domain, t), 0)) {
		if (listen_under(t, &place, info) && pair_open(t, domain, 0)) {
			from = buf_get_on(t, domain, KMALLOC, 100, KFI_WRITE, 0);
			to = buf_get_on(t, domain, KMALLOC, 100, BOTH, 0);
			if (from && to) {
				fill(from->at, from->len, 9);
				EXPECT_EQ(t, put(t, from, to->mr->iova, kfi_mr_key(to->mr)), 0);
				EXPECT(t, filled(to->at, to->len, 9));
			}
		}
		pair_close(t);
		bufs_put(t);
		listen_no_more(t, &place);
		EXPECT_EQ(t, kfi_close(&domain->fid), 0);
	}
	kfi_freeinfo(info);
}

/* A peer with another auth key, or without one, cannot connect. */
static void others(struct test *t)
{
	struct kfi_info *info = kfi_dupinfo(t->st->info), *asks = kfi_dupinfo(t->st->info);
	struct kfi_eq_err_entry error = {};
	struct kfi_eq_cm_entry entry;
	struct place place;
	int round;
	u32 event;

	if (!EXPECT(t, info) || !EXPECT(t, asks) ||
	    !name_key(t, info->ep_attr, ours, sizeof(ours))) {
		kfi_freeinfo(info);
		kfi_freeinfo(asks);
		return;
	}
	if (listen_under(t, &place, info)) {
		for (round = 0; round < 2; round++) {
			if (round && !name_key(t, asks->ep_attr, other, sizeof(other)))
				break;
			if (!side_open(t, &t->a, asks, 0) ||
			    !EXPECT_EQ(t, kfi_connect(t->a.ep, &t->st->addr, NULL, 0), 0))
				break;
			EXPECT_EQ(t, kfi_eq_sread(t->a.eq, &event, &entry, sizeof(entry), LIMIT_MS,
						  0), -KFI_EAVAIL);
			EXPECT_EQ(t, kfi_eq_readerr(t->a.eq, &error, 0), sizeof(error));
			EXPECT(t, error.err > 0);
			side_close(t, &t->a);
		}
		/* The refused peers cause no event. */
		EXPECT_EQ(t, kfi_eq_read(t->st->eq, &event, &entry, sizeof(entry), 0), -EAGAIN);
	}
	pair_close(t);
	listen_no_more(t, &place);
	kfi_freeinfo(info);
	kfi_freeinfo(asks);
}

/* A request can only be accepted with the auth key that the peer has proven. */
static void accepted(struct test *t)
{
	struct kfi_info *info = kfi_dupinfo(t->st->info), *request;
	struct place place;
	struct kfid_ep *ep;
	u8 one = 1;

	if (!EXPECT(t, info))
		return;
	info->ep_attr->auth_key_size = 4;
	EXPECT_EQ(t, kfi_endpoint(t->st->domain, info, &ep, NULL), -EINVAL);
	info->ep_attr->auth_key = &one;
	info->ep_attr->auth_key_size = KFI_AUTH_KEY_MAX + 1;
	EXPECT_EQ(t, kfi_endpoint(t->st->domain, info, &ep, NULL), -EINVAL);
	info->ep_attr->auth_key = NULL;
	if (name_key(t, info->ep_attr, ours, sizeof(ours))) {
		if (listen_under(t, &place, info) && side_open(t, &t->a, info, 0) &&
		    EXPECT_EQ(t, kfi_connect(t->a.ep, &t->st->addr, NULL, 0), 0)) {
			request = next_request(t);
			if (request && EXPECT_EQ(t, request->ep_attr->auth_key_size, sizeof(ours))) {
				EXPECT(t, !memcmp(request->ep_attr->auth_key, ours, sizeof(ours)));
				request->ep_attr->auth_key_size = 0;
				EXPECT_EQ(t, kfi_endpoint(t->st->domain, request, &ep, NULL),
					  -EKEYREJECTED);
				request->ep_attr->auth_key_size = sizeof(ours);
				if (side_open(t, &t->b, request, 0))
					pair_connect(t, request);
			}
			kfi_freeinfo(request);
		}
		pair_close(t);
		listen_no_more(t, &place);
	}
	kfi_freeinfo(info);
}

/* Grants are for programs; this only checks that they can be added and revoked. */
static void grants(struct test *t)
{
	struct kfi_grant_attr attr = {
		.auth_key = ours,
		.auth_key_size = sizeof(ours),
		.match = KFI_MATCH_UID,
		.rights = KFI_AUTH_EP | KFI_AUTH_KEYS,
		.uid = 12345,
		.max_keys = 3,
		.lifetime_ms = 600000,
	};
	u64 id = 0, next = 0;

	EXPECT_EQ(t, kfi_grant_add(&attr, &id), 0);
	EXPECT(t, id != 0);
	attr.match |= KFI_MATCH_PROCESS;
	EXPECT_EQ(t, kfi_grant_add(&attr, &next), -EINVAL);
	attr.process = task_tgid(current);
	EXPECT_EQ(t, kfi_grant_add(&attr, &next), 0);
	EXPECT(t, next != 0 && next != id);
	EXPECT_EQ(t, kfi_grant_limit(next, PAGE_SIZE, 1, 1), 0);
	EXPECT_EQ(t, kfi_grant_extend(next, 0), 0);
	EXPECT_EQ(t, kfi_grant_extend(id, 1), 0);
	msleep(20);
	EXPECT_EQ(t, kfi_grant_limit(id, 0, 0, 0), -ENOENT);
	EXPECT_EQ(t, kfi_grant_extend(id, 600000), -ENOENT);
	EXPECT_EQ(t, kfi_grant_revoke(next), 0);
	EXPECT_EQ(t, kfi_grant_revoke(next), -ENOENT);
	EXPECT_EQ(t, kfi_grant_revoke(id), -ENOENT);
	attr.match = KFI_MATCH_UID;
	EXPECT_EQ(t, kfi_grant_add(&attr, &next), -EINVAL);
	attr.process = NULL;
	attr.rights = 0;
	EXPECT_EQ(t, kfi_grant_add(&attr, &next), -EINVAL);
	attr.rights = KFI_AUTH_EP;
	attr.auth_key_size = 0;
	EXPECT_EQ(t, kfi_grant_add(&attr, &next), -EINVAL);
	/* Consumers in the kernel need no grant. */
	EXPECT(t, !kfi_auth_enforced());
}

const struct group auth_tests[] = {
	{ "connect_with_all_data_that_getopt_allows_fits", data_sizes, false },
	{ "auth_keys_of_endpoints", of_endpoints, false },
	{ "auth_key_of_a_domain", of_a_domain, false },
	{ "auth_keys_keep_others_out", others, false },
	{ "requests_tell_their_auth_key", accepted, false },
	{ "grants_come_and_go", grants, false },
	{}
};
