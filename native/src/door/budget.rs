//! Byte budgets: what the requests of clients that are not complete yet, and answers that they have
//! not read yet, may hold.
//!
//! A `Pool` is the budget of the process, a `Share` the part of one connection. Both only count;
//! the callers refuse or disconnect.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::Notify;

/// What an unfinished request holds besides its bytes, so that many small ones take a share.
const OVERHEAD: usize = 1 << 10;
/// What the stream of a call holds in the library and in its task, as measured.
const STREAM: usize = 4 << 10;

/// The streams of unfinished requests that a known connection may always have.
const FEW: usize = 64 * STREAM;
/// A part of a budget of streams, in bytes: the connection is one of those that use it up.
const CROWDED: usize = 1 << 20;

/// The budget of the process.
pub struct Pool {
    used: AtomicUsize,
    sharers: AtomicUsize,
    limit: usize,
}

impl Pool {
    /// An unused budget.
    pub fn new(limit: usize) -> Self {
        Self {
            used: AtomicUsize::new(0),
            sharers: AtomicUsize::new(0),
            limit,
        }
    }

    /// Bytes in use.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Acquire)
    }

    /// True if more than `times` the budget is used.
    pub fn exceeds(&self, times: usize) -> bool {
        self.used() > self.limit.saturating_mul(times)
    }

    /// True if a connection that uses `own` bytes may use no more: the budget is used up, or half
    /// of it is, and the connection has more than its share of that half.
    fn is_short(&self, own: usize) -> bool {
        let used = self.used();
        let half = self.limit / 2;
        let sharers = self.sharers.load(Ordering::Acquire).max(1);
        used > self.limit || (used > half && own > half / sharers)
    }
}

/// The part of one connection.
pub struct Share {
    pool: Arc<Pool>,
    own: AtomicUsize,
    limit: usize,
    /// Notified when the connection uses more than it may.
    pub exceeded: Notify,
}

impl Share {
    /// An unused part of at most `limit` bytes.
    pub fn new(pool: Arc<Pool>, limit: usize) -> Self {
        Self {
            pool,
            own: AtomicUsize::new(0),
            limit,
            exceeded: Notify::new(),
        }
    }

    /// True if the connection has more than it may, or a part of what is too much in all.
    pub fn is_exceeded(&self) -> bool {
        let own = self.used();
        own > self.limit || (own >= CROWDED && self.pool.exceeds(1))
    }

    /// Bytes in use by the connection.
    pub fn used(&self) -> usize {
        self.own.load(Ordering::Acquire)
    }

    fn add(&self, size: usize) -> usize {
        let before = self.own.fetch_add(size, Ordering::AcqRel);
        if before == 0 && size > 0 {
            self.pool.sharers.fetch_add(1, Ordering::AcqRel);
        }
        self.pool.used.fetch_add(size, Ordering::AcqRel);
        before + size
    }

    fn subtract(&self, size: usize) {
        if self.own.fetch_sub(size, Ordering::AcqRel) == size && size > 0 {
            self.pool.sharers.fetch_sub(1, Ordering::AcqRel);
        }
        self.pool.used.fetch_sub(size, Ordering::AcqRel);
    }
}

/// A part of a budget: the bytes of one request, from its headers until Python takes it, or the
/// stream of a call.
pub struct Held {
    share: Arc<Share>,
    bytes: usize,
}

impl Held {
    /// A request of which nothing has arrived but its headers.
    pub fn new(share: &Arc<Share>) -> Self {
        Self::of(share, OVERHEAD)
    }

    /// The stream of a call, as long as its request is unfinished; `None` if the budget does not
    /// allow it. A connection that is `known` may have a few beyond the budget, so that newcomers
    /// cannot use it up.
    pub fn request(share: &Arc<Share>, known: bool) -> Option<Self> {
        let held = Self::of(share, STREAM);
        let own = share.used();
        let few = known && own <= FEW && !share.pool.exceeds(2);
        (few || held.allowed(own)).then_some(held)
    }

    /// The stream of a call from its answer on, until the end of the answer was written or dropped;
    /// notifies `Share::exceeded` if `is_exceeded`. Many answers may be given at once: the caller
    /// must wait for the connection to read them.
    pub fn answer(share: &Arc<Share>) -> Self {
        let held = Self::of(share, STREAM);
        if share.is_exceeded() {
            share.exceeded.notify_one();
        }
        held
    }

    fn of(share: &Arc<Share>, bytes: usize) -> Self {
        share.add(bytes);
        Self {
            share: Arc::clone(share),
            bytes,
        }
    }

    fn allowed(&self, own: usize) -> bool {
        let alone = own <= self.bytes;
        (alone || own <= self.share.limit) && !self.share.pool.is_short(own)
    }

