// SPDX-License-Identifier: GPL-2.0
/*
 * kfi_bench_c: measures the cost of a send, a write and a read by the kfi API, and of the same loop
 * by verbs alone.
 *
 * Loading the module runs the benchmark. It prints figures as notes in the kernel log, which
 * `kfi-tests bench kernel` reads: `loop WAY KIND BYTES OUTSTANDING NANOSECONDS OPERATIONS`.
 *
 * All implementations work alike. Operations are posted one at a time; each is signaled, and none
 * is inline. The worker or the loop reads up to BATCH completions at a time, and each completion
 * wakes the loop. Verbs alone do less: an operation has no reference to its memory, reserves no
 * completion entry, and has no context.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/ktime.h>
#include <linux/math.h>
#include <linux/minmax.h>
#include <linux/module.h>

#include "bench.h"

DECLARE_WAIT_QUEUE_HEAD(bench_wait);

static const struct way *const ways[] = { &kfi_way, &core_way, &raw_way };
static const char *const kinds[] = {
	[BENCH_SEND]	= "send",
	[BENCH_WRITE]	= "write",
	[BENCH_READ]	= "read",
};

static const struct {
	size_t len;
	int count;
} sizes[] = {
	{ 8, 640 }, { 4 << 10, 640 }, { 64 << 10, 160 },
};

static const int depths[] = { 1, DEPTH_MAX };

static int only[] = { -1, -1, -1, -1 };
module_param_array(only, int, NULL, 0444);
MODULE_PARM_DESC(only, "the only way, kind, size and depth, each counted from 0; -1: all");

static bool wanted(int which, int number)
{
	return only[which] < 0 || only[which] == number;
}

/* Counts completions. Returns true if there were any, or an error. */
static int look(const struct way *way, enum kind kind, struct done *done, int *err)
{
	int got = way->poll(kind, done);

	if (got < 0)
		*err = got;
	return got;
}

/*
 * Executes @count operations, @depth of them outstanding. Returns the nanoseconds or a negative
 * errno.
 */
static s64 loop(const struct way *way, enum kind kind, size_t len, int depth, int count)
{
	struct done done = {};
	int posted = 0, over = 0, err = 0;
	bool sends = kind == BENCH_SEND;
	int receives = sends ? min(2 * depth, count) : 0, i;
	u64 start;

	for (i = 0; i < receives && !err; i++)
		err = way->recv(len);
	start = ktime_get_ns();
	while (over < count && !err) {
		for (; posted < count && posted - over < depth && !err; posted++)
			err = way->post(kind, len);
		if (err)
			break;
		wait_event(bench_wait, look(way, kind, &done, &err));
		/* Each completed receive is replaced by another. */
		for (; receives < min(count, done.received + 2 * depth) && sends && !err; receives++)
			err = way->recv(len);
		over = sends ? min(done.sent, done.received) : done.sent;
	}
	return err ?: (s64)(ktime_get_ns() - start);
}

static int measure(const struct way *way, enum kind kind, size_t len, int depth, int count)
{
	s64 took = loop(way, kind, len, depth, count / 10);

	if (took >= 0)
		took = loop(way, kind, len, depth, count);
	if (took < 0)
		return took;
	pr_info("# loop %s %s %zu %d %lld %d\n", way->name, kinds[kind], len, depth, took, count);
	return 0;
}

static int run(const struct way *way)
{
	int kind, size, depth;
	int err = way->open();

	for (kind = 0; kind < ARRAY_SIZE(kinds) && !err; kind++)
		for (size = 0; size < ARRAY_SIZE(sizes) && !err; size++)
			for (depth = 0; depth < ARRAY_SIZE(depths) && !err; depth++)
				if (wanted(1, kind) && wanted(2, size) && wanted(3, depth))
					err = measure(way, kind, sizes[size].len, depths[depth],
						      sizes[size].count);
	way->close();
	return err;
}

static int __init bench_init(void)
{
	int err = kfi_find(), failed = 0, i;

	if (err)
		return err;
	pr_info("KTAP version 1\n");
	pr_info("1..%zu\n", ARRAY_SIZE(ways));
	for (i = 0; i < ARRAY_SIZE(ways); i++) {
		err = wanted(0, i) ? run(ways[i]) : 0;
		if (err)
			pr_info("# failed: %d\n", err);
		pr_info("%sok %d %s\n", err ? "not " : "", i + 1, ways[i]->name);
		failed += !!err;
	}
	kfi_forget();
	return failed ? -EIO : 0;
}
module_init(bench_init);

static void __exit bench_exit(void)
{
}
module_exit(bench_exit);

MODULE_DESCRIPTION("The cost of an operation by the kfi API, and by verbs alone");
MODULE_LICENSE("GPL");
