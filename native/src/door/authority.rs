//! Accepts clients whose `:authority` is invalid.
//!
//! A gRPC client with several addresses for one target (`ipv4:10.0.0.1:8081,10.0.0.2:8081`) puts
//! all of them into `:authority`. The HTTP/2 library refuses such a request as malformed, and this
//! door does not use the field. `Tolerant` sits between the socket and the library, parses the
//! frames (RFC 9113, section 4) and rewrites the literal value of `:authority` in a header block
//! (RFC 7541, section 6) in place: characters that are invalid in a host name are replaced by
//! others of the same length, plain or Huffman coded, so that the compression tables of both sides
//! stay equal. A client sends the literal once on each connection; indexed values are not changed.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::Arc;
use std::task::{ready, Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

const PREFACE_BYTES: usize = 24;
const FRAME_HEAD: usize = 9;
const HEADERS: u8 = 1;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// Longest frame; the library refuses a longer one.
const FRAME_MAX: usize = 64 << 10;
const READ_BYTES: usize = 16 << 10;
/// Bytes that are read in one turn of the thread: those of large messages cost little.
const TURN_BYTES: usize = 64 << 10;
/// New calls that are read in one turn: a millisecond or two.
pub const TURN_CALLS: usize = 128;
/// Index of `:authority` in HPACK's static table.
const AUTHORITY_INDEX: usize = 1;

/// The bytes and new calls that a connection may still read in its turn of the thread. The task that
/// polls the connection refills it once a turn; the library polls the socket more often, once for
/// each new call.
pub struct Room {
    bytes: AtomicUsize,
    calls: AtomicUsize,
}

impl Room {
    /// The room of a first turn.
    pub fn new() -> Self {
        Self {
            bytes: AtomicUsize::new(TURN_BYTES),
            calls: AtomicUsize::new(TURN_CALLS),
        }
    }

    /// Begin a turn with this many new calls.
    pub fn refill(&self, calls: usize) {
        self.bytes.store(TURN_BYTES, Ordering::Relaxed);
        self.calls.store(calls, Ordering::Relaxed);
    }

    fn take_bytes(&self, count: usize) {
        let left = self.bytes.load(Ordering::Relaxed);
        self.bytes
            .store(left.saturating_sub(count), Ordering::Relaxed);
    }

    /// Take one call; false if no more may be read in this turn.
    pub fn take_call(&self) -> bool {
        let left = self.calls.load(Ordering::Relaxed);
        self.calls.store(left.saturating_sub(1), Ordering::Relaxed);
        left > 0
    }

    fn is_used_up(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) == 0 || self.calls.load(Ordering::Relaxed) == 0
    }
}

/// A connection whose incoming header blocks get a valid `:authority`.
pub struct Tolerant<S> {
    inner: S,
    /// Bytes that were read and not passed on are `buffer[begin..end]`. The buffer is zeroed once,
    /// not for each read.
    buffer: Vec<u8>,
    begin: usize,
    end: usize,
    /// Number of bytes from `begin` on that may be passed on.
    released: usize,
    skip: usize,
    ended: bool,
    room: Arc<Room>,
    greeted: Arc<AtomicBool>,
    written: Arc<AtomicU64>,
}

impl<S> Tolerant<S> {
    /// Wrap a connection from which nothing was read yet.
    pub fn new(inner: S) -> Self {
        Self {
            inner,
            buffer: Vec::new(),
            begin: 0,
            end: 0,
            released: 0,
            skip: PREFACE_BYTES,
            ended: false,
            room: Arc::new(Room::new()),
            greeted: Arc::default(),
            written: Arc::default(),
        }
    }

