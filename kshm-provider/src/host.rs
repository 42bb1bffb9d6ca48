// SPDX-License-Identifier: GPL-2.0
//! State that all domains and listeners of the host share.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use crate::{
    conn::names::Names,
    key::table::Table, //
};

/// The tables of the host.
pub(crate) struct Host {
    /// Table of the keys of the host.
    pub(crate) table: Arc<Table>,
    /// Table of the listeners of the host.
    pub(crate) names: Arc<Names>,
}

impl Host {
    /// Creates empty tables.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let host = Self {
            table: Table::new()?,
            names: Names::new()?,
        };
        // UNACCOUNTED: Allocated at module load.
        Ok(Arc::new(host, GFP_KERNEL)?)
    }
}
