//! Plan of an append: the records of common SendMessage requests, with their queue units and answers.
//!
//! Requests are taken in order up to the first that is not common, does not fit the segment, or is
//! for an unknown queue; nothing of that request is in the plan. A request is one of gRPC, or a frame
//! of a classic client, whose answer is a frame, too. Record layout:
//! docs/formats/store-format.md, section 2. The same bytes are made in Python
//! (`grpc_records.py` of the broker, `append.py` of the store); a test compares them.

use std::collections::HashMap;
use std::sync::Arc;

use flate2::Crc;

use crate::broker::classic_send::ClassicSend;
use crate::broker::sent::{self, Sent};
use crate::store::record_layout::{
    put_unit, FIXED_BYTES, HOST_BYTES, MAGIC_V1, MAGIC_V2, SYS_COMPRESSED, TOPIC_BYTES_V1_MAX,
    UNIT_BYTES,
};
use crate::wire::wire_fields::{put_varint, varint_bytes};

const CRC_MASK: u32 = 0x7FFF_FFFF;
const PROPERTIES_MAX: usize = 32_767;
const NORMAL: i32 = 1;
const FIFO: i32 = 2;
/// A topic of all types.
const MIXED: i32 = -1;
/// Records of a plan: what the processor's caches hold, and a few milliseconds.
const BYTES_ENOUGH: usize = 96 << 10;
const RECORDS_ENOUGH: usize = 1_000;

/// What all records of a topic share.
pub struct Template {
    /// Name of the topic.
    pub name: String,
    /// The type of its messages, or `MIXED`.
    pub message_type: i32,
    /// Number of queues for new messages.
    pub queues: u32,
    /// Encoded properties before the message group and the id.
    pub before: Vec<u8>,
    /// Encoded properties after the id.
    pub between: Vec<u8>,
}

/// Where the records go.
pub struct Place {
    /// Log offset of the first record.
    pub begin: i64,
    /// Log offset that no record may cross.
    pub limit: i64,
    /// Store time.
    pub store_ms: i64,
    /// Born time of messages without one.
    pub wall_ms: i64,
    /// This broker's address, packed.
    pub store_host: Vec<u8>,
}

/// One SendMessage request.
pub struct Request<'a> {
    /// The encoded request of gRPC, or the frame of a classic client without its length field;
    /// `None` if it must take the other path.
    pub raw: Option<&'a [u8]>,
    /// It is a frame.
    pub frame: bool,
    /// The client's host as text.
    pub peer: &'a str,
    /// The client's address, packed.
    pub born_host: &'a [u8],
}

/// The state of the broker that a plan needs.
pub trait Lookups {
    /// An error of the broker.
    type Error;

    /// The topic's template and the number of its requests so far, if it accepts common messages.
    fn topic(&mut self, name: &str) -> Result<Option<(Arc<Template>, u64)>, Self::Error>;

    /// The queue offset of the next message; `None` for an unknown queue.
    fn next_offset(&mut self, topic: &str, queue_id: u32) -> Result<Option<i64>, Self::Error>;
}

/// Limits and bytes that never change.
pub struct Planner {
    /// Bytes of a body.
    pub max_body: usize,
    /// The encoded status of an answer, as a field.
    pub answer_ok: Vec<u8>,
    /// Upper bounds of the message sizes that are counted together.
    pub size_bounds: Vec<u64>,
    /// For classic clients; `None`: their frames take the other path.
    pub classic: Option<Classic>,
}

/// What all records and answers of classic clients share.
pub struct Classic {
    /// Properties that the broker adds: name and value.
    pub added: Vec<(String, String)>,
    /// Names of properties with which a message takes the other path.
    pub reserved: Vec<String>,
    /// Bits of `sysFlag` that are stored.
    pub kept_bits: u32,
    /// The header of an answer around its id, queue, position, queue offset and opaque.
    pub answer: [Vec<u8>; 6],
}

/// New units of one queue.
pub struct Units {
    /// Topic of the queue.
    pub topic: Arc<Template>,
    /// Number of the queue.
    pub queue_id: u32,
    /// Number of the first unit.
    pub first: i64,
    /// Encoded units.
    pub data: Vec<u8>,
}

