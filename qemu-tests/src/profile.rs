// SPDX-License-Identifier: MIT OR Apache-2.0

//! Cards, as which the module `kfi_fake_device` makes rxe devices behave.
//!
//! Each number was read in the driver of Linux 7.2 that its profile names. Where firmware decides,
//! the profile has the hardest behaviour for the accounting of key values. A limit that is not named is
//! rxe's own. The lengths of page lists of mlx5, qedr and ionic depend on the card; these are examples.

use crate::harness::guest::{load, module_users, unload};
use crate::harness::Env;
use crate::pair::own_info;
use crate::raw::Dev;
use anyhow::{ensure, Context, Result};
use kfabric_uapi::KFI_PROTO_IWARP;
use std::collections::BTreeMap;
use std::fs;

/// The module.
const MODULE: &str = "kfi_fake_device";
/// The module's folder.
const FOLDER: &str = "/sys/kernel/debug/kfi_fake_device";
/// The driver by whose policies kverbs acts.
pub const AS_DRIVER: &str = "/sys/module/kverbs/parameters/as_driver";

/// A card.
#[derive(Debug, Clone, Copy)]
pub struct Profile {
    /// Name of the driver.
    pub name: &'static str,
    /// The driver's number in `enum rdma_driver_id`.
    pub driver: u32,
    /// Whether kverbs revokes keys by invalidations on the card.
    pub invalidates: bool,
    /// Settings of the module.
    pub settings: &'static str,
    /// Whether the driver has iWARP cards, too.
    pub iwarp: bool,
    /// Files under `drivers/infiniband/hw` that the settings were read in, or as said.
    pub source: &'static str,
}

impl Profile {
    /// Makes the devices behave as this profile's until the guest ends. On iWARP only kverbs' policies
    /// change: siw has the card's transport, and keeps its own limits.
    ///
    /// # Errors
    ///
    /// - If the devices are iWARP devices and the driver has none.
    /// - Those of [`Fake::with`].
    pub fn begin(&self, env: &Env) -> Result<()> {
        if own_info(&Dev::open()?, env)?.protocol == KFI_PROTO_IWARP {
            ensure!(self.iwarp, "{} has no iWARP cards", self.name);
            return act_as(self.driver);
        }
        Fake::with(self)?.stay();
        Ok(())
    }
}

