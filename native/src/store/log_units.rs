//! Records of a leader's log, in the log of a follower: where they end, and their queue units.
//!
//! Both functions end in front of a record that is left to Python: `CommitLog.append_raw` and
//! `Dispatcher.parse` in `store/`, whose rules they follow.

use std::collections::HashMap;

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::store::log_reader::{read_segment, Bytes, LogReader, LogRecord};
use crate::store::queue_read::tags_code;
use crate::store::record_layout::{
    put_unit, TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK,
};

/// The third field of its units may be a due time.
const SCHEDULE_TOPIC: &str = "SCHEDULE_TOPIC_XXXX";
/// Name of the property of records with units in light queues.
const LIGHT_NUMBERS: &[u8] = b"INNER_MULTI_QUEUE_OFFSET";

/// Return the position behind the whole records in `range` of `data`, a segment that begins at log
/// offset `base`, and the store time of the last one (0: there is none).
#[pyfunction]
pub fn whole_records(
    py: Python<'_>,
    data: &Bound<'_, PyAny>,
    base: i64,
    range: (usize, usize),
) -> PyResult<(usize, i64)> {
    let (mut at, limit) = range;
    read_segment(py, data, base, limit, |mut reader| {
        let mut store_ms = 0;
        while let Some(record) = reader.record_at(at) {
            (at, store_ms) = (record.end, record.store_ms);
        }
        (at, store_ms)
    })
}

/// For each queue: topic, queue id, number of the first unit, encoded units.
type PyUnits<'py> = Vec<(String, i32, i64, Bound<'py, PyBytes>)>;

/// Return the units of the records in `range` of `data`, a segment that begins at log offset `base`:
/// of at most `records_max` records, whose numbers follow each other in each queue. Also: the
/// position behind the last record, the store times of the units in log order (i64 in native byte
/// order), and the log offset of the last record with a unit (0: there is none).
#[pyfunction]
pub fn queue_units<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    base: i64,
    range: (usize, usize),
    records_max: usize,
) -> PyResult<(PyUnits<'py>, usize, Bound<'py, PyBytes>, i64)> {
    let (position, limit) = range;
    let found = read_segment(py, data, base, limit, |reader| {
        Units::read(reader, position, records_max)
    })?;
    let units = found.queues.into_iter().map(|queue| {
        let units = PyBytes::new(py, &queue.units);
        (queue.topic, queue.id, queue.first, units)
    });
    let times = found.times_ms.iter().flat_map(|time| time.to_ne_bytes());
    let times = PyBytes::new(py, &times.collect::<Vec<u8>>());
    Ok((units.collect(), found.end, times, found.last))
}

struct Queue {
    topic: String,
    id: i32,
    first: i64,
    next: i64,
    units: Vec<u8>,
}

#[derive(Default)]
struct Units {
    queues: Vec<Queue>,
    /// Indices of `queues`.
    places: HashMap<(String, i32), usize>,
    end: usize,
    /// One for each unit, in log order.
    times_ms: Vec<i64>,
    /// Log offset of the last unit.
    last: i64,
}

impl Units {
    fn read<B: Bytes>(mut reader: LogReader<B>, position: usize, records_max: usize) -> Self {
        let mut found = Self {
            end: position,
            ..Self::default()
        };
        for _ in 0..records_max {
            let Some(record) = reader.record_at(found.end) else {
                break;
            };
            if found.add(&record).is_none() {
                break;
            }
            found.end = record.end;
        }
        found
    }

    /// Add the unit of a record; None if the record is left.
    fn add(&mut self, record: &LogRecord) -> Option<()> {
        let topic = std::str::from_utf8(record.topic).ok()?;
        let mut parts = record.properties.windows(LIGHT_NUMBERS.len());
        if parts.any(|part| part == LIGHT_NUMBERS) {
            return None;
        }
        let state = record.sys_flag & TRANSACTION_MASK;
        if state == TRANSACTION_PREPARED || state == TRANSACTION_ROLLBACK {
            return Some(());
        }
        if topic == SCHEDULE_TOPIC {
            return None;
        }
        let code = tags_code(record.properties)?;
        let next = record.queue_offset.checked_add(1)?;
        let queue = self.queue(topic, record);
        if queue.next != record.queue_offset {
            return None;
        }
        queue.next = next;
        put_unit(&mut queue.units, record.offset, record.size, code);
        self.times_ms.push(record.store_ms);
        self.last = record.offset;
        Some(())
    }

