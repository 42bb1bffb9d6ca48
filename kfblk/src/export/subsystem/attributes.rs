// SPDX-License-Identifier: GPL-2.0
//! The attributes of a subsystem's configfs folder, and its statistics.

use kernel::{
    fmt::Write,
    page::PAGE_SIZE,
    prelude::*,
    str::CString,
    sync::Arc, //
};
use kfabric::pure::blk::{
    device::Uuid,
    Name, //
};

use super::{
    Inner,
    Subsystem, //
};
use crate::{
    attr::{
        self,
        Item,
        Text, //
    },
    export::connection::Connection,
    sys::{
        self,
        Counts, //
    }, //
};

/// Bytes that can be exported, at most: a key for each chunk, for each connection.
const SIZE_MAX: u64 = 1 << 40;
/// Returns the sum of `first` and the counters of `connections`.
fn sum<'a>(connections: impl Iterator<Item = &'a Arc<Connection>>, first: Counts) -> Counts {
    connections.fold(first, |mut sum, connection| {
        sum.add(&connection.counters());
        sum
    })
}

impl Inner {
    fn connections_of<'a>(&'a self, client: &'a Name) -> impl Iterator<Item = &'a Arc<Connection>> {
        self.connections
            .iter()
            .filter(move |connection| connection.is_of(client))
    }

    /// Writes the statistics: one line in total, one per connected initiator, and one per
    /// connection.
    fn statistics(&self, out: &mut Text<'_>) -> Result {
        write!(out, "total ")?;
        sum(self.connections.iter(), self.counts).write(out)?;
        writeln!(
            out,
            " connections {} refused {}",
            self.admitted, self.refused
        )?;
        let firsts = self
            .connections
            .iter()
            .enumerate()
            .filter_map(|(at, connection)| {
                let client = connection.client()?;
                let before = self.connections.get(..at).unwrap_or_default();
                (!before.iter().any(|of| of.is_of(&client))).then_some(client)
            });
        out.list(firsts, |out, client| {
            write!(out, "client {} ", client.as_str())?;
            sum(self.connections_of(&client), Counts::default()).write(out)?;
            let count = self.connections_of(&client).count();
            Ok(writeln!(out, " connections {count}")?)
        })?;
        out.list(&self.connections, |out, connection| {
            connection.describe_counters(out)
        })
    }
}

impl Item for Subsystem {
    fn end(this: &Arc<Self>) {
        this.disable();
    }

    fn show(&self, attr: u32, out: &mut Text<'_>) -> Result {
        let inner = self.inner.lock();
        match attr {
            sys::KFBLK_SUBSYSTEM_ATTR_SIZE => writeln!(out, "{}", inner.size)?,
            sys::KFBLK_SUBSYSTEM_ATTR_READ_ONLY => writeln!(out, "{}", u32::from(inner.read_only))?,
            sys::KFBLK_SUBSYSTEM_ATTR_PMEM => writeln!(out, "{}", u32::from(inner.pmem))?,
            sys::KFBLK_SUBSYSTEM_ENABLE => writeln!(out, "{}", u32::from(inner.is_enabled()))?,
            sys::KFBLK_SUBSYSTEM_CLIENTS => out.list(&inner.connections, |out, connection| {
                connection.describe(out)
            })?,
            sys::KFBLK_SUBSYSTEM_FENCE => out
                .list(inner.fenced.iter().filter(|of| of.out), |out, of| {
                    Ok(writeln!(out, "{}", of.client.as_str())?)
                })?,
            sys::KFBLK_SUBSYSTEM_DEVICE_PATH => {
                let path = inner.path.as_ref().and_then(|path| path.to_str().ok());
                writeln!(out, "{}", path.unwrap_or_default())?;
            }
            sys::KFBLK_SUBSYSTEM_DEVICE_UUID => {
                writeln!(out, "{}", inner.uuid.as_ref().map_or("", Uuid::as_str))?
            }
            sys::KFBLK_SUBSYSTEM_ATTR_ALLOW_ANY_HOST => {
                writeln!(out, "{}", u32::from(inner.hosts.any()))?
            }
            sys::KFBLK_SUBSYSTEM_ALLOWED_HOSTS => out
                .list(inner.hosts.clients(), |out, client| {
                    Ok(writeln!(out, "{}", client.as_str())?)
                })?,
            sys::KFBLK_SUBSYSTEM_STATISTICS => inner.statistics(out)?,
            _ => return Err(EINVAL),
        }
        Ok(())
    }

    fn store(this: &Arc<Self>, attr: u32, text: &str) -> Result {
        match attr {
            sys::KFBLK_SUBSYSTEM_ATTR_SIZE => {
                let size = attr::size(text)?;
                let chunk = PAGE_SIZE as u64;
                if size == 0 || size > SIZE_MAX || size & (chunk - 1) != 0 {
                    return Err(EINVAL);
                }
                this.set(|inner| inner.size = size)?;
            }
            sys::KFBLK_SUBSYSTEM_ATTR_READ_ONLY => {
                let read_only = attr::flag(text)?;
                this.set(|inner| inner.read_only = read_only)?;
            }
            sys::KFBLK_SUBSYSTEM_ATTR_PMEM => {
                let pmem = attr::flag(text)?;
                this.set(|inner| inner.pmem = pmem)?;
            }
            sys::KFBLK_SUBSYSTEM_ENABLE if attr::flag(text)? => Self::enable(this)?,
            sys::KFBLK_SUBSYSTEM_ENABLE => this.disable(),
            sys::KFBLK_SUBSYSTEM_FENCE => this.fence(attr::name(text)?)?,
            sys::KFBLK_SUBSYSTEM_ADMIT => this.admit_again(attr::name(text)?)?,
            sys::KFBLK_SUBSYSTEM_DEVICE_PATH => {
                let path = match text {
                    "" => None,
                    path => Some(CString::try_from_fmt(fmt!("{path}"))?),
                };
                // A relative path would depend on the caller's working directory.
                if path.is_some() && !text.starts_with('/') {
                    return Err(EINVAL);
                }
                this.set(|inner| inner.path = path)?;
            }
            sys::KFBLK_SUBSYSTEM_REVALIDATE_SIZE if attr::flag(text)? => this.revalidate()?,
            sys::KFBLK_SUBSYSTEM_DEVICE_UUID => {
                let uuid = match text {
                    "" => None,
                    text => Some(Uuid::new(text.as_bytes()).map_err(|_| EINVAL)?),
                };
                this.set(|inner| inner.uuid = uuid)?;
            }
            sys::KFBLK_SUBSYSTEM_ATTR_ALLOW_ANY_HOST => {
                let any = attr::flag(text)?;
                this.believe(|hosts| {
                    hosts.set_any(any);
                    Ok(())
                })?;
            }
            sys::KFBLK_SUBSYSTEM_AUTH_KEY => {
                let (client, key) = text.split_once(' ').unwrap_or((text, ""));
                let (client, key) = (attr::name(client)?, attr::key(key.trim())?);
                this.believe(|hosts| match key {
                    Some(key) => hosts.set(client, key),
                    None => hosts.remove(&client),
                })?;
            }
            _ => return Err(EINVAL),
        }
        Ok(())
    }
}
