/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Declarations shared by the C and the Rust code of the kfi API. Rust code in
 * src/capi/ creates the objects. C code handles structures that only C knows,
 * and calls functions that Rust cannot.
 */
#ifndef KFABRIC_CAPI_H
#define KFABRIC_CAPI_H

#include <kfabric.h>
#include <kfi_atomic.h>
#include <kfi_auth.h>
#include <kfi_cm.h>
#include <kfi_dax.h>
#include <kfi_domain.h>
#include <kfi_endpoint.h>
#include <kfi_eq.h>
#include <kfi_errno.h>
#include <kfi_key.h>
#include <kfi_prov.h>
#include <kfi_rma.h>
#include <kfi_tagged.h>

struct module;
struct net;
struct page;
struct scatterlist;

/* Written in Rust. */
int kf_c_getinfo(struct module *user, u32 version, const char *node, const char *service,
		 u64 flags, const struct kfi_info *hints, struct kfi_info **info);
int kf_c_fabric(struct module *user, const struct kfi_fabric_attr *attr,
		struct kfid_fabric **fabric, void *context);
int kf_c_provider_register(struct kfi_provider *provider, struct module *owner);
int kf_c_provider_deregister(struct kfi_provider *provider);

int kf_c_grant_add(const struct kfi_grant_attr *attr, u64 netns, u64 process, u64 *id);
int kf_c_grant_limit(u64 id, u64 pinned, u32 keys, u32 eps);
int kf_c_grant_extend(u64 id, u64 lifetime_ms);
int kf_c_grant_revoke(u64 id);
bool kf_c_auth_enforced(void);
int kf_c_dax_open(const char *path, u64 access, kfi_dax_handler handler, struct kfid_dax **dax,
		  void *context);
void *kf_c_dax_address(struct kfid_dax *dax, u64 offset, u64 *len);
struct kfi_written *kf_c_written_alloc(void);
void kf_c_written_free(struct kfi_written *written);
int kf_c_written_note(struct kfi_written *written, const struct kfi_rma_iov *range);
void kf_c_written_forget(struct kfi_written *written, u64 key);
bool kf_c_written_take(struct kfi_written *written, size_t most, struct kfi_rma_iov *range);

/* Written in C. */
extern struct kfi_ops_tagged kf_c_no_tagged;

void kf_c_init_fid(struct kfid *fid, size_t fclass, void *context, struct kfi_ops *ops);
char *kf_c_text(const u8 *text, size_t len);
void *kf_c_copy(const void *bytes, size_t len);
bool kf_c_name(u8 *to, size_t size, const char *from);
int kf_c_address(struct net *net, const char *node, const char *service, u8 *addr, u32 *len);
struct page *kf_c_page(const void *addr);
u64 kf_c_phys(const void *addr);
u64 kf_c_page_phys(struct page *page);
struct page *kf_c_page_of(struct page *page, size_t index);
const struct scatterlist *kf_c_sg(const struct scatterlist *sg, struct page **page,
				  size_t *offset, size_t *len);
const char *kf_c_prov_error(int prov_errno, char *buf, size_t len);
const char *kf_c_straddr(const void *addr, char *buf, size_t *len);
/* Sorts @n parts of @size bytes by their first eight bytes. */
void kf_c_sort(void *parts, size_t n, size_t size);
void kf_c_provider_init(struct kfi_provider *provider, struct module *owner);
bool kf_c_provider_get(struct kfi_provider *provider);
void kf_c_provider_put(struct kfi_provider *provider);
void kf_c_provider_end(struct kfi_provider *provider);

#endif
