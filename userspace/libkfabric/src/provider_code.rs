// SPDX-License-Identifier: MIT OR Apache-2.0
//! Texts of the providers' own error codes, for `fi_cq_strerror(3)` and `fi_eq_strerror(3)`.
#![forbid(unsafe_code)]

use crate::errno::Errno;

/// Texts of `enum ib_wc_status`, by value.
const WC_STATUS: [&str; 22] = [
    "success",
    "local length error: the message is longer than the receive or than the queue pair allows",
    "local queue pair operation error",
    "local end-to-end context operation error",
    "local protection error: the local memory does not allow the access",
    "work request flushed: the queue pair has failed",
    "memory window bind error",
    "bad response of the peer's device",
    "local access error",
    "remote invalid request: the peer's device does not accept the request",
    "remote access error: no key of the peer allows the access",
    "remote operation error: the peer's device could not complete the request",
    "transport retries exceeded: the peer's device does not respond",
    "receiver-not-ready retries exceeded: the peer has no receive posted",
    "local reliable datagram domain violation",
    "remote invalid reliable datagram request",
    "remote abort",
    "invalid end-to-end context number",
    "invalid end-to-end context state",
    "fatal error of the device",
    "response timeout",
    "general error of the device",
];

/// Texts of `enum ib_cm_rej_reason`, from value 1 on.
const REJECT_REASON: [&str; 35] = [
    "rejected: the peer has no free queue pair",
    "rejected: the peer has no free end-to-end context",
    "rejected: the peer has no resources",
    "rejected: the peer did not respond in time",
    "rejected: unsupported request",
    "rejected: invalid communication identifier",
    "rejected: invalid communication instance",
    "rejected: no listener has that service",
    "rejected: invalid transport type",
    "rejected: stale connection",
    "rejected: reliable datagram channel does not exist",
    "rejected: invalid GID of the primary path",
    "rejected: invalid LID of the primary path",
    "rejected: invalid service level of the primary path",
    "rejected: invalid traffic class of the primary path",
    "rejected: invalid hop limit of the primary path",
    "rejected: invalid packet rate of the primary path",
    "rejected: invalid GID of the alternate path",
    "rejected: invalid LID of the alternate path",
    "rejected: invalid service level of the alternate path",
    "rejected: invalid traffic class of the alternate path",
    "rejected: invalid hop limit of the alternate path",
    "rejected: invalid packet rate of the alternate path",
    "rejected: redirected to another connection manager port",
    "rejected: redirected to another port",
    "rejected: invalid path MTU",
    "rejected: the peer lacks resources for responses",
    "rejected by the peer's application",
    "rejected: invalid receiver-not-ready retry count",
    "rejected: duplicate communication identifier",
    "rejected: invalid class version",
    "rejected: invalid flow label of the primary path",
    "rejected: invalid flow label of the alternate path",
    UNKNOWN,
    "rejected: the vendor option is not supported",
];

/// Text of a code that no table has.
const UNKNOWN: &str = "unknown code of the provider";

/// Returns the `ib_wc_status` by which kshm's kernel module and rings report an errno.
pub(crate) fn wc_status(errno: i32) -> u32 {
    match errno.saturating_abs() {
        0 => 0,
        libc::EMSGSIZE => 1,
        libc::ECANCELED => 5,
        libc::EREMOTEIO => 9,
        libc::EACCES => 10,
        _ => 21,
    }
}

/// Returns the text of a failed operation's [`CompError::prov_errno`](crate::CompError): an
/// `ib_wc_status` of `kverbs` and `kshm`, an errno of every other provider.
pub fn completion_text(provider: &str, code: u32) -> &'static str {
    // CAST: A `usize` has 64 bits.
    match provider {
        "kverbs" | "kshm" => WC_STATUS.get(code as usize).copied().unwrap_or(UNKNOWN),
        _ => errno_text(code),
    }
}

/// Returns the text of a connection's [`ConnFailure::prov_errno`](crate::ConnFailure). `errno` is
/// the failure's own. For a refusal (`ECONNREFUSED`) by `kverbs` the code is the connection
/// manager's reason, otherwise the errno of its event. The code 0 means that the provider has none;
/// then the text is that of `errno`.
pub fn connection_text(provider: &str, errno: Errno, code: u32) -> &'static str {
    match (provider, errno, code) {
        (_, errno, 0) => errno.text(),
        ("kverbs", Errno::ECONNREFUSED, reason) => {
            let at = reason as usize - 1;
            REJECT_REASON.get(at).copied().unwrap_or(UNKNOWN)
        }
        (_, _, code) => errno_text(code),
    }
}

fn errno_text(code: u32) -> &'static str {
    match i32::try_from(code).map(Errno) {
        Ok(errno) if errno.name() != "E?" => errno.text(),
        _ => UNKNOWN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_each_provider_have_their_texts() {
        assert!(completion_text("kverbs", 5).starts_with("work request flushed"));
        assert!(completion_text("kverbs", 10).starts_with("remote access error"));
        assert!(completion_text("kverbs", 13).starts_with("receiver-not-ready"));
        assert_eq!(completion_text("kverbs", 21), "general error of the device");
        assert!(
            completion_text("kshm", wc_status(-libc::EACCES)).starts_with("remote access error")
        );
        assert!(
            completion_text("kshm", wc_status(libc::EMSGSIZE)).starts_with("local length error")
        );
        assert_eq!(completion_text("other", 90), "message too long");
        for (provider, code) in [("kverbs", 22), ("kverbs", u32::MAX), ("kshm", 9999)] {
            assert_eq!(completion_text(provider, code), UNKNOWN);
            assert_eq!(connection_text(provider, Errno::EIO, 9999), UNKNOWN);
        }
    }

    #[test]
    fn reject_reasons_have_their_texts() {
        let text = |code| connection_text("kverbs", Errno::ECONNREFUSED, code);
        assert_eq!(text(8), "rejected: no listener has that service");
        assert_eq!(text(28), "rejected by the peer's application");
        assert_eq!(text(0), "connection refused");
        assert_eq!(text(35), "rejected: the vendor option is not supported");
        assert_eq!((text(34), text(36)), (UNKNOWN, UNKNOWN));
        let late = connection_text("kverbs", Errno::ETIMEDOUT, 110);
        assert_eq!(late, "timed out");
        assert_eq!(
            connection_text("kshm", Errno::ECONNREFUSED, 0),
            "connection refused"
        );
    }
}
