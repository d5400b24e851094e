//! The native front door of CometMQ: HTTP/2 for gRPC in its own thread, handlers in Python.
//!
//! The door handles bytes and streams, paths and headers, but no message types and no services. The
//! conversions of messages (`broker`, `store`, `sdk`) are functions of bytes, whose callers decide. The
//! Python half (`cometmq.front.native.door`) takes requests in batches in its event loop and
//! answers through the call objects. Measurements and rules: docs/formats/front-door.md, sections
//! 1, 2 and 4.
//!
//! | module | contents |
//! | --- | --- |
//! | `door::server` | the Python class of the server; the listener and its thread |
//! | `door::service` | one connection, one call: requests to events |
//! | `door::body` | the body of an answer |
//! | `door::budget` | bytes of unfinished requests and unread answers |
//! | `door::call` | orders of Python for a call |
//! | `door::durations` | durations of answered calls |
//! | `door::inbox`, `door::requests` | events for Python, one wake-up for many; rows of requests |
//! | `door::newcomers` | connections of strangers: their number and their time |
//! | `door::turns` | which connection the thread serves next |
//! | `door::metadata` | the headers that Python requested |
//! | `door::frame`, `door::status` | gRPC's framing and statuses |
//! | `door::authority` | clients with several addresses for one target |
//! | `door::tls` | TLS and plaintext, HTTP/2 and remoting on one port |
//! | `door::options` | limits and counters |
//! | `broker::sent`, `broker::send_plan`, `broker::send_codec` | SendMessage requests to records, queue units and answers |
//! | `broker::classic_send` | sends of classic clients from their frames |
//! | `broker::ack` | AckMessage requests to deliveries and answers |
//! | `broker::wire_messages` | stored records to messages of an answer |
//! | `store::queue_read` | units of a consume queue to records |
//! | `store::log_reader` | records of the common form in a segment of the log |
//! | `store::index_entries` | records to entries of the message index |
//! | `store::log_units` | records of a leader to queue units of a follower |
//! | `store::record_layout`, `store::stored_record` | the format of a record |
//! | `sdk::client` | outgoing calls to servers, for the SDK |
//! | `sdk::client_sends` | SendMessage requests from messages of the SDK |
//! | `sdk::client_receives` | messages of the SDK from responses |
//! | `wire` | protobuf's wire format, MD5 |

/// Requests and answers are allocated on one thread and freed on another, in sizes above the
/// per-thread caches of the C library. With mimalloc a send costs a tenth less CPU.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

mod broker;
#[cfg(test)]
mod chance;
mod door;
mod sdk;
mod store;
mod wire;

/// The Python module.
#[pyo3::pymodule]
mod cometmq_native {
    use pyo3::exceptions::PyValueError;
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::broker::wire_messages::WireMessages;
    #[pymodule_export]
    use crate::door::call::Call;
    #[pymodule_export]
    use crate::door::requests::Requests;
    #[pymodule_export]
    use crate::door::server::Server;
    #[pymodule_export]
    use crate::sdk::client::Client;
    #[pymodule_export]
    use crate::store::queue_read::QueueRecords;

    /// Byte work of frequent messages.
    #[pymodule]
    mod codec {
        #[pymodule_export]
        use crate::broker::ack::AckReader;
        #[pymodule_export]
        use crate::broker::send_codec::{count_messages, SendPlan, SendPlanner, SendTemplate};
        #[pymodule_export]
        use crate::sdk::client_receives::MessageReader;
        #[pymodule_export]
        use crate::sdk::client_sends::send_request;
        #[pymodule_export]
        use crate::store::index_entries::index_entries;
        #[pymodule_export]
        use crate::store::log_units::{queue_units, whole_records};
    }

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }

    /// A certificate and key (PEM) for development, valid for these names.
    #[pyfunction]
    fn self_signed(names: Vec<String>) -> PyResult<(String, String)> {
        crate::door::tls::self_signed(names).map_err(PyValueError::new_err)
    }
}
