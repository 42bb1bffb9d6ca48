// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kfi export`: a file's bytes for peers to read, or to replace.

mod hosted;
mod incoming;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use kfabric::{Access, Domain, Errno, Key, ObjectId, Region};

use super::print;
use super::serve::listen_on;
use crate::cli::Export as Args;
use crate::error::{During, Failure, Result};
use crate::session::{Conn, Node};
use crate::stats::bytes;
use crate::wire::{Kind, Msg, Service};
use hosted::Hosted;
use incoming::Incoming;

/// Bytes of a segment: what has one key, and for a put is held in memory at a time.
const SEGMENT: u64 = 64 << 20;

/// Bytes of segment `index` of `total`; `None` when there is no such segment.
fn segment_len(total: u64, index: u64) -> Option<u64> {
    let at = index.checked_mul(SEGMENT)?;
    (at < total).then(|| (total - at).min(SEGMENT))
}

/// What all connections share.
struct Export<'a> {
    args: &'a Args,
    json: bool,
    /// The file, on each domain that somebody came to for it. None: there is no file yet.
    hosted: Mutex<Vec<(ObjectId, Arc<Hosted>)>>,
}

/// Runs it.
///
/// # Errors
///
/// A file that cannot be read or pinned; what listening says.
pub fn run(args: &Args, json: bool) -> Result<()> {
    let node = Node::at(&args.listen.common.select(), args.listen.address()?)?;
    let domain = node.first_domain()?;
    let hosted = match Hosted::open(&domain, &args.file) {
        Err(Failure::Io { source, .. })
            if args.writable && source.kind() == std::io::ErrorKind::NotFound =>
        {
            None
        }
        hosted => Some((domain.id(), Arc::new(hosted?))),
    };
    let what = match &hosted {
        Some((_, h)) => format!("exporting {} ({})", args.file.display(), bytes(h.len())),
        None => format!("exporting {} (nothing yet)", args.file.display()),
    };
    let export = Export {
        args,
        json,
        hosted: Mutex::new(hosted.into_iter().collect()),
    };
    let handle = |conn: Conn| export.client(conn);
    listen_on(&node, &args.listen, Service::File, json, &what, &handle)
}

impl Export<'_> {
    /// The file, pinned on the domain that a connection is on: keys work nowhere else.
    fn current(&self, domain: &Domain) -> Result<Option<Arc<Hosted>>> {
        let mut all = self.hosted.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, hosted)) = all.iter().find(|(at, _)| *at == domain.id()) {
            return Ok(Some(hosted.clone()));
        }
        if all.is_empty() {
            return Ok(None);
        }
        let hosted = Arc::new(Hosted::open(domain, &self.args.file)?);
        all.push((domain.id(), hosted.clone()));
        Ok(Some(hosted))
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
            Kind::Put => self.put(&mut conn, first.n[0]),
            kind => {
                let got = format!("{kind:?} instead of get or put");
                return Err(Failure::Protocol {
                    what: "export",
                    got,
                });
            }
        };
        match served {
            // Keys and temporary files are gone with the connection.
            Err(Failure::Gone { .. }) => Ok(false),
            Err(e) => {
                let errno = match &e {
                    Failure::Fabric { source, .. } => source.errno().unwrap_or(Errno::EIO),
                    Failure::Io { source, .. } => source.raw_os_error().map_or(Errno::EIO, Errno),
                    _ => Errno::EIO,
                };
                // The client is told if it can be; what went wrong is reported in any case.
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
                    // From here on the peer cannot change what is being written out.
                    key.close().during("revoke key")?;
                    incoming.take(&region)?;
                    region.close().during("unregister")?;
                    conn.send(&Msg::new(Kind::Release, &[index]))?;
                }
                (Kind::Digest, None) if incoming.complete() => {
                    let status = if incoming.digest() == words(&msg) {
                        incoming.commit()?;
                        let hosted = Hosted::open(&conn.domain, &self.args.file)?;
                        *self.hosted.lock().unwrap_or_else(PoisonError::into_inner) =
                            vec![(conn.domain.id(), Arc::new(hosted))];
                        self.note(&self.args.file, total)?;
                        Msg::new(Kind::Status, &[])
                    } else {
                        Msg::failed(Kind::Status, Errno::EBADMSG)
                    };
                    return conn.send(&status);
                }
                _ => return Err(nonsense(&msg)),
            }
        }
    }

    fn note(&self, file: &Path, total: u64) -> Result<()> {
        if self.json {
            return super::print_json(&serde_json::json!({ "put": file, "bytes": total }));
        }
        print(&format!("{} replaced: {}\n", file.display(), bytes(total)))
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

/// A key for a segment, and the message that says so.
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

/// Serves a get: one key at a time, of this connection alone, revoked when it is through with it.
fn get(conn: &mut Conn, hosted: &Hosted) -> Result<()> {
    conn.send(&Msg::new(Kind::Offer, &[hosted.len(), SEGMENT]))?;
    let mut open: Option<(u64, Key)> = None;
    loop {
        let msg = conn.recv()?;
        let index = msg.n[0];
        match (msg.kind, open.take()) {
            (Kind::Want, None) => {
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
                conn.send(&Msg::new(Kind::Release, &[index]))?;
            }
            (Kind::Digest, None) => {
                let d = hosted.digest();
                return conn.send(&Msg::new(
                    Kind::Digest,
                    &[hosted.len(), d[0], d[1], d[2], d[3]],
                ));
            }
            _ => return Err(nonsense(&msg)),
        }
    }
}
