// SPDX-License-Identifier: GPL-2.0
/* See helpers.h. */
#include <linux/atomic.h>
#include <linux/cpufeature.h>
#include <linux/inetdevice.h>
#include <linux/instrumented.h>
#include <linux/libnvdimm.h>
#include <linux/mm.h>
#include <linux/netdevice.h>
#include <linux/pagemap.h>
#include <linux/random.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/string.h>
#include <linux/uaccess.h>
#include <linux/workqueue.h>
#include <net/addrconf.h>
#include <net/if_inet6.h>
#include <net/ipv6.h>
#include <net/net_namespace.h>
#include <net/route.h>

#include "helpers.h"

void *kshm_page_address(const struct page *page)
{
	return page_address(page);
}

/*
 * memcpy() is fastest on processors with fast short string moves (FSRM). On others memcpy() is a loop
 * of loads and stores, and copying by words, as copy_page() does, is faster.
 */
void kshm_copy(void *to, const void *from, size_t len)
{
#if defined(CONFIG_X86_64) && !defined(CONFIG_KASAN)
	if (len >= 128 && !boot_cpu_has(X86_FEATURE_FSRM)) {
		size_t words = len / 8;

		asm volatile("rep movsq"
			     : "+D" (to), "+S" (from), "+c" (words)
			     : : "memory");
		len %= 8;
	}
#endif
	memcpy(to, from, len);
}

void kshm_copy_durable(void *to, const void *from, size_t len)
{
	memcpy_flushcache(to, from, len);
}

/* A kernel without the write-back would make every durable write a silent lie. */
static_assert(IS_ENABLED(CONFIG_ARCH_HAS_PMEM_API) && IS_ENABLED(CONFIG_ARCH_HAS_UACCESS_FLUSHCACHE));

void kshm_write_back(const void *at, size_t len)
{
	arch_wb_cache_pmem((void *)at, len);
}

void kshm_durable_fence(void)
{
	pmem_wmb();
}

size_t kshm_fault_in(u64 at, size_t len, bool write)
{
	if (at != (unsigned long)at || !access_ok((void __user *)(unsigned long)at, len))
		return 0;
	if (write)
		return len - fault_in_safe_writeable((char __user *)(unsigned long)at, len);
	return len - fault_in_readable((const char __user *)(unsigned long)at, len);
}

/*
 * Not copy_from_user(), whose checks regard the kernel end as one object: contiguous bytes here may
 * belong to several folios.
 */
size_t kshm_copy_from_user(void *to, u64 from, size_t len)
{
	const void __user *at = (const void __user *)(unsigned long)from;
	size_t left = len;

	pagefault_disable();
	if (access_ok(at, len)) {
		barrier_nospec();
		instrument_copy_from_user_before(to, at, len);
		left = raw_copy_from_user(to, at, len);
		instrument_copy_from_user_after(to, at, len, left);
	}
	pagefault_enable();
	return len - left;
}

size_t kshm_copy_to_user(u64 to, const void *from, size_t len)
{
	void __user *at = (void __user *)(unsigned long)to;
	size_t left = len;

	pagefault_disable();
	if (access_ok(at, len)) {
		instrument_copy_to_user(at, from, len);
		left = raw_copy_to_user(at, from, len);
	}
	pagefault_enable();
	return len - left;
}

u64 kshm_read(const void *at, unsigned int size)
{
	switch (size) {
	case 1:
		return READ_ONCE(*(const u8 *)at);
	case 2:
		return READ_ONCE(*(const u16 *)at);
	case 4:
		return READ_ONCE(*(const u32 *)at);
	default:
		return READ_ONCE(*(const u64 *)at);
	}
}