    /// Set the number of bytes that have arrived; false if the budget does not allow them. One
    /// request alone may exceed the budget of its connection.
    #[must_use]
    pub fn set(&mut self, size: usize) -> bool {
        let bytes = size + OVERHEAD;
        let own = if bytes >= self.bytes {
            self.share.add(bytes - self.bytes)
        } else {
            self.share.subtract(self.bytes - bytes);
            self.share.used()
        };
        self.bytes = bytes;
        self.allowed(own)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.share.subtract(self.bytes);
    }
}

struct Unread {
    data: Bytes,
    share: Arc<Share>,
}

impl AsRef<[u8]> for Unread {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        self.share.subtract(self.data.len());
    }
}

/// Count the data of an answer until its last byte was written to the socket or dropped; notifies
/// `Share::exceeded` if the connection has more unread answers than it may. One answer alone may
/// exceed the budget of its connection.
pub fn counted(share: &Arc<Share>, data: Bytes) -> Bytes {
    let size = data.len();
    let own = share.add(size);
    if (own > share.limit && own > size) || share.pool.exceeds(2) {
        share.exceeded.notify_one();
    }
    Bytes::from_owner(Unread {
        data,
        share: Arc::clone(share),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(pool: &Arc<Pool>, limit: usize) -> Arc<Share> {
        Arc::new(Share::new(Arc::clone(pool), limit))
    }

    #[test]
    fn one_request_may_exceed_the_budget_of_its_connection_and_a_second_one_may_not() {
        let pool = Arc::new(Pool::new(1 << 30));
        let share = share(&pool, 10_000);
        let mut first = Held::new(&share);
        assert!(first.set(50_000));
        let mut second = Held::new(&share);
        assert!(!second.set(1));
        drop(first);
        assert!(second.set(1));
        drop(second);
        assert_eq!((share.used(), pool.used()), (0, 0));
    }

    #[test]
    fn a_connection_with_more_than_its_share_is_refused_first() {
        let pool = Arc::new(Pool::new(100_000));
        let (greedy, modest) = (share(&pool, 1 << 20), share(&pool, 1 << 20));
        let mut large = Held::new(&greedy);
        assert!(large.set(48_000));
        let mut small = Held::new(&modest);
        assert!(small.set(10_000));
        assert!(!large.set(48_001));
        assert!(small.set(20_000));
        assert!(!small.set(60_000)); // beyond the whole budget
        assert_eq!(pool.sharers.load(Ordering::Acquire), 2);
    }

    #[test]
    fn answers_count_until_they_are_dropped() {
        let pool = Arc::new(Pool::new(1 << 20));
        let share = share(&pool, 5_000);
        let mut first = counted(&share, Bytes::from(vec![0; 4_000]));
        let piece = first.split_to(1_000);
        drop(first);
        assert_eq!(share.used(), 4_000);
        drop(piece);
        assert_eq!(share.used(), 0);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn the_streams_of_small_answers_count() {
        let pool = Arc::new(Pool::new(3 * CROWDED));
        let (greedy, modest) = (share(&pool, 2 * CROWDED), share(&pool, 2 * CROWDED));
        let mut held: Vec<Held> = (0..2 * CROWDED / STREAM)
            .map(|_| Held::answer(&greedy))
            .collect();
        assert_eq!(greedy.used(), 2 * CROWDED);
        held.push(Held::answer(&greedy));
        greedy.exceeded.notified().await; // its own limit
        held.extend((0..CROWDED / STREAM).map(|_| Held::answer(&modest)));
        modest.exceeded.notified().await; // that of all, and it has a part in it
        drop(held);
        assert_eq!((greedy.used(), pool.used()), (0, 0));
    }

    #[test]
    fn the_streams_of_unfinished_requests_count() {
        let pool = Arc::new(Pool::new(1 << 30));
        let share = share(&pool, 2 * STREAM);
        let held = [Held::request(&share, false), Held::request(&share, false)];
        assert!(held.iter().all(Option::is_some));
        assert!(Held::request(&share, false).is_none());
        assert_eq!(share.used(), 2 * STREAM);
    }

    #[test]
    fn newcomers_do_not_use_up_the_streams_of_others() {
        let pool = Arc::new(Pool::new(4 * STREAM));
        let (stranger, known) = (share(&pool, 1 << 20), share(&pool, 1 << 20));
        let mut held = Vec::new();
        while let Some(one) = Held::request(&stranger, false) {
            held.push(one);
        }
        assert!(held.len() <= 4);
        assert!(Held::request(&stranger, false).is_none());
        assert!(Held::request(&known, true).is_some());
    }

    #[tokio::test(flavor = "current_thread")]
    async fn too_many_unread_answers_notify() {
        let pool = Arc::new(Pool::new(1 << 20));
        let share = share(&pool, 5_000);
        let _first = counted(&share, Bytes::from(vec![0; 9_000]));
        let _second = counted(&share, Bytes::from(vec![0; 2_000]));
        share.exceeded.notified().await;
    }
}
