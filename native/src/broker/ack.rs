//! The deliveries that an AckMessage request names, by queue, and the answer if all of them end.
//!
//! Common requests only: a group and a topic, different messages of this broker, receipt handles of
//! nine fields as the broker makes them. The complete rules are in Python (`broker/pop/ack.py`,
//! `broker/names/handles.py`), where requests go that are not accepted here. Python also decides
//! whether the deliveries exist.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::wire::protobuf::{Fields, Unusual, Value};
use crate::wire::wire_fields::{field_bytes, put_field, put_varint};

/// Bytes of a request; below the limit of the door for AckMessage.
const REQUEST_BYTES_MAX: usize = 256 << 10;
/// Bytes of a handle.
const HANDLE_MAX: usize = 512;
/// Digits of a number in a handle: every such number is an i64.
const DIGITS_MAX: usize = 18;
/// The largest kind of a topic: the topic itself and two forms of retry topics.
const KIND_MAX: i64 = 2;

/// Deliveries of one queue, in the order of the request.
#[derive(Debug, PartialEq)]
struct Queue {
    kind: i64,
    queue_id: i64,
    offsets: Vec<i64>,
    pop_times_ms: Vec<i64>,
}

/// One delivery.
struct Handle {
    kind: i64,
    queue_id: i64,
    offset: i64,
    pop_ms: i64,
}

/// An entry of a request.
struct Entry<'a> {
    id: &'a [u8],
    handle: &'a [u8],
}

/// A request.
#[derive(Debug)]
struct Acks<'a> {
    group: &'a str,
    topic: &'a str,
    queues: Vec<Queue>,
    answer: Vec<u8>,
}

/// Kind, queue id, queue offsets, pop times.
type PyQueue = (i64, i64, Vec<i64>, Vec<i64>);
/// Group, topic, deliveries by queue, answer.
type PyAcks<'a, 'py> = (&'a str, &'a str, Vec<PyQueue>, Bound<'py, PyBytes>);

/// Reads the requests for one broker.
#[pyclass(frozen, module = "cometmq_native.codec")]
pub struct AckReader {
    broker: Vec<u8>,
    status: Vec<u8>,
    entries_max: usize,
}

#[pymethods]
impl AckReader {
    /// `broker`: the name in its handles; `status`: the encoded status OK; `entries_max`: the most
    /// entries of a request.
    #[new]
    fn new(broker: &str, status: Vec<u8>, entries_max: usize) -> Self {
        Self {
            broker: broker.into(),
            status,
            entries_max,
        }
    }

    /// Return group, topic, the deliveries by queue (kind, queue id, queue offsets, pop times), and
    /// the answer that acknowledges all; None if the request is not common.
    fn read<'a, 'py>(&self, py: Python<'py>, raw: &'a [u8]) -> Option<PyAcks<'a, 'py>> {
        let acks = self.acks(raw).ok()?;
        let queues = acks.queues.into_iter().map(|queue| {
            let Queue { kind, queue_id, .. } = queue;
            (kind, queue_id, queue.offsets, queue.pop_times_ms)
        });
        let answer = PyBytes::new(py, &acks.answer);
        Some((acks.group, acks.topic, queues.collect(), answer))
    }
}

impl AckReader {
    fn acks<'a>(&self, raw: &'a [u8]) -> Result<Acks<'a>, Unusual> {
        if raw.len() > REQUEST_BYTES_MAX {
            return Err(Unusual);
        }
        let (mut group, mut topic) = (None, None);
        let mut queues: Vec<Queue> = Vec::new();
        let mut count = 0;
        let mut answer = Vec::with_capacity(raw.len() + raw.len() / 4 + 64);
        put_field(&mut answer, b"\x0A", &self.status);
        let mut fields = Fields::of(raw);
        while let Some(field) = fields.next()? {
            match field {
                (1, Value::Bytes(data)) if group.is_none() => group = Some(name(data)?),
                (2, Value::Bytes(data)) if topic.is_none() => topic = Some(name(data)?),
                (3, Value::Bytes(data)) if count < self.entries_max => {
                    let entry = entry(data)?;
                    let handle = self.handle(entry.handle)?;
                    add(&mut queues, &handle);
                    self.put_entry(&mut answer, &entry);
                    count += 1;
                }
                _ => return Err(Unusual),
            }
        }
        let (Some(group), Some(topic), false) = (group, topic, queues.is_empty()) else {
            return Err(Unusual);
        };
        if !queues.iter().all(|queue| all_differ(&queue.offsets)) {
            return Err(Unusual);
        }
        Ok(Acks {
            group,
            topic,
            queues,
            answer,
        })
    }

    fn handle(&self, text: &[u8]) -> Result<Handle, Unusual> {
        if text.len() > HANDLE_MAX {
            return Err(Unusual);
        }
        let mut parts = text.split(|&byte| byte == b' ');
        let mut next = || parts.next().ok_or(Unusual);
        let _start = number(next()?)?;
        let pop_ms = number(next()?)?;
        let _invisible_ms = number(next()?)?;
        let _revive_queue = number(next()?)?;
        let kind = number(next()?)?;
        let broker = next()?;
        let queue_id = number(next()?)?;
        let offset = number(next()?)?;
        let _physical_offset = number(next()?)?;
        if parts.next().is_some() || kind > KIND_MAX || broker != self.broker {
            return Err(Unusual);
        }
        Ok(Handle {
            kind,
            queue_id,
            offset,
            pop_ms,
        })
    }

    fn put_entry(&self, out: &mut Vec<u8>, entry: &Entry<'_>) {
        let parts = [entry.id, entry.handle, &self.status];
        let size = |part: &&[u8]| field_bytes(part.len());
        out.push(0x12);
        put_varint(out, parts.iter().map(size).sum::<usize>() as u64);
        for (tag, part) in [b"\x0A", b"\x12", b"\x1A"].into_iter().zip(parts) {
            put_field(out, tag, part);
        }
    }
}

