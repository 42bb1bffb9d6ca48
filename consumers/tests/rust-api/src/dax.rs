// SPDX-License-Identifier: GPL-2.0
//! Tests of memory of a block device with a DAX device. The loading program acts when a test asks for it in
//! the log:
//!
//! | line | action |
//! |---|---|
//! | `# unbind` | unbinds the device's driver, and binds the driver again |
//! | `# stall` | the RDMA device's next deregistration takes 5 s, or until `# go on` |
//! | `# unbind in stall` | as `# stall`; begins to unbind during the stall, which then lasts half a second more |

use core::sync::atomic::{
    AtomicI32,
    AtomicU32,
    AtomicU64,
    Ordering, //
};
use kernel::{
    prelude::*,
    str::CString,
    sync::Arc,
    time::{
        delay::fsleep,
        Delta,
        Instant,
        Monotonic, //
    }, //
};
use kfabric::{
    ep::Post,
    key::{
        Key,
        Region, //
    },
    memory::dax::{
        Device,
        Failure as Failed, //
    },
    objects::waiter::Waiter,
    op::OpKind,
    provider::KeyValue,
    uapi::*,
};

use crate::{
    buffer::{
        Buffer,
        REMOTE, //
    },
    check, check_eq, check_err,
    ktap::{
        self,
        Failure,
        Outcome, //
    },
    pair::{
        plain,
        Pair,
        Side, //
    },
    station::{
        self,
        Station,
        PATIENCE, //
    },
    Test,
};

/// The tests of this file.
pub(crate) const TESTS: &[Test] = &[
    ("dax_memory_written_durably", durable),
    ("dax_p03_removed_device_ends_keys", removed),
    (
        "dax_p03_removed_device_without_handler_ends_keys",
        removed_without_handler,
    ),
];

/// The tests of this file that need an RDMA device whose deregistrations stall.
pub(crate) const STALLED: &[Test] = &[
    ("dax_stalled_revocation_delays_no_other_slot", stalled),
    ("dax_p03_handler_waits_for_dropped_key", dropped),
];

/// Bytes of a write.
const LEN: usize = 700;
/// Bytes of the registered memory, and its place on the device.
const SIZE: usize = 16 << 12;
const OFFSET: u64 = 2 << 12;

/// The handler of failures: counts its calls.
struct Handler {
    calls: AtomicU32,
    error: AtomicI32,
    /// Milliseconds from the handler's creation to its last call.
    after: AtomicU64,
    created: Instant<Monotonic>,
    waiter: Arc<Waiter>,
}

impl Handler {
    fn new() -> Result<Arc<Self>> {
        let handler = Self {
            calls: AtomicU32::new(0),
            error: AtomicI32::new(0),
            after: AtomicU64::new(0),
            created: Instant::now(),
            waiter: station::waiter()?,
        };
        Ok(Arc::new(handler, GFP_KERNEL)?)
    }

    fn calls(&self) -> u32 {
        self.calls.load(Ordering::Acquire)
    }

    /// Milliseconds since the handler's creation. Not negative.
    fn millis(&self) -> u64 {
        // CAST: Time does not go back.
        self.created.elapsed().as_millis() as u64
    }
}

impl Failed for Handler {
    fn failed(&self, error: Error) {
        self.error.store(error.to_errno(), Ordering::Relaxed);
        self.after.store(self.millis(), Ordering::Relaxed);
        self.calls.fetch_add(1, Ordering::AcqRel);
        self.waiter.wake();
    }
}

/// Opens the device that the module's parameter names.
fn open() -> Result<Device> {
    let number = ktap::parameter(crate::module_parameters::dax.value());
    let path = CString::try_from_fmt(fmt!("/dev/pmem{number}"))?;
    let mut opened = Device::open(&path, true);
    // An earlier test may have made the device disappear, or a provider closes it late.
    for _ in 0..PATIENCE / 10 {
        match &opened {
            Err(e) if [ENOENT, ENXIO, EBUSY].contains(e) => {}
            _ => break,
        }
        fsleep(Delta::from_millis(10));
        opened = Device::open(&path, true);
    }
    opened
}

