//! Stored records to the stream's messages: the answer of ReceiveMessage and PullMessage.
//!
//! The bytes are those of `broker/messages/convert.py`, which explains them; a test compares both.
//! A record of an unusual form (compressed, malformed properties, some IPv6 addresses, no attempts
//! left) ends a run and is left to Python.

use std::collections::HashSet;
use std::net::{Ipv4Addr, Ipv6Addr};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyFrozenSet, PyList};

use crate::store::record_layout::SYS_COMPRESSED;
use crate::store::stored_record::{Properties, StoredRecord};
use crate::wire::md5::{digests, Digest};
use crate::wire::wire_fields::{field_bytes, put_field, put_timestamp, put_varint, varint_bytes};

/// Type MD5 and a checksum of 32 characters.
const MD5_PREFIX: &[u8] = b"\x22\x24\x08\x02\x12\x20";
const DIGEST_CHARS: usize = 32;
const IDENTITY: &[u8] = b"\x28\x01";
const NORMAL: u8 = 1;
const FIFO: u8 = 2;
const DELAY: u8 = 3;
const TRANSACTION: u8 = 4;
const LITE: u8 = 5;
const PRIORITY: u8 = 6;
/// Digits of the largest 64-bit integer.
const DIGITS_MAX: usize = 19;

/// What all messages of an answer share.
struct Answer<'a> {
    /// The encoded field of the topic.
    topic: &'a [u8],
    /// The receipt handle between its offsets, and the invisible time; None for a pull.
    receipt: Option<(&'a str, i64)>,
}

/// A message without its digest.
struct Item {
    data: Vec<u8>,
    /// The position of the digest, if there is one.
    digest_at: usize,
    body_at: usize,
}

/// The conversion of one broker's records.
#[pyclass(frozen, module = "cometmq_native")]
pub struct WireMessages {
    hidden: HashSet<Vec<u8>>,
    delay_levels_ms: Vec<i64>,
}

/// Messages; the queue offsets of their records; their bytes; the index of the next record.
type Run<'py> = (Vec<Bound<'py, PyBytes>>, Vec<i64>, usize, usize);

#[pymethods]
impl WireMessages {
    /// `hidden`: properties that clients do not receive; `delay_levels_ms`: the delay levels.
    #[new]
    fn new(hidden: Vec<Vec<u8>>, delay_levels_ms: Vec<i64>) -> Self {
        let hidden = hidden.into_iter().collect();
        Self {
            hidden,
            delay_levels_ms,
        }
    }

    /// Convert `records` (with `data`, `queue_offset`, `physical_offset`) from index `begin` on.
    ///
    /// The run ends after `count` messages, with the message that fills `room` bytes, and before
    /// a record of an unusual form. Records whose tag is not among `tags` are skipped. `receipt`:
    /// the middle of the handles, their start offset (-1: that of the run's first message), the
    /// invisible time, and the attempts after which a message is not delivered. `attempts`: the
    /// number of each record's delivery (None: the first).
    #[pyo3(signature = (topic, records, begin, count, room, tags, receipt, attempts))]
    #[allow(clippy::too_many_arguments)]
    fn run<'py>(
        &self,
        py: Python<'py>,
        topic: &[u8],
        records: &Bound<'py, PyList>,
        begin: usize,
        count: usize,
        room: i64,
        tags: Option<&Bound<'py, PyFrozenSet>>,
        receipt: Option<(String, i64, i64, i64)>,
        attempts: Option<Vec<i64>>,
    ) -> PyResult<Run<'py>> {
        let terms = receipt.as_ref().map(|terms| (terms.0.as_str(), terms.2));
        let answer = Answer {
            topic,
            receipt: terms,
        };
        let mut start = receipt.as_ref().map_or(-1, |terms| terms.1);
        let attempts_max = receipt.as_ref().map_or(i64::MAX, |terms| terms.3);
        let mut items: Vec<Item> = Vec::new();
        let (mut offsets, mut size, mut next) = (Vec::new(), 0, begin);
        while next < records.len() && items.len() < count {
            let stored = records.get_item(next)?;
            let data = stored.getattr(intern!(py, "data"))?;
            let Ok(data) = data.cast::<PyBytes>() else {
                break;
            };
            let Some(record) = StoredRecord::parse(data.as_bytes()) else {
                break;
            };
            let Some(properties) = Properties::parse(record.properties) else {
                break;
            };
            if let Some(tags) = tags {
                if !tags.contains(PyBytes::new(py, properties.tags))? {
                    next += 1;
                    continue;
                }
            }
            let attempt = match &attempts {
                Some(numbers) => numbers.get(next).copied().unwrap_or(1),
                None => 1,
            };
            if i64::from(record.reconsume_times) + attempt > attempts_max {
                break;
            }
            let offset: i64 = stored.getattr(intern!(py, "queue_offset"))?.extract()?;
            let place: i64 = stored.getattr(intern!(py, "physical_offset"))?.extract()?;
            let first = if start < 0 { offset } else { start };
            let Some(item) = self.item(
                &answer,
                &record,
                &properties,
                (first, offset, place),
                attempt,
            ) else {
                break;
            };
            start = first;
            size += item.data.len();
            items.push(item);
            offsets.push(offset);
            next += 1;
            if size as i64 >= room {
                break;
            }
        }
        let bodies: Vec<&[u8]> = items
            .iter()
            .map(|item| &item.data[item.body_at..])
            .collect();
        let found = digests(&bodies);
        let messages = items.into_iter().zip(found).map(|(mut item, digest)| {
            put_digest(&mut item.data[item.digest_at..], digest);
            PyBytes::new(py, &item.data)
        });
        Ok((messages.collect(), offsets, size, next))
    }
}

