// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which code of our modules ran: `/sys/kernel/debug/kcov`.
//!
//! A thread that enabled it finds, in memory that it shares with the kernel, the address behind
//! each basic block that it ran through. Only those in the text of our modules count, and they are
//! counted from the module's section on, so that runs can be compared.

use std::collections::HashSet;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// Words that a thread's memory has.
const WORDS: usize = 1 << 16;

const INIT_TRACE: u64 = 0x8008_6301;
const ENABLE: u64 = 0x6364;
const REMOTE_ENABLE: u64 = 0x4018_6366;

/// What our modules' callbacks name when the kernel calls them from a thread of its own: the same
/// number as in `kverbs-provider/helpers.c`.
const REMOTE: u64 = 0x6b66_6931;

/// Modules whose code counts.
pub const MODULES: [&str; 3] = ["kfabric", "kverbs", "kshm"];

/// A piece of code of our modules, or another thing that a program showed: see [`Text::place`].
pub type Point = u32;

/// Points below this are code: which module, and which byte of its text.
const MODULE_SPAN: u32 = 1 << 24;

/// The point of a call that ended with this error (0: none).
pub fn answer(shape: usize, errno: i32) -> Point {
    MODULE_SPAN * MODULES.len() as u32 + (shape as u32) * 256 + (errno as u32 & 255)
}

/// Whether a point is code of our modules.
pub fn is_code(point: Point) -> bool {
    point < MODULE_SPAN * MODULES.len() as u32
}

/// Where our modules' text lies.
#[derive(Debug, Default)]
pub struct Text {
    /// Module, section, address, in the order of addresses.
    sections: Vec<(usize, String, u64)>,
}

/// No module's text is as large.
const LARGEST: u64 = MODULE_SPAN as u64;

impl Text {
    /// Reads it from `/sys/module`.
    pub fn read() -> Self {
        let mut sections = Vec::new();
        for (index, module) in MODULES.iter().enumerate() {
            let dir = format!("/sys/module/{module}/sections");
            for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
                let addr = u64::from_str_radix(text.trim().trim_start_matches("0x"), 16);
                if let (true, Ok(addr @ 1..)) = (name.contains(".text"), addr) {
                    sections.push((index, name, addr));
                }
            }
        }
        sections.sort_by_key(|section| section.2);
        Self { sections }
    }

    /// The first byte of a module's text.
    fn base(&self, module: usize) -> u64 {
        let first = self.sections.iter().find(|section| section.0 == module);
        first.map_or(0, |section| section.2)
    }

    /// The point of an address, if it is code of ours.
    fn point(&self, addr: u64) -> Option<Point> {
        let after = self.sections.partition_point(|section| section.2 <= addr);
        let (module, _, at) = self.sections.get(after.checked_sub(1)?)?;
        // The next section's code may be another module's, far behind our last.
        if addr - at >= LARGEST {
            return None;
        }
        let off = u32::try_from(addr - self.base(*module)).ok()?;
        (off < MODULE_SPAN).then(|| *module as u32 * MODULE_SPAN + off)
    }

    /// A point as module, section and offset.
    pub fn place(&self, point: Point) -> Option<String> {
        let module = (point / MODULE_SPAN) as usize;
        let addr = self.base(module) + u64::from(point % MODULE_SPAN);
        let after = self.sections.partition_point(|section| section.2 <= addr);
        let (_, name, at) = self.sections.get(after.checked_sub(1)?)?;
        Some(format!("{} {name} {:#x}", MODULES.get(module)?, addr - at))
    }
}

/// One thread's memory of what it ran.
pub struct Kcov {
    words: *const AtomicU64,
    _fd: OwnedFd,
}

// SAFETY: The memory is reached by atomics alone.
unsafe impl Send for Kcov {}

impl Kcov {
    fn open() -> Option<Self> {
        let file = std::fs::File::options();
        let fd: OwnedFd = { file }
            .read(true)
            .write(true)
            .open("/sys/kernel/debug/kcov")
            .ok()?
            .into();
        // SAFETY: A new mapping, of a descriptor that stays open as long as it is used.
        let words = unsafe {
            if libc::ioctl(fd.as_raw_fd(), INIT_TRACE, WORDS) != 0 {
                return None;
            }
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(
                std::ptr::null_mut(),
                WORDS * 8,
                prot,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        (words != libc::MAP_FAILED).then_some(Self {
            words: words.cast(),
            _fd: fd,
        })
    }

    /// From now on what this thread runs is seen. `None`: this kernel cannot.
    pub fn here() -> Option<Self> {
        let kcov = Self::open()?;
        // SAFETY: No memory is passed.
        let r = unsafe { libc::ioctl(kcov._fd.as_raw_fd(), ENABLE, 0) };
        (r == 0).then_some(kcov)
    }

    /// What the kernel's own threads run for our modules is seen; to be enabled by a thread that
    /// does nothing else.
    pub fn elsewhere() -> Option<Self> {
        #[repr(C)]
        struct RemoteArg {
            trace_mode: u32,
            area_size: u32,
            num_handles: u32,
            pad: u32,
            common_handle: u64,
        }
        let kcov = Self::open()?;
        let arg = RemoteArg {
            trace_mode: 0,
            area_size: WORDS as u32,
            num_handles: 0,
            pad: 0,
            common_handle: REMOTE,
        };
        // SAFETY: A valid structure, which the kernel copies.
        let r = unsafe { libc::ioctl(kcov._fd.as_raw_fd(), REMOTE_ENABLE, &raw const arg) };
        (r == 0).then_some(kcov)
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        // SAFETY: Callers stay below `WORDS`; the mapping is never unmapped.
        unsafe { &*self.words.add(index) }
    }

    /// Forgets.
    pub fn clear(&self) {
        self.word(0).store(0, Ordering::Relaxed);
    }

    /// Adds what was run since to `points`, unless it is `known`; how many addresses there were.
    pub fn collect(
        &self,
        text: &Text,
        known: impl Fn(Point) -> bool,
        points: &mut HashSet<Point>,
    ) -> usize {
        let count = (self.word(0).load(Ordering::Relaxed) as usize).min(WORDS - 1);
        let mut last = 0;
        for index in 1..=count {
            let addr = self.word(index).load(Ordering::Relaxed);
            if addr != last {
                last = addr;
                if let Some(point) = text.point(addr).filter(|point| !known(*point)) {
                    points.insert(point);
                }
            }
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_become_places_in_sections() {
        let section = |module, name: &str, addr| (module, name.to_owned(), addr);
        let text = Text {
            sections: vec![
                section(1, ".text", 0x1000),
                section(0, ".text", 0x9000),
                section(0, ".text.unlikely", 0xa000),
            ],
        };
        assert_eq!(text.point(0xfff), None);
        let place = |addr| text.place(text.point(addr).unwrap()).unwrap();
        assert_eq!(place(0x1234), "kverbs .text 0x234");
        assert_eq!(place(0x9001), "kfabric .text 0x1");
        assert_eq!(place(0xa008), "kfabric .text.unlikely 0x8");
        assert_eq!(text.point(0xa000 + LARGEST), None);
        assert!(!is_code(answer(3, 22)));
        assert_ne!(answer(3, 22), answer(4, 22));
    }
}
