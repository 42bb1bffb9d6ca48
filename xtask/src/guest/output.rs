// SPDX-License-Identifier: MIT OR Apache-2.0

//! Where the output of commands in guests goes.

use super::protocol::Stream;
use std::io::Write as _;
use std::sync::{Arc, Mutex};

/// Takes a piece of a node's output; an empty piece is its end.
pub type Sink = Arc<dyn Fn(u8, Stream, &[u8]) + Send + Sync>;

/// To this process's own output; `marked` puts the node before each line.
pub fn to_stdio(marked: bool) -> Sink {
    if marked {
        return by_line(|node, stream, line| {
            write(stream, format!("[{node}] {line}\n").as_bytes())
        });
    }
    Arc::new(|_, stream, bytes| write(stream, bytes))
}

/// Whose output, and what of it is no whole line yet.
type Rest = ((u8, Stream), Vec<u8>);

/// Hands over whole lines, without their ends.
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

/// Writes at once; a reader that went away is no concern of the guest's.
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
