//! Messages for the SDK, from the responses of a ReceiveMessage or PullMessage stream.
//!
//! The fields are those of `client/message.py`; a test compares both. A response of another form
//! (a status, a compressed or large body, an SHA-1 digest, a repeated field, unknown fields) is left
//! to Python, which also refuses damaged ones.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

use crate::wire::md5::digests;
use crate::wire::protobuf::{Fields, Unusual, Value};

const GZIP: i32 = 2;
const MD5: i32 = 2;
const SHA1: i32 = 3;
/// Seconds of a timestamp whose milliseconds are an i64, with any i32 of nanoseconds.
const SECONDS_MAX: i64 = i64::MAX / 1_000 - 3;
/// Bytes of a body with a digest. Python digests larger ones faster, and lets other threads run.
const DIGESTED_MAX: usize = 64 << 10;

/// A received message.
#[derive(Debug, Default, PartialEq)]
struct Received<'a> {
    topic: &'a str,
    properties: Vec<(&'a str, &'a str)>,
    body: &'a [u8],
    tag: &'a str,
    keys: Vec<&'a str>,
    message_id: &'a str,
    digest: (i32, &'a str),
    message_type: i32,
    born_ms: i64,
    stored_ms: i64,
    deliver_ms: i64,
    receipt_handle: &'a str,
    queue_id: i32,
    queue_offset: i64,
    attempt: i32,
    group: &'a str,
    trace_context: &'a str,
    dead_letter_of: &'a str,
    priority: Option<i32>,
    lite_topic: &'a str,
}

/// Makes messages of responses.
#[pyclass(frozen, module = "cometmq_native.codec")]
pub struct MessageReader {
    message_class: Py<PyAny>,
    type_names: Vec<String>,
}

#[pymethods]
impl MessageReader {
    /// `message_class` makes a message of its fields in order; `type_names`: the names of the
    /// message types by number, the first for all other numbers.
    #[new]
    fn new(message_class: Py<PyAny>, type_names: Vec<String>) -> Self {
        Self {
            message_class,
            type_names,
        }
    }

    /// Return a message for each response, None for responses of another form.
    fn read<'py>(
        &self,
        py: Python<'py>,
        responses: Vec<Bound<'py, PyBytes>>,
        broker: &Bound<'py, PyString>,
        source: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        let read: Vec<_> = responses
            .iter()
            .map(|response| response_message(response.as_bytes()).ok())
            .collect();
        let bodies = read.iter().flatten().filter(|one| one.digest.0 == MD5);
        let bodies: Vec<_> = bodies.map(|one| one.body).collect();
        let mut digests = digests(&bodies).into_iter();
        let found = PyList::empty(py);
        for received in &read {
            match received {
                None => found.append(py.None())?,
                Some(received) => {
                    let corrupted = received.digest.0 == MD5
                        && !digests
                            .next()
                            .is_some_and(|digest| is_hex(received.digest.1, &digest));
                    found.append(self.message(py, received, broker, source, corrupted)?)?;
                }
            }
        }
        Ok(found)
    }
}

impl MessageReader {
    fn message<'py>(
        &self,
        py: Python<'py>,
        received: &Received<'_>,
        broker: &Bound<'py, PyString>,
        source: &Bound<'py, PyAny>,
        corrupted: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let properties = PyDict::new(py);
        for (key, value) in &received.properties {
            properties.set_item(key, value)?;
        }
        let kind = usize::try_from(received.message_type).ok();
        let kind = kind.and_then(|number| self.type_names.get(number));
        let kind = kind.or(self.type_names.first()).map_or("", String::as_str);
        let fields: [Bound<'py, PyAny>; 22] = [
            PyString::new(py, received.topic).into_any(),
            PyBytes::new(py, received.body).into_any(),
            PyString::new(py, received.message_id).into_any(),
            PyString::new(py, received.tag).into_any(),
            PyTuple::new(py, &received.keys)?.into_any(),
            properties.into_any(),
            PyString::new(py, received.group).into_any(),
            PyString::intern(py, kind).into_any(),
            received.attempt.max(1).into_pyobject(py)?.into_any(),
            broker.clone().into_any(),
            received.queue_id.into_pyobject(py)?.into_any(),
            received.queue_offset.into_pyobject(py)?.into_any(),
            received.born_ms.into_pyobject(py)?.into_any(),
            received.stored_ms.into_pyobject(py)?.into_any(),
            received.deliver_ms.into_pyobject(py)?.into_any(),
            received.priority.into_pyobject(py)?,
            PyString::new(py, received.trace_context).into_any(),
            PyString::new(py, received.dead_letter_of).into_any(),
            corrupted.into_pyobject(py)?.to_owned().into_any(),
            PyString::new(py, received.receipt_handle).into_any(),
            source.clone(),
            PyString::new(py, received.lite_topic).into_any(),
        ];
        self.message_class.bind(py).call1(PyTuple::new(py, fields)?)
    }
}

