//! One call, seen from both sides.
//!
//! `Shared` is the network's half: what Python wants to send waits in it, and the answer's body takes
//! it out. `Call` is Python's half. Python never touches `Shared` directly: it puts orders into the
//! `Outbox`, which the network thread empties, so that many answers cost one wake-up.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use crossbeam_queue::SegQueue;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use tokio::sync::{Notify, Semaphore};

use crate::frame;
use crate::status::Status;

/// A message's length has four bytes.
const MESSAGE_MAX: usize = u32::MAX as usize;

/// What goes out next on a call.
pub enum Out {
    /// Framed messages; more may follow.
    Data(Bytes),
    /// Framed messages, and then the end with OK.
    Whole(Bytes),
    /// The end.
    End(Status),
}

#[derive(Default)]
struct Waiting {
    out: VecDeque<Out>,
    waker: Option<Waker>,
}

/// The network's half of a call.
pub struct Shared {
    /// Unique in this server's life.
    pub id: u64,
    waiting: Mutex<Waiting>,
    gone: AtomicBool,
    queued: AtomicUsize,
    wants_drained: AtomicBool,
    watched: AtomicBool,
    taken: AtomicBool,
    unseen: Arc<AtomicUsize>,
    /// How many messages of the client may come before Python has dealt with the last ones.
    pub inbound: Semaphore,
    /// Rings when nobody listens any more, for the one who reads the client's messages.
    pub left: Notify,
}

impl Shared {
    /// A call that has just begun; `unseen` counts those of its connection that Python has not taken.
    pub fn new(id: u64, unseen: Arc<AtomicUsize>) -> Self {
        unseen.fetch_add(1, Ordering::AcqRel);
        Self {
            id,
            unseen,
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

    /// What to send next. On the network thread only.
    pub fn poll_out(&self, context: &mut Context<'_>) -> Poll<Out> {
        let mut waiting = self
            .waiting
            .lock()
            .expect("nothing panics while it is held");
        match waiting.out.pop_front() {
            Some(out) => Poll::Ready(out),
            None => {
                waiting.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// So much of what Python queued was handed to the connection; true: tell it that all is.
    pub fn written(&self, size: usize) -> bool {
        let before = self.queued.fetch_sub(size, Ordering::AcqRel);
        before == size && self.wants_drained.swap(false, Ordering::AcqRel)
    }

    /// Nobody listens any more.
    pub fn leave(&self) {
        self.gone.store(true, Ordering::Release);
        self.left.notify_one();
    }

    /// Python has it.
    pub fn take(&self) {
        if !self.taken.swap(true, Ordering::AcqRel) {
            self.unseen.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Whether Python has it.
    pub fn taken(&self) -> bool {
        self.taken.load(Ordering::Acquire)
    }

    /// Python wants to know how the answer fared.
    pub fn watched(&self) -> bool {
        self.watched.load(Ordering::Acquire)
    }

    fn put(&self, out: Out) {
        let waker = {
            let mut waiting = self
                .waiting
                .lock()
                .expect("nothing panics while it is held");
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

    /// Ask the server to stop within so many milliseconds.
    pub fn stop(&self, grace_ms: u64) {
        self.put(Order::Stop(grace_ms));
    }

    /// Deal with orders until one says stop; returns its grace time. Runs on the network thread.
    pub async fn work(&self) -> u64 {
        loop {
            self.bell.notified().await;
            self.told.store(false, Ordering::Release);
            while let Some(order) = self.orders.pop() {
                match order {
                    Order::Send(call, out) => call.put(out),
                    Order::Consumed(call) => call.inbound.add_permits(1),
                    Order::Stop(grace_ms) => return grace_ms,
                }
            }
        }
    }
}

/// Python's half of a call. All methods return at once.
#[pyclass(frozen, module = "cometmq_native")]
pub struct Call {
    shared: Arc<Shared>,
    outbox: Arc<Outbox>,
}

impl Call {
    /// For a call that is handed to Python.
    pub fn new(shared: Arc<Shared>, outbox: Arc<Outbox>) -> Self {
        Self { shared, outbox }
    }

    fn order(&self, out: Out) -> bool {
        if self.shared.gone.load(Ordering::Acquire) {
            return false;
        }
        if let Out::Data(data) | Out::Whole(data) = &out {
            self.shared.queued.fetch_add(data.len(), Ordering::AcqRel);
        }
        self.outbox.put(Order::Send(Arc::clone(&self.shared), out));
        true
    }
}

#[pymethods]
impl Call {
    /// The number by which events name this call.
    #[getter]
    fn id(&self) -> u64 {
        self.shared.id
    }

    /// One message and the end. False: the client has left already.
    fn reply(&self, message: &[u8]) -> PyResult<bool> {
        Ok(self.order(Out::Whole(framed(&[message])?)))
    }

    /// Some messages, joined, and the end. An event says whether they were delivered; False: the
    /// client has left already, and no event comes.
    fn reply_all(&self, messages: &Bound<'_, PyList>) -> PyResult<bool> {
        let messages: Vec<Bound<'_, PyBytes>> = messages
            .iter()
            .map(|each| Ok(each.cast_into::<PyBytes>()?))
            .collect::<PyResult<_>>()?;
        let views: Vec<&[u8]> = messages.iter().map(|each| each.as_bytes()).collect();
        self.shared.watched.store(true, Ordering::Release);
        Ok(self.order(Out::Whole(framed(&views)?)))
    }

    /// One message; more may follow. Returns the bytes that wait to be written, this one included;
    /// 0: the client has left.
    fn send(&self, message: &[u8]) -> PyResult<usize> {
        let sent = self.order(Out::Data(framed(&[message])?));
        Ok(if sent { self.queued() } else { 0 })
    }

    /// End the stream after what was sent.
    fn finish(&self, code: u16, message: String) -> bool {
        self.order(Out::End(Status::new(code, message)))
    }

    /// Bytes that wait to be written.
    fn queued(&self) -> usize {
        self.shared.queued.load(Ordering::Acquire)
    }

    /// Have an event sent once nothing waits to be written. False: nothing waits now.
    fn want_drained(&self) -> bool {
        self.shared.wants_drained.store(true, Ordering::Release);
        self.queued() > 0
    }

    /// Have an event sent when the answer that comes now was handed over.
    fn watch(&self) {
        self.shared.watched.store(true, Ordering::Release);
    }

    /// A message of the client was dealt with: the next one may come.
    fn consumed(&self) {
        self.outbox.put(Order::Consumed(Arc::clone(&self.shared)));
    }
}

fn framed(messages: &[&[u8]]) -> PyResult<Bytes> {
    let size = messages.iter().map(|each| frame::PREFIX + each.len()).sum();
    if messages.iter().any(|each| each.len() > MESSAGE_MAX) {
        return Err(PyValueError::new_err(
            "a message cannot have more than 4 GiB",
        ));
    }
    let mut buffer = BytesMut::with_capacity(size);
    for message in messages {
        frame::put(&mut buffer, message);
    }
    Ok(buffer.freeze())
}
