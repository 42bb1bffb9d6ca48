// SPDX-License-Identifier: MIT OR Apache-2.0
/* Checks of decode.h and lines.h, without QEMU. Prints the failed ones; the status is their count. */
#include "decode.h"
#include "lines.h"

static int failed;

#define CHECK(what)                                                         \
	do {                                                                \
		if (!(what)) {                                              \
			fprintf(stderr, "line %d: %s\n", __LINE__, #what); \
			failed++;                                           \
		}                                                           \
	} while (0)

#define DECODE(...) decode((const uint8_t[]){ __VA_ARGS__ }, sizeof((const uint8_t[]){ __VA_ARGS__ }))

static bool at(struct decoded d, int base, int index, int scale, int64_t disp)
{
	return d.kind == WRITE_BACK && d.base == base && d.index == index && d.scale == scale &&
	       d.disp == disp;
}

static void instructions(void)
{
	/* clwb (%rdi); clflushopt (%rdi); ds clflush (%rdi); clflush (%r12) */
	CHECK(at(DECODE(0x66, 0x0f, 0xae, 0x37), 7, NO_REG, 0, 0));
	CHECK(at(DECODE(0x66, 0x0f, 0xae, 0x3f), 7, NO_REG, 0, 0));
	CHECK(at(DECODE(0x3e, 0x0f, 0xae, 0x3f), 7, NO_REG, 0, 0));
	CHECK(at(DECODE(0x41, 0x0f, 0xae, 0x3c, 0x24), 12, NO_REG, 0, 0));
	/* clwb -8(%rbp); clwb 0x100(%rax,%r9,4); clwb 0x10(%rip); clwb 0x1000 */
	CHECK(at(DECODE(0x66, 0x0f, 0xae, 0x75, 0xf8), 5, NO_REG, 0, -8));
	CHECK(at(DECODE(0x66, 0x42, 0x0f, 0xae, 0xb4, 0x88, 0, 1, 0, 0), 0, 9, 2, 0x100));
	CHECK(at(DECODE(0x66, 0x0f, 0xae, 0x35, 0x10, 0, 0, 0), RIP, NO_REG, 0, 0x10));
	CHECK(at(DECODE(0x66, 0x0f, 0xae, 0x34, 0x25, 0, 0x10, 0, 0), NO_REG, NO_REG, 0, 0x1000));
	/* sfence; mfence; lfence; tpause; xsaveopt (%rdi); clrssbsy (%rdi) */
	CHECK(DECODE(0x0f, 0xae, 0xf8).kind == FENCE);
	CHECK(DECODE(0x0f, 0xae, 0xf0).kind == FENCE);
	CHECK(DECODE(0x0f, 0xae, 0xe8).kind == OTHER);
	CHECK(DECODE(0x66, 0x0f, 0xae, 0xf0).kind == OTHER);
	CHECK(DECODE(0x0f, 0xae, 0x37).kind == OTHER);
	CHECK(DECODE(0xf3, 0x0f, 0xae, 0x37).kind == OTHER);
	/* movnti %rax,(%rdi); movntdq; movntps; mov %rax,(%rdi); lock incl (%rdi) */
	CHECK(DECODE(0x48, 0x0f, 0xc3, 0x07).kind == NT_STORE);
	CHECK(DECODE(0x66, 0x0f, 0xe7, 0x07).kind == NT_STORE);
	CHECK(DECODE(0x0f, 0x2b, 0x07).kind == NT_STORE);
	CHECK(DECODE(0x48, 0x89, 0x07).kind == OTHER);
	CHECK(DECODE(0xf0, 0xff, 0x07).kind == OTHER);
}

#define MEM (4 * LINE)

static uint64_t live[MEM / 8], durable[MEM / 8];
static uint64_t log_[1024];
static struct memory memory;

static void fresh(bool eadr)
{
	free(memory.stamps);
	memset(live, 0, sizeof(live));
	memset(durable, 0, sizeof(durable));
	memset(log_, 0, sizeof(log_));
	memory_init(&memory, (uint8_t *)live, (uint8_t *)durable, MEM, (struct log_head *)log_,
		    sizeof(log_));
	memory.eadr = eadr;
}

/* A store of a word to a line by a processor. */
static void put(struct pending *p, int line, uint64_t value, bool nt)
{
	live[line * LINE / 8] = value;
	store(&memory, p, line * LINE, nt);
}

static uint64_t kept(int line)
{
	return durable[line * LINE / 8];
}

static void lines(void)
{
	struct pending a = { 0 }, b = { 0 };

	fresh(false);
	put(&a, 0, 1, false);
	CHECK(fence(&memory, &a) == 0 && kept(0) == 0);
	write_back(&memory, &a, 0);
	CHECK(kept(0) == 0);
	/* Another processor's fence, and a store behind the write-back. */
	fence(&memory, &b);
	CHECK(kept(0) == 0);
	put(&a, 0, 2, false);
	CHECK(fence(&memory, &a) == 1 && kept(0) == 1);
	put(&a, 1, 3, true);
	CHECK(kept(1) == 0);
	fence(&memory, &a);
	CHECK(kept(1) == 3);
	/* The earlier write-back's fence comes last, and takes nothing back. */
	put(&a, 2, 4, false);
	write_back(&memory, &a, 2 * LINE);
	put(&b, 2, 5, false);
	write_back(&memory, &b, 2 * LINE);
	fence(&memory, &b);
	fence(&memory, &a);
	CHECK(kept(2) == 5);
	put(&a, 3, 6, false);
	write_through(&memory, REC_EVICT, 3 * LINE);
	CHECK(kept(3) == 6);
}

static void persistent_caches(void)
{
	struct pending a = { 0 };

	fresh(true);
	put(&a, 0, 1, false);
	CHECK(kept(0) == 1);
	put(&a, 1, 2, true);
	CHECK(kept(1) == 0);
	fence(&memory, &a);
	CHECK(kept(1) == 2);
}

static void whole_device(void)
{
	struct pending a = { 0 }, device = { 0 };

	fresh(false);
	put(&a, 0, 1, false);
	put(&a, 1, 2, false);
	put(&a, 3, 3, false);
	write_all_back(&memory, &device, LINE, LINE);
	put(&a, 3, 4, false);
	CHECK(kept(0) == 0);
	CHECK(fence(&memory, &device) == 1 && kept(0) == 1 && kept(1) == 0 && kept(3) == 3);
	write_all_back(&memory, &device, LINE, LINE);
	CHECK(device.count == 1);
	fence(&memory, &device);
	CHECK(kept(3) == 4);
	write_all_back(&memory, &device, LINE, LINE);
	CHECK(fence(&memory, &device) == 0);
}

static void records(void)
{
	struct log_head *head = (struct log_head *)log_;
	struct record *record = (struct record *)((char *)log_ + LOG_START);
	struct line_bytes *line = (struct line_bytes *)(record + 1);
	struct pending a = { 0 };
	uint64_t end;

	fresh(false);
	put(&a, 1, 7, true);
	put(&a, 2, 8, true);
	fence(&memory, &a);
	CHECK(record->kind == REC_FENCE && record->count == 2 && record->number == 1);
	CHECK(line[0].offset == LINE && line[0].words[0] == 7 && line[1].words[0] == 8);
	live[0] = 9;
	CHECK(mark(&memory, 0) == 1 && kept(0) == 0);
	record = (struct record *)(line + 2);
	line = (struct line_bytes *)(record + 1);
	CHECK(record->kind == REC_MARK && record->count == 1 && line->words[0] == 9);
	end = (char *)(line + 1) - (char *)log_;
	CHECK(head->end == end && !head->full);
	while (!head->full)
		mark(&memory, 0);
	CHECK(head->end <= sizeof(log_) && mark(&memory, 0) == 0);
}

int main(void)
{
	instructions();
	lines();
	persistent_caches();
	whole_device();
	records();
	return failed;
}
