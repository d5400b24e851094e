//! The limits of the door, set by Python, and the counters that Python can read.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyDict;

/// No time limit.
const LONG: Duration = Duration::from_secs(365 * 86_400);

/// Limits; no library default is used.
pub struct Options {
    /// Largest message of a client, after decompression.
    pub message_bytes: usize,
    /// The same for single methods, by path.
    pub method_bytes: HashMap<String, usize>,
    /// Largest header list.
    pub header_bytes: u32,
    /// Streams of one connection.
    pub streams: u32,
    /// Concurrent connections.
    pub connections: usize,
    /// New connections of one address in a second; 0: no limit.
    pub connection_rate: usize,
    /// Open connections of one address; those of this machine have no limit.
    pub address_connections: usize,
    /// Requests that may wait for Python.
    pub waiting: usize,
    /// A connection without calls is closed after this time.
    pub idle: Duration,
    /// Ping interval of a silent connection.
    pub keepalive: Duration,
    /// A connection whose ping is unanswered for this time is closed.
    pub keepalive_timeout: Duration,
    /// Time limit for the handshake of a connection.
    pub handshake: Duration,
    /// A connection that reads hardly any of its pending answers for this time is closed.
    pub stalled: Duration,
    /// Time limit for one message of a client, from its headers or its first byte on.
    pub request: Duration,
    /// Bytes of unfinished requests of one connection, and of all.
    pub unfinished: (usize, usize),
    /// Bytes of answers that one connection has not read, and that all have not read.
    pub unread: (usize, usize),
    /// Streams that a client may reset before they are processed (rapid reset).
    pub resets: usize,
    /// Hand connections of the remoting protocol over to Python.
    pub remoting: bool,
    /// Paths of the unary methods whose calls Python takes together.
    pub together: Vec<String>,
}

impl Options {
    /// Read a dict with these names; times in milliseconds. Limits that version 0.1.0 of the
    /// Python half does not send are optional.
    pub fn from_python(options: &Bound<'_, PyDict>) -> PyResult<Self> {
        let number = |name: &str| -> PyResult<u64> {
            options
                .get_item(name)?
                .ok_or_else(|| pyo3::exceptions::PyKeyError::new_err(name.to_owned()))?
                .extract()
        };
        let limit = |name: &str| -> PyResult<usize> {
            Ok(usize::try_from(number(name)?).unwrap_or(usize::MAX))
        };
        let known = |name: &str| options.contains(name);
        let budget = |own: &str, all: &str| -> PyResult<(usize, usize)> {
            if known(own)? {
                Ok((limit(own)?, limit(all)?))
            } else {
                Ok((usize::MAX, usize::MAX))
            }
        };
        let narrow =
            |name: &str| -> PyResult<u32> { Ok(u32::try_from(number(name)?).unwrap_or(u32::MAX)) };
        let time = |name: &str| -> PyResult<Duration> { Ok(Duration::from_millis(number(name)?)) };
        Ok(Self {
            header_bytes: narrow("header_bytes")?,
            streams: narrow("streams")?,
            connections: limit("connections")?,
            connection_rate: if known("connection_rate")? {
                limit("connection_rate")?
            } else {
                0
            },
            address_connections: if known("address_connections")? {
                limit("address_connections")?
            } else {
                usize::MAX
            },
            waiting: limit("waiting")?,
            idle: time("idle_ms")?,
            keepalive: time("keepalive_ms")?,
            keepalive_timeout: time("keepalive_timeout_ms")?,
            handshake: time("handshake_ms")?,
            stalled: time("stalled_ms")?,
            message_bytes: limit("message_bytes")?,
            method_bytes: match options.get_item("method_bytes")? {
                Some(limits) => limits.extract()?,
                None => HashMap::new(),
            },
            request: if known("request_ms")? {
                time("request_ms")?
            } else {
                LONG
            },
            unfinished: budget("unfinished_connection_bytes", "unfinished_bytes")?,
            unread: budget("unread_connection_bytes", "unread_bytes")?,
            resets: limit("resets")?,
            remoting: known("remoting")? && number("remoting")? != 0,
            together: match options.get_item("together")? {
                Some(paths) => paths.extract()?,
                None => Vec::new(),
            },
        })
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters since the start, and gauges.
        #[derive(Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: Counter,)*
        }

        impl Counters {
            /// Return all counters as a dict.
            pub fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
                let dict = PyDict::new(py);
                $(dict.set_item(stringify!($name), self.$name.get())?;)*
                Ok(dict)
            }
        }
    };
}

counters! {
    /// Open connections.
    connections,
    /// Accepted connections.
    accepted,
    /// Connections refused because of a limit.
    connections_refused,
    /// Connections that did not finish their handshake.
    handshakes_failed,
    /// Connections that ended with a protocol error or an abuse limit.
    connections_broken,
    /// Connections closed because they read hardly any of their answers.
    connections_stalled,
    /// Connections closed because they left too many bytes of answers unread.
    connections_unread,
    /// Connections closed because they reset too many calls before they were processed.
    connections_wasteful,
    /// Connections with TLS.
    tls,
    /// Connections handed over because they speak the remoting protocol.
    remoting,
    /// Calls passed to Python.
    calls,
    /// Calls refused because too many wait for Python.
    calls_refused,
    /// Requests that could not be decoded: too long, truncated, badly compressed.
    requests_broken,
    /// Requests refused because they were not complete in time.
    requests_slow,
    /// Requests refused because unfinished requests hold too many bytes.
    requests_over_budget,
    /// Calls of an unknown method, or calls that are not gRPC.
    unknown,
}

/// A counter or gauge.
#[derive(Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Increment.
    pub fn up(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Decrement.
    pub fn down(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// The value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
