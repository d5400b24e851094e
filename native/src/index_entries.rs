//! Entries of the message index from the records of a segment.
//!
//! The rules are those of `store/format/index_keys.py`, which explains them: a record has one entry
//! for `UNIQ_KEY`, one for each token of `KEYS`, and one for `TAGS`. Records of the common form
//! (version 1, IPv4 hosts, lengths that add up) are read here; the Python path reads all others.

use pyo3::buffer::{PyBuffer, ReadOnlyCell};
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::record_layout::{
    FIXED_BYTES, HOSTS_V6, MAGIC_V1, PAIR_END, RECORD_BYTES_MIN, TRANSACTION_MASK,
    TRANSACTION_ROLLBACK,
};

const UNIQUE: i64 = 0;
const KEY: i64 = 1;
const TAG: i64 = 2;

/// Columns of `Entries` in Python, in native byte order.
#[derive(Debug, Default, PartialEq)]
struct Columns {
    hashes: Vec<i64>,
    offsets: Vec<i64>,
    times: Vec<i64>,
    kinds: Vec<i64>,
}

/// Hashes, offsets, times, kinds; the position behind the last record; the number of records.
type PyColumns<'py> = ([Bound<'py, PyBytes>; 4], usize, usize);

/// Return the entries of the records in `range` of `data`, a segment that begins at log offset
/// `base`: at most `records_max` records, whose properties have at most `bytes_max` bytes together.
/// One record is read whatever its size. Ends in front of a record of another form.
#[pyfunction]
pub fn index_entries<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    base: i64,
    range: (usize, usize),
    records_max: usize,
    bytes_max: usize,
) -> PyResult<PyColumns<'py>> {
    let (position, limit) = range;
    let buffer = PyBuffer::<u8>::get(data)?;
    let bytes = buffer
        .as_slice(py)
        .ok_or_else(|| PyBufferError::new_err("the segment is not contiguous"))?;
    let mut reader = Reader::new(Cells(bytes), base, limit.min(bytes.len()));
    let (end, records) = reader.read(position, records_max, bytes_max);
    let found = reader.found;
    let columns = [&found.hashes, &found.offsets, &found.times, &found.kinds].map(|column| {
        let bytes: Vec<u8> = column.iter().flat_map(|word| word.to_ne_bytes()).collect();
        PyBytes::new(py, &bytes)
    });
    Ok((columns, end, records))
}

/// Bytes of a segment, of which only parts are copied.
trait Bytes {
    /// Copy [`begin`, `end`), which must exist.
    fn copy(&self, begin: usize, end: usize, to: &mut Vec<u8>);
}

struct Cells<'a>(&'a [ReadOnlyCell<u8>]);

impl Bytes for Cells<'_> {
    fn copy(&self, begin: usize, end: usize, to: &mut Vec<u8>) {
        to.clear();
        to.extend(self.0[begin..end].iter().map(ReadOnlyCell::get));
    }
}

struct Reader<B> {
    data: B,
    base: i64,
    limit: usize,
    /// The fixed bytes of the record.
    head: Vec<u8>,
    /// The rest behind the body: length of the topic, topic, length of the properties, properties.
    text: Vec<u8>,
    found: Columns,
}

/// The parts of a record that have an influence on its entries.
struct Place {
    end: usize,
    /// Position of the properties in `text`.
    properties: usize,
    is_rolled_back: bool,
    offset: i64,
    store_ms: i64,
}

impl<B: Bytes> Reader<B> {
    fn new(data: B, base: i64, limit: usize) -> Self {
        Self {
            data,
            base,
            limit,
            head: Vec::new(),
            text: Vec::new(),
            found: Columns::default(),
        }
    }

    /// Return the position behind the last record, and the number of records.
    fn read(&mut self, position: usize, records_max: usize, bytes_max: usize) -> (usize, usize) {
        let (mut at, mut records, mut bytes) = (position, 0, 0);
        while records < records_max {
            let Some(place) = self.place(at) else {
                break;
            };
            bytes += self.text.len() - place.properties;
            if bytes > bytes_max && records > 0 {
                break;
            }
            if !place.is_rolled_back {
                self.add_entries(&place);
            }
            at = place.end;
            records += 1;
        }
        (at, records)
    }

