// SPDX-License-Identifier: GPL-2.0
//! Names in fields of fixed size, as ioctl structures have them.

use kernel::prelude::*;

use crate::uapi::KFI_NAME_MAX;

/// A short text kept in place.
#[derive(Clone, Copy)]
pub(crate) struct Name([u8; KFI_NAME_MAX]);

impl Name {
    pub(crate) fn new(text: &str) -> Self {
        let mut name = [0; KFI_NAME_MAX];
        set_name(&mut name, text);
        Self(name)
    }

    pub(crate) fn as_str(&self) -> &str {
        name_str(&self.0).unwrap_or("")
    }
}

/// Returns the text of a NUL-padded name.
///
/// # Errors
///
/// - `EINVAL` if there is no NUL, or the text is not UTF-8.
pub fn name_str(bytes: &[u8]) -> Result<&str> {
    let end = bytes.iter().position(|b| *b == 0).ok_or(EINVAL)?;
    core::str::from_utf8(&bytes[..end]).map_err(|_| EINVAL)
}

/// Writes `name` into a NUL-padded field, cut to leave a NUL.
pub fn set_name(field: &mut [u8], name: &str) {
    field.fill(0);
    let room = field.len().saturating_sub(1);
    let len = name.len().min(room);
    field[..len].copy_from_slice(&name.as_bytes()[..len]);
}
