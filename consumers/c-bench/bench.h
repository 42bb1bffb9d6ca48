/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The loop, and what it is made of: two ends of a connection of the device to itself, by the kfi API
 * or by verbs.
 */
#ifndef KFI_C_BENCH_H
#define KFI_C_BENCH_H

#include <linux/in.h>
#include <linux/types.h>
#include <linux/wait.h>

/* Bytes of the longest operation. */
#define BUF_SIZE	(64 << 10)
/* Operations under way, at most. */
#define DEPTH_MAX	16
/* Room for everything that may be under way at one end. */
#define QUEUE_SIZE	(4 * DEPTH_MAX)
/* Completions that are taken at a time. */
#define BATCH		16
/* How long connecting may take, in milliseconds. */
#define LIMIT_MS	10000

enum kind {
	BENCH_SEND,
	BENCH_WRITE,
	BENCH_READ,
};

/* Where the loop sleeps: handlers of completions wake it. */
extern wait_queue_head_t bench_wait;

/* Of operations that have completed: at the end that posts, and receives at the other one. */
struct done {
	int sent;
	int received;
};

/**
 * struct way - how the loop does it
 * @name: in figures
 * @open: connects both ends
 * @close: ends that; also what @open has begun
 * @post: posts an operation of so many bytes
 * @recv: posts a receive at the other end
 * @poll: adds what has completed; 1 if anything has, 0 if not, or a negative errno
 */
struct way {
	const char	*name;
	int		(*open)(void);
	void		(*close)(void);
	int		(*post)(enum kind kind, size_t len);
	int		(*recv)(size_t len);
	int		(*poll)(enum kind kind, struct done *done);
};

/* kfi.c: finds a device, the first to be called; forgets it; its address. */
int kfi_find(void);
void kfi_forget(void);
struct sockaddr_in *kfi_source(void);

extern const struct way kfi_way;
/* Completions come by a worker of the RDMA core, as kverbs has them. */
extern const struct way core_way;
/* The loop polls the device's queue itself. */
extern const struct way raw_way;

#endif