    /// Return the queue of a record; it is added if it is new.
    fn queue(&mut self, topic: &str, record: &LogRecord) -> &mut Queue {
        let end = self.queues.len();
        let place = *self
            .places
            .entry((topic.into(), record.queue_id))
            .or_insert(end);
        if place == end {
            self.queues.push(Queue {
                topic: topic.into(),
                id: record.queue_id,
                first: record.queue_offset,
                next: record.queue_offset,
                units: Vec::new(),
            });
        }
        &mut self.queues[place]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chance::{rounds, Chance};
    use crate::store::log_reader::tests::{reader, record};
    use crate::store::record_layout::{QUEUE_OFFSET, UNIT_BYTES, UNIT_CODE};

    fn log(records: &[(i32, &[u8], i64, &[u8])]) -> Vec<u8> {
        let mut data = Vec::new();
        for (sys_flag, topic, number, properties) in records {
            let mut one = record(1_000 + data.len() as i64, *sys_flag, topic, properties);
            one[QUEUE_OFFSET].copy_from_slice(&number.to_be_bytes());
            data.extend(one);
        }
        data
    }

    fn read(data: &[u8], records_max: usize) -> Units {
        Units::read(reader(data), 0, records_max)
    }

    #[test]
    fn units_come_by_queue_in_log_order() {
        let data = log(&[
            (0, b"A", 7, b""),
            (0, b"B", 1, b""),
            (0, b"A", 8, b"TAGS\x01TagA\x02"),
        ]);
        let found = read(&data, 9);
        assert_eq!(found.end, data.len());
        assert_eq!(found.times_ms, [1_700_000_000_000; 3]);
        assert_eq!(found.last, 1_000 + 2 * record(0, 0, b"A", b"").len() as i64);
        let queues: Vec<_> = found
            .queues
            .iter()
            .map(|queue| (queue.topic.as_str(), queue.first, queue.units.len()))
            .collect();
        assert_eq!(queues, [("A", 7, 40), ("B", 1, 20)]);
        assert_eq!(
            found.queues[0].units[UNIT_BYTES + UNIT_CODE.start..],
            2_598_919_i64.to_be_bytes()
        );
        assert_eq!(read(&data, 2).times_ms.len(), 2);
    }

    #[test]
    fn prepared_and_rolled_back_records_have_no_unit() {
        let data = log(&[(4, b"A", 0, b""), (0xC, b"A", 0, b""), (8, b"A", 0, b"")]);
        let found = read(&data, 9);
        assert_eq!((found.end, found.times_ms.len()), (data.len(), 1));
        let found = read(&data, 2);
        assert_eq!((found.times_ms.len(), found.last), (0, 0));
    }

    #[test]
    fn a_record_without_a_unit_is_left_if_python_refuses_its_text() {
        for (topic, properties) in [(&b"A\xff"[..], &b""[..]), (b"A", LIGHT_NUMBERS)] {
            assert_eq!(read(&log(&[(4, topic, 0, properties)]), 9).end, 0);
        }
    }

    #[test]
    fn records_that_python_must_read_are_left() {
        let left: [(&[u8], i64, &[u8]); 5] = [
            (SCHEDULE_TOPIC.as_bytes(), 0, b""),
            (b"A", 0, b"INNER_MULTI_QUEUE_OFFSET\x011\x02"),
            (b"A\xff", 0, b""),
            (b"A", 0, b"TAGS\x01\xff\x02"),
            (b"A", 2, b""), // its number does not follow
        ];
        for (topic, number, properties) in left {
            let data = log(&[(0, b"A", 0, b""), (0, topic, number, properties)]);
            let found = read(&data, 9);
            assert_eq!((found.times_ms.len(), found.last), (1, 1_000));
            assert!(found.end < data.len());
        }
    }

    #[test]
    fn changed_records_never_panic() {
        for seed in rounds() {
            let mut chance = Chance::new(seed);
            let mut data = Vec::new();
            for number in 0..chance.below(5) as i64 {
                let topics: [&[u8]; 4] = [b"A", b"B", SCHEDULE_TOPIC.as_bytes(), b"\xff"];
                let topic = topics[chance.below(4)];
                let properties = match chance.below(3) {
                    0 => chance.bytes(40),
                    1 => b"TAGS\x01t\x02".to_vec(),
                    _ => [LIGHT_NUMBERS, b"\x01", &chance.bytes(4)].concat(),
                };
                let flags = chance.below(16) as i32;
                let mut one = record(1_000 + data.len() as i64, flags, topic, &properties);
                one[QUEUE_OFFSET].copy_from_slice(&number.to_be_bytes());
                data.extend(one);
            }
            chance.mutate(&mut data);
            let found = read(&data, 4);
            let units: usize = found.queues.iter().map(|queue| queue.units.len()).sum();
            let count = found.times_ms.len();
            assert!(found.end <= data.len() && count <= 4, "seed {seed}");
            assert_eq!(units, UNIT_BYTES * count, "seed {seed}");
        }
    }
}
