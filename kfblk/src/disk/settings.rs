// SPDX-License-Identifier: GPL-2.0
//! A disk's settings: the attributes of its configfs folder.

use core::sync::atomic::Ordering;
use kernel::{
    fmt::Write,
    prelude::*,
    sync::Arc, //
};
use kfabric::{
    auth::AuthKey,
    base::name::name_str,
    pure::blk::{
        Name,
        QUEUES_MAX, //
    },
};

use super::{
    Disk,
    State, //
};
use crate::{
    attr::{
        self,
        Item,
        Text, //
    },
    sys, //
};

/// Default for the number of queues, at most.
const QUEUES: u32 = 4;

/// Returns the default for the number of queues.
pub(super) fn default_queues() -> u16 {
    // CAST: `QUEUES` is the upper limit.
    sys::cpus().min(QUEUES) as u16
}

/// Settings of a disk, from its configfs folder.
#[derive(Clone)]
pub(super) struct Conf {
    pub(super) trtype: Option<Name>,
    pub(super) traddr: Option<Name>,
    pub(super) trsvcid: Option<Name>,
    pub(super) subsystem: Option<Name>,
    pub(super) client: Option<Name>,
    /// The key that the auth handshake proves.
    pub(super) auth: Option<AuthKey>,
    pub(super) queues: u16,
    pub(super) loss_tmo: i32,
    /// Seconds for which requests wait for a connection; negative: no limit.
    pub(super) fail_tmo: i32,
    pub(super) delay: u32,
}

impl Conf {
    /// Returns the settings of a new disk.
    pub(super) fn new() -> Self {
        Self {
            trtype: None,
            traddr: None,
            trsvcid: None,
            subsystem: None,
            client: host().ok(),
            auth: None,
            queues: 0,
            loss_tmo: 600,
            fail_tmo: -1,
            delay: 10,
        }
    }
}

/// Returns the host's name, if it is a valid [`Name`].
fn host() -> Result<Name> {
    let mut name = [0; 64];
    sys::node_name(&mut name);
    let end = name.iter().position(|c| *c == 0).unwrap_or(0);
    Name::new(name.get(..end).unwrap_or_default()).map_err(|_| EINVAL)
}

impl Disk {
    /// Changes settings that are fixed while the disk is enabled.
    fn set(&self, set: impl FnOnce(&mut Conf)) -> Result {
        let _switch = self.switch.lock();
        if self.state() != State::Idle {
            return Err(EBUSY);
        }
        set(&mut self.conf.lock());
        Ok(())
    }
}

/// Returns the text of a name, which is empty if the name is not set.
pub(super) fn text(name: &Option<Name>) -> &str {
    name.as_ref().map_or("", Name::as_str)
}

impl Item for Disk {
    fn end(this: &Arc<Self>) {
        Self::disable(this);
    }

    fn show(&self, attr: u32, out: &mut Text<'_>) -> Result {
        match attr {
            sys::KFBLK_DISK_STATE => writeln!(out, "{}", self.state().name())?,
            sys::KFBLK_DISK_STATISTICS => {
                let queues = match self.conf.lock().queues {
                    0 => default_queues().into(),
                    queues => queues.into(),
                };
                let reconnects = self.reconnects.load(Ordering::Relaxed);
                let renewals = self.renewals.load(Ordering::Relaxed);
                self.counts.write(queues, reconnects, renewals, out)?;
            }
            sys::KFBLK_DISK_DEVICE => {
                let name = *self.name.lock();
                writeln!(out, "{}", name_str(&name)?)?;
            }
            _ => {
                let conf = self.conf.lock();
                match attr {
                    sys::KFBLK_DISK_ADDR_TRTYPE => writeln!(out, "{}", text(&conf.trtype))?,
                    sys::KFBLK_DISK_ADDR_TRADDR => writeln!(out, "{}", text(&conf.traddr))?,
                    sys::KFBLK_DISK_ADDR_TRSVCID => writeln!(out, "{}", text(&conf.trsvcid))?,
                    sys::KFBLK_DISK_SUBSYSTEM => writeln!(out, "{}", text(&conf.subsystem))?,
                    sys::KFBLK_DISK_CLIENT => writeln!(out, "{}", text(&conf.client))?,
                    sys::KFBLK_DISK_NR_IO_QUEUES => writeln!(out, "{}", conf.queues)?,
                    sys::KFBLK_DISK_CTRL_LOSS_TMO => writeln!(out, "{}", conf.loss_tmo)?,
                    sys::KFBLK_DISK_RECONNECT_DELAY => writeln!(out, "{}", conf.delay)?,
                    sys::KFBLK_DISK_FAST_IO_FAIL_TMO if conf.fail_tmo < 0 => writeln!(out, "off")?,
                    sys::KFBLK_DISK_FAST_IO_FAIL_TMO => writeln!(out, "{}", conf.fail_tmo)?,
                    sys::KFBLK_DISK_ENABLE => {
                        writeln!(out, "{}", u32::from(self.state() != State::Idle))?
                    }
                    _ => return Err(EINVAL),
                }
            }
        }
        Ok(())
    }

    fn store(this: &Arc<Self>, attr: u32, text: &str) -> Result {
        match attr {
            sys::KFBLK_DISK_ADDR_TRTYPE..=sys::KFBLK_DISK_CLIENT => {
                let name = Some(attr::name(text)?);
                this.set(|conf| match attr {
                    sys::KFBLK_DISK_ADDR_TRTYPE => conf.trtype = name,
                    sys::KFBLK_DISK_ADDR_TRADDR => conf.traddr = name,
                    sys::KFBLK_DISK_ADDR_TRSVCID => conf.trsvcid = name,
                    sys::KFBLK_DISK_SUBSYSTEM => conf.subsystem = name,
                    _ => conf.client = name,
                })
            }
            sys::KFBLK_DISK_NR_IO_QUEUES => {
                let queues: u16 = attr::number(text)?;
                if queues > QUEUES_MAX {
                    return Err(EINVAL);
                }
                this.set(|conf| conf.queues = queues)
            }
            sys::KFBLK_DISK_CTRL_LOSS_TMO => {
                let loss_tmo = attr::number(text)?;
                this.set(|conf| conf.loss_tmo = loss_tmo)
            }
            sys::KFBLK_DISK_RECONNECT_DELAY => {
                let delay = attr::number(text)?;
                if !(1..=3600).contains(&delay) {
                    return Err(EINVAL);
                }
                this.set(|conf| conf.delay = delay)
            }
            sys::KFBLK_DISK_FAST_IO_FAIL_TMO => {
                let fail_tmo = match text {
                    "off" => -1,
                    text => attr::number(text)?,
                };
                this.set(|conf| conf.fail_tmo = fail_tmo)
            }
            sys::KFBLK_DISK_AUTH_KEY => {
                let auth = attr::key(text)?;
                this.set(|conf| conf.auth = auth)
            }
            sys::KFBLK_DISK_ENABLE if attr::flag(text)? => Self::enable(this),
            sys::KFBLK_DISK_ENABLE => {
                Self::disable(this);
                Ok(())
            }
            _ => Err(EINVAL),
        }
    }
}
