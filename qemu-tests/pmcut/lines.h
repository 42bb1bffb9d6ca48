/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The state of cache lines of persistent memory, and the log of its changes.
 *
 * A line is written back with the bytes that it has at the write-back, and becomes durable at the
 * next fence of the same processor, not before. This is the strictest reading of the architecture:
 * a locked instruction is no fence, and a later store needs another write-back.
 *
 * All processors' lines are one memory: a line never goes back to older bytes, whichever
 * processor's fence comes last. Each write-back takes a number (`stamp`) before it takes the bytes,
 * so bytes with a higher stamp contain all stores of write-backs with lower ones.
 */
#ifndef PMCUT_LINES_H
#define PMCUT_LINES_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINE 64

/* The log, which xtask reads: `struct log_head`, then records from LOG_START on. */
#define LOG_MAGIC 0x31474c5455434d50ULL /* "PMCUTLG1" */
#define LOG_START 4096

enum record_kind {
	/* Lines that a fence made durable. */
	REC_FENCE = 1,
	/* The guest's message: one line of the channel. */
	REC_MARK = 2,
	/* A line that became durable by a store alone, because the caches are persistent (eADR). */
	REC_STORE = 3,
	/* A line that the cache wrote back on its own. */
	REC_EVICT = 4,
};

struct record {
	uint32_t kind;
	/* Number of `struct line_bytes` that follow. */
	uint32_t count;
	/* Number of the record among those of its kind, from 1. */
	uint64_t number;
};

struct line_bytes {
	/* Offset in the memory. */
	uint64_t offset;
	uint64_t words[LINE / 8];
};

struct log_head {
	uint64_t magic;
	/* End of the last record, in bytes from the file's start. Set after the record's bytes. */
	uint64_t end;
	/* Records did not fit into the log. */
	uint64_t full;
	uint64_t stores, nt_stores, write_backs;
	/* Write-backs since the first mark whose address the plug-in cannot translate. */
	uint64_t unknown;
	/* Number of records of each kind. */
	uint64_t records[5];
};

struct memory {
	/* The guest's memory, and the memory that a power failure leaves. */
	const uint8_t *live;
	uint8_t *durable;
	uint64_t len;
	bool eadr;
	/* Stamp of each line's durable bytes. */
	uint64_t *stamps;
	uint64_t last_stamp;
	struct log_head *log;
	uint64_t log_len;
	/* Protects `durable`, `stamps` and `log`. */
	pthread_mutex_t lock;
};

struct pending_line {
	uint64_t stamp;
	struct line_bytes bytes;
};

/* Lines of a processor that are written back but not fenced. */
struct pending {
	size_t count, capacity;
	struct pending_line *lines;
};

static inline void memory_init(struct memory *m, const uint8_t *live, uint8_t *durable,
			       uint64_t len, struct log_head *log, uint64_t log_len)
{
	memset(m, 0, sizeof(*m));
	m->live = live;
	m->durable = durable;
	m->len = len;
	m->stamps = calloc(len / LINE, sizeof(*m->stamps));
	m->log = log;
	m->log_len = log_len;
	log->magic = LOG_MAGIC;
	log->end = LOG_START;
	pthread_mutex_init(&m->lock, NULL);
	if (!m->stamps)
		abort();
}

/* Copies the line's present bytes. No word is torn, because the guest's processors store words. */
static inline void take(struct memory *m, uint64_t offset, struct pending_line *to)
{
	const uint64_t *from = (const uint64_t *)(m->live + offset);

	to->stamp = __atomic_add_fetch(&m->last_stamp, 1, __ATOMIC_SEQ_CST);
	to->bytes.offset = offset;
	for (int i = 0; i < LINE / 8; i++)
		to->bytes.words[i] = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
}

/* Makes a line durable, unless newer bytes are. The caller holds the lock. */
static inline void settle(struct memory *m, const struct pending_line *line)
{
	uint64_t *to = (uint64_t *)(m->durable + line->bytes.offset);
	uint64_t *stamp = &m->stamps[line->bytes.offset / LINE];

	if (*stamp > line->stamp)
		return;
	*stamp = line->stamp;
	/* By words, because the emulator may be killed at any time. */
	for (int i = 0; i < LINE / 8; i++)
		__atomic_store_n(&to[i], line->bytes.words[i], __ATOMIC_RELAXED);
}

