// SPDX-License-Identifier: GPL-2.0
//! What verbs and the connection manager mean by their errors.

use kernel::{
    bindings,
    error::Error, //
};

use crate::ib::{
    qp::QpEvent,
    wr::status, //
};

/// The errno of a work completion's status (positive; 0 for success).
///
/// | status | errno |
/// |---|---|
/// | flushed after another's failure or the connection's end | `ECANCELED` |
/// | message longer than the receive, or than the device can | `EMSGSIZE` |
/// | the peer's key does not allow it | `EACCES` |
/// | local memory may not be used so | `EFAULT` |
/// | the peer does not answer | `ETIMEDOUT` |
/// | the peer has no receive posted, for too long | `ENOBUFS` |
/// | the peer does not understand it (often: its receive is too short) or could not do it | `EREMOTEIO` |
/// | the peer gave up | `ECONNABORTED` |
/// | everything else | `EIO` |
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

/// The same of a receive's status: there, on rxe, a queue pair "could not do it" when the message
/// was longer than the receive.
pub(crate) fn of_receive(code: u32) -> u32 {
    match code {
        status::LOC_QP_OP => bindings::EMSGSIZE,
        other => of_status(other),
    }
}

/// The errno with which a queue pair's own failure ends a connection.
pub(crate) fn of_event(event: QpEvent) -> u32 {
    match event {
        QpEvent::Access => bindings::EACCES,
        QpEvent::Request => bindings::EPROTO,
        QpEvent::Fatal | QpEvent::Established => bindings::EIO,
    }
}

/// The errno of a connection manager's negative status; `default` where it says nothing.
pub(crate) fn of_cm(status: i32, default: u32) -> u32 {
    match status {
        -4095..=-1 => status.unsigned_abs(),
        _ => default,
    }
}

/// An error as the positive number that events carry.
pub(crate) fn number(error: Error) -> u32 {
    error.to_errno().unsigned_abs()
}