/// All profiles.
pub const PROFILES: &[Profile] = &[
    Profile {
        name: "mlx5",
        driver: 1,
        invalidates: true,
        iwarp: false,
        settings: "order=lifo user_byte=0 fence=real rereg=0 max_send_sge=30 max_recv_sge=30 max_sge_rd=30 \
                   max_qp_rd_atom=16 max_qp_init_rd_atom=16 max_fast_reg_page_list_len=65536",
        source: "mlx5/main.c (mlx5_ib_query_device), mlx5/mr.c and core/frmr_pools.c (user memory: the \
                 mkey that was freed last, its value unchanged); the order of alloc_mr is firmware's",
    },
    Profile {
        name: "mlx4",
        driver: 2,
        invalidates: true,
        iwarp: false,
        settings: "order=cyclic fence=real rereg=0 max_send_sge=30 max_recv_sge=30 max_sge_rd=30 \
                   max_qp_rd_atom=16 max_qp_init_rd_atom=128 max_fast_reg_page_list_len=511",
        source: "mlx4/main.c (mlx4_ib_query_device), include/linux/mlx4/device.h, \
                 drivers/net/ethernet/mellanox/mlx4/mr.c (mlx4_bitmap_alloc counts up)",
    },
    Profile {
        name: "bnxt_re",
        driver: 6,
        invalidates: true,
        iwarp: false,
        settings: "order=lowest fence=real rereg=0 max_send_sge=6 max_recv_sge=6 max_sge_rd=6 \
                   max_qp_rd_atom=126 max_qp_init_rd_atom=126 max_fast_reg_page_list_len=512 atomic_cap=0",
        source: "bnxt_re/ib_verbs.c (bnxt_re_query_device), bnxt_re/qplib_sp.c, qplib_res.h; the order is \
                 firmware's",
    },
    Profile {
        name: "irdma",
        driver: 9,
        invalidates: true,
        iwarp: true,
        settings: "order=random fence=real rereg=0 needs_udata=1 max_send_sge=13 max_recv_sge=13 \
                   max_sge_rd=13 max_qp_rd_atom=127 max_qp_init_rd_atom=128 max_fast_reg_page_list_len=262144",
        source: "irdma/verbs.c (irdma_query_device, irdma_create_stag, irdma_reg_user_mr), irdma/user.h, icrdma_hw.h",
    },
    Profile {
        name: "qedr",
        driver: 11,
        invalidates: true,
        iwarp: false,
        settings: "order=lowest user_byte=0 fence=real rereg=0 max_send_sge=4 max_recv_sge=4 max_sge_rd=4 \
                   max_qp_rd_atom=16 max_qp_init_rd_atom=16 max_fast_reg_page_list_len=8192",
        source: "qedr/verbs.c (qedr_query_device, qedr_reg_user_mr), \
                 drivers/net/ethernet/qlogic/qed/qed_rdma.c (find_first_zero_bit)",
    },
    Profile {
        name: "ionic",
        driver: 21,
        invalidates: false,
        iwarp: false,
        settings: "order=lowest fence=device rereg=0 max_send_sge=8 max_recv_sge=8 max_sge_rd=8 \
                   max_qp_rd_atom=16 max_qp_init_rd_atom=16 max_fast_reg_page_list_len=65536",
        source: "ionic/ionic_ibdev.c (ionic_query_device), ionic/ionic_res.h (ida_alloc_range)",
    },
    Profile {
        name: "hns",
        driver: 12,
        invalidates: false,
        iwarp: false,
        settings: "order=lowest fence=device rereg=0 max_fast_reg_page_list_len=512",
        source: "hns/hns_roce_main.c (hns_roce_query_device), hns/hns_roce_mr.c (ida_alloc_range)",
    },
];

/// Returns a profile.
///
/// # Errors
///
/// If there is none of this name.
pub fn find(name: &str) -> Result<&'static Profile> {
    let found = PROFILES.iter().find(|profile| profile.name == name);
    found.with_context(|| {
        let names: Vec<&str> = PROFILES.iter().map(|profile| profile.name).collect();
        format!("no profile is called {name:?}: {}", names.join(", "))
    })
}

/// Calls of a verb, and those of them that were refused.
#[derive(Debug, Clone, Copy, Default)]
pub struct Calls {
    /// All calls.
    pub all: u64,
    /// Refused calls.
    pub refused: u64,
}

/// The module, loaded until this is dropped. It changes every rxe device of the machine.
///
/// If it was loaded before (`kfi-tests run --profile`), it stays loaded, and has its former settings
/// again.
pub struct Fake {
    before: Option<State>,
}

/// All settings.
#[derive(Debug, PartialEq, Eq)]
pub struct State {
    /// Those of the module.
    pub settings: String,
    /// The driver by whose policies kverbs acts.
    pub driver: u32,
}

impl State {
    /// Returns the settings of the loaded module.
    ///
    /// # Errors
    ///
    /// If they cannot be read.
    pub fn read() -> Result<Self> {
        let text = |path: &str| fs::read_to_string(path).with_context(|| path.to_owned());
        Ok(Self {
            settings: text(&format!("{FOLDER}/settings"))?,
            driver: text(AS_DRIVER)?.trim().parse()?,
        })
    }
}

/// Sets the driver by whose policies kverbs acts.
fn act_as(driver: u32) -> Result<()> {
    fs::write(AS_DRIVER, driver.to_string()).context(AS_DRIVER)
}

