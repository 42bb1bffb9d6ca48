/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Helpers for kernel interfaces that the kernel crate does not bind. bindgen makes Rust's view (src/sys/raw.rs).
 * Nothing here decides anything.
 */
#ifndef KSHM_HELPERS_H
#define KSHM_HELPERS_H

#include <linux/socket.h>
#include <linux/types.h>
#include <linux/wait.h>

struct net;
struct page;
struct workqueue_struct;

/* Memory. */
void *kshm_page_address(const struct page *page);
void kshm_copy(void *to, const void *from, size_t len);
/*
 * Copies as kshm_copy(). The bytes are durable after kshm_durable_fence() on the same processor, if
 * the destination is persistent memory. Aligned words of 8 bytes are stored whole.
 */
void kshm_copy_durable(void *to, const void *from, size_t len);
/* Writes the cache lines of [at, at + len) back, for kshm_durable_fence() on the same processor. */
void kshm_write_back(const void *at, size_t len);
void kshm_durable_fence(void);
/*
 * Faults in @len bytes of the task's own memory from @at on, writable if @write. Returns the number of
 * present bytes from the first on. May sleep, for as long as the pager likes.
 */
size_t kshm_fault_in(u64 at, size_t len, bool write);
/* Copies between the kernel and present user memory; returns the bytes copied. Context: any of the task. */
size_t kshm_copy_from_user(void *to, u64 from, size_t len);
size_t kshm_copy_to_user(u64 to, const void *from, size_t len);
/* Reads an aligned value of 1, 2, 4 or 8 bytes. */
u64 kshm_read(const void *at, unsigned int size);
/* Stores @new if the value is @old; returns the old value. */
u64 kshm_cmpxchg(void *at, unsigned int size, u64 old, u64 new);

/* Tasks. */
void kshm_preempt_disable(void);
void kshm_preempt_enable(void);
void kshm_cond_resched(void);
bool kshm_fatal_signal_pending(void);
void kshm_wait_init(struct wait_queue_head *head);
/* Wakes the waiters. The caller has written their condition before. */
void kshm_wait_wake(struct wait_queue_head *head);

/* Addresses. */
/*
 * Returns address number @index of the addresses in @net, loopback included; -ERANGE if there are no
 * more.
 */
int kshm_addr(struct net *net, unsigned int index, struct sockaddr_storage *addr);
/* Whether a listener at the "any" address of IPv6 in @net also accepts IPv4 connections. */
bool kshm_is_dual(struct net *net);
/* Whether @addr is an address of this host in @net. */
bool kshm_is_local(struct net *net, const struct sockaddr_storage *addr);

void kshm_random(void *to, size_t len);

#endif
