//! MD5 of several bodies at once (RFC 1321), for the digest of delivered messages.
//!
//! One body at a time is bound by the latency of 64 dependent steps for each block. Eight bodies
//! side by side in vector registers take about twice the time of one. The digest is part of the
//! client protocol; it protects nothing.

/// Bodies that are digested side by side.
const LANES: usize = 8;
const BLOCK: usize = 64;
const LENGTH_BYTES: usize = 8;
const START: [u32; 4] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];
/// Rotations of a round's steps, by the step modulo four.
const ROTATIONS: [[u32; 4]; 4] = [
    [7, 12, 17, 22],
    [5, 9, 14, 20],
    [4, 11, 16, 23],
    [6, 10, 15, 21],
];

/// The whole part of 2^32 * |sin(i + 1)|.
#[rustfmt::skip]
const SINES: [u32; 64] = [
    0xd76a_a478, 0xe8c7_b756, 0x2420_70db, 0xc1bd_ceee, 0xf57c_0faf, 0x4787_c62a, 0xa830_4613,
    0xfd46_9501, 0x6980_98d8, 0x8b44_f7af, 0xffff_5bb1, 0x895c_d7be, 0x6b90_1122, 0xfd98_7193,
    0xa679_438e, 0x49b4_0821, 0xf61e_2562, 0xc040_b340, 0x265e_5a51, 0xe9b6_c7aa, 0xd62f_105d,
    0x0244_1453, 0xd8a1_e681, 0xe7d3_fbc8, 0x21e1_cde6, 0xc337_07d6, 0xf4d5_0d87, 0x455a_14ed,
    0xa9e3_e905, 0xfcef_a3f8, 0x676f_02d9, 0x8d2a_4c8a, 0xfffa_3942, 0x8771_f681, 0x6d9d_6122,
    0xfde5_380c, 0xa4be_ea44, 0x4bde_cfa9, 0xf6bb_4b60, 0xbebf_bc70, 0x289b_7ec6, 0xeaa1_27fa,
    0xd4ef_3085, 0x0488_1d05, 0xd9d4_d039, 0xe6db_99e5, 0x1fa2_7cf8, 0xc4ac_5665, 0xf429_2244,
    0x432a_ff97, 0xab94_23a7, 0xfc93_a039, 0x655b_59c3, 0x8f0c_cc92, 0xffef_f47d, 0x8584_5dd1,
    0x6fa8_7e4f, 0xfe2c_e6e0, 0xa301_4314, 0x4e08_11a1, 0xf753_7e82, 0xbd3a_f235, 0x2ad7_d2bb,
    0xeb86_d391,
];

/// A digest.
pub type Digest = [u8; 16];

/// Return the digests of `bodies`, in their order.
pub fn digests(bodies: &[&[u8]]) -> Vec<Digest> {
    let mut order: Vec<usize> = (0..bodies.len()).collect();
    order.sort_by_key(|&index| bodies[index].len());
    let mut found = vec![[0; 16]; bodies.len()];
    for group in order.chunks(LANES) {
        let blocks: usize = group.iter().map(|&index| block_count(bodies[index])).sum();
        let longest = group.last().map_or(0, |&index| block_count(bodies[index]));
        if blocks >= 2 * longest && group.len() > 1 {
            let lanes = std::array::from_fn(|lane| group.get(lane).map_or(&[][..], |&i| bodies[i]));
            let results: [Digest; LANES] = together(&lanes);
            for (&index, digest) in group.iter().zip(results) {
                found[index] = digest;
            }
        } else {
            for &index in group {
                [found[index]] = together(&[bodies[index]]);
            }
        }
    }
    found
}

/// Return the number of blocks of a body with its padding.
fn block_count(body: &[u8]) -> usize {
    (body.len() + LENGTH_BYTES) / BLOCK + 1
}

/// Digest bodies side by side. A body that ends before the others keeps its result.
fn together<const N: usize>(bodies: &[&[u8]; N]) -> [Digest; N] {
    let counts = bodies.map(block_count);
    let tails: [_; N] = std::array::from_fn(|lane| padded_tail(bodies[lane]));
    let mut state = START.map(|word| [word; N]);
    let mut found = [[0; 16]; N];
    for number in 0..counts.iter().copied().max().unwrap_or(0) {
        let mut words = [[0; N]; 16];
        for lane in 0..N {
            if number < counts[lane] {
                let block = block_of(bodies[lane], &tails[lane], number);
                for (word, four) in words.iter_mut().zip(block.chunks_exact(4)) {
                    word[lane] = u32::from_le_bytes([four[0], four[1], four[2], four[3]]);
                }
            }
        }
        compress(&mut state, &words);
        for lane in 0..N {
            if number + 1 == counts[lane] {
                for (bytes, word) in found[lane].chunks_exact_mut(4).zip(&state) {
                    bytes.copy_from_slice(&word[lane].to_le_bytes());
                }
            }
        }
    }
    found
}