    /// Read the record at this position; None if it is not whole or not of the common form.
    fn place(&mut self, at: usize) -> Option<Place> {
        if at.checked_add(RECORD_BYTES_MIN)? > self.limit {
            return None;
        }
        self.data.copy(at, at + FIXED_BYTES, &mut self.head);
        let head = &self.head;
        let size = usize::try_from(i32_at(head, 0)).ok()?;
        let end = at.checked_add(size)?;
        if size < RECORD_BYTES_MIN || end > self.limit {
            return None;
        }
        let sys_flag = i32_at(head, 36);
        let offset = i64_at(head, 28);
        let is_common = i32_at(head, 4) as u32 == MAGIC_V1
            && sys_flag & HOSTS_V6 == 0
            && self.base.checked_add(i64::try_from(at).ok()?) == Some(offset);
        let body_length = usize::try_from(i32_at(head, 84)).ok()?;
        let text_start = (at + FIXED_BYTES).checked_add(body_length)?;
        if !is_common || text_start + 3 > end {
            return None;
        }
        let store_ms = i64_at(head, 56);
        self.data.copy(text_start, end, &mut self.text);
        let properties = 1 + usize::from(self.text[0]) + 2;
        let properties_length = self.text.len().checked_sub(properties)?;
        let length = [self.text[properties - 2], self.text[properties - 1]];
        if usize::from(u16::from_be_bytes(length)) != properties_length {
            return None;
        }
        Some(Place {
            end,
            properties,
            is_rolled_back: sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK,
            offset,
            store_ms,
        })
    }

    fn add_entries(&mut self, place: &Place) {
        let topic = &self.text[1..place.properties - 2];
        let (mut unique, mut keys, mut tags): (&[u8], &[u8], &[u8]) = (b"", b"", b"");
        for pair in self.text[place.properties..].split(|&byte| byte == PAIR_END) {
            // Of a repeated name the last value that is not empty counts.
            for (name, value) in [
                (b"UNIQ_KEY\x01".as_slice(), &mut unique),
                (b"KEYS\x01", &mut keys),
                (b"TAGS\x01", &mut tags),
            ] {
                match pair.strip_prefix(name) {
                    Some(text) if !text.is_empty() => *value = text,
                    _ => {}
                }
            }
        }
        let prefix = hash(hash(0, topic), b"#");
        let found = &mut self.found;
        let mut add = |kind: i64, hash: i32| {
            found.hashes.push(unsigned(hash));
            found.offsets.push(place.offset);
            found.times.push(place.store_ms);
            found.kinds.push(kind);
        };
        if !unique.is_empty() {
            add(UNIQUE, hash(prefix, unique));
        }
        for token in keys.split(|&byte| byte == b' ') {
            if !token.is_empty() {
                add(KEY, hash(prefix, token));
            }
        }
        if !tags.is_empty() {
            add(TAG, hash(hash(prefix, b"T#"), tags));
        }
    }
}

/// Continue Java's hash of a string with the UTF-16 units of these bytes.
fn hash(begin: i32, text: &[u8]) -> i32 {
    let add = |hash: i32, unit: u16| hash.wrapping_mul(31).wrapping_add(i32::from(unit));
    if text.is_ascii() {
        return text
            .iter()
            .fold(begin, |hash, &byte| add(hash, byte.into()));
    }
    String::from_utf8_lossy(text)
        .encode_utf16()
        .fold(begin, add)
}

/// Java's absolute value, but 0 for the minimum.
fn unsigned(hash: i32) -> i64 {
    hash.checked_abs().unwrap_or(0).into()
}

fn i32_at(data: &[u8], at: usize) -> i32 {
    i32::from_be_bytes(data[at..at + 4].try_into().expect("four bytes"))
}