/// Posts a durable write to `value`.
fn write(side: &Side, context: u64, here: &Buffer, value: KeyValue) -> Result {
    side.ep.post(Post {
        flags: KFI_COMMIT_COMPLETE,
        remote_addr: value.remote_addr,
        key: value.key,
        ..plain(OpKind::Write, context, here.segs(OpKind::Write, 0, LEN)?)
    })
}

/// Memory of a device, registered with a key of its own and with a key slot.
struct Exported {
    own: Arc<Region>,
    shared: Arc<Region>,
    slot: Arc<Key>,
    values: [KeyValue; 2],
}

impl Exported {
    fn new(station: &Station, device: &Device) -> Result<Self, Failure> {
        let memory = device.memory(OFFSET, SIZE)?;
        Region::check_durable(&station.domain, &memory)?;
        let own = Region::register(&station.domain, memory.clone(), REMOTE, false)?;
        let shared = Region::register(&station.domain, memory, REMOTE, true)?;
        let slot = Key::alloc(&shared)?;
        let values = [own.key(), slot.assign(0, SIZE as u64, REMOTE)?];
        Ok(Self {
            own,
            shared,
            slot,
            values,
        })
    }

    /// Writes durably by each key.
    fn write(&self, station: &Station, here: &Buffer) -> Outcome {
        let pair = Pair::new(station)?;
        for (i, value) in self.values.into_iter().enumerate() {
            // CAST: A byte that differs.
            here.fill(0, LEN, i as u8);
            write(&pair.client, i as u64, here, value)?;
            pair.client.done(i as u64)?;
            check!(self.has(here));
        }
        Ok(())
    }

    /// Checks that no key can be used, and that the memory is unchanged.
    fn has_ended(&self, station: &Station, here: &Buffer) -> Outcome {
        let before = Buffer::local(&station.domain, LEN)?;
        // CAST: As in `write`.
        before.fill(0, LEN, (self.values.len() - 1) as u8);
        here.fill(0, LEN, 9);
        for value in self.values {
            // A failed access ends a connection over verbs.
            let pair = Pair::new(station)?;
            write(&pair.client, 3, here, value)?;
            check!(pair.client.completion()?.err != 0);
            check!(self.has(&before));
        }
        check_err!(self.slot.assign(0, SIZE as u64, REMOTE), ENODEV);
        check!(Key::alloc(&self.shared).err() == Some(ENODEV));
        let again = Region::register(&station.domain, self.own.memory().clone(), REMOTE, true);
        check!(again.err() == Some(ENODEV));
        Ok(())
    }

    fn has(&self, here: &Buffer) -> bool {
        let (mut a, mut b) = ([0; LEN], [0; LEN]);
        self.own.memory().read(0, &mut a) == LEN
            && here.region.memory().read(0, &mut b) == LEN
            && a == b
    }

    fn close(self) -> Outcome {
        self.slot.close();
        self.shared.close()?;
        self.own.close()?;
        Ok(())
    }
}

fn durable(station: &Station) -> Outcome {
    let device = open()?;
    check!(device.size() >= OFFSET + SIZE as u64);
    let handler = Handler::new()?;
    device.watch(handler.clone())?;
    for (offset, len) in [(1, SIZE), (0, 0), (device.size(), SIZE), (!0 << 12, SIZE)] {
        check!(device.memory(offset, len).err() == Some(EINVAL));
    }
    let here = Buffer::local(&station.domain, LEN)?;
    let exported = Exported::new(station, &device)?;
    exported.write(station, &here)?;
    exported.close()?;
    drop(device);
    check_eq!(handler.calls(), 0);
    Ok(())
}

