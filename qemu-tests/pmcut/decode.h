/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The x86-64 instructions that matter to persistence: cache line write-backs, fences, and stores
 * that bypass the caches. Stores with a VEX prefix (VMOVNTDQ) count as ordinary stores.
 */
#ifndef PMCUT_DECODE_H
#define PMCUT_DECODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum kind {
	OTHER,
	/* MOVNTI, MOVNTQ, MOVNTDQ, MOVNTPS, MOVNTPD: durable after a fence, without a write-back. */
	NT_STORE,
	/* CLWB, CLFLUSHOPT, CLFLUSH. */
	WRITE_BACK,
	/* SFENCE, MFENCE. */
	FENCE,
};

/* Numbers of registers are those of the encoding: rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, ... */
enum { NO_REG = -1, RIP = -2 };

struct decoded {
	enum kind kind;
	/* For WRITE_BACK: the address is base + (index << scale) + disp. */
	int base, index, scale;
	int64_t disp;
};

/* The longest instruction of the architecture, in bytes. */
#define INSN_MAX 15

static inline int64_t read_disp(const uint8_t *at, size_t size)
{
	int32_t disp = 0;

	if (size == 1)
		return (int8_t)*at;
	memcpy(&disp, at, sizeof(disp));
	return disp;
}

/* Decodes the memory operand behind `modrm`. The buffer has more than 6 bytes from there on. */
static inline void decode_operand(struct decoded *d, const uint8_t *modrm, int rex)
{
	int mod = modrm[0] >> 6, rm = modrm[0] & 7;
	const uint8_t *at = modrm + 1;

	d->base = rm | (rex & 1) << 3;
	d->index = NO_REG;
	d->scale = 0;
	d->disp = 0;
	if (rm == 4) {
		int sib = *at++;
		int index = ((sib >> 3) & 7) | (rex & 2) << 2;

		d->scale = sib >> 6;
		if (index != 4)
			d->index = index;
		d->base = (sib & 7) | (rex & 1) << 3;
		if (mod == 0 && (sib & 7) == 5) {
			d->base = NO_REG;
			d->disp = read_disp(at, 4);
		}
	} else if (rm == 5 && mod == 0) {
		d->base = RIP;
		d->disp = read_disp(at, 4);
	}
	if (mod == 1)
		d->disp = read_disp(at, 1);
	else if (mod == 2)
		d->disp = read_disp(at, 4);
}

/* Decodes an instruction of `len` bytes. */
static inline struct decoded decode(const uint8_t *insn, size_t len)
{
	struct decoded d = { .kind = OTHER, .base = NO_REG, .index = NO_REG };
	uint8_t b[INSN_MAX + 8] = { 0 };
	bool operand_size = false, repeat = false;
	int rex = 0, reg;
	size_t p = 0;

	memcpy(b, insn, len < INSN_MAX ? len : INSN_MAX);
	for (; p < INSN_MAX - 3; p++) {
		if (b[p] == 0x66)
			operand_size = true;
		else if (b[p] == 0xf2 || b[p] == 0xf3)
			repeat = true;
		else if (b[p] != 0x3e && b[p] != 0x2e)
			break;
	}
	if ((b[p] & 0xf0) == 0x40)
		rex = b[p++];
	if (b[p] != 0x0f || repeat)
		return d;
	if (b[p + 1] == 0xc3 || b[p + 1] == 0xe7 || b[p + 1] == 0x2b) {
		d.kind = NT_STORE;
		return d;
	}
	if (b[p + 1] != 0xae)
		return d;
	reg = (b[p + 2] >> 3) & 7;
	if (b[p + 2] >> 6 == 3) {
		if (!operand_size && (reg == 6 || reg == 7))
			d.kind = FENCE;
	} else if (reg == 7 || (reg == 6 && operand_size)) {
		d.kind = WRITE_BACK;
		decode_operand(&d, b + p + 2, rex);
	}
	return d;
}

#endif
