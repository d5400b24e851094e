//! gRPC's framing: a compression flag, four bytes of length, the message.
//!
//! `Deframer` turns HTTP/2 data into messages; it holds at most one message of the allowed size,
//! and decompresses gzip within the same limit.

use std::io::Read;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::door::status::{Status, INTERNAL, INVALID_ARGUMENT, RESOURCE_EXHAUSTED, UNIMPLEMENTED};

/// Length of the prefix of a message.
pub const PREFIX: usize = 5;
/// Memory for a message is allocated in steps of at most this size.
const RESERVE_MAX: usize = 1 << 20;
/// First pieces below this size are copied.
const COPIED_MAX: usize = 4 << 10;

/// Append one uncompressed message with its prefix.
pub fn put(buffer: &mut BytesMut, message: &[u8]) {
    buffer.reserve(PREFIX + message.len());
    buffer.put_u8(0);
    // The caller has checked the limit of 4 GiB.
    buffer.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    buffer.put_slice(message);
}

/// The compression of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// No compression.
    Identity,
    /// Messages with the flag are compressed with gzip.
    Gzip,
}

/// Extracts messages from data.
pub struct Deframer {
    data: BytesMut,
    whole: Bytes,
    limit: usize,
    encoding: Encoding,
}

impl Deframer {
    /// Create a deframer for messages of at most `limit` bytes, before and after decompression.
    pub fn new(limit: usize, encoding: Encoding) -> Self {
        Self {
            data: BytesMut::new(),
            whole: Bytes::new(),
            limit,
            encoding,
        }
    }

    /// Add data.
    pub fn push(&mut self, chunk: Bytes) {
        if self.data.is_empty() && self.whole.is_empty() {
            self.whole = chunk; // the usual case: a message in one piece is not copied
        } else {
            if !self.whole.is_empty() {
                let first = std::mem::take(&mut self.whole);
                self.data.extend_from_slice(&first);
            }
            self.data.extend_from_slice(&chunk);
        }
    }

    /// Largest message.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Bytes of partial messages.
    pub fn len(&self) -> usize {
        self.data.len() + self.whole.len()
    }

    /// True if no partial message is left.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty() && self.whole.is_empty()
    }

    /// Return the next message, or `None` if more data is needed.
    pub fn next(&mut self) -> Result<Option<Bytes>, Status> {
        match self.next_packed()? {
            Some(Packed { data, gzip: false }) => Ok(Some(data)),
            Some(packed) => packed.inflate(self.limit).map(Some),
            None => Ok(None),
        }
    }

    /// The same, without decompression, which may take long.
    pub fn next_packed(&mut self) -> Result<Option<Packed>, Status> {
        let head = if self.whole.is_empty() {
            &self.data[..]
        } else {
            &self.whole[..]
        };
        if head.len() < PREFIX {
            return Ok(None);
        }
        let flag = head[0];
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        if length > self.limit {
            let text = format!(
                "a message of {length} bytes exceeds the limit of {}",
                self.limit
            );
            return Err(Status::new(RESOURCE_EXHAUSTED, text));
        }
        let held = head.len();
        if held < PREFIX + length {
            self.keep(PREFIX + length - held);
            return Ok(None);
        }
        let data = self.cut(length);
        match (flag, self.encoding) {
            (0, _) => Ok(Some(Packed { data, gzip: false })),
            (1, Encoding::Gzip) => Ok(Some(Packed { data, gzip: true })),
            (1, Encoding::Identity) => Err(Status::new(
                INTERNAL,
                "a message is marked as compressed, but grpc-encoding names no compression",
            )),
            _ => Err(Status::new(
                INVALID_ARGUMENT,
                format!("{flag} is not a compression flag"),
            )),
        }
    }

    /// Prepare for the rest of a message. Its length field may be false, so that memory grows with
    /// what has arrived; and a small piece is copied, as it may be a part of a larger buffer.
    fn keep(&mut self, missing: usize) {
        if !self.whole.is_empty() && self.whole.len() < COPIED_MAX {
            let first = std::mem::take(&mut self.whole);
            self.data.extend_from_slice(&first);
        }
        let step = self.len().clamp(COPIED_MAX, RESERVE_MAX);
        if self.whole.is_empty() {
            self.data.reserve(missing.min(step));
        }
    }

    fn cut(&mut self, length: usize) -> Bytes {
        if self.whole.is_empty() {
            self.data.advance(PREFIX);
            self.data.split_to(length).freeze()
        } else {
            self.whole.advance(PREFIX);
            self.whole.split_to(length)
        }
    }
}

