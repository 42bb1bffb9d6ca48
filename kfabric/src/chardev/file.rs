// SPDX-License-Identifier: GPL-2.0
//! A device file: its handles, its namespace, and its end.
//!
//! All objects of a program are reachable from its file. The end has one order (DESIGN 2): refuse
//! new calls, revoke keys, close endpoints, then queues, regions (unmap, unpin, uncharge), domains,
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

use super::handles::{
    Entry,
    Handles,
    Object, //
};
use crate::{
    auth::agent::{
        self,
        Seat, //
    },
    memory::charge::Owner,
    objects::{
        conn_request::Request,
        domain::Domain, //
    },
    sys::{
        self,
        net::Net, //
    },
};

/// State of an open `/dev/kfabric`.
#[pin_data]
pub(super) struct File {
    #[pin]
    pub(super) handles: Handles,
    pub(super) net: Net,
    pub(super) opener: Opener,
    /// Set for a file that is, or was, the agent's.
    pub(super) seat: SetOnce<Arc<Seat>>,
    /// Unique number of the file.
    serial: u64,
}

/// The task that opened the file.
pub(super) struct Opener {
    pub(super) uid: Kuid,
    /// Whether the opener may list the objects of all files.
    admin: bool,
    pub(super) task: ARef<kernel::task::Task>,
    /// A charge of no pages. While it exists, a charge of the opener's memory allocates nothing.
    _memory: Option<Owner>,
}

kernel::sync::global_lock! {
    // SAFETY: Initialised at module load, before the device can be opened.
    unsafe(uninit) static FILES: Mutex<Files> = None;
}

/// The open files, by serial number. Nothing is allocated with the tree locked: every open, every
/// release and the end of every grant takes that lock.
type Files = Option<RBTree<u64, Arc<File>>>;

/// The next file's number.
static SERIAL: AtomicU64 = AtomicU64::new(0);

/// Initialises the list of files. Once, at module load.
pub(super) fn init() {
    // SAFETY: Called once, by `Device::new`, which runs once at module load.
    unsafe { FILES.init() }
}

/// Frees the list. Once, when the device is removed and all files are released.
pub(super) fn exit() {
    let files = FILES.lock().take();
    drop(files);
}

