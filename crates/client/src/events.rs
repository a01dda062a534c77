//! Server-sent events out of the pieces in which they arrive.

/// The data of events, taken from a stream of bytes cut anywhere.
#[derive(Debug, Default)]
pub(crate) struct Events {
    waiting: Vec<u8>,
    /// Bytes of `waiting` that hold no end of a line.
    searched: usize,
    data: String,
}

impl Events {
    /// Takes a piece of the stream; gives the data of each event that it ends. Comments and other fields are left out.
    pub(crate) fn push(&mut self, piece: &[u8]) -> Vec<String> {
        self.waiting.extend_from_slice(piece);
        let mut ended = Vec::new();
        while let Some(offset) = self.waiting[self.searched..].iter().position(|byte| *byte == b'\n') {
            let end = self.searched + offset;
            let line: Vec<u8> = self.waiting.drain(..=end).collect();
            self.searched = 0;
            let line = String::from_utf8_lossy(&line);
            let line = line.trim_end_matches(['\r', '\n']);
            if line.is_empty() {
                if !self.data.is_empty() {
                    ended.push(std::mem::take(&mut self.data));
                }
            } else if let Some(data) = line.strip_prefix("data:") {
                if !self.data.is_empty() {
                    self.data.push('\n');
                }
                self.data.push_str(data.strip_prefix(' ').unwrap_or(data));
            }
        }
        self.searched = self.waiting.len();
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str =
        ": keep-alive\n\ndata: {\"a\": 1}\n\nevent: x\r\ndata: é\r\ndata:second\r\n\r\ndata: [DONE]\n\n";

    #[test]
    fn events_are_the_same_however_the_stream_is_cut() {
        let expected = ["{\"a\": 1}", "é\nsecond", "[DONE]"];
        for size in 1..STREAM.len() {
            let mut events = Events::default();
            let found: Vec<String> = STREAM.as_bytes().chunks(size).flat_map(|piece| events.push(piece)).collect();
            assert_eq!(found, expected, "pieces of {size} bytes");
        }
    }

    #[test]
    fn what_has_no_end_is_no_event() {
        assert!(Events::default().push(b"data: half\n").is_empty());
    }
}
