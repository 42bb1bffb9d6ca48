// SPDX-License-Identifier: GPL-2.0
//! kfi_bench: what keys for the kernel's own memory cost, or what operations do.
//!
//! Loading it measures. It tells its figures as notes in the kernel's log. `kfi-tests bench keys`
//! reads `keys WINDOW REGION ASSIGN REVOKE BATCH`, sizes in bytes, times in nanoseconds of one key;
//! with `loops=1` it is `loop rust KIND BYTES OUTSTANDING NANOSECONDS OPERATIONS`, for `kfi-tests
//! bench kernel`.

use kernel::{
    debugfs,
    prelude::*,
    sync::Arc,
    time::{
        Instant,
        Monotonic, //
    }, //
};

use kfabric::{
    key::{
        Assignment,
        Key, //
    },
    provider::KeyValue,
    uapi::KFI_REMOTE_READ,
};

#[path = "../../ktap/ktap.rs"]
#[allow(dead_code, reason = "not all of it is used here")]
mod ktap;

#[path = "../../kfi-sample/src/buffer.rs"]
#[allow(dead_code, reason = "not all of it is used here")]
mod buffer;
#[path = "../../kfi-sample/src/station.rs"]
#[allow(dead_code, reason = "not all of it is used here")]
mod station;
#[path = "../../kfi-sample/src/wake.rs"]
#[allow(dead_code, reason = "not all of it is used here")]
mod wake;

mod loops;

module! {
    type: Bench,
    name: "kfi_bench",
    authors: ["kfabric developers"],
    description: "What keys for the kernel's own memory and operations cost",
    license: "GPL",
    params: {
        loops: i32 {
            default: 0,
            description: "1: measure operations, not keys",
        },
    },
}

/// Windows, how often one is assigned, and how often a batch.
const WINDOWS: [(usize, u32, u32); 3] = [(4 << 10, 200, 20), (64 << 10, 100, 10), (1 << 20, 40, 4)];
/// Bytes of the regions that they are windows of.
const REGIONS: [usize; 4] = [4 << 10, 64 << 10, 1 << 20, 256 << 20];
/// Keys of a batch.
const BATCH: usize = 64;

/// What was measured of a window of a region.
struct Figure {
    window: usize,
    region: usize,
    /// Nanoseconds: an assign, a revoke, and both of a key of a batch.
    nanos: [i64; 3],
}

/// Nanoseconds of what `f` does, on average; once before, to warm up.
fn average(rounds: u32, mut f: impl FnMut() -> Result<i64>) -> Result<i64> {
    f()?;
    let mut sum = 0;
    for _ in 0..rounds {
        sum += f()?;
    }
    Ok(sum / i64::from(rounds))
}

/// A moment.
fn now() -> Instant<Monotonic> {
    Instant::now()
}

/// Assigns and revokes all of `slots` at once; nanoseconds of one.
fn batch(slots: &mut [Arc<Key>], region: usize, window: usize) -> Result<i64> {
    let mut all = KVec::with_capacity(slots.len(), GFP_KERNEL)?;
    for (i, key) in slots.iter().enumerate() {
        let assignment = Assignment {
            key,
            offset: (i * window % region) as u64,
            len: window as u64,
            access: KFI_REMOTE_READ,
            once: false,
            value: KeyValue::NONE,
        };
        all.push(assignment, GFP_KERNEL)?;
    }
    let start = now();
    Key::assign_many(&mut all).map_err(|(_, e)| e)?;
    drop(all);
    let ended = Key::revoke_many(slots).map_err(|(_, e)| e)?;
    let took = start.elapsed().as_nanos();
    // CAST: There are few.
    Ok(took / ended as i64)
}

fn measure(station: &station::Station, figures: &mut KVec<Figure>) -> ktap::Outcome {
    for region in REGIONS {
        let buffer = buffer::Buffer::shared(&station.domain, region)?;
        let mut slots = KVec::with_capacity(BATCH, GFP_KERNEL)?;
        for _ in 0..BATCH {
            slots.push(Key::alloc(&buffer.region)?, GFP_KERNEL)?;
        }
        let one = slots[0].clone();
        for (window, rounds, batches) in WINDOWS {
            if window > region {
                continue;
            }
            let mut revoking = 0;
            let assign = average(rounds, || {
                let start = now();
                one.assign(0, window as u64, KFI_REMOTE_READ)?;
                let assigned = start.elapsed().as_nanos();
                one.revoke()?;
                revoking += start.elapsed().as_nanos() - assigned;
                Ok(assigned)
            })?;
            // With the one that warmed up.
            let revoke = revoking / i64::from(rounds + 1);
            let each = average(batches, || batch(&mut slots, region, window))?;
            let figure = Figure {
                window,
                region,
                nanos: [assign, revoke, each],
            };
            figures.push(figure, GFP_KERNEL)?;
        }
        for slot in &slots {
            slot.close();
        }
        drop(slots);
        buffer.region.close()?;
    }
    Ok(())
}

/// Opens the first device that can be reached by IPv4, as `kfi_c_bench` does.
fn open() -> Result<station::Station> {
    for nth in 0.. {
        let station = station::Station::open(nth)?;
        // A `struct sockaddr_in`.
        if station.info().src_addr.len == 16 {
            return Ok(station);
        }
        station.close().map_err(|_| EIO)?;
    }
    Err(ENODEV)
}

struct Bench {
    _results: ktap::Results,
}

impl kernel::Module for Bench {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        let station = open()?;
        let mut ktap = ktap::Ktap::begin(2);
        if ktap::parameter(module_parameters::loops.value()) == 0 {
            let mut figures = KVec::new();
            let measured = measure(&station, &mut figures);
            for figure in &figures {
                let [assign, revoke, batch] = figure.nanos;
                ktap.note(fmt!(
                    "keys {} {} {assign} {revoke} {batch}",
                    figure.window,
                    figure.region
                ));
            }
            ktap.test("keys", || measured);
        } else {
            let mut figures = KVec::new();
            let measured = loops::measure(&station, &mut figures);
            for figure in &figures {
                ktap.note(fmt!(
                    "loop rust {} {} {} {} {}",
                    figure.kind,
                    figure.len,
                    figure.depth,
                    figure.nanos,
                    figure.count
                ));
            }
            ktap.test("loops", || Ok(measured?));
        }
        let left = station.close();
        ktap.test("nothing_is_left", || left);
        let report = ktap.end()?;
        let folder = debugfs::Dir::new(c"kfi_bench");
        Ok(Self {
            _results: ktap::Results::show(folder, report)?,
        })
    }
}
