// SPDX-License-Identifier: GPL-2.0
/*
 * Sizes and offsets as the C compiler sees them. Compiled to assembly only; Kbuild turns it into
 * constants that src/sys/raw.rs compares with the sizes that bindgen found in the same headers.
 */
#include <linux/kbuild.h>

#include "helpers.h"

#define SIZE(sym, type) DEFINE(SIZEOF_##sym, sizeof(type))
#define AT(sym, type, field) DEFINE(OFFSET_##sym, offsetof(type, field))

int main(void)
{
	SIZE(PIECE, struct kfblk_piece);
	AT(PIECE_PAGE, struct kfblk_piece, page);
	AT(PIECE_OFFSET, struct kfblk_piece, offset);
	AT(PIECE_LEN, struct kfblk_piece, len);
	AT(PIECE_MAPPED, struct kfblk_piece, mapped);
	SIZE(COUNTS, struct kfblk_counts);
	AT(COUNTS_READS, struct kfblk_counts, reads);
	AT(COUNTS_WRITES, struct kfblk_counts, writes);
	AT(COUNTS_READ_BYTES, struct kfblk_counts, read_bytes);
	AT(COUNTS_WRITTEN_BYTES, struct kfblk_counts, written_bytes);
	AT(COUNTS_OTHERS, struct kfblk_counts, others);
	AT(COUNTS_ERRORS, struct kfblk_counts, errors);
	AT(COUNTS_RETRIES, struct kfblk_counts, retries);
	AT(COUNTS_COMMITS, struct kfblk_counts, commits);
	SIZE(SHAPE, struct kfblk_shape);
	AT(SHAPE_COUNTS, struct kfblk_shape, counts);
	AT(SHAPE_CAPACITY, struct kfblk_shape, capacity);
	AT(SHAPE_BLOCK_SIZE, struct kfblk_shape, block_size);
	AT(SHAPE_ZEROES, struct kfblk_shape, zeroes);
	AT(SHAPE_READ_ONLY, struct kfblk_shape, read_only);
	AT(SHAPE_ROTATIONAL, struct kfblk_shape, rotational);
	AT(SHAPE_COMMITS, struct kfblk_shape, commits);
	SIZE(ORDER, struct kfblk_order);
	AT(ORDER_OWNER, struct kfblk_order, owner);
	AT(ORDER_POS, struct kfblk_order, pos);
	AT(ORDER_LEN, struct kfblk_order, len);
	AT(ORDER_SLOT, struct kfblk_order, slot);
	AT(ORDER_OP, struct kfblk_order, op);
	AT(ORDER_FLAGS, struct kfblk_order, flags);
	AT(ORDER_MOVES, struct kfblk_order, moves);
	SIZE(LOOKS, struct kfblk_looks);
	AT(LOOKS_ZEROES, struct kfblk_looks, zeroes);
	AT(LOOKS_CACHE, struct kfblk_looks, cache);
	AT(LOOKS_ZONED, struct kfblk_looks, zoned);
	return 0;
}
