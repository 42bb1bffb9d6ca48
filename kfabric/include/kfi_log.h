/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Macros that write to the kernel log. Each message begins with the module's
 * name. Debug messages, warnings and errors also have the function and the
 * line. To set another name, a file defines MODULE_NAME before the include.
 */
#ifndef KFI_LOG_H
#define KFI_LOG_H

#include <linux/printk.h>

#ifndef MODULE_NAME
#define MODULE_NAME "KFI"
#endif

#define KFI_LOG_AT(print, fmt, ...) \
	print("%s - %s:%d: " fmt "\n", MODULE_NAME, __func__, __LINE__, ##__VA_ARGS__)

#define LOG_DEBUG(fmt, ...)	KFI_LOG_AT(pr_debug, fmt, ##__VA_ARGS__)
#define LOG_INFO(fmt, ...)	pr_info("%s: " fmt "\n", MODULE_NAME, ##__VA_ARGS__)
#define LOG_DEFAULT(fmt, ...)	LOG_INFO(fmt, ##__VA_ARGS__)
#define LOG_NOTICE(fmt, ...)	pr_notice("%s: " fmt "\n", MODULE_NAME, ##__VA_ARGS__)
#define LOG_WARN(fmt, ...)	KFI_LOG_AT(pr_warn, fmt, ##__VA_ARGS__)
#define LOG_ERR(fmt, ...)	KFI_LOG_AT(pr_err, fmt, ##__VA_ARGS__)
#define LOG_ERR_RL(fmt, ...)	KFI_LOG_AT(pr_err_ratelimited, fmt, ##__VA_ARGS__)
#define LOG_CRIT(fmt, ...)	KFI_LOG_AT(pr_crit, fmt, ##__VA_ARGS__)
#define LOG_ALERT(fmt, ...)	KFI_LOG_AT(pr_alert, fmt, ##__VA_ARGS__)
#define LOG_EMERG(fmt, ...)	KFI_LOG_AT(pr_emerg, fmt, ##__VA_ARGS__)

#endif
