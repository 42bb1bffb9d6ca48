// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Measures the cost of registering memory through user-space verbs, for comparison.
 *
 *   verbs_reg DEVICE BYTES ROUNDS [held]
 *
 * Prints the nanoseconds that one ibv_reg_mr and ibv_dereg_mr take together,
 * averaged over ROUNDS, of populated memory. With `held`, the program prints a
 * line once it is warm and waits for a line before it goes on, and again after
 * the rounds.
 */
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void hold(const char *said)
{
	char line[8];

	puts(said);
	fflush(stdout);
	if (!fgets(line, sizeof(line), stdin))
		exit(1);
}

int main(int argc, char **argv)
{
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
	struct ibv_context *ctx = NULL;
	struct ibv_device **list;
	struct ibv_pd *pd;
	size_t len;
	long rounds;
	double start;
	void *mem;

	if (argc != 4 && argc != 5) {
		fprintf(stderr, "usage: verbs_reg DEVICE BYTES ROUNDS [held]\n");
		return 2;
	}
	len = strtoull(argv[2], NULL, 0);
	rounds = strtol(argv[3], NULL, 0);
	list = ibv_get_device_list(NULL);
	for (int i = 0; list && list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), argv[1]))
			ctx = ibv_open_device(list[i]);
	pd = ctx ? ibv_alloc_pd(ctx) : NULL;
	mem = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (!pd || mem == MAP_FAILED || rounds < 1) {
		fprintf(stderr, "verbs_reg: cannot use %s\n", argv[1]);
		return 1;
	}
	madvise(mem, len, MADV_NOHUGEPAGE);
	memset(mem, 1, len);
	start = 0;
	for (long i = -1; i < rounds; i++) {
		struct ibv_mr *mr;

		/* The first round warms up. */
		if (i == 0) {
			if (argc == 5)
				hold("warm");
			start = now();
		}
		mr = ibv_reg_mr(pd, mem, len, access);
		if (!mr || ibv_dereg_mr(mr)) {
			perror("verbs_reg");
			return 1;
		}
	}
	start = now() - start;
	if (argc == 5)
		hold("done");
	printf("%.0f\n", start / (double)rounds);
	return 0;
}
