// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kfi export`: lets peers read a file, or replace it, or read and write a device-dax device.

mod dax;
mod hosted;
mod incoming;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use kfabric::{Access, Domain, Errno, Key, Region};
use sha2::{Digest, Sha256};

use super::print;
use super::serve::{listen_on, Offered};
use super::transfer::digest_words;
use crate::cli::Export as Args;
use crate::error::{During, Failure, Result};
use crate::say::{complain, printable};
use crate::session::{Conn, Node};
use crate::stats::bytes;
use crate::wire::{Kind, Msg, Service};
use hosted::Hosted;
use incoming::Incoming;

/// Bytes of a segment. A segment has one key; a put holds one segment in memory at a time.
const SEGMENT: u64 = 64 << 20;

/// Bytes of segment `index` of a file of `total` bytes; `None` if the segment does not exist.
fn segment_len(total: u64, index: u64) -> Option<u64> {
    let at = index.checked_mul(SEGMENT)?;
    (at < total).then(|| (total - at).min(SEGMENT))
}

/// The exported file.
#[derive(Default)]
struct Files {
    /// Set if the file exists.
    there: bool,
    /// The pinned file, for each domain that a client has used.
    hosted: Vec<(Weak<Domain>, Arc<Hosted>)>,
}

impl Files {
    fn on(&self, domain: &Arc<Domain>) -> Option<Arc<Hosted>> {
        let found = self
            .hosted
            .iter()
            .find(|(at, _)| at.as_ptr() == Arc::as_ptr(domain));
        found.map(|(_, hosted)| hosted.clone())
    }

    fn add(&mut self, domain: &Arc<Domain>, hosted: Arc<Hosted>) {
        // Drops pins on domains whose device was removed: no client can use them.
        self.hosted.retain(|(at, _)| at.strong_count() != 0);
        self.hosted.push((Arc::downgrade(domain), hosted));
    }
}

/// State shared by all connections.
struct Export<'a> {
    args: &'a Args,
    json: bool,
    files: Mutex<Files>,
    /// Set if the export is a device-dax device.
    is_device: bool,
    /// Held during a put into a device.
    putting: Mutex<()>,
}

/// Runs `kfi export`.
///
/// # Errors
///
/// If the file cannot be read or pinned, or listening fails.
pub fn run(args: &Args, json: bool) -> Result<()> {
    let node = Node::at(&args.listen.common.select(), args.listen.address()?)?;
    let domain = node.first_domain()?;
    let shown = printable(&args.file.display().to_string());
    let mut files = Files::default();
    let mut is_device = false;
    let what = match Hosted::open(&domain, &args.file, args.writable) {
        Err(Failure::Io { source, .. })
            if args.writable
                && source.kind() == std::io::ErrorKind::NotFound
                && !args.file.starts_with("/dev") =>
        {
            format!("exporting {shown} (nothing yet)")
        }
        hosted => {
            let hosted = Arc::new(hosted?);
            let what = format!("exporting {shown} ({})", bytes(hosted.len()));
            files.there = true;
            is_device = hosted.is_device();
            files.add(&domain, hosted);
            what
        }
    };
    // From here on only the node owns the domain, so that a removed device's domain is closed.
    drop(domain);
    let export = Export {
        args,
        json,
        files: Mutex::new(files),
        is_device,
        putting: Mutex::new(()),
    };
    let handle = |conn: Conn| export.client(conn);
    let service = Offered {
        service: Service::File,
        // This service has no data messages.
        memory: 1 << 20,
    };
    listen_on(&node, &args.listen, service, json, &what, &handle)
}

