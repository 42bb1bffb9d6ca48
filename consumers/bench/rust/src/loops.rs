// SPDX-License-Identifier: GPL-2.0
//! Measures the cost of operations by the Rust API: the loop of `consumers/bench/c`, with the same
//! figures.

use core::sync::atomic::{
    AtomicU32,
    Ordering, //
};
use kernel::{
    bindings,
    new_condvar,
    page::{
        Page,
        PAGE_SIZE, //
    },
    prelude::*,
    sync::{
        Arc,
        CondVar, //
    }, //
};
use kfabric::{
    ep::{
        Endpoint,
        EpAttr,
        Post, //
    },
    key::{
        Key,
        Region, //
    },
    memory::Memory,
    new_irqlock,
    objects::{
        conn_request::Request,
        cq::{
            Cq,
            CqHandler, //
        },
        eq::Eq,
        waiter::Waiter, //
    },
    op::OpKind,
    provider::KeyValue,
    sys::IrqLock,
    uapi::*,
};

use crate::{
    buffer::{
        Buffer,
        LOCAL,
        REMOTE, //
    },
    now,
    station::{
        self,
        Station, //
    }, //
};

/// Maximum length of an operation in bytes.
const BUF_SIZE: usize = 64 << 10;
/// Number of pages to allocate, of which a contiguous run is used.
const PAGES: usize = 512;
/// Maximum number of outstanding operations.
const DEPTH_MAX: usize = 16;
/// Number of completions read at a time.
const BATCH: usize = 16;

/// Sizes in bytes, with the number of measured operations.
const SIZES: [(usize, usize); 3] = [(8, 640), (4 << 10, 640), (64 << 10, 160)];

/// Number of bells that exist.
static LIVE: AtomicU32 = AtomicU32::new(0);

/// A measured figure.
pub(crate) struct Figure {
    /// The kind of operation.
    pub(crate) kind: &'static str,
    /// Length of an operation in bytes.
    pub(crate) len: usize,
    /// Number of outstanding operations.
    pub(crate) depth: usize,
    /// Duration of all operations in nanoseconds.
    pub(crate) nanos: i64,
    /// Number of operations.
    pub(crate) count: usize,
}

/// The loop sleeps on a bell; handlers of completions ring it.
#[pin_data(PinnedDrop)]
struct Bell {
    #[pin]
    rung: IrqLock<bool>,
    #[pin]
    changed: CondVar,
}

impl Bell {
    fn new() -> Result<Arc<Self>> {
        let bell = Arc::pin_init(
            pin_init!(Self {
                rung <- new_irqlock!(false, "kfi_bench_rust_bell"),
                changed <- new_condvar!("kfi_bench_rust_bell"),
            }),
            GFP_KERNEL,
        )?;
        LIVE.fetch_add(1, Ordering::Relaxed);
        Ok(bell)
    }

    /// Sleeps until the bell has rung since the last return of this function.
    fn wait(&self) {
        let mut rung = self.rung.lock();
        while !*rung {
            self.changed.wait(&mut rung);
        }
        *rung = false;
    }
}

#[pinned_drop]
impl PinnedDrop for Bell {
    fn drop(self: Pin<&mut Self>) {
        LIVE.fetch_sub(1, Ordering::Release);
    }
}

impl CqHandler for Bell {
    fn completed(&self) {
        *self.rung.lock() = true;
        self.changed.notify_one();
    }
}

/// An end of a connection.
struct End {
    // Fields are dropped in this order.
    ep: Arc<Endpoint>,
    cq: Arc<Cq>,
    eq: Arc<Eq>,
    waiter: Arc<Waiter>,
    buffer: Buffer,
}

/// Returns contiguous memory.
fn buffer(station: &Station) -> Result<Buffer> {
    let wanted = BUF_SIZE / PAGE_SIZE;
    let mut pages = KVVec::with_capacity(PAGES, GFP_KERNEL)?;
    for _ in 0..PAGES {
        pages.push(Page::alloc_page(GFP_KERNEL)?, GFP_KERNEL)?;
    }
    let place = |page: &Page| page.as_ptr().addr() / size_of::<bindings::page>();
    for end in 1..PAGES {
        for at in (1..=end).rev() {
            if place(&pages[at - 1]) < place(&pages[at]) {
                break;
            }
            pages.swap(at - 1, at);
        }
    }
    let first = pages
        .windows(wanted)
        .position(|some| place(&some[wanted - 1]) - place(&some[0]) == wanted - 1)
        .ok_or(ENOMEM)?;
    let mut owned = KVVec::with_capacity(wanted, GFP_KERNEL)?;
    for page in pages.into_iter().skip(first).take(wanted) {
        owned.push(page, GFP_KERNEL)?;
    }
    let memory = Memory::from_pages(owned)?;
    Ok(Buffer {
        region: Region::register(&station.domain, memory, LOCAL | REMOTE, true)?,
    })
}