/// Return the last bytes of a body with the padding: one or two blocks.
fn padded_tail(body: &[u8]) -> [u8; 2 * BLOCK] {
    let rest = &body[body.len() / BLOCK * BLOCK..];
    let mut tail = [0; 2 * BLOCK];
    tail[..rest.len()].copy_from_slice(rest);
    tail[rest.len()] = 0x80;
    let end = (block_count(body) - body.len() / BLOCK) * BLOCK;
    let bits = (body.len() as u64).wrapping_mul(8);
    tail[end - LENGTH_BYTES..end].copy_from_slice(&bits.to_le_bytes());
    tail
}

fn block_of<'a>(body: &'a [u8], tail: &'a [u8; 2 * BLOCK], number: usize) -> &'a [u8] {
    let whole = body.len() / BLOCK;
    let (data, number) = if number < whole {
        (body, number)
    } else {
        (&tail[..], number - whole)
    };
    &data[number * BLOCK..(number + 1) * BLOCK]
}

/// Add a block of every lane to its state.
fn compress<const N: usize>(state: &mut [[u32; N]; 4], words: &[[u32; N]; 16]) {
    let [mut a, mut b, mut c, mut d] = *state;
    macro_rules! round {
        ($round:literal, $mix:expr, $word:expr) => {
            for step in 0..16 {
                let word = &words[$word(step) % 16];
                let sine = SINES[16 * $round + step];
                let rotation = ROTATIONS[$round][step % 4];
                let mut next = [0; N];
                for lane in 0..N {
                    let mixed: u32 = $mix(b[lane], c[lane], d[lane]);
                    let sum = a[lane].wrapping_add(mixed).wrapping_add(word[lane]);
                    let sum = sum.wrapping_add(sine).rotate_left(rotation);
                    next[lane] = b[lane].wrapping_add(sum);
                }
                (a, d, c, b) = (d, c, b, next);
            }
        };
    }
    round!(
        0,
        |b: u32, c: u32, d: u32| d ^ (b & (c ^ d)),
        |step: usize| step
    );
    round!(
        1,
        |b: u32, c: u32, d: u32| c ^ (d & (b ^ c)),
        |step: usize| 5 * step + 1
    );
    round!(2, |b: u32, c: u32, d: u32| b ^ c ^ d, |step: usize| 3
        * step
        + 5);
    round!(3, |b: u32, c: u32, d: u32| c ^ (b | !d), |step: usize| 7
        * step);
    for (sums, words) in state.iter_mut().zip([a, b, c, d]) {
        for (sum, word) in sums.iter_mut().zip(words) {
            *sum = sum.wrapping_add(word);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chance::{rounds, Chance};

    fn hex(digest: Digest) -> String {
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn the_vectors_of_the_rfc() {
        for (text, digest) in [
            ("", "d41d8cd98f00b204e9800998ecf8427e"),
            ("a", "0cc175b9c0f1b6a831c399e269772661"),
            ("abc", "900150983cd24fb0d6963f7d28e17f72"),
            ("message digest", "f96b697d7cb7938d525a2f31aaf161d0"),
            (
                "12345678901234567890123456789012345678901234567890123456789012345678901234567890",
                "57edf4a22be3c955ac49da2e2107b67a",
            ),
        ] {
            assert_eq!(hex(digests(&[text.as_bytes()])[0]), digest);
        }
    }

    #[test]
    fn bodies_side_by_side_have_the_digests_of_single_ones() {
        for seed in rounds().take(3000) {
            let mut chance = Chance::new(seed);
            let bodies: Vec<Vec<u8>> = (0..chance.below(20)).map(|_| chance.bytes(300)).collect();
            let views: Vec<&[u8]> = bodies.iter().map(|body| &body[..]).collect();
            let single: Vec<Digest> = views.iter().map(|body| together(&[*body])[0]).collect();
            assert_eq!(digests(&views), single, "seed {seed}");
        }
    }
}
