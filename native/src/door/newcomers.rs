//! Newcomers: connections that have had no answer yet. Strangers are among them, and clients that
//! were there before go first.
//!
//! `Newcomers` limits those of one address: how many come in a second, and how many there are.
//! `Slices` limits the time that all of them take from the network thread: what an open connection
//! costs is little, but a stranger may open many and begin hundreds of calls on each.

use std::collections::{HashMap, VecDeque};
use std::future::{poll_fn, Future};
use std::net::{IpAddr, Ipv6Addr};
use std::pin::{pin, Pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::sleep;

/// Connections that may come at once, and newcomers that may be open, in seconds of the rate.
const BURST_S: f64 = 10.0;
const OPEN_S: usize = 5;
/// Newcomers of one address that a port with few connections has room for.
const OPEN_MIN: usize = 16;
/// Addresses with a count of their own. All further addresses share one count.
const ADDRESSES_MAX: usize = 10_000;
/// Newcomers get one part in this many of the thread's time, and at most `CREDIT_MAX` at once. What
/// one reads at once, and the calls in it, may take more: the others wait longer then.
const PART: u32 = 5;
const CREDIT_MAX: Duration = Duration::from_millis(5);
/// Those that wait are woken a few at a time.
const WAKE_EVERY: Duration = Duration::from_millis(1);
const WAKE_MAX: usize = 8;

/// The newcomers of each address.
pub struct Newcomers {
    rate: f64,
    open_max: usize,
    seen: Mutex<HashMap<IpAddr, Seen>>,
}

struct Seen {
    /// Connections beyond the rate.
    ahead: f64,
    at: Instant,
    open: usize,
}

impl Seen {
    fn settle(&mut self, rate: f64, now: Instant) {
        self.ahead = (self.ahead - rate * (now - self.at).as_secs_f64()).max(0.0);
        self.at = now;
    }
}

impl Newcomers {
    /// `rate`: connections of one address in a second; 0: no limit. `connections`: those of the
    /// port; the newcomers of one address may be half of them, or `OPEN_MIN`.
    pub fn new(rate: usize, connections: usize) -> Self {
        let open_max = if rate == 0 {
            usize::MAX
        } else {
            (OPEN_S * rate).min((connections / 2).max(OPEN_MIN))
        };
        Self {
            rate: rate as f64,
            open_max,
            seen: Mutex::default(),
        }
    }

    /// Count a connection from this address; `None` if it must be closed.
    pub fn admit(self: &Arc<Self>, address: IpAddr, now: Instant) -> Option<Newcomer> {
        let mut address = network(address);
        let mut seen = self.lock();
        if seen.len() >= ADDRESSES_MAX && !seen.contains_key(&address) {
            seen.retain(|_, each| {
                each.settle(self.rate, now);
                each.open > 0 || each.ahead > 0.0
            });
            if seen.len() >= ADDRESSES_MAX {
                address = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
            }
        }
        let one = seen.entry(address).or_insert(Seen {
            ahead: 0.0,
            at: now,
            open: 0,
        });
        one.settle(self.rate, now);
        if one.open >= self.open_max || (self.rate > 0.0 && one.ahead + 1.0 > BURST_S * self.rate) {
            return None;
        }
        if self.rate > 0.0 {
            one.ahead += 1.0;
        }
        one.open += 1;
        Some(Newcomer {
            all: Arc::clone(self),
            address,
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, Seen>> {
        self.seen
            .lock()
            .expect("a thread panicked while it held this lock")
    }
}

/// The network of a peer: one subscriber has all addresses of a network of IPv6.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & (!0u128 << 64))),
        address => address,
    }
}

/// One connection that counts as a newcomer.
pub struct Newcomer {
    all: Arc<Newcomers>,
    address: IpAddr,
}

impl Drop for Newcomer {
    fn drop(&mut self) {
        if let Some(one) = self.all.lock().get_mut(&self.address) {
            one.open -= 1;
        }
    }
}

/// The time of the network thread for newcomers.
#[derive(Default)]
pub struct Slices {
    state: Mutex<State>,
    bell: Notify,
}

#[derive(Default)]
struct State {
    /// Time that newcomers may take, and what they took beyond it.
    credit: Duration,
    debt: Duration,
    at: Option<Instant>,
    waiting: VecDeque<(Waker, Arc<AtomicBool>)>,
}

impl State {
    /// Add the credit of the time since the last call; true if there is some.
    fn earn(&mut self, now: Instant) -> bool {
        let earned = self.at.map_or(CREDIT_MAX, |at| (now - at) / PART);
        self.at = Some(now);
        let paid = earned.min(self.debt);
        self.debt -= paid;
        self.credit = (self.credit + (earned - paid)).min(CREDIT_MAX);
        !self.credit.is_zero()
    }

    fn spend(&mut self, spent: Duration) {
        let paid = spent.min(self.credit);
        self.credit -= paid;
        self.debt += spent - paid;
    }
}

impl Slices {
    /// Do the work of a newcomer when there is time for it.
    pub async fn share<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        let waits = Arc::default();
        poll_fn(|context| self.poll(work.as_mut(), &waits, context)).await
    }

    /// Do the work of a call of a newcomer: at once, because it holds memory that is counted then,
    /// but in the time of newcomers.
    pub async fn charge<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        poll_fn(|context| {
            let begin = Instant::now();
            let polled = work.as_mut().poll(context);
            self.lock().spend(begin.elapsed());
            polled
        })
        .await
    }

    /// Poll the work of a newcomer, or wait for time; `waits` belongs to this work.
    pub fn poll<F: Future>(
        &self,
        work: Pin<&mut F>,
        waits: &Arc<AtomicBool>,
        context: &mut Context<'_>,
    ) -> Poll<F::Output> {
        let begin = Instant::now();
        {
            let mut state = self.lock();
            if !state.earn(begin) {
                if !waits.swap(true, Ordering::AcqRel) {
                    let waker = context.waker().clone();
                    state.waiting.push_back((waker, Arc::clone(waits)));
                    self.bell.notify_one();
                }
                return Poll::Pending;
            }
        }
        let polled = work.poll(context);
        self.lock().spend(begin.elapsed());
        polled
    }

    /// Wake those that wait when there is time for them. Runs as long as the server.
    pub async fn run(&self) {
        loop {
            if self.lock().waiting.is_empty() {
                self.bell.notified().await;
            }
            sleep(WAKE_EVERY).await;
            let mut woken = Vec::new();
            {
                let mut state = self.lock();
                if state.earn(Instant::now()) {
                    let count = state.waiting.len().min(WAKE_MAX);
                    woken.extend(state.waiting.drain(..count));
                }
            }
            for (waker, waits) in woken {
                waits.store(false, Ordering::Release);
                waker.wake();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .expect("a thread panicked while it held this lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn all(newcomers: &Arc<Newcomers>, count: usize, now: Instant) -> Vec<Newcomer> {
        (0..count)
            .filter_map(|_| newcomers.admit(ONE, now))
            .collect()
    }

    #[test]
    fn an_address_has_a_rate_and_a_burst() {
        let (newcomers, now) = (Arc::new(Newcomers::new(10, 1_000)), Instant::now());
        let admitted: usize = (0..500).map(|_| all(&newcomers, 1, now).len()).sum();
        assert_eq!(admitted, 100);
        assert_eq!(all(&newcomers, 500, now + Duration::from_secs(1)).len(), 10);
        let other = "192.0.2.1".parse().unwrap();
        assert!(newcomers.admit(other, now).is_some());
    }

    #[test]
    fn an_address_has_some_newcomers_and_less_than_the_port() {
        let now = Instant::now();
        let newcomers = Arc::new(Newcomers::new(10, 1_000));
        let open = all(&newcomers, 500, now);
        assert_eq!(open.len(), 50);
        drop(open);
        assert_eq!(all(&newcomers, 500, now).len(), 50);
        assert_eq!(all(&Arc::new(Newcomers::new(100, 128)), 500, now).len(), 64);
        assert_eq!(all(&Arc::new(Newcomers::new(0, 128)), 500, now).len(), 500);
    }

    #[test]
    fn a_network_of_ipv6_counts_as_one_address() {
        let of = |text: &str| network(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:2"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:127.0.0.1"), of("127.0.0.1"));
    }

    #[test]
    fn addresses_that_left_are_forgotten() {
        let (newcomers, now) = (Arc::new(Newcomers::new(10, 1_000)), Instant::now());
        for number in 0..ADDRESSES_MAX as u32 + 10 {
            let address = IpAddr::V4(std::net::Ipv4Addr::from_bits(number));
            let later = now + Duration::from_secs(u64::from(number));
            assert!(newcomers.admit(address, later).is_some());
        }
        assert!(newcomers.lock().len() <= ADDRESSES_MAX);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn work_waits_for_its_time_and_is_done() {
        let slices = Arc::new(Slices::default());
        let hold = Duration::from_millis(20);
        let busy = poll_fn(|_| {
            std::thread::sleep(hold);
            Poll::Ready(())
        });
        slices.charge(busy).await;
        let waits = Arc::default();
        let mut next = pin!(std::future::ready(7));
        let now = poll_fn(|context| Poll::Ready(slices.poll(next.as_mut(), &waits, context))).await;
        assert!(now.is_pending(), "the time is used up");
        tokio::select! {
            () = slices.run() => unreachable!("it never ends"),
            done = slices.share(std::future::ready(9)) => assert_eq!(done, 9),
        }
    }
}
