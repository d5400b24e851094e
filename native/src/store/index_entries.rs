//! Entries of the message index from the records of a segment.
//!
//! The rules are those of `store/format/index_keys.py`, which explains them: a record has one entry
//! for `UNIQ_KEY`, one for each token of `KEYS`, and one for `TAGS`. Records of the common form
//! (`log_reader`) are read here; the Python path reads all others.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::store::log_reader::{read_segment, Bytes, LogReader, LogRecord};
use crate::store::record_layout::{PAIR_END, TRANSACTION_MASK, TRANSACTION_ROLLBACK};

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
    let (found, end, records) = read_segment(py, data, base, limit, |reader| {
        read(reader, position, records_max, bytes_max)
    })?;
    let columns = [&found.hashes, &found.offsets, &found.times, &found.kinds].map(|column| {
        let bytes: Vec<u8> = column.iter().flat_map(|word| word.to_ne_bytes()).collect();
        PyBytes::new(py, &bytes)
    });
    Ok((columns, end, records))
}

/// Return the entries, the position behind the last record, and the number of records.
fn read<B: Bytes>(
    mut reader: LogReader<B>,
    position: usize,
    records_max: usize,
    bytes_max: usize,
) -> (Columns, usize, usize) {
    let mut found = Columns::default();
    let (mut at, mut records, mut bytes) = (position, 0, 0);
    while records < records_max {
        let Some(record) = reader.record_at(at) else {
            break;
        };
        bytes += record.properties.len();
        if bytes > bytes_max && records > 0 {
            break;
        }
        if record.sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK {
            found.add(&record);
        }
        at = record.end;
        records += 1;
    }
    (found, at, records)
}

impl Columns {
    fn add(&mut self, record: &LogRecord) {
        let (mut unique, mut keys, mut tags): (&[u8], &[u8], &[u8]) = (b"", b"", b"");
        for pair in record.properties.split(|&byte| byte == PAIR_END) {
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
        let prefix = hash(hash(0, record.topic), b"#");
        let mut add = |kind: i64, hash: i32| {
            self.hashes.push(unsigned(hash));
            self.offsets.push(record.offset);
            self.times.push(record.store_ms);
            self.kinds.push(kind);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chance::{rounds, Chance};
    use crate::store::log_reader::tests::{reader, record};

    fn read(data: &[u8], records_max: usize, bytes_max: usize) -> (Columns, usize, usize) {
        super::read(reader(data), 0, records_max, bytes_max)
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
