// SPDX-License-Identifier: GPL-2.0
/*
 * /sys/kernel/config/kfblk: objects that are made by mkdir, as nvmet's are.
 *
 *   subsystems/NAME	exports
 *   ports/NAME		addresses; ports/NAME/subsystems/ has links to exports
 *   disks/NAME		block devices of this host, by exports of targets
 */
#include <linux/configfs.h>
#include <linux/err.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "helpers.h"

struct kfblk_item {
	struct config_group group;
	struct config_group links;
	enum kfblk_kind kind;
	void *object;
};

static struct kfblk_item *to_kfblk(struct config_item *item)
{
	return container_of(to_config_group(item), struct kfblk_item, group);
}

static ssize_t kfblk_show(struct config_item *item, u32 attr, char *page)
{
	struct kfblk_item *of = to_kfblk(item);

	return kfblk_rs_show(of->kind, of->object, attr, page);
}

static ssize_t kfblk_store(struct config_item *item, u32 attr, const char *page, size_t len)
{
	struct kfblk_item *of = to_kfblk(item);
	int ret = kfblk_rs_store(of->kind, of->object, attr, page, len);

	return ret ? ret : len;
}

#define KFBLK_SHOW(_prefix, _name, _id)							\
static ssize_t _prefix##_name##_show(struct config_item *item, char *page)		\
{											\
	return kfblk_show(item, _id, page);						\
}

#define KFBLK_STORE(_prefix, _name, _id)						\
static ssize_t _prefix##_name##_store(struct config_item *item, const char *page,	\
				      size_t len)					\
{											\
	return kfblk_store(item, _id, page, len);					\
}

/* As KFBLK_STORE, for a secret: wipes the page into which configfs has copied the value. */
#define KFBLK_STORE_SECRET(_prefix, _name, _id)						\
static ssize_t _prefix##_name##_store(struct config_item *item, const char *page,	\
				      size_t len)					\
{											\
	ssize_t ret = kfblk_store(item, _id, page, len);				\
											\
	memzero_explicit((void *)page, len);						\
	return ret;									\
}

KFBLK_SHOW(subsystem_, attr_size, KFBLK_SUBSYSTEM_ATTR_SIZE)
KFBLK_STORE(subsystem_, attr_size, KFBLK_SUBSYSTEM_ATTR_SIZE)
CONFIGFS_ATTR(subsystem_, attr_size);
KFBLK_SHOW(subsystem_, attr_read_only, KFBLK_SUBSYSTEM_ATTR_READ_ONLY)
KFBLK_STORE(subsystem_, attr_read_only, KFBLK_SUBSYSTEM_ATTR_READ_ONLY)
CONFIGFS_ATTR(subsystem_, attr_read_only);
KFBLK_SHOW(subsystem_, enable, KFBLK_SUBSYSTEM_ENABLE)
KFBLK_STORE(subsystem_, enable, KFBLK_SUBSYSTEM_ENABLE)
CONFIGFS_ATTR(subsystem_, enable);
KFBLK_SHOW(subsystem_, clients, KFBLK_SUBSYSTEM_CLIENTS)
CONFIGFS_ATTR_RO(subsystem_, clients);
KFBLK_SHOW(subsystem_, fence, KFBLK_SUBSYSTEM_FENCE)
KFBLK_STORE(subsystem_, fence, KFBLK_SUBSYSTEM_FENCE)
CONFIGFS_ATTR(subsystem_, fence);
KFBLK_STORE(subsystem_, admit, KFBLK_SUBSYSTEM_ADMIT)
CONFIGFS_ATTR_WO(subsystem_, admit);
KFBLK_SHOW(subsystem_, attr_allow_any_host, KFBLK_SUBSYSTEM_ATTR_ALLOW_ANY_HOST)
KFBLK_STORE(subsystem_, attr_allow_any_host, KFBLK_SUBSYSTEM_ATTR_ALLOW_ANY_HOST)
CONFIGFS_ATTR(subsystem_, attr_allow_any_host);
KFBLK_STORE_SECRET(subsystem_, auth_key, KFBLK_SUBSYSTEM_AUTH_KEY)
CONFIGFS_ATTR_WO(subsystem_, auth_key);
KFBLK_SHOW(subsystem_, allowed_hosts, KFBLK_SUBSYSTEM_ALLOWED_HOSTS)
CONFIGFS_ATTR_RO(subsystem_, allowed_hosts);
KFBLK_SHOW(subsystem_, statistics, KFBLK_SUBSYSTEM_STATISTICS)
CONFIGFS_ATTR_RO(subsystem_, statistics);

