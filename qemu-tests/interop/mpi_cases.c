// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * An MPI program that checks every value it receives: each argument names a case, all ranks run
 * the cases in order. The program is built once for each MPI implementation.
 *
 * A rank that sees a wrong value prints it and aborts the job.
 */
#include <mpi.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Largest message, in bytes. */
#define LARGEST (4u << 20)
/* Operations in flight of the case `mixed`. */
#define DEPTH 8
/* Time in which the test finds the endpoints of a rank that is about to end. */
#define SEEN_US 500000

static int rank, ranks;

#define CHECK(condition, ...)                                                                     \
	do {                                                                                      \
		if (!(condition)) {                                                               \
			fprintf(stderr, "rank %d, line %d: wrong data: ", rank, __LINE__);        \
			fprintf(stderr, __VA_ARGS__);                                             \
			fputc('\n', stderr);                                                      \
			MPI_Abort(MPI_COMM_WORLD, 3);                                             \
		}                                                                                 \
	} while (0)

/* Returns the next number of a sequence that depends on the seed alone. */
static uint64_t next(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15u;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

static void *allocate(size_t size)
{
	void *memory = malloc(size);

	CHECK(memory, "no memory");
	return memory;
}

/* Fills a message with bytes that depend on the seed and the position. */
static void fill(unsigned char *to, size_t size, uint64_t seed)
{
	size_t at = 0;

	for (; at + 8 <= size; at += 8) {
		uint64_t word = next(&seed);
		memcpy(to + at, &word, 8);
	}
	for (; at < size; at++)
		to[at] = (unsigned char)next(&seed);
}

static void check(const unsigned char *from, size_t size, uint64_t seed)
{
	size_t at = 0;

	for (; at + 8 <= size; at += 8) {
		uint64_t word = next(&seed), is;
		memcpy(&is, from + at, 8);
		CHECK(word == is, "at %zu of %zu: %016llx, not %016llx", at, size,
		      (unsigned long long)is, (unsigned long long)word);
	}
	for (; at < size; at++) {
		unsigned char byte = (unsigned char)next(&seed);
		CHECK(from[at] == byte, "at %zu of %zu", at, size);
	}
}

/* A message of each size goes around all ranks, and every rank checks the bytes. */
static void ring(void)
{
	unsigned char *out = allocate(LARGEST), *in = allocate(LARGEST);
	int right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks;

	for (size_t size = 1; size <= LARGEST; size *= 4) {
		for (int odd = -1; odd <= 1; odd++) {
			size_t bytes = size + odd;
			int count;
			MPI_Status status;
			if (bytes > LARGEST)
				continue;
			fill(out, bytes, bytes + rank);
			memset(in, 0xee, bytes);
			MPI_Sendrecv(out, bytes, MPI_BYTE, right, 7, in, bytes, MPI_BYTE, left, 7,
				     MPI_COMM_WORLD, &status);
			MPI_Get_count(&status, MPI_BYTE, &count);
			CHECK((size_t)count == bytes, "%d bytes, not %zu", count, bytes);
			check(in, bytes, bytes + left);
		}
	}
	free(out);
	free(in);
}

/* Sums, maxima and a gather of vectors of several lengths. */
static void reduce(void)
{
	static const int lengths[] = { 1, 7, 512, 4096, 100000 };

	for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
		int n = lengths[l];
		int64_t *mine = allocate(n * 8), *sum = allocate(n * 8), *all = allocate(n * 8 * ranks);
		for (int i = 0; i < n; i++)
			mine[i] = (int64_t)i * (rank + 1);
		MPI_Allreduce(mine, sum, n, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
		for (int i = 0; i < n; i++)
			CHECK(sum[i] == (int64_t)i * ranks * (ranks + 1) / 2, "sum %d of %d", i, n);
		MPI_Allreduce(mine, sum, n, MPI_INT64_T, MPI_MAX, MPI_COMM_WORLD);
		for (int i = 0; i < n; i++)
			CHECK(sum[i] == (int64_t)i * ranks, "maximum %d of %d", i, n);
		MPI_Allgather(mine, n, MPI_INT64_T, all, n, MPI_INT64_T, MPI_COMM_WORLD);
		for (int r = 0; r < ranks; r++)
			for (int i = 0; i < n; i++)
				CHECK(all[r * n + i] == (int64_t)i * (r + 1), "part %d, %d of %d", r, i, n);
		free(mine);
		free(sum);
		free(all);
	}
}

/* Writes, reads and additions in windows of the other ranks. */
static void onesided(void)
{
	enum { PART = 30000, ROUNDS = 20 };
	int64_t *window, *local = allocate(PART * 8);
	MPI_Win win;
	int right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks;

	MPI_Win_allocate((PART + 1) * 8, 8, MPI_INFO_NULL, MPI_COMM_WORLD, &window, &win);
	memset(window, 0, (PART + 1) * 8);
	MPI_Win_fence(0, win);
	for (int i = 0; i < PART; i++)
		local[i] = (int64_t)rank << 32 | i;
	MPI_Put(local, PART, MPI_INT64_T, right, 0, PART, MPI_INT64_T, win);
	MPI_Win_fence(0, win);
	for (int i = 0; i < PART; i++)
		CHECK(window[i] == ((int64_t)left << 32 | i), "put, %d", i);
	MPI_Win_fence(0, win);
	memset(local, 0, PART * 8);
	MPI_Get(local, PART, MPI_INT64_T, right, 0, PART, MPI_INT64_T, win);
	MPI_Win_fence(0, win);
	for (int i = 0; i < PART; i++)
		CHECK(local[i] == ((int64_t)rank << 32 | i), "get, %d", i);
	MPI_Win_fence(0, win);
	/* All ranks add to one word of each rank; none of the sums may be lost. */
	MPI_Win_lock_all(0, win);
	for (int round = 0; round < ROUNDS; round++) {
		for (int r = 0; r < ranks; r++) {
			int64_t one = rank + 1, before;
			if (round % 2)
				MPI_Accumulate(&one, 1, MPI_INT64_T, r, PART, 1, MPI_INT64_T, MPI_SUM, win);
			else
				MPI_Fetch_and_op(&one, &before, MPI_INT64_T, r, PART, MPI_SUM, win);
			MPI_Win_flush(r, win);
		}
	}
	MPI_Win_unlock_all(win);
	MPI_Win_fence(0, win);
	CHECK(window[PART] == (int64_t)ROUNDS * ranks * (ranks + 1) / 2, "sum %lld",
	      (long long)window[PART]);
	MPI_Win_fence(0, win);
	MPI_Win_free(&win);
	free(local);
}

/* Returns a size from 1 byte to LARGEST; each power of two is as likely as any other. */
static size_t size_of(uint64_t *state)
{
	uint64_t most = 1ull << next(state) % 23;
	size_t size = most / 2 + next(state) % (most / 2 + 1);

	return size ? size : 1;
}

/*
 * Messages of mixed sizes to the right-hand rank, several at once, for the given seconds. Both ends
 * compute each message's size and content from the seed. Receives are posted late at random, so
 * that some messages are unexpected.
 */
static void mixed(double seconds, uint64_t seed)
{
	unsigned char *out[DEPTH], *in[DEPTH];
	int right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks, more = 1;
	uint64_t sending = seed + rank, receiving = seed + left, order = seed ^ ~(uint64_t)rank;
	uint64_t rounds = 0, bytes = 0;
	double end = MPI_Wtime() + seconds;

	for (int i = 0; i < DEPTH; i++) {
		out[i] = allocate(LARGEST);
		in[i] = allocate(LARGEST);
	}
	for (; more; rounds++) {
		MPI_Request all[2 * DEPTH];
		size_t expect[DEPTH];
		uint64_t content[DEPTH];
		int late = next(&order) % 2;
		for (int i = 0; i < DEPTH && !late; i++)
			MPI_Irecv(in[i], LARGEST, MPI_BYTE, left, i, MPI_COMM_WORLD, &all[i]);
		for (int i = 0; i < DEPTH; i++) {
			size_t size = size_of(&sending);
			fill(out[i], size, next(&sending));
			MPI_Isend(out[i], size, MPI_BYTE, right, i, MPI_COMM_WORLD, &all[DEPTH + i]);
			bytes += size;
		}
		for (int i = DEPTH; i-- > 0 && late;)
			MPI_Irecv(in[i], LARGEST, MPI_BYTE, left, i, MPI_COMM_WORLD, &all[i]);
		MPI_Status status[2 * DEPTH];
		MPI_Waitall(2 * DEPTH, all, status);
		for (int i = 0; i < DEPTH; i++) {
			int count;
			expect[i] = size_of(&receiving);
			content[i] = next(&receiving);
			MPI_Get_count(&status[i], MPI_BYTE, &count);
			CHECK((size_t)count == expect[i], "%d bytes, not %zu", count, expect[i]);
			check(in[i], expect[i], content[i]);
		}
		/* Rank 0 decides whether the time is over. */
		more = MPI_Wtime() < end;
		MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
	}
	for (int i = 0; i < DEPTH; i++) {
		free(out[i]);
		free(in[i]);
	}
	if (rank == 0)
		printf("mixed: %llu rounds, %llu bytes from rank 0\n", (unsigned long long)rounds,
		       (unsigned long long)bytes);
}

/* The last rank kills itself while the others are in a collective. */
static void die(void)
{
	int64_t *mine = allocate(LARGEST), *sum = allocate(LARGEST);

	memset(mine, 0, LARGEST);
	for (int round = 0;; round++) {
		if (rank == ranks - 1 && round == 3) {
			usleep(SEEN_US);
			raise(SIGKILL);
		}
		MPI_Allreduce(mine, sum, LARGEST / 8, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
	}
}

/*
 * Ranks 0 and 1 exchange messages, then rank 0 waits for one of rank 2. Without rank 2's message, no
 * rank passes the barrier that follows.
 */
static void third(void)
{
	enum { SIZE = 100000 };
	unsigned char *out = allocate(SIZE), *in = allocate(SIZE);
	int peer = 1 - rank;

	for (int size = 1; rank < 2 && size <= SIZE; size *= 10) {
		fill(out, size, size + rank);
		MPI_Sendrecv(out, size, MPI_BYTE, peer, 7, in, size, MPI_BYTE, peer, 7,
			     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		check(in, size, size + peer);
	}
	if (rank == 0) {
		printf("rank 1's messages have arrived\n");
		fflush(stdout);
		MPI_Recv(in, 8, MPI_BYTE, 2, 9, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		printf("rank 2's message has arrived\n");
		fflush(stdout);
	} else if (rank == 2) {
		fill(out, 8, 8);
		MPI_Send(out, 8, MPI_BYTE, 0, 9, MPI_COMM_WORLD);
	}
	free(out);
	free(in);
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	for (int i = 1; i < argc; i++) {
		double begin = MPI_Wtime();
		const char *name = argv[i];
		if (!strcmp(argv[i], "ring"))
			ring();
		else if (!strcmp(argv[i], "reduce"))
			reduce();
		else if (!strcmp(argv[i], "onesided"))
			onesided();
		else if (!strcmp(argv[i], "mixed") && i + 2 < argc) {
			mixed(atof(argv[i + 1]), strtoull(argv[i + 2], NULL, 0));
			i += 2;
		} else if (!strcmp(argv[i], "third"))
			third();
		else if (!strcmp(argv[i], "die"))
			die();
		else
			MPI_Abort(MPI_COMM_WORLD, 2);
		MPI_Barrier(MPI_COMM_WORLD);
		if (rank == 0) {
			printf("%s: %.1f s\n", name, MPI_Wtime() - begin);
			fflush(stdout);
		}
	}
	if (rank == 0)
		printf("%d ranks passed\n", ranks);
	usleep(SEEN_US);
	MPI_Finalize();
	return 0;
}
