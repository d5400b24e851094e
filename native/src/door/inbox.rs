//! Events from the network thread to Python: a queue, and one wake-up for many events.
//!
//! The network thread pushes; Python takes up to N events when its event loop finds the file
//! descriptor readable. A flag records a pending wake-up, so that under load one system call serves
//! dozens of requests.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use crossbeam_queue::SegQueue;

use crate::door::budget::Held;
use crate::door::call::Shared;
use crate::door::metadata::Metadata;

/// How long an unimportant event waits for others (linger).
const LAZY: Duration = Duration::from_millis(5);
/// Number of waiting events, and size of one, that wake Python at once.
const AT_ONCE: usize = 32;
const LARGE_BYTES: usize = 8 << 10;

/// A new call: with its one request, or (a bidirectional stream) without.
pub struct Open {
    /// The call's other half.
    pub call: Arc<Shared>,
    /// Index of the method in the table from Python.
    pub method: usize,
    /// The request without its frame; `None` for a bidirectional stream.
    pub request: Option<Bytes>,
    /// Metadata of the client.
    pub metadata: Arc<Metadata>,
    /// Nanoseconds until the deadline.
    pub timeout_ns: Option<u64>,
    /// The request's part of the budget.
    pub held: Option<Held>,
}

/// An event for Python.
pub enum Event {
    /// A new call.
    Open(Open),
    /// A message of a bidirectional stream, and its part of the budget.
    Message(u64, Bytes, Held),
    /// The client has sent its last message.
    HalfClosed(u64),
    /// The client left, or its deadline passed, before the answer was passed to the connection.
    Gone(u64),
    /// The whole answer was passed to the connection.
    Delivered(u64),
    /// The queued messages of a stream have been written.
    Drained(u64),
    /// The client's stream cannot be decoded any further: gRPC status and message.
    Broken(u64, u16, String),
    /// A connection of the remoting protocol, without TLS, the address of its peer, and the verified
    /// certificate (DER) that it has shown. It is closed if Python does not take it.
    Remoting(OwnedFd, String, Option<Vec<u8>>),
    /// The server has closed its last connection.
    Closed,
}

/// The queue and its wake-up descriptor.
pub struct Inbox<E> {
    queue: SegQueue<E>,
    woken: AtomicBool,
    soon: AtomicBool,
    later: AtomicBool,
    size: AtomicUsize,
    bell: Bell,
}

impl<E> Inbox<E> {
    /// An empty queue. Fails when the system has no descriptors left.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            queue: SegQueue::new(),
            woken: AtomicBool::new(false),
            soon: AtomicBool::new(false),
            later: AtomicBool::new(false),
            size: AtomicUsize::new(0),
            bell: Bell::new()?,
        })
    }

    /// The descriptor that is readable while events wait.
    pub fn descriptor(&self) -> RawFd {
        self.bell.reading().as_raw_fd()
    }

    /// Events that Python has not taken yet.
    pub fn len(&self) -> usize {
        self.size.load(Ordering::Relaxed)
    }

    /// Add an event; wakes Python unless a wake-up is pending.
    pub fn push(&self, event: E) {
        self.size.fetch_add(1, Ordering::Relaxed);
        self.queue.push(event);
        self.wake();
    }

    /// Add an event of this many bytes that comes with others: the wake-up is behind the tasks that
    /// are ready now. On the network thread only.
    ///
    /// Otherwise Python would wake up for the first of many requests that the socket holds, and take
    /// them in many small batches. It works on large requests while the network thread reads others.
    pub fn push_soon(self: &Arc<Self>, event: E, size: usize)
    where
        E: Send + 'static,
    {
        let waiting = self.size.fetch_add(1, Ordering::Relaxed) + 1;
        self.queue.push(event);
        if size >= LARGE_BYTES || waiting >= AT_ONCE {
            self.wake();
        } else if !self.soon.swap(true, Ordering::AcqRel) {
            let inbox = Arc::clone(self);
            tokio::spawn(async move { inbox.wake_waiting(&inbox.soon) });
        }
    }

    fn wake_waiting(&self, flag: &AtomicBool) {
        flag.store(false, Ordering::Release);
        if !self.queue.is_empty() {
            self.wake();
        }
    }

    /// Add an event that may wait a moment for others (linger). On the network thread only.
    pub fn push_lazily(self: &Arc<Self>, event: E)
    where
        E: Send + 'static,
    {
        self.size.fetch_add(1, Ordering::Relaxed);
        self.queue.push(event);
        if !self.later.swap(true, Ordering::AcqRel) {
            let inbox = Arc::clone(self);
            tokio::spawn(async move {
                tokio::time::sleep(LAZY).await;
                inbox.wake_waiting(&inbox.later);
            });
        }
    }

    fn wake(&self) {
        if !self.woken.swap(true, Ordering::AcqRel) {
            self.bell.ring();
        }
    }

    /// Take up to `max` events in order; wakes Python again if more are left.
    pub fn take(&self, max: usize) -> Vec<E> {
        self.bell.silence();
        self.woken.store(false, Ordering::Release);
        let mut events = Vec::with_capacity(self.len().min(max));
        while events.len() < max {
            match self.queue.pop() {
                Some(event) => events.push(event),
                None => break,
            }
        }
        self.size.fetch_sub(events.len(), Ordering::Relaxed);
        if !self.queue.is_empty() {
            self.wake();
        }
        events
    }
}

