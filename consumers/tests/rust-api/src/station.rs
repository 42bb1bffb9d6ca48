// SPDX-License-Identifier: GPL-2.0
//! Long-lived objects of all tests: the device, and a listener.

use kernel::{
    prelude::*,
    sync::Arc,
    time::{
        delay::fsleep,
        Delta, //
    }, //
};
use kfabric::{
    base::name::name_str,
    key::Region,
    objects::{
        domain::Domain,
        eq::{
            Eq,
            Event, //
        },
        fabric::Fabric,
        pep::PassiveEp,
        waiter::{
            Live,
            Waiter, //
        },
    },
    provider::registry,
    sys::net::Net,
    uapi::*,
};

use crate::{
    check_eq,
    check_err,
    ktap::{
        Ktap,
        Outcome, //
    }, //
};

/// Time limit of a wait in milliseconds. Guests in software emulation are slow.
pub(crate) const PATIENCE: u32 = 20_000;

/// Number of this module's waiters.
static LIVE: Live = Live::zero();

/// Prefix of the names of fake providers.
const TEST_PROVIDERS: &str = "kfitest-";

/// An open device and a listening address on it.
pub(crate) struct Station {
    // Fields are in the order in which they are closed.
    pep: Arc<PassiveEp>,
    eq: Arc<Eq>,
    waiter: Arc<Waiter>,
    /// The device.
    pub(crate) domain: Arc<Domain>,
    /// Addresses of the device for listeners.
    pub(crate) addrs: KVec<SockAddr>,
    /// What getinfo tells of the device.
    pub(crate) info: InfoEntry,
}

/// Returns whether the address can be listened on without a scope: not an IPv6 link-local address.
fn is_plain(addr: &SockAddr) -> bool {
    addr.len == 16 || (addr.len == 28 && !(addr.data[8] == 0xfe && addr.data[9] & 0xc0 == 0x80))
}

impl Station {
    /// Opens the device of the `nth` suitable entry and listens.
    ///
    /// # Errors
    ///
    /// - `ENODATA` or `ENODEV` if there is no such entry.
    pub(crate) fn open(nth: usize) -> Result<Self> {
        let net = Net::current();
        let hints = InfoEntry {
            caps: KFI_MSG | KFI_RMA | KFI_DYNAMIC_KEYS,
            mode: !0,
            mr_mode: !0,
            ep_type: KFI_EP_MSG,
            ..InfoEntry::default()
        };
        let mut suitable = registry::getinfo(&net, Some(&hints))?;
        suitable.retain(|entry| {
            is_plain(&entry.src_addr)
                && name_str(&entry.prov_name).is_ok_and(|name| !name.starts_with(TEST_PROVIDERS))
        });
        let info = *suitable.get(nth).ok_or(ENODEV)?;
        let mut addrs = KVec::new();
        for entry in suitable {
            if (entry.prov_name, entry.domain_name) == (info.prov_name, info.domain_name) {
                addrs.push(entry.src_addr, GFP_KERNEL)?;
            }
        }
        let fabric = Fabric::open(
            net,
            name_str(&info.prov_name)?,
            name_str(&info.fabric_name)?,
        )?;
        let domain = Domain::open(&fabric, name_str(&info.domain_name)?)?;
        let waiter = waiter()?;
        let eq = Eq::open(&fabric, 0, Some(waiter.clone()))?;
        let pep = PassiveEp::open(&fabric, &eq, &info.src_addr, 0)?;
        pep.listen(0)?;
        Ok(Self {
            pep,
            eq,
            waiter,
            domain,
            addrs,
            info,
        })
    }

    /// Prints a description of the tested device.
    pub(crate) fn describe(&self, ktap: &mut Ktap) {
        let name = |name| name_str(name).unwrap_or("?");
        ktap.note(fmt!(
            "provider {}, fabric {}, domain {}, {} addresses",
            name(&self.info.prov_name),
            name(&self.info.fabric_name),
            name(&self.info.domain_name),
            self.addrs.len()
        ));
    }

    /// Returns the getinfo entry that was opened.
    #[allow(dead_code, reason = "for other modules that compile this file")]
    pub(crate) fn info(&self) -> &InfoEntry {
        &self.info
    }

    /// Returns the fabric.
    pub(crate) fn fabric(&self) -> &Arc<Fabric> {
        self.domain.fabric()
    }

    /// Returns the listening address.
    pub(crate) fn addr(&self) -> SockAddr {
        self.pep.local_addr()
    }

    /// Reads a connection request, if there is one.
    #[allow(dead_code, reason = "for other modules that compile this file")]
    pub(crate) fn poll(&self) -> Option<Event> {
        self.eq.read()
    }

    /// Waits for a connection request.
    pub(crate) fn request(&self) -> Result<Event> {
        event(&self.eq, &self.waiter)
    }

    /// Closes everything, and checks that nothing is left.
    pub(crate) fn close(self) -> Outcome {
        let Self {
            pep,
            eq,
            waiter,
            domain,
            ..
        } = self;
        let fabric = domain.fabric().clone();
        pep.close();
        drop(pep);
        let closed = (eq.close(), settle(|| domain.close()), fabric.close());
        drop((eq, domain, fabric, waiter));
        // The framework drops objects of a test with the last of their operations, which may be
        // slightly after the test.
        let gone = settle(|| {
            if LIVE.count() == 0 {
                Ok(())
            } else {
                Err(EBUSY)
            }
        });
        let (eq, domain, fabric) = closed;
        eq?;
        domain?;
        fabric?;
        gone?;
        check_eq!(LIVE.count(), 0);
        Ok(())
    }
}

/// Retries for 5 s while the result is `EBUSY`.
pub(crate) fn settle(mut close: impl FnMut() -> Result) -> Result {
    for _ in 0..500 {
        match close() {
            Err(e) if e == EBUSY => fsleep(Delta::from_millis(10)),
            other => return other,
        }
    }
    Err(EBUSY)
}

/// Makes a waiter for queues of this module.
pub(crate) fn waiter() -> Result<Arc<Waiter>> {
    Waiter::new(&LIVE)
}

/// Waits for an event.
pub(crate) fn event(eq: &Eq, waiter: &Waiter) -> Result<Event> {
    waiter.until(PATIENCE, || Ok(eq.read()))
}

/// Closes a region without children, and checks that a second close fails.
pub(crate) fn close_region(region: &Region) -> Outcome {
    region.close()?;
    check_err!(region.close(), ENOENT);
    Ok(())
}
