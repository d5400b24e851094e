//! The limits of the door, set by Python, and the counters that Python can read.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Limits; no library default is used.
pub struct Options {
    /// Largest message of a client, after decompression.
    pub message_bytes: usize,
    /// Largest header list.
    pub header_bytes: u32,
    /// Streams of one connection.
    pub streams: u32,
    /// Concurrent connections.
    pub connections: usize,
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
    /// A connection that reads none of its pending answers for this time is closed.
    pub stalled: Duration,
    /// Streams that a client may reset before they are processed (rapid reset).
    pub resets: usize,
}

impl Options {
    /// Read a dict with exactly these names; times in milliseconds.
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
        let narrow =
            |name: &str| -> PyResult<u32> { Ok(u32::try_from(number(name)?).unwrap_or(u32::MAX)) };
        let time = |name: &str| -> PyResult<Duration> { Ok(Duration::from_millis(number(name)?)) };
        Ok(Self {
            message_bytes: limit("message_bytes")?,
            header_bytes: narrow("header_bytes")?,
            streams: narrow("streams")?,
            connections: limit("connections")?,
            waiting: limit("waiting")?,
            idle: time("idle_ms")?,
            keepalive: time("keepalive_ms")?,
            keepalive_timeout: time("keepalive_timeout_ms")?,
            handshake: time("handshake_ms")?,
            stalled: time("stalled_ms")?,
            resets: limit("resets")?,
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
    /// Connections refused because of the limit.
    connections_refused,
    /// Connections that did not finish their handshake.
    handshakes_failed,
    /// Connections that ended with a protocol error or an abuse limit.
    connections_broken,
    /// Connections closed because they read none of their answers.
    connections_stalled,
    /// Connections closed because they reset too many calls before they were processed.
    connections_wasteful,
    /// Connections with TLS.
    tls,
    /// Calls passed to Python.
    calls,
    /// Calls refused because too many wait for Python.
    calls_refused,
    /// Requests that could not be decoded: too long, truncated, badly compressed.
    requests_broken,
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