impl Units {
    fn next(&self) -> i64 {
        self.first + (self.data.len() / UNIT_BYTES) as i64
    }
}

/// Accepted messages of one topic and type.
pub struct Count {
    /// Their topic.
    pub topic: Arc<Template>,
    /// Type of the first message of each request.
    pub message_type: i32,
    /// Their number.
    pub messages: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
    /// Their number by average size in their request (`Planner::size_bounds`).
    pub sizes: Vec<u64>,
}

/// The result.
#[derive(Default)]
pub struct Plan {
    /// Encoded records, one behind the other.
    pub data: Vec<u8>,
    /// Number of records.
    pub records: usize,
    /// Log offset of the last record.
    pub last: i64,
    /// Of each accepted request: the encoded answer.
    pub answers: Vec<Vec<u8>>,
    /// Of each accepted request: the log offset behind its last record.
    pub ends: Vec<i64>,
    /// New units by queue.
    pub units: Vec<Units>,
    /// Accepted requests by topic.
    pub turns: Vec<(Arc<Template>, u64)>,
    /// Accepted messages by topic and type.
    pub counts: Vec<Count>,
    /// The next request from the first refused one on that a plan may accept.
    pub resume: usize,
}

/// A topic during one plan.
struct Known {
    template: Arc<Template>,
    begin: u64,
    accepted: u64,
}

/// A request that is common; its messages have one topic.
struct Common<'a> {
    topic: usize,
    message_type: i32,
    messages: Vec<Sent<'a>>,
}

/// The fields of a record that come with its message.
struct Record<'a> {
    body: &'a [u8],
    /// The user's number.
    flag: u32,
    sys_flag: u32,
    born_ms: i64,
    born_host: &'a [u8],
    reconsume_times: u32,
    tag: &'a [u8],
    /// Encoded parts.
    properties: &'a [&'a [u8]],
}

impl Classic {
    /// Return the frame that answers a stored request.
    fn answer_to(
        &self,
        sent: &ClassicSend<'_>,
        id: &str,
        store_host: &[u8],
        position: i64,
        number: i64,
    ) -> Vec<u8> {
        let mut frame = vec![0; 8];
        let mut digits = [(); 3].map(|()| Digits::default());
        let [queue, offset, opaque] = &mut digits;
        let mut offset_id = Vec::with_capacity(32);
        for byte in store_host.iter().chain(&position.to_be_bytes()) {
            offset_id
                .extend([byte >> 4, byte & 15].map(|four| b"0123456789ABCDEF"[usize::from(four)]));
        }
        let values: [&[u8]; 5] = [
            id.as_bytes(),
            queue.of(i64::from(sent.queue_id)),
            &offset_id,
            offset.of(number),
            opaque.of(i64::from(sent.opaque)),
        ];
        frame.extend_from_slice(&self.answer[0]);
        for (value, part) in values.iter().zip(&self.answer[1..]) {
            frame.extend_from_slice(value);
            frame.extend_from_slice(part);
        }
        let header = frame.len() as u32 - 8;
        frame[..4].copy_from_slice(&(header + 4).to_be_bytes());
        frame[4..8].copy_from_slice(&header.to_be_bytes());
        frame
    }
}

/// Return the frame of a classic client.
fn frame_of<'a>(request: &Request<'a>) -> Option<&'a [u8]> {
    request.raw.filter(|_| request.frame)
}

struct Work<'p, L> {
    planner: &'p Planner,
    place: &'p Place,
    lookups: L,
    plan: Plan,
    topics: Vec<Option<Known>>,
    by_name: HashMap<String, usize>,
    queues: HashMap<(usize, u32), usize>,
}

