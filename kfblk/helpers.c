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
#include <linux/sched/signal.h>
#include <linux/socket.h>
#include <linux/string.h>
#include <linux/utsname.h>
#include <linux/workqueue.h>

#include "helpers.h"

/* Each has a thread of its own for when there is no memory to make another. */
struct workqueue_struct *kfblk_wq_alloc(const char *name)
{
	return alloc_workqueue("%s", WQ_UNBOUND | WQ_MEM_RECLAIM, 0, name);
}

void kfblk_wq_free(struct workqueue_struct *wq)
{
	destroy_workqueue(wq);
}

/* A socket address of 16 or 28 bytes from texts. */
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

/* Pages that may be taken without the rest of the host being short of memory. */
unsigned long kfblk_spare_pages(void)
{
	long spare = si_mem_available() - (long)(totalram_pages() / 16);

	return spare > 0 ? spare : 0;
}

/* Lets others run; whether the task is being killed. */
bool kfblk_breathe(void)
{
	cond_resched();
	return fatal_signal_pending(current);
}

u32 kfblk_cpus(void)
{
	return num_online_cpus();
}

/* The host's name, as whoever asks sees it. */
void kfblk_node_name(char *name, unsigned int size)
{
	strscpy(name, utsname()->nodename, size);
}
