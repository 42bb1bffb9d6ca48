// SPDX-License-Identifier: GPL-2.0
//! Conversion of errors of verbs and of the connection manager to errnos.

use kernel::{
    bindings,
    error::Error, //
};

use crate::ib::{
    qp::QpEvent,
    wr::status, //
};

/// Returns the positive errno of a work completion's status; 0 for success.
///
/// | status | errno |
/// |---|---|
/// | flushed after another failure or the connection's end | `ECANCELED` |
/// | message longer than the receive, or than the device supports | `EMSGSIZE` |
/// | the peer's key does not allow the operation | `EACCES` |
/// | the local memory does not allow the operation | `EFAULT` |
/// | the peer does not answer | `ETIMEDOUT` |
/// | the peer had no receive posted for too long | `ENOBUFS` |
/// | the peer refused or failed the request (often: its receive is too short) | `EREMOTEIO` |
/// | the peer aborted the operation | `ECONNABORTED` |
/// | any other status | `EIO` |
pub(crate) fn of_status(code: u32) -> u32 {
    match code {
        status::SUCCESS => 0,
        status::FLUSH => bindings::ECANCELED,
        status::LOC_LEN => bindings::EMSGSIZE,
        status::REM_ACCESS => bindings::EACCES,
        status::LOC_PROT | status::LOC_ACCESS => bindings::EFAULT,
        status::RETRY_EXC => bindings::ETIMEDOUT,
        status::RNR_RETRY_EXC => bindings::ENOBUFS,
        status::REM_INV_REQ | status::REM_OP => bindings::EREMOTEIO,
        status::REM_ABORT => bindings::ECONNABORTED,
        _ => bindings::EIO,
    }
}

/// Returns the errno of a receive's status. On rxe, a local queue pair error of a receive means
/// that the message was longer than the receive.
pub(crate) fn of_receive(code: u32) -> u32 {
    match code {
        status::LOC_QP_OP => bindings::EMSGSIZE,
        other => of_status(other),
    }
}

/// Returns the errno with which a queue pair's event ends a connection.
pub(crate) fn of_event(event: QpEvent) -> u32 {
    match event {
        QpEvent::Access => bindings::EACCES,
        QpEvent::Request => bindings::EPROTO,
        QpEvent::Fatal | QpEvent::Established => bindings::EIO,
    }
}

/// Returns the errno of a connection manager's negative status, or `default` if it has none.
pub(crate) fn of_cm(status: i32, default: u32) -> u32 {
    match status {
        -4095..=-1 => status.unsigned_abs(),
        _ => default,
    }
}

/// Returns an error as the positive number in events.
pub(crate) fn number(error: Error) -> u32 {
    error.to_errno().unsigned_abs()
}
