//! One call: the half of the network thread and the half of Python.
//!
//! `Shared` belongs to the network: it queues the data that Python sends, and the answer's body
//! takes it out. `Call` belongs to Python. Python never uses `Shared` directly: it puts orders into
//! the `Outbox`, which the network thread empties, so that many answers cost one wake-up.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use crossbeam_queue::SegQueue;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use tokio::sync::{Notify, Semaphore};

use crate::door::budget::{counted, Held, Share};
use crate::door::durations::Durations;
use crate::door::frame;
use crate::door::status::{Status, INTERNAL};

/// The data of a whole answer below this size is not counted: its stream counts for more.
const COUNTED_MIN: usize = 1 << 10;
/// Largest message: its length has four bytes.
const MESSAGE_MAX: usize = u32::MAX as usize;

/// The next data to send on a call.
pub enum Out {
    /// Framed messages; more may follow.
    Data(Bytes),
    /// Framed messages, then the end with OK.
    Whole(Bytes, Held),
    /// The end.
    End(Status, Held),
}

#[derive(Default)]
struct Waiting {
    out: VecDeque<Out>,
    waker: Option<Waker>,
}

/// The network's half of a call.
pub struct Shared {
    /// Unique within this server.
    pub id: u64,
    waiting: Mutex<Waiting>,
    gone: AtomicBool,
    queued: AtomicUsize,
    wants_drained: AtomicBool,
    watched: AtomicBool,
    taken: AtomicBool,
    unseen: Arc<AtomicUsize>,
    unread: Arc<Share>,
    answers: Arc<Share>,
    /// Messages that the client may send before Python has processed the last ones.
    pub inbound: Semaphore,
    /// Notifies the reader of the client's messages that the call has ended.
    pub left: Notify,
}

impl Shared {
    /// Create a call; `unseen` counts the calls of its connection that Python has not taken,
    /// `unread` the bytes of answers that it has not read, and `answers` their streams.
    pub fn new(id: u64, unseen: Arc<AtomicUsize>, unread: Arc<Share>, answers: Arc<Share>) -> Self {
        unseen.fetch_add(1, Ordering::AcqRel);
        Self {
            id,
            unseen,
            unread,
            answers,
            waiting: Mutex::default(),
            gone: AtomicBool::new(false),
            queued: AtomicUsize::new(0),
            wants_drained: AtomicBool::new(false),
            watched: AtomicBool::new(false),
            taken: AtomicBool::new(false),
            inbound: Semaphore::new(1),
            left: Notify::new(),
        }
    }