impl Export<'_> {
    /// Returns the file, pinned on a connection's domain: keys of other domains do not work there.
    fn current(&self, domain: &Arc<Domain>) -> Result<Option<Arc<Hosted>>> {
        let mut files = self.files();
        if let Some(hosted) = files.on(domain) {
            return Ok(Some(hosted));
        }
        if !files.there {
            return Ok(None);
        }
        let hosted = Arc::new(Hosted::open(domain, &self.args.file, self.args.writable)?);
        files.add(domain, hosted.clone());
        Ok(Some(hosted))
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Called when a put has replaced the file and its client was notified. Pins the new file; if
    /// that fails, the next get tries again.
    fn replaced(&self, domain: &Arc<Domain>, total: u64) {
        *self.files() = Files {
            there: true,
            hosted: Vec::new(),
        };
        let hosted = self.current(domain).map(|_| ());
        for failed in [self.note(total), hosted]
            .iter()
            .filter_map(|r| r.as_ref().err())
        {
            complain(failed);
        }
    }

    /// Serves one client.
    fn client(&self, mut conn: Conn) -> Result<bool> {
        let first = match conn.recv() {
            Ok(msg) => msg,
            Err(Failure::Gone { .. }) => return Ok(false),
            Err(e) => return Err(e),
        };
        let served = match first.kind {
            Kind::Get => self.current(&conn.domain).and_then(|hosted| match hosted {
                Some(hosted) => get(&mut conn, &hosted),
                None => refuse(&mut conn, Errno::ENOENT),
            }),
            Kind::Put if !self.args.writable => refuse(&mut conn, Errno::EACCES),
            Kind::Put if first.n[0] > self.args.max_size => refuse(&mut conn, Errno::EMSGSIZE),
            Kind::Put => match (first.n[1] != 0, self.is_device) {
                (true, true) => self.put_durably(&mut conn, first.n[0]),
                (false, false) => self.put(&mut conn, first.n[0]),
                (true, false) => refuse(&mut conn, Errno::EOPNOTSUPP),
                (false, true) => refuse(&mut conn, Errno::EINVAL),
            },
            kind => {
                let got = format!("{kind:?} instead of get or put");
                return Err(Failure::Protocol {
                    what: "export",
                    got,
                });
            }
        };
        match served {
            // The keys and temporary files were dropped with the connection.
            Err(Failure::Gone { .. }) => Ok(false),
            Err(e) => {
                let errno = match &e {
                    Failure::Fabric { source, .. } => source.errno().unwrap_or(Errno::EIO),
                    Failure::Io { source, .. } => source.raw_os_error().map_or(Errno::EIO, Errno),
                    _ => Errno::EIO,
                };
                // Notifies the client if possible. The caller reports the failure in any case.
                let _ = conn
                    .send(&Msg::failed(Kind::Status, errno))
                    .and_then(|()| conn.flush());
                Err(e)
            }
            Ok(()) => {
                conn.flush()?;
                Ok(true)
            }
        }
    }

    fn put(&self, conn: &mut Conn, total: u64) -> Result<()> {
        let mut incoming = Incoming::new(&self.args.file, total)?;
        conn.send(&Msg::new(Kind::Offer, &[total, SEGMENT]))?;
        let mut open: Option<(u64, Region, Key)> = None;
        loop {
            let msg = conn.recv()?;
            let index = msg.n[0];
            match (msg.kind, open.take()) {
                (Kind::Want, None) if index == incoming.next_segment() => {
                    let Some(len) = segment_len(total, index) else {
                        return Err(nonsense(&msg));
                    };
                    let region = incoming.segment(&conn.domain, len)?;
                    let (key, grant) = grant(&region, index, len, Access::REMOTE_WRITE)?;
                    conn.send(&grant)?;
                    open = Some((index, region, key));
                }
                (Kind::Release, Some((current, region, key))) if current == index => {
                    // Revokes the key first: from here on the peer cannot change the segment.
                    key.close().during("revoke key")?;
                    incoming.take(&region)?;
                    region.close().during("unregister")?;
                    conn.send(&Msg::new(Kind::Release, &[index]))?;
                }
                (Kind::Digest, None) if incoming.complete() => {
                    if incoming.digest() != words(&msg) {
                        return conn.send(&Msg::failed(Kind::Status, Errno::EBADMSG));
                    }
                    incoming.commit()?;
                    let told = conn.send(&Msg::new(Kind::Status, &[]));
                    self.replaced(&conn.domain, total);
                    return told;
                }
                _ => return Err(nonsense(&msg)),
            }
        }
    }

    /// Serves a put into a device, one at a time.
    fn put_durably(&self, conn: &mut Conn, total: u64) -> Result<()> {
        let Ok(_turn) = self.putting.try_lock() else {
            return refuse(conn, Errno::EBUSY);
        };
        match self.current(&conn.domain)? {
            Some(hosted) if !hosted.is_writable() => refuse(conn, Errno::EOPNOTSUPP),
            Some(hosted) if total <= hosted.len() => {
                if dax::put(conn, &hosted, total)? {
                    self.note(total)?;
                }
                Ok(())
            }
            _ => refuse(conn, Errno::EMSGSIZE),
        }
    }

    fn note(&self, total: u64) -> Result<()> {
        let file: &Path = &self.args.file;
        if self.json {
            return super::print_json(&serde_json::json!({ "put": file, "bytes": total }));
        }
        let shown = printable(&file.display().to_string());
        let done = if self.is_device {
            "written"
        } else {
            "replaced"
        };
        print(&format!("{shown} {done}: {}\n", bytes(total)))
    }
}

