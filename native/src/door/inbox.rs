//! Events from the network thread to Python: a queue, and one wake-up for many events.
//!
//! The network thread pushes; Python takes up to N events when its event loop finds the file
//! descriptor readable. A flag records a pending wake-up, so that under load one system call serves
//! dozens of requests. While more events wait than Python takes at once, addresses share each batch,
//! then the connections of each, and those with few events come first: a flood of one delays the
//! others by a batch at most.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
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
/// Part of a batch that is taken while connections compete: the next one is nearer.
const FAIR_PART: usize = 4;
/// Connections with a row of their own.
const LANES: usize = 1 << u16::BITS;

/// An event of a connection.
pub trait Laned {
    /// The number of its connection, whose events stay in order; `None`: behind all others.
    fn lane(&self) -> Option<u16>;
}

/// The lane of a call, which is a part of its number.
pub fn lane_of(id: u64) -> u16 {
    id as u16
}

/// A number for a call: `serial` is unique.
pub fn call_id(serial: u64, lane: u16) -> u64 {
    serial << u16::BITS | u64::from(lane)
}

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

impl Laned for Event {
    fn lane(&self) -> Option<u16> {
        match self {
            Event::Open(open) => Some(lane_of(open.call.id)),
            Event::Message(id, ..)
            | Event::HalfClosed(id)
            | Event::Gone(id)
            | Event::Delivered(id)
            | Event::Drained(id)
            | Event::Broken(id, ..) => Some(lane_of(*id)),
            Event::Remoting(..) => Some(0),
            Event::Closed => None,
        }
    }
}

/// Events that did not fit into a batch, by connection.
struct Lanes<E> {
    of: HashMap<u16, VecDeque<E>>,
    /// The lanes that have events, by group; the next one is first.
    waiting: HashMap<u16, VecDeque<u16>>,
    /// The groups of these; the next one is first.
    turn: VecDeque<u16>,
    /// The group of each lane: the number of its address.
    groups: Box<[u16]>,
    last: Vec<E>,
}

impl<E: Laned> Lanes<E> {
    fn new() -> Self {
        Self {
            of: HashMap::new(),
            waiting: HashMap::new(),
            turn: VecDeque::new(),
            groups: vec![0; LANES].into_boxed_slice(),
            last: Vec::new(),
        }
    }

    fn is_empty(&self) -> bool {
        self.of.is_empty() && self.last.is_empty()
    }

    fn add(&mut self, event: E) {
        let Some(lane) = event.lane() else {
            self.last.push(event);
            return;
        };
        let events = self.of.entry(lane).or_default();
        let first = events.is_empty();
        events.push_back(event);
        if first {
            self.wait(lane);
        }
    }

    fn wait(&mut self, lane: u16) {
        let group = self.groups[usize::from(lane)];
        let lanes = self.waiting.entry(group).or_default();
        if lanes.is_empty() {
            self.turn.push_back(group);
        }
        lanes.push_back(lane);
    }

    /// The next lane, of the next group that has one.
    fn next(&mut self) -> Option<u16> {
        let group = self.turn.pop_front()?;
        let lanes = self.waiting.get_mut(&group)?;
        let lane = lanes.pop_front();
        if lanes.is_empty() {
            self.waiting.remove(&group);
        } else {
            self.turn.push_back(group);
        }
        lane
    }

    /// Take up to `max` events, the same number of each connection, the shortest rows first.
    fn take(&mut self, max: usize) -> Vec<E> {
        let each = (max / self.of.len().max(1)).max(1);
        let (mut rows, mut again) = (Vec::new(), Vec::new());
        let mut left = max;
        while left > 0 {
            let Some(lane) = self.next() else {
                break;
            };
            let Some(events) = self.of.get_mut(&lane) else {
                continue;
            };
            let row: Vec<E> = events.drain(..events.len().min(each).min(left)).collect();
            left -= row.len();
            if events.is_empty() {
                self.of.remove(&lane);
            } else {
                again.push(lane);
            }
            rows.push(row);
        }
        for lane in again {
            self.wait(lane);
        }
        if self.of.is_empty() && left >= self.last.len() {
            rows.push(std::mem::take(&mut self.last));
        } else {
            rows.sort_by_key(Vec::len);
        }
        rows.into_iter().flatten().collect()
    }
}

/// The queue and its wake-up descriptor.
pub struct Inbox<E> {
    queue: SegQueue<E>,
    /// Used by the thread that takes, when it cannot take all.
    lanes: Mutex<Lanes<E>>,
    woken: AtomicBool,
    soon: AtomicBool,
    later: AtomicBool,
    size: AtomicUsize,
    bell: Bell,
}

impl<E: Laned> Inbox<E> {
    /// An empty queue. Fails when the system has no descriptors left.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            queue: SegQueue::new(),
            lanes: Mutex::new(Lanes::new()),
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

