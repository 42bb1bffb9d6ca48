// SPDX-License-Identifier: GPL-2.0
/*
 * The kfi API for consumers written in C: exported functions, infos, and
 * helpers for Rust code. See capi.h.
 */
#include <linux/export.h>
#include <linux/inet.h>
#include <linux/kernel.h>
#include <linux/mm.h>
#include <linux/pid.h>
#include <linux/scatterlist.h>
#include <linux/slab.h>
#include <linux/socket.h>
#include <linux/sort.h>
#include <linux/string.h>
#include <linux/vmalloc.h>
#include <net/net_namespace.h>

#include "capi.h"
#include "helpers.h"
#include <kfi_enosys.h>
#include <kfi_trigger.h>

static_assert(sizeof(struct kfi_triggered_context) == sizeof(struct kfi_context));
static_assert(sizeof(struct kfi_triggered_context2) == sizeof(struct kfi_context2));

u32 kfi_version(void)
{
	return KFI_VERSION(KFI_MAJOR_VERSION, KFI_MINOR_VERSION);
}
EXPORT_SYMBOL_GPL(kfi_version);

int kfi_getinfo_by(struct module *user, u32 version, const char *node, const char *service,
		   u64 flags, struct kfi_info *hints, struct kfi_info **info)
{
	return kf_c_getinfo(user, version, node, service, flags, hints, info);
}
EXPORT_SYMBOL_GPL(kfi_getinfo_by);

/*
 * For a call through a function pointer: the calling module is unknown, so the
 * infos name no open objects.
 */
int (kfi_getinfo)(u32 version, const char *node, const char *service, u64 flags,
		  struct kfi_info *hints, struct kfi_info **info)
{
	return kf_c_getinfo(NULL, version, node, service, flags, hints, info);
}
EXPORT_SYMBOL_GPL(kfi_getinfo);

int kfi_fabric_by(struct module *user, struct kfi_fabric_attr *attr, struct kfid_fabric **fabric,
		  void *context)
{
	return kf_c_fabric(user, attr, fabric, context);
}
EXPORT_SYMBOL_GPL(kfi_fabric_by);

int (kfi_fabric)(struct kfi_fabric_attr *attr, struct kfid_fabric **fabric, void *context)
{
	return kf_c_fabric(NULL, attr, fabric, context);
}
EXPORT_SYMBOL_GPL(kfi_fabric);

int kfi_provider_register_by(struct kfi_provider *provider, struct module *owner)
{
	return kf_c_provider_register(provider, owner);
}
EXPORT_SYMBOL_GPL(kfi_provider_register_by);

/*
 * For a call through a function pointer: the calling module is unknown, so
 * references do not hold it.
 */
int (kfi_provider_register)(struct kfi_provider *provider)
{
	return kf_c_provider_register(provider, NULL);
}
EXPORT_SYMBOL_GPL(kfi_provider_register);

int kfi_provider_deregister(struct kfi_provider *provider)
{
	return kf_c_provider_deregister(provider);
}
EXPORT_SYMBOL_GPL(kfi_provider_deregister);

int kfi_grant_add(const struct kfi_grant_attr *attr, u64 *id)
{
	u64 netns = 0, process = 0;

	if (!attr || !id || !(attr->match & KFI_MATCH_NETNS) != !attr->net ||
	    !(attr->match & KFI_MATCH_PROCESS) != !attr->process)
		return -EINVAL;
	if (attr->net)
		netns = attr->net->net_cookie;
	if (attr->process) {
		if (kf_auth_pid_gone(attr->process))
			return -ESRCH;
		process = attr->process->ino;
	}
	return kf_c_grant_add(attr, netns, process, id);
}
EXPORT_SYMBOL_GPL(kfi_grant_add);

int kfi_grant_limit(u64 id, u64 max_pinned, u32 max_keys, u32 max_eps)
{
	return kf_c_grant_limit(id, max_pinned, max_keys, max_eps);
}
EXPORT_SYMBOL_GPL(kfi_grant_limit);

int kfi_grant_extend(u64 id, u64 lifetime_ms)
{
	return kf_c_grant_extend(id, lifetime_ms);
}
EXPORT_SYMBOL_GPL(kfi_grant_extend);

int kfi_grant_revoke(u64 id)
{
	return kf_c_grant_revoke(id);
}
EXPORT_SYMBOL_GPL(kfi_grant_revoke);

bool kfi_auth_enforced(void)
{
	return kf_c_auth_enforced();
}
EXPORT_SYMBOL_GPL(kfi_auth_enforced);

int kfi_dax_open(const char *path, u64 access, kfi_dax_handler handler, struct kfid_dax **dax,
		 void *context)
{
	return kf_c_dax_open(path, access, handler, dax, context);
}
EXPORT_SYMBOL_GPL(kfi_dax_open);

void *kfi_dax_address(struct kfid_dax *dax, u64 offset, u64 *len)
{
	return kf_c_dax_address(dax, offset, len);
}
EXPORT_SYMBOL_GPL(kfi_dax_address);