impl File {
    /// Creates a file for the current task, with the credentials of the open.
    pub(super) fn open(cred: &Credential) -> Result<Arc<Self>> {
        let opener = Opener {
            uid: cred.euid(),
            admin: is_admin_opener(),
            task: kernel::current!().group_leader().into(),
            // A task over its limit of memory, or without memory, may open the file as well.
            _memory: Owner::charge(0, 0).ok(),
        };
        let node = RBTreeNodeReservation::new(GFP_KERNEL_ACCOUNT)?;
        let file = Arc::pin_init(
            try_pin_init!(Self {
                handles <- Handles::new(),
                net: Net::current(),
                opener,
                seat: SetOnce::new(),
                serial: SERIAL.fetch_add(1, Ordering::Relaxed),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        let node = node.into_node(file.serial, file.clone());
        // Cannot replace an entry: the number is new.
        let _ = FILES.lock().get_or_insert_with(RBTree::new).insert(node);
        Ok(file)
    }

    /// Ends a released file, in which no call runs.
    pub(super) fn release(this: Arc<Self>) {
        if let Some(seat) = this.seat.as_ref() {
            agent::leave(seat);
        }
        this.end();
        // The file stays listed until all its objects have ended, because a sweep must find them.
        let listed = {
            let mut files = FILES.lock();
            files
                .as_mut()
                .and_then(|files| files.remove_node(&this.serial))
        };
        drop(listed);
    }

    /// Closes all objects, in the order of their ranks.
    fn end(&self) {
        for index in 0..self.handles.cells() {
            if let Some((_, entry)) = self.handles.peek(index) {
                if let Object::Eq(eq) = &entry.object {
                    eq.abandon();
                }
            }
        }
        // Each round closes objects of one rank; their parents have a later rank.
        for rank in 0..RANKS {
            if rank == REGIONS {
                self.settle();
            }
            for index in 0..self.handles.cells() {
                sys::cond_resched();
                let (handle, entry) = match self.handles.peek(index) {
                    Some(found) if rank_of(&found.1.object) == rank => found,
                    _ => continue,
                };
                // Children were closed before, so no object is busy. The object stays in the table
                // until it has ended: a sweep that finds the object waits.
                let _ = close(&entry.object);
                let _ = self.handles.remove(handle);
            }
        }
    }

    /// Returns whether a call of the current task on this file may list the objects of all files.
    ///
    /// Both the opener and the caller need the right. A privileged program that receives the
    /// descriptor adds no right, and an opener that drops its privilege loses the right.
    pub(super) fn sees_all(&self) -> bool {
        self.opener.admin && is_admin()
    }

    /// Returns whether a call of the current task on this file may list the objects of `other`
    /// otherwise.
    pub(super) fn sees(&self, other: &File) -> bool {
        let uid = self.opener.uid;
        core::ptr::eq(self, other) || (uid == other.opener.uid && uid == Kuid::current_euid())
    }

    /// Waits until the domains' workers hold no keys of this file's table.
    fn settle(&self) {
        for index in 0..self.handles.cells() {
            let found = self.handles.peek(index).map(|(_, entry)| entry.object);
            if let Some(Object::Domain(domain)) = found {
                Domain::wait_ordered(&domain);
            }
        }
    }

    /// Assigns a handle to an object; closes the object if that fails.
    #[inline(never)]
    pub(super) fn publish(&self, object: Object, parent: u64) -> Result<u64> {
        let keep = object.clone();
        self.handles
            .insert(Entry { object, parent })
            .inspect_err(|_| {
                let _ = close(&keep);
            })
    }

    /// Assigns a handle to a request. If that fails, the request stays with its event.
    pub(super) fn publish_request(&self, request: Arc<Request>, parent: u64) -> Result<u64> {
        let object = Object::Request(request);
        self.handles.insert(Entry { object, parent })
    }

    /// Closes the object of a handle and removes the handle.
    ///
    /// # Errors
    ///
    /// On error the handle is unchanged.
    ///
    /// - `ENOENT` if there is no such handle.
    /// - `EBUSY` if the object has children.
    /// - `EINTR` if the task is being killed.
    pub(super) fn close(&self, handle: u64) -> Result {
        let object = self.handles.get(handle)?;
        // If several tasks close one handle, the object decides which of them gets `Ok`.
        match &object {
            Object::Key(key) => key.close_killable()?,
            Object::Ep(ep) => ep.close_killable()?,
            other => close(other)?,
        }
        self.handles.remove(handle).map(|_| ())
    }

    /// Runs `f` on every open file, and holds one file at a time, because `f` may take long. Files
    /// opened meanwhile are skipped, so that a program cannot prolong the loop without end.
    pub(super) fn for_each(mut f: impl FnMut(&File) -> Result) -> Result {
        let end = SERIAL.load(Ordering::Relaxed);
        let mut from = 0;
        loop {
            let next = {
                let files = FILES.lock();
                let files = files.as_ref();
                let at = files.and_then(|files| files.cursor_lower_bound(&from));
                at.map(|at| at.current().1.clone())
            };
            let Some(file) = next.filter(|file| file.serial < end) else {
                return Ok(());
            };
            from = file.serial + 1;
            f(&file)?;
            sys::pause()?;
        }
    }
}

const RANKS: u32 = 7;
/// The rank of regions.
const REGIONS: u32 = 4;

/// Position of an object in the order of release; smaller is earlier.
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
            // The request was answered before, or the peer has disconnected: either way it is over.
            Err(e) if e == ENOMEM => Err(e),
            _ => Ok(()),
        },
    }
}

/// As [`is_admin`], for the task that opens a file: no right is used yet, so no audit record is
/// made.
fn is_admin_opener() -> bool {
    let ns = &raw mut bindings::init_user_ns;
    // SAFETY: The initial namespace always exists.
    unsafe { bindings::ns_capable_noaudit(ns, bindings::CAP_SYS_ADMIN as c_int) }
}

/// Returns whether the current task may list the objects of all files.
fn is_admin() -> bool {
    // SAFETY: The function has no preconditions.
    unsafe { bindings::capable(bindings::CAP_SYS_ADMIN as c_int) }
}
