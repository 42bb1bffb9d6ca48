// SPDX-License-Identifier: GPL-2.0
/* Tests of memory of every kind, and its registration. */
#include <linux/bvec.h>
#include <linux/mm.h>
#include <linux/scatterlist.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/uio.h>
#include <linux/vmalloc.h>

#include "tests.h"

static u8 *take(enum memory kind, size_t len)
{
	switch (kind) {
	case KMALLOC:
		return kzalloc(len, GFP_KERNEL);
	case VMALLOC:
		return vzalloc(len);
	default:
		return (u8 *)__get_free_pages(GFP_KERNEL | __GFP_ZERO, get_order(len));
	}
}

static void give(enum memory kind, u8 *at, size_t len)
{
	switch (kind) {
	case KMALLOC:
		kfree(at);
		break;
	case VMALLOC:
		vfree(at);
		break;
	default:
		free_pages((unsigned long)at, get_order(len));
	}
}

struct buf *buf_get_on(struct test *t, struct kfid_domain *domain, enum memory kind, size_t len,
		       u64 access, u64 flags)
{
	struct buf *buf = kzalloc_obj(*buf);

	if (!EXPECT(t, buf))
		return NULL;
	buf->kind = kind;
	buf->len = len;
	buf->at = take(kind, len);
	list_add(&buf->list, &t->bufs);
	if (!EXPECT(t, buf->at) ||
	    !EXPECT_EQ(t, kfi_mr_reg(domain, buf->at, len, access, 0, 0, flags, &buf->mr, buf), 0))
		return NULL;
	return buf;
}

/* Returns a registered buffer, which is freed after the test. NULL: the test has failed. */
struct buf *buf_get(struct test *t, enum memory kind, size_t len, u64 access, u64 flags)
{
	return buf_get_on(t, t->st->domain, kind, len, access, flags);
}

void bufs_put(struct test *t)
{
	struct buf *buf, *next;

	list_for_each_entry_safe(buf, next, &t->bufs, list) {
		if (buf->mr)
			EXPECT_EQ(t, kfi_close(&buf->mr->fid), 0);
		give(buf->kind, buf->at, buf->len);
		kfree(buf);
	}
	INIT_LIST_HEAD(&t->bufs);
}

void fill(void *at, size_t len, u8 seed)
{
	u8 *byte = at;
	size_t i;

	for (i = 0; i < len; i++)
		byte[i] = (u8)(seed + i * 7 + (i >> 8));
}

bool filled(const void *at, size_t len, u8 seed)
{
	const u8 *byte = at;
	size_t i;

	for (i = 0; i < len; i++)
		if (byte[i] != (u8)(seed + i * 7 + (i >> 8)))
			return false;
	return true;
}

/* Sends from memory of each kind into memory of each kind. */
static void sorts(struct test *t)
{
	static const enum memory kinds[] = { KMALLOC, VMALLOC, PAGES };
	size_t len = 3 * PAGE_SIZE + 100;
	int i, j;

	for (i = 0; i < ARRAY_SIZE(kinds); i++) {
		for (j = 0; j < ARRAY_SIZE(kinds); j++) {
			struct buf *from = buf_get(t, kinds[i], len, KFI_SEND, 0);
			struct buf *to = buf_get(t, kinds[j], len, KFI_RECV, 0);
			u8 seed = i * 16 + j;

			if (!from || !to)
				return;
			fill(from->at, len, seed);
			EXPECT_EQ(t, kfi_recv(t->b.ep, to->at, len, kfi_mr_desc(to->mr), 0, to), 0);
			EXPECT_EQ(t, kfi_send(t->a.ep, from->at, len, kfi_mr_desc(from->mr), 0,
					      from), 0);
			completed(t, &t->a, from, KFI_MSG | KFI_SEND, len);
			completed(t, &t->b, to, KFI_MSG | KFI_RECV, len);
			EXPECT(t, filled(to->at, len, seed));
		}
	}
}

static int reg(struct test *t, const void *at, size_t len, u64 access, u64 offset, u64 flags)
{
	struct kfid_mr *mr;
	int err = kfi_mr_reg(t->st->domain, at, len, access, offset, 0, flags, &mr, NULL);

	return err ?: kfi_close(&mr->fid);
}

