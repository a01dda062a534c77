//! W3C trace context: which trace a call belongs to.

use rand::Rng;

/// A place in a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TraceContext {
    pub(super) trace_id: [u8; 16],
    /// The caller's span; zero when the trace begins here.
    pub(super) parent: [u8; 8],
    /// Whether the caller wants spans kept.
    pub(crate) sampled: bool,
}

impl TraceContext {
    /// A trace that begins here.
    pub(super) fn begin() -> Self {
        Self { trace_id: rand::rng().random(), parent: [0; 8], sampled: true }
    }

    /// Reads a `traceparent`, `00-TRACE-SPAN-FLAGS` in lower-case hexadecimal. One that cannot be read is as none: the
    /// standard wants it so.
    pub(crate) fn read(header: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(header).ok()?;
        let mut parts = text.split('-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        // Later versions may go on after the flags.
        let ([version], [flags]) = (hex(version)?, hex(flags)?);
        let is_known = match version {
            0 => parts.next().is_none(),
            255 => false,
            _ => true,
        };
        let context = Self { trace_id: hex(trace)?, parent: hex(span)?, sampled: flags & 1 == 1 };
        (is_known && context.trace_id != [0; 16] && context.parent != [0; 8]).then_some(context)
    }
}

fn hex<const BYTES: usize>(text: &str) -> Option<[u8; BYTES]> {
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if text.len() != 2 * BYTES || !text.bytes().all(is_hex) {
        return None;
    }
    let mut bytes = [0; BYTES];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_callers_trace_is_gone_on_with_and_nonsense_is_as_nothing() {
        let read = |text: &str| TraceContext::read(text.as_bytes());
        let context = read("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01").expect("valid");
        assert_eq!((context.trace_id[0], context.parent[1], context.sampled), (0x4b, 0xf0, true));
        let unsampled = read("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00").expect("valid");
        assert!(!unsampled.sampled);
        let later = read("01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more");
        assert_eq!(later, Some(context), "a version of the future begins like this one");
        for nonsense in [
            "",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "zz-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
        ] {
            assert_eq!(read(nonsense), None, "{nonsense}");
        }
    }
}
