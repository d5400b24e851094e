//! Units of a consume queue to their records: the common case of a queue read.
//!
//! The checks are those of `store/reading.py` and `store/record_check.py`, which explain them. A
//! unit that needs more than a comparison with its record (another segment, a light queue, hosts of
//! IPv6, a checksum of its own, damage) is left to Python.

use flate2::Crc;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyFrozenSet, PyList, PySlice};

use crate::store::record_layout::{
    i32_in, i64_in, BODY_CRC, BODY_LENGTH, FIXED_BYTES, HOSTS_V6, MAGIC, MAGIC_V1, MAGIC_V2,
    PAIR_END, PHYSICAL_OFFSET, QUEUE_ID, QUEUE_OFFSET, RECORD_BYTES_MIN, SIZE, SYS_FLAG,
    TOPIC_BYTES_V1_MAX, UNIT_BYTES, UNIT_CODE, UNIT_OFFSET, UNIT_SIZE,
};

const FILLER_SIZE: i32 = i32::MAX;
const CRC_NAME: &[u8] = b"__CRC32#\x01";
/// The checksum at the end of the properties: name, ten digits, end of the pair.
const CRC_TAIL_BYTES: usize = CRC_NAME.len() + 11;
const TAGS_NAME: &[u8] = b"TAGS\x01";

/// The unit of a queue, and its number.
struct Unit {
    number: i64,
    offset: i64,
    size: i32,
    code: i64,
}

/// Reads records of one store.
#[pyclass(frozen, module = "cometmq_native")]
pub struct QueueRecords {
    record_class: Py<PyAny>,
}

/// Examined units; records; whether the batch is full; log offset of the last unit, -1 if none.
type Found<'py> = (usize, Bound<'py, PyList>, bool, i64);

#[pymethods]
impl QueueRecords {
    /// `record_class(queue_offset, physical_offset, data, tags_code)` makes a record.
    #[new]
    fn new(record_class: Py<PyAny>) -> Self {
        Self { record_class }
    }

    /// Examine `units` from byte `at` on, where the unit with this `number` is. `segment`: a map and the log offsets of its
    /// begin and end. `queue`: the queue id and the topic as in records. `tags`: codes of the
    /// wanted tags. `room`: the records found before, the maximum of records, the bytes left.
    ///
    /// Ends in front of a unit that does not fit the room (the batch is full), and in front of one
    /// that is left to Python.
    #[allow(clippy::too_many_arguments)]
    fn read<'py>(
        &self,
        py: Python<'py>,
        units: &[u8],
        at: usize,
        number: i64,
        segment: (Bound<'py, PyAny>, i64, i64),
        queue: (i32, Bound<'py, PyBytes>),
        tags: Option<&Bound<'py, PyFrozenSet>>,
        room: (usize, usize, i64),
    ) -> PyResult<Found<'py>> {
        let (data, begin, stop) = segment;
        let (before, records_max, mut bytes_left) = room;
        let topic = queue.1.as_bytes();
        // `PySlice::new` of PyO3 0.27 never releases the two integers that it makes.
        let slice = py.get_type::<PySlice>();
        let found = PyList::empty(py);
        let (mut examined, mut last) = (0, -1);
        for raw in units.get(at..).unwrap_or_default().chunks_exact(UNIT_BYTES) {
            let Some(unit) = Unit::parse(raw, number + examined as i64) else {
                break;
            };
            if unit.size == FILLER_SIZE && unit.offset == 0 {
                examined += 1;
                continue;
            }
            if unit.code < i64::from(i32::MIN) || unit.size < RECORD_BYTES_MIN as i32 {
                break;
            }
            if unit.may_match(tags)? {
                let records = before + found.len();
                if records > 0 && (records >= records_max || i64::from(unit.size) > bytes_left) {
                    return Ok((examined, found, true, last));
                }
                let end = unit.offset.saturating_add(unit.size.into());
                if unit.offset < begin || end > stop {
                    break;
                }
                let (from, to) = (unit.offset - begin, end - begin);
                let record = data.get_item(slice.call1((from, to))?)?;
                let Ok(record) = record.cast_into::<PyBytes>() else {
                    break;
                };
                if !unit.is_sound(record.as_bytes(), queue.0, topic) {
                    break;
                }
                let values = (unit.number, unit.offset, record, unit.code);
                found.append(self.record_class.call1(py, values)?)?;
                bytes_left -= i64::from(unit.size);
            }
            last = unit.offset;
            examined += 1;
        }
        Ok((examined, found, false, last))
    }
}

impl Unit {
    fn parse(raw: &[u8], number: i64) -> Option<Self> {
        Some(Self {
            number,
            offset: i64_in(raw, UNIT_OFFSET)?,
            size: i32_in(raw, UNIT_SIZE)?,
            code: i64_in(raw, UNIT_CODE)?,
        })
    }

    /// Return whether the record may have one of the tags.
    fn may_match(&self, tags: Option<&Bound<PyFrozenSet>>) -> PyResult<bool> {
        match tags {
            Some(tags) if self.code <= i64::from(i32::MAX) => tags.contains(self.code),
            _ => Ok(true),
        }
    }

