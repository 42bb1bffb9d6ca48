// SPDX-License-Identifier: MIT OR Apache-2.0
//! Device-dax devices: their length, and puts into their memory, which are durable.

use std::fs::{read_link, read_to_string, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;

use kfabric::{Access, Errno, Key};
use sha2::{Digest, Sha256};

use super::hosted::Hosted;
use super::{grant, nonsense, segment_len, words, SEGMENT};
use crate::cmd::transfer::digest_words;
use crate::error::{During, Result};
use crate::session::Conn;
use crate::wire::{Kind, Msg};

/// Returns the length of a device-dax device; `None` if the file is no such device.
///
/// # Errors
///
/// If sysfs does not show the length.
pub(super) fn device_len(meta: &Metadata) -> io::Result<Option<u64>> {
    if !meta.file_type().is_char_device() {
        return Ok(None);
    }
    let device = meta.rdev();
    let number = (rustix::fs::major(device), rustix::fs::minor(device));
    let at = PathBuf::from(format!("/sys/dev/char/{}:{}", number.0, number.1));
    match read_link(at.join("subsystem")) {
        Ok(link) if link.ends_with("dax") => {}
        _ => return Ok(None),
    }
    let text = read_to_string(at.join("size"))?;
    text.trim().parse().map(Some).map_err(io::Error::other)
}

/// Serves a put of `total` bytes into the first bytes of a device. Returns whether all bytes are
/// there. The client commits each segment before it releases the segment.
pub(super) fn put(conn: &mut Conn, hosted: &Hosted, total: u64) -> Result<bool> {
    conn.send(&Msg::new(Kind::Offer, &[total, SEGMENT, 1]))?;
    let mut next = 0;
    let mut open: Option<Key> = None;
    let mut hash = Sha256::new();
    loop {
        let msg = conn.recv()?;
        let index = msg.n[0];
        match (msg.kind, open.take()) {
            (Kind::Want, None) if index == next => {
                let (Some(region), Some(len)) = (hosted.segment(index), segment_len(total, index))
                else {
                    return Err(nonsense(&msg));
                };
                let (key, grant) = grant(region, index, len, Access::REMOTE_WRITE)?;
                conn.send(&grant)?;
                open = Some(key);
            }
            (Kind::Release, Some(key)) if index == next => {
                key.close().during("revoke key")?;
                hosted.hash(index, segment_len(total, index).unwrap_or(0), &mut hash);
                conn.send(&Msg::new(Kind::Release, &[index]))?;
                next += 1;
            }
            (Kind::Digest, None) if segment_len(total, next).is_none() => {
                let same = digest_words(hash) == words(&msg);
                let answer = match same {
                    true => Msg::new(Kind::Status, &[]),
                    false => Msg::failed(Kind::Status, Errno::EBADMSG),
                };
                conn.send(&answer)?;
                return Ok(same);
            }
            _ => return Err(nonsense(&msg)),
        }
    }
}