impl End {
    fn open(station: &Station, bell: &Arc<Bell>, request: Option<&Arc<Request>>) -> Result<Self> {
        let buffer = buffer(station)?;
        let waiter = station::waiter()?;
        let eq = Eq::open(station.fabric(), 0, Some(waiter.clone()))?;
        // CAST: `DEPTH_MAX` is small.
        let depth = 4 * DEPTH_MAX as u32;
        let cq = Cq::open(
            &station.domain,
            depth,
            KFI_CQ_FORMAT_DATA,
            Some(bell.clone()),
        )?;
        let attr = EpAttr {
            tx_size: DEPTH_MAX as u32,
            rx_size: 2 * DEPTH_MAX as u32,
            ..EpAttr::default()
        };
        let ep = Endpoint::open(&station.domain, &attr, request)?;
        ep.bind_eq(&eq)?;
        ep.bind_cq(&cq, KFI_TRANSMIT | KFI_RECV)?;
        ep.enable()?;
        Ok(Self {
            ep,
            cq,
            eq,
            waiter,
            buffer,
        })
    }

    fn connected(&self) -> Result {
        let event = station::event(&self.eq, &self.waiter)?;
        match event.kind {
            KFI_CONNECTED => Ok(()),
            _ => Err(EIO),
        }
    }

    /// Reads completions and returns their number.
    fn take(&self, entries: &mut [CqEntry; BATCH]) -> Result<usize> {
        let count = self.cq.read(entries);
        match entries.iter().take(count).all(|entry| entry.err == 0) {
            true => Ok(count),
            false => Err(EIO),
        }
    }

    fn post(&self, kind: OpKind, len: usize, remote: KeyValue) -> Result {
        self.ep.post(Post {
            kind,
            flags: 0,
            context: 0,
            data: 0,
            remote_addr: remote.remote_addr,
            key: remote.key,
            inject: &[],
            atomic: None,
            segs: self.buffer.segs(kind, 0, len)?,
        })
    }
}

/// The two ends of the connection.
struct Ends {
    near: End,
    far: End,
    key: Arc<Key>,
    remote: KeyValue,
    bell: Arc<Bell>,
}

impl Ends {
    fn new(station: &Station) -> Result<Self> {
        let bell = Bell::new()?;
        let near = End::open(station, &bell, None)?;
        near.ep.connect(&station.addr(), &[])?;
        let event = station.request()?;
        let far = End::open(station, &bell, event.request.as_ref())?;
        far.ep.accept(&[])?;
        near.connected()?;
        far.connected()?;
        let key = Key::alloc(&far.buffer.region)?;
        let remote = key.assign(0, BUF_SIZE as u64, REMOTE)?;
        Ok(Self {
            near,
            far,
            key,
            remote,
            bell,
        })
    }

    fn close(self) -> Result {
        let Self { near, far, key, .. } = self;
        key.close();
        for end in [near, far] {
            end.ep.close();
            let End {
                ep,
                cq,
                eq,
                waiter,
                buffer,
            } = end;
            drop(ep);
            cq.close()?;
            eq.close()?;
            drop((cq, eq, waiter));
            station::settle(|| buffer.region.close())?;
        }
        Ok(())
    }

    /// Executes `count` operations, `depth` of them outstanding. Returns the nanoseconds.
    fn run(&self, kind: OpKind, len: usize, depth: usize, count: usize) -> Result<i64> {
        let sends = kind == OpKind::Send;
        let none = KeyValue::NONE;
        let remote = if sends { none } else { self.remote };
        let mut entries = [CqEntry::default(); BATCH];
        let (mut posted, mut over, mut sent, mut received) = (0, 0, 0, 0);
        let mut receives = 0;
        let recv = |receives: &mut usize, most: usize| -> Result {
            while sends && *receives < most.min(count) {
                self.far.post(OpKind::Recv, len, none)?;
                *receives += 1;
            }
            Ok(())
        };
        recv(&mut receives, 2 * depth)?;
        let start = now();
        while over < count {
            while posted < count && posted - over < depth {
                self.near.post(kind, len, remote)?;
                posted += 1;
            }
            loop {
                let here = self.near.take(&mut entries)?;
                let there = if sends {
                    self.far.take(&mut entries)?
                } else {
                    0
                };
                sent += here;
                received += there;
                if here + there != 0 {
                    break;
                }
                self.bell.wait();
            }
            // Each completed receive is replaced by another.
            recv(&mut receives, received + 2 * depth)?;
            over = if sends { received.min(sent) } else { sent };
        }
        Ok(start.elapsed().as_nanos())
    }

    fn measure(&self, figures: &mut KVec<Figure>) -> Result {
        for (kind, name) in [
            (OpKind::Send, "send"),
            (OpKind::Write, "write"),
            (OpKind::Read, "read"),
        ] {
            for (len, count) in SIZES {
                for depth in [1, DEPTH_MAX] {
                    self.run(kind, len, depth, count / 10)?;
                    let figure = Figure {
                        kind: name,
                        len,
                        depth,
                        nanos: self.run(kind, len, depth, count)?,
                        count,
                    };
                    figures.push(figure, GFP_KERNEL)?;
                }
            }
        }
        Ok(())
    }
}

/// Measures all figures, on a connection of the device to itself.
pub(crate) fn measure(station: &Station, figures: &mut KVec<Figure>) -> Result {
    let ends = Ends::new(station)?;
    let measured = ends.measure(figures);
    ends.close()?;
    measured?;
    station::settle(|| match LIVE.load(Ordering::Acquire) {
        0 => Ok(()),
        _ => Err(EBUSY),
    })
}
