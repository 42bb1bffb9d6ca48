// SPDX-License-Identifier: MIT OR Apache-2.0

//! A running guest: QEMU, its sockets, and the guest's control requests.

use super::output::Sink;
use super::protocol::{output_port, Event, Order, Stream, CTL_PORT, SYS_PORT};
use super::qemu::{Machine, CARD};
use super::qmp::Qmp;
use anyhow::{bail, Context as _, Result};
use serde_json::json;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A started guest.
pub struct Guest {
    /// Number of the guest, from 1.
    pub number: u8,
    /// The nodes in the guest.
    pub nodes: Vec<u8>,
    /// File of the kernel log.
    pub console: PathBuf,
    /// Sockets of the nodes' terminals.
    pub terminals: Vec<UnixStream>,
    child: Child,
    orders: UnixStream,
    qmp: Arc<Mutex<Qmp>>,
    killed: Arc<AtomicBool>,
    readers: Vec<JoinHandle<()>>,
}

impl Guest {
    /// Starts a guest. `machine` contains the ports and sockets that [`ports`] returned.
    ///
    /// # Errors
    ///
    /// If QEMU does not start; the error contains QEMU's message.
    pub fn start(
        number: u8,
        nodes: &[u8],
        machine: &Machine<'_>,
        sink: &Sink,
        events: &Sender<(u8, Event)>,
    ) -> Result<Self> {
        let listen = |path: &Path| {
            UnixListener::bind(path).with_context(|| format!("listening on {}", path.display()))
        };
        let ports: Vec<(&str, UnixListener)> = machine
            .ports
            .iter()
            .map(|(name, path)| Ok((name.as_str(), listen(path)?)))
            .collect::<Result<_>>()?;
        let terminals: Vec<UnixListener> = machine
            .terminals
            .iter()
            .map(|path| listen(path))
            .collect::<Result<_>>()?;
        let qmp = listen(machine.qmp)?;
        let said = machine.console.with_extension("qemu");
        let mut child = machine
            .command()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&said)?)
            .spawn()
            .context("starting QEMU")?;
        let terminals = terminals
            .iter()
            .map(|listener| accept(listener, &mut child, &said))
            .collect::<Result<_>>()?;
        let mut readers = Vec::new();
        let mut orders = None;
        let mut control = None;
        for (name, listener) in &ports {
            let stream = accept(listener, &mut child, &said)?;
            if *name == SYS_PORT {
                readers.push(read_events(number, stream.try_clone()?, events.clone()));
                orders = Some(stream);
            } else if *name == CTL_PORT {
                control = Some(stream);
            } else if let Some((node, kind)) = output_of(nodes, name) {
                readers.push(read_output(node, kind, stream, Arc::clone(sink)));
            }
        }
        let killed = Arc::new(AtomicBool::new(false));
        let qmp = Arc::new(Mutex::new(Qmp::new(accept(&qmp, &mut child, &said)?)?));
        if let Some(stream) = control {
            let (killed, qmp) = (Arc::clone(&killed), Arc::clone(&qmp));
            let dir = machine.host_dir.map(Path::to_owned);
            // Not among `readers`, because the thread may be in the middle of a freeze.
            std::thread::spawn(move || {
                serve_control(number, stream, &qmp, dir.as_deref(), &killed)
            });
        }
        Ok(Self {
            number,
            nodes: nodes.to_vec(),
            console: machine.console.to_owned(),
            terminals,
            child,
            orders: orders.context("a guest without a port for orders")?,
            qmp,
            killed,
            readers,
        })
    }

    /// Sends an order. A failure is ignored, because the end of a guest is noticed elsewhere.
    pub fn order(&mut self, order: &Order) {
        if let Ok(text) = serde_json::to_string(order) {
            let _ = writeln!(self.orders, "{text}");
        }
    }

    /// Returns whether the guest still runs.
    pub fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Makes the network card drop packets that the cable does not accept. To be called after the
    /// peer's guest has ended.
    ///
    /// If the peer ends while its socket is full, QEMU 10 never completes the transmission in
    /// progress, and the packets behind it stay in the card's queue. A queue pair of rxe waits 50 s
    /// for its packets and then warns. QEMU completes all transmissions when the machine stops. A
    /// failure is ignored, because the end of a guest is noticed elsewhere.
    pub fn drop_packets(&self) {
        if let Ok(mut qmp) = self.qmp.lock() {
            let _ = qmp.call("stop", json!({}));
            let _ = qmp.call("cont", json!({}));
        }
    }

    /// Returns whether a program in the guest requested its kill.
    pub fn was_killed(&self) -> bool {
        self.killed.load(Ordering::Relaxed)
    }

    /// Kills the guest if it still runs, and reads the rest of its output.
    pub fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        for reader in self.readers.drain(..) {
            let _ = reader.join();
        }
    }

    /// Returns the kernel log so far.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.console).unwrap_or_default()).into_owned()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.end();
    }
}

