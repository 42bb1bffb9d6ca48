// SPDX-License-Identifier: GPL-2.0
/*
 * The current task's countdown to a failure, as /proc/self/fail-nth shows it.
 */
#include <linux/module.h>
#include <linux/sched.h>

#include "helpers.h"

#ifdef CONFIG_FAULT_INJECTION

bool kfi_test_fault_possible(void)
{
	return true;
}

void kfi_test_fault_arm(unsigned int nth)
{
	current->fail_nth = nth;
}

/* Returns the rest of the countdown; 0: the failure has happened. */
unsigned int kfi_test_fault_disarm(void)
{
	unsigned int left = current->fail_nth;

	current->fail_nth = 0;
	return left;
}

#else

bool kfi_test_fault_possible(void)
{
	return false;
}

void kfi_test_fault_arm(unsigned int nth)
{
}

unsigned int kfi_test_fault_disarm(void)
{
	return 1;
}

#endif
