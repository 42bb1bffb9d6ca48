// SPDX-License-Identifier: MIT OR Apache-2.0
//! Error numbers with their names.
#![forbid(unsafe_code)]

use std::fmt;

/// A positive error number, as the kernel and `fi_errno.h` count them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Errno(pub i32);

macro_rules! errnos {
    ($($(#[$meta:meta])* $name:ident = $value:expr, $text:literal;)*) => {
        impl Errno {
            $(
                #[doc = concat!("`", stringify!($name), "`: ", $text, ".")]
                pub const $name: Self = Self($value);
            )*

            /// The symbolic name, for example `EBUSY`; `E?` for an unknown number.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                    _ => "E?",
                }
            }

            /// The meaning of the number, in words.
            pub fn text(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                    _ => "unknown error",
                }
            }
        }
    };
}

errnos! {
    EPERM = libc::EPERM, "operation not permitted";
    ENOENT = libc::ENOENT, "no such object";
    EINTR = libc::EINTR, "interrupted";
    EIO = libc::EIO, "input/output error";
    ENXIO = libc::ENXIO, "no such device or address";
    E2BIG = libc::E2BIG, "structure or list too long";
    EBADF = libc::EBADF, "bad file descriptor";
    EAGAIN = libc::EAGAIN, "queue full or empty, try again";
    ENOMEM = libc::ENOMEM, "not enough memory";
    EACCES = libc::EACCES, "access denied";
    EFAULT = libc::EFAULT, "bad address";
    EBUSY = libc::EBUSY, "in use";
    EEXIST = libc::EEXIST, "exists already";
    ENODEV = libc::ENODEV, "no such device";
    EINVAL = libc::EINVAL, "invalid argument";
    ENFILE = libc::ENFILE, "too many open files in the system";
    EMFILE = libc::EMFILE, "too many open files";
    ENOTTY = libc::ENOTTY, "call unknown to this kernel module";
    ENOSPC = libc::ENOSPC, "no space left";
    EPIPE = libc::EPIPE, "connection is down";
    ERANGE = libc::ERANGE, "out of range";
    ENOSYS = libc::ENOSYS, "not implemented";
    ENODATA = libc::ENODATA, "no data";
    ENOLINK = libc::ENOLINK, "link has been severed";
    EREMOTEIO = libc::EREMOTEIO, "remote input/output error";
    EPROTO = libc::EPROTO, "protocol error";
    EBADMSG = libc::EBADMSG, "bad message";
    EOVERFLOW = libc::EOVERFLOW, "value too large";
    EMSGSIZE = libc::EMSGSIZE, "message too long";
    EPROTONOSUPPORT = libc::EPROTONOSUPPORT, "protocol not supported";
    EOPNOTSUPP = libc::EOPNOTSUPP, "not supported by this provider";
    EAFNOSUPPORT = libc::EAFNOSUPPORT, "address family not supported";
    EADDRINUSE = libc::EADDRINUSE, "address in use";
    EADDRNOTAVAIL = libc::EADDRNOTAVAIL, "address not available";
    ENETDOWN = libc::ENETDOWN, "network is down";
    ENETUNREACH = libc::ENETUNREACH, "network unreachable";
    ECONNABORTED = libc::ECONNABORTED, "connection aborted";
    ECONNRESET = libc::ECONNRESET, "connection reset by peer";
    ENOBUFS = libc::ENOBUFS, "no buffer space";
    EISCONN = libc::EISCONN, "connected already";
    ENOTCONN = libc::ENOTCONN, "not connected";
    ESHUTDOWN = libc::ESHUTDOWN, "connection was shut down";
    ETIMEDOUT = libc::ETIMEDOUT, "timed out";
    ECONNREFUSED = libc::ECONNREFUSED, "connection refused";
    EHOSTDOWN = libc::EHOSTDOWN, "host is down";
    EHOSTUNREACH = libc::EHOSTUNREACH, "no route to host";
    EALREADY = libc::EALREADY, "in progress already";
    EINPROGRESS = libc::EINPROGRESS, "in progress";
    ESTALE = libc::ESTALE, "stale handle";
    EDQUOT = libc::EDQUOT, "quota exceeded";
    ECANCELED = libc::ECANCELED, "cancelled";
    ESRCH = libc::ESRCH, "no such process";
    ENOKEY = libc::ENOKEY, "required key not available";
    EKEYEXPIRED = libc::EKEYEXPIRED, "key has expired";
    EKEYREVOKED = libc::EKEYREVOKED, "key has been revoked";
    EKEYREJECTED = libc::EKEYREJECTED, "key was rejected";
    EOTHER = 256, "unspecified error";
    ETOOSMALL = 257, "provided buffer is too small";
    EOPBADSTATE = 258, "operation not permitted in this state";
    EAVAIL = 259, "error available";
    EBADFLAGS = 260, "flags not supported";
    ENOEQ = 261, "missing or unavailable event queue";
    EDOMAIN = 262, "invalid resource domain";
    ENOCQ = 263, "missing or unavailable completion queue";
    ECRC = 264, "checksum error";
    ETRUNC = 265, "truncated";
    FI_ENOKEY = 266, "required key not available";
    ENOAV = 267, "missing or unavailable address vector";
    EOVERRUN = 268, "queue has been overrun";
}

impl Errno {
    /// The calling thread's `errno`.
    pub(crate) fn last() -> Self {
        Self(
            std::io::Error::last_os_error()
                .raw_os_error()
                .unwrap_or(libc::EIO),
        )
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.name() == "E?" {
            write!(f, "error {}", self.0)
        } else {
            write!(f, "{} ({})", self.text(), self.name())
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.name(), self.0)
    }
}

impl std::error::Error for Errno {}

impl From<Errno> for std::io::Error {
    fn from(errno: Errno) -> Self {
        Self::from_raw_os_error(errno.0)
    }
}
