// SPDX-License-Identifier: MIT OR Apache-2.0

//! State that a failed call must not change.

use crate::harness::{guest, leaks};
use crate::raw::Dev;
use anyhow::Result;
use kfabric_uapi::*;
use std::fmt;
use zerocopy::FromZeros;

/// One object: its kind and handle, and the fields that do not change by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Thing {
    kind: u32,
    handle: u64,
    parent: u64,
    facts: [u64; 2],
}

/// Objects, descriptors and pinned bytes of this process, and the users of our modules.
#[derive(Clone, PartialEq, Eq)]
pub struct State {
    things: Vec<Thing>,
    fds: usize,
    pinned: u64,
    users: [Option<i64>; 2],
}

impl fmt::Display for Thing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = leaks::kind_name(self.kind);
        write!(f, "{kind} {:#x} {:x?}", self.handle, self.facts)
    }
}

impl State {
    /// Describes the difference from `before`.
    pub fn since(&self, before: &Self) -> String {
        let all = |state: &Self, other: &Self| -> String {
            let own = state.things.iter().filter(|t| !other.things.contains(t));
            let own: Vec<String> = own.map(Thing::to_string).collect();
            format!(
                "[{}], {} descriptors, {} bytes pinned, module users {:?}",
                own.join(", "),
                state.fds,
                state.pinned,
                state.users
            )
        };
        format!("before: {}; now: {}", all(before, self), all(self, before))
    }
}

/// Reads the state through a file of its own, without creating objects.
pub struct Watch {
    dev: Dev,
    room: Vec<ObjInfo>,
}

impl Watch {
    /// Opens the file.
    ///
    /// # Errors
    ///
    /// The errno of `open(2)`.
    pub fn open() -> Result<Self> {
        Ok(Self {
            dev: Dev::open()?,
            room: vec![ObjInfo::new_zeroed(); 1024],
        })
    }

    /// Returns the current state.
    ///
    /// # Errors
    ///
    /// The call's errno.
    pub fn look(&mut self) -> Result<State> {
        let mut arg = ObjList {
            entries: self.room.as_mut_ptr() as u64,
            count: self.room.len() as u32,
            entry_size: std::mem::size_of::<ObjInfo>() as u32,
            ..Default::default()
        };
        self.dev.call(&mut arg)?;
        let me = std::process::id();
        let found = self.room.iter().take(arg.count as usize);
        let mut things: Vec<Thing> = found
            .filter(|o| o.pid == me)
            .map(|o| Thing {
                kind: o.kind,
                handle: o.handle,
                parent: o.parent,
                facts: facts(o),
            })
            .collect();
        things.sort_unstable();
        Ok(State {
            things,
            fds: std::fs::read_dir("/proc/self/fd")?.count(),
            pinned: leaks::vm_pin(),
            users: ["kfabric", "kverbs"].map(guest::module_users),
        })
    }
}

/// Returns the numbers of an object that only calls change.
fn facts(o: &ObjInfo) -> [u64; 2] {
    match o.kind {
        KFI_TYPE_REGION | KFI_TYPE_DOMAIN | KFI_TYPE_KEY => [o.a, o.b],
        KFI_TYPE_CNTR => [o.a, o.b],
        KFI_TYPE_EP => [o.a, o.b],
        _ => [o.a, 0],
    }
}