fn i64_at(data: &[u8], at: usize) -> i64 {
    i64::from_be_bytes(data[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chance::{rounds, Chance};

    impl Bytes for &[u8] {
        fn copy(&self, begin: usize, end: usize, to: &mut Vec<u8>) {
            to.clear();
            to.extend_from_slice(&self[begin..end]);
        }
    }

    fn record(offset: i64, sys_flag: i32, topic: &[u8], properties: &[u8]) -> Vec<u8> {
        let mut data = vec![0; FIXED_BYTES];
        data[4..8].copy_from_slice(&MAGIC_V1.to_be_bytes());
        data[28..36].copy_from_slice(&offset.to_be_bytes());
        data[36..40].copy_from_slice(&sys_flag.to_be_bytes());
        data[56..64].copy_from_slice(&1_700_000_000_000_i64.to_be_bytes());
        data[84..88].copy_from_slice(&4_i32.to_be_bytes());
        data.extend(b"body");
        data.push(topic.len() as u8);
        data.extend(topic);
        data.extend((properties.len() as u16).to_be_bytes());
        data.extend(properties);
        let size = data.len() as i32;
        data[..4].copy_from_slice(&size.to_be_bytes());
        data
    }

    fn read(data: &[u8], records_max: usize, bytes_max: usize) -> (Columns, usize, usize) {
        let mut reader = Reader::new(data, 1_000, data.len());
        let (end, records) = reader.read(0, records_max, bytes_max);
        (reader.found, end, records)
    }

    #[test]
    fn hashes_are_those_of_java() {
        assert_eq!(hash(0, b"T#u"), (84 * 31 + 35) * 31 + 117);
        assert_eq!(hash(0, "主题".as_bytes()), 20_027 * 31 + 39_064);
        assert_eq!(unsigned(hash(0, b"polygenelubricants")), 0);
        assert_eq!(unsigned(-5), 5);
    }

    #[test]
    fn entries_come_by_record_and_kind() {
        let properties = b"TAGS\x01t\x02KEYS\x01 b  a \x02UNIQ_KEY\x01u\x02KEY\x01x\x02";
        let mut data = record(1_000, 0, b"T", properties);
        let first = data.len();
        data.extend(record(
            1_000 + first as i64,
            0,
            b"T",
            b"KEYS\x01a\x02KEYS\x01c\x02KEYS\x01",
        ));
        let (found, end, records) = read(&data, 9, 999);
        let texts: [&[u8]; 5] = [b"T#u", b"T#b", b"T#a", b"T#T#t", b"T#c"];
        assert_eq!(found.hashes, texts.map(|text| unsigned(hash(0, text))));
        assert_eq!(found.kinds, [UNIQUE, KEY, KEY, TAG, KEY]);
        assert_eq!(found.offsets[3..], [1_000, 1_000 + first as i64]);
        assert_eq!(found.times, [1_700_000_000_000; 5]);
        assert_eq!((end, records), (data.len(), 2));
    }

    #[test]
    fn a_rolled_back_record_has_no_entry() {
        let data = record(1_000, 0xC, b"T", b"KEYS\x01a\x02");
        assert_eq!(read(&data, 9, 999), (Columns::default(), data.len(), 1));
    }

    #[test]
    fn the_properties_of_a_batch_are_bounded() {
        let mut data = record(1_000, 0, b"T", b"KEYS\x01a\x02");
        let first = data.len();
        data.extend(record(1_000 + first as i64, 0, b"T", b"KEYS\x01b\x02"));
        assert_eq!(read(&data, 9, 14).2, 2);
        assert_eq!(read(&data, 9, 13).1, first);
        assert_eq!(read(&data, 9, 0).2, 1);
        assert_eq!(read(&data, 1, 999).2, 1);
    }

    #[test]
    fn records_of_another_form_are_left() {
        let good = record(1_000, 0, b"T", b"KEYS\x01a\x02");
        for (at, byte) in [
            (3, 200),
            (4, 0),
            (30, 1),
            (39, 0x10),
            (39, 0x20),
            (84, 0x80),
            (95, 9),
        ] {
            let mut data = good.clone();
            data[at] = byte;
            assert_eq!(read(&data, 9, 999), (Columns::default(), 0, 0), "{at}");
        }
        assert_eq!(read(&good[..good.len() - 1], 9, 999).2, 0);
    }

    #[test]
    fn changed_records_never_panic() {
        for seed in rounds() {
            let mut chance = Chance::new(seed);
            let mut data = Vec::new();
            for _ in 0..chance.below(4) {
                let topic = chance.bytes(9);
                let properties = match chance.below(3) {
                    0 => chance.bytes(40),
                    1 => b"UNIQ_KEY\x01u\x02TAGS\x01t".to_vec(),
                    _ => "KEYS\u{1}a \u{e9} b\u{2}".into(),
                };
                let offset = 1_000 + data.len() as i64;
                data.extend(record(offset, chance.below(16) as i32, &topic, &properties));
            }
            chance.mutate(&mut data);
            let (found, end, records) = read(&data, 3, 60);
            assert!(end <= data.len() && records <= 3, "seed {seed}");
            assert!(found.hashes.iter().all(|&hash| hash >= 0), "seed {seed}");
            assert_eq!(found.hashes.len(), found.kinds.len(), "seed {seed}");
        }
    }
}
