//! The messages of a SendMessage request, if all of them are common ones.
//!
//! A common message has no user property, delivery time, priority, lite topic or transaction; its
//! id, tag, keys, group, trace context and host are printable ASCII without spaces. Other messages,
//! unknown or repeated fields, and everything that cannot be decoded are left to Python
//! (`broker/sending/python_planner.py`), which makes the same records of common messages.

use crate::wire::protobuf::{Fields, Unusual, Value};

/// Messages of a request.
const MESSAGES_MAX: usize = 1_000;
/// Bytes of a request; below the limit of the door for SendMessage.
const REQUEST_BYTES_MAX: usize = 4 << 20;
/// Characters of id, tag, keys, group, trace context and host together.
const TEXT_MAX: usize = 4_096;
/// Bytes of a message group.
const GROUP_MAX: usize = 63;
const TRANSACTION: i32 = 4;
const GZIP: i32 = 2;
/// Times that a protobuf Timestamp can have.
const TIME_MIN_MS: i128 = -62_135_596_800_000;
const TIME_MAX_MS: i128 = 253_402_300_799_999;

/// A common message.
#[derive(Debug, Default, PartialEq)]
pub struct Sent<'a> {
    /// Name of the topic.
    pub topic: &'a [u8],
    /// Not empty.
    pub body: &'a [u8],
    /// Not empty.
    pub id: &'a [u8],
    /// May be empty, as the following ones.
    pub tag: &'a [u8],
    /// At most one key.
    pub key: &'a [u8],
    /// Message group.
    pub group: &'a [u8],
    /// Trace context.
    pub trace: &'a [u8],
    /// The sender's host.
    pub host: &'a [u8],
    /// 0 if the client sent no time.
    pub born_ms: i64,
    /// The body is compressed.
    pub gzip: bool,
}

/// Return the messages of a request.
pub fn messages(raw: &[u8]) -> Result<Vec<Sent<'_>>, Unusual> {
    if raw.len() > REQUEST_BYTES_MAX {
        return Err(Unusual);
    }
    let mut found = Vec::new();
    let mut fields = Fields::of(raw);
    while let Some(field) = fields.next()? {
        let (1, Value::Bytes(data)) = field else {
            return Err(Unusual);
        };
        if found.len() == MESSAGES_MAX {
            return Err(Unusual);
        }
        found.push(message(data)?);
    }
    if found.is_empty() {
        return Err(Unusual);
    }
    Ok(found)
}

/// Return the number of messages of a request; of its readable part if it is damaged.
pub fn count(raw: &[u8]) -> usize {
    let mut fields = Fields::of(raw);
    let mut count = 0;
    while let Ok(Some((number, _))) = fields.next() {
        count += usize::from(number == 1);
    }
    count
}

/// Numbers of the fields that were read; a repeated one is unusual.
#[derive(Default)]
struct Seen(u32);

impl Seen {
    fn add(&mut self, number: u32) -> Result<(), Unusual> {
        if number > 31 || self.0 >> number & 1 == 1 {
            return Err(Unusual);
        }
        self.0 |= 1 << number;
        Ok(())
    }
}

fn message(data: &[u8]) -> Result<Sent<'_>, Unusual> {
    let mut sent = Sent::default();
    let mut seen = Seen::default();
    let mut fields = Fields::of(data);
    while let Some((number, value)) = fields.next()? {
        seen.add(number)?;
        match (number, value) {
            (1, Value::Bytes(data)) => sent.topic = topic(data)?,
            (3, Value::Bytes(data)) => system_properties(data, &mut sent)?,
            (4, Value::Bytes(data)) => sent.body = data,
            _ => return Err(Unusual),
        }
    }
    let texts = [
        sent.id, sent.tag, sent.key, sent.group, sent.trace, sent.host,
    ];
    let length: usize = texts.iter().map(|text| text.len()).sum();
    let plain = texts
        .iter()
        .all(|text| text.iter().all(|byte| (0x21..0x7F).contains(byte)));
    let common = !sent.body.is_empty()
        && !sent.id.is_empty()
        && length < TEXT_MAX
        && plain
        && !sent.tag.contains(&b'|')
        && sent.group.len() <= GROUP_MAX;
    if common {
        Ok(sent)
    } else {
        Err(Unusual)
    }
}

