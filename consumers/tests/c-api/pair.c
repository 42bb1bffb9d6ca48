// SPDX-License-Identifier: GPL-2.0
/* Two connected endpoints. */
#include <linux/preempt.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "tests.h"

/* Number of pieces of an operation. */
#define PIECES	4

void side_init(struct side *side)
{
	memset(side, 0, sizeof(*side));
	init_waitqueue_head(&side->wait);
}

static void on_completion(struct kfid_cq *cq, void *context)
{
	struct side *side = context;

	atomic_inc(&side->told);
	if (!preemptible())
		atomic_inc(&side->atomic);
	if (side->hook)
		side->hook(side);
	wake_up(&side->wait);
}

bool side_open(struct test *t, struct side *side, struct kfi_info *info, u64 cq_flags)
{
	struct kfi_cq_attr attr = {
		.size = 64,
		.format = KFI_CQ_FORMAT_TAGGED,
	};
	struct station *st = t->st;
	struct kfid_domain *domain = info->domain_attr->domain ?: st->domain;

	info->tx_attr->iov_limit = PIECES;
	info->rx_attr->iov_limit = PIECES;
	return EXPECT_EQ(t, kfi_eq_open(st->fabric, NULL, &side->eq, NULL, side), 0) &&
	       EXPECT_EQ(t, kfi_cq_open(domain, &attr, &side->cq, on_completion, side), 0) &&
	       EXPECT_EQ(t, kfi_endpoint(domain, info, &side->ep, side), 0) &&
	       EXPECT_EQ(t, kfi_ep_bind(side->ep, &side->eq->fid, 0), 0) &&
	       EXPECT_EQ(t, kfi_ep_bind(side->ep, &side->cq->fid,
					KFI_TRANSMIT | KFI_RECV | cq_flags), 0) &&
	       EXPECT_EQ(t, kfi_enable(side->ep), 0);
}

void side_close(struct test *t, struct side *side)
{
	if (side->ep) {
		EXPECT_EQ(t, kfi_close(&side->cq->fid), -EBUSY);
		EXPECT_EQ(t, kfi_close(&side->ep->fid), 0);
	}
	if (side->cq)
		EXPECT_EQ(t, kfi_close(&side->cq->fid), 0);
	if (side->eq)
		EXPECT_EQ(t, kfi_close(&side->eq->fid), 0);
	side_init(side);
}

/* Reads the next event of an endpoint, with the peer's connection data. */
ssize_t side_event(struct side *side, u32 *event)
{
	struct {
		struct kfi_eq_cm_entry	entry;
		u8			said[PARAM_MAX];
	} buf;
	ssize_t len = kfi_eq_sread(side->eq, event, &buf, sizeof(buf), LIMIT_MS, 0);

	if (len < 0)
		return len;
	if (buf.entry.fid != &side->ep->fid)
		return -EIO;
	side->said_len = len - sizeof(buf.entry);
	memcpy(side->said, buf.entry.data, side->said_len);
	return 0;
}

/* Waits for a connection request. The caller owns the returned info. */
struct kfi_info *next_request(struct test *t)
{
	struct {
		struct kfi_eq_cm_entry	entry;
		u8			said[PARAM_MAX];
	} buf;
	ssize_t len;
	u32 event;

	len = kfi_eq_sread(t->st->eq, &event, &buf, sizeof(buf), LIMIT_MS, 0);
	if (!EXPECT(t, len >= (ssize_t)sizeof(buf.entry)) || !EXPECT_EQ(t, event, KFI_CONNREQ))
		return NULL;
	EXPECT(t, buf.entry.fid == &t->st->pep->fid);
	t->b.said_len = len - sizeof(buf.entry);
	memcpy(t->b.said, buf.entry.data, t->b.said_len);
	return buf.entry.info;
}

/* Makes b accept a's request. */
bool pair_connect(struct test *t, struct kfi_info *request)
{
	u32 event;

	return EXPECT_EQ(t, kfi_accept(t->b.ep, "welcome", 7), 0) &&
	       EXPECT_EQ(t, side_event(&t->a, &event), 0) &&
	       EXPECT_EQ(t, event, KFI_CONNECTED) &&
	       EXPECT(t, t->a.said_len >= 7 && !memcmp(t->a.said, "welcome", 7)) &&
	       EXPECT_EQ(t, side_event(&t->b, &event), 0) &&
	       EXPECT_EQ(t, event, KFI_CONNECTED);
}

bool pair_open(struct test *t, struct kfid_domain *domain, u64 cq_flags)
{
	struct kfi_info *info = kfi_dupinfo(t->st->info), *request;
	bool opened;

	if (!EXPECT(t, info))
		return false;
	info->domain_attr->domain = domain;
	opened = side_open(t, &t->a, info, cq_flags) &&
		 EXPECT_EQ(t, kfi_connect(t->a.ep, &t->st->addr, "hello", 5), 0);
	kfi_freeinfo(info);
	if (!opened)
		return false;
	request = next_request(t);
	if (!request)
		return false;
	request->domain_attr->domain = domain;
	opened = EXPECT(t, t->b.said_len >= 5 && !memcmp(t->b.said, "hello", 5)) &&
		 side_open(t, &t->b, request, cq_flags) && pair_connect(t, request);
	kfi_freeinfo(request);
	return opened;
}

void pair_close(struct test *t)
{
	side_close(t, &t->a);
	side_close(t, &t->b);
}

/* Waits for a completion, woken by the handler. */
int next_entry(struct side *side, struct kfi_cq_tagged_entry *entry)
{
	ssize_t got;

	wait_event_timeout(side->wait, (got = kfi_cq_read(side->cq, entry, 1)) != -EAGAIN,
			   msecs_to_jiffies(LIMIT_MS));
	return got;
}

/* Checks the next completion. */
bool completed(struct test *t, struct side *side, void *context, u64 flags, size_t len)
{
	struct kfi_cq_tagged_entry entry = {};

	return EXPECT_EQ(t, next_entry(side, &entry), 1) &&
	       EXPECT(t, entry.op_context == context) &&
	       EXPECT_EQ(t, entry.flags, flags) && EXPECT_EQ(t, entry.len, len);
}

/* Checks that the next completion is this error. */
bool failed_with(struct test *t, struct side *side, void *context, int err)
{
	struct kfi_cq_tagged_entry entry;
	struct kfi_cq_err_entry error = {};

	if (!EXPECT_EQ(t, next_entry(side, &entry), -KFI_EAVAIL))
		return false;
	/* The error entry stays until it is read as an error. */
	EXPECT_EQ(t, kfi_cq_read(side->cq, &entry, 1), -KFI_EAVAIL);
	if (!EXPECT_EQ(t, kfi_cq_readerr(side->cq, &error, 0), 1))
		return false;
	EXPECT(t, error.op_context == context);
	return err ? EXPECT_EQ(t, error.err, err) : EXPECT(t, error.err > 0);
}