/// Whether a text has the digits of a digest.
fn is_hex(text: &str, digest: &[u8]) -> bool {
    let digit = |byte: u8| (byte as char).to_digit(16);
    text.len() == 2 * digest.len()
        && text.as_bytes().chunks(2).zip(digest).all(|(pair, &byte)| {
            digit(pair[0]) == Some(u32::from(byte >> 4))
                && digit(pair[1]) == Some(u32::from(byte & 15))
        })
}

/// Read a response that has a message.
fn response_message(data: &[u8]) -> Result<Received<'_>, Unusual> {
    let mut fields = Fields::of(data);
    let Some((2, Value::Bytes(message))) = fields.next()? else {
        return Err(Unusual);
    };
    if fields.next()?.is_some() {
        return Err(Unusual);
    }
    let mut found = Received::default();
    let mut once = Once(0);
    let mut fields = Fields::of(message);
    while let Some((number, value)) = fields.next()? {
        let Value::Bytes(data) = value else {
            return Err(Unusual);
        };
        match number {
            2 => found.properties.push(property(data)?),
            1 => found.topic = resource_name(once.bytes(number, data)?)?,
            3 => read_system(&mut found, once.bytes(number, data)?)?,
            4 => found.body = once.bytes(number, data)?,
            _ => return Err(Unusual),
        }
    }
    if found.digest.0 == MD5 && found.body.len() > DIGESTED_MAX {
        return Err(Unusual);
    }
    Ok(found)
}

/// Read the system properties.
fn read_system<'a>(found: &mut Received<'a>, data: &'a [u8]) -> Result<(), Unusual> {
    let mut once = Once(0);
    let mut fields = Fields::of(data);
    while let Some((number, value)) = fields.next()? {
        if number != 2 {
            once.check(number)?;
        }
        match (number, value) {
            (1, Value::Bytes(data)) => found.tag = text(data)?,
            (2, Value::Bytes(data)) => found.keys.push(text(data)?),
            (3, Value::Bytes(data)) => found.message_id = text(data)?,
            (4, Value::Bytes(data)) => found.digest = digest(data)?,
            (5, Value::Number(encoding)) if encoding as i32 != GZIP => {}
            (6, Value::Number(number)) => found.message_type = number as i32,
            (7, Value::Bytes(data)) => found.born_ms = time_ms(data)?,
            (9, Value::Bytes(data)) => found.stored_ms = time_ms(data)?,
            (8 | 10, Value::Bytes(data)) => _ = text(data)?, // hosts
            (11, Value::Bytes(data)) => found.deliver_ms = time_ms(data)?,
            (12, Value::Bytes(data)) => found.receipt_handle = text(data)?,
            (13, Value::Number(number)) => found.queue_id = number as i32,
            (14, Value::Number(number)) => found.queue_offset = number as i64,
            (15 | 19, Value::Bytes(data)) => _ = time_ms(data)?, // durations
            (16, Value::Number(number)) => found.attempt = number as i32,
            (17, Value::Bytes(data)) => found.group = text(data)?,
            (18, Value::Bytes(data)) => found.trace_context = text(data)?,
            (20, Value::Bytes(data)) => found.dead_letter_of = texts(data)?[0],
            (21, Value::Bytes(data)) => found.lite_topic = text(data)?,
            (22, Value::Number(number)) => found.priority = Some(number as i32),
            _ => return Err(Unusual),
        }
    }
    Ok(())
}

/// The numbers of the fields that occurred.
struct Once(u32);

impl Once {
    /// Refuse a second field of this number, and numbers that no message has.
    fn check(&mut self, number: u32) -> Result<(), Unusual> {
        let bit = 1u32.checked_shl(number).ok_or(Unusual)?;
        if self.0 & bit != 0 {
            return Err(Unusual);
        }
        self.0 |= bit;
        Ok(())
    }

    fn bytes<'a>(&mut self, number: u32, data: &'a [u8]) -> Result<&'a [u8], Unusual> {
        self.check(number).map(|()| data)
    }
}

fn text(data: &[u8]) -> Result<&str, Unusual> {
    std::str::from_utf8(data).map_err(|_| Unusual)
}

/// The text fields 1 and 2 of a message that has no other.
fn texts(data: &[u8]) -> Result<[&str; 2], Unusual> {
    let mut found = [""; 2];
    let mut once = Once(0);
    let mut fields = Fields::of(data);
    while let Some(field) = fields.next()? {
        let (number @ (1 | 2), Value::Bytes(data)) = field else {
            return Err(Unusual);
        };
        found[number as usize - 1] = text(once.bytes(number, data)?)?;
    }
    Ok(found)
}