fn topic(data: &[u8]) -> Result<&[u8], Unusual> {
    let mut name: &[u8] = b"";
    let mut seen = Seen::default();
    let mut fields = Fields::of(data);
    while let Some((number, value)) = fields.next()? {
        seen.add(number)?;
        match (number, value) {
            (1, Value::Bytes(data)) => text(data)?, // the namespace is not used
            (2, Value::Bytes(data)) => name = data,
            _ => return Err(Unusual),
        }
    }
    text(name)?;
    Ok(name)
}

fn text(data: &[u8]) -> Result<(), Unusual> {
    std::str::from_utf8(data).map(|_| ()).map_err(|_| Unusual)
}

fn system_properties<'a>(data: &'a [u8], sent: &mut Sent<'a>) -> Result<(), Unusual> {
    let mut seen = Seen::default();
    let mut fields = Fields::of(data);
    while let Some((number, value)) = fields.next()? {
        seen.add(number)?;
        match (number, value) {
            (1, Value::Bytes(data)) => sent.tag = data,
            (2, Value::Bytes(data)) if !data.is_empty() => sent.key = data,
            (3, Value::Bytes(data)) => sent.id = data,
            (4, Value::Bytes(data)) => digest(data)?,
            (5, Value::Number(encoding)) => sent.gzip = encoding as i32 == GZIP,
            (6, Value::Number(kind)) if kind as i32 != TRANSACTION => {}
            (7, Value::Bytes(data)) => sent.born_ms = timestamp_ms(data)?,
            (8, Value::Bytes(data)) => sent.host = data,
            // Fields of delivered messages and of transactions: not used.
            (9 | 15 | 19, Value::Bytes(data)) => timestamp(data).map(|_| ())?,
            (10 | 12, Value::Bytes(data)) => text(data)?,
            (13 | 14 | 16, Value::Number(_)) => {}
            (17, Value::Bytes(data)) => sent.group = data,
            (18, Value::Bytes(data)) => sent.trace = data,
            (20, Value::Bytes(data)) => dead_letter_queue(data)?,
            (21, Value::Bytes(b"")) => {}
            _ => return Err(Unusual),
        }
    }
    Ok(())
}

fn digest(data: &[u8]) -> Result<(), Unusual> {
    let mut seen = Seen::default();
    let mut fields = Fields::of(data);
    while let Some((number, value)) = fields.next()? {
        seen.add(number)?;
        match (number, value) {
            (1, Value::Number(_)) => {}
            (2, Value::Bytes(data)) => text(data)?,
            _ => return Err(Unusual),
        }
    }
    Ok(())
}

fn dead_letter_queue(data: &[u8]) -> Result<(), Unusual> {
    let mut seen = Seen::default();
    let mut fields = Fields::of(data);
    while let Some((number, value)) = fields.next()? {
        seen.add(number)?;
        match (number, value) {
            (1 | 2, Value::Bytes(data)) => text(data)?,
            _ => return Err(Unusual),
        }
    }
    Ok(())
}

/// A time or a duration.
fn timestamp(data: &[u8]) -> Result<(i64, i32), Unusual> {
    let mut found = (0, 0);
    let mut seen = Seen::default();
    let mut fields = Fields::of(data);
    while let Some((number, value)) = fields.next()? {
        seen.add(number)?;
        match (number, value) {
            (1, Value::Number(seconds)) => found.0 = seconds as i64,
            (2, Value::Number(nanos)) => found.1 = nanos as i32,
            _ => return Err(Unusual),
        }
    }
    Ok(found)
}