    /// Return whether the record is the unit's, undamaged, and of the common form.
    fn is_sound(&self, record: &[u8], queue_id: i32, topic: &[u8]) -> bool {
        let magic = if topic.len() <= 1 + TOPIC_BYTES_V1_MAX {
            MAGIC_V1
        } else {
            MAGIC_V2
        };
        let head = i32_in(record, SIZE) == Some(self.size)
            && i32_in(record, MAGIC) == Some(magic as i32)
            && i32_in(record, QUEUE_ID) == Some(queue_id)
            && i64_in(record, QUEUE_OFFSET) == Some(self.number)
            && i64_in(record, PHYSICAL_OFFSET) == Some(self.offset);
        head && self.parts_are_sound(record, topic).unwrap_or(false)
    }

    fn parts_are_sound(&self, record: &[u8], topic: &[u8]) -> Option<bool> {
        let crc = i32_in(record, BODY_CRC)?;
        if i32_in(record, SYS_FLAG)? & HOSTS_V6 != 0 || self.size as usize != record.len() {
            return None;
        }
        let end = FIXED_BYTES.checked_add(usize::try_from(i32_in(record, BODY_LENGTH)?).ok()?)?;
        let body = record.get(FIXED_BYTES..end)?;
        let rest = record[end..].strip_prefix(topic)?;
        let (length, properties) = rest.split_first_chunk::<2>()?;
        if usize::from(u16::from_be_bytes(*length)) != properties.len() {
            return None;
        }
        // Of the record, not of the properties: a damaged length must not hide it.
        let tail = &record[record.len() - CRC_TAIL_BYTES..];
        if tail.starts_with(CRC_NAME) {
            return None;
        }
        let mut sum = Crc::new();
        sum.update(body);
        let intact = body.is_empty() || (sum.sum() & 0x7FFF_FFFF) as i32 == crc;
        Some(intact && tags_code(properties)? == self.code)
    }
}

/// Return the hash of the tags, 0 without tags; None for malformed UTF-8.
pub fn tags_code(properties: &[u8]) -> Option<i64> {
    let parts = properties.split(|&byte| byte == PAIR_END);
    let mut values = parts.filter_map(|part| part.strip_prefix(TAGS_NAME));
    let Some(tags) = values.rfind(|value| !value.is_empty()) else {
        return Some(0);
    };
    let units = std::str::from_utf8(tags).ok()?.encode_utf16();
    let hash = units.fold(0i32, |hash, unit| {
        hash.wrapping_mul(31).wrapping_add(unit.into())
    });
    Some(hash.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chance::{rounds, Chance};
    use crate::store::stored_record::tests::record;

    const TOPIC: &[u8] = b"\x01t";

    fn sealed(body: &[u8], properties: &[u8]) -> (Vec<u8>, Unit) {
        let mut data = record(0, body, properties);
        let mut sum = Crc::new();
        sum.update(body);
        data[BODY_CRC].copy_from_slice(&(sum.sum() & 0x7FFF_FFFF).to_be_bytes());
        let code = tags_code(properties).unwrap_or(0);
        let unit = Unit {
            number: 77,
            offset: 1000,
            size: data.len() as i32,
            code,
        };
        (data, unit)
    }

    #[test]
    fn hashes_are_those_of_java() {
        assert_eq!(tags_code(b"TAGS\x01TagA\x02"), Some(2_598_919));
        assert_eq!(tags_code(b"MYTAGS\x01TagA\x02TAGS\x01\x02"), Some(0));
        assert_eq!(
            tags_code(b"TAGS\x01a\x02TAGS\x01TagA\x02TAGS\x01\x02"),
            Some(2_598_919)
        );
        assert_eq!(tags_code(b"TAGS\x01\xff\x02"), None);
    }

    #[test]
    fn a_record_with_any_other_byte_in_its_checked_parts_is_not_sound() {
        let (data, unit) = sealed(b"body", b"TAGS\x01TagA\x02");
        assert!(unit.is_sound(&data, 3, TOPIC));
        assert!(!unit.is_sound(&data, 4, TOPIC));
        let head = (SIZE.start..QUEUE_ID.end).chain(QUEUE_OFFSET.start..PHYSICAL_OFFSET.end);
        for at in head.chain(BODY_LENGTH.start..data.len()) {
            let mut damaged = data.clone();
            damaged[at] ^= 0x40;
            assert!(!unit.is_sound(&damaged, 3, TOPIC), "{at}");
        }
    }

    #[test]
    fn damaged_records_never_panic() {
        for seed in rounds() {
            let mut chance = Chance::new(seed);
            let (mut data, mut unit) = sealed(&chance.bytes(100), &chance.bytes(60));
            chance.mutate(&mut data);
            unit.size = data.len() as i32;
            let _ = unit.is_sound(&data, 3, TOPIC);
            let _ = unit.parts_are_sound(&data, &chance.bytes(4));
        }
    }
}
