//! Fields of encoded protobuf messages: varints, length-delimited fields, timestamps.

const TIMESTAMP_MIN_MS: i128 = -62_135_596_800_000;
const TIMESTAMP_MAX_MS: i128 = 253_402_300_799_999;

/// Append a varint.
pub fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number > 0x7F {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Return the bytes of a varint.
pub fn varint_bytes(number: u64) -> usize {
    (64 - (number | 1).leading_zeros() as usize).div_ceil(7)
}

/// Append a length-delimited field; `tag` is its key.
pub fn put_field(out: &mut Vec<u8>, tag: &[u8], data: &[u8]) {
    out.extend_from_slice(tag);
    put_varint(out, data.len() as u64);
    out.extend_from_slice(data);
}

/// Return the bytes of a length-delimited field with a key of one byte.
pub fn field_bytes(length: usize) -> usize {
    1 + varint_bytes(length as u64) + length
}

/// Append a google.protobuf.Timestamp, or a Duration of at least 0, as a field. A time outside of
/// the bounds of a Timestamp becomes the nearest bound.
pub fn put_timestamp(out: &mut Vec<u8>, tag: &[u8], time_ms: i128) {
    let time_ms = time_ms.clamp(TIMESTAMP_MIN_MS, TIMESTAMP_MAX_MS) as i64;
    let (seconds, ms) = (time_ms.div_euclid(1000), time_ms.rem_euclid(1000));
    out.extend_from_slice(tag);
    let at = out.len();
    out.push(0);
    if seconds != 0 {
        out.push(0x08);
        put_varint(out, seconds as u64);
    }
    if ms != 0 {
        out.push(0x10);
        put_varint(out, ms as u64 * 1_000_000);
    }
    out[at] = (out.len() - at - 1) as u8; // at most 18
}

#[cfg(test)]
mod tests {
    use super::*;

    fn varint(number: u64) -> Vec<u8> {
        let mut out = Vec::new();
        put_varint(&mut out, number);
        out
    }

    #[test]
    fn varints_have_groups_of_seven_bits() {
        assert_eq!(varint(0), [0]);
        assert_eq!(varint(300), [0xAC, 0x02]);
        assert_eq!(varint(u64::MAX).len(), 10);
        for bits in 0..64 {
            for number in [1 << bits, (1u64 << bits) - 1] {
                assert_eq!(varint_bytes(number), varint(number).len());
            }
        }
    }

    #[test]
    fn times_outside_of_the_bounds_become_the_nearest_bound() {
        let of = |time_ms| {
            let mut out = Vec::new();
            put_timestamp(&mut out, b"\x3a", time_ms);
            out
        };
        assert_eq!(of(0), [0x3A, 0]);
        assert_eq!(
            of(1_001),
            [0x3A, 6, 8, 1, 0x10, 0xC0, 0x84, 0x3D][..].to_vec()
        );
        assert_eq!(of(i128::MAX), of(TIMESTAMP_MAX_MS));
        assert_eq!(of(i128::MIN), of(TIMESTAMP_MIN_MS));
    }
}