struct kfi_written *kfi_written_alloc(void)
{
	return kf_c_written_alloc();
}
EXPORT_SYMBOL_GPL(kfi_written_alloc);

void kfi_written_free(struct kfi_written *written)
{
	kf_c_written_free(written);
}
EXPORT_SYMBOL_GPL(kfi_written_free);

int kfi_written_note(struct kfi_written *written, const struct kfi_rma_iov *range)
{
	return kf_c_written_note(written, range);
}
EXPORT_SYMBOL_GPL(kfi_written_note);

void kfi_written_forget(struct kfi_written *written, u64 key)
{
	kf_c_written_forget(written, key);
}
EXPORT_SYMBOL_GPL(kfi_written_forget);

bool kfi_written_take(struct kfi_written *written, size_t most, struct kfi_rma_iov *range)
{
	return kf_c_written_take(written, most, range);
}
EXPORT_SYMBOL_GPL(kfi_written_take);

static void free_one(struct kfi_info *info)
{
	kfree(info->src_addr);
	kfree(info->dest_addr);
	kfree(info->tx_attr);
	kfree(info->rx_attr);
	if (info->ep_attr)
		kfree_sensitive(info->ep_attr->auth_key);
	kfree(info->ep_attr);
	if (info->domain_attr) {
		kfree(info->domain_attr->name);
		kfree_sensitive(info->domain_attr->auth_key);
	}
	kfree(info->domain_attr);
	if (info->fabric_attr) {
		kfree(info->fabric_attr->name);
		kfree(info->fabric_attr->prov_name);
	}
	kfree(info->fabric_attr);
	kfree(info);
}

void kfi_freeinfo(struct kfi_info *info)
{
	while (info) {
		struct kfi_info *next = info->next;

		free_one(info);
		info = next;
	}
}
EXPORT_SYMBOL_GPL(kfi_freeinfo);

struct kfi_info *kfi_allocinfo(void)
{
	struct kfi_info *info = kzalloc_obj(*info);

	if (!info)
		return NULL;
	info->tx_attr = kzalloc_obj(*info->tx_attr);
	info->rx_attr = kzalloc_obj(*info->rx_attr);
	info->ep_attr = kzalloc_obj(*info->ep_attr);
	info->domain_attr = kzalloc_obj(*info->domain_attr);
	info->fabric_attr = kzalloc_obj(*info->fabric_attr);
	if (!info->tx_attr || !info->rx_attr || !info->ep_attr || !info->domain_attr ||
	    !info->fabric_attr) {
		free_one(info);
		return NULL;
	}
	return info;
}
EXPORT_SYMBOL_GPL(kfi_allocinfo);

/*
 * Copies @len bytes unless @from is NULL. Returns false if there is no memory.
 */
static bool dup_bytes(void *to, const void *from, size_t len)
{
	void *copy = NULL;

	if (from && len) {
		copy = kmemdup(from, len, GFP_KERNEL);
		if (!copy)
			return false;
	}
	*(void **)to = copy;
	return true;
}

static bool dup_text(char **to, const char *from)
{
	return dup_bytes(to, from, from ? strlen(from) + 1 : 0);
}

static bool dup_ep(struct kfi_info *to, const struct kfi_ep_attr *from)
{
	if (!dup_bytes(&to->ep_attr, from, sizeof(*from)))
		return false;
	if (!from)
		return true;
	to->ep_attr->auth_key = NULL;
	return dup_bytes(&to->ep_attr->auth_key, from->auth_key, from->auth_key_size);
}

static bool dup_domain(struct kfi_info *to, const struct kfi_domain_attr *from)
{
	if (!dup_bytes(&to->domain_attr, from, sizeof(*from)))
		return false;
	if (!from)
		return true;
	to->domain_attr->name = NULL;
	to->domain_attr->auth_key = NULL;
	return dup_text(&to->domain_attr->name, from->name) &&
	       dup_bytes(&to->domain_attr->auth_key, from->auth_key, from->auth_key_size);
}

static bool dup_fabric(struct kfi_info *to, const struct kfi_fabric_attr *from)
{
	if (!dup_bytes(&to->fabric_attr, from, sizeof(*from)))
		return false;
	if (!from)
		return true;
	to->fabric_attr->name = NULL;
	to->fabric_attr->prov_name = NULL;
	return dup_text(&to->fabric_attr->name, from->name) &&
	       dup_text(&to->fabric_attr->prov_name, from->prov_name);
}

struct kfi_info *kfi_dupinfo(const struct kfi_info *info)
{
	struct kfi_info *to;

