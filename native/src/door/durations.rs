//! Durations of answered calls by method, in buckets: `rocketmq_rpc_latency` of the door.

use std::sync::Mutex;
use std::time::Duration;

/// Calls of one method.
#[derive(Clone, Default)]
struct Answered {
    /// Calls by bucket; one more than there are bounds.
    counts: Vec<u64>,
    total_ns: u64,
}

/// The calls that were answered since the start.
pub struct Durations {
    /// Largest duration of each bucket but the last, in order.
    bounds: Vec<Duration>,
    methods: Mutex<Vec<Answered>>,
}

impl Durations {
    /// No calls, for this number of methods.
    pub fn new(bounds: Vec<Duration>, methods: usize) -> Self {
        let none = Answered {
            counts: vec![0; bounds.len() + 1],
            total_ns: 0,
        };
        Self {
            bounds,
            methods: Mutex::new(vec![none; methods]),
        }
    }

    /// Count calls, each with the index of its method and its duration.
    pub fn add(&self, calls: impl Iterator<Item = (usize, Duration)>) {
        let mut methods = self
            .methods
            .lock()
            .expect("a thread panicked while it held this lock");
        for (method, took) in calls {
            let answered = &mut methods[method];
            let bucket = self.bounds.partition_point(|bound| *bound < took);
            answered.counts[bucket] += 1;
            answered.total_ns += u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        }
    }

    /// The calls by bucket and their nanoseconds, of each method.
    pub fn counted(&self) -> Vec<(Vec<u64>, u64)> {
        let methods = self
            .methods
            .lock()
            .expect("a thread panicked while it held this lock");
        methods
            .iter()
            .map(|answered| (answered.counts.clone(), answered.total_ns))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_method_and_bucket() {
        let bounds = vec![Duration::from_millis(1), Duration::from_millis(3)];
        let durations = Durations::new(bounds, 2);
        let calls = [(0, 1_000), (1, 500), (0, 1_001), (0, 9_000)];
        durations.add(
            calls
                .iter()
                .map(|(method, us)| (*method, Duration::from_micros(*us))),
        );
        assert_eq!(
            durations.counted(),
            [(vec![1, 1, 1], 11_001_000), (vec![1, 0, 0], 500_000)]
        );
    }
}