KFBLK_SHOW(subsystem_, attr_pmem, KFBLK_SUBSYSTEM_ATTR_PMEM)
KFBLK_STORE(subsystem_, attr_pmem, KFBLK_SUBSYSTEM_ATTR_PMEM)
CONFIGFS_ATTR(subsystem_, attr_pmem);
KFBLK_SHOW(subsystem_, device_path, KFBLK_SUBSYSTEM_DEVICE_PATH)
KFBLK_STORE(subsystem_, device_path, KFBLK_SUBSYSTEM_DEVICE_PATH)
CONFIGFS_ATTR(subsystem_, device_path);
KFBLK_SHOW(subsystem_, device_uuid, KFBLK_SUBSYSTEM_DEVICE_UUID)
KFBLK_STORE(subsystem_, device_uuid, KFBLK_SUBSYSTEM_DEVICE_UUID)
CONFIGFS_ATTR(subsystem_, device_uuid);
KFBLK_STORE(subsystem_, revalidate_size, KFBLK_SUBSYSTEM_REVALIDATE_SIZE)
CONFIGFS_ATTR_WO(subsystem_, revalidate_size);

/* Reads complete lists. Other attributes are limited to a page. */
#define KFBLK_ALL(_name, _id)								\
static ssize_t subsystem_##_name##_read(struct config_item *item, void *buf, size_t len)\
{											\
	return kfblk_rs_show_all(to_kfblk(item)->object, _id, buf, len);		\
}											\
CONFIGFS_BIN_ATTR_RO(subsystem_, _name, NULL, 0)

KFBLK_ALL(all_clients, KFBLK_SUBSYSTEM_CLIENTS);
KFBLK_ALL(all_fenced, KFBLK_SUBSYSTEM_FENCE);
KFBLK_ALL(all_allowed_hosts, KFBLK_SUBSYSTEM_ALLOWED_HOSTS);
KFBLK_ALL(all_statistics, KFBLK_SUBSYSTEM_STATISTICS);

static struct configfs_bin_attribute *kfblk_subsystem_bin_attrs[] = {
	&subsystem_attr_all_clients,
	&subsystem_attr_all_fenced,
	&subsystem_attr_all_allowed_hosts,
	&subsystem_attr_all_statistics,
	NULL,
};

static struct configfs_attribute *kfblk_subsystem_attrs[] = {
	&subsystem_attr_device_path,
	&subsystem_attr_device_uuid,
	&subsystem_attr_revalidate_size,
	&subsystem_attr_attr_size,
	&subsystem_attr_attr_read_only,
	&subsystem_attr_attr_pmem,
	&subsystem_attr_enable,
	&subsystem_attr_clients,
	&subsystem_attr_fence,
	&subsystem_attr_admit,
	&subsystem_attr_attr_allow_any_host,
	&subsystem_attr_auth_key,
	&subsystem_attr_allowed_hosts,
	&subsystem_attr_statistics,
	NULL,
};

KFBLK_SHOW(port_, addr_trtype, KFBLK_PORT_ADDR_TRTYPE)
KFBLK_STORE(port_, addr_trtype, KFBLK_PORT_ADDR_TRTYPE)
CONFIGFS_ATTR(port_, addr_trtype);
KFBLK_SHOW(port_, addr_traddr, KFBLK_PORT_ADDR_TRADDR)
KFBLK_STORE(port_, addr_traddr, KFBLK_PORT_ADDR_TRADDR)
CONFIGFS_ATTR(port_, addr_traddr);
KFBLK_SHOW(port_, addr_trsvcid, KFBLK_PORT_ADDR_TRSVCID)
KFBLK_STORE(port_, addr_trsvcid, KFBLK_PORT_ADDR_TRSVCID)
CONFIGFS_ATTR(port_, addr_trsvcid);

static struct configfs_attribute *kfblk_port_attrs[] = {
	&port_attr_addr_trtype,
	&port_attr_addr_traddr,
	&port_attr_addr_trsvcid,
	NULL,
};