/// An eventfd where there is one, a pipe elsewhere.
struct Bell {
    reader: OwnedFd,
    #[cfg(not(target_os = "linux"))]
    writer: OwnedFd,
}

impl Bell {
    #[cfg(target_os = "linux")]
    fn new() -> io::Result<Self> {
        use rustix::event::{eventfd, EventfdFlags};
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self {
            reader: eventfd(0, flags)?,
        })
    }

    #[cfg(not(target_os = "linux"))]
    fn new() -> io::Result<Self> {
        let (reader, writer) = rustix::pipe::pipe()?;
        for end in [&reader, &writer] {
            rustix::io::ioctl_fionbio(end, true)?;
        }
        Ok(Self { reader, writer })
    }

    fn reading(&self) -> &OwnedFd {
        &self.reader
    }

    #[cfg(target_os = "linux")]
    fn writing(&self) -> &OwnedFd {
        &self.reader
    }

    #[cfg(not(target_os = "linux"))]
    fn writing(&self) -> &OwnedFd {
        &self.writer
    }

    /// Errors are ignored: if the counter or pipe is full, a wake-up is pending.
    fn ring(&self) {
        let _ = rustix::io::write(self.writing(), &1u64.to_ne_bytes());
    }

    fn silence(&self) {
        let _ = rustix::io::read(self.reading(), &mut [0u8; 8]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn a_wake_up_follows_the_tasks_that_are_ready() {
        let inbox = Arc::new(Inbox::new().unwrap());
        let woken = || inbox.woken.load(Ordering::Acquire);
        for id in 0..3 {
            let inbox = Arc::clone(&inbox);
            tokio::spawn(async move { inbox.push_soon(id, 1) });
        }
        while inbox.len() < 3 {
            assert!(!woken(), "before the last of the ready tasks");
            tokio::task::yield_now().await;
        }
        tokio::task::yield_now().await;
        assert!(woken());
        assert_eq!(inbox.take(9), [0, 1, 2]);
        inbox.push_soon(3, 1);
        assert_eq!(inbox.take(9), [3]);
        tokio::task::yield_now().await;
        assert!(!woken(), "nothing waits any more");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn many_events_or_a_large_one_wake_at_once() {
        let inbox = Arc::new(Inbox::new().unwrap());
        inbox.push_soon(0, LARGE_BYTES);
        assert!(inbox.woken.load(Ordering::Acquire));
        inbox.take(1);
        for id in 1..=AT_ONCE {
            assert!(!inbox.woken.load(Ordering::Acquire));
            inbox.push_soon(id, 1);
        }
        assert!(inbox.woken.load(Ordering::Acquire));
    }

    #[test]
    fn events_come_in_order_and_in_batches() {
        let inbox = Inbox::new().unwrap();
        for id in 0..5 {
            inbox.push(Event::Gone(id));
        }
        let ids = |events: Vec<Event>| -> Vec<u64> {
            events
                .into_iter()
                .map(|event| match event {
                    Event::Gone(id) => id,
                    _ => unreachable!(),
                })
                .collect()
        };
        assert_eq!(inbox.len(), 5);
        assert_eq!(ids(inbox.take(3)), [0, 1, 2]);
        assert_eq!(ids(inbox.take(3)), [3, 4]);
        assert_eq!(inbox.len(), 0);
        assert!(inbox.take(3).is_empty());
    }
}