	if (!info)
		return kfi_allocinfo();
	to = kzalloc_obj(*to);
	if (!to)
		return NULL;
	to->caps = info->caps;
	to->mode = info->mode;
	to->addr_format = info->addr_format;
	to->src_addrlen = info->src_addrlen;
	to->dest_addrlen = info->dest_addrlen;
	to->handle = info->handle;
	if (dup_bytes(&to->src_addr, info->src_addr, info->src_addrlen) &&
	    dup_bytes(&to->dest_addr, info->dest_addr, info->dest_addrlen) &&
	    dup_bytes(&to->tx_attr, info->tx_attr, sizeof(*info->tx_attr)) &&
	    dup_bytes(&to->rx_attr, info->rx_attr, sizeof(*info->rx_attr)) &&
	    dup_ep(to, info->ep_attr) && dup_domain(to, info->domain_attr) &&
	    dup_fabric(to, info->fabric_attr))
		return to;
	free_one(to);
	return NULL;
}
EXPORT_SYMBOL_GPL(kfi_dupinfo);

void kf_c_init_fid(struct kfid *fid, size_t fclass, void *context, struct kfi_ops *ops)
{
	fid->fclass = fclass;
	fid->context = context;
	fid->ops = ops;
	kfi_init_id(fid);
}

char *kf_c_text(const u8 *text, size_t len)
{
	return kmemdup_nul((const char *)text, len, GFP_KERNEL);
}

void *kf_c_copy(const void *bytes, size_t len)
{
	return kmemdup(bytes, len, GFP_KERNEL);
}

/* Copies a string; returns whether it fits. */
bool kf_c_name(u8 *to, size_t size, const char *from)
{
	return strscpy_pad((char *)to, from, size) >= 0;
}

/* Converts address and port from text. @addr has room for 28 bytes. */
int kf_c_address(struct net *net, const char *node, const char *service, u8 *addr, u32 *len)
{
	struct sockaddr_storage found = {};
	int err;

	err = inet_pton_with_scope(net, AF_UNSPEC, node ?: "0.0.0.0", service, &found);
	if (err)
		return -EINVAL;
	*len = found.ss_family == AF_INET6 ? 28 : 16;
	memcpy(addr, &found, *len);
	return 0;
}

/*
 * Returns the page of a kernel address, or NULL if the address is not memory.
 */
struct page *kf_c_page(const void *addr)
{
	if (is_vmalloc_addr(addr))
		return vmalloc_to_page(addr);
	return virt_addr_valid(addr) ? virt_to_page(addr) : NULL;
}

/* Returns the physical address of linearly mapped memory, or U64_MAX. */
u64 kf_c_phys(const void *addr)
{
	return !is_vmalloc_addr(addr) && virt_addr_valid(addr) ? virt_to_phys((void *)addr) :
								 U64_MAX;
}

u64 kf_c_page_phys(struct page *page)
{
	return page_to_phys(page);
}

/* Returns the page that is @index pages after @page in memory. */
struct page *kf_c_page_of(struct page *page, size_t index)
{
	return pfn_to_page(page_to_pfn(page) + index);
}

/* Stores the fields of a scatterlist's entry. Returns the next entry. */
const struct scatterlist *kf_c_sg(const struct scatterlist *sg, struct page **page,
				  size_t *offset, size_t *len)
{
	*page = sg_page((struct scatterlist *)sg);
	*offset = sg->offset;
	*len = sg->length;
	return sg_next((struct scatterlist *)sg);
}

void kf_c_provider_init(struct kfi_provider *provider, struct module *owner)
{
	provider->context.internal[0] = owner;
	init_completion(&provider->comp);
	atomic_set(&provider->ref_cnt, 1);
}

/*
 * Takes a reference to a registered provider. Returns false if its module is
 * being unloaded.
 */
bool kf_c_provider_get(struct kfi_provider *provider)
{
	if (!try_module_get(provider->context.internal[0]))
		return false;
	atomic_inc(&provider->ref_cnt);
	return true;
}

void kf_c_provider_put(struct kfi_provider *provider)
{
	kfi_deref_provider(provider);
}

/*
 * Drops the registration's reference, which does not hold the module. Waits
 * until all other references are dropped.
 */
void kf_c_provider_end(struct kfi_provider *provider)
{
	if (!atomic_dec_and_test(&provider->ref_cnt))
		wait_for_completion(&provider->comp);
}

struct kfi_ops_tagged kf_c_no_tagged = {
	.size		= sizeof(struct kfi_ops_tagged),
	.recv		= kfi_no_tagged_recv,
	.recvv		= kfi_no_tagged_recvv,
	.recvbv		= kfi_no_tagged_recvbv,
	.recvmsg	= kfi_no_tagged_recvmsg,
	.send		= kfi_no_tagged_send,
	.sendv		= kfi_no_tagged_sendv,
	.sendbv		= kfi_no_tagged_sendbv,
	.sendmsg	= kfi_no_tagged_sendmsg,
	.inject		= kfi_no_tagged_inject,
	.senddata	= kfi_no_tagged_senddata,
	.injectdata	= kfi_no_tagged_injectdata,
	.recvsgl	= kfi_no_tagged_recvsgl,
	.sendsgl	= kfi_no_tagged_sendsgl,
};

static int by_first(const void *a, const void *b)
{
	u64 x = *(const u64 *)a, y = *(const u64 *)b;

	return x < y ? -1 : x > y;
}

void kf_c_sort(void *parts, size_t n, size_t size)
{
	sort(parts, n, size, by_first, NULL);
}