/// Returns the ports of a guest with `nodes`, and their sockets.
pub fn ports(nodes: &[u8], sockets: &Path, number: u8) -> Vec<(String, PathBuf)> {
    let mut names = vec![SYS_PORT.to_owned(), CTL_PORT.to_owned()];
    for node in nodes {
        names.push(output_port(*node, Stream::Out));
        names.push(output_port(*node, Stream::Err));
    }
    names
        .into_iter()
        .map(|name| {
            let socket = sockets.join(format!("{number}-{name}"));
            (name, socket)
        })
        .collect()
}

/// Returns the node and the stream of an output port.
fn output_of(nodes: &[u8], port: &str) -> Option<(u8, Stream)> {
    nodes
        .iter()
        .flat_map(|node| [(*node, Stream::Out), (*node, Stream::Err)])
        .find(|(node, stream)| output_port(*node, *stream) == port)
}

/// Accepts the connection that QEMU makes at its start. QEMU's messages are in the file `said`.
fn accept(listener: &UnixListener, child: &mut Child, said: &Path) -> Result<UnixStream> {
    let started = Instant::now();
    listener.set_nonblocking(true)?;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                return Ok(stream);
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
        let ended = child.try_wait()?;
        if ended.is_some() || started.elapsed() > Duration::from_secs(30) {
            let _ = child.kill();
            let text = std::fs::read_to_string(said).unwrap_or_default();
            bail!("QEMU does not start: {}", text.trim());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn read_output(node: u8, kind: Stream, mut stream: UnixStream, sink: Sink) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut buffer = [0; 16384];
        loop {
            match stream.read(&mut buffer) {
                Ok(0) | Err(_) => break,
                Ok(count) => sink(node, kind, &buffer[..count]),
            }
        }
        sink(node, kind, &[]);
    })
}

fn read_events(number: u8, stream: UnixStream, events: Sender<(u8, Event)>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines() {
            let Ok(line) = line else { return };
            if let Ok(event) = serde_json::from_str(&line) {
                if events.send((number, event)).is_err() {
                    return;
                }
            }
        }
    })
}

/// Executes the control requests of programs in the guest.
fn serve_control(
    number: u8,
    stream: UnixStream,
    qmp: &Mutex<Qmp>,
    dir: Option<&Path>,
    killed: &AtomicBool,
) {
    let Ok(mut writer) = stream.try_clone() else {
        return;
    };
    for line in BufReader::new(stream).lines() {
        let Ok(line) = line else { return };
        eprintln!("  guest {number}: {line}");
        if line.trim().starts_with("kill") {
            killed.store(true, Ordering::Relaxed);
        }
        let answer = match control(line.trim(), qmp, dir) {
            Ok(()) => "ok".to_owned(),
            Err(error) => format!("error {error:#}"),
        };
        let _ = writeln!(writer, "{answer}");
    }
}

fn control(line: &str, qmp: &Mutex<Qmp>, dir: Option<&Path>) -> Result<()> {
    let Ok(mut qmp) = qmp.lock() else {
        bail!("QMP is gone")
    };
    match line.split_once(' ').unwrap_or((line, "")) {
        ("link", state @ ("on" | "off")) => {
            qmp.call("set_link", json!({"name": CARD, "up": state == "on"}))?;
        }
        ("freeze", seconds) => {
            let seconds: f64 = seconds.parse().context("freeze SECONDS")?;
            qmp.call("stop", json!({}))?;
            std::thread::sleep(Duration::from_secs_f64(seconds.clamp(0.0, 3600.0)));
            qmp.call("cont", json!({}))?;
        }
        ("kill", seconds) => {
            let seconds: f64 = seconds.parse().context("kill SECONDS")?;
            qmp.call("stop", json!({}))?;
            std::thread::sleep(Duration::from_secs_f64(seconds.clamp(0.0, 60.0)));
            qmp.call("quit", json!({}))?;
        }
        ("trace", "") => {
            for order in ["log none", "one-insn-per-tb off"] {
                qmp.monitor(order)?;
            }
        }
        ("trace", name) => {
            let dir = dir.context("tracing needs a folder that is /host")?;
            let file = dir.join(format!("trace.{}", name.replace(['/', ' '], "-")));
            for order in [
                "one-insn-per-tb on",
                &format!("logfile {}", file.display()),
                "log exec,nochain",
            ] {
                qmp.monitor(order)?;
            }
        }
        _ => bail!("unknown request {line:?}"),
    }
    Ok(())
}
