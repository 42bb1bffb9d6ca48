// SPDX-License-Identifier: GPL-2.0
/* Tests of keys: alloc, assign, revoke; of a domain, and endpoint-scoped ones. */
#include <linux/slab.h>
#include <linux/string.h>

#include "tests.h"

#define KEYS	16
#define BOTH	(KFI_REMOTE_READ | KFI_REMOTE_WRITE)

/* Writes a byte pattern by a key. Returns 0 or a negative errno. */
static int put(struct test *t, struct buf *from, const struct kfid_key *key, size_t len)
{
	struct kfi_cq_tagged_entry entry;
	struct kfi_cq_err_entry error = {};
	ssize_t got;

	if (!EXPECT_EQ(t, kfi_write(t->a.ep, from->at, len, kfi_mr_desc(from->mr), 0, key->addr,
				    key->key, from), 0))
		return -EIO;
	got = next_entry(&t->a, &entry);
	if (got == 1)
		return 0;
	EXPECT_EQ(t, got, -KFI_EAVAIL);
	EXPECT_EQ(t, kfi_cq_readerr(t->a.cq, &error, 0), 1);
	return -error.err;
}

static void one(struct test *t)
{
	struct buf *from = buf_get(t, KMALLOC, PAGE_SIZE, KFI_WRITE, 0);
	struct buf *to = buf_get(t, PAGES, 4 * PAGE_SIZE, BOTH, KFI_DYNAMIC_KEYS);
	struct kfid_key *key, old;

	if (!from || !to)
		return;
	fill(from->at, from->len, 1);
	EXPECT(t, kfi_mr_key(to->mr) == KFI_KEY_NOTAVAIL);
	EXPECT_EQ(t, kfi_key_alloc(from->mr, NULL, 1, &key, t), -EINVAL);
	EXPECT_EQ(t, kfi_key_alloc(to->mr, NULL, 0, &key, t), -EINVAL);
	if (!EXPECT_EQ(t, kfi_key_alloc(to->mr, NULL, 1, &key, t), 0))
		return;
	EXPECT(t, key->fid.context == t && key->key == KFI_KEY_NOTAVAIL);
	EXPECT_EQ(t, kfi_key_revoke(key), -EINVAL);
	EXPECT_EQ(t, kfi_key_assign(key, 0, 5 * PAGE_SIZE, BOTH, 0), -EINVAL);
	EXPECT_EQ(t, kfi_key_assign(key, 0, PAGE_SIZE, KFI_SEND, 0), -EINVAL);
	EXPECT_EQ(t, kfi_key_assign(key, 0, PAGE_SIZE, BOTH, KFI_MORE), -EINVAL);
	EXPECT_EQ(t, kfi_key_assign(key, 100, 200, KFI_REMOTE_WRITE, 0), 0);
	EXPECT(t, key->key != KFI_KEY_NOTAVAIL);
	EXPECT_EQ(t, kfi_key_assign(key, 0, PAGE_SIZE, BOTH, 0), -EBUSY);
	EXPECT_EQ(t, kfi_close(&to->mr->fid), -EBUSY);
	EXPECT_EQ(t, put(t, from, key, 200), 0);
	EXPECT(t, filled(to->at + 100, 200, 1));
	EXPECT(t, !to->at[99] && !to->at[300]);
	old = *key;
	EXPECT_EQ(t, kfi_key_revoke(key), 0);
	EXPECT(t, key->key == KFI_KEY_NOTAVAIL);
	EXPECT_EQ(t, kfi_key_assign(key, 100, 200, KFI_REMOTE_WRITE, 0), 0);
	EXPECT(t, key->key != old.key);
	memset(to->at, 0, to->len);
	/* A revoked key stays revoked when its slot has another key. */
	EXPECT(t, put(t, from, &old, 200) < 0);
	EXPECT(t, !memchr_inv(to->at, 0, to->len));
	EXPECT_EQ(t, kfi_close(&key->fid), 0);
}

/* A single-use key, and a slot that is assigned again without a revoke. */
static void for_one_use(struct test *t)
{
	struct buf *from = buf_get(t, KMALLOC, PAGE_SIZE, KFI_WRITE, 0);
	struct buf *to = buf_get(t, PAGES, PAGE_SIZE, BOTH, KFI_DYNAMIC_KEYS);
	struct kfid_key *key, old;
	int i;

	if (!from || !to || !EXPECT_EQ(t, kfi_key_alloc(to->mr, NULL, 1, &key, t), 0))
		return;
	if (t->st->info->caps & KFI_SINGLE_USE_KEYS) {
		for (i = 1; i < 4; i++) {
			old = *key;
			fill(from->at, 200, i);
			EXPECT_EQ(t, kfi_key_assign(key, 0, 200, BOTH, KFI_KEY_SINGLE_USE), 0);
			EXPECT(t, key->key != KFI_KEY_NOTAVAIL && key->key != old.key);
			EXPECT_EQ(t, kfi_key_assign(key, 0, 200, BOTH, KFI_KEY_SINGLE_USE),
				  -EBUSY);
			EXPECT_EQ(t, put(t, from, key, 200), 0);
			EXPECT(t, filled(to->at, 200, i));
		}
		memset(to->at, 0, to->len);
		EXPECT(t, put(t, from, key, 200) < 0);
		EXPECT(t, !memchr_inv(to->at, 0, to->len));
	} else {
		EXPECT_EQ(t, kfi_key_assign(key, 0, 200, BOTH, KFI_KEY_SINGLE_USE), -EOPNOTSUPP);
		EXPECT(t, key->key == KFI_KEY_NOTAVAIL);
	}
	EXPECT_EQ(t, kfi_close(&key->fid), 0);
}

