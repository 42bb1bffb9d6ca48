// SPDX-License-Identifier: GPL-2.0
/*
 * Test between two nodes. A write of "ADDRESS PORT" to /sys/kernel/debug/kfi_test_c_lnd/serve serves
 * one peer there; a write to connect is that peer. Both writes return when the test has ended, with
 * its error. They use the network namespace of the writing task.
 */
#include <linux/cleanup.h>
#include <linux/debugfs.h>
#include <linux/fs.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/uaccess.h>

#include "lnd.h"

#define ROUNDS		50
#define TEXT_MAX	80

static const char *lnd_provider;
static struct dentry *folder;

/* Serves until the peer disconnects. */
static int serve(struct lnd_dev *dev, struct lnd_ep *ep, char *node, char *service)
{
	struct kfi_eq_cm_entry entry;
	ssize_t got;
	u32 event;
	int err;

	err = lnd_dev_open(dev, lnd_provider, node, service, KFI_SOURCE);
	err = err ?: lnd_dev_listen(dev);
	err = err ?: lnd_dev_accept(dev, ep);
	err = err ?: lnd_connected(ep);
	if (err)
		return err;
	got = kfi_eq_sread(ep->eq, &event, &entry, sizeof(entry), 10 * LND_LIMIT_MS, 0);
	if (got < 0)
		return got;
	return event == KFI_SHUTDOWN ? 0 : -EPROTO;
}

/* Writes data to the peer and reads it back, in all sizes. */
static int connect(struct lnd_dev *dev, struct lnd_ep *ep, char *node, char *service)
{
	int i, err;

	err = lnd_dev_open(dev, lnd_provider, node, service, 0);
	err = err ?: lnd_ep_open(ep, dev->fabric, dev->domain, dev->info);
	err = err ?: kfi_connect(ep->ep, NULL, NULL, 0);
	err = err ?: lnd_connected(ep);
	for (i = 0; !err && i < ROUNDS; i++) {
		int pages = 1 + i % LND_PAGES;

		lnd_paint(ep, 3 * i + 1);
		err = lnd_request(ep, LND_PUT, pages);
		lnd_paint(ep, 0);
		err = err ?: lnd_request(ep, LND_GET, pages);
		err = err ?: lnd_painted(ep, 3 * i + 1, pages);
	}
	return err;
}

static ssize_t run(const char __user *from, size_t len,
		   int (*role)(struct lnd_dev *dev, struct lnd_ep *ep, char *node, char *service))
{
	struct lnd_ep *ep __free(kfree) = kzalloc_obj(*ep);
	char text[TEXT_MAX], *node, *service;
	struct lnd_dev dev = {};
	int err, closed;

	if (!ep)
		return -ENOMEM;
	if (len >= sizeof(text))
		return -EINVAL;
	if (copy_from_user(text, from, len))
		return -EFAULT;
	text[len] = 0;
	service = strim(text);
	node = strsep(&service, " ");
	if (!service)
		return -EINVAL;
	err = role(&dev, ep, node, service);
	lnd_ep_close(ep);
	closed = lnd_dev_close(&dev);
	if (!err && atomic_read(&ep->strange))
		err = -EPROTO;
	return err ?: closed ?: len;
}

static ssize_t write_serve(struct file *file, const char __user *from, size_t len, loff_t *at)
{
	return run(from, len, serve);
}

static ssize_t write_connect(struct file *file, const char __user *from, size_t len, loff_t *at)
{
	return run(from, len, connect);
}

static const struct file_operations serve_fops = {
	.owner	= THIS_MODULE,
	.open	= simple_open,
	.write	= write_serve,
};

static const struct file_operations connect_fops = {
	.owner	= THIS_MODULE,
	.open	= simple_open,
	.write	= write_connect,
};

void lnd_nodes_init(const char *provider)
{
	lnd_provider = provider;
	folder = debugfs_create_dir("kfi_test_c_lnd", NULL);
	debugfs_create_file("serve", 0200, folder, NULL, &serve_fops);
	debugfs_create_file("connect", 0200, folder, NULL, &connect_fops);
}

void lnd_nodes_exit(void)
{
	debugfs_remove(folder);
}