impl WireMessages {
    /// Encode a message; None for an unusual form. `offsets`: start of the batch, queue offset,
    /// physical offset.
    fn item(
        &self,
        answer: &Answer,
        record: &StoredRecord,
        properties: &Properties,
        offsets: (i64, i64, i64),
        attempt: i64,
    ) -> Option<Item> {
        if record.sys_flag & SYS_COMPRESSED != 0 {
            return None;
        }
        let (system, digest_at) = self.system(answer, record, properties, offsets, attempt)?;
        let users: Vec<_> = properties
            .iter()
            .filter(|pair| !self.hidden.contains(pair.0))
            .collect();
        let sizes = users.iter().map(|(name, value)| pair_bytes(name, value));
        let users_bytes: usize = sizes.map(field_bytes).sum();
        let content = answer.topic.len()
            + users_bytes
            + field_bytes(system.len())
            + field_bytes(record.body.len());
        let mut data = Vec::with_capacity(1 + varint_bytes(content as u64) + content);
        data.push(0x12);
        put_varint(&mut data, content as u64);
        data.extend_from_slice(answer.topic);
        for (name, value) in users {
            data.push(0x12);
            put_varint(&mut data, pair_bytes(name, value) as u64);
            put_field(&mut data, b"\x0a", name);
            put_field(&mut data, b"\x12", value);
        }
        put_field(&mut data, b"\x1a", &system);
        let digest_at = data.len() - system.len() + digest_at;
        put_field(&mut data, b"\x22", record.body);
        let body_at = data.len() - record.body.len();
        Some(Item {
            data,
            digest_at,
            body_at,
        })
    }

    /// Encode the system properties; return them and the position of the digest in them.
    fn system(
        &self,
        answer: &Answer,
        record: &StoredRecord,
        properties: &Properties,
        (start, offset, place): (i64, i64, i64),
        attempt: i64,
    ) -> Option<(Vec<u8>, usize)> {
        let mut out = Vec::with_capacity(320);
        if let Some(tag) = properties.filled(b"TAGS") {
            put_field(&mut out, b"\x0a", tag);
        }
        let keys = properties.get(b"KEYS").unwrap_or_default();
        for key in keys
            .split(|&byte| byte == b' ')
            .filter(|key| !key.is_empty())
        {
            put_field(&mut out, b"\x12", key);
        }
        put_field(
            &mut out,
            b"\x1a",
            properties.get(b"UNIQ_KEY").unwrap_or_default(),
        );
        out.extend_from_slice(MD5_PREFIX);
        let digest_at = out.len();
        out.extend_from_slice(&[0; DIGEST_CHARS]);
        out.extend_from_slice(IDENTITY);
        out.extend_from_slice(&[0x30, message_type(properties)]);
        put_timestamp(&mut out, b"\x3a", record.born_ms.into());
        match properties.filled(b"__BORNHOST") {
            Some(host) => put_field(&mut out, b"\x42", host),
            None => put_field(&mut out, b"\x42", host_text(record.born_host)?.0.as_bytes()),
        }
        put_timestamp(&mut out, b"\x4a", record.store_ms.into());
        let (host, port) = host_text(record.store_host)?;
        let address = if host.contains(':') {
            format!("[{host}]:{port}")
        } else {
            format!("{host}:{port}")
        };
        put_field(&mut out, b"\x52", address.as_bytes());
        if let Some(time_ms) = self.deliver_ms(record, properties) {
            put_timestamp(&mut out, b"\x5a", time_ms);
        }
        if let Some((middle, _)) = answer.receipt {
            put_field(
                &mut out,
                b"\x62",
                format!("{start}{middle}{offset} {place}").as_bytes(),
            );
        }
        if record.queue_id != 0 {
            out.push(0x68);
            put_varint(&mut out, i64::from(record.queue_id) as u64);
        }
        out.push(0x70);
        put_varint(&mut out, record.queue_offset as u64);
        let mut attempts = i64::from(record.reconsume_times);
        if let Some((_, invisible_ms)) = answer.receipt {
            put_timestamp(&mut out, b"\x7a", invisible_ms.into());
            attempts += attempt;
        }
        out.extend_from_slice(b"\x80\x01");
        put_varint(&mut out, attempts.max(1) as u64);
        put_rare(&mut out, properties);
        Some((out, digest_at))
    }

