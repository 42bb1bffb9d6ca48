// SPDX-License-Identifier: GPL-2.0
/*
 * Fault attributes of our own, beside those the kernel has for allocations and user copies:
 * /sys/kernel/debug/fail_kfabric_pin, fail_kfabric_device and fail_kfabric_answer
 * (Documentation/fault-injection). A kernel without fault injection has none of it.
 */
#include <linux/dcache.h>
#include <linux/debugfs.h>
#include <linux/delay.h>
#include <linux/fault-inject.h>
#include <linux/module.h>

#include "helpers.h"

#ifdef CONFIG_FAULT_INJECTION_DEBUG_FS

static DECLARE_FAULT_ATTR(pin_attr);
static DECLARE_FAULT_ATTR(device_attr);
static DECLARE_FAULT_ATTR(answer_attr);

void kf_fault_init(void)
{
	/* As with all of debugfs, what cannot be had is done without. */
	fault_create_debugfs_attr("fail_kfabric_pin", NULL, &pin_attr);
	fault_create_debugfs_attr("fail_kfabric_device", NULL, &device_attr);
	fault_create_debugfs_attr("fail_kfabric_answer", NULL, &answer_attr);
}

static void remove(struct fault_attr *attr)
{
	if (!attr->dname)
		return;
	debugfs_remove(attr->dname);
	dput(attr->dname);
	attr->dname = NULL;
}

void kf_fault_exit(void)
{
	remove(&pin_attr);
	remove(&device_attr);
	remove(&answer_attr);
}

int kf_fault_pin(void)
{
	return should_fail(&pin_attr, 1) ? -EFAULT : 0;
}

int kf_fault_device(void)
{
	return should_fail(&device_attr, 1) ? -EIO : 0;
}
EXPORT_SYMBOL_GPL(kf_fault_device);

int kf_fault_answer(void)
{
	/* A task's own countdown is of what fails at once. */
	if (!answer_attr.probability || !should_fail(&answer_attr, 1))
		return 0;
	msleep(500);
	return -ETIMEDOUT;
}
EXPORT_SYMBOL_GPL(kf_fault_answer);

#else

void kf_fault_init(void)
{
}

void kf_fault_exit(void)
{
}

int kf_fault_pin(void)
{
	return 0;
}

int kf_fault_device(void)
{
	return 0;
}
EXPORT_SYMBOL_GPL(kf_fault_device);

int kf_fault_answer(void)
{
	return 0;
}
EXPORT_SYMBOL_GPL(kf_fault_answer);

#endif
