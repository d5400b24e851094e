//! Turns of the network thread: which connection goes next.
//!
//! The thread's queue serves what is ready in the order in which it became so, and a flood makes it
//! long. An address that has taken less than its part of the thread's time goes at once. The
//! connections of the other addresses wait for a turn; a few have one at a time, and those that have
//! taken little go first. So a flood waits in its own sockets. No time is left unused: a single
//! address is served at full speed.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::task::spawn;

use crate::door::authority::{Room, TURN_CALLS};

/// The part of the thread's time within which an address goes at once, and within which a connection
/// of another address goes before those that take more.
const ADDRESS_PART: u32 = 4;
const CONNECTION_PART: u32 = 32;
/// What may be taken at once, and what is remembered of that beyond the part.
const CREDIT_MAX: Duration = Duration::from_millis(5);
const DEBT_MAX: Duration = Duration::from_millis(50);
/// Connections that have their turn between others, and how many of them have taken more than others.
const TURN_MAX: usize = 16;
const BUSY_MAX: usize = 4;
/// New calls in a turn of a connection that has taken more, for `SHORT_FOR` after one that has taken
/// little had to wait: it waits for several such turns.
const SHORT_CALLS: usize = 24;
const SHORT_FOR: Duration = Duration::from_millis(100);

/// A part of the time of the thread.
pub struct Credit {
    part: u32,
    debt_max: Duration,
    /// Time that may be taken, and what was taken beyond it.
    left: Duration,
    debt: Duration,
    at: Option<Instant>,
}

impl Credit {
    /// One part in `part` of the time, and at most `CREDIT_MAX` at once.
    pub fn new(part: u32, debt_max: Duration) -> Self {
        Self {
            part,
            debt_max,
            left: Duration::ZERO,
            debt: Duration::ZERO,
            at: None,
        }
    }

    /// That of an address.
    pub fn of_address() -> Self {
        Self::new(ADDRESS_PART, DEBT_MAX)
    }

    /// Add the credit of the time since the last call; true if there is some.
    pub fn earn(&mut self, now: Instant) -> bool {
        let earned = self.at.map_or(CREDIT_MAX, |at| (now - at) / self.part);
        self.at = Some(now);
        let paid = earned.min(self.debt);
        self.debt -= paid;
        self.left = (self.left + (earned - paid)).min(CREDIT_MAX);
        !self.left.is_zero()
    }

    /// Time was taken.
    pub fn spend(&mut self, spent: Duration) {
        let paid = spent.min(self.left);
        self.left -= paid;
        self.debt = (self.debt + (spent - paid)).min(self.debt_max);
    }
}

/// Tasks that wait, each once.
#[derive(Default)]
pub struct Waiters(VecDeque<(Waker, Arc<AtomicBool>)>);

impl Waiters {
    /// True if no task waits.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Let a task wait, unless it does: `waits` belongs to it. True if it did not.
    pub fn add(&mut self, waits: &Arc<AtomicBool>, context: &Context<'_>) -> bool {
        let new = !waits.swap(true, Ordering::AcqRel);
        if new {
            let waker = context.waker().clone();
            self.0.push_back((waker, Arc::clone(waits)));
        }
        new
    }

    /// Return the first ones, for `wake`.
    pub fn take(&mut self, max: usize) -> Self {
        Self(self.0.drain(..max.min(self.0.len())).collect())
    }

    /// Wake these, without a lock.
    pub fn wake(self) {
        for (waker, waits) in self.0 {
            waits.store(false, Ordering::Release);
            waker.wake();
        }
    }
}

/// The turn of one connection.
pub struct Turn {
    address: Arc<Mutex<Credit>>,
    own: Credit,
    room: Arc<Room>,
    waits: Arc<AtomicBool>,
    waiting: bool,
}

impl Turn {
    /// Of a connection at the address that has this credit; each turn fills `room`.
    pub fn new(address: Arc<Mutex<Credit>>, room: Arc<Room>) -> Self {
        Self {
            address,
            own: Credit::new(CONNECTION_PART, DEBT_MAX),
            room,
            waits: Arc::default(),
            waiting: false,
        }
    }
}

/// The connections that wait for their turn.
#[derive(Default)]
pub struct Turns {
    waiting: Mutex<Waiting>,
    bell: Notify,
}

#[derive(Default)]
struct Waiting {
    /// Connections that have taken little, and others.
    modest: Waiters,
    busy: Waiters,
    /// When one of the modest had to wait last.
    modest_at: Option<Instant>,
}

impl Turns {
    /// Poll the work of a connection, or wait for its turn.
    pub fn poll<F: Future>(
        &self,
        turn: &mut Turn,
        work: Pin<&mut F>,
        context: &mut Context<'_>,
    ) -> Poll<F::Output> {
        let begin = Instant::now();
        let modest = turn.own.earn(begin);
        let at_once = lock(&turn.address).earn(begin);
        let called = turn.waiting && !turn.waits.load(Ordering::Acquire);
        if !at_once && !called {
            self.wait(turn, modest, begin, context);
            return Poll::Pending;
        }
        turn.waiting = false;
        let short = !at_once && !modest && self.modest_waited(begin);
        turn.room
            .refill(if short { SHORT_CALLS } else { TURN_CALLS });
        let polled = work.poll(context);
        let spent = begin.elapsed();
        turn.own.spend(spent);
        lock(&turn.address).spend(spent);
        polled
    }

