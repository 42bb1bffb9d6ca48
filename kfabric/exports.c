// SPDX-License-Identifier: GPL-2.0
/*
 * Exports the Rust crate's symbols to the modules that use it.
 *
 * The list is generated from the object file. The types are not known to C and do not matter:
 * only addresses are taken.
 */
#include <linux/export.h>

#define KF_EXPORT(sym) extern int sym; EXPORT_SYMBOL_GPL(sym)

#include "exports_generated.h"
