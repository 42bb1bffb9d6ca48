// SPDX-License-Identifier: MIT OR Apache-2.0

//! Coverage of our modules' code: `/sys/kernel/debug/kcov`.
//!
//! A thread that enabled kcov shares memory with the kernel, in which the kernel stores the address
//! of each basic block that the thread ran. Only addresses in our modules' text count, relative to
//! the module's section, so that runs can be compared.

use std::collections::HashSet;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of words of a thread's memory.
const WORDS: usize = 1 << 16;

const INIT_TRACE: u64 = 0x8008_6301;
const ENABLE: u64 = 0x6364;
const REMOTE_ENABLE: u64 = 0x4018_6366;

/// Handle under which our modules' callbacks are traced when a kernel thread calls them; the same
/// number as in `kverbs-provider/helpers.c`.
const REMOTE: u64 = 0x6b66_6931;

/// Modules whose code counts.
pub const MODULES: [&str; 3] = ["kfabric", "kverbs", "kshm"];

/// A piece of code of our modules, or another result of a program: see [`Text::place`].
pub type Point = u32;

/// Points below this are code: the module, and the byte of its text.
const MODULE_SPAN: u32 = 1 << 24;

/// Returns the point of a call that ended with this errno (0: none).
pub fn answer(shape: usize, errno: i32) -> Point {
    MODULE_SPAN * MODULES.len() as u32 + (shape as u32) * 256 + (errno as u32 & 255)
}

/// Returns whether a point is code of our modules.
pub fn is_code(point: Point) -> bool {
    point < MODULE_SPAN * MODULES.len() as u32
}

/// Addresses of our modules' text.
#[derive(Debug, Default)]
pub struct Text {
    /// Module, section and address, in the order of addresses.
    sections: Vec<(usize, String, u64)>,
}

/// No module's text is larger.
const LARGEST: u64 = MODULE_SPAN as u64;

impl Text {
    /// Reads the addresses from `/sys/module`.
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

    /// Returns the point of the first byte of a module's text.
    fn base(&self, module: usize) -> u64 {
        let first = self.sections.iter().find(|section| section.0 == module);
        first.map_or(0, |section| section.2)
    }

    /// Returns the point of an address in our code.
    fn point(&self, addr: u64) -> Option<Point> {
        let after = self.sections.partition_point(|section| section.2 <= addr);
        let (module, _, at) = self.sections.get(after.checked_sub(1)?)?;
        // Beyond the last section the code may be another module's.
        if addr - at >= LARGEST {
            return None;
        }
        let off = u32::try_from(addr - self.base(*module)).ok()?;
        (off < MODULE_SPAN).then(|| *module as u32 * MODULE_SPAN + off)
    }

    /// Returns a point as module, section and offset.
    pub fn place(&self, point: Point) -> Option<String> {
        let module = (point / MODULE_SPAN) as usize;
        let addr = self.base(module) + u64::from(point % MODULE_SPAN);
        let after = self.sections.partition_point(|section| section.2 <= addr);
        let (_, name, at) = self.sections.get(after.checked_sub(1)?)?;
        Some(format!("{} {name} {:#x}", MODULES.get(module)?, addr - at))
    }
}

/// One thread's record of the code that it ran.
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

    /// Records the code that this thread runs from now on. Returns `None` if this kernel cannot.
    pub fn here() -> Option<Self> {
        let kcov = Self::open()?;
        // SAFETY: No memory is passed.
        let r = unsafe { libc::ioctl(kcov._fd.as_raw_fd(), ENABLE, 0) };
        (r == 0).then_some(kcov)
    }

    /// Records the code that kernel threads run for our modules; to be enabled by a thread that
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

    /// Clears the record.
    pub fn clear(&self) {
        self.word(0).store(0, Ordering::Relaxed);
    }

    /// Adds the code that ran since to `points`, unless it is `known`. Returns the number of
    /// addresses.
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
