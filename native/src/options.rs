//! Every limit of the door, given by Python, and every counter that Python can read.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Limits; nothing is left to a library's default.
pub struct Options {
    /// Largest message of a client, inflated.
    pub message_bytes: usize,
    /// Largest header list.
    pub header_bytes: u32,
    /// Streams of one connection.
    pub streams: u32,
    /// Connections at once.
    pub connections: usize,
    /// Requests that wait for Python at once.
    pub waiting: usize,
    /// A connection without calls is closed after this time.
    pub idle: Duration,
    /// A silent connection is pinged this often.
    pub keepalive: Duration,
    /// A connection whose ping is not answered for this long is closed.
    pub keepalive_timeout: Duration,
    /// A connection that has not said what it speaks is closed after this time.
    pub handshake: Duration,
    /// A connection that takes nothing of what waits for it is closed after this time.
    pub stalled: Duration,
    /// Streams that a client resets before they were looked at (rapid reset).
    pub resets: usize,
}

impl Options {
    /// From a dict with exactly these names; times in milliseconds.
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
        /// What happened since the start, and what is now.
        #[derive(Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: Counter,)*
        }

        impl Counters {
            /// A dict of all of them.
            pub fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
                let dict = PyDict::new(py);
                $(dict.set_item(stringify!($name), self.$name.get())?;)*
                Ok(dict)
            }
        }
    };
}

counters! {
    /// Connections that are open.
    connections,
    /// Connections that were accepted.
    accepted,
    /// Connections that were closed at once: too many.
    connections_refused,
    /// Connections that never said what they speak.
    handshakes_failed,
    /// Connections that ended with a protocol error, an abuse limit among them.
    connections_broken,
    /// Connections that were closed because they took nothing of what waited for them.
    connections_stalled,
    /// Connections that were closed because they took back too many calls before they were looked at.
    connections_wasteful,
    /// Connections with TLS.
    tls,
    /// Calls that reached Python.
    calls,
    /// Calls refused because too many wait for Python.
    calls_refused,
    /// Requests that could not be read: too long, cut, badly compressed.
    requests_broken,
    /// Calls of a path that nobody serves, or that are not gRPC.
    unknown,
}

/// A number that goes up and down.
#[derive(Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// One more.
    pub fn up(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// One less.
    pub fn down(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// The number.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
