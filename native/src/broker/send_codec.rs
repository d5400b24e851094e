//! The Python side of `send_plan`: templates, the planner and its result.

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};

use crate::broker::classic_send::ClassicSend;
use crate::broker::send_plan::{Classic, Lookups, Place, Plan, Planner, Request, Template};
use crate::broker::sent;
use crate::door::requests::Requests;

/// What all records of a topic share.
#[pyclass(frozen, module = "cometmq_native.codec")]
pub struct SendTemplate(Arc<Template>);

#[pymethods]
impl SendTemplate {
    #[new]
    fn new(
        name: String,
        message_type: i32,
        queues: u32,
        before: Vec<u8>,
        between: Vec<u8>,
    ) -> PyResult<Self> {
        if queues == 0 {
            return Err(PyValueError::new_err("a topic needs a queue"));
        }
        Ok(Self(Arc::new(Template {
            name,
            message_type,
            queues,
            before,
            between,
        })))
    }
}

/// Plans appends of SendMessage requests.
#[pyclass(frozen, module = "cometmq_native.codec")]
pub struct SendPlanner(Planner);

/// A request in Python: its bytes or None, the client's host, its packed address, and whether it is
/// a frame.
type PyRequest<'py> = (
    Option<Bound<'py, PyBytes>>,
    Bound<'py, PyString>,
    Bound<'py, PyBytes>,
    bool,
);

/// See `plan`.
type PyPlace = (i64, i64, i64, i64, Vec<u8>);

/// Properties that the broker adds, reserved names, bits that are kept, parts of an answer.
type PyClassic = (Vec<(String, String)>, Vec<String>, u32, [Vec<u8>; 6]);

#[pymethods]
impl SendPlanner {
    #[new]
    #[pyo3(signature = (max_body, answer_ok, size_bounds, classic=None))]
    fn new(
        max_body: usize,
        answer_ok: Vec<u8>,
        size_bounds: Vec<u64>,
        classic: Option<PyClassic>,
    ) -> Self {
        let classic = classic.map(|(added, reserved, kept_bits, answer)| Classic {
            added,
            reserved,
            kept_bits,
            answer,
        });
        Self(Planner {
            max_body,
            answer_ok,
            size_bounds,
            classic,
        })
    }

    /// Return topic, queue and opaque of a classic client's send, if a plan may accept it.
    fn classic_target(&self, frame: &[u8]) -> Option<(String, u32, i32)> {
        let classic = self.0.classic.as_ref()?;
        let sent = ClassicSend::parse(frame)?;
        sent.stored(&classic.added, &classic.reserved)?;
        Some((sent.topic.into_owned(), sent.queue_id, sent.opaque))
    }

    /// Plan the requests from number `first` on. `place`: log offset of the first record, log
    /// offset that no record may cross, store time, born time of messages without one, packed
    /// address of this broker. `topic_of(name)` returns a template and the number of the topic's
    /// requests so far, or None; `next_offset(topic, queue_id)` the next queue offset, or None.
    fn plan(
        &self,
        requests: Vec<PyRequest<'_>>,
        first: usize,
        place: PyPlace,
        topic_of: &Bound<'_, PyAny>,
        next_offset: &Bound<'_, PyAny>,
    ) -> PyResult<SendPlan> {
        let requests = requests
            .iter()
            .map(|(raw, peer, born_host, frame)| {
                Ok(Request {
                    raw: raw.as_ref().map(|raw| raw.as_bytes()),
                    frame: *frame,
                    peer: peer.to_str()?,
                    born_host: born_host.as_bytes(),
                })
            })
            .collect::<PyResult<Vec<_>>>()?;
        self.planned(&requests, first, place, topic_of, next_offset)
    }

    /// Plan as `plan` does. `peers`: the hosts and packed addresses of the clients, each with its
    /// number of requests in a row; the requests behind those are left out.
    fn plan_row(
        &self,
        requests: &Requests,
        peers: Vec<(Bound<'_, PyString>, Bound<'_, PyBytes>, usize)>,
        first: usize,
        place: PyPlace,
        topic_of: &Bound<'_, PyAny>,
        next_offset: &Bound<'_, PyAny>,
    ) -> PyResult<SendPlan> {
        let mut row = Vec::with_capacity(requests.0.len());
        let mut rest = requests.0.iter();
        for (peer, born_host, count) in &peers {
            let (peer, born_host) = (peer.to_str()?, born_host.as_bytes());
            row.extend(rest.by_ref().take(*count).map(|raw| Request {
                raw: Some(raw),
                frame: false,
                peer,
                born_host,
            }));
        }
        self.planned(&row, first, place, topic_of, next_offset)
    }
}

