//! Newcomers: connections that have had no answer yet. Strangers are among them, and clients that
//! were there before go first.
//!
//! `Newcomers` limits those of one address: how many come in a second, and how many there are; and
//! how many connections an address has at all, so that it cannot take the places of the others.
//! `Slices` limits the time that all of them take from the network thread: what an open connection
//! costs is little, but a stranger may open many and begin hundreds of calls on each.

use std::collections::HashMap;
use std::future::{poll_fn, Future};
use std::net::{IpAddr, Ipv6Addr};
use std::pin::{pin, Pin};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::sleep;

use crate::door::options::Options;
use crate::door::turns::{Credit, Waiters};

/// Connections that may come at once, and newcomers that may be open, in seconds of the rate.
const BURST_S: f64 = 10.0;
const OPEN_S: usize = 5;
/// Newcomers of one address that a port with few connections has room for.
const OPEN_MIN: usize = 16;
/// Addresses with a count of their own, beyond the number of connections. All further addresses
/// share one count.
const ADDRESSES_MAX: usize = 10_000;
/// Newcomers get one part in this many of the thread's time. What one reads at once, and the calls in
/// it, may take more than they have: the others wait longer then.
const PART: u32 = 5;
const POISONED: &str = "a thread panicked while it held this lock";
/// Those that wait are woken a few at a time.
const WAKE_EVERY: Duration = Duration::from_millis(1);
const WAKE_MAX: usize = 8;

/// The newcomers of each address.
pub struct Newcomers {
    rate: f64,
    open_max: usize,
    all_max: usize,
    addresses_max: usize,
    seen: Mutex<HashMap<IpAddr, Seen>>,
    groups: AtomicU16,
    /// Connections refused because of all those of their address.
    crowded: AtomicU64,
    refused: Mutex<Option<IpAddr>>,
}

struct Seen {
    /// Connections beyond the rate.
    ahead: f64,
    at: Instant,
    open: usize,
    /// Connections, newcomers included.
    all: usize,
    group: u16,
    credit: Arc<Mutex<Credit>>,
}

impl Seen {
    fn settle(&mut self, rate: f64, now: Instant) {
        self.ahead = (self.ahead - rate * (now - self.at).as_secs_f64()).max(0.0);
        self.at = now;
    }
}

impl Newcomers {
    /// The newcomers of one address may be half of the connections of the port, or `OPEN_MIN`; no
    /// limit without a rate.
    pub fn new(options: &Options) -> Self {
        Self::limited(
            options.connection_rate,
            options.connections,
            options.address_connections,
        )
    }

    fn limited(rate: usize, connections: usize, all_max: usize) -> Self {
        let open_max = if rate == 0 {
            usize::MAX
        } else {
            (OPEN_S * rate).min((connections / 2).max(OPEN_MIN))
        };
        Self {
            rate: rate as f64,
            open_max,
            all_max,
            addresses_max: ADDRESSES_MAX + connections,
            seen: Mutex::default(),
            groups: AtomicU16::new(0),
            crowded: AtomicU64::new(0),
            refused: Mutex::default(),
        }
    }

    /// Count a connection from this address; `None` if it must be closed.
    pub fn admit(self: &Arc<Self>, peer: IpAddr, now: Instant) -> Option<Guest> {
        let mut address = network(peer);
        let mut seen = self.lock();
        if seen.len() >= self.addresses_max && !seen.contains_key(&address) {
            seen.retain(|_, each| {
                each.settle(self.rate, now);
                each.all > 0 || each.ahead > 0.0
            });
            if seen.len() >= self.addresses_max {
                address = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
            }
        }
        let one = seen.entry(address).or_insert_with(|| Seen {
            ahead: 0.0,
            at: now,
            open: 0,
            all: 0,
            group: self.groups.fetch_add(1, Ordering::Relaxed),
            credit: Arc::new(Mutex::new(Credit::of_address())),
        });
        one.settle(self.rate, now);
        if one.open >= self.open_max || (self.rate > 0.0 && one.ahead + 1.0 > BURST_S * self.rate) {
            return None;
        }
        // Behind an address of this machine is a proxy of any number of clients, or no stranger.
        if one.all >= self.all_max && !address.is_loopback() {
            self.crowded.fetch_add(1, Ordering::Relaxed);
            *self.refused.lock().expect(POISONED) = Some(peer.to_canonical());
            return None;
        }
        if self.rate > 0.0 {
            one.ahead += 1.0;
        }
        one.open += 1;
        one.all += 1;
        let (group, credit) = (one.group, Arc::clone(&one.credit));
        let newcomer = Newcomer {
            all: Arc::clone(self),
            address,
        };
        let place = Place {
            all: Arc::clone(self),
            address,
            group,
            credit,
        };
        Some(Guest { newcomer, place })
    }

    /// Connections refused because of all those of their address.
    pub fn crowded(&self) -> u64 {
        self.crowded.load(Ordering::Relaxed)
    }