impl Planner {
    /// Plan the requests from number `first` on.
    pub fn plan<L: Lookups>(
        &self,
        requests: &[Request<'_>],
        first: usize,
        place: &Place,
        lookups: L,
    ) -> Result<Plan, L::Error> {
        let mut work = Work {
            planner: self,
            place,
            lookups,
            plan: Plan::default(),
            topics: Vec::new(),
            by_name: HashMap::new(),
            queues: HashMap::new(),
        };
        let mut at = first;
        while at < requests.len() && !work.is_enough() && work.add(&requests[at])? {
            at += 1;
        }
        work.plan.resume = at;
        if at < requests.len() && !work.is_enough() {
            work.plan.resume = work.next_common(requests, at + 1)?;
        }
        Ok(work.finish())
    }
}

impl<L: Lookups> Work<'_, L> {
    fn is_enough(&self) -> bool {
        self.plan.data.len() >= BYTES_ENOUGH || self.plan.records >= RECORDS_ENOUGH
    }

    fn finish(mut self) -> Plan {
        self.plan.units.retain(|units| !units.data.is_empty());
        let topics = self.topics.into_iter().flatten();
        let accepted = topics.filter(|known| known.accepted > 0);
        self.plan.turns = accepted
            .map(|known| (known.template, known.accepted))
            .collect();
        self.plan
    }

