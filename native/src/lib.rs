//! The native front door of CometMQ: HTTP/2 for gRPC in a thread of its own, handlers in Python.
//!
//! The crate knows bytes and streams, paths and headers; no message type and no service. The Python
//! half (`cometmq.front.native_door`) takes requests in batches from its event loop and gives answers
//! back through the call objects. The measurements and rules behind this shape are the front-door
//! note's, sections 1, 2 and 4.
//!
//! | module | what |
//! | --- | --- |
//! | `server` | the server as Python sees it; the listener and its thread |
//! | `service` | one connection, one call: requests to events |
//! | `body` | an answer on its way out |
//! | `call` | what Python orders on a call |
//! | `client` | the other direction: calls to servers, for the SDK |
//! | `inbox` | events to Python, one wake-up for many |
//! | `metadata` | the headers that Python asked for |
//! | `frame`, `status` | gRPC's framing and statuses |
//! | `authority` | clients with several addresses for one target |
//! | `tls` | TLS and plaintext on one port |
//! | `options` | limits and counters |

mod authority;
mod body;
mod call;
mod client;
mod frame;
mod inbox;
mod metadata;
mod options;
mod server;
mod service;
mod status;
mod tls;

/// The module that Python imports.
#[pyo3::pymodule]
mod cometmq_native {
    use pyo3::exceptions::PyValueError;
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::call::Call;
    #[pymodule_export]
    use crate::client::Client;
    #[pymodule_export]
    use crate::server::Server;

    /// A certificate and key (PEM) for development, valid for these names.
    #[pyfunction]
    fn self_signed(names: Vec<String>) -> PyResult<(String, String)> {
        crate::tls::self_signed(names).map_err(PyValueError::new_err)
    }
}