/// A message as it was received.
pub struct Packed {
    /// Its bytes.
    pub data: Bytes,
    /// They are compressed.
    pub gzip: bool,
}

impl Packed {
    /// Decompress to at most `limit` bytes.
    pub fn inflate(&self, limit: usize) -> Result<Bytes, Status> {
        let mut plain = Vec::new();
        flate2::read::MultiGzDecoder::new(&self.data[..])
            .take(limit as u64 + 1)
            .read_to_end(&mut plain)
            .map_err(|error| {
                Status::new(
                    INTERNAL,
                    format!("cannot decompress a gzip message: {error}"),
                )
            })?;
        if plain.len() > limit {
            let text = format!("a message decompresses to more than {limit} bytes");
            return Err(Status::new(RESOURCE_EXHAUSTED, text));
        }
        Ok(Bytes::from(plain))
    }
}

/// Parse `grpc-encoding`.
pub fn encoding(name: Option<&[u8]>) -> Result<Encoding, Status> {
    match name {
        None | Some(b"" | b"identity") => Ok(Encoding::Identity),
        Some(b"gzip") => Ok(Encoding::Gzip),
        Some(other) => Err(Status::new(
            UNIMPLEMENTED,
            format!(
                "grpc-encoding {} is not supported; use identity or gzip",
                String::from_utf8_lossy(other)
            ),
        )),
    }
}

