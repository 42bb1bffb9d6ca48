/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The benchmark loop and its parts: two ends of a connection of the device to itself, by the kfi
 * API or by verbs.
 */
#ifndef KFI_BENCH_C_H
#define KFI_BENCH_C_H

#include <linux/in.h>
#include <linux/types.h>
#include <linux/wait.h>

/* Maximum length of an operation in bytes. */
#define BUF_SIZE	(64 << 10)
/* Maximum number of outstanding operations. */
#define DEPTH_MAX	16
/* Size of a queue, enough for all outstanding operations of an end. */
#define QUEUE_SIZE	(4 * DEPTH_MAX)
/* Number of completions read at a time. */
#define BATCH		16
/* Time limit of a connect in milliseconds. */
#define LIMIT_MS	10000

enum kind {
	BENCH_SEND,
	BENCH_WRITE,
	BENCH_READ,
};

/* The loop sleeps here; handlers of completions wake it. */
extern wait_queue_head_t bench_wait;

/* Counts of completed operations: at the posting end, and receives at the other one. */
struct done {
	int sent;
	int received;
};

/**
 * struct way - an implementation of the loop's operations
 * @name: name in figures
 * @open: connects both ends
 * @close: closes both ends, also after a failed @open
 * @post: posts an operation of the given size
 * @recv: posts a receive at the other end
 * @poll: counts completions; returns 1 if there were any, 0 if not, or a negative errno
 */
struct way {
	const char	*name;
	int		(*open)(void);
	void		(*close)(void);
	int		(*post)(enum kind kind, size_t len);
	int		(*recv)(size_t len);
	int		(*poll)(enum kind kind, struct done *done);
};

/* kfi.c: finds a device, which is the first call; releases it; returns its address. */
int kfi_find(void);
void kfi_forget(void);
struct sockaddr_in *kfi_source(void);

extern const struct way kfi_way;
/* Completions are polled by a worker of the RDMA core, as over kverbs for a queue with a handler. */
extern const struct way core_way;
/* The loop polls the device's queue itself. */
extern const struct way raw_way;

#endif
