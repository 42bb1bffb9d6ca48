// SPDX-License-Identifier: GPL-2.0
//! An open file: its handles, its namespace, and its end.
//!
//! Everything a program made is reachable from here. The end comes in one order (DESIGN 2): stop
//! new work, revoke keys, end endpoints, then queues, regions (unmap, unpin, uncharge), domains,
//! fabrics.

use core::sync::atomic::{
    AtomicU64,
    Ordering, //
};
use kernel::{
    bindings,
    cred::Credential,
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNodeReservation, //
    },
    sync::{
        aref::ARef,
        Arc,
        SetOnce, //
    },
    task::Kuid, //
};

use super::table::{
    Entry,
    Object,
    Table, //
};
use crate::{
    auth::ask::{
        self,
        Seat, //
    },
    fabric::Domain,
    net::Net,
    pep::Request,
    sys, //
};

/// What an open `/dev/kfabric` is.
#[pin_data]
pub(super) struct File {
    #[pin]
    pub(super) table: Table,
    pub(super) net: Net,
    pub(super) opener: Opener,
    /// For one that is, or was, the agent.
    pub(super) seat: SetOnce<Arc<Seat>>,
    /// No other file's.
    serial: u64,
}

/// Who opened the file.
pub(super) struct Opener {
    pub(super) uid: Kuid,
    /// Whether it was allowed to see everybody's objects.
    admin: bool,
    pub(super) task: ARef<kernel::task::Task>,
}

kernel::sync::global_lock! {
    // SAFETY: Initialised at module load, before the device can be opened.
    unsafe(uninit) static FILES: Mutex<Files> = None;
}

/// The open files, by serial number. Nothing is allocated with the tree locked: every open, every release
/// and the end of every grant takes that lock.
type Files = Option<RBTree<u64, Arc<File>>>;

/// The next file's number.
static SERIAL: AtomicU64 = AtomicU64::new(0);

/// Readies the list of files. Once, at module load.
pub(super) fn init() {
    // SAFETY: Called once, by `Device::new`, which runs once at module load.
    unsafe { FILES.init() }
}

/// Forgets the list. Once, when the device is gone and with it every file.
pub(super) fn exit() {
    let files = FILES.lock().take();
    drop(files);
}