/*
 * Appends a record and returns its number, or 0 if the log is full. Lines that newer bytes have
 * overtaken are left out. The caller holds the lock.
 */
static inline uint64_t append(struct memory *m, enum record_kind kind,
			      const struct pending_line *lines, size_t count)
{
	struct log_head *log = m->log;
	uint64_t most = sizeof(struct record) + count * sizeof(struct line_bytes);
	struct record *record = (struct record *)((char *)log + log->end);
	struct line_bytes *to = (struct line_bytes *)(record + 1);

	if (log->full || m->log_len - log->end < most) {
		log->full = 1;
		return 0;
	}
	record->kind = kind;
	record->count = 0;
	for (size_t i = 0; i < count; i++) {
		if (kind != REC_MARK && m->stamps[lines[i].bytes.offset / LINE] > lines[i].stamp)
			continue;
		to[record->count++] = lines[i].bytes;
	}
	record->number = ++log->records[kind];
	__atomic_store_n(&log->end, (char *)(to + record->count) - (char *)log, __ATOMIC_RELEASE);
	return record->number;
}

/* Logs lines and makes them durable. Returns the record's number. */
static inline uint64_t make_durable(struct memory *m, enum record_kind kind,
				    const struct pending_line *lines, size_t count)
{
	uint64_t number;

	pthread_mutex_lock(&m->lock);
	number = append(m, kind, lines, count);
	for (size_t i = 0; i < count; i++)
		settle(m, &lines[i]);
	pthread_mutex_unlock(&m->lock);
	return number;
}

/* Handles the write-back of the line at `offset` by a processor. */
static inline void write_back(struct memory *m, struct pending *p, uint64_t offset)
{
	if (p->count && p->lines[p->count - 1].bytes.offset == offset) {
		take(m, offset, &p->lines[p->count - 1]);
		return;
	}
	if (p->count == p->capacity) {
		p->capacity = p->capacity ? p->capacity * 2 : 1024;
		p->lines = realloc(p->lines, p->capacity * sizeof(*p->lines));
		if (!p->lines)
			abort();
	}
	take(m, offset, &p->lines[p->count++]);
}

/* Handles a fence of a processor. Returns the record's number; 0 if nothing was written back. */
static inline uint64_t fence(struct memory *m, struct pending *p)
{
	uint64_t number;

	if (!p->count)
		return 0;
	number = make_durable(m, REC_FENCE, p->lines, p->count);
	p->count = 0;
	return number;
}

/* Writes back all lines that are not durable, but for `skip_len` bytes at `skip`. */
static inline void write_all_back(struct memory *m, struct pending *p, uint64_t skip,
				  uint64_t skip_len)
{
	for (uint64_t offset = 0; offset < m->len; offset += LINE) {
		if (offset - skip >= skip_len && memcmp(m->live + offset, m->durable + offset, LINE))
			write_back(m, p, offset);
	}
}

/* Makes the line at `offset` durable with its present bytes. */
static inline void write_through(struct memory *m, enum record_kind kind, uint64_t offset)
{
	struct pending_line line;

	take(m, offset, &line);
	make_durable(m, kind, &line, 1);
}

/* Logs the line at `offset` as a message of the guest. Returns the message's number. */
static inline uint64_t mark(struct memory *m, uint64_t offset)
{
	struct pending_line line;
	uint64_t number;

	take(m, offset, &line);
	pthread_mutex_lock(&m->lock);
	number = append(m, REC_MARK, &line, 1);
	pthread_mutex_unlock(&m->lock);
	return number;
}

/* Handles a store to a line by a processor. `nt`: the store bypasses the caches, also with eADR. */
static inline void store(struct memory *m, struct pending *p, uint64_t offset, bool nt)
{
	if (nt)
		write_back(m, p, offset);
	else if (m->eadr)
		write_through(m, REC_STORE, offset);
}

#endif