    /// Return the delivery time of a delayed message.
    fn deliver_ms(&self, record: &StoredRecord, properties: &Properties) -> Option<i128> {
        if let Some(time_ms) = properties.filled(b"TIMER_DELIVER_MS").and_then(integer) {
            return Some(time_ms);
        }
        let text = level(properties)?;
        let number = match integer(text) {
            Some(number) if number >= 0 => number.max(1) as usize,
            _ => return Some(record.store_ms.into()),
        };
        let index = number.min(self.delay_levels_ms.len()) - 1;
        Some(i128::from(record.born_ms) + i128::from(self.delay_levels_ms[index]))
    }
}

/// Append the fields that few messages have.
fn put_rare(out: &mut Vec<u8>, properties: &Properties) {
    if let Some(group) = properties.filled(b"__SHARDINGKEY") {
        put_field(out, b"\x8a\x01", group);
    }
    if let Some(trace) = properties.filled(b"TRACE_CONTEXT") {
        put_field(out, b"\x92\x01", trace);
    }
    if let Some(origin) = properties.filled(b"DLQ_ORIGIN_TOPIC") {
        let message_id = properties.get(b"DLQ_ORIGIN_MESSAGE_ID").unwrap_or_default();
        out.extend_from_slice(b"\xa2\x01");
        put_varint(out, pair_bytes(origin, message_id) as u64);
        put_field(out, b"\x0a", origin);
        put_field(out, b"\x12", message_id);
    }
    if let Some(lite) = properties.filled(b"__LITE_TOPIC") {
        put_field(out, b"\xaa\x01", lite);
    }
    let priority = properties.get(b"_SYS_MSG_PRIORITY_").and_then(integer);
    if let Some(priority) = priority.and_then(|number| i32::try_from(number).ok()) {
        if priority >= 0 {
            out.extend_from_slice(b"\xb0\x01");
            put_varint(out, priority as u64);
        }
    }
}

fn message_type(properties: &Properties) -> u8 {
    let has = |name: &[u8]| properties.get(name).is_some();
    if properties.get(b"TRAN_MSG") == Some(b"true") {
        TRANSACTION
    } else if has(b"TIMER_DELIVER_MS") || has(b"TIMER_DELAY_SEC") || level(properties).is_some() {
        DELAY
    } else if has(b"__SHARDINGKEY") {
        FIFO
    } else if has(b"_SYS_MSG_PRIORITY_") {
        PRIORITY
    } else if has(b"__LITE_TOPIC") {
        LITE
    } else {
        NORMAL
    }
}

/// Return the delay level, unless it stands for no delay.
fn level<'a>(properties: &Properties<'a>) -> Option<&'a [u8]> {
    let text = properties.filled(b"DELAY")?;
    (text != b"0" && text != b"-1").then_some(text)
}