/// The name of a Resource without a namespace.
fn name(data: &[u8]) -> Result<&str, Unusual> {
    let mut fields = Fields::of(data);
    let Some((2, Value::Bytes(name))) = fields.next()? else {
        return Err(Unusual);
    };
    if fields.next()?.is_some() {
        return Err(Unusual);
    }
    std::str::from_utf8(name).map_err(|_| Unusual)
}

fn entry(data: &[u8]) -> Result<Entry<'_>, Unusual> {
    let (mut id, mut handle) = (None, None);
    let mut fields = Fields::of(data);
    while let Some(field) = fields.next()? {
        match field {
            (1, Value::Bytes(text)) if id.is_none() => id = Some(text),
            (2, Value::Bytes(text)) if handle.is_none() => handle = Some(text),
            _ => return Err(Unusual),
        }
    }
    let id = id.unwrap_or_default();
    if std::str::from_utf8(id).is_err() {
        return Err(Unusual);
    }
    let handle = handle.ok_or(Unusual)?;
    Ok(Entry { id, handle })
}

/// A number of decimal digits.
fn number(text: &[u8]) -> Result<i64, Unusual> {
    if text.is_empty() || text.len() > DIGITS_MAX || !text.iter().all(u8::is_ascii_digit) {
        return Err(Unusual);
    }
    let digits = text.iter().map(|digit| i64::from(digit - b'0'));
    Ok(digits.fold(0, |number, digit| number * 10 + digit))
}

fn add(queues: &mut Vec<Queue>, handle: &Handle) {
    let is_its = |queue: &Queue| (queue.kind, queue.queue_id) == (handle.kind, handle.queue_id);
    // The last one first: the messages of one receive are of one queue, or of a few.
    let at = queues.iter().rposition(is_its).unwrap_or_else(|| {
        queues.push(Queue {
            kind: handle.kind,
            queue_id: handle.queue_id,
            offsets: Vec::new(),
            pop_times_ms: Vec::new(),
        });
        queues.len() - 1
    });
    queues[at].offsets.push(handle.offset);
    queues[at].pop_times_ms.push(handle.pop_ms);
}

