// SPDX-License-Identifier: MIT OR Apache-2.0

//! Destinations of the output of commands in guests.

use super::protocol::Stream;
use std::io::Write as _;
use std::sync::{Arc, Mutex};

/// Accepts a part of a node's output; an empty part is its end.
pub type Sink = Arc<dyn Fn(u8, Stream, &[u8]) + Send + Sync>;

/// Returns a sink that writes to this process's own output. `marked`: with the node before each
/// line.
pub fn to_stdio(marked: bool) -> Sink {
    if marked {
        return by_line(|node, stream, line| {
            write(stream, format!("[{node}] {line}\n").as_bytes())
        });
    }
    Arc::new(|_, stream, bytes| write(stream, bytes))
}

/// Node and stream, with their incomplete last line.
type Rest = ((u8, Stream), Vec<u8>);

/// Returns a sink that passes whole lines to `take`, without line ends.
pub fn by_line(take: impl Fn(u8, Stream, &str) + Send + Sync + 'static) -> Sink {
    let rests: Mutex<Vec<Rest>> = Mutex::new(Vec::new());
    Arc::new(move |node, stream, bytes| {
        let Ok(mut rests) = rests.lock() else { return };
        let index = match rests.iter().position(|(key, _)| *key == (node, stream)) {
            Some(index) => index,
            None => {
                rests.push(((node, stream), Vec::new()));
                rests.len() - 1
            }
        };
        let rest = &mut rests[index].1;
        rest.extend_from_slice(bytes);
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = rest.drain(..=end).collect();
            take(
                node,
                stream,
                String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r']),
            );
        }
        if bytes.is_empty() && !rest.is_empty() {
            let line = std::mem::take(rest);
            take(node, stream, &String::from_utf8_lossy(&line));
        }
    })
}

/// Writes at once. Errors are ignored, because a closed output must not stop the guest.
fn write(stream: Stream, bytes: &[u8]) {
    let _ = match stream {
        Stream::Out => {
            let mut out = std::io::stdout().lock();
            out.write_all(bytes).and_then(|()| out.flush())
        }
        Stream::Err => std::io::stderr().lock().write_all(bytes),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_become_lines_node_by_node() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let sink = by_line({
            let seen = Arc::clone(&seen);
            move |node, _, line| seen.lock().unwrap().push(format!("{node}:{line}"))
        });
        sink(1, Stream::Out, b"on");
        sink(2, Stream::Out, b"two\nrest");
        sink(1, Stream::Out, b"e\r\n\nx");
        sink(2, Stream::Out, b"");
        assert_eq!(*seen.lock().unwrap(), ["2:two", "1:one", "1:", "2:rest"]);
    }
}
