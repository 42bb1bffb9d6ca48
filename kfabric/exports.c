// SPDX-License-Identifier: GPL-2.0
/*
 * Exports the Rust crate's symbols to the modules that use it.
 *
 * Kbuild generates the list from the object file. C does not know the types and
 * needs only the addresses.
 */
#include <linux/export.h>

#define KF_EXPORT(sym) extern int sym; EXPORT_SYMBOL_GPL(sym)

#include "exports_generated.h"