    fn modest_waited(&self, now: Instant) -> bool {
        let at = lock(&self.waiting).modest_at;
        at.is_some_and(|at| now - at < SHORT_FOR)
    }

    fn wait(&self, turn: &mut Turn, modest: bool, now: Instant, context: &Context<'_>) {
        turn.waiting = true;
        let mut waiting = lock(&self.waiting);
        let row = if modest {
            waiting.modest_at = Some(now);
            &mut waiting.modest
        } else {
            &mut waiting.busy
        };
        if row.add(&turn.waits, context) {
            self.bell.notify_one();
        }
    }

    /// Call those that wait, a few whenever the thread has gone through its queue. Runs as long as
    /// the server.
    pub async fn run(&self) {
        loop {
            let called = {
                let mut waiting = lock(&self.waiting);
                let busy = waiting.busy.take(BUSY_MAX);
                let modest = waiting.modest.take(TURN_MAX - busy.0.len());
                let more = waiting.busy.take(TURN_MAX - busy.0.len() - modest.0.len());
                [modest, busy, more]
            };
            if called.iter().all(Waiters::is_empty) {
                self.bell.notified().await;
            } else {
                called.into_iter().for_each(Waiters::wake);
                // A new task is behind all that is ready; `yield_now` waits for a few of them.
                let _ = spawn(async {}).await;
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .expect("a thread panicked while it held this lock")
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::future::poll_fn;
    use std::rc::Rc;

    use tokio::task::{yield_now, LocalSet};

    use super::*;

    /// Poll work that takes a while, without waiting.
    async fn is_served(turns: &Turns, turn: &mut Turn, spent: Duration) -> bool {
        let work = poll_fn(|_| {
            std::thread::sleep(spent);
            Poll::Ready(())
        });
        let mut work = std::pin::pin!(work);
        poll_fn(|context| Poll::Ready(turns.poll(turn, work.as_mut(), context).is_ready())).await
    }

    fn address() -> Arc<Mutex<Credit>> {
        Arc::new(Mutex::new(Credit::of_address()))
    }

    fn turn(address: &Arc<Mutex<Credit>>) -> Turn {
        Turn::new(Arc::clone(address), Arc::new(Room::new()))
    }

    #[tokio::test(flavor = "current_thread")]
    async fn turns_are_short_while_a_connection_that_takes_little_waits() {
        let (turns, crowd) = (Rc::new(Turns::default()), address());
        let mut busy = turn(&crowd);
        let room = Arc::clone(&busy.room);
        let calls = |room: &Room| (0..1_000).take_while(|_| room.take_call()).count();
        assert!(is_served(&turns, &mut busy, 2 * DEBT_MAX).await);
        for (modest_waits, expected) in [(false, TURN_CALLS), (true, SHORT_CALLS)] {
            if modest_waits {
                assert!(!is_served(&turns, &mut turn(&crowd), Duration::ZERO).await);
            }
            assert!(!is_served(&turns, &mut busy, Duration::ZERO).await);
            busy.waits.store(false, Ordering::Release); // it is called
            assert!(is_served(&turns, &mut busy, Duration::ZERO).await);
            assert_eq!(calls(&room), expected);
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn an_address_that_takes_much_waits_and_another_one_does_not() {
        let turns = Turns::default();
        let crowd = address();
        let mut one = turn(&crowd);
        let (mut two, mut other) = (turn(&crowd), turn(&address()));
        assert!(is_served(&turns, &mut one, 2 * CREDIT_MAX).await);
        assert!(!is_served(&turns, &mut one, Duration::ZERO).await);
        assert!(!is_served(&turns, &mut two, Duration::ZERO).await);
        assert!(is_served(&turns, &mut other, Duration::ZERO).await);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn of_those_that_wait_connections_that_took_little_go_first_and_all_go() {
        let turns = Rc::new(Turns::default());
        let crowd = address();
        let order = Rc::new(RefCell::new(Vec::new()));
        let local = LocalSet::new();
        for number in 0..2 * TURN_MAX {
            let mut turn = turn(&crowd);
            if number < TURN_MAX {
                turn.own.at = Some(Instant::now());
                turn.own.debt = Duration::from_secs(100);
            }
            lock(&crowd).debt = Duration::from_secs(100);
            lock(&crowd).at = Some(Instant::now());
            let (turns, order) = (Rc::clone(&turns), Rc::clone(&order));
            local.spawn_local(async move {
                let mut work = std::pin::pin!(std::future::ready(()));
                poll_fn(|context| turns.poll(&mut turn, work.as_mut(), context)).await;
                order.borrow_mut().push(number < TURN_MAX);
            });
        }
        let all = local.run_until(async {
            while order.borrow().len() < 2 * TURN_MAX {
                yield_now().await;
            }
        });
        tokio::select! {
            () = turns.run() => unreachable!("it never ends"),
            () = all => {}
        }
        let first = order.borrow()[..TURN_MAX].to_vec();
        let busy = first.iter().filter(|each| **each).count();
        assert_eq!(busy, BUSY_MAX);
    }
}
