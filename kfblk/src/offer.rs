// SPDX-License-Identifier: GPL-2.0
//! The offer of a provider that both ends of a connection need.

use kfabric::{
    base::name::set_name,
    pure::blk::Name,
    uapi::*, //
};

/// Returns hints for getinfo, with the provider if it is set.
pub(crate) fn hints(provider: Option<&Name>) -> InfoEntry {
    let mut hints = InfoEntry {
        caps: KFI_MSG | KFI_RMA | KFI_DYNAMIC_KEYS,
        mode: !0,
        mr_mode: !0,
        ep_type: KFI_EP_MSG,
        ..InfoEntry::default()
    };
    if let Some(provider) = provider {
        set_name(&mut hints.prov_name, provider.as_str());
    }
    hints
}