fn all_differ(offsets: &[i64]) -> bool {
    if offsets.windows(2).all(|pair| pair[0] < pair[1]) {
        return true;
    }
    let mut sorted = offsets.to_vec();
    sorted.sort_unstable();
    sorted.windows(2).all(|pair| pair[0] < pair[1])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chance::{rounds, Chance};

    fn reader() -> AckReader {
        AckReader::new("broker-a", b"\x08\x01".to_vec(), 4)
    }

    fn field(tag: u8, data: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        put_field(&mut out, &[tag], data);
        out
    }

    fn request(handles: &[&str]) -> Vec<u8> {
        let mut out = field(0x0A, &field(0x12, b"group"));
        out.extend(field(0x12, &field(0x12, b"topic")));
        for handle in handles {
            let entry = [field(0x0A, b"ID"), field(0x12, handle.as_bytes())].concat();
            out.extend(field(0x1A, &entry));
        }
        out
    }

    #[test]
    fn deliveries_are_grouped_by_queue_in_their_order() {
        let raw = request(&[
            "5 1000 60000 0 0 broker-a 3 7 900",
            "5 1001 60000 0 1 broker-a 3 8 901",
            "5 1002 60000 0 0 broker-a 3 5 902",
        ]);
        let acks = reader().acks(&raw).unwrap();
        let queue = |kind, offsets: &[i64], pop_times_ms: &[i64]| Queue {
            kind,
            queue_id: 3,
            offsets: offsets.into(),
            pop_times_ms: pop_times_ms.into(),
        };
        assert_eq!((acks.group, acks.topic), ("group", "topic"));
        assert_eq!(
            acks.queues,
            [queue(0, &[7, 5], &[1000, 1002]), queue(1, &[8], &[1001])]
        );
        let entry = |handle: &[u8]| {
            let parts = [
                field(0x0A, b"ID"),
                field(0x12, handle),
                field(0x1A, b"\x08\x01"),
            ];
            field(0x12, &parts.concat())
        };
        let answer = [
            field(0x0A, b"\x08\x01"),
            entry(b"5 1000 60000 0 0 broker-a 3 7 900"),
            entry(b"5 1001 60000 0 1 broker-a 3 8 901"),
            entry(b"5 1002 60000 0 0 broker-a 3 5 902"),
        ];
        assert_eq!(acks.answer, answer.concat());
    }

    #[test]
    fn other_handles_are_refused() {
        for handle in [
            "",
            "5 1000 60000 0 0 broker-a 3 7",
            "5 1000 60000 0 0 broker-a 3 7 900 1",
            "5 1000 60000 0 0 broker-a 3 7 ",
            "5 1000 60000 0 0 broker-b 3 7 900",
            "5 1000 60000 0 3 broker-a 3 7 900",
            "5 1000 60000 0 0 broker-a -3 7 900",
            "5 +1000 60000 0 0 broker-a 3 7 900",
            "5 1_000 60000 0 0 broker-a 3 7 900",
            "5 1000 60000 0 0 broker-a 3 1000000000000000000 900",
        ] {
            assert!(reader().acks(&request(&[handle])).is_err(), "{handle}");
        }
    }

    #[test]
    fn other_requests_are_refused() {
        let handles: Vec<_> = (0..5)
            .map(|offset| format!("5 1000 60000 0 0 broker-a 3 {offset} 900"))
            .collect();
        let handles: Vec<_> = handles.iter().map(String::as_str).collect();
        assert!(reader().acks(&request(&handles[..4])).is_ok());
        assert!(reader().acks(&request(&handles)).is_err(), "too many");
        assert!(reader().acks(&request(&[])).is_err(), "none");
        let twice = [handles[1], handles[0], handles[1]];
        assert!(reader().acks(&request(&twice)).is_err(), "twice");
        let good = request(&handles[..1]);
        let of_lite = [
            field(0x12, handles[0].as_bytes()),
            field(0x1A, b"lite topic"),
        ];
        for extra in [
            field(0x0A, &field(0x12, b"other group")),
            field(0x22, b"unknown"),
            field(0x1A, &of_lite.concat()),
            field(0x1A, &field(0x0A, b"\xff")),
        ] {
            assert!(reader().acks(&[good.clone(), extra].concat()).is_err());
        }
        let namespace = field(0x0A, &field(0x0A, b"namespace"));
        assert!(reader().acks(&[namespace, good].concat()).is_err());
    }

    #[test]
    fn changed_requests_never_panic_and_have_different_deliveries() {
        for seed in rounds() {
            let mut chance = Chance::new(seed);
            let handles: Vec<_> = (0..chance.below(5))
                .map(|_| {
                    let (kind, offset) = (chance.below(3), chance.below(9));
                    format!("5 1000 60000 0 {kind} broker-a 3 {offset} 900")
                })
                .collect();
            let handles: Vec<_> = handles.iter().map(String::as_str).collect();
            let mut raw = request(&handles);
            chance.mutate(&mut raw);
            let Ok(acks) = reader().acks(&raw) else {
                continue;
            };
            let mut seen: Vec<_> = Vec::new();
            for queue in &acks.queues {
                assert_eq!(queue.offsets.len(), queue.pop_times_ms.len());
                for &offset in &queue.offsets {
                    let delivery = (queue.kind, queue.queue_id, offset);
                    assert!(!seen.contains(&delivery), "seed {seed}");
                    seen.push(delivery);
                }
            }
            assert!((1..=4).contains(&seen.len()), "seed {seed}");
        }
    }
}
