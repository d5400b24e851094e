//! SendMessage requests of the SDK, from its messages.
//!
//! The bytes are those of `client/outgoing.py`; a test compares both. That module checks the
//! messages: this one refuses only values of other types.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::{PyBytes, PyDict, PyTuple};

use crate::wire::wire_fields::{field_bytes, put_field, put_timestamp, put_varint, varint_bytes};

/// Body encoding: none.
const IDENTITY: &[u8] = b"\x28\x01";

/// The encoded fields that messages share which differ in body, id and queue.
#[derive(Default, Debug, PartialEq)]
struct Shared {
    /// Topic and user properties.
    before_system: Vec<u8>,
    /// System properties in front of the message id, between it and the queue id, after that.
    system: [Vec<u8>; 3],
}

/// Return the encoded request with these messages (`client.outgoing.Outgoing`) for a queue.
#[pyfunction]
pub fn send_request<'py>(
    py: Python<'py>,
    messages: Vec<Bound<'py, PyAny>>,
    queue_id: i32,
) -> PyResult<Bound<'py, PyBytes>> {
    let mut out = Vec::new();
    let mut shared = Shared::default();
    let mut shared_of: Option<Bound<'py, PyAny>> = None;
    for message in messages {
        let header = message.getattr(intern!(py, "header"))?;
        if !shared_of.as_ref().is_some_and(|known| known.is(&header)) {
            shared = read_header(&header)?;
            shared_of = Some(header);
        }
        let id: PyBackedStr = message.getattr(intern!(py, "message_id"))?.extract()?;
        let body: PyBackedBytes = message.getattr(intern!(py, "body"))?.extract()?;
        shared.put_message(&mut out, &id, queue_id, &body);
    }
    Ok(PyBytes::new(py, &out))
}

/// Read a `client.outgoing.Header`.
fn read_header(header: &Bound<'_, PyAny>) -> PyResult<Shared> {
    let py = header.py();
    let text = |name| -> PyResult<PyBackedStr> { header.getattr(name)?.extract() };
    let mut shared = Shared::default();

    let mut topic = Vec::new();
    put_text(&mut topic, 0x0A, &text(intern!(py, "namespace"))?);
    put_text(&mut topic, 0x12, &text(intern!(py, "topic"))?);
    put_field(&mut shared.before_system, b"\x0A", &topic);
    let properties = header.getattr(intern!(py, "properties"))?;
    for (key, value) in properties.cast::<PyDict>()? {
        let (key, value): (PyBackedStr, PyBackedStr) = (key.extract()?, value.extract()?);
        let mut entry = Vec::with_capacity(field_bytes(key.len()) + field_bytes(value.len()));
        put_field(&mut entry, b"\x0A", key.as_bytes());
        put_field(&mut entry, b"\x12", value.as_bytes());
        put_field(&mut shared.before_system, b"\x12", &entry);
    }

    let [before_id, before_queue, last] = &mut shared.system;
    put_text(before_id, 0x0A, &text(intern!(py, "tag"))?);
    for key in header.getattr(intern!(py, "keys"))?.cast::<PyTuple>()? {
        put_field(before_id, b"\x12", key.extract::<PyBackedStr>()?.as_bytes());
    }
    before_queue.extend_from_slice(IDENTITY);
    put_number(
        before_queue,
        b"\x30",
        header.getattr(intern!(py, "kind"))?.extract()?,
    );
    let born_ms: i64 = header.getattr(intern!(py, "born_ms"))?.extract()?;
    put_timestamp(before_queue, b"\x3A", born_ms.into());
    let delivery_ms: Option<i64> = header.getattr(intern!(py, "delivery_ms"))?.extract()?;
    if let Some(delivery_ms) = delivery_ms {
        put_timestamp(before_queue, b"\x5A", delivery_ms.into());
    }
    for (tag, name) in [
        (b"\x8A\x01", intern!(py, "group")),
        (b"\x92\x01", intern!(py, "trace_context")),
    ] {
        let value = text(name)?;
        if !value.is_empty() {
            put_field(last, tag, value.as_bytes());
        }
    }
    let priority: Option<i32> = header.getattr(intern!(py, "priority"))?.extract()?;
    if let Some(priority) = priority {
        last.extend_from_slice(b"\xB0\x01");
        put_varint(last, priority as u64);
    }
    Ok(shared)
}

impl Shared {
    fn put_message(&self, out: &mut Vec<u8>, id: &str, queue_id: i32, body: &[u8]) {
        let [before_id, before_queue, last] = &self.system;
        let mut system = Vec::with_capacity(
            before_id.len() + field_bytes(id.len()) + before_queue.len() + 11 + last.len(),
        );
        system.extend_from_slice(before_id);
        put_text(&mut system, 0x1A, id);
        system.extend_from_slice(before_queue);
        put_number(&mut system, b"\x68", queue_id);
        system.extend_from_slice(last);
        let size = self.before_system.len() + field_bytes(system.len()) + field_bytes(body.len());
        out.reserve(1 + varint_bytes(size as u64) + size);
        out.push(0x0A);
        put_varint(out, size as u64);
        out.extend_from_slice(&self.before_system);
        put_field(out, b"\x1A", &system);
        put_field(out, b"\x22", body);
    }
}

/// Append a text field, unless it is empty.
fn put_text(out: &mut Vec<u8>, tag: u8, text: &str) {
    if !text.is_empty() {
        put_field(out, &[tag], text.as_bytes());
    }
}

/// Append a number, unless it is 0.
fn put_number(out: &mut Vec<u8>, tag: &[u8], number: i32) {
    if number != 0 {
        out.extend_from_slice(tag);
        put_varint(out, i64::from(number) as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::protobuf::{Fields, Value};

    #[test]
    fn a_message_has_its_fields_in_the_order_of_their_numbers() {
        let shared = Shared {
            before_system: b"\x0A\x03\x12\x01t".to_vec(),
            system: [b"\x0A\x01x".to_vec(), IDENTITY.to_vec(), Vec::new()],
        };
        let mut out = Vec::new();
        shared.put_message(&mut out, "ID", 3, b"body");
        shared.put_message(&mut out, "ID", 0, &[0; 300]);
        let mut requests = Fields::of(&out);
        let mut next = || match requests.next() {
            Ok(Some((1, Value::Bytes(message)))) => message,
            other => panic!("{other:?}"),
        };
        assert_eq!(
            next(),
            b"\x0A\x03\x12\x01t\x1A\x0B\x0A\x01x\x1A\x02ID\x28\x01\x68\x03\x22\x04body"
        );
        assert!(
            next().starts_with(b"\x0A\x03\x12\x01t\x1A\x09\x0A\x01x\x1A\x02ID\x28\x01\x22\xAC\x02")
        );
    }
}