static void refused(struct test *t)
{
	struct buf *buf = buf_get(t, PAGES, 2 * PAGE_SIZE, KFI_SEND, 0);
	struct kfid_mr *mr;
	struct kvec gap[2];

	if (!buf)
		return;
	EXPECT_EQ(t, reg(t, buf->at, 10, KFI_SEND, 0, 0), 0);
	EXPECT_EQ(t, reg(t, buf->at, 0, KFI_SEND, 0, 0), -EINVAL);
	EXPECT_EQ(t, reg(t, buf->at, 10, 0, 0, 0), -EINVAL);
	EXPECT_EQ(t, reg(t, buf->at, 10, KFI_SEND, 1, 0), -EINVAL);
	EXPECT_EQ(t, reg(t, buf->at, 10, KFI_SEND, 0, KFI_RMA_EVENT), -EINVAL);
	EXPECT_EQ(t, reg(t, NULL, 10, KFI_SEND, 0, 0), -EFAULT);
	EXPECT_EQ(t, reg(t, (void *)PAGE_SIZE, 10, KFI_SEND, 0, 0), -EFAULT);
	gap[0] = (struct kvec){ buf->at, 100 };
	gap[1] = (struct kvec){ buf->at + PAGE_SIZE, 100 };
	EXPECT_EQ(t, kfi_mr_regv(t->st->domain, gap, 2, KFI_SEND, 0, 0, 0, &mr, NULL), -EINVAL);
	EXPECT_EQ(t, kfi_mr_regv(t->st->domain, gap, 0, KFI_SEND, 0, 0, 0, &mr, NULL), -EINVAL);
}

/* Pieces that are contiguous in the registration, but not in memory. */
static void pieces(struct test *t)
{
	struct buf *buf = buf_get(t, PAGES, 4 * PAGE_SIZE, KFI_SEND, 0);
	struct buf *to = buf_get(t, PAGES, 4 * PAGE_SIZE, KFI_RECV, 0);
	struct kfi_mr_attr attr = { .access = KFI_SEND };
	struct scatterlist sgl[2];
	struct kfid_mr *mr[4] = {};
	struct bio_vec bv[2];
	struct kvec kv[2];
	int i;

	if (!buf || !to)
		return;
	fill(buf->at, buf->len, 3);
	/* The third page, then a part of the first. */
	kv[0] = (struct kvec){ buf->at + 2 * PAGE_SIZE, PAGE_SIZE };
	kv[1] = (struct kvec){ buf->at, 500 };
	sg_init_table(sgl, 2);
	for (i = 0; i < 2; i++) {
		bvec_set_virt(&bv[i], kv[i].iov_base, kv[i].iov_len);
		sg_set_buf(&sgl[i], kv[i].iov_base, kv[i].iov_len);
	}
	EXPECT_EQ(t, kfi_mr_regv(t->st->domain, kv, 2, KFI_SEND, 0, 0, 0, &mr[0], NULL), 0);
	EXPECT_EQ(t, kfi_mr_regbv(t->st->domain, bv, 2, KFI_SEND, 0, 0, 0, &mr[1], NULL), 0);
	EXPECT_EQ(t, kfi_mr_regsgl(t->st->domain, sgl, 2, KFI_SEND, 0, 0, 0, &mr[2], NULL), 0);
	attr.type = KFI_SGL;
	attr.mr_sgl = sgl;
	attr.iov_count = 2;
	EXPECT_EQ(t, kfi_mr_regattr(t->st->domain, &attr, 0, &mr[3]), 0);
	for (i = 0; i < ARRAY_SIZE(mr); i++) {
		void *desc[2];

		if (!mr[i])
			continue;
		desc[0] = desc[1] = kfi_mr_desc(mr[i]);
		memset(to->at, 0, to->len);
		EXPECT_EQ(t, kfi_recv(t->b.ep, to->at, to->len, kfi_mr_desc(to->mr), 0, to), 0);
		EXPECT_EQ(t, kfi_sendv(t->a.ep, kv, desc, 2, 0, mr[i]), 0);
		completed(t, &t->a, mr[i], KFI_MSG | KFI_SEND, PAGE_SIZE + 500);
		completed(t, &t->b, to, KFI_MSG | KFI_RECV, PAGE_SIZE + 500);
		EXPECT(t, !memcmp(to->at, kv[0].iov_base, PAGE_SIZE));
		EXPECT(t, !memcmp(to->at + PAGE_SIZE, kv[1].iov_base, 500));
		/* Memory between the pieces is not part of the registration. */
		EXPECT_EQ(t, kfi_send(t->a.ep, buf->at + PAGE_SIZE, 10, desc[0], 0, NULL), -EINVAL);
		EXPECT_EQ(t, kfi_close(&mr[i]->fid), 0);
	}
}

/* Memory cannot be released while a receive may still write to it. */
static void in_use(struct test *t)
{
	struct buf *buf = buf_get(t, PAGES, PAGE_SIZE, KFI_RECV, 0);

	if (!buf)
		return;
	EXPECT_EQ(t, kfi_recv(t->b.ep, buf->at, 100, kfi_mr_desc(buf->mr), 0, buf), 0);
	EXPECT_EQ(t, kfi_close(&buf->mr->fid), -EBUSY);
	EXPECT_EQ(t, kfi_recv(t->b.ep, buf->at, 100, kfi_mr_desc(buf->mr), 0, buf), -EINVAL);
	/* The memory is released when the endpoint is closed, after the test. */
}

const struct group memory_tests[] = {
	{ "memory_of_every_sort", sorts, true },
	{ "memory_that_is_refused", refused, false },
	{ "memory_in_pieces", pieces, true },
	{ "memory_in_use", in_use, true },
	{}
};