fn removed(station: &Station) -> Outcome {
    let device = open()?;
    let handler = Handler::new()?;
    device.watch(handler.clone())?;
    let here = Buffer::local(&station.domain, LEN)?;
    let exported = Exported::new(station, &device)?;
    exported.write(station, &here)?;
    pr_info!("# unbind\n");
    let called = || Ok((handler.calls() == 1).then_some(()));
    handler.waiter.until(PATIENCE, called)?;
    check_eq!(handler.error.load(Ordering::Relaxed), ENODEV.to_errno());
    check_err!(device.check(), ENODEV);
    exported.has_ended(station, &here)?;
    check!(device.memory(OFFSET, SIZE).err() == Some(ENODEV));
    // It is too late for another handler.
    check_err!(device.watch(handler.clone()), ENODEV);
    exported.close()?;
    drop(device);
    check_eq!(handler.calls(), 1);
    Ok(())
}

/// The consumer has dropped the device, and does nothing.
fn removed_without_handler(station: &Station) -> Outcome {
    let device = open()?;
    let handler = Handler::new()?;
    device.watch(handler.clone())?;
    let here = Buffer::local(&station.domain, LEN)?;
    let exported = Exported::new(station, &device)?;
    drop(device);
    exported.write(station, &here)?;
    pr_info!("# unbind\n");
    for _ in 0..PATIENCE / 10 {
        if exported.own.key().key == KFI_KEY_NOTAVAIL && exported.slot.value().is_none() {
            break;
        }
        fsleep(Delta::from_millis(10));
    }
    exported.has_ended(station, &here)?;
    exported.close()?;
    check_eq!(handler.calls(), 0);
    Ok(())
}

/// A failure ends the keys of two slots, and the revocation of the first one stalls. Meanwhile the other
/// slot can be closed and dropped.
fn stalled(station: &Station) -> Outcome {
    let device = open()?;
    let handler = Handler::new()?;
    device.watch(handler.clone())?;
    let memory = device.memory(OFFSET, SIZE)?;
    let shared = Region::register(&station.domain, memory, REMOTE, true)?;
    let (a, b) = (Key::alloc(&shared)?, Key::alloc(&shared)?);
    for slot in [&a, &b] {
        slot.assign(0, SIZE as u64, REMOTE)?;
    }
    pr_info!("# stall\n");
    pr_info!("# unbind\n");
    for _ in 0..PATIENCE / 10 {
        if a.value().is_none() || b.value().is_none() {
            break;
        }
        fsleep(Delta::from_millis(10));
    }
    let (stalls, other) = match a.value() {
        None => (a, b),
        Some(_) => (b, a),
    };
    check!(stalls.value().is_none() && other.value().is_some());
    other.close();
    drop(other);
    // If the drop had waited for the stalled revocation, the handler would be called now.
    fsleep(Delta::from_millis(100));
    check_eq!(handler.calls(), 0);
    pr_info!("# go on\n");
    let called = || Ok((handler.calls() == 1).then_some(()));
    handler.waiter.until(PATIENCE, called)?;
    stalls.close();
    shared.close()?;
    Ok(())
}

/// The consumer drops a slot with a key. The revocation stalls, and meanwhile the device is removed.
fn dropped(station: &Station) -> Outcome {
    let device = open()?;
    let handler = Handler::new()?;
    device.watch(handler.clone())?;
    let memory = device.memory(OFFSET, SIZE)?;
    let shared = Region::register(&station.domain, memory, REMOTE, true)?;
    pr_info!("# unbind in stall\n");
    let mut end = None;
    for _ in 0..PATIENCE / 10 {
        let slot = Key::alloc(&shared)?;
        slot.assign(0, SIZE as u64, REMOTE)?;
        let start = handler.millis();
        drop(slot);
        if handler.millis() - start >= 400 {
            end = Some(handler.millis());
            break;
        }
        fsleep(Delta::from_millis(10));
    }
    check!(end.is_some());
    let called = || Ok((handler.calls() == 1).then_some(()));
    handler.waiter.until(PATIENCE, called)?;
    // The handler may be called once the key is revoked, a moment before the drop returns.
    let called = handler.after.load(Ordering::Relaxed);
    check!(end.is_some_and(|end| called + 200 > end));
    shared.close()?;
    Ok(())
}