impl Fake {
    /// Loads the module. rxe devices behave as before.
    ///
    /// # Errors
    ///
    /// If it does not load.
    pub fn load() -> Result<Self> {
        let before = match module_users(MODULE) {
            Some(_) => Some(State::read()?),
            None => {
                load(MODULE)?;
                None
            }
        };
        let fake = Self { before };
        fake.set("default=1")?;
        act_as(0)?;
        Ok(fake)
    }

    /// Loads the module and makes all rxe devices behave as a profile's.
    ///
    /// # Errors
    ///
    /// If the module does not load or refuses a setting.
    pub fn with(profile: &Profile) -> Result<Self> {
        let fake = Self::load()?;
        fake.become_card(profile)?;
        Ok(fake)
    }

    /// Makes all rxe devices behave as a profile's.
    ///
    /// # Errors
    ///
    /// If the module refuses a setting.
    pub fn become_card(&self, profile: &Profile) -> Result<()> {
        self.set("default=1")?;
        self.set(profile.settings)
            .with_context(|| profile.name.to_owned())?;
        act_as(profile.driver)
    }

    /// Changes settings.
    ///
    /// # Errors
    ///
    /// If the module refuses one.
    pub fn set(&self, settings: &str) -> Result<()> {
        fs::write(format!("{FOLDER}/settings"), settings).with_context(|| settings.to_owned())
    }

    /// Returns the calls of each verb.
    ///
    /// # Errors
    ///
    /// If they cannot be read.
    pub fn counters(&self) -> Result<BTreeMap<String, Calls>> {
        let text = fs::read_to_string(format!("{FOLDER}/counters"))?;
        let line = |line: &str| -> Option<(String, Calls)> {
            let mut words = line.split_whitespace();
            let name = words.next()?.to_owned();
            let all = words.next()?.parse().ok()?;
            let refused = words.next()?.parse().ok()?;
            Some((name, Calls { all, refused }))
        };
        Ok(text.lines().filter_map(line).collect())
    }

    /// Returns the number of calls that are commands to the firmware of a card: those that create,
    /// change or destroy an object.
    ///
    /// # Errors
    ///
    /// If the counters cannot be read.
    pub fn commands(&self) -> Result<u64> {
        const NONE: [&str; 4] = ["map_mr_sg", "post_send", "post_recv", "without_udata"];
        let all = self.counters()?;
        let commands = all
            .iter()
            .filter(|(name, _)| !NONE.contains(&name.as_str()));
        Ok(commands.map(|(_, calls)| calls.all).sum())
    }

    /// Returns the number of memory regions that were created, less those that were destroyed, since
    /// the counters began.
    ///
    /// # Errors
    ///
    /// If the counters cannot be read.
    pub fn regions(&self) -> Result<i64> {
        let all = self.counters()?;
        let done = |verb: &str| {
            let calls = all.get(verb).copied().unwrap_or_default();
            // CAST: No test has 2^63 calls.
            (calls.all - calls.refused) as i64
        };
        Ok(done("alloc_mr") + done("reg_user_mr") - done("dereg_mr"))
    }

    /// Leaves the module loaded.
    fn stay(self) {
        std::mem::forget(self);
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let ended = match &self.before {
            Some(State { settings, driver }) => self
                .set(&format!("default=1 {settings}"))
                .and_then(|()| act_as(*driver)),
            None => act_as(0).and_then(|()| unload(MODULE)),
        };
        if let Err(e) = ended {
            eprintln!("{e:#}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_unique_and_each_profile_has_a_source() {
        let mut names = HashSet::new();
        for profile in PROFILES {
            assert!(
                names.insert(profile.name),
                "{} is there twice",
                profile.name
            );
            assert!(profile.source.contains('/'), "{}", profile.name);
            assert!(find(profile.name).is_ok());
        }
        assert!(find("rxe").is_err());
    }
}