/// Return the integer in a property; None for other text and for more than 19 digits.
fn integer(text: &[u8]) -> Option<i128> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    if digits.is_empty() || digits.len() > DIGITS_MAX || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Return a packed host as text, and its port; None for an IPv6 address whose text may differ from
/// that of the C library, which writes some with an IPv4 address in them.
fn host_text(packed: &[u8]) -> Option<(String, i32)> {
    let (address, port) = packed.split_at_checked(packed.len().checked_sub(4)?)?;
    let port = i32::from_be_bytes(port.try_into().ok()?);
    if let Ok(four) = <[u8; 4]>::try_from(address) {
        return Some((Ipv4Addr::from(four).to_string(), port));
    }
    let six = <[u8; 16]>::try_from(address).ok()?;
    (six[..2] != [0, 0]).then(|| (Ipv6Addr::from(six).to_string(), port))
}

fn pair_bytes(name: &[u8], value: &[u8]) -> usize {
    field_bytes(name.len()) + field_bytes(value.len())
}

fn put_digest(out: &mut [u8], digest: Digest) {
    for (chars, byte) in out.chunks_exact_mut(2).zip(digest) {
        chars.copy_from_slice(&HEX[usize::from(byte)]);
    }
}

/// Two upper-case characters for each byte.
const HEX: [[u8; 2]; 256] = {
    let digits = b"0123456789ABCDEF";
    let mut table = [[0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = [digits[byte >> 4], digits[byte & 15]];
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chance::{rounds, Chance};
    use crate::store::stored_record::tests::record;

    fn converter() -> WireMessages {
        WireMessages::new(vec![b"TAGS".to_vec()], vec![1000, 5000])
    }

    fn converted(data: &[u8]) -> Option<Vec<u8>> {
        let record = StoredRecord::parse(data)?;
        let properties = Properties::parse(record.properties)?;
        let answer = Answer {
            topic: b"\x0a\x03\x12\x01t",
            receipt: Some((" 5 6 ", 60_000)),
        };
        let item = converter().item(&answer, &record, &properties, (1, 77, 1000), 1)?;
        Some(item.data)
    }

    fn contains(data: &[u8], part: &[u8]) -> bool {
        data.windows(part.len()).any(|window| window == part)
    }

    #[test]
    fn a_message_has_its_fields() {
        let data = converted(&record(0, b"body", b"TAGS\x01t\x02mine\x01yes\x02")).unwrap();
        for part in [
            &b"\x0a\x04mine\x12\x03yes"[..],
            b"\x0a\x01t",
            b"\x62\x0d1 5 6 77 1000",
            b"9.9.9.9",
            b"\x22\x04body",
            b"\x80\x01\x03",
        ] {
            assert!(contains(&data, part), "{part:?}");
        }
        assert!(!contains(&data, b"TAGS"));
    }

    #[test]
    fn compressed_bodies_and_some_hosts_are_left_to_python() {
        assert!(converted(&record(1, b"body", b"")).is_none());
        assert!(host_text(&[0; 20]).is_none());
        let mut host = [0; 20];
        host[0] = 0x20;
        assert_eq!(host_text(&host), Some(("2000::".to_owned(), 0)));
    }

    #[test]
    fn integers_are_read_as_python_reads_them() {
        assert_eq!(integer(b"-5"), Some(-5));
        assert_eq!(
            integer(b"9999999999999999999"),
            Some(9_999_999_999_999_999_999)
        );
        for text in [
            &b""[..],
            b"-",
            b"+5",
            b" 5",
            b"1_0",
            b"10000000000000000000",
            b"--5",
        ] {
            assert_eq!(integer(text), None, "{text:?}");
        }
    }

    #[test]
    fn damaged_records_neither_panic_nor_outgrow_their_source() {
        for seed in rounds() {
            let mut chance = Chance::new(seed);
            let mut properties = Vec::new();
            for _ in 0..chance.below(5) {
                let names = [
                    &b"TAGS"[..],
                    b"KEYS",
                    b"DELAY",
                    b"TIMER_DELIVER_MS",
                    b"x",
                    b"",
                ];
                properties.extend_from_slice(names[chance.below(names.len())]);
                properties.push(1);
                properties.extend(chance.bytes(12));
                properties.push(2);
            }
            let flags = [0, 0x10, 0x20, 0x30, 1][chance.below(5)];
            let mut data = record(flags, &chance.bytes(200), &properties);
            chance.mutate(&mut data);
            if let Some(item) = converted(&data) {
                assert!(item.len() < 3 * data.len() + 600, "seed {seed}");
            }
        }
    }
}
