/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Error numbers of the kfi API: the kernel's, and some of its own. Calls return
 * the negated number.
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

/* The API's own error numbers begin here. */
#define KFI_ERRNO_OFFSET	256

/**
 * enum - the API's own error numbers
 * @KFI_EOTHER: an error that has no number
 * @KFI_ETOOSMALL: the caller's buffer is too small
 * @KFI_EOPBADSTATE: the object's state does not permit the operation
 * @KFI_EAVAIL: the oldest entry is an error, to be read by a readerr call
 * @KFI_EBADFLAGS: unknown flags
 * @KFI_ENOEQ: no event queue
 * @KFI_EDOMAIN: objects of different domains
 * @KFI_ENOCQ: no completion queue
 * @KFI_ECRC: wrong checksum
 * @KFI_ETRUNC: truncated data
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

/*
 * Returns an error number, positive or negative, as text. A number always has
 * the same text.
 */
const char *kfi_strerror(int errnum);

#endif
