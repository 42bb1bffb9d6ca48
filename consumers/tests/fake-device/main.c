// SPDX-License-Identifier: GPL-2.0
/*
 * kfi_fake_device: makes rxe devices behave like other cards.
 *
 * rxe allows one GSI queue pair on a port, so a second ib_device over it could not connect.
 * Therefore the devices themselves are changed: their limits, and those verbs that a provider of
 * verbs calls. The changes are undone when the module is unloaded, and when a device is removed.
 *
 * A client that registers later sees the changed device from the beginning. An earlier one sees new
 * limits and verbs at once, but its objects may have been made under the old ones.
 *
 * Settings are words `name=value` for the file `settings` in debugfs, or for the parameter of the
 * same name. The file `counters` has a line for each verb: its name, calls, refused calls.
 */
#include <linux/debugfs.h>
#include <linux/module.h>
#include <linux/platform_device.h>
#include <linux/rcupdate.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/uaccess.h>

#include "fake.h"

struct ib_device_ops fake_real;
atomic_t fake_inside = ATOMIC_INIT(0);

/* Protects the list, the settings and the changes to devices. */
static DEFINE_MUTEX(lock);
static LIST_HEAD(fakes);
static struct dentry *dir;
/* The device behind DMA that is said to bounce. */
static struct platform_device *bouncer;

static char *settings;
module_param(settings, charp, 0400);
MODULE_PARM_DESC(settings, "words name=value, as for the file settings in debugfs");

/* Lists change only by additions until the module is unloaded, so readers need no lock. */
struct fake *fake_find(struct ib_device *dev)
{
	struct fake *fake, *found = NULL;

	rcu_read_lock();
	list_for_each_entry_rcu(fake, &fakes, list)
		if (fake->dev == dev && !READ_ONCE(fake->gone))
			found = fake;
	rcu_read_unlock();
	return found;
}

/* Returns the pool of the objects that a limit bounds. */
static struct rxe_pool *pool_of(struct rxe_dev *rxe, enum fake_limit limit)
{
	switch (limit) {
	case FAKE_MAX_QP:
		return &rxe->qp_pool;
	case FAKE_MAX_CQ:
		return &rxe->cq_pool;
	case FAKE_MAX_MR:
		return &rxe->mr_pool;
	default:
		return &rxe->pd_pool;
	}
}

static u32 *place_of(struct ib_device_attr *attrs, enum fake_limit limit)
{
	return (u32 *)((char *)attrs + fake_limits[limit].offset);
}

static void set_limit(struct ib_device_attr *attrs, enum fake_limit limit, u32 value)
{
	WRITE_ONCE(*place_of(attrs, limit), value);
}

static u32 limit_of(struct ib_device_attr *attrs, enum fake_limit limit)
{
	return *place_of(attrs, limit);
}

static void restore(struct fake *fake)
{
	struct rxe_dev *rxe = to_rdev(fake->dev);
	enum fake_limit i;

	fake->dev->ops = fake->ops;
	fake->dev->attrs = fake->attrs;
	fake->dev->dma_device = NULL;
	fake->dev->cc_dma_bounce = 0;
	rxe->attr = fake->rxe_attr;
	rxe->mr_pool.limit = fake->mr_limit;
	for (i = 0; i < FAKE_OBJECTS; i++)
		pool_of(rxe, i)->max_elem = fake->max_elem[i];
}

/* Applies the settings. Calls run meanwhile, so each value goes from the old to the new one at once. */
static void apply(struct fake *fake)
{
	struct ib_device *dev = fake->dev;
	struct rxe_dev *rxe = to_rdev(dev);
	unsigned int bits = fake_settings.index_bits;
	enum fake_limit i;

	for (i = 0; i < FAKE_LIMIT_COUNT; i++) {
		s64 limit = fake_settings.limits[i];

		set_limit(&dev->attrs, i, limit < 0 ? limit_of(&fake->attrs, i) : limit);
		set_limit(&rxe->attr, i, limit < 0 ? limit_of(&fake->rxe_attr, i) : limit);
		if (i < FAKE_OBJECTS)
			WRITE_ONCE(pool_of(rxe, i)->max_elem,
				   limit < 0 ? fake->max_elem[i] : limit);
	}
	WRITE_ONCE(rxe->mr_pool.limit.max,
		   bits ? min_t(u32, BIT(bits) - 1, fake->mr_limit.max) : fake->mr_limit.max);
	WRITE_ONCE(dev->ops.rereg_user_mr,
		   fake_settings.rereg ? fake->ops.rereg_user_mr : NULL);
	WRITE_ONCE(dev->dma_device, fake_settings.bounces ? &bouncer->dev : NULL);
	dev->cc_dma_bounce = fake_settings.bounces;
	fake_hook(&dev->ops);
}

