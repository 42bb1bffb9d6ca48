/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Error numbers of the kfi API: the kernel's, and a few more. Calls return them negated.
 */
#ifndef KFI_ERRNO_H
#define KFI_ERRNO_H

#include <linux/errno.h>

#define KFI_SUCCESS		0
#define KFI_ENOENT		ENOENT
#define KFI_EIO			EIO
#define KFI_E2BIG		E2BIG
#define KFI_EBADF		EBADF
#define KFI_EAGAIN		EAGAIN
#define KFI_ENOMEM		ENOMEM
#define KFI_EACCES		EACCES
#define KFI_EBUSY		EBUSY
#define KFI_ENODEV		ENODEV
#define KFI_EINVAL		EINVAL
#define KFI_EMFILE		EMFILE
#define KFI_ENOSPC		ENOSPC
#define KFI_ENOSYS		ENOSYS
#define KFI_ENOMSG		ENOMSG
#define KFI_ENODATA		ENODATA
#define KFI_EMSGSIZE		EMSGSIZE
#define KFI_ENOPROTOOPT		ENOPROTOOPT
#define KFI_EOPNOTSUPP		EOPNOTSUPP
#define KFI_EADDRINUSE		EADDRINUSE
#define KFI_EADDRNOTAVAIL	EADDRNOTAVAIL
#define KFI_ENETDOWN		ENETDOWN
#define KFI_ENETUNREACH		ENETUNREACH
#define KFI_ECONNABORTED	ECONNABORTED
#define KFI_ECONNRESET		ECONNRESET
#define KFI_EISCONN		EISCONN
#define KFI_ENOTCONN		ENOTCONN
#define KFI_ESHUTDOWN		ESHUTDOWN
#define KFI_ETIMEDOUT		ETIMEDOUT
#define KFI_ECONNREFUSED	ECONNREFUSED
#define KFI_EHOSTUNREACH	EHOSTUNREACH
#define KFI_EALREADY		EALREADY
#define KFI_EINPROGRESS		EINPROGRESS
#define KFI_EREMOTEIO		EREMOTEIO
#define KFI_ECANCELED		ECANCELED
#define KFI_EKEYREJECTED	EKEYREJECTED

/* The API's own begin here. */
#define KFI_ERRNO_OFFSET	256

/**
 * enum - error numbers of the API's own
 * @KFI_EOTHER: none of the others
 * @KFI_ETOOSMALL: the caller's buffer is too small
 * @KFI_EOPBADSTATE: not in this state
 * @KFI_EAVAIL: an error waits, to be read by readerr
 * @KFI_EBADFLAGS: no such flags
 * @KFI_ENOEQ: no event queue
 * @KFI_EDOMAIN: not the same domain
 * @KFI_ENOCQ: no completion queue
 * @KFI_ECRC: a checksum is wrong
 * @KFI_ETRUNC: truncated
 * @KFI_ENOKEY: no key
 * @KFI_ENOAV: no address vector
 * @KFI_EOVERRUN: a queue has overrun
 */
enum {
	KFI_EOTHER	= KFI_ERRNO_OFFSET,
	KFI_ETOOSMALL	= 257,
	KFI_EOPBADSTATE	= 258,
	KFI_EAVAIL	= 259,
	KFI_EBADFLAGS	= 260,
	KFI_ENOEQ	= 261,
	KFI_EDOMAIN	= 262,
	KFI_ENOCQ	= 263,
	KFI_ECRC	= 264,
	KFI_ETRUNC	= 265,
	KFI_ENOKEY	= 266,
	KFI_ENOAV	= 267,
	KFI_EOVERRUN	= 268,
	FI_ERRNO_MAX,
};

/* An error number, positive or negative, as text. Always the same text for the same number. */
const char *kfi_strerror(int errnum);

#endif
