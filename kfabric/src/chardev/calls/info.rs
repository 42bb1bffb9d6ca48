// SPDX-License-Identifier: GPL-2.0
//! The call on offers: `KFI_IOC_GETINFO`.

use kernel::prelude::*;
use zerocopy::IntoBytes;

use crate::{
    base::name::name_str,
    chardev::{
        args::{
            check_addr,
            zero, //
        },
        file::File,
        undo::Undo,
        user, //
    },
    provider::registry,
    uapi::{
        GetInfo,
        InfoEntry, //
    },
};

/// Size of the first version of [`InfoEntry`].
pub(super) const FIRST: usize = core::mem::offset_of!(InfoEntry, visible);

pub(crate) fn get_info(file: &File, call: &mut GetInfo) -> Result<Undo> {
    zero(&[call.flags])?;
    // CAST: A `u32` fits.
    let entry_size = call.entry_size as usize;
    if call.reserved != 0 {
        return Err(EINVAL);
    }
    user::check_entry_size_from::<InfoEntry>(call.entry_size, FIRST)?;
    let hints = if call.hints == 0 {
        None
    } else {
        Some(user::read_struct::<InfoEntry>(call.hints, entry_size, FIRST)?.0)
    };
    if let Some(hints) = &hints {
        name_str(&hints.prov_name)?;
        name_str(&hints.fabric_name)?;
        name_str(&hints.domain_name)?;
        check_addr(&hints.src_addr)?;
        check_addr(&hints.dest_addr)?;
    }
    let found = registry::getinfo(&file.net, hints.as_ref())?;
    // CAST: A `u32` fits.
    for (i, entry) in found.iter().take(call.count as usize).enumerate() {
        user::write_entry(call.entries, call.entry_size, i, entry.as_bytes())?;
    }
    call.count = u32::try_from(found.len()).map_err(|_| EOVERFLOW)?;
    Ok(Undo::Nothing)
}
