// SPDX-License-Identifier: MIT OR Apache-2.0

//! QEMU's control socket: cutting a cable, freezing a machine, tracing it, ending it.

use anyhow::{bail, Context as _, Result};
use serde_json::{json, Value};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;

/// A connection to a QEMU.
pub struct Qmp {
    reader: BufReader<UnixStream>,
    writer: UnixStream,
}

impl Qmp {
    /// Takes over a connection that QEMU opened.
    ///
    /// # Errors
    ///
    /// If the other end is not a QEMU.
    pub fn new(stream: UnixStream) -> Result<Self> {
        let mut qmp = Self {
            reader: BufReader::new(stream.try_clone()?),
            writer: stream,
        };
        let mut greeting = String::new();
        qmp.reader.read_line(&mut greeting)?;
        qmp.call("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    /// Executes a command.
    ///
    /// # Errors
    ///
    /// If QEMU refuses the command or has ended.
    pub fn call(&mut self, command: &str, arguments: Value) -> Result<Value> {
        let request = json!({"execute": command, "arguments": arguments});
        writeln!(self.writer, "{request}").with_context(|| format!("QMP {command}"))?;
        loop {
            let mut line = String::new();
            if self.reader.read_line(&mut line)? == 0 {
                bail!("QMP {command}: QEMU is gone");
            }
            let answer: Value =
                serde_json::from_str(&line).with_context(|| format!("QMP {command}"))?;
            if let Some(error) = answer.get("error") {
                bail!("QMP {command}: {error}");
            }
            if let Some(value) = answer.get("return") {
                return Ok(value.clone());
            }
        }
    }

    /// Executes a command of QEMU's human monitor.
    ///
    /// # Errors
    ///
    /// If QEMU prints a message, or has ended.
    pub fn monitor(&mut self, order: &str) -> Result<()> {
        let said = self.call("human-monitor-command", json!({"command-line": order}))?;
        match said.as_str().map(str::trim) {
            None | Some("") => Ok(()),
            Some(said) => bail!("{order:?}: {said}"),
        }
    }
}
