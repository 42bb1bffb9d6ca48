// SPDX-License-Identifier: GPL-2.0
/*
 * kfabric's own fault attributes: /sys/kernel/debug/fail_kfabric_pin,
 * fail_kfabric_device, fail_kfabric_dereg, fail_kfabric_answer and
 * fail_kfabric_cookie (Documentation/fault-injection). They supplement the
 * kernel's for allocations and user copies. They need
 * CONFIG_FAULT_INJECTION_DEBUG_FS.
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
static DECLARE_FAULT_ATTR(dereg_attr);
static DECLARE_FAULT_ATTR(answer_attr);
static DECLARE_FAULT_ATTR(cookie_attr);

void kf_fault_init(void)
{
	/*
	 * As usual with debugfs, errors are ignored: the attribute is missing
	 * then.
	 */
	fault_create_debugfs_attr("fail_kfabric_pin", NULL, &pin_attr);
	fault_create_debugfs_attr("fail_kfabric_device", NULL, &device_attr);
	fault_create_debugfs_attr("fail_kfabric_dereg", NULL, &dereg_attr);
	fault_create_debugfs_attr("fail_kfabric_answer", NULL, &answer_attr);
	fault_create_debugfs_attr("fail_kfabric_cookie", NULL, &cookie_attr);
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
	remove(&dereg_attr);
	remove(&answer_attr);
	remove(&cookie_attr);
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

int kf_fault_dereg(void)
{
	/*
	 * A task's countdown (fail-nth) counts only faults that fail a call.
	 * Leave the countdown alone unless the attribute is set.
	 */
	return dereg_attr.probability && should_fail(&dereg_attr, 1) ? -EIO : 0;
}
EXPORT_SYMBOL_GPL(kf_fault_dereg);

int kf_fault_answer(void)
{
	/*
	 * A task's countdown (fail-nth) counts only faults without a delay.
	 * Leave the countdown alone unless the attribute is set.
	 */
	if (!answer_attr.probability || !should_fail(&answer_attr, 1))
		return 0;
	msleep(500);
	return -ETIMEDOUT;
}
EXPORT_SYMBOL_GPL(kf_fault_answer);

int kf_fault_cookie(void)
{
	/*
	 * A worker calls this function. Workers have no countdown (fail-nth) of
	 * their own.
	 */
	return cookie_attr.probability && should_fail(&cookie_attr, 1) ? -ENOMEM : 0;
}
EXPORT_SYMBOL_GPL(kf_fault_cookie);

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

int kf_fault_dereg(void)
{
	return 0;
}
EXPORT_SYMBOL_GPL(kf_fault_dereg);

int kf_fault_answer(void)
{
	return 0;
}
EXPORT_SYMBOL_GPL(kf_fault_answer);

int kf_fault_cookie(void)
{
	return 0;
}
EXPORT_SYMBOL_GPL(kf_fault_cookie);

#endif