fn property(data: &[u8]) -> Result<(&str, &str), Unusual> {
    texts(data).map(|[key, value]| (key, value))
}

fn resource_name(data: &[u8]) -> Result<&str, Unusual> {
    texts(data).map(|[_namespace, name]| name)
}

fn digest(data: &[u8]) -> Result<(i32, &str), Unusual> {
    let mut found = (0, "");
    let mut once = Once(0);
    let mut fields = Fields::of(data);
    while let Some((number, value)) = fields.next()? {
        once.check(number)?;
        match (number, value) {
            (1, Value::Number(kind)) if kind as i32 != SHA1 => found.0 = kind as i32,
            (2, Value::Bytes(data)) => found.1 = text(data)?,
            _ => return Err(Unusual),
        }
    }
    Ok(found)
}

/// Milliseconds of a Timestamp or a Duration, rounded down.
fn time_ms(data: &[u8]) -> Result<i64, Unusual> {
    let (mut seconds, mut nanos) = (0i64, 0i32);
    let mut once = Once(0);
    let mut fields = Fields::of(data);
    while let Some((number, value)) = fields.next()? {
        once.check(number)?;
        match (number, value) {
            (1, Value::Number(number)) => seconds = number as i64,
            (2, Value::Number(number)) => nanos = number as i32,
            _ => return Err(Unusual),
        }
    }
    if !(-SECONDS_MAX..=SECONDS_MAX).contains(&seconds) {
        return Err(Unusual);
    }
    Ok(seconds * 1_000 + i64::from(nanos.div_euclid(1_000_000)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chance::{rounds, Chance};
    use crate::wire::wire_fields::{put_field, put_timestamp};

    fn field(tag: &[u8], data: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        put_field(&mut out, tag, data);
        out
    }

    fn response(system: &[u8], body: &[u8]) -> Vec<u8> {
        let message = [
            field(b"\x0A", &field(b"\x12", b"topic")),
            field(
                b"\x12",
                &[field(b"\x0A", b"k"), field(b"\x12", b"v")].concat(),
            ),
            field(b"\x1A", system),
            field(b"\x22", body),
        ];
        field(b"\x12", &message.concat())
    }

    fn system() -> Vec<u8> {
        let mut out = [
            field(b"\x0A", b"tag"),
            field(b"\x12", b"key"),
            field(b"\x1A", b"ID"),
            b"\x28\x01\x30\x01".to_vec(),
        ]
        .concat();
        put_timestamp(&mut out, b"\x3A", 1_700_000_000_123);
        out.extend(b"\x68\x03\x70\x07\x80\x01\x02");
        out
    }

    #[test]
    fn a_response_gives_the_fields_of_its_message() {
        let raw = response(&system(), b"body");
        let expected = Received {
            topic: "topic",
            properties: vec![("k", "v")],
            body: b"body",
            tag: "tag",
            keys: vec!["key"],
            message_id: "ID",
            message_type: 1,
            born_ms: 1_700_000_000_123,
            queue_id: 3,
            queue_offset: 7,
            attempt: 2,
            ..Received::default()
        };
        assert_eq!(response_message(&raw), Ok(expected));
    }

    #[test]
    fn other_responses_are_left_to_python() {
        let good = response(&system(), b"body");
        let of = |extra: &[u8]| response(&[&system(), extra].concat(), b"body");
        for raw in [
            field(b"\x0A", b"\x08\x01"),   // a status
            [good.clone(), good].concat(), // two messages
            of(b"\x28\x01"),               // a repeated field
            of(b"\xB8\x01\x00"),           // an unknown field
            of(&field(b"\x42", b"\xFF")),  // damaged text in a field that is not used
            response(b"\x22\x02\x08\x02", &vec![0; DIGESTED_MAX + 1]),
            response(b"\x28\x02", b"body"),     // a compressed body
            response(b"\x22\x02\x08\x03", b""), // an SHA-1 digest
        ] {
            assert_eq!(response_message(&raw), Err(Unusual), "{raw:x?}");
        }
    }

    #[test]
    fn hex_digits_of_either_case_equal_their_bytes() {
        assert!(is_hex("0aF9", b"\x0a\xf9"));
        for text in ["", "0a", "0af9f9", "0af8", "0agf", "0a\u{e9}"] {
            assert!(!is_hex(text, b"\x0a\xf9"), "{text}");
        }
    }

    #[test]
    fn changed_responses_never_panic() {
        let good = response(&system(), b"body");
        for seed in rounds() {
            let mut raw = good.clone();
            Chance::new(seed).mutate(&mut raw);
            if let Ok(message) = response_message(&raw) {
                assert!(message.body.len() < raw.len(), "seed {seed}");
            }
        }
    }
}
