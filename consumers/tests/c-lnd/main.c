// SPDX-License-Identifier: GPL-2.0
/*
 * kfi_test_c_lnd: loading the module opens the device as Lustre's kfilnd does, connects it to
 * itself, moves data both ways, and prints results in KTAP. The load fails with EIO if a test
 * fails.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/in6.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "lnd.h"

#define ROUNDS	50

static struct lnd_dev dev;
static struct lnd_ep *client, *target;

static char *provider;
module_param(provider, charp, 0444);
MODULE_PARM_DESC(provider, "Name of the provider to use; without, the best that reaches other hosts");
static bool tests = true;
module_param(tests, bool, 0444);
MODULE_PARM_DESC(tests, "Run the tests");

static int tell(int number, const char *name, int err)
{
	if (err)
		pr_info("# failed: %d, %s\n", err, kfi_strerror(err));
	pr_info("%sok %d %s\n", err ? "not " : "", number, name);
	return err;
}

static int join(void)
{
	struct kfi_info *own = kfi_dupinfo(dev.info);
	struct sockaddr_in6 addr;
	size_t len = sizeof(addr);
	int err;

	if (!own)
		return -ENOMEM;
	err = kfi_getname(&dev.pep->fid, &addr, &len);
	err = err ?: lnd_ep_open(client, dev.fabric, dev.domain, own);
	kfi_freeinfo(own);
	err = err ?: kfi_connect(client->ep, &addr, NULL, 0);
	err = err ?: lnd_dev_accept(&dev, target);
	err = err ?: lnd_connected(client);
	return err ?: lnd_connected(target);
}

/* Moves data one way, in all sizes. */
static int move(enum lnd_kind kind)
{
	struct lnd_ep *from = kind == LND_GET ? target : client;
	struct lnd_ep *to = kind == LND_GET ? client : target;
	int i, err = 0;

	for (i = 0; !err && i < ROUNDS; i++) {
		int pages = 1 + i % LND_PAGES;

		lnd_paint(from, 3 * i);
		lnd_paint(to, 0);
		err = lnd_request(client, kind, pages);
		err = err ?: lnd_painted(to, 3 * i, pages);
	}
	return err;
}

static int nothing_strange(void)
{
	pr_info("# %u posts had to wait\n", client->replayed + target->replayed);
	return atomic_read(&client->strange) || atomic_read(&target->strange) ? -EPROTO : 0;
}

static int close_all(void)
{
	lnd_ep_close(client);
	lnd_ep_close(target);
	kfree(client);
	kfree(target);
	return lnd_dev_close(&dev);
}

/* Runs the test and returns 0 on success. */
static int test(void)
{
	int err;

	client = kzalloc_obj(*client);
	target = kzalloc_obj(*target);
	if (!client || !target) {
		kfree(client);
		kfree(target);
		return -ENOMEM;
	}
	pr_info("KTAP version 1\n");
	pr_info("1..7\n");
	err = tell(1, "domain_is_opened", lnd_dev_open(&dev, provider, NULL, NULL, 0));
	err = tell(2, "it_listens", err ?: lnd_dev_listen(&dev));
	err = tell(3, "it_connects", err ?: join());
	err = tell(4, "data_is_got", err ?: move(LND_GET));
	err = tell(5, "data_is_put", err ?: move(LND_PUT));
	err = tell(6, "nothing_strange_came", err ?: nothing_strange());
	if (tell(7, "all_is_closed", close_all()))
		err = -EIO;
	return err ? -EIO : 0;
}

static int __init lnd_init(void)
{
	int err = tests ? test() : 0;

	if (!err)
		lnd_nodes_init(provider);
	return err;
}
module_init(lnd_init);

static void __exit lnd_exit(void)
{
	lnd_nodes_exit();
}
module_exit(lnd_exit);

MODULE_DESCRIPTION("Messages with bulk data over kfabric, in the shape of kfilnd");
MODULE_LICENSE("GPL");
