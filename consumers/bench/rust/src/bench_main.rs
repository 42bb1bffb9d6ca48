// SPDX-License-Identifier: GPL-2.0
//! kfi_bench_rust: measures the cost of keys for kernel memory, or of operations, by the Rust API.
//!
//! Loading the module runs the benchmark and prints figures as notes in the kernel log. `kfi-tests
//! bench keys` reads `keys WINDOW REGION ASSIGN REVOKE BATCH`, with sizes in bytes and times in
//! nanoseconds per key. With `loops=1` the figures are `loop rust KIND BYTES OUTSTANDING
//! NANOSECONDS OPERATIONS`, for `kfi-tests bench kernel`.

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

#[path = "../../../ktap/ktap.rs"]
#[allow(dead_code, reason = "not all of it is used here")]
mod ktap;

#[path = "../../../tests/rust-api/src/buffer.rs"]
#[allow(dead_code, reason = "not all of it is used here")]
mod buffer;
#[path = "../../../tests/rust-api/src/station.rs"]
#[allow(dead_code, reason = "not all of it is used here")]
mod station;

mod loops;

module! {
    type: Bench,
    name: "kfi_bench_rust",
    authors: ["kfabric developers"],
    description: "The cost of keys for kernel memory, and of operations",
    license: "GPL",
    params: {
        loops: i32 {
            default: 0,
            description: "1: measure operations, not keys",
        },
    },
}

/// Window sizes in bytes, with the numbers of single assignments and of batches.
const WINDOWS: [(usize, u32, u32); 3] = [(4 << 10, 200, 20), (64 << 10, 100, 10), (1 << 20, 40, 4)];
/// Sizes of the regions in bytes.
const REGIONS: [usize; 4] = [4 << 10, 64 << 10, 1 << 20, 256 << 20];
/// Number of keys in a batch.
const BATCH: usize = 64;

/// The figures of one window size on one region size.
struct Figure {
    window: usize,
    region: usize,
    /// Nanoseconds per key: an assign, a revoke, and assign and revoke of a batch.
    nanos: [i64; 3],
}

/// Returns the average of `f` in nanoseconds, after one call to warm up.
fn average(rounds: u32, mut f: impl FnMut() -> Result<i64>) -> Result<i64> {
    f()?;
    let mut sum = 0;
    for _ in 0..rounds {
        sum += f()?;
    }
    Ok(sum / i64::from(rounds))
}

/// Returns the current time.
fn now() -> Instant<Monotonic> {
    Instant::now()
}

/// Assigns and revokes all of `slots` as a batch. Returns the nanoseconds per key.
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
    // CAST: A batch is small.
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
            // The first call, to warm up, was measured too.
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

/// Opens the first device with an IPv4 address, as `kfi_bench_c` does.
fn open() -> Result<station::Station> {
    for nth in 0.. {
        let station = station::Station::open(nth)?;
        // The size of a `struct sockaddr_in`.
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
        let folder = debugfs::Dir::new(c"kfi_bench_rust");
        Ok(Self {
            _results: ktap::Results::show(folder, report)?,
        })
    }
}
