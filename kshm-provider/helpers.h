/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Helpers for what the kernel crate does not bind; src/sys.rs declares the same. Nothing here
 * decides anything.
 */
#ifndef KSHM_HELPERS_H
#define KSHM_HELPERS_H

#include <linux/socket.h>
#include <linux/types.h>
#include <linux/wait.h>

struct net;
struct page;
struct task_struct;
struct workqueue_struct;

/* Memory. */
void *kshm_page_address(const struct page *page);
void kshm_copy(void *to, const void *from, size_t len);
/*
 * The task's own memory. Makes @len bytes from @at on present, for writing to if @write; may sleep for
 * as long as whoever brings them takes. How many there are, from the first on.
 */
size_t kshm_fault_in(u64 at, size_t len, bool write);
/* Copies from or to it what is present; how many bytes. Any context of the task. */
size_t kshm_copy_from_user(void *to, u64 from, size_t len);
size_t kshm_copy_to_user(u64 to, const void *from, size_t len);
/* A value of 1, 2, 4 or 8 bytes at a multiple of them. */
u64 kshm_read(const void *at, unsigned int size);
/* Puts @new there if it is @old; what was there. */
u64 kshm_cmpxchg(void *at, unsigned int size, u64 old, u64 new);

/* Tasks. */
void kshm_preempt_disable(void);
void kshm_preempt_enable(void);
void kshm_cond_resched(void);
bool kshm_fatal_signal_pending(void);
struct task_struct *kshm_current(void);
struct workqueue_struct *kshm_wq_alloc(const char *name);
void kshm_wq_free(struct workqueue_struct *events, struct workqueue_struct *copies);
void kshm_wait_init(struct wait_queue_head *head);
/* Wakes who waits. What they wait for was written before. */
void kshm_wait_wake(struct wait_queue_head *head);

/* Addresses. */
/*
 * Address number @index of those in @net; loopback's too. -ERANGE: there are no more.
 */
int kshm_addr(struct net *net, unsigned int index, struct sockaddr_storage *addr);
/* Whether @addr is one of this host's in @net. */
bool kshm_is_dual(struct net *net);
bool kshm_is_local(struct net *net, const struct sockaddr_storage *addr);

void kshm_random(void *to, size_t len);

#endif
