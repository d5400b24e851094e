//! gRPC status codes and how a status looks in headers.

use bytes::Bytes;
use http::header::{HeaderMap, HeaderName, HeaderValue};

use crate::door::budget::Held;

/// An unexpected end without a known cause.
pub const UNKNOWN: u16 = 2;
/// The server is unreachable or shutting down.
pub const UNAVAILABLE: u16 = 14;
/// The deadline has passed.
pub const DEADLINE_EXCEEDED: u16 = 4;
/// The request is invalid.
pub const INVALID_ARGUMENT: u16 = 3;
/// A limit was reached.
pub const RESOURCE_EXHAUSTED: u16 = 8;
/// Unknown method.
pub const UNIMPLEMENTED: u16 = 12;
/// A server fault.
pub const INTERNAL: u16 = 13;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// The result of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The gRPC code; 0 is OK.
    pub code: u16,
    /// The error message for the caller; empty for OK.
    pub message: String,
}

impl Status {
    /// Success.
    pub const OK: Status = Status {
        code: 0,
        message: String::new(),
    };

    /// A status with a message.
    pub fn new(code: u16, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    /// Read a status from trailers, or from the headers of a headers-only answer.
    pub fn read(headers: &HeaderMap) -> Option<Self> {
        let code = headers.get(GRPC_STATUS)?.to_str().ok()?.parse().ok();
        let message = headers
            .get(GRPC_MESSAGE)
            .map(|text| percent_decoded(text.as_bytes()));
        Some(Self::new(
            code.unwrap_or(UNKNOWN),
            message.unwrap_or_default(),
        ))
    }

    /// Write the status into trailers, or into the headers of a headers-only answer. They are the
    /// last of the answer: `held` is dropped when they are written to the socket.
    pub fn write(&self, headers: &mut HeaderMap, held: Held) {
        let code = Code(self.code.to_string(), held);
        let mut value = HeaderValue::from_maybe_shared(Bytes::from_owner(code))
            .unwrap_or_else(|_| HeaderValue::from(self.code));
        // Otherwise the compression table would keep it.
        value.set_sensitive(true);
        headers.insert(GRPC_STATUS, value);
        if !self.message.is_empty() {
            if let Ok(value) = HeaderValue::from_str(&percent_encoded(&self.message)) {
                headers.insert(GRPC_MESSAGE, value);
            }
        }
    }
}

/// The text of a code, with what it holds.
struct Code(String, #[allow(dead_code)] Held);

impl AsRef<[u8]> for Code {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

/// Encode a message as gRPC does: visible ASCII unchanged, other bytes of UTF-8 (and `%`) as `%XX`.
fn percent_encoded(message: &str) -> String {
    let mut text = String::with_capacity(message.len());
    for byte in message.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => text.push(char::from(byte)),
            _ => {
                const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
                text.push('%');
                text.push(char::from(DIGITS[usize::from(byte >> 4)]));
                text.push(char::from(DIGITS[usize::from(byte & 15)]));
            }
        }
    }
    text
}

/// Decode `percent_encoded` text; invalid escapes are kept unchanged.
fn percent_decoded(text: &[u8]) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        let coded = digits.and_then(|two| u8::from_str_radix(two, 16).ok());
        match (first, coded) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            _ => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::chance::{rounds, Chance};
    use crate::door::budget::{Pool, Share};

    fn held() -> Held {
        let pool = Arc::new(Pool::new(1 << 20));
        Held::answer(&Arc::new(Share::new(pool, 1 << 20)))
    }

    #[test]
    fn a_message_survives_the_header() {
        assert_eq!(percent_encoded("50% ü\n"), "50%25 %C3%BC%0A");
        let mut headers = HeaderMap::new();
        Status::new(8, "too many").write(&mut headers, held());
        assert_eq!(headers["grpc-status"], "8");
        assert_eq!(headers["grpc-message"], "too many");
        assert_eq!(Status::read(&headers), Some(Status::new(8, "too many")));
        assert_eq!(percent_decoded(b"50%25 %C3%BC%0A 5% %zz"), "50% ü\n 5% %zz");
        headers.clear();
        assert_eq!(Status::read(&headers), None);
        Status::OK.write(&mut headers, held());
        assert_eq!(headers.len(), 1);
    }

    #[test]
    fn any_text_survives_the_header_and_any_header_is_read() {
        for seed in rounds() {
            let mut chance = Chance::new(seed);
            let text = String::from_utf8_lossy(&chance.bytes(60)).into_owned();
            let mut coded = percent_encoded(&text).into_bytes();
            assert!(HeaderValue::from_bytes(&coded).is_ok(), "seed {seed}");
            assert_eq!(percent_decoded(&coded), text, "seed {seed}");
            chance.mutate(&mut coded);
            let mut headers = HeaderMap::new();
            for (name, value) in [(GRPC_STATUS, chance.bytes(5)), (GRPC_MESSAGE, coded)] {
                if let Ok(value) = HeaderValue::from_bytes(&value) {
                    headers.insert(name, value);
                }
            }
            let _ = Status::read(&headers);
        }
    }
}
