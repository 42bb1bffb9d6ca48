// SPDX-License-Identifier: GPL-2.0
//! The end of objects whose grants have ended, in all open files ([`crate::auth::reaper`]).

use kernel::prelude::*;

use super::{
    file::File,
    handles::Object, //
};
use crate::{
    auth,
    key::Key,
    sys, //
};

/// Ends an endpoint or passive endpoint if its grant has ended.
fn end_endpoint(object: &Object) -> Result {
    let ended = match object {
        Object::Pep(pep) => pep.sweep(),
        Object::Ep(ep) => ep.sweep(),
        _ => false,
    };
    auth::trace::swept(ended.into());
    Ok(())
}

/// Revokes a key if its grant has ended.
fn end_key(object: &Object) -> Result {
    let ended = object.key().is_some_and(Key::sweep);
    auth::trace::swept(ended.into());
    Ok(())
}

/// Waits for a revocation in progress of a key whose grant has ended.
fn await_key(object: &Object) -> Result {
    object.key().map_or(Ok(()), Key::swept)
}

/// Ends all objects of ended grants. Endpoints end first. Otherwise an endpoint that its peer
/// disconnects after a revoked key would report that failure instead of the grant's end.
///
/// # Errors
///
/// - `EINTR` if the task is being killed.
pub(crate) fn sweep() -> Result {
    each_object(end_endpoint)?;
    each_object(end_key)
}

/// Waits for revocations of [`sweep`]'s keys by other tasks: the worker or an owner. `sweep` itself
/// has waited for the endpoints.
///
/// # Errors
///
/// As [`sweep`].
pub(crate) fn swept() -> Result {
    each_object(await_key)
}

fn each_object(act: fn(&Object) -> Result) -> Result {
    File::for_each(|file| {
        for index in 0..file.handles.cells() {
            sys::pause()?;
            if let Some((_, entry)) = file.handles.peek(index) {
                act(&entry.object)?;
            }
        }
        Ok(())
    })
}
