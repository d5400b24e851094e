//! Input of the property tests: bytes by a seeded generator, and the number of rounds.
//!
//! Each test runs for one second, or for `COMETMQ_FUZZ_SECONDS`. A failure names its seed. With
//! `--nocapture` each test prints the number of its inputs.

use std::time::{Duration, Instant};

/// A generator of numbers and bytes (xorshift64*).
pub struct Chance(u64);

impl Chance {
    /// Create the generator of a round.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// Return a number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let number = self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33;
        number as usize % end
    }

    /// Return fewer than `end` bytes.
    pub fn bytes(&mut self, end: usize) -> Vec<u8> {
        let length = self.below(end);
        (0..length).map(|_| self.below(256) as u8).collect()
    }

    /// Change, remove or repeat a few bytes.
    pub fn mutate(&mut self, data: &mut Vec<u8>) {
        for _ in 0..self.below(4) {
            let at = self.below(data.len() + 1);
            match self.below(3) {
                0 if at < data.len() => data[at] = self.below(256) as u8,
                1 => data.truncate(at),
                _ => {
                    let tail = data.split_off(at);
                    data.extend(self.bytes(9));
                    data.extend(tail);
                }
            }
        }
    }
}

/// Return the seeds, until the time is over.
pub fn rounds() -> impl Iterator<Item = u64> {
    let seconds = std::env::var("COMETMQ_FUZZ_SECONDS");
    let seconds = seconds.ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let end = Instant::now() + Duration::from_secs(seconds);
    (1..).take_while(move |seed| {
        let goes_on = Instant::now() < end;
        if !goes_on {
            let thread = std::thread::current();
            let name = thread.name().unwrap_or_default();
            println!("{name}: {} inputs", seed - 1);
        }
        goes_on
    })
}
