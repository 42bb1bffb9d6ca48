// SPDX-License-Identifier: MIT OR Apache-2.0

//! Connects this process's terminal to those of the guests.

use super::node::Guest;
use anyhow::Result;
use std::io::{IsTerminal as _, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

/// Switches to the other node's terminal (Ctrl-]).
const SWITCH: u8 = 0x1d;

/// Returns the rows and columns of the terminal.
pub fn size() -> Option<(u16, u16)> {
    let text = stty(&["size"])?;
    let mut words = text.split_whitespace().map(|word| word.parse().ok());
    Some((words.next()??, words.next()??))
}

/// The terminal in raw mode; the drop restores its former mode.
pub struct Raw(Option<String>);

impl Drop for Raw {
    fn drop(&mut self) {
        if let Some(mode) = &self.0 {
            stty(&[mode]);
        }
    }
}

/// Connects the terminal to those of the guests until they end.
///
/// # Errors
///
/// If the guests' sockets cannot be shared between threads.
pub fn join(guests: &[Guest]) -> Result<Raw> {
    let raw = Raw(std::io::stdin()
        .is_terminal()
        .then(|| stty(&["-g"]))
        .flatten());
    if raw.0.is_some() {
        stty(&["raw", "-echo"]);
    }
    let active = Arc::new(AtomicUsize::new(0));
    let mut inputs = Vec::new();
    for guest in guests {
        for terminal in &guest.terminals {
            let (number, active) = (inputs.len(), Arc::clone(&active));
            let reader = terminal.try_clone()?;
            inputs.push(terminal.try_clone()?);
            std::thread::spawn(move || show(reader, number, &active));
        }
    }
    std::thread::spawn(move || type_in(&mut inputs, &active));
    Ok(raw)
}

/// Shows the output of a terminal while it is the active one.
fn show(mut reader: UnixStream, number: usize, active: &AtomicUsize) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = reader.read(&mut buffer) {
        if active.load(Ordering::Relaxed) == number {
            let mut out = std::io::stdout().lock();
            let _ = out.write_all(&buffer[..count]).and_then(|()| out.flush());
        }
    }
}

/// Sends input to the active terminal.
fn type_in(inputs: &mut [UnixStream], active: &AtomicUsize) {
    let mut buffer = [0; 1024];
    while let Ok(count @ 1..) = std::io::stdin().read(&mut buffer) {
        for byte in &buffer[..count] {
            let now = active.load(Ordering::Relaxed);
            if *byte == SWITCH && inputs.len() > 1 {
                let next = (now + 1) % inputs.len();
                active.store(next, Ordering::Relaxed);
                eprint!("\r\n[node {}]\r\n", next + 1);
                // Makes the shell of that node show a prompt.
                let _ = inputs[next].write_all(b"\r");
            } else {
                let _ = inputs[now].write_all(&[*byte]);
            }
        }
    }
    // The end of input ends the shells, as on a local terminal.
    for input in inputs {
        let _ = input.write_all(&[4]);
    }
}

fn stty(args: &[&str]) -> Option<String> {
    let output = Command::new("stty")
        .args(args)
        .stdin(std::process::Stdio::inherit())
        .output()
        .ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