/// Parse `grpc-timeout` (at most eight digits and a unit) to nanoseconds.
pub fn timeout_ns(value: &[u8]) -> Option<u64> {
    let (unit, digits) = value.split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    let scale: u64 = match unit {
        b'n' => 1,
        b'u' => 1_000,
        b'm' => 1_000_000,
        b'S' => 1_000_000_000,
        b'M' => 60_000_000_000,
        b'H' => 3_600_000_000_000,
        _ => return None,
    };
    Some(number.saturating_mul(scale))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(message: &[u8]) -> Bytes {
        let mut buffer = BytesMut::new();
        put(&mut buffer, message);
        buffer.freeze()
    }

    #[test]
    fn a_message_in_one_piece_and_in_many() {
        let said = framed(b"hello");
        for step in 1..=said.len() {
            let mut deframer = Deframer::new(100, Encoding::Identity);
            let mut found = None;
            for part in said.chunks(step) {
                assert!(found.is_none());
                deframer.push(Bytes::copy_from_slice(part));
                found = deframer.next().unwrap();
            }
            assert_eq!(found.unwrap(), "hello");
            assert!(deframer.is_empty());
        }
    }

    #[test]
    fn several_messages_in_one_piece() {
        let mut said = BytesMut::new();
        for message in [&b"one"[..], b"", b"three"] {
            put(&mut said, message);
        }
        let mut deframer = Deframer::new(100, Encoding::Identity);
        deframer.push(said.freeze());
        for message in ["one", "", "three"] {
            assert_eq!(deframer.next().unwrap().unwrap(), message);
        }
        assert_eq!(deframer.next().unwrap(), None);
    }

    #[test]
    fn a_length_above_the_limit_is_refused_before_its_data() {
        let mut deframer = Deframer::new(4, Encoding::Identity);
        deframer.push(Bytes::from_static(b"\x00\xff\xff\xff\xf0"));
        assert_eq!(deframer.next().unwrap_err().code, RESOURCE_EXHAUSTED);
    }

    #[test]
    fn gzip_is_inflated_within_the_limit() {
        use std::io::Write;
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(&[7u8; 5_000]).unwrap();
        let packed = encoder.finish().unwrap();
        let mut said = BytesMut::new();
        said.put_u8(1);
        said.put_u32(packed.len() as u32);
        said.put_slice(&packed);
        let said = said.freeze();
        for (limit, fits) in [(5_000, true), (4_999, false)] {
            let mut deframer = Deframer::new(limit, Encoding::Gzip);
            deframer.push(said.clone());
            assert_eq!(deframer.next().is_ok(), fits);
        }
        let mut deframer = Deframer::new(10_000, Encoding::Identity);
        deframer.push(said);
        assert_eq!(deframer.next().unwrap_err().code, INTERNAL);
        let mut deframer = Deframer::new(10_000, Encoding::Gzip);
        deframer.push(Bytes::from_static(b"\x01\0\0\0\x07no gzip"));
        assert_eq!(deframer.next().unwrap_err().code, INTERNAL);
    }

    /// Read all messages of the pieces; the last element may be the code of an error.
    fn read(pieces: &[&[u8]], limit: usize) -> Vec<Result<Bytes, u16>> {
        let mut deframer = Deframer::new(limit, Encoding::Gzip);
        let mut found = Vec::new();
        for piece in pieces {
            deframer.push(Bytes::copy_from_slice(piece));
            loop {
                match deframer.next() {
                    Ok(None) => break,
                    Ok(Some(message)) => found.push(Ok(message)),
                    Err(status) => {
                        found.push(Err(status.code));
                        return found;
                    }
                }
            }
        }
        found
    }

    #[test]
    fn any_bytes_give_the_same_messages_in_any_pieces() {
        use crate::chance::{rounds, Chance};
        use std::io::Write;
        const LIMIT: usize = 3_000;
        for seed in rounds() {
            let mut chance = Chance::new(seed);
            let mut data = Vec::new();
            for _ in 0..chance.below(4) {
                let mut message = chance.bytes(200);
                if chance.below(2) == 0 {
                    let mut encoder =
                        flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
                    encoder.write_all(&message.repeat(20)).unwrap();
                    message = encoder.finish().unwrap();
                    data.push(1);
                } else {
                    data.push(0);
                }
                data.extend((message.len() as u32).to_be_bytes());
                data.extend(message);
            }
            chance.mutate(&mut data);
            let whole = read(&[&data], LIMIT);
            let step = 1 + chance.below(data.len() + 1);
            let pieces: Vec<&[u8]> = data.chunks(step).collect();
            assert_eq!(whole, read(&pieces, LIMIT), "seed {seed}");
            for message in whole.into_iter().flatten() {
                assert!(message.len() <= LIMIT, "seed {seed}");
            }
        }
    }

    #[test]
    fn any_bytes_are_a_timeout_or_not() {
        use crate::chance::{rounds, Chance};
        for seed in rounds() {
            let mut chance = Chance::new(seed);
            let mut text = b"99999999S".to_vec();
            chance.mutate(&mut text);
            if timeout_ns(&text).is_some() {
                let digits = &text[..text.len() - 1];
                assert!(digits.len() <= 8, "seed {seed}");
                assert!(digits.iter().all(u8::is_ascii_digit), "seed {seed}");
            }
        }
    }

    #[test]
    fn timeouts_are_read_and_nonsense_is_not() {
        assert_eq!(timeout_ns(b"1500m"), Some(1_500_000_000));
        assert_eq!(timeout_ns(b"2S"), Some(2_000_000_000));
        assert_eq!(timeout_ns(b"99999999H"), Some(u64::MAX));
        for nonsense in [&b""[..], b"S", b"123456789n", b"-1S", b"+1S", b"1x", b"1 S"] {
            assert_eq!(timeout_ns(nonsense), None);
        }
    }
}
