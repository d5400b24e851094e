//! Records of the common form in a segment of the commit log, one after the other.
//!
//! The common form: version 1, IPv4 hosts, the record's own offset, lengths that add up. The checks
//! are those of `inspect` in `store/scan/single.py` without a checksum; the Python path reads all
//! other records.

use pyo3::buffer::{PyBuffer, ReadOnlyCell};
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;

use crate::store::record_layout::{
    i32_in, i64_in, BODY_LENGTH, FIXED_BYTES, HOSTS_V6, MAGIC, MAGIC_V1, PHYSICAL_OFFSET, QUEUE_ID,
    QUEUE_OFFSET, RECORD_BYTES_MIN, SIZE, STORE_TIMESTAMP, SYS_FLAG,
};

/// Largest topic and properties with their lengths: more is not copied.
const TEXT_BYTES_MAX: usize = 1 + u8::MAX as usize + 2 + u16::MAX as usize;

/// Bytes of a segment, of which only parts are copied.
pub trait Bytes {
    /// Copy [`begin`, `end`), which must exist.
    fn copy(&self, begin: usize, end: usize, to: &mut Vec<u8>);
}

/// The bytes of a Python buffer, which the log's writer may change.
pub struct Cells<'a>(&'a [ReadOnlyCell<u8>]);

impl Bytes for Cells<'_> {
    fn copy(&self, begin: usize, end: usize, to: &mut Vec<u8>) {
        to.clear();
        to.extend(self.0[begin..end].iter().map(ReadOnlyCell::get));
    }
}

/// Read a segment that begins at log offset `base`, up to position `limit`.
pub fn read_segment<T>(
    py: Python<'_>,
    data: &Bound<'_, PyAny>,
    base: i64,
    limit: usize,
    read: impl FnOnce(LogReader<Cells<'_>>) -> T,
) -> PyResult<T> {
    let buffer = PyBuffer::<u8>::get(data)?;
    let bytes = buffer
        .as_slice(py)
        .ok_or_else(|| PyBufferError::new_err("the segment is not contiguous"))?;
    Ok(read(LogReader::new(
        Cells(bytes),
        base,
        limit.min(bytes.len()),
    )))
}

/// Reads one record after the other.
pub struct LogReader<B> {
    data: B,
    base: i64,
    limit: usize,
    /// The fixed bytes of the record.
    head: Vec<u8>,
    /// The rest behind the body: length of the topic, topic, length of the properties, properties.
    text: Vec<u8>,
}

/// The parts of a record other than its body.
pub struct LogRecord<'a> {
    /// Position behind the record.
    pub end: usize,
    pub size: i32,
    pub offset: i64,
    pub queue_id: i32,
    pub queue_offset: i64,
    pub sys_flag: i32,
    pub store_ms: i64,
    pub topic: &'a [u8],
    pub properties: &'a [u8],
}

impl<B: Bytes> LogReader<B> {
    /// See `read_segment`; `limit` is at most the length of `data`.
    pub fn new(data: B, base: i64, limit: usize) -> Self {
        Self {
            data,
            base,
            limit,
            head: Vec::new(),
            text: Vec::new(),
        }
    }

    /// Read the record at this position; None if it is not whole or not of the common form.
    pub fn record_at(&mut self, at: usize) -> Option<LogRecord<'_>> {
        if at.checked_add(RECORD_BYTES_MIN)? > self.limit {
            return None;
        }
        self.data.copy(at, at + FIXED_BYTES, &mut self.head);
        let head = &self.head;
        let size = i32_in(head, SIZE)?;
        let end = at.checked_add(usize::try_from(size).ok()?)?;
        if end - at < RECORD_BYTES_MIN || end > self.limit {
            return None;
        }
        let sys_flag = i32_in(head, SYS_FLAG)?;
        let offset = i64_in(head, PHYSICAL_OFFSET)?;
        let is_common = i32_in(head, MAGIC)? as u32 == MAGIC_V1
            && sys_flag & HOSTS_V6 == 0
            && self.base.checked_add(i64::try_from(at).ok()?) == Some(offset);
        let body_length = usize::try_from(i32_in(head, BODY_LENGTH)?).ok()?;
        let text_start = (at + FIXED_BYTES).checked_add(body_length)?;
        if !is_common || text_start + 3 > end || end - text_start > TEXT_BYTES_MAX {
            return None;
        }
        self.data.copy(text_start, end, &mut self.text);
        let (topic_length, rest) = self.text.split_first()?;
        let (topic, rest) = rest.split_at_checked(usize::from(*topic_length))?;
        let (length, properties) = rest.split_first_chunk()?;
        let head = &self.head;
        if usize::from(u16::from_be_bytes(*length)) != properties.len() {
            return None;
        }
        Some(LogRecord {
            end,
            size,
            offset,
            queue_id: i32_in(head, QUEUE_ID)?,
            queue_offset: i64_in(head, QUEUE_OFFSET)?,
            sys_flag,
            store_ms: i64_in(head, STORE_TIMESTAMP)?,
            topic,
            properties,
        })
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::chance::{rounds, Chance};