    fn next_common(&mut self, requests: &[Request<'_>], from: usize) -> Result<usize, L::Error> {
        for (at, request) in requests.iter().enumerate().skip(from) {
            // Frames were looked at before they came here.
            if frame_of(request).is_some() || self.common(request)?.is_some() {
                return Ok(at);
            }
        }
        Ok(requests.len())
    }

    /// Return the messages of a request if all of them are common.
    fn common<'a>(&mut self, request: &Request<'a>) -> Result<Option<Common<'a>>, L::Error> {
        let Some(raw) = request.raw else {
            return Ok(None);
        };
        let max_body = self.planner.max_body;
        if request.born_host.len() != HOST_BYTES || self.place.store_host.len() != HOST_BYTES {
            return Ok(None);
        }
        let Ok(messages) = sent::messages(raw) else {
            return Ok(None);
        };
        if raw.len() > max_body && messages.len() > 1 {
            return Ok(None);
        }
        let name = messages[0].topic;
        let Some(topic) = self.topic(name)? else {
            return Ok(None);
        };
        let Some(known) = &self.topics[topic] else {
            return Ok(None);
        };
        let expected = known.template.message_type;
        let fits = |sent: &Sent<'_>| {
            sent.topic == name
                && sent.body.len() <= max_body
                && (expected == MIXED || expected == type_of(sent))
        };
        if !messages.iter().all(fits) {
            return Ok(None);
        }
        Ok(Some(Common {
            topic,
            message_type: type_of(&messages[0]),
            messages,
        }))
    }

    fn topic(&mut self, name: &[u8]) -> Result<Option<usize>, L::Error> {
        let Ok(name) = std::str::from_utf8(name) else {
            return Ok(None);
        };
        if let Some(&at) = self.by_name.get(name) {
            return Ok(Some(at));
        }
        let found = self.lookups.topic(name)?;
        let known = found.map(|(template, begin)| Known {
            template,
            begin,
            accepted: 0,
        });
        self.by_name.insert(name.to_owned(), self.topics.len());
        self.topics.push(known);
        Ok(Some(self.topics.len() - 1))
    }

    /// Add a request; return false if it is refused.
    fn add(&mut self, request: &Request<'_>) -> Result<bool, L::Error> {
        if let Some(frame) = frame_of(request) {
            return self.add_classic(frame, request.born_host);
        }
        let Some(common) = self.common(request)? else {
            return Ok(false);
        };
        let Some(known) = &self.topics[common.topic] else {
            return Ok(false);
        };
        let template = Arc::clone(&known.template);
        let turn = known.begin + known.accepted;
        let mut queues = Vec::with_capacity(common.messages.len());
        let mut size = 0;
        for sent in &common.messages {
            let queue_id = if sent.group.is_empty() {
                (turn % u64::from(template.queues)) as u32
            } else {
                fifo_queue(sent.group, template.queues)
            };
            let Some(queue) = self.queue(common.topic, &template, queue_id)? else {
                return Ok(false);
            };
            queues.push(queue);
            let born_ms = self.born_ms(sent);
            let properties = properties_bytes(&template, sent, request.peer, born_ms);
            if properties > PROPERTIES_MAX {
                return Ok(false);
            }
            size += record_bytes(&template, sent.body.len(), properties);
        }
        if self.end() + size as i64 > self.place.limit {
            return Ok(false);
        }
        self.plan.data.reserve(size);
        let mut answer = self.planner.answer_ok.clone();
        let mut bytes = 0;
        for (sent, queue) in common.messages.iter().zip(queues) {
            let born_ms = self.born_ms(sent);
            let mut digits = Digits::default();
            let record = Record {
                body: sent.body,
                flag: 0,
                sys_flag: if sent.gzip { SYS_COMPRESSED as u32 } else { 0 },
                born_ms,
                born_host: request.born_host,
                reconsume_times: 0,
                tag: sent.tag,
                properties: &properties(&template, sent, request.peer, digits.of(born_ms)),
            };
            let number = self.put(&template, queue, &record);
            self.put_receipt(&mut answer, sent.id, number as u64);
            bytes += sent.body.len() as u64;
        }
        let messages = common.messages.len();
        self.plan.records += messages;
        self.plan.answers.push(answer);
        self.plan.ends.push(self.end());
        let message_type = match template.message_type {
            MIXED => common.message_type,
            expected => expected,
        };
        self.count(template, message_type, messages as u64, bytes);
        if let Some(known) = &mut self.topics[common.topic] {
            known.accepted += 1;
        }
        Ok(true)
    }

    /// Add the request of a classic client; return false if it is refused.
    fn add_classic(&mut self, frame: &[u8], born_host: &[u8]) -> Result<bool, L::Error> {
        let planner = self.planner;
        let Some(classic) = &planner.classic else {
            return Ok(false);
        };
        if born_host.len() != HOST_BYTES || self.place.store_host.len() != HOST_BYTES {
            return Ok(false);
        }
        let Some(sent) = ClassicSend::parse(frame) else {
            return Ok(false);
        };
        let Some(stored) = sent.stored(&classic.added, &classic.reserved) else {
            return Ok(false);
        };
        let Some(topic) = self.topic(sent.topic.as_bytes())? else {
            return Ok(false);
        };
        let Some(known) = &self.topics[topic] else {
            return Ok(false);
        };
        let template = Arc::clone(&known.template);
        let properties: usize = stored.parts.iter().map(|part| part.len()).sum();
        let size = record_bytes(&template, sent.body.len(), properties);
        if sent.body.len() > planner.max_body
            || sent.queue_id >= template.queues
            || properties > PROPERTIES_MAX
            || self.end() + size as i64 > self.place.limit
        {
            return Ok(false);
        }
        let Some(queue) = self.queue(topic, &template, sent.queue_id)? else {
            return Ok(false);
        };
        self.plan.data.reserve(size);
        let record = Record {
            body: sent.body,
            flag: sent.flag,
            sys_flag: sent.sys_flag & classic.kept_bits,
            born_ms: sent.born_ms,
            born_host,
            reconsume_times: sent.reconsume_times,
            tag: stored.tag.as_bytes(),
            properties: &stored.parts,
        };
        let number = self.put(&template, queue, &record);
        let answer = classic.answer_to(
            &sent,
            stored.id,
            &self.place.store_host,
            self.plan.last,
            number,
        );
        self.plan.records += 1;
        self.plan.answers.push(answer);
        self.plan.ends.push(self.end());
        self.count(template, NORMAL, 1, sent.body.len() as u64);
        Ok(true)
    }

    fn end(&self) -> i64 {
        self.place.begin + self.plan.data.len() as i64
    }

    fn born_ms(&self, sent: &Sent<'_>) -> i64 {
        if sent.born_ms == 0 {
            self.place.wall_ms
        } else {
            sent.born_ms
        }
    }

    /// Return the place of a queue in the plan; `None` for an unknown queue.
    fn queue(
        &mut self,
        topic: usize,
        template: &Arc<Template>,
        queue_id: u32,
    ) -> Result<Option<usize>, L::Error> {
        if let Some(&at) = self.queues.get(&(topic, queue_id)) {
            return Ok(Some(at));
        }
        let Some(first) = self.lookups.next_offset(&template.name, queue_id)? else {
            return Ok(None);
        };
        self.plan.units.push(Units {
            topic: Arc::clone(template),
            queue_id,
            first,
            data: Vec::new(),
        });
        let at = self.plan.units.len() - 1;
        self.queues.insert((topic, queue_id), at);
        Ok(Some(at))
    }

    /// Append a record and its unit; return its queue offset.
    fn put(&mut self, template: &Template, queue: usize, record: &Record<'_>) -> i64 {
        let offset = self.end();
        let properties_bytes: usize = record.properties.iter().map(|part| part.len()).sum();
        let size = record_bytes(template, record.body.len(), properties_bytes) as u32;
        let units = &mut self.plan.units[queue];
        let number = units.next();
        let code = i64::from(java_hash(record.tag));
        put_unit(&mut units.data, offset, size as i32, code);
        let mut crc = Crc::new();
        crc.update(record.body);
        let name = template.name.as_bytes();
        let short = name.len() <= TOPIC_BYTES_V1_MAX;
        let magic = if short { MAGIC_V1 } else { MAGIC_V2 };
        let queue_id = units.queue_id;
        let out = &mut self.plan.data;
        out.extend_from_slice(&size.to_be_bytes());
        out.extend_from_slice(&magic.to_be_bytes());
        out.extend_from_slice(&(crc.sum() & CRC_MASK).to_be_bytes());
        out.extend_from_slice(&queue_id.to_be_bytes());
        out.extend_from_slice(&record.flag.to_be_bytes());
        out.extend_from_slice(&number.to_be_bytes());
        out.extend_from_slice(&offset.to_be_bytes());
        out.extend_from_slice(&record.sys_flag.to_be_bytes());
        out.extend_from_slice(&record.born_ms.to_be_bytes());
        out.extend_from_slice(record.born_host);
        out.extend_from_slice(&self.place.store_ms.to_be_bytes());
        out.extend_from_slice(&self.place.store_host);
        out.extend_from_slice(&record.reconsume_times.to_be_bytes());
        out.extend_from_slice(&[0; 8]); // prepared transaction offset
        out.extend_from_slice(&(record.body.len() as u32).to_be_bytes());
        out.extend_from_slice(record.body);
        if short {
            out.push(name.len() as u8);
        } else {
            out.extend_from_slice(&(name.len() as u16).to_be_bytes());
        }
        out.extend_from_slice(name);
        out.extend_from_slice(&(properties_bytes as u16).to_be_bytes());
        for part in record.properties {
            out.extend_from_slice(part);
        }
        self.plan.last = offset;
        number
    }

    fn put_receipt(&self, answer: &mut Vec<u8>, id: &[u8], number: u64) {
        let ok = &self.planner.answer_ok;
        let named = varint_bytes(id.len() as u64) + id.len();
        let size = ok.len() + 3 + 2 * named + varint_bytes(number);
        answer.push(0x12);
        put_varint(answer, size as u64);
        answer.extend_from_slice(ok);
        for key in [0x12, 0x1A] {
            answer.push(key);
            put_varint(answer, id.len() as u64);
            answer.extend_from_slice(id);
        }
        answer.push(0x20);
        put_varint(answer, number);
    }

    fn count(&mut self, topic: Arc<Template>, message_type: i32, messages: u64, bytes: u64) {
        let bounds = &self.planner.size_bounds;
        let slot = bounds.iter().take_while(|&&b| b * messages < bytes).count();
        let counts = &mut self.plan.counts;
        let known = counts.iter().position(|count| {
            Arc::ptr_eq(&count.topic, &topic) && count.message_type == message_type
        });
        let at = known.unwrap_or_else(|| {
            counts.push(Count {
                topic,
                message_type,
                messages: 0,
                bytes: 0,
                sizes: vec![0; bounds.len() + 1],
            });
            counts.len() - 1
        });
        counts[at].messages += messages;
        counts[at].bytes += bytes;
        counts[at].sizes[slot] += messages;
    }
}