void fake_apply_all(void)
{
	struct fake *fake;

	list_for_each_entry(fake, &fakes, list)
		if (!fake->gone)
			apply(fake);
}

static int add(struct ib_device *dev)
{
	struct rxe_dev *rxe = to_rdev(dev);
	struct fake *fake;
	enum fake_limit i;

	if (dev->ops.driver_id != RDMA_DRIVER_RXE)
		return -EOPNOTSUPP;
	fake = kzalloc_obj(*fake);
	if (!fake)
		return -ENOMEM;
	fake->freed = kvmalloc_array(FAKE_FREED, sizeof(*fake->freed), GFP_KERNEL);
	if (!fake->freed) {
		kfree(fake);
		return -ENOMEM;
	}
	mutex_init(&fake->order);
	fake->dev = dev;
	fake->ops = dev->ops;
	fake->attrs = dev->attrs;
	fake->rxe_attr = rxe->attr;
	fake->mr_limit = rxe->mr_pool.limit;
	for (i = 0; i < FAKE_OBJECTS; i++)
		fake->max_elem[i] = pool_of(rxe, i)->max_elem;
	mutex_lock(&lock);
	fake_real = dev->ops;
	list_add_rcu(&fake->list, &fakes);
	apply(fake);
	mutex_unlock(&lock);
	return 0;
}

static void remove(struct ib_device *dev, void *unused)
{
	struct fake *fake = fake_find(dev);

	if (!fake)
		return;
	mutex_lock(&lock);
	restore(fake);
	fake_remove(fake);
	mutex_unlock(&lock);
}

static struct ib_client client = {
	.name = "kfi_fake_device",
	.add = add,
	.remove = remove,
};

static ssize_t settings_write(struct file *file, const char __user *from, size_t len, loff_t *pos)
{
	char *text = memdup_user_nul(from, len);
	int ret;

	if (IS_ERR(text))
		return PTR_ERR(text);
	mutex_lock(&lock);
	ret = fake_set(text);
	fake_apply_all();
	mutex_unlock(&lock);
	kfree(text);
	return ret ?: len;
}

static int settings_open(struct inode *inode, struct file *file)
{
	return single_open(file, fake_show, NULL);
}

static const struct file_operations settings_fops = {
	.owner = THIS_MODULE,
	.open = settings_open,
	.read = seq_read,
	.write = settings_write,
	.llseek = seq_lseek,
	.release = single_release,
};

static int counters_show(struct seq_file *s, void *unused)
{
	enum fake_verb i;

	for (i = 0; i < FAKE_VERB_COUNT; i++)
		seq_printf(s, "%s %lld %lld\n", fake_verbs[i],
			   atomic64_read(&fake_calls[i].count),
			   atomic64_read(&fake_calls[i].refused));
	seq_printf(s, "without_udata %lld 0\n", atomic64_read(&fake_without_udata));
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(counters);

static void forget(void)
{
	struct fake *fake, *next;

	/*
	 * No device has our verbs any more. Wait for the calls that had begun: first until each is
	 * counted, then until none is, then until the last has left our code.
	 */
	synchronize_rcu();
	synchronize_rcu_tasks();
	while (atomic_read(&fake_inside))
		msleep(20);
	synchronize_rcu_tasks();
	synchronize_rcu();
	fake_fence_exit();
	list_for_each_entry_safe(fake, next, &fakes, list) {
		kvfree(fake->freed);
		kfree(fake);
	}
}

static int __init fake_init(void)
{
	int ret;

	bouncer = platform_device_register_simple("kfi_fake_device", PLATFORM_DEVID_NONE, NULL, 0);
	if (IS_ERR(bouncer))
		return PTR_ERR(bouncer);
	fake_default();
	ret = settings ? fake_set(settings) : 0;
	if (ret)
		goto device;
	ret = ib_register_client(&client);
	if (ret)
		goto device;
	dir = debugfs_create_dir("kfi_fake_device", NULL);
	debugfs_create_file("settings", 0600, dir, NULL, &settings_fops);
	debugfs_create_file("counters", 0400, dir, NULL, &counters_fops);
	return 0;
device:
	platform_device_unregister(bouncer);
	return ret;
}

static void __exit fake_exit(void)
{
	debugfs_remove_recursive(dir);
	ib_unregister_client(&client);
	forget();
	platform_device_unregister(bouncer);
}

module_init(fake_init);
module_exit(fake_exit);
MODULE_DESCRIPTION("Makes rxe devices behave like other cards, for tests");
MODULE_AUTHOR("kfabric developers");
MODULE_LICENSE("GPL");