    impl Bytes for &[u8] {
        fn copy(&self, begin: usize, end: usize, to: &mut Vec<u8>) {
            to.clear();
            to.extend_from_slice(&self[begin..end]);
        }
    }

    /// Make a record of queue 3 with queue offset 77.
    pub fn record(offset: i64, sys_flag: i32, topic: &[u8], properties: &[u8]) -> Vec<u8> {
        let mut data = vec![0; FIXED_BYTES];
        data[MAGIC].copy_from_slice(&MAGIC_V1.to_be_bytes());
        data[QUEUE_ID].copy_from_slice(&3_i32.to_be_bytes());
        data[QUEUE_OFFSET].copy_from_slice(&77_i64.to_be_bytes());
        data[PHYSICAL_OFFSET].copy_from_slice(&offset.to_be_bytes());
        data[SYS_FLAG].copy_from_slice(&sys_flag.to_be_bytes());
        data[STORE_TIMESTAMP].copy_from_slice(&1_700_000_000_000_i64.to_be_bytes());
        data[BODY_LENGTH].copy_from_slice(&4_i32.to_be_bytes());
        data.extend(b"body");
        data.push(topic.len() as u8);
        data.extend(topic);
        data.extend((properties.len() as u16).to_be_bytes());
        data.extend(properties);
        let size = data.len() as i32;
        data[SIZE].copy_from_slice(&size.to_be_bytes());
        data
    }

    /// Return the reader of a segment that begins at log offset 1,000.
    pub fn reader(data: &[u8]) -> LogReader<&[u8]> {
        LogReader::new(data, 1_000, data.len())
    }

    #[test]
    fn the_parts_of_a_record_are_found() {
        let data = record(1_000, 0, b"T", b"KEYS\x01a\x02");
        let mut reader = reader(&data);
        let found = reader.record_at(0).expect("a record");
        assert_eq!((found.end, found.size as usize), (data.len(), data.len()));
        assert_eq!((found.queue_id, found.queue_offset), (3, 77));
        assert_eq!((found.offset, found.store_ms), (1_000, 1_700_000_000_000));
        assert_eq!(
            (found.topic, found.properties),
            (&b"T"[..], &b"KEYS\x01a\x02"[..])
        );
    }

    #[test]
    fn records_of_another_form_are_left() {
        let good = record(1_000, 0, b"T", b"KEYS\x01a\x02");
        assert!(reader(&good).record_at(0).is_some());
        for (at, byte) in [
            (SIZE.end - 1, 200),
            (MAGIC.start, 0),
            (PHYSICAL_OFFSET.start + 2, 1),
            (SYS_FLAG.end - 1, 0x10),
            (SYS_FLAG.end - 1, 0x20),
            (BODY_LENGTH.start, 0x80),
            (FIXED_BYTES + 4, 200),
            (FIXED_BYTES + 7, 9),
        ] {
            let mut data = good.clone();
            data[at] = byte;
            assert!(reader(&data).record_at(0).is_none(), "{at}");
        }
        for end in 0..good.len() {
            assert!(reader(&good[..end]).record_at(0).is_none(), "{end}");
        }
    }

    #[test]
    fn changed_records_have_parts_that_fit_or_are_left() {
        for seed in rounds() {
            let mut chance = Chance::new(seed);
            let topic = chance.bytes(9);
            let mut data = record(1_000, chance.below(64) as i32, &topic, &chance.bytes(40));
            chance.mutate(&mut data);
            let at = chance.below(3);
            if let Some(found) = reader(&data).record_at(at) {
                assert!(found.end <= data.len(), "seed {seed}");
                let parts = found.topic.len() + found.properties.len();
                assert!(parts + RECORD_BYTES_MIN <= data.len(), "seed {seed}");
            }
        }
    }
}
