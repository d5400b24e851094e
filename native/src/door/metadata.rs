//! Metadata of a call: the headers that Python requested by name.
//!
//! Clients send the same headers with each call, so a connection caches the last set and the Python
//! objects made of it; equal headers cost a comparison instead of a conversion.

use std::sync::{Arc, Mutex};

use http::header::{HeaderMap, HeaderName, HeaderValue};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyString, PyTuple};

/// The other end of a connection.
pub struct Peer {
    /// host:port.
    pub address: String,
    /// The connection uses TLS.
    pub tls: bool,
    /// The verified client certificate (DER), if client certificates are required.
    pub certificate: Option<Vec<u8>>,
}

/// The picked headers of a call, in the order of Python's list; the peer's address.
pub struct Metadata {
    values: Vec<Option<HeaderValue>>,
    peer: Arc<Peer>,
    python: PyOnceLock<Py<PyAny>>,
}

impl Metadata {
    /// The result of `prepare(address, tls, certificate, values)`, called once; each value is a str
    /// or None, in the order of the names.
    pub fn prepared<'py>(
        &self,
        py: Python<'py>,
        prepare: &Py<PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let made = self.python.get_or_try_init(py, || {
            let values = self.values.iter().map(|value| {
                value
                    .as_ref()
                    .map(|value| PyString::new(py, &String::from_utf8_lossy(value.as_bytes())))
            });
            let values = PyTuple::new(py, values.collect::<Vec<_>>())?;
            let certificate = self.peer.certificate.as_deref();
            let certificate = certificate.map(|der| PyBytes::new(py, der));
            prepare.call1(py, (&self.peer.address, self.peer.tls, certificate, values))
        })?;
        Ok(made.bind(py).clone())
    }
}

/// The cached metadata of one connection.
pub struct Remembered {
    peer: Arc<Peer>,
    last: Mutex<Option<Arc<Metadata>>>,
}

impl Remembered {
    /// Create an empty cache for this peer.
    pub fn new(peer: Peer) -> Self {
        Self {
            peer: Arc::new(peer),
            last: Mutex::new(None),
        }
    }

    /// Return the metadata for these headers.
    pub fn of(&self, headers: &HeaderMap, names: &[HeaderName]) -> Arc<Metadata> {
        let mut last = self
            .last
            .lock()
            .expect("a thread panicked while it held this lock");
        if let Some(known) = last.as_ref() {
            let same = names
                .iter()
                .zip(&known.values)
                .all(|(name, value)| headers.get(name) == value.as_ref());
            if same {
                return Arc::clone(known);
            }
        }
        let made = Arc::new(Metadata {
            values: names
                .iter()
                .map(|name| headers.get(name).cloned())
                .collect(),
            peer: Arc::clone(&self.peer),
            python: PyOnceLock::new(),
        });
        *last = Some(Arc::clone(&made));
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_headers_are_converted_once() {
        let names = [
            HeaderName::from_static("x-a"),
            HeaderName::from_static("x-b"),
        ];
        let remembered = Remembered::new(Peer {
            address: "1.2.3.4:5".into(),
            tls: false,
            certificate: None,
        });
        let mut headers = HeaderMap::new();
        headers.insert("x-a", HeaderValue::from_static("1"));
        headers.insert("x-other", HeaderValue::from_static("1"));
        let first = remembered.of(&headers, &names);
        headers.insert("x-other", HeaderValue::from_static("2"));
        assert!(Arc::ptr_eq(&first, &remembered.of(&headers, &names)));
        headers.insert("x-b", HeaderValue::from_static("2"));
        let second = remembered.of(&headers, &names);
        assert!(!Arc::ptr_eq(&first, &second));
        assert_eq!(second.values[1].as_ref().unwrap(), "2");
        assert!(first.values[1].is_none());
    }

    #[test]
    fn any_headers_are_picked_as_sent() {
        use crate::chance::{rounds, Chance};
        let names = [
            HeaderName::from_static("x-a"),
            HeaderName::from_static("x-b"),
        ];
        let remembered = Remembered::new(Peer {
            address: "1.2.3.4:5".into(),
            tls: false,
            certificate: None,
        });
        for seed in rounds() {
            let mut chance = Chance::new(seed);
            let mut headers = HeaderMap::new();
            for _ in 0..chance.below(4) {
                let name = &names[chance.below(2)];
                if let Ok(value) = HeaderValue::from_bytes(&chance.bytes(3)) {
                    if chance.below(2) == 0 {
                        headers.insert(name, value);
                    } else {
                        headers.append(name, value);
                    }
                }
            }
            let found = remembered.of(&headers, &names);
            for (name, value) in names.iter().zip(&found.values) {
                assert_eq!(headers.get(name), value.as_ref(), "seed {seed}");
            }
        }
    }
}
