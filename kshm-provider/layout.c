// SPDX-License-Identifier: GPL-2.0
/*
 * Sizes as the C compiler sees them. Compiled to assembly only; Kbuild turns it into
 * constants that src/sys/raw.rs compares with the sizes that bindgen found in the same headers.
 */
#include <linux/kbuild.h>

#include "helpers.h"

#define SIZE(sym, type) DEFINE(SIZEOF_##sym, sizeof(type))

int main(void)
{
	SIZE(SOCKADDR_STORAGE, struct sockaddr_storage);
	SIZE(WAIT_QUEUE_HEAD, struct wait_queue_head);
	return 0;
}