fn refuse(conn: &mut Conn, errno: Errno) -> Result<()> {
    conn.send(&Msg::failed(Kind::Offer, errno))
}

fn nonsense(msg: &Msg) -> Failure {
    Failure::Protocol {
        what: "export",
        got: format!("{:?} {:?}", msg.kind, msg.n),
    }
}

/// The digest in a message.
fn words(msg: &Msg) -> [u64; 4] {
    [msg.n[1], msg.n[2], msg.n[3], msg.n[4]]
}

/// Assigns a key to a segment, and makes the message for the client.
fn grant(region: &Region, index: u64, len: u64, access: Access) -> Result<(Key, Msg)> {
    let mut keys = region.alloc_keys(1).during("reserve key")?;
    let key = keys.pop().ok_or(Failure::Protocol {
        what: "export",
        got: "no key".to_owned(),
    })?;
    let remote = key.assign(0, len, access).during("assign key")?;
    Ok((
        key,
        Msg::new(Kind::Grant, &[index, len, remote.addr, remote.key]),
    ))
}

/// Serves a get. The connection has one key at a time, revoked when the client has finished the
/// segment.
fn get(conn: &mut Conn, hosted: &Hosted) -> Result<()> {
    conn.send(&Msg::new(Kind::Offer, &[hosted.len(), SEGMENT]))?;
    let mut open: Option<(u64, Key)> = None;
    let mut next = 0;
    let mut hash = Sha256::new();
    loop {
        let msg = conn.recv()?;
        let index = msg.n[0];
        match (msg.kind, open.take()) {
            // The digest of a device is made segment by segment.
            (Kind::Want, None) if index == next || !hosted.is_device() => {
                let (Some(region), Some(len)) =
                    (hosted.segment(index), segment_len(hosted.len(), index))
                else {
                    return Err(nonsense(&msg));
                };
                let (key, grant) = grant(region, index, len, Access::REMOTE_READ)?;
                conn.send(&grant)?;
                open = Some((index, key));
            }
            (Kind::Release, Some((current, key))) if current == index => {
                key.close().during("revoke key")?;
                if hosted.is_device() {
                    hosted.hash(index, SEGMENT, &mut hash);
                }
                next = index + 1;
                conn.send(&Msg::new(Kind::Release, &[index]))?;
            }
            (Kind::Digest, None)
                if !hosted.is_device() || segment_len(hosted.len(), next).is_none() =>
            {
                let d = hosted.digest().unwrap_or_else(|| digest_words(hash));
                return conn.send(&Msg::new(
                    Kind::Digest,
                    &[hosted.len(), d[0], d[1], d[2], d[3]],
                ));
            }
            _ => return Err(nonsense(&msg)),
        }
    }
}
