// SPDX-License-Identifier: GPL-2.0
/*
 * kfi_test_c_msg: a write of "ADDRESS PORT" to /sys/kernel/debug/kfi_test_c_msg/serve runs a server
 * there; a write to connect runs a client. Both writes return when all connections have ended, with
 * the error. They use the network namespace of the writing task.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/debugfs.h>
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/uaccess.h>

#include "msg.h"

/* Number of connections, one after the other. */
#define CONNECTIONS	3
#define TEXT_MAX	80

static char *provider;
module_param(provider, charp, 0444);
MODULE_PARM_DESC(provider, "Name of the provider to use; without, the best");

static struct dentry *folder;

static void say(const char *role, int nth, const struct msg_conn *conn, int err)
{
	if (err)
		pr_info("%s, connection %d, %s: %d, %s\n", role, nth,
			conn->step ?: "closing", err, kfi_strerror(err));
}

static int serve(const char *node, const char *service)
{
	struct kfi_info *info = msg_info(provider, node, service, KFI_SOURCE);
	struct msg_place place = {};
	int i, err, closed;

	if (!info)
		return -ENODATA;
	err = msg_listen(&place, info);
	for (i = 0; !err && i < CONNECTIONS; i++) {
		struct msg_conn conn = {};

		err = msg_accept(&place, &conn);
		err = err ?: msg_server(&conn);
		say("server", i, &conn, err);
		/* The server's last send is complete, so it is not lost. */
		closed = msg_conn_close(&conn, true);
		say("server", i, &conn, err ? 0 : closed);
		err = err ?: closed;
	}
	closed = msg_place_close(&place);
	return err ?: closed;
}

static int connect(const char *node, const char *service)
{
	struct kfi_info *info = msg_info(provider, node, service, 0);
	int i, err = 0, closed;

	if (!info)
		return -ENODATA;
	for (i = 0; !err && i < CONNECTIONS; i++) {
		struct msg_conn conn = {};

		err = msg_connect(&conn, info);
		/* A server that does not listen yet is not reported as a failure. */
		if (!err) {
			err = msg_client(&conn);
			say("client", i, &conn, err);
		}
		closed = msg_conn_close(&conn, false);
		say("client", i, &conn, err ? 0 : closed);
		err = err ?: closed;
	}
	kfi_freeinfo(info);
	return err;
}

static ssize_t run(const char __user *from, size_t len,
		   int (*role)(const char *node, const char *service))
{
	char text[TEXT_MAX], *node, *service;
	int err;

	if (len >= sizeof(text))
		return -EINVAL;
	if (copy_from_user(text, from, len))
		return -EFAULT;
	text[len] = 0;
	service = strim(text);
	node = strsep(&service, " ");
	if (!service)
		return -EINVAL;
	err = role(node, service);
	return err ?: len;
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

static int __init msg_init(void)
{
	folder = debugfs_create_dir(KBUILD_MODNAME, NULL);
	debugfs_create_file("serve", 0200, folder, NULL, &serve_fops);
	debugfs_create_file("connect", 0200, folder, NULL, &connect_fops);
	return 0;
}
module_init(msg_init);

static void __exit msg_exit(void)
{
	debugfs_remove(folder);
}
module_exit(msg_exit);

MODULE_DESCRIPTION("A client and a server of kfabric in the kernel, in C, and their test");
MODULE_LICENSE("GPL");