impl File {
    /// A file opened by the current task, with the credentials of the open.
    pub(super) fn open(cred: &Credential) -> Result<Arc<Self>> {
        let opener = Opener {
            uid: cred.euid(),
            admin: is_admin_opener(),
            task: kernel::current!().group_leader().into(),
        };
        let node = RBTreeNodeReservation::new(GFP_KERNEL_ACCOUNT)?;
        let file = Arc::pin_init(
            try_pin_init!(Self {
                table <- Table::new(),
                net: Net::current(),
                opener,
                seat: SetOnce::new(),
                serial: SERIAL.fetch_add(1, Ordering::Relaxed),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        let node = node.into_node(file.serial, file.clone());
        // There is none of that number.
        let _ = FILES.lock().get_or_insert_with(RBTree::new).insert(node);
        Ok(file)
    }

    /// The file is released: no call runs in it, and none will.
    pub(super) fn release(this: Arc<Self>) {
        if let Some(seat) = this.seat.as_ref() {
            ask::leave(seat);
        }
        this.end();
        // Whoever ends grants goes through it until all in it has ended.
        let listed = {
            let mut files = FILES.lock();
            files
                .as_mut()
                .and_then(|files| files.remove_node(&this.serial))
        };
        drop(listed);
    }

    /// Closes everything, whatever order it was opened in.
    fn end(&self) {
        // Each round takes objects of one rank; those they depend on have a later one.
        for rank in 0..RANKS {
            if rank == REGIONS {
                self.settle();
            }
            for index in 0..self.table.cells() {
                sys::cond_resched();
                let (handle, entry) = match self.table.peek(index) {
                    Some(found) if rank_of(&found.1.object) == rank => found,
                    _ => continue,
                };
                // Children went before, so that nothing is busy. It is in the table until it has
                // ended: whoever ends grants finds it there, and waits.
                let _ = close(&entry.object);
                let _ = self.table.remove(handle);
            }
        }
    }

    /// Whether a call of the current task on this file may see everybody's objects.
    ///
    /// What the opener might not see, nobody sees for it: a privileged program that was handed the
    /// descriptor lends no rights, and one that gave its rights away keeps none.
    pub(super) fn sees_all(&self) -> bool {
        self.opener.admin && is_admin()
    }

    /// Whether a call of the current task on this file may see the objects of `other` otherwise.
    pub(super) fn sees(&self, other: &File) -> bool {
        let uid = self.opener.uid;
        core::ptr::eq(self, other) || (uid == other.opener.uid && uid == Kuid::current_euid())
    }

    /// Waits until nothing of the domains' holds a key any more but what is in the table.
    fn settle(&self) {
        for index in 0..self.table.cells() {
            let found = self.table.peek(index).map(|(_, entry)| entry.object);
            if let Some(Object::Domain(domain)) = found {
                Domain::settle(&domain);
            }
        }
    }

    /// Gives an object a handle; closes it if that fails.
    #[inline(never)]
    pub(super) fn publish(&self, object: Object, parent: u64) -> Result<u64> {
        let keep = object.clone();
        self.table
            .insert(Entry { object, parent })
            .inspect_err(|_| {
                let _ = close(&keep);
            })
    }

    /// Gives a request a handle. If that fails the request stays with its event.
    pub(super) fn publish_request(&self, request: Arc<Request>, parent: u64) -> Result<u64> {
        let object = Object::Request(request);
        self.table.insert(Entry { object, parent })
    }

    /// Closes the object of a handle and takes the handle out.
    ///
    /// # Errors
    ///
    /// `ENOENT`; `EBUSY`, `EINTR` (the task is being killed): the handle stays as it was.
    pub(super) fn close(&self, handle: u64) -> Result {
        let object = self.table.get(handle)?;
        // Of many that close one handle, one gets `Ok`; the object decides which.
        match &object {
            Object::Key(key) => key.close_killable()?,
            Object::Ep(ep) => ep.close_killable()?,
            other => close(other)?,
        }
        self.table.remove(handle).map(|_| ())
    }

    /// Runs `f` on every open file, holding no more than one at a time: `f` may take long.
    pub(super) fn for_each(mut f: impl FnMut(&File) -> Result) -> Result {
        let mut from = 0;
        loop {
            let next = {
                let files = FILES.lock();
                let files = files.as_ref();
                let at = files.and_then(|files| files.cursor_lower_bound(&from));
                at.map(|at| at.current().1.clone())
            };
            let Some(file) = next else { return Ok(()) };
            from = file.serial + 1;
            f(&file)?;
            sys::pause()?;
        }
    }
}

const RANKS: u32 = 7;
/// The rank of regions.
const REGIONS: u32 = 4;

/// When an object ends at release; smaller is earlier.
fn rank_of(object: &Object) -> u32 {
    match object {
        Object::Pep(_) | Object::Request(_) => 0,
        Object::Key(_) => 1,
        Object::Ep(_) => 2,
        Object::Cq(_) | Object::Eq(_) | Object::Cntr(_) => 3,
        Object::Region(_) => REGIONS,
        Object::Domain(_) => 5,
        Object::Fabric(_) => 6,
    }
}

fn close(object: &Object) -> Result {
    match object {
        Object::Fabric(x) => x.close(),
        Object::Domain(x) => x.close(),
        Object::Eq(x) => x.close(),
        Object::Cq(x) => x.close(),
        Object::Cntr(x) => x.close(),
        Object::Region(x) => x.close(),
        Object::Pep(x) => {
            x.close();
            Ok(())
        }
        Object::Ep(x) => {
            x.close();
            Ok(())
        }
        Object::Key(x) => {
            x.close();
            Ok(())
        }
        Object::Request(x) => match x.reject(&[]) {
            // Answered before, or the peer went: either way it is over.
            Err(e) if e == ENOMEM => Err(e),
            _ => Ok(()),
        },
    }
}

/// As [`is_admin`], of who opens a file: nothing is asked for yet, so there is nothing to audit.
fn is_admin_opener() -> bool {
    let ns = &raw mut bindings::init_user_ns;
    // SAFETY: The initial namespace is always there.
    unsafe { bindings::ns_capable_noaudit(ns, bindings::CAP_SYS_ADMIN as c_int) }
}

/// Whether the current task may see everybody's objects.
fn is_admin() -> bool {
    // SAFETY: No preconditions.
    unsafe { bindings::capable(bindings::CAP_SYS_ADMIN as c_int) }
}
