// SPDX-License-Identifier: GPL-2.0
//! What lasts from the first test to the last: the device, and a place to listen.

use kernel::{
    prelude::*,
    sync::Arc,
    time::{
        delay::fsleep,
        Delta, //
    }, //
};
use kfabric::{
    eq::{
        Eq,
        Event, //
    },
    fabric::{
        Domain,
        Fabric, //
    },
    net::Net,
    object::name_str,
    pep::PassiveEp,
    region::Region,
    registry,
    uapi::*,
};

use crate::{
    check_eq, check_err,
    ktap::{
        Ktap,
        Outcome, //
    },
    wake::Wake,
};

/// Providers whose names begin so are made of nothing.
const TEST_PROVIDERS: &str = "kfitest-";

/// An open device and a listening address on it.
pub(crate) struct Station {
    // In the order in which they are closed.
    pep: Arc<PassiveEp>,
    eq: Arc<Eq>,
    wake: Arc<Wake>,
    /// The device.
    pub(crate) domain: Arc<Domain>,
    /// Its addresses that can be listened on.
    pub(crate) addrs: KVec<SockAddr>,
    info: InfoEntry,
}

/// Whether one can listen on it without saying more: not an IPv6 link-local address.
fn is_plain(addr: &SockAddr) -> bool {
    addr.len == 16 || (addr.len == 28 && !(addr.data[8] == 0xfe && addr.data[9] & 0xc0 == 0x80))
}

impl Station {
    /// Opens the device of the `nth` suitable entry and listens.
    ///
    /// # Errors
    ///
    /// `ENODATA` or `ENODEV`: there is none.
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
        let wake = Wake::new()?;
        let eq = Eq::open(&fabric, 0, Some(wake.clone()))?;
        let pep = PassiveEp::open(&fabric, &eq, &info.src_addr, 0)?;
        pep.listen(0)?;
        Ok(Self {
            pep,
            eq,
            wake,
            domain,
            addrs,
            info,
        })
    }

    /// Says what is tested.
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

    /// The entry of getinfo's that was opened.
    #[allow(dead_code, reason = "for others who compile this file")]
    pub(crate) fn info(&self) -> &InfoEntry {
        &self.info
    }

    /// The fabric.
    pub(crate) fn fabric(&self) -> &Arc<Fabric> {
        self.domain.fabric()
    }

    /// Where it listens.
    pub(crate) fn addr(&self) -> SockAddr {
        self.pep.local_addr()
    }

    /// Takes a connection request if there is one.
    #[allow(dead_code, reason = "for others who compile this file")]
    pub(crate) fn poll(&self) -> Option<Event> {
        self.eq.read()
    }

    /// Waits for a connection request.
    pub(crate) fn request(&self) -> Result<Event> {
        event(&self.eq, &self.wake)
    }

    /// Closes everything, and sees that nothing is left.
    pub(crate) fn close(self) -> Outcome {
        let Self {
            pep,
            eq,
            wake,
            domain,
            ..
        } = self;
        let fabric = domain.fabric().clone();
        pep.close();
        drop(pep);
        let closed = (eq.close(), settle(|| domain.close()), fabric.close());
        drop((eq, domain, fabric, wake));
        // The framework lets go of what a test used when the last of its operations is over,
        // which may be a moment after the test.
        let gone = settle(|| {
            if Wake::live() == 0 {
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
        check_eq!(Wake::live(), 0);
        Ok(())
    }
}

/// Tries again for some seconds while the answer is `EBUSY`.
pub(crate) fn settle(mut close: impl FnMut() -> Result) -> Result {
    for _ in 0..500 {
        match close() {
            Err(e) if e == EBUSY => fsleep(Delta::from_millis(10)),
            other => return other,
        }
    }
    Err(EBUSY)
}

/// Waits for an event.
pub(crate) fn event(eq: &Eq, wake: &Wake) -> Result<Event> {
    wake.until(|| Ok(eq.read()))
}

/// Closes a region that has nothing on it any more, and sees that it cannot be closed again.
pub(crate) fn close_region(region: &Region) -> Outcome {
    region.close()?;
    check_err!(region.close(), ENOENT);
    Ok(())
}