u64 kshm_cmpxchg(void *at, unsigned int size, u64 old, u64 new)
{
	switch (size) {
	case 1:
		return cmpxchg((u8 *)at, (u8)old, (u8)new);
	case 2:
		return cmpxchg((u16 *)at, (u16)old, (u16)new);
	case 4:
		return cmpxchg((u32 *)at, (u32)old, (u32)new);
	default:
		return cmpxchg((u64 *)at, old, new);
	}
}

void kshm_preempt_disable(void)
{
	preempt_disable();
}

void kshm_preempt_enable(void)
{
	preempt_enable();
}

void kshm_cond_resched(void)
{
	cond_resched();
}

bool kshm_fatal_signal_pending(void)
{
	return fatal_signal_pending(current);
}

void kshm_wait_init(struct wait_queue_head *head)
{
	init_waitqueue_head(head);
}

void kshm_wait_wake(struct wait_queue_head *head)
{
	/* The barrier in here pairs with prepare_to_wait()'s. */
	if (wq_has_sleeper(head))
		wake_up_all(head);
}

static bool kshm_addr4(struct in_device *idev, unsigned int *index, struct sockaddr_storage *addr)
{
	struct sockaddr_in *sin = (struct sockaddr_in *)addr;
	const struct in_ifaddr *ifa;

	in_dev_for_each_ifa_rcu(ifa, idev) {
		if ((*index)--)
			continue;
		sin->sin_family = AF_INET;
		sin->sin_addr.s_addr = ifa->ifa_local;
		return true;
	}
	return false;
}

#if IS_ENABLED(CONFIG_IPV6)
static bool kshm_addr6(struct inet6_dev *idev, unsigned int *index, struct sockaddr_storage *addr)
{
	struct sockaddr_in6 *sin = (struct sockaddr_in6 *)addr;
	const struct inet6_ifaddr *ifa;

	list_for_each_entry_rcu(ifa, &idev->addr_list, if_list) {
		if ((*index)--)
			continue;
		sin->sin6_family = AF_INET6;
		sin->sin6_addr = ifa->addr;
		if (ipv6_addr_type(&ifa->addr) & IPV6_ADDR_LINKLOCAL)
			sin->sin6_scope_id = idev->dev->ifindex;
		return true;
	}
	return false;
}
#endif

int kshm_addr(struct net *net, unsigned int index, struct sockaddr_storage *addr)
{
	struct net_device *dev;
	bool found = false;

	memset(addr, 0, sizeof(*addr));
	rcu_read_lock();
	for_each_netdev_rcu(net, dev) {
		struct in_device *in_dev = __in_dev_get_rcu(dev);

		if (!(READ_ONCE(dev->flags) & IFF_UP))
			continue;
		found = in_dev && kshm_addr4(in_dev, &index, addr);
#if IS_ENABLED(CONFIG_IPV6)
		if (!found) {
			struct inet6_dev *in6_dev = __in6_dev_get(dev);

			found = in6_dev && kshm_addr6(in6_dev, &index, addr);
		}
#endif
		if (found)
			break;
	}
	rcu_read_unlock();
	return found ? 0 : -ERANGE;
}

bool kshm_is_local(struct net *net, const struct sockaddr_storage *addr)
{
	if (addr->ss_family == AF_INET) {
		const struct sockaddr_in *sin = (const struct sockaddr_in *)addr;

		return inet_addr_type(net, sin->sin_addr.s_addr) == RTN_LOCAL;
	}
#if IS_ENABLED(CONFIG_IPV6)
	if (addr->ss_family == AF_INET6) {
		const struct sockaddr_in6 *sin = (const struct sockaddr_in6 *)addr;

		return ipv6_chk_addr(net, &sin->sin6_addr, NULL, 0);
	}
#endif
	return false;
}

bool kshm_is_dual(struct net *net)
{
#if IS_ENABLED(CONFIG_IPV6)
	return !READ_ONCE(net->ipv6.sysctl.bindv6only);
#else
	return false;
#endif
}

void kshm_random(void *to, size_t len)
{
	get_random_bytes(to, len);
}