static void many(struct test *t)
{
	struct buf *from = buf_get(t, KMALLOC, PAGE_SIZE, KFI_WRITE, 0);
	struct buf *to = buf_get(t, VMALLOC, KEYS * PAGE_SIZE, BOTH, KFI_DYNAMIC_KEYS);
	struct kfi_key_assignment batch[KEYS];
	struct kfi_key_failures failures = { .cq = t->a.cq, .context = &failures };
	struct kfi_cq_tagged_entry entry;
	struct kfid_key *keys[KEYS];
	size_t done = 77;
	int i, round;

	if (!from || !to || !EXPECT_EQ(t, kfi_key_alloc(to->mr, NULL, KEYS, keys, t), 0))
		return;
	for (i = 0; i < KEYS; i++)
		batch[i] = (struct kfi_key_assignment){ keys[i], i * PAGE_SIZE, PAGE_SIZE, BOTH };
	for (round = 0; round < 2; round++) {
		u64 flags = round ? KFI_KEY_ORDERED : 0;

		memset(to->at, 0, to->len);
		EXPECT_EQ(t, kfi_key_assign_many(batch, KEYS, flags, round ? &failures : NULL, &done),
			  0);
		EXPECT_EQ(t, done, KEYS);
		for (i = 0; i < KEYS; i++) {
			fill(from->at, PAGE_SIZE, i);
			EXPECT_EQ(t, put(t, from, keys[i], PAGE_SIZE), 0);
			EXPECT(t, filled(to->at + i * PAGE_SIZE, PAGE_SIZE, i));
		}
		EXPECT_EQ(t, kfi_key_revoke_many(keys, KEYS, &done), 0);
		EXPECT_EQ(t, done, KEYS);
		EXPECT_EQ(t, kfi_key_revoke_many(keys, KEYS, &done), 0);
		EXPECT_EQ(t, done, 0);
	}
	/* The first refused entry ends the batch. */
	batch[2].len = to->len + 1;
	EXPECT_EQ(t, kfi_key_assign_many(batch, KEYS, 0, NULL, &done), -EINVAL);
	EXPECT_EQ(t, done, 2);
	EXPECT(t, batch[1].key->key != KFI_KEY_NOTAVAIL);
	EXPECT(t, batch[2].key->key == KFI_KEY_NOTAVAIL);
	EXPECT_EQ(t, kfi_cq_read(t->a.cq, &entry, 1), -EAGAIN);
	for (i = 0; i < KEYS; i++)
		EXPECT_EQ(t, kfi_close(&keys[i]->fid), 0);
}

/* Endpoint-scoped keys, and memory bound to an endpoint. */
static void of_an_endpoint(struct test *t)
{
	struct kfi_info *info = kfi_dupinfo(t->st->info);
	struct kfid_domain *domain;
	struct buf *from, *to;
	struct kfid_mr *mr;

	if (!EXPECT(t, info))
		return;
	info->domain_attr->mr_mode |= KFI_MR_ENDPOINT;
	if (EXPECT_EQ(t, kfi_domain(t->st->fabric, info, &domain, t), 0)) {
		if (pair_open(t, domain, 0)) {
			to = buf_get_on(t, domain, PAGES, PAGE_SIZE, BOTH, 0);
			from = buf_get_on(t, domain, PAGES, PAGE_SIZE, KFI_WRITE, 0);
			if (to && from) {
				struct kfid_key shown;

				mr = to->mr;
				EXPECT(t, mr->key == KFI_KEY_NOTAVAIL);
				EXPECT_EQ(t, kfi_mr_enable(mr), -EINVAL);
				EXPECT_EQ(t, kfi_mr_bind(mr, &t->a.cq->fid, 0), -EINVAL);
				EXPECT_EQ(t, kfi_mr_bind(mr, &t->b.ep->fid, 0), 0);
				EXPECT_EQ(t, kfi_mr_enable(mr), 0);
				EXPECT_EQ(t, kfi_mr_enable(mr), -EINVAL);
				EXPECT(t, mr->key != KFI_KEY_NOTAVAIL);
				EXPECT_EQ(t, kfi_mr_bind(from->mr, &t->a.ep->fid, 0), 0);
				EXPECT_EQ(t, kfi_mr_enable(from->mr), 0);
				fill(from->at, PAGE_SIZE, 4);
				shown.key = mr->key;
				shown.addr = mr->iova;
				EXPECT_EQ(t, put(t, from, &shown, PAGE_SIZE), 0);
				EXPECT(t, filled(to->at, PAGE_SIZE, 4));
			}
		}
		pair_close(t);
		bufs_put(t);
		EXPECT_EQ(t, kfi_close(&domain->fid), 0);
	}
	kfi_freeinfo(info);
}

const struct group key_tests[] = {
	{ "key_of_a_part", one, true },
	{ "key_for_one_use", for_one_use, true },
	{ "keys_in_batches", many, true },
	{ "keys_of_an_endpoint", of_an_endpoint, false },
	{}
};