fn type_of(sent: &Sent<'_>) -> i32 {
    if sent.group.is_empty() {
        NORMAL
    } else {
        FIFO
    }
}

fn record_bytes(template: &Template, body: usize, properties: usize) -> usize {
    let name = template.name.len();
    let prefix = if name <= TOPIC_BYTES_V1_MAX { 1 } else { 2 };
    FIXED_BYTES + body + prefix + name + 2 + properties
}

/// The parts of the encoded properties, in the order of Apache's hash map.
fn properties<'a>(
    template: &'a Template,
    sent: &Sent<'a>,
    peer: &'a str,
    born_ms: &'a [u8],
) -> [&'a [u8]; 25] {
    let pair = |name: &'static [u8], value: &'a [u8]| -> [&'a [u8]; 3] {
        if value.is_empty() {
            [b""; 3]
        } else {
            [name, value, b"\x02"]
        }
    };
    let host = if sent.host.is_empty() {
        peer.as_bytes()
    } else {
        sent.host
    };
    let group = pair(b"__SHARDINGKEY\x01", sent.group);
    let tag = pair(b"TAGS\x01", sent.tag);
    let trace = pair(b"TRACE_CONTEXT\x01", sent.trace);
    let key = pair(b"KEYS\x01", sent.key);
    [
        &template.before,
        group[0],
        group[1],
        group[2],
        b"UNIQ_KEY\x01",
        sent.id,
        &template.between,
        tag[0],
        tag[1],
        tag[2],
        trace[0],
        trace[1],
        trace[2],
        b"__BORNHOST\x01",
        host,
        b"\x02",
        b"BORN_TIMESTAMP\x01",
        born_ms,
        b"\x02",
        key[0],
        key[1],
        key[2],
        b"TRACE_ON\x01",
        b"true",
        b"\x02",
    ]
}