fn timestamp_ms(data: &[u8]) -> Result<i64, Unusual> {
    let (seconds, nanos) = timestamp(data)?;
    let time_ms = i128::from(seconds) * 1_000 + i128::from(nanos.div_euclid(1_000_000));
    if (TIME_MIN_MS..=TIME_MAX_MS).contains(&time_ms) {
        Ok(time_ms as i64)
    } else {
        Err(Unusual)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chance::{rounds, Chance};
    use crate::wire::wire_fields::put_varint;

    fn put(out: &mut Vec<u8>, number: u32, data: &[u8]) {
        put_varint(out, u64::from(number << 3 | 2));
        put_varint(out, data.len() as u64);
        out.extend_from_slice(data);
    }

    fn system(texts: &[(u32, &[u8])]) -> Vec<u8> {
        let mut out = Vec::new();
        for (number, data) in texts {
            put(&mut out, *number, data);
        }
        out
    }

    fn request(topic: &[u8], body: &[u8], system: &[u8]) -> Vec<u8> {
        let mut name = Vec::new();
        put(&mut name, 2, topic);
        let mut message = Vec::new();
        put(&mut message, 1, &name);
        put(&mut message, 3, system);
        put(&mut message, 4, body);
        let mut out = Vec::new();
        put(&mut out, 1, &message);
        out
    }

    #[test]
    fn a_common_message_is_accepted() {
        let born = b"\x08\x07\x10\xff\xa0\x94\xa4\x04"; // 7 s, 1,149,571,199 ns
        let system = system(&[(1, b"tag"), (2, b"key"), (3, b"id"), (7, born), (17, b"g")]);
        let raw = request(b"orders", b"body", &system);
        let found = messages(&raw).unwrap();
        let sent = Sent {
            topic: b"orders",
            body: b"body",
            id: b"id",
            tag: b"tag",
            key: b"key",
            group: b"g",
            born_ms: 8_149,
            ..Sent::default()
        };
        assert_eq!(found, [sent]);
        assert_eq!(count(&raw), 1);
        assert_eq!(count(&[&raw[..], &raw[..]].concat()), 2);
    }

    #[test]
    fn other_messages_are_refused() {
        let long = [b'a'; TEXT_MAX];
        let cases: [&[(u32, &[u8])]; 10] = [
            &[(3, b"")],
            &[(3, b"i d")],
            &[(3, b"id"), (1, b"a|b")],
            &[(3, b"id"), (2, b"")],
            &[(3, b"id"), (2, b"a"), (2, b"b")],
            &[(3, b"id"), (3, b"id")],
            &[(3, b"id"), (11, b"")],
            &[(3, b"id"), (21, b"lite")],
            &[(3, b"id"), (18, &long)],
            &[(3, b"id"), (17, &long[..GROUP_MAX + 1])],
        ];
        for case in cases {
            assert_eq!(
                messages(&request(b"t", b"body", &system(case))),
                Err(Unusual)
            );
        }
        let named = system(&[(3, b"id")]);
        assert_eq!(messages(&request(b"t", b"", &named)), Err(Unusual));
        assert_eq!(messages(&request(b"\xff", b"b", &named)), Err(Unusual));
        assert_eq!(messages(b""), Err(Unusual));
    }

    #[test]
    fn changed_bytes_never_break_the_promises() {
        for seed in rounds() {
            let mut chance = Chance::new(seed);
            let text = chance.bytes(9);
            let system = system(&[(3, b"01FD"), (1, &text), (18, b"trace"), (2, b"k")]);
            let mut raw = request(b"orders", b"body", &system);
            chance.mutate(&mut raw);
            for sent in messages(&raw).unwrap_or_default() {
                assert!(!sent.id.is_empty() && !sent.body.is_empty(), "seed {seed}");
                assert!(std::str::from_utf8(sent.topic).is_ok(), "seed {seed}");
                assert!(sent.tag.is_ascii() && sent.key.is_ascii(), "seed {seed}");
            }
            count(&raw);
        }
    }
}