KFBLK_SHOW(disk_, addr_trtype, KFBLK_DISK_ADDR_TRTYPE)
KFBLK_STORE(disk_, addr_trtype, KFBLK_DISK_ADDR_TRTYPE)
CONFIGFS_ATTR(disk_, addr_trtype);
KFBLK_SHOW(disk_, addr_traddr, KFBLK_DISK_ADDR_TRADDR)
KFBLK_STORE(disk_, addr_traddr, KFBLK_DISK_ADDR_TRADDR)
CONFIGFS_ATTR(disk_, addr_traddr);
KFBLK_SHOW(disk_, addr_trsvcid, KFBLK_DISK_ADDR_TRSVCID)
KFBLK_STORE(disk_, addr_trsvcid, KFBLK_DISK_ADDR_TRSVCID)
CONFIGFS_ATTR(disk_, addr_trsvcid);
KFBLK_SHOW(disk_, subsystem, KFBLK_DISK_SUBSYSTEM)
KFBLK_STORE(disk_, subsystem, KFBLK_DISK_SUBSYSTEM)
CONFIGFS_ATTR(disk_, subsystem);
KFBLK_SHOW(disk_, client, KFBLK_DISK_CLIENT)
KFBLK_STORE(disk_, client, KFBLK_DISK_CLIENT)
CONFIGFS_ATTR(disk_, client);
KFBLK_SHOW(disk_, nr_io_queues, KFBLK_DISK_NR_IO_QUEUES)
KFBLK_STORE(disk_, nr_io_queues, KFBLK_DISK_NR_IO_QUEUES)
CONFIGFS_ATTR(disk_, nr_io_queues);
KFBLK_SHOW(disk_, ctrl_loss_tmo, KFBLK_DISK_CTRL_LOSS_TMO)
KFBLK_STORE(disk_, ctrl_loss_tmo, KFBLK_DISK_CTRL_LOSS_TMO)
CONFIGFS_ATTR(disk_, ctrl_loss_tmo);
KFBLK_SHOW(disk_, reconnect_delay, KFBLK_DISK_RECONNECT_DELAY)
KFBLK_STORE(disk_, reconnect_delay, KFBLK_DISK_RECONNECT_DELAY)
CONFIGFS_ATTR(disk_, reconnect_delay);
KFBLK_SHOW(disk_, enable, KFBLK_DISK_ENABLE)
KFBLK_STORE(disk_, enable, KFBLK_DISK_ENABLE)
CONFIGFS_ATTR(disk_, enable);
KFBLK_SHOW(disk_, state, KFBLK_DISK_STATE)
CONFIGFS_ATTR_RO(disk_, state);
KFBLK_SHOW(disk_, device, KFBLK_DISK_DEVICE)
CONFIGFS_ATTR_RO(disk_, device);
KFBLK_STORE_SECRET(disk_, auth_key, KFBLK_DISK_AUTH_KEY)
CONFIGFS_ATTR_WO(disk_, auth_key);
KFBLK_SHOW(disk_, fast_io_fail_tmo, KFBLK_DISK_FAST_IO_FAIL_TMO)
KFBLK_STORE(disk_, fast_io_fail_tmo, KFBLK_DISK_FAST_IO_FAIL_TMO)
CONFIGFS_ATTR(disk_, fast_io_fail_tmo);
KFBLK_SHOW(disk_, statistics, KFBLK_DISK_STATISTICS)
CONFIGFS_ATTR_RO(disk_, statistics);

static struct configfs_attribute *kfblk_disk_attrs[] = {
	&disk_attr_addr_trtype,
	&disk_attr_addr_traddr,
	&disk_attr_addr_trsvcid,
	&disk_attr_subsystem,
	&disk_attr_client,
	&disk_attr_nr_io_queues,
	&disk_attr_ctrl_loss_tmo,
	&disk_attr_fast_io_fail_tmo,
	&disk_attr_reconnect_delay,
	&disk_attr_enable,
	&disk_attr_state,
	&disk_attr_device,
	&disk_attr_auth_key,
	&disk_attr_statistics,
	NULL,
};

static void kfblk_item_release(struct config_item *item)
{
	struct kfblk_item *of = to_kfblk(item);

	kfblk_rs_put(of->kind, of->object);
	kfree(of);
}

static const struct configfs_item_operations kfblk_item_ops = {
	.release	= kfblk_item_release,
};

static const struct config_item_type kfblk_subsystem_type = {
	.ct_item_ops	= &kfblk_item_ops,
	.ct_attrs	= kfblk_subsystem_attrs,
	.ct_bin_attrs	= kfblk_subsystem_bin_attrs,
	.ct_owner	= THIS_MODULE,
};