    /// The next data to send. On the network thread only.
    pub fn poll_out(&self, context: &mut Context<'_>) -> Poll<Out> {
        let mut waiting = self
            .waiting
            .lock()
            .expect("a thread panicked while it held this lock");
        match waiting.out.pop_front() {
            Some(out) => Poll::Ready(out),
            None => {
                waiting.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Record that bytes were passed to the connection; true if Python must be notified (drained).
    pub fn written(&self, size: usize) -> bool {
        let before = self.queued.fetch_sub(size, Ordering::AcqRel);
        before == size && self.wants_drained.swap(false, Ordering::AcqRel)
    }

    /// End the call: its client does not read any more.
    pub fn leave(&self) {
        self.gone.store(true, Ordering::Release);
        self.left.notify_one();
    }

    /// True if its client does not read any more.
    pub fn has_left(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Record that Python has taken the call.
    pub fn take(&self) {
        if !self.taken.swap(true, Ordering::AcqRel) {
            self.unseen.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// True if Python has taken the call.
    pub fn taken(&self) -> bool {
        self.taken.load(Ordering::Acquire)
    }

    /// Python requests an event for the outcome of the answer.
    pub fn watched(&self) -> bool {
        self.watched.load(Ordering::Acquire)
    }

    /// Count the stream from the answer on.
    pub fn end(&self) -> Held {
        Held::answer(&self.answers)
    }

    fn put(&self, out: Out) {
        let waker = {
            let mut waiting = self
                .waiting
                .lock()
                .expect("a thread panicked while it held this lock");
            waiting.out.push_back(out);
            waiting.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.take();
    }
}

enum Order {
    Send(Arc<Shared>, Out),
    SendAll(Vec<(Arc<Shared>, Out)>),
    Consumed(Arc<Shared>),
    Stop(u64),
}

/// Orders of Python to the network thread.
#[derive(Default)]
pub struct Outbox {
    orders: SegQueue<Order>,
    told: AtomicBool,
    bell: Notify,
}

impl Outbox {
    fn put(&self, order: Order) {
        self.orders.push(order);
        if !self.told.swap(true, Ordering::AcqRel) {
            self.bell.notify_one();
        }
    }

    /// Order the server to stop within this many milliseconds.
    pub fn stop(&self, grace_ms: u64) {
        self.put(Order::Stop(grace_ms));
    }

    /// Process orders until a stop order; returns its grace time. Runs on the network thread.
    ///
    /// The notification for a stop order also covers the orders behind it, so the next call takes
    /// them before it waits.
    pub async fn work(&self) -> u64 {
        loop {
            self.told.store(false, Ordering::Release);
            while let Some(order) = self.orders.pop() {
                match order {
                    Order::Send(call, out) => call.put(out),
                    Order::SendAll(all) => all.into_iter().for_each(|(call, out)| call.put(out)),
                    Order::Consumed(call) => call.inbound.add_permits(1),
                    Order::Stop(grace_ms) => return grace_ms,
                }
            }
            self.bell.notified().await;
        }
    }
}

/// What Python sends next.
enum Reply {
    /// Framed messages; more may follow.
    Data(Bytes),
    /// Framed messages, then the end with OK.
    Whole(Bytes),
    /// The end.
    End(Status),
}

/// Python's half of a call. All methods return at once.
#[pyclass(frozen, module = "cometmq_native")]
pub struct Call {
    shared: Arc<Shared>,
    outbox: Arc<Outbox>,
    /// Index of the method in the table from Python.
    method: usize,
    /// When Python took the call.
    taken: Instant,
}

impl Call {
    /// Create the half of Python.
    pub fn new(shared: Arc<Shared>, outbox: Arc<Outbox>, method: usize, taken: Instant) -> Self {
        Self {
            shared,
            outbox,
            method,
            taken,
        }
    }

    /// Count what will be sent; None if the client has left.
    fn counted(&self, reply: Reply) -> Option<Out> {
        if self.shared.gone.load(Ordering::Acquire) {
            return None;
        }
        Some(match reply {
            Reply::Data(data) => Out::Data(self.data(data, 0)),
            Reply::Whole(data) => Out::Whole(self.data(data, COUNTED_MIN), self.shared.end()),
            Reply::End(status) => Out::End(status, self.shared.end()),
        })
    }

    fn data(&self, data: Bytes, counted_min: usize) -> Bytes {
        self.shared.queued.fetch_add(data.len(), Ordering::AcqRel);
        if data.len() < counted_min {
            return data;
        }
        counted(&self.shared.unread, data)
    }

    /// All messages and the end; requests an event for their delivery.
    fn joined(&self, messages: &Bound<'_, PyList>) -> PyResult<Reply> {
        let messages: Vec<Bound<'_, PyBytes>> = messages
            .iter()
            .map(|each| Ok(each.cast_into::<PyBytes>()?))
            .collect::<PyResult<_>>()?;
        let views: Vec<&[u8]> = messages.iter().map(|each| each.as_bytes()).collect();
        let data = framed(&views)?;
        self.shared.watched.store(true, Ordering::Release);
        Ok(Reply::Whole(data))
    }

    fn order(&self, out: Reply) -> bool {
        let Some(out) = self.counted(out) else {
            return false;
        };
        self.outbox.put(Order::Send(Arc::clone(&self.shared), out));
        true
    }
}

/// Send one message and the end on each of these calls, or a list of messages, joined, and the end,
/// with an event for their delivery; returns the positions of those whose client has left. The
/// network thread is woken once, and the durations of the calls with one message are counted.
/// Objects of other classes stand for calls whose answers are discarded.
pub fn reply_many(
    outbox: &Outbox,
    durations: &Durations,
    calls: &Bound<'_, PyList>,
    messages: &Bound<'_, PyList>,
) -> PyResult<Vec<usize>> {
    if calls.len() != messages.len() {
        return Err(PyValueError::new_err("every call needs one message"));
    }
    let mut all = Vec::with_capacity(calls.len());
    let mut left = Vec::new();
    let mut answered = Vec::with_capacity(calls.len());
    for (position, (call, message)) in calls.iter().zip(messages.iter()).enumerate() {
        let Ok(call) = call.cast_into::<Call>() else {
            continue;
        };
        let call = call.get();
        let out = match message.cast::<PyList>() {
            Ok(messages) => call.joined(messages).unwrap_or_else(|error| failed(&error)),
            Err(_) => {
                answered.push((call.method, call.taken));
                whole(&message)
            }
        };
        match call.counted(out) {
            Some(out) => all.push((Arc::clone(&call.shared), out)),
            None => left.push(position),
        }
    }
    if !all.is_empty() {
        outbox.put(Order::SendAll(all));
    }
    let now = Instant::now();
    durations.add(
        answered
            .into_iter()
            .map(|(method, taken)| (method, now - taken)),
    );
    Ok(left)
}

#[pymethods]
impl Call {
    /// The id of the call in events.
    #[getter]
    fn id(&self) -> u64 {
        self.shared.id
    }

    /// Send one message and the end. Returns False if the client has left.
    fn reply(&self, message: &[u8]) -> PyResult<bool> {
        Ok(self.order(Reply::Whole(framed(&[message])?)))
    }

    /// Send one message; more may follow. Returns the number of bytes that wait to be written,
    /// including this message, or 0 if the client has left.
    fn send(&self, message: &[u8]) -> PyResult<usize> {
        let sent = self.order(Reply::Data(framed(&[message])?));
        Ok(if sent { self.queued() } else { 0 })
    }

    /// End the stream after the sent messages.
    fn finish(&self, code: u16, message: String) -> bool {
        self.order(Reply::End(Status::new(code, message)))
    }

    /// The number of bytes that wait to be written.
    fn queued(&self) -> usize {
        self.shared.queued.load(Ordering::Acquire)
    }

    /// Request an event when nothing waits to be written. Returns False if nothing waits now.
    fn want_drained(&self) -> bool {
        self.shared.wants_drained.store(true, Ordering::Release);
        self.queued() > 0
    }

    /// Request an event when the next answer was passed to the connection.
    fn watch(&self) {
        self.shared.watched.store(true, Ordering::Release);
    }

    /// Record that a message of the client was processed: the next one may be read.
    fn consumed(&self) {
        self.outbox.put(Order::Consumed(Arc::clone(&self.shared)));
    }
}

/// One message and the end; a failure of this call alone if it is no message.
fn whole(message: &Bound<'_, PyAny>) -> Reply {
    let framed = match message.cast::<PyBytes>() {
        Ok(bytes) => framed(&[bytes.as_bytes()]),
        Err(error) => Err(error.into()),
    };
    match framed {
        Ok(data) => Reply::Whole(data),
        Err(error) => failed(&error),
    }
}

fn failed(error: &PyErr) -> Reply {
    Reply::End(Status::new(INTERNAL, error.to_string()))
}

fn framed(messages: &[&[u8]]) -> PyResult<Bytes> {
    let size = messages.iter().map(|each| frame::PREFIX + each.len()).sum();
    if messages.iter().any(|each| each.len() > MESSAGE_MAX) {
        return Err(PyValueError::new_err(
            "a message cannot be larger than 4 GiB",
        ));
    }
    let mut buffer = BytesMut::with_capacity(size);
    for message in messages {
        frame::put(&mut buffer, message);
    }
    Ok(buffer.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::door::budget::Pool;

    #[tokio::test(flavor = "current_thread")]
    async fn orders_behind_a_stop_order_are_carried_out() {
        let unread = Arc::new(Share::new(Arc::new(Pool::new(1)), 1));
        let call = Arc::new(Shared::new(1, Arc::default(), Arc::clone(&unread), unread));
        let outbox = Outbox::default();
        outbox.stop(7);
        outbox.put(Order::Consumed(Arc::clone(&call)));
        assert_eq!(outbox.work().await, 7);
        let before = call.inbound.available_permits();
        tokio::select! {
            biased;
            _ = outbox.work() => unreachable!("no second stop order"),
            () = std::future::ready(()) => {}
        }
        assert_eq!(call.inbound.available_permits(), before + 1);
    }
}