impl SendPlanner {
    fn planned(
        &self,
        requests: &[Request<'_>],
        first: usize,
        (begin, limit, store_ms, wall_ms, store_host): PyPlace,
        topic_of: &Bound<'_, PyAny>,
        next_offset: &Bound<'_, PyAny>,
    ) -> PyResult<SendPlan> {
        let place = Place {
            begin,
            limit,
            store_ms,
            wall_ms,
            store_host,
        };
        let lookups = Broker {
            topic_of,
            next_offset,
        };
        Ok(SendPlan(self.0.plan(requests, first, &place, lookups)?))
    }
}

/// The state of the broker, by its functions.
struct Broker<'a, 'py> {
    topic_of: &'a Bound<'py, PyAny>,
    next_offset: &'a Bound<'py, PyAny>,
}

impl Lookups for Broker<'_, '_> {
    type Error = PyErr;

    fn topic(&mut self, name: &str) -> PyResult<Option<(Arc<Template>, u64)>> {
        let found: Option<(PyRef<'_, SendTemplate>, u64)> =
            self.topic_of.call1((name,))?.extract()?;
        Ok(found.map(|(template, begin)| (Arc::clone(&template.0), begin)))
    }

    fn next_offset(&mut self, topic: &str, queue_id: u32) -> PyResult<Option<i64>> {
        self.next_offset.call1((topic, queue_id))?.extract()
    }
}

/// The records of accepted requests, and what follows from them.
#[pyclass(frozen, module = "cometmq_native.codec")]
pub struct SendPlan(Plan);

/// Topic, queue id, number of the first unit, encoded units.
type PyUnits<'a, 'py> = (&'a str, u32, i64, Bound<'py, PyBytes>);

/// Topic, message type, messages, bytes, messages by size.
type PyCount<'a> = (&'a str, i32, u64, u64, &'a [u64]);

#[pymethods]
impl SendPlan {
    /// The encoded records.
    #[getter]
    fn data<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.data)
    }

    /// The number of records.
    #[getter]
    fn records(&self) -> usize {
        self.0.records
    }

    /// The log offset of the last record.
    #[getter]
    fn last(&self) -> i64 {
        self.0.last
    }

    /// The encoded answers, one for each accepted request.
    #[getter]
    fn answers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.0.answers.iter().map(|each| PyBytes::new(py, each)))
    }

    /// The log offset behind the last record of each accepted request.
    #[getter]
    fn ends(&self) -> Vec<i64> {
        self.0.ends.clone()
    }

    /// New units by queue: topic, queue id, number of the first one, encoded units.
    #[getter]
    fn units<'py>(&self, py: Python<'py>) -> Vec<PyUnits<'_, 'py>> {
        let units = self.0.units.iter();
        units
            .map(|each| {
                let data = PyBytes::new(py, &each.data);
                (each.topic.name.as_str(), each.queue_id, each.first, data)
            })
            .collect()
    }

    /// Number of accepted requests by topic.
    #[getter]
    fn turns(&self) -> Vec<(&str, u64)> {
        let turns = self.0.turns.iter();
        turns
            .map(|(topic, count)| (topic.name.as_str(), *count))
            .collect()
    }

    /// Accepted messages: topic, type, number, bytes, numbers by size.
    #[getter]
    fn counts(&self) -> Vec<PyCount<'_>> {
        let counts = self.0.counts.iter();
        counts
            .map(|each| {
                let name = each.topic.name.as_str();
                let sizes = each.sizes.as_slice();
                (name, each.message_type, each.messages, each.bytes, sizes)
            })
            .collect()
    }

    /// The next request, from the first refused one on, that a plan may accept.
    #[getter]
    fn resume(&self) -> usize {
        self.0.resume
    }
}

/// Return the number of messages of an encoded SendMessage request.
#[pyfunction]
pub fn count_messages(raw: &[u8]) -> usize {
    sent::count(raw)
}