fn properties_bytes(template: &Template, sent: &Sent<'_>, peer: &str, born_ms: i64) -> usize {
    let parts = properties(template, sent, peer, b"");
    let mut digits = Digits::default();
    parts.iter().map(|part| part.len()).sum::<usize>() + digits.of(born_ms).len()
}

/// A number in decimal, without an allocation.
#[derive(Default)]
struct Digits {
    buffer: [u8; 20],
}

impl Digits {
    fn of(&mut self, number: i64) -> &[u8] {
        let mut at = self.buffer.len();
        let mut rest = number.unsigned_abs();
        loop {
            at -= 1;
            self.buffer[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        if number < 0 {
            at -= 1;
            self.buffer[at] = b'-';
        }
        &self.buffer[at..]
    }
}

/// Java's `String.hashCode` of ASCII text.
pub fn java_hash(text: &[u8]) -> i32 {
    text.iter().fold(0i32, |hash, &byte| {
        hash.wrapping_mul(31).wrapping_add(i32::from(byte))
    })
}

/// The queue of a message group: Guava's consistent hash over Java's string hash.
pub fn fifo_queue(group: &[u8], queues: u32) -> u32 {
    let mut state = i64::from(java_hash(group)) as u64;
    let mut candidate = 0i64;
    loop {
        state = state
            .wrapping_mul(2_862_933_555_777_941_757)
            .wrapping_add(1);
        let fraction = ((state >> 33) + 1) as f64 / (1u64 << 31) as f64;
        let following = ((candidate + 1) as f64 / fraction) as i64;
        if !(0..i64::from(queues)).contains(&following) {
            return candidate as u32;
        }
        candidate = following;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chance::{rounds, Chance};
    use crate::store::stored_record::{Properties, StoredRecord};

    struct Broker {
        template: Arc<Template>,
        queues: u32,
    }

    impl Lookups for &Broker {
        type Error = ();

        fn topic(&mut self, name: &str) -> Result<Option<(Arc<Template>, u64)>, ()> {
            Ok((name == self.template.name).then(|| (Arc::clone(&self.template), 5)))
        }

        fn next_offset(&mut self, _topic: &str, queue_id: u32) -> Result<Option<i64>, ()> {
            Ok((queue_id < self.queues).then_some(i64::from(queue_id) * 100))
        }
    }

    fn broker(queues: u32) -> Broker {
        let template = Template {
            name: "orders".into(),
            message_type: NORMAL,
            queues: 4,
            before: b"MSG_REGION\x01r\x02".to_vec(),
            between: b"\x02CLUSTER\x01c\x02".to_vec(),
        };
        Broker {
            template: Arc::new(template),
            queues,
        }
    }

    fn planner() -> Planner {
        Planner {
            max_body: 4 << 20,
            answer_ok: b"\x0a\x02ok".to_vec(),
            size_bounds: vec![1, 10],
            classic: Some(Classic {
                added: vec![("MSG_REGION".into(), "r".into())],
                reserved: vec!["DELAY".into()],
                kept_bits: 0x703,
                answer: ["id=", ",queue=", ",at=", ",number=", ",opaque=", "."]
                    .map(|part| part.as_bytes().to_vec()),
            }),
        }
    }

    fn field(number: u8, data: &[u8]) -> Vec<u8> {
        let mut out = vec![number << 3 | 2];
        put_varint(&mut out, data.len() as u64);
        out.extend_from_slice(data);
        out
    }

    fn raw(topic: &[u8], body: &[u8]) -> Vec<u8> {
        let parts = [
            field(1, &field(2, topic)),
            field(3, &field(3, b"01FD")),
            field(4, body),
        ];
        field(1, &parts.concat())
    }

    fn place(limit: i64) -> Place {
        Place {
            begin: 1_000,
            limit,
            store_ms: 7,
            wall_ms: 8,
            store_host: vec![0; 8],
        }
    }

    fn request(raw: Option<&[u8]>) -> Request<'_> {
        Request {
            raw,
            frame: false,
            peer: "10.0.0.2",
            born_host: &[0; 8],
        }
    }

    fn classic(raw: &[u8]) -> Request<'_> {
        Request {
            frame: true,
            ..request(Some(raw))
        }
    }

    #[test]
    fn requests_are_planned_in_order_up_to_the_first_other_one() {
        let (good, other) = (raw(b"orders", b"body"), raw(b"unknown", b"body"));
        let requests: Vec<_> = [
            Some(&good[..]),
            Some(&good),
            Some(&other),
            None,
            Some(&good),
        ]
        .into_iter()
        .map(request)
        .collect();
        let plan = planner()
            .plan(&requests, 0, &place(10_000), &broker(4))
            .unwrap();
        assert_eq!((plan.records, plan.ends.len(), plan.resume), (2, 2, 4));
        assert_eq!(plan.ends[1], 1_000 + plan.data.len() as i64);
        let queues: Vec<_> = plan.units.iter().map(|u| (u.queue_id, u.first)).collect();
        assert_eq!(queues, [(1, 100), (2, 200)]);
        assert_eq!(plan.turns[0].1, 2);
        let count = &plan.counts[0];
        assert_eq!((count.messages, count.bytes), (2, 8));
        assert_eq!(count.sizes, [0, 2, 0]);
        let size = u32::from_be_bytes(plan.data[..4].try_into().unwrap());
        assert_eq!(i64::from(size), plan.ends[0] - 1_000);
        assert_eq!(plan.last, plan.ends[0]);
    }

    #[test]
    fn a_request_that_does_not_fit_or_has_no_queue_leaves_nothing() {
        let good = raw(b"orders", b"body");
        let requests = [request(Some(&good))];
        for (limit, queues) in [(1_050, 4), (10_000, 1)] {
            let plan = planner()
                .plan(&requests, 0, &place(limit), &broker(queues))
                .unwrap();
            assert_eq!((plan.records, plan.resume), (0, 1));
            assert!(plan.data.is_empty() && plan.units.is_empty() && plan.turns.is_empty());
        }
    }

    #[test]
    fn changed_requests_leave_whole_records_or_nothing() {
        for seed in rounds() {
            let mut chance = Chance::new(seed);
            let raws: Vec<_> = (0..1 + chance.below(4))
                .map(|_| {
                    let mut one = raw(b"orders", &[b"b", &chance.bytes(30)[..]].concat());
                    chance.mutate(&mut one);
                    one
                })
                .collect();
            let requests: Vec<_> = raws.iter().map(|one| request(Some(one))).collect();
            let plan = planner()
                .plan(&requests, 0, &place(3_000), &broker(4))
                .unwrap();
            assert_eq!(plan.answers.len(), plan.ends.len(), "seed {seed}");
            let (mut at, mut records) = (0, 0);
            while at < plan.data.len() {
                let size = u32::from_be_bytes(plan.data[at..at + 4].try_into().unwrap()) as usize;
                let found = StoredRecord::parse(&plan.data[at..at + size]);
                let found = found.unwrap_or_else(|| panic!("seed {seed}: no record"));
                assert!(Properties::parse(found.properties).is_some(), "seed {seed}");
                at += size;
                records += 1;
            }
            let end = 1_000 + plan.data.len() as i64;
            assert_eq!(
                (at, records),
                (plan.data.len(), plan.records),
                "seed {seed}"
            );
            assert!(end <= 3_000 && plan.ends.last().is_none_or(|last| *last == end));
            let units: usize = plan.units.iter().map(|units| units.data.len()).sum();
            assert_eq!(units, UNIT_BYTES * plan.records, "seed {seed}");
        }
    }

    #[test]
    fn a_frame_of_a_classic_client_is_planned_beside_requests_of_grpc() {
        use crate::broker::classic_send::tests::{frame, header};
        let own = raw(b"orders", b"body");
        let frames = [
            frame(&header(""), b"one"),
            frame(&header("").replace("KEYS", "DELAY"), b"two"),
            frame(&header("").replace(r#""e":"2""#, r#""e":"4""#), b"three"),
        ];
        let requests = [
            request(Some(&own)),
            classic(&frames[0]),
            request(Some(&own)),
        ];
        let plan = planner()
            .plan(&requests, 0, &place(10_000), &broker(4))
            .unwrap();
        assert_eq!((plan.records, plan.resume), (3, 3));
        let answer = String::from_utf8(plan.answers[1][8..].to_vec()).unwrap();
        let at = format!("{:032X}", plan.ends[0]);
        let wanted = format!("id=id1,queue=2,at={at},number=200,opaque=12.");
        assert_eq!(answer, wanted);
        assert_eq!(
            plan.answers[1][..4],
            (4 + wanted.len() as u32).to_be_bytes()
        );
        // The turn of the queues is that of gRPC requests.
        assert_eq!(plan.turns[0].1, 2);
        let first = (plan.ends[0] - 1_000) as usize;
        let second = (plan.ends[1] - 1_000) as usize;
        let record = StoredRecord::parse(&plan.data[first..second]).unwrap();
        let properties = Properties::parse(record.properties).unwrap();
        assert_eq!((record.queue_id, record.queue_offset), (2, 200));
        assert_eq!(properties.get(b"MSG_REGION"), Some(&b"r"[..]));
        let as_grpc = planner()
            .plan(&[request(Some(&frames[0]))], 0, &place(10_000), &broker(4))
            .unwrap();
        assert_eq!(
            as_grpc.records, 0,
            "a request of gRPC is not read as a frame"
        );
        for other in &frames[1..] {
            let plan = planner()
                .plan(&[classic(other)], 0, &place(10_000), &broker(4))
                .unwrap();
            assert_eq!((plan.records, plan.resume), (0, 1));
        }
    }

    #[test]
    fn a_plan_ends_when_it_has_enough_bytes() {
        let good = raw(b"orders", &[7; 50_000]);
        let requests = [0; 4].map(|_| request(Some(&good)));
        let plan = planner()
            .plan(&requests, 0, &place(1 << 30), &broker(4))
            .unwrap();
        assert_eq!((plan.records, plan.resume), (2, 2));
    }

    #[test]
    fn numbers_and_hashes_are_those_of_java() {
        let mut digits = Digits::default();
        assert_eq!(digits.of(i64::MIN), b"-9223372036854775808");
        assert_eq!(digits.of(0), b"0");
        assert_eq!(java_hash(b"TagA"), 2_598_919);
        assert_eq!(java_hash(b""), 0);
        let queues = [2, 8, 16].map(|queues| fifo_queue(b"order-17", queues));
        assert_eq!(queues, [1, 3, 3]);
        assert_eq!([1, 8, 16].map(|n| fifo_queue(b"group", n)), [0, 0, 8]);
    }
}