static const struct config_item_type kfblk_port_type = {
	.ct_item_ops	= &kfblk_item_ops,
	.ct_attrs	= kfblk_port_attrs,
	.ct_owner	= THIS_MODULE,
};

static const struct config_item_type kfblk_disk_type = {
	.ct_item_ops	= &kfblk_item_ops,
	.ct_attrs	= kfblk_disk_attrs,
	.ct_owner	= THIS_MODULE,
};

static int kfblk_allow_link(struct config_item *parent, struct config_item *target)
{
	struct kfblk_item *port = to_kfblk(parent->ci_parent);

	if (target->ci_type != &kfblk_subsystem_type)
		return -EINVAL;
	return kfblk_rs_link(port->object, to_kfblk(target)->object);
}

static void kfblk_drop_link(struct config_item *parent, struct config_item *target)
{
	struct kfblk_item *port = to_kfblk(parent->ci_parent);

	kfblk_rs_unlink(port->object, to_kfblk(target)->object);
}

static const struct configfs_item_operations kfblk_links_ops = {
	.allow_link	= kfblk_allow_link,
	.drop_link	= kfblk_drop_link,
};

static const struct config_item_type kfblk_links_type = {
	.ct_item_ops	= &kfblk_links_ops,
	.ct_owner	= THIS_MODULE,
};

static struct config_group *kfblk_make(enum kfblk_kind kind, const struct config_item_type *type,
				       const char *name)
{
	struct kfblk_item *of = kzalloc(sizeof(*of), GFP_KERNEL);
	int err = 0;

	if (!of)
		return ERR_PTR(-ENOMEM);
	of->kind = kind;
	of->object = kfblk_rs_make(kind, name, &err);
	if (err) {
		kfree(of);
		return ERR_PTR(err);
	}
	config_group_init_type_name(&of->group, name, type);
	if (kind == KFBLK_PORT) {
		config_group_init_type_name(&of->links, "subsystems", &kfblk_links_type);
		configfs_add_default_group(&of->links, &of->group);
	}
	return &of->group;
}

static void kfblk_drop(struct config_group *group, struct config_item *item)
{
	struct kfblk_item *of = to_kfblk(item);

	kfblk_rs_end(of->kind, of->object);
	config_item_put(item);
}

#define KFBLK_FOLDER(_name, _kind)							\
static struct config_group *kfblk_##_name##_make(struct config_group *group,		\
						 const char *name)			\
{											\
	return kfblk_make(_kind, &kfblk_##_name##_type, name);				\
}											\
static const struct configfs_group_operations kfblk_##_name##s_ops = {			\
	.make_group	= kfblk_##_name##_make,						\
	.drop_item	= kfblk_drop,							\
};											\
static const struct config_item_type kfblk_##_name##s_type = {				\
	.ct_group_ops	= &kfblk_##_name##s_ops,					\
	.ct_owner	= THIS_MODULE,							\
};											\
static struct config_group kfblk_##_name##s

KFBLK_FOLDER(subsystem, KFBLK_SUBSYSTEM);
KFBLK_FOLDER(port, KFBLK_PORT);
KFBLK_FOLDER(disk, KFBLK_DISK);

static const struct config_item_type kfblk_root_type = {
	.ct_owner	= THIS_MODULE,
};

static struct configfs_subsystem kfblk_root = {
	.su_group = {
		.cg_item = {
			.ci_namebuf	= "kfblk",
			.ci_type	= &kfblk_root_type,
		},
	},
};

int kfblk_configfs_init(void)
{
	struct config_group *root = &kfblk_root.su_group;

	config_group_init(root);
	mutex_init(&kfblk_root.su_mutex);
	config_group_init_type_name(&kfblk_subsystems, "subsystems", &kfblk_subsystems_type);
	configfs_add_default_group(&kfblk_subsystems, root);
	config_group_init_type_name(&kfblk_ports, "ports", &kfblk_ports_type);
	configfs_add_default_group(&kfblk_ports, root);
	config_group_init_type_name(&kfblk_disks, "disks", &kfblk_disks_type);
	configfs_add_default_group(&kfblk_disks, root);
	return configfs_register_subsystem(&kfblk_root);
}

void kfblk_configfs_exit(void)
{
	configfs_unregister_subsystem(&kfblk_root);
	mutex_destroy(&kfblk_root.su_mutex);
}
