// SPDX-License-Identifier: GPL-2.0
//! Endpoints and their operations (`fi_endpoint(3)`, `fi_msg(3)`, `fi_rma(3)`, `fi_cm(3)`).
//!
//! - `endpoint`: the object, its set-up, connection and end.
//! - `post`: the checks before the provider gets an operation. `local`: an operation's memory.
//! - `token`: the accepted operation. `shared`: the part of the endpoint that tokens hold, which
//!   accounts for their completions.
//! - `own_keys`: regions and key slots that are bound to an endpoint.
//! - `rings`: an endpoint's part in [the rings between two programs](crate::provider::ring_pair).

mod endpoint;
mod local;
mod own_keys;
mod post;
mod rings;
mod shared;
mod token;

pub use self::{
    endpoint::{
        Endpoint,
        EpAttr, //
    },
    local::{
        LocalMem,
        TokenSeg,
        Unregistered, //
    },
    post::Post,
    token::OpToken, //
};