    /// The address that was refused last because of all its connections; each is returned once.
    pub fn refused(&self) -> Option<IpAddr> {
        self.refused.lock().expect(POISONED).take()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, Seen>> {
        self.seen.lock().expect(POISONED)
    }
}

/// The network of a peer: one subscriber has all addresses of a network of IPv6.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & (!0u128 << 64))),
        address => address,
    }
}

/// A connection that was admitted.
pub struct Guest {
    /// Until its first answer.
    pub newcomer: Newcomer,
    /// Until its end.
    pub place: Place,
}

/// One connection of an address.
pub struct Place {
    all: Arc<Newcomers>,
    address: IpAddr,
    /// The number of the address; with many, several have one.
    pub group: u16,
    credit: Arc<Mutex<Credit>>,
}

impl Place {
    /// The credit of its address.
    pub fn credit(&self) -> Arc<Mutex<Credit>> {
        Arc::clone(&self.credit)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(one) = self.all.lock().get_mut(&self.address) {
            one.all -= 1;
        }
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

struct State {
    credit: Credit,
    waiting: Waiters,
}

impl Default for State {
    fn default() -> Self {
        Self {
            credit: Credit::new(PART, Duration::MAX),
            waiting: Waiters::default(),
        }
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
            self.lock().credit.spend(begin.elapsed());
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
            if !state.credit.earn(begin) {
                if state.waiting.add(waits, context) {
                    self.bell.notify_one();
                }
                return Poll::Pending;
            }
        }
        let polled = work.poll(context);
        self.lock().credit.spend(begin.elapsed());
        polled
    }

    /// Wake those that wait when there is time for them. Runs as long as the server.
    pub async fn run(&self) {
        loop {
            if self.lock().waiting.is_empty() {
                self.bell.notified().await;
            }
            sleep(WAKE_EVERY).await;
            let mut woken = Waiters::default();
            {
                let mut state = self.lock();
                if state.credit.earn(Instant::now()) {
                    woken = state.waiting.take(WAKE_MAX);
                }
            }
            woken.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect(POISONED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn limited(rate: usize, connections: usize) -> Arc<Newcomers> {
        Arc::new(Newcomers::limited(rate, connections, usize::MAX))
    }

    fn all(newcomers: &Arc<Newcomers>, count: usize, now: Instant) -> Vec<Guest> {
        (0..count)
            .filter_map(|_| newcomers.admit(ONE, now))
            .collect()
    }

    #[test]
    fn an_address_has_a_rate_and_a_burst() {
        let (newcomers, now) = (limited(10, 1_000), Instant::now());
        let admitted: usize = (0..500).map(|_| all(&newcomers, 1, now).len()).sum();
        assert_eq!(admitted, 100);
        assert_eq!(all(&newcomers, 500, now + Duration::from_secs(1)).len(), 10);
        let other = "192.0.2.1".parse().unwrap();
        assert!(newcomers.admit(other, now).is_some());
    }

    #[test]
    fn an_address_has_some_newcomers_and_less_than_the_port() {
        let now = Instant::now();
        let newcomers = limited(10, 1_000);
        let open = all(&newcomers, 500, now);
        assert_eq!(open.len(), 50);
        drop(open);
        assert_eq!(all(&newcomers, 500, now).len(), 50);
        assert_eq!(all(&limited(100, 128), 500, now).len(), 64);
        assert_eq!(all(&limited(0, 128), 500, now).len(), 500);
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
        let (newcomers, now) = (limited(10, 1_000), Instant::now());
        for number in 0..newcomers.addresses_max as u32 + 10 {
            let address = IpAddr::V4(std::net::Ipv4Addr::from_bits(number));
            let later = now + Duration::from_secs(u64::from(number));
            assert!(newcomers.admit(address, later).is_some());
        }
        assert!(newcomers.lock().len() <= newcomers.addresses_max);
    }

    #[test]
    fn an_address_that_is_not_of_this_machine_has_a_number_of_connections() {
        let (newcomers, now) = (Arc::new(Newcomers::limited(0, 100, 3)), Instant::now());
        let remote = "192.0.2.1".parse().unwrap();
        let admit = |address| newcomers.admit(address, now).map(|guest| guest.place);
        let mut open: Vec<Place> = (0..9).filter_map(|_| admit(remote)).collect();
        assert_eq!(open.len(), 3);
        assert_eq!(newcomers.refused(), Some(remote));
        assert_eq!(newcomers.refused(), None, "each refusal is returned once");
        assert_eq!(newcomers.crowded(), 6);
        assert!(admit("192.0.2.2".parse().unwrap()).is_some());
        let own: Vec<Place> = (0..9).filter_map(|_| admit(ONE)).collect();
        assert_eq!(own.len(), 9);
        open.pop();
        assert!(admit(remote).is_some());
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
