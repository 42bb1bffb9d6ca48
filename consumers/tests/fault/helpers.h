/* SPDX-License-Identifier: GPL-2.0 */
#ifndef KFI_TEST_FAULT_HELPERS_H
#define KFI_TEST_FAULT_HELPERS_H

#include <linux/types.h>

bool kfi_test_fault_possible(void);
void kfi_test_fault_arm(unsigned int nth);
unsigned int kfi_test_fault_disarm(void);

#endif
