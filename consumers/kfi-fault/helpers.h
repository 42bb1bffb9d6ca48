/* SPDX-License-Identifier: GPL-2.0 */
#ifndef KFI_FAULT_HELPERS_H
#define KFI_FAULT_HELPERS_H

#include <linux/types.h>

bool kfi_fault_possible(void);
void kfi_fault_arm(unsigned int nth);
unsigned int kfi_fault_disarm(void);

#endif
