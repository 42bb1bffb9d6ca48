// SPDX-License-Identifier: MIT OR Apache-2.0

//! Power cuts of a guest's persistent memory, by a plug-in of the emulator (`qemu-tests/pmcut`).

use super::qemu::escape;
use crate::pmcut::message::{BASE, CHANNEL, LEN};
use anyhow::{Context as _, Result};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Maximum length of the log in bytes. The file is sparse.
const LOG_LEN: u64 = 4 << 30;

/// Settings of the plug-in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pmcut {
    /// Folder of the files.
    pub dir: PathBuf,
    /// The memory is a virtio-pmem device's instead of an NVDIMM's: only a flush by the device makes
    /// stores durable.
    pub device: bool,
    /// The caches are persistent: a store is durable at once.
    pub eadr: bool,
    /// One of this many stores makes its line durable at once, as a full cache does; 0: none.
    pub evict: u32,
    /// Time of a fence with lines to make durable. Widens the moment before.
    pub drain: Duration,
    /// End of the machine.
    pub end: End,
}

/// End of a machine, counted from the workload's first message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The guest powers off.
    Own,
    /// SIGKILL at this fence.
    Fence(u64),
    /// SIGKILL after this time.
    After(Duration),
}

impl Pmcut {
    /// Returns settings with files in `dir`.
    pub fn new(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
            device: false,
            eadr: false,
            evict: 0,
            drain: Duration::ZERO,
            end: End::Own,
        }
    }

    /// Returns settings with files in the folder of a command line's argument.
    ///
    /// # Errors
    ///
    /// If the folder cannot be created.
    pub fn parse(dir: &str) -> Result<Self> {
        std::fs::create_dir_all(dir).with_context(|| dir.to_owned())?;
        Ok(Self::new(&Path::new(dir).canonicalize()?))
    }

    /// Returns the file of the guest's memory.
    pub fn live(&self) -> PathBuf {
        self.dir.join("live")
    }

    /// Returns the file of the memory that a power failure leaves.
    pub fn durable(&self) -> PathBuf {
        self.dir.join("durable")
    }

    /// Returns the file of the log.
    pub fn log(&self) -> PathBuf {
        self.dir.join("log")
    }

    /// Turns the power on: the memory has the bytes of the durable file, or zeroes, and the log is
    /// empty.
    ///
    /// # Errors
    ///
    /// If a file cannot be written.
    pub(super) fn power_on(&self) -> Result<()> {
        let (live, durable) = (self.live(), self.durable());
        if durable.exists() {
            std::fs::copy(&durable, &live).with_context(|| live.display().to_string())?;
        } else {
            for path in [&live, &durable] {
                let file = std::fs::File::create(path);
                let file = file.with_context(|| path.display().to_string())?;
                file.set_len(LEN)?;
            }
        }
        match std::fs::remove_file(self.log()) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Returns QEMU's arguments for the persistent memory.
    pub(super) fn memory(&self) -> Vec<(&'static str, String)> {
        let live = escape(&self.live());
        let file =
            |id: &str| format!("memory-backend-file,id={id},mem-path={live},share=on,size={LEN}");
        if self.device {
            let device = format!("virtio-pmem-pci,memdev=pmem1,memaddr={BASE:#x}");
            return vec![("-object", file("pmem1")), ("-device", device)];
        }
        let persistence = if self.eadr { "cpu" } else { "mem-ctrl" };
        let machine = format!("pc,nvdimm=on,nvdimm-persistence={persistence}");
        vec![
            ("-machine", machine),
            ("-object", file("pmem0")),
            ("-device", format!("nvdimm,memdev=pmem0,addr={BASE:#x}")),
        ]
    }

    /// Returns QEMU's argument for the plug-in.
    pub(super) fn plugin(&self, file: &Path) -> String {
        let (stop, kill) = match self.end {
            End::Own => (0, 0),
            End::Fence(number) => (number, 0),
            End::After(time) => (0, time.as_micros().max(1)),
        };
        format!(
            "{},base={BASE:#x},len={LEN:#x},live={},durable={},log={},log_len={LOG_LEN:#x},\
             channel={CHANNEL:#x},device={},eadr={},evict={},drain={},stop={stop},kill={kill}",
            escape(file),
            escape(&self.live()),
            escape(&self.durable()),
            escape(&self.log()),
            u8::from(self.device),
            u8::from(self.eadr),
            self.evict,
            self.drain.as_micros(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_power_comes_back_to_the_durable_bytes() {
        let name = format!("kfabric-pmcut-{}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        let cut = Pmcut::parse(&dir.to_string_lossy()).unwrap();
        cut.power_on().unwrap();
        assert_eq!(std::fs::metadata(cut.live()).unwrap().len(), LEN);
        std::fs::write(cut.durable(), b"kept").unwrap();
        std::fs::write(cut.log(), b"old").unwrap();
        cut.power_on().unwrap();
        assert_eq!(std::fs::read(cut.live()).unwrap(), b"kept");
        assert!(!cut.log().exists());
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn the_end_is_an_argument_of_the_plugin() {
        let mut cut = Pmcut::new(Path::new("/a,b"));
        assert!(cut.plugin(Path::new("/p")).ends_with(",stop=0,kill=0"));
        cut.end = End::Fence(7);
        let text = cut.plugin(Path::new("/p"));
        assert!(text.starts_with("/p,base=0x200000000,len=0x4000000,live=/a,,b/live,"));
        assert!(text.ends_with(",stop=7,kill=0"));
        cut.end = End::After(Duration::from_millis(2));
        assert!(cut.plugin(Path::new("/p")).ends_with(",stop=0,kill=2000"));
    }
}
