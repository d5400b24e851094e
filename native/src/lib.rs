//! The native front door of CometMQ: HTTP/2 for gRPC in its own thread, handlers in Python.
//!
//! The door handles bytes and streams, paths and headers, but no message types and no services; the
//! conversions of messages sent and stored are functions of bytes, whose callers decide. The
//! Python half (`cometmq.front.native.door`) takes requests in batches in its event loop and
//! answers through the call objects. Measurements and rules: docs/formats/front-door.md, sections
//! 1, 2 and 4.
//!
//! | module | contents |
//! | --- | --- |
//! | `server` | the Python class of the server; the listener and its thread |
//! | `service` | one connection, one call: requests to events |
//! | `body` | the body of an answer |
//! | `budget` | bytes of unfinished requests and unread answers |
//! | `call` | orders of Python for a call |
//! | `client` | outgoing calls to servers, for the SDK |
//! | `client_sends` | SendMessage requests from messages of the SDK |
//! | `client_receives` | messages of the SDK from responses |
//! | `durations` | durations of answered calls |
//! | `inbox` | events for Python, one wake-up for many |
//! | `newcomers` | connections of strangers: their number and their time |
//! | `metadata` | the headers that Python requested |
//! | `frame`, `status` | gRPC's framing and statuses |
//! | `authority` | clients with several addresses for one target |
//! | `tls` | TLS and plaintext, HTTP/2 and remoting on one port |
//! | `options` | limits and counters |
//! | `queue_read` | units of a consume queue to records |
//! | `wire_messages` | stored records to messages of an answer |
//! | `record_layout`, `stored_record`, `wire_fields`, `md5` | the formats that this needs |
//! | `protobuf` | protobuf's wire format |
//! | `classic_send` | sends of classic clients from their frames |
//! | `sent`, `send_plan`, `send_codec` | SendMessage requests to records, queue units and answers |
//! | `log_reader` | records of the common form in a segment of the log |
//! | `index_entries` | records to entries of the message index |
//! | `log_units` | records of a leader to queue units of a follower |
//! | `ack` | AckMessage requests to deliveries and answers |

/// Requests and answers are allocated on one thread and freed on another, in sizes above the
/// per-thread caches of the C library. With mimalloc a send costs a tenth less CPU.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

mod ack;
mod authority;
mod body;
mod budget;
mod call;
#[cfg(test)]
mod chance;
mod classic_send;
mod client;
mod client_receives;
mod client_sends;
mod durations;
mod frame;
mod inbox;
mod index_entries;
mod log_reader;
mod log_units;
mod md5;
mod metadata;
mod newcomers;
mod options;
mod protobuf;
mod queue_read;
mod record_layout;
mod requests;
mod send_codec;
mod send_plan;
mod sent;
mod server;
mod service;
mod status;
mod stored_record;
mod tls;
mod wire_fields;
mod wire_messages;

/// The Python module.
#[pyo3::pymodule]
mod cometmq_native {
    use pyo3::exceptions::PyValueError;
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::call::Call;
    #[pymodule_export]
    use crate::client::Client;
    #[pymodule_export]
    use crate::queue_read::QueueRecords;
    #[pymodule_export]
    use crate::requests::Requests;
    #[pymodule_export]
    use crate::server::Server;
    #[pymodule_export]
    use crate::wire_messages::WireMessages;

    /// Byte work of frequent messages.
    #[pymodule]
    mod codec {
        #[pymodule_export]
        use crate::ack::AckReader;
        #[pymodule_export]
        use crate::client_receives::MessageReader;
        #[pymodule_export]
        use crate::client_sends::send_request;
        #[pymodule_export]
        use crate::index_entries::index_entries;
        #[pymodule_export]
        use crate::log_units::{queue_units, whole_records};
        #[pymodule_export]
        use crate::send_codec::{count_messages, SendPlan, SendPlanner, SendTemplate};
    }

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }

    /// A certificate and key (PEM) for development, valid for these names.
    #[pyfunction]
    fn self_signed(names: Vec<String>) -> PyResult<(String, String)> {
        crate::tls::self_signed(names).map_err(PyValueError::new_err)
    }
}
