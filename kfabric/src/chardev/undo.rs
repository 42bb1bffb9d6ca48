// SPDX-License-Identifier: GPL-2.0
//! The changes of a call, for the case that the call's answer cannot be copied out.
//!
//! A handler returns its changes as [`Undo`], and [`Undo::answer`] copies the answer out. If the
//! copy fails, the changes are undone, so that a failed call changes nothing.

use core::cell::Cell;
use kernel::{
    fs::file::FileDescriptorReservation,
    prelude::*,
    sync::Arc, //
};

use super::{
    file::File,
    queue_file::QueueFile,
    user, //
};
use crate::{
    auth::{
        agent::{
            self,
            Question, //
        },
        grant, //
    },
    key::Key,
    objects::cntr::{
        Cntr,
        Counts, //
    },
    provider::KeyValue,
    pure::copysize::CopyPlan,
    uapi::KeyEntry, //
};

/// A slot of a batch of assignments, and the entry that names the slot.
pub(super) struct BatchSlot {
    pub(super) key: Arc<Key>,
    pub(super) entry: KeyEntry,
    /// The assigned key.
    pub(super) value: Cell<KeyValue>,
}

/// The changes of a call, which are undone if the answer cannot be copied out.
pub(super) enum Undo {
    /// No change and no answer.
    NoAnswer,
    /// No change, but an answer.
    Nothing,
    /// The counter was changed.
    Counter(Arc<Cntr>, Counts),
    /// An object was created.
    Object(u64),
    /// An object and its descriptor were created.
    Queue(u64, FileDescriptorReservation, QueueFile),
    /// A descriptor of an existing object was created.
    Descriptor(FileDescriptorReservation, QueueFile),
    /// Several objects were created.
    Objects(KVec<u64>),
    /// A key was assigned.
    Key(Arc<Key>, KeyValue),
    /// Several keys were assigned.
    Keys(KVVec<BatchSlot>),
    /// A grant was installed.
    Grant(u64),
    /// An upcall was marked as read by the agent.
    Upcall(Arc<Question>),
}

impl Undo {
    /// Copies the answer out, if there is one, and undoes the changes if that fails. Common to all
    /// calls, and compiled once.
    #[inline(never)]
    pub(super) fn answer(self, file: &File, arg: u64, answer: &[u8], plan: &CopyPlan) -> Result {
        if let Undo::NoAnswer = self {
            return Ok(());
        }
        let answered = user::answer(arg, answer, plan);
        match &answered {
            Ok(()) => self.install(),
            Err(_) => self.roll_back(file),
        }
        answered
    }

    /// Makes the descriptor visible to the program.
    fn install(self) {
        if let Undo::Queue(_, fd, file) | Undo::Descriptor(fd, file) = self {
            fd.fd_install(file.into_file());
        }
    }

    /// Undoes the changes.
    pub(super) fn roll_back(&self, file: &File) {
        match self {
            // The descriptor is not visible to the program yet.
            Undo::NoAnswer | Undo::Nothing | Undo::Descriptor(..) => {}
            Undo::Counter(cntr, by) => cntr.update(|c| {
                c.value = c.value.wrapping_sub(by.value);
                c.errors = c.errors.wrapping_sub(by.errors);
            }),
            Undo::Object(handle) | Undo::Queue(handle, ..) => {
                let _ = file.close(*handle);
            }
            Undo::Objects(handles) => {
                for handle in handles {
                    let _ = file.close(*handle);
                }
            }
            Undo::Key(key, value) => key.take_back(value),
            Undo::Keys(slots) => {
                for slot in slots {
                    slot.key.take_back(&slot.value.get());
                }
            }
            Undo::Grant(id) => grant::withdraw(*id),
            Undo::Upcall(question) => agent::put_back(question),
        }
    }
}
