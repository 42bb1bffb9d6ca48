// SPDX-License-Identifier: GPL-2.0
/*
 * Inline functions and macros that Rust cannot reach.
 */
#include <linux/cpumask.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <linux/inet.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/random.h>
#include <linux/ratelimit.h>
#include <linux/sched/signal.h>
#include <linux/socket.h>
#include <linux/string.h>
#include <linux/utsname.h>
#include <linux/workqueue.h>

#include "helpers.h"

/* Each queue has a rescuer thread, so its work runs even if no thread can be allocated. */
/* Parses texts to a socket address of 16 or 28 bytes. */
int kfblk_parse_addr(struct net *net, const char *addr, const char *port, u8 *out, u32 *len)
{
	struct sockaddr_storage ss = {};
	int ret = inet_pton_with_scope(net, AF_UNSPEC, addr, port, &ss);

	if (ret)
		return ret;
	*len = ss.ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
	memcpy(out, &ss, *len);
	return 0;
}

void kfblk_random(void *data, unsigned long len)
{
	get_random_bytes(data, len);
}

/* Returns the number of pages that can be allocated without a shortage for the host. */
unsigned long kfblk_spare_pages(void)
{
	long spare = si_mem_available() - (long)(totalram_pages() / 16);

	return spare > 0 ? spare : 0;
}

/* Reschedules if necessary. Returns whether the task is being killed. */
bool kfblk_breathe(void)
{
	cond_resched();
	return fatal_signal_pending(current);
}

u32 kfblk_cpus(void)
{
	return num_online_cpus();
}

/* Returns whether the rate limit permits another line of this kind. */
bool kfblk_may_log(enum kfblk_log kind)
{
	static struct ratelimit_state states[KFBLK_LOG_KINDS] = {
		[0 ... KFBLK_LOG_KINDS - 1] =
			RATELIMIT_STATE_INIT(states, DEFAULT_RATELIMIT_INTERVAL,
					     DEFAULT_RATELIMIT_BURST),
	};

	return __ratelimit(&states[kind]);
}

/* Writes the host's name in the caller's UTS namespace. */
void kfblk_node_name(char *name, unsigned int size)
{
	strscpy(name, utsname()->nodename, size);
}