    /// The number of bytes that the socket has accepted.
    pub fn written(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.written)
    }

    fn count(&self, write: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(size)) = &write {
            self.written.fetch_add(*size as u64, Ordering::AcqRel);
        }
        write
    }

    /// The room of this connection.
    pub fn room(&self) -> Arc<Room> {
        Arc::clone(&self.room)
    }

    /// Set when the client has sent its preface and started a frame.
    pub fn greeted(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.greeted)
    }

    /// Read from the socket while this turn has room; without room, let other connections go first.
    fn fill(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>>
    where
        S: AsyncRead + Unpin,
    {
        if self.room.is_used_up() {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.scan(); // bytes that the turn before has read and not passed on
        if self.released > 0 {
            return Poll::Ready(Ok(()));
        }
        self.make_room();
        let mut space = ReadBuf::new(&mut self.buffer[self.end..]);
        let read = Pin::new(&mut self.inner).poll_read(context, &mut space);
        let count = space.filled().len();
        ready!(read)?;
        self.room.take_bytes(count);
        self.end += count;
        self.ended = count == 0;
        self.scan();
        Poll::Ready(Ok(()))
    }

    /// Make room for `READ_BYTES` behind the bytes that are held: at most a frame.
    fn make_room(&mut self) {
        if self.begin > 0 {
            self.buffer.copy_within(self.begin..self.end, 0);
            self.end -= self.begin;
            self.begin = 0;
        }
        if self.buffer.len() < self.end + READ_BYTES {
            self.buffer.resize(self.end + READ_BYTES, 0);
        }
    }

    /// Find the bytes that may be passed on: all but an incomplete header block, and calls for which
    /// this turn has no room.
    fn scan(&mut self) {
        loop {
            let step = self.skip.min(self.end - self.begin - self.released);
            self.released += step;
            self.skip -= step;
            let rest = &mut self.buffer[self.begin + self.released..self.end];
            if self.skip > 0 || rest.len() < FRAME_HEAD {
                return;
            }
            self.greeted.store(true, Ordering::Release);
            let size =
                usize::from(rest[0]) << 16 | usize::from(rest[1]) << 8 | usize::from(rest[2]);
            let (kind, flags) = (rest[3], rest[4]);
            if kind == HEADERS && size <= FRAME_MAX {
                if rest.len() < FRAME_HEAD + size || !self.room.take_call() {
                    return;
                }
                soften(&mut rest[FRAME_HEAD..FRAME_HEAD + size], flags);
            }
            self.skip = FRAME_HEAD + size;
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Tolerant<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while this.released == 0 && !this.ended {
            ready!(this.fill(context))?;
        }
        if this.ended {
            this.released = this.end - this.begin;
        }
        let count = this.released.min(out.remaining());
        out.put_slice(&this.buffer[this.begin..this.begin + count]);
        this.begin += count;
        this.released -= count;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Tolerant<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let write = Pin::new(&mut self.inner).poll_write(context, data);
        self.count(write)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let write = Pin::new(&mut self.inner).poll_write_vectored(context, data);
        self.count(write)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

/// Rewrite a literal `:authority` in the payload of a HEADERS frame; unparsable payloads are kept.
fn soften(payload: &mut [u8], flags: u8) {
    let padded = usize::from(flags & PADDED != 0);
    let begin = padded + if flags & PRIORITY != 0 { 5 } else { 0 };
    let padding = if padded == 1 {
        payload.first().copied().unwrap_or(0)
    } else {
        0
    };
    let Some(end) = payload.len().checked_sub(usize::from(padding)) else {
        return;
    };
    if begin < end {
        let _ = follow(&mut payload[begin..end]);
    }
}

/// Find the literal in the instructions of a header block; `None` if there is none.
fn follow(block: &mut [u8]) -> Option<()> {
    let mut at = 0;
    loop {
        let first = *block.get(at)?;
        if first & 0x80 != 0 {
            integer(block, &mut at, 7)?; // indexed field
            continue;
        }
        if first & 0xe0 == 0x20 {
            integer(block, &mut at, 5)?; // the table's size
            continue;
        }
        let bits = if first & 0x40 != 0 { 6 } else { 4 };
        let index = integer(block, &mut at, bits)?;
        let mut named = index == AUTHORITY_INDEX;
        if index == 0 {
            let (huffman, begin, end) = string(block, &mut at)?;
            named = !huffman && block[begin..end] == *b":authority";
        }
        let (huffman, begin, end) = string(block, &mut at)?;
        if named {
            let value = &mut block[begin..end];
            if huffman {
                soften_huffman(value);
            } else {
                value.iter_mut().for_each(|byte| *byte = harmless(*byte));
            }
            return Some(());
        }
    }
}

/// Return the range of a string and its Huffman flag; advances past it.
fn string(block: &[u8], at: &mut usize) -> Option<(bool, usize, usize)> {
    let huffman = block.get(*at)? & 0x80 != 0;
    let size = integer(block, at, 7)?;
    let begin = *at;
    let end = begin.checked_add(size).filter(|end| *end <= block.len())?;
    *at = end;
    Some((huffman, begin, end))
}

/// Parse an integer (RFC 7541, section 5.1) of at most three more bytes, enough for every frame.
fn integer(block: &[u8], at: &mut usize, bits: u32) -> Option<usize> {
    let mask = (1usize << bits) - 1;
    let mut value = usize::from(*block.get(*at)?) & mask;
    *at += 1;
    if value < mask {
        return Some(value);
    }
    for shift in [0, 7, 14] {
        let byte = usize::from(*block.get(*at)?);
        *at += 1;
        value += (byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn harmless(byte: u8) -> u8 {
    if byte.is_ascii_alphanumeric() || byte == b'.' || byte == b'-' {
        byte
    } else {
        b'-'
    }
}

/// Symbols by the length of their Huffman code, in the order of their codes, which are consecutive
/// (RFC 7541, appendix B): length, first code, symbols.
const CODES: [(u32, u32, &[u8]); 8] = [
    (5, 0x0, b"012aceiost"),
    (6, 0x14, b" %-./3456789=A_bdfghlmnpru"),
    (7, 0x5c, b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz"),
    (8, 0xf8, b"&*,;XZ"),
    (10, 0x3f8, b"!\"()?"),
    (11, 0x7fa, b"'+|"),
    (12, 0xffa, b"#>"),
    (13, 0x1ff8, b"\0$@[]~"),
];

/// Return the replacement of a symbol: same code length, valid in a host name.
fn stand_in(symbol: u8) -> u8 {
    match symbol {
        b':' => b'B',
        b'%' | b'/' | b' ' | b'=' => b'-',
        b',' | b';' | b'&' | b'*' => b'X',
        b'[' | b']' | b'@' | b'$' => b'~',
        other => other,
    }
}

/// Return the symbol whose code starts at this bit, and its index in `CODES`.
fn symbol(value: &[u8], bit: usize) -> Option<(u32, u32, u8)> {
    for (length, first, symbols) in CODES {
        if bit + length as usize > value.len() * 8 {
            return None;
        }
        let code = (0..length as usize).fold(0, |code, offset| {
            let place = bit + offset;
            code << 1 | u32::from(value[place / 8] >> (7 - place % 8) & 1)
        });
        let number = code.wrapping_sub(first) as usize;
        if let Some(symbol) = symbols.get(number) {
            return Some((length, first, *symbol));
        }
    }
    None
}

fn soften_huffman(value: &mut [u8]) {
    let mut bit = 0;
    while let Some((length, first, found)) = symbol(value, bit) {
        let wanted = stand_in(found);
        if wanted != found {
            let symbols = CODES
                .iter()
                .find(|row| row.0 == length)
                .map_or(&b""[..], |row| row.2);
            let number = symbols.iter().position(|each| *each == wanted).unwrap_or(0);
            put_bits(value, bit, length, first + number as u32);
        }
        bit += length as usize;
    }
}

fn put_bits(value: &mut [u8], bit: usize, length: u32, code: u32) {
    for offset in 0..length as usize {
        let place = bit + offset;
        let mask = 0x80u8 >> (place % 8);
        if code >> (length as usize - 1 - offset) & 1 == 1 {
            value[place / 8] |= mask;
        } else {
            value[place / 8] &= !mask;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chance::{rounds, Chance};
    use tokio::io::AsyncReadExt;

    fn encode(text: &[u8]) -> Vec<u8> {
        let mut bits = Vec::new();
        for byte in text {
            let (length, first, symbols) = CODES
                .into_iter()
                .find(|(_, _, symbols)| symbols.contains(byte))
                .unwrap();
            let number = symbols.iter().position(|each| each == byte).unwrap();
            let code = first + number as u32;
            bits.extend((0..length).rev().map(|shift| code >> shift & 1 == 1));
        }
        while bits.len() % 8 != 0 {
            bits.push(true);
        }
        bits.chunks(8)
            .map(|byte| {
                byte.iter()
                    .fold(0, |value, bit| value << 1 | u8::from(*bit))
            })
            .collect()
    }

    fn literal(name_index: u8, huffman: bool, value: &[u8]) -> Vec<u8> {
        let mut block = vec![
            0x82,
            0x40 | name_index,
            value.len() as u8 | u8::from(huffman) << 7,
        ];
        block.extend_from_slice(value);
        block.push(0x86);
        block
    }

    fn framed(block: &[u8], flags: u8) -> Vec<u8> {
        let mut frame = vec![0, 0, block.len() as u8, HEADERS, flags, 0, 0, 0, 1];
        frame.extend_from_slice(block);
        frame
    }

    #[test]
    fn the_codes_are_those_of_the_rfc() {
        let example = [
            0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff,
        ];
        assert_eq!(encode(b"www.example.com"), example);
        assert_eq!(encode(b"302"), [0x64, 0x02]);
        assert_eq!(
            encode(b"https://www.example.com")[..4],
            [0x9d, 0x29, 0xad, 0x17]
        );
    }

    #[test]
    fn several_addresses_become_one_name_of_the_same_length() {
        let said = b"127.0.0.1:8081,[::1]:8083";
        let mut block = literal(1, false, said);
        soften(&mut block, 0);
        assert_eq!(
            block,
            literal(1, false, b"127.0.0.1-8081----1--8083".as_slice()).as_slice()
        );
        let mut block = literal(1, true, &encode(said));
        soften(&mut block, 0);
        let wanted = encode(b"127.0.0.1B8081X~BB1~B8083");
        assert_eq!(block, literal(1, true, &wanted));
    }

    #[test]
    fn other_fields_and_broken_blocks_stay_as_they_are() {
        let path = literal(4, false, b"/a:b,c");
        let mut block = path.clone();
        soften(&mut block, 0);
        assert_eq!(block, path);
        for size in 0..path.len() {
            let mut cut = literal(1, false, b"a:b,c")[..size.min(8)].to_vec();
            for flags in [0, PADDED, PRIORITY, PADDED | PRIORITY] {
                soften(&mut cut, flags);
            }
        }
        soften(&mut [0xff; 40], 0);
        soften(&mut [0x7f; 40], PADDED);
    }

    #[test]
    fn a_stream_is_passed_on_whole_however_it_is_cut() {
        let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        sent.extend([0, 0, 3, 0, 0, 0, 0, 0, 1, b':', b',', b':']); // data, not to be touched
        let mut wanted = sent.clone();
        sent.extend(framed(&literal(1, false, b"a:1,b:2"), 0x4));
        wanted.extend(framed(&literal(1, false, b"a-1-b-2"), 0x4));
        sent.extend([0, 0, 9, 1]); // the connection ends within a frame's head
        wanted.extend([0, 0, 9, 1]);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        for step in 1..sent.len() {
            let mut source = tokio_test_reader(&sent, step);
            let mut got = Vec::new();
            runtime.block_on(source.read_to_end(&mut got)).unwrap();
            assert_eq!(got, wanted);
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_turn_reads_what_it_has_room_for_however_often_it_is_polled() {
        let call = framed(&literal(1, false, b"host"), 4);
        let data = [&[0, 200, 0, 0, 0, 0, 0, 0, 1][..], &[0; 200 << 8]].concat();
        let mut sent = vec![b'P'; PREFACE_BYTES];
        for _ in 0..3 {
            sent.extend(call.repeat(10).into_iter().chain(data.clone()));
        }
        let mut source = tokio_test_reader(&sent, 1_000);
        let (room, mut got, mut turns) = (source.room(), Vec::new(), Vec::new());
        while got.len() < sent.len() {
            room.refill(7);
            let before = got.len();
            for _ in 0..100 {
                let read = source.read_buf(&mut got);
                tokio::select! { biased; _ = read => {}, () = std::future::ready(()) => {} }
            }
            let read = &got[before..];
            let calls = read.windows(call.len()).filter(|each| *each == call);
            turns.push((calls.count(), read.len()));
        }
        assert_eq!(got, sent);
        assert!(turns.iter().all(|(calls, _)| *calls <= 7), "{turns:?}");
        assert!(turns
            .iter()
            .all(|(_, bytes)| *bytes < TURN_BYTES + READ_BYTES));
        assert!(turns.len() < 10, "{turns:?}");
    }

    #[test]
    fn damaged_frames_keep_their_length_and_the_bytes_outside_of_header_blocks() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        for seed in rounds() {
            let mut chance = Chance::new(seed);
            let mut sent = vec![b'P'; PREFACE_BYTES];
            for _ in 0..chance.below(6) {
                let mut block = literal(1, chance.below(2) == 0, &chance.bytes(40));
                chance.mutate(&mut block);
                let kind = if chance.below(4) == 0 { 0 } else { HEADERS };
                let flags = [0, 0x4, PADDED, PRIORITY, PADDED | PRIORITY][chance.below(5)];
                let mut frame = framed(&block[..block.len().min(255)], flags);
                frame[3] = kind;
                chance.mutate(&mut frame);
                sent.extend(frame);
            }
            let mut got = Vec::new();
            for step in [1 + chance.below(30), sent.len()] {
                let before = std::mem::take(&mut got);
                let mut source = tokio_test_reader(&sent, step);
                runtime.block_on(source.read_to_end(&mut got)).unwrap();
                assert!(before.is_empty() || before == got, "seed {seed}");
            }
            assert_eq!(got.len(), sent.len(), "seed {seed}");
            let blocks = header_blocks(&sent);
            for at in 0..sent.len() {
                let inside = blocks.iter().any(|block| block.contains(&at));
                assert!(inside || got[at] == sent[at], "seed {seed}, byte {at}");
            }
        }
    }

    /// Return the ranges of the payloads of whole HEADERS frames.
    fn header_blocks(sent: &[u8]) -> Vec<std::ops::Range<usize>> {
        let mut found = Vec::new();
        let mut at = PREFACE_BYTES;
        while let Some(head) = sent.get(at..at + FRAME_HEAD) {
            let size = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let payload = at + FRAME_HEAD..at + FRAME_HEAD + size;
            at = payload.end;
            if head[3] == HEADERS && payload.end <= sent.len() {
                found.push(payload);
            }
        }
        found
    }

    struct Steps<'a>(&'a [u8], usize);

    impl AsyncRead for Steps<'_> {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _context: &mut Context<'_>,
            out: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            let count = self.1.min(self.0.len()).min(out.remaining());
            out.put_slice(&self.0[..count]);
            self.0 = &self.0[count..];
            Poll::Ready(Ok(()))
        }
    }

    fn tokio_test_reader(sent: &[u8], step: usize) -> Tolerant<Steps<'_>> {
        Tolerant::new(Steps(sent, step))
    }
}