    /// Enter a connection: its events take turns with those of its group first.
    pub fn join(&self, lane: u16, group: u16) {
        self.lanes().groups[usize::from(lane)] = group;
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

    fn lanes(&self) -> MutexGuard<'_, Lanes<E>> {
        self.lanes
            .lock()
            .expect("a thread panicked while it held this lock")
    }

    fn wake(&self) {
        if !self.woken.swap(true, Ordering::AcqRel) {
            self.bell.ring();
        }
    }

    /// Take up to `max` events, those of a connection in order; wakes Python again if more are left.
    pub fn take(&self, max: usize) -> Vec<E> {
        self.bell.silence();
        self.woken.store(false, Ordering::Release);
        let mut lanes = self.lanes();
        let mut events = Vec::with_capacity(self.len().min(max));
        if lanes.is_empty() && self.len() <= max {
            while events.len() < max {
                match self.queue.pop() {
                    Some(event) => events.push(event),
                    None => break,
                }
            }
        } else {
            while let Some(event) = self.queue.pop() {
                lanes.add(event);
            }
            events = lanes.take((max / FAIR_PART).max(1));
        }
        self.size.fetch_sub(events.len(), Ordering::Relaxed);
        if !lanes.is_empty() || !self.queue.is_empty() {
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

    impl Laned for u64 {
        fn lane(&self) -> Option<u16> {
            (*self != u64::MAX).then(|| lane_of(*self))
        }
    }

    #[test]
    fn a_flood_of_one_connection_delays_the_others_by_one_batch() {
        let inbox = Inbox::new().unwrap();
        for serial in 0..1_000 {
            inbox.push(call_id(serial, 1));
        }
        inbox.push(u64::MAX);
        inbox.push(call_id(1_000, 2));
        inbox.push(call_id(1_001, 2));
        let first = inbox.take(64);
        assert_eq!(first.len(), 10, "a quarter of the batch is shared");
        assert_eq!(first[..2], [call_id(1_000, 2), call_id(1_001, 2)]);
        let mut rest = first[2..].to_vec();
        while inbox.len() > 0 {
            rest.extend(inbox.take(64));
        }
        assert_eq!(rest.pop(), Some(u64::MAX), "behind all others");
        let serials: Vec<u64> = rest.iter().map(|id| id >> u16::BITS).collect();
        assert_eq!(serials, (0..1_000).collect::<Vec<_>>());
    }

    #[test]
    fn more_connections_than_a_batch_take_turns() {
        let inbox = Inbox::new().unwrap();
        for serial in 0..3 {
            for lane in 0..40 {
                inbox.push(call_id(serial, lane));
            }
        }
        let mut seen = Vec::new();
        for _ in 0..10 {
            seen.extend(inbox.take(16).into_iter().map(lane_of));
        }
        assert_eq!(seen, (0..40).collect::<Vec<_>>());
    }

    #[test]
    fn the_connections_of_one_address_delay_another_address_by_one_batch() {
        let inbox = Inbox::new().unwrap();
        for lane in 0..200 {
            inbox.join(lane, 7);
            (0..5).for_each(|serial| inbox.push(call_id(serial, lane)));
        }
        inbox.join(500, 8);
        inbox.push(call_id(0, 500));
        assert!(inbox.take(64).contains(&call_id(0, 500)));
        // A flood on one connection gets no more than a connection of a crowd.
        (0..99).for_each(|serial| inbox.push(call_id(serial, 500)));
        let of_flood = |events: Vec<u64>| events.iter().filter(|id| lane_of(**id) == 500).count();
        assert_eq!(of_flood(inbox.take(64)), 1);
    }

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
        for id in 1..=AT_ONCE as u64 {
            assert!(!inbox.woken.load(Ordering::Acquire));
            inbox.push_soon(id, 1);
        }
        assert!(inbox.woken.load(Ordering::Acquire));
    }

    #[test]
    fn events_come_in_order_and_in_batches() {
        let inbox = Inbox::new().unwrap();
        for serial in 0..5 {
            inbox.push(Event::Gone(call_id(serial, 7)));
        }
        let ids = |events: Vec<Event>| -> Vec<u64> {
            events
                .into_iter()
                .map(|event| match event {
                    Event::Gone(id) => id >> u16::BITS,
                    _ => unreachable!(),
                })
                .collect()
        };
        assert_eq!(inbox.len(), 5);
        assert_eq!(ids(inbox.take(12)), [0, 1, 2, 3, 4]);
        assert_eq!(ids(inbox.take(3)), Vec::<u64>::new());
        for serial in 0..5 {
            inbox.push(Event::Gone(call_id(serial, 7)));
        }
        assert_eq!(ids(inbox.take(4)), [0]);
        assert_eq!(ids(inbox.take(4)), [1]);
        assert_eq!(ids(inbox.take(12)), [2, 3, 4]);
        assert_eq!(inbox.len(), 0);
        assert!(inbox.take(3).is_empty());
    }
}
