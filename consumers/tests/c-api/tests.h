/* SPDX-License-Identifier: GPL-2.0 */
/* Common parts of the tests: results, the device, two connected endpoints, buffers. */
#ifndef KFI_TEST_C_API_H
#define KFI_TEST_C_API_H

#include <linux/in6.h>
#include <linux/list.h>
#include <linux/types.h>
#include <linux/wait.h>

#include <kfi_atomic.h>
#include <kfi_cm.h>
#include <kfi_domain.h>
#include <kfi_endpoint.h>
#include <kfi_eq.h>
#include <kfi_errno.h>
#include <kfi_key.h>
#include <kfi_rma.h>
#include <kfi_tagged.h>

/* Time limit for an expected event, in milliseconds. */
#define LIMIT_MS	10000
/* Maximum connection data of a peer. */
#define PARAM_MAX	64

/* Long-lived objects: the device and a listener. */
struct station {
	struct kfi_info		*info;
	struct kfid_fabric	*fabric;
	struct kfid_domain	*domain;
	struct kfid_eq		*eq;
	struct kfid_pep		*pep;
	struct sockaddr_in6	addr;
	atomic_t		events;
};

/* An endpoint with its own queues. */
struct side {
	struct kfid_ep		*ep;
	struct kfid_eq		*eq;
	struct kfid_cq		*cq;
	wait_queue_head_t	wait;
	/* Number of calls of the handler, and of those calls in atomic context. */
	atomic_t		told;
	atomic_t		atomic;
	/* An additional function that the handler calls. */
	void			(*hook)(struct side *side);
	u8			said[PARAM_MAX];
	size_t			said_len;
};

/* State of a test. */
struct test {
	struct station		*st;
	const char		*name;
	bool			failed;
	/* Two connected endpoints, for tests that need them. */
	struct side		a, b;
	/* Buffers that are freed after the test. */
	struct list_head	bufs;
};

enum memory {
	KMALLOC,
	VMALLOC,
	PAGES,
};

/* Registered memory. */
struct buf {
	struct list_head	list;
	enum memory		kind;
	u8			*at;
	size_t			len;
	struct kfid_mr		*mr;
};

struct group {
	const char	*name;
	void		(*run)(struct test *t);
	/* The test needs two connected endpoints. */
	bool		pair;
};

extern const struct group atomic_tests[];
extern const struct group auth_tests[];
extern const struct group connection_tests[];
extern const struct group dax_tests[];
extern const struct group info_tests[];
extern const struct group key_tests[];
extern const struct group memory_tests[];
extern const struct group message_tests[];
extern const struct group provider_tests[];
extern const struct group queue_tests[];
extern const struct group reader_tests[];
extern const struct group rma_tests[];
extern const struct group vector_tests[];

/* All rights except atomics. */
#define ALL_RIGHTS (KFI_SEND | KFI_RECV | KFI_READ | KFI_WRITE | KFI_REMOTE_READ | KFI_REMOTE_WRITE)

bool expect(struct test *t, bool holds, const char *what, const char *file, int line);
bool expect_eq(struct test *t, long long got, long long wanted, const char *what,
	       const char *file, int line);

/* Returns whether the condition holds. If not, the test has failed. */
#define EXPECT(t, holds)	expect(t, holds, #holds, kbasename(__FILE__), __LINE__)
/* Returns whether both values are equal. If not, the test has failed. */
#define EXPECT_EQ(t, got, wanted) \
	expect_eq(t, (long long)(got), (long long)(wanted), #got, kbasename(__FILE__), __LINE__)

/* dax.c: returns whether only the tests of this file are run. */
bool has_dax(void);

/* pair.c */
void side_init(struct side *side);
bool side_open(struct test *t, struct side *side, struct kfi_info *info, u64 cq_flags);
void side_close(struct test *t, struct side *side);
bool pair_open(struct test *t, struct kfid_domain *domain, u64 cq_flags);
void pair_close(struct test *t);
bool pair_connect(struct test *t, struct kfi_info *request);
ssize_t side_event(struct side *side, u32 *event);
struct kfi_info *next_request(struct test *t);
int next_entry(struct side *side, struct kfi_cq_tagged_entry *entry);
bool completed(struct test *t, struct side *side, void *context, u64 flags, size_t len);
bool failed_with(struct test *t, struct side *side, void *context, int err);

/* memory.c */
struct buf *buf_get(struct test *t, enum memory kind, size_t len, u64 access, u64 flags);
struct buf *buf_get_on(struct test *t, struct kfid_domain *domain, enum memory kind, size_t len,
		       u64 access, u64 flags);
void bufs_put(struct test *t);
void fill(void *at, size_t len, u8 seed);
bool filled(const void *at, size_t len, u8 seed);

#endif
