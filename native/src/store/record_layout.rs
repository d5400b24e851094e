//! The layout of a record of the commit log, and of its unit in a consume queue, as in
//! `store/format/record_layout.py` and `store/format/record_layout.py`. Integers are big-endian.

use std::ops::Range;

/// Positions of the fields of a record with IPv4 hosts.
pub const SIZE: Range<usize> = 0..4;
/// Version of the record.
pub const MAGIC: Range<usize> = 4..8;
/// CRC-32 of the body, with the top bit cleared.
pub const BODY_CRC: Range<usize> = 8..12;
/// Number of the queue.
pub const QUEUE_ID: Range<usize> = 12..16;
/// Number of the unit.
pub const QUEUE_OFFSET: Range<usize> = 20..28;
/// The record's own position in the log.
pub const PHYSICAL_OFFSET: Range<usize> = 28..36;
/// Bits of compression, transaction and hosts.
pub const SYS_FLAG: Range<usize> = 36..40;
/// Time of the append in ms.
pub const STORE_TIMESTAMP: Range<usize> = 56..64;
/// Bytes of the body.
pub const BODY_LENGTH: Range<usize> = 84..FIXED_BYTES;

/// Bytes of a unit.
pub const UNIT_BYTES: usize = 20;
/// Positions of the fields of a unit: of its record in the log, ...
pub const UNIT_OFFSET: Range<usize> = 0..8;
/// ... the record's size, ...
pub const UNIT_SIZE: Range<usize> = 8..12;
/// ... and the hash of its tags.
pub const UNIT_CODE: Range<usize> = 12..UNIT_BYTES;

/// Return the integer of a field of 4 bytes; None if the data is too short.
pub fn i32_in(data: &[u8], field: Range<usize>) -> Option<i32> {
    data.get(field)?.try_into().ok().map(i32::from_be_bytes)
}

/// Return the integer of a field of 8 bytes; None if the data is too short.
pub fn i64_in(data: &[u8], field: Range<usize>) -> Option<i64> {
    data.get(field)?.try_into().ok().map(i64::from_be_bytes)
}

/// Append a unit.
pub fn put_unit(units: &mut Vec<u8>, offset: i64, size: i32, code: i64) {
    units.extend_from_slice(&offset.to_be_bytes());
    units.extend_from_slice(&size.to_be_bytes());
    units.extend_from_slice(&code.to_be_bytes());
}

/// Magic code of a record whose topic has at most `TOPIC_BYTES_V1_MAX` bytes.
pub const MAGIC_V1: u32 = 0xDAA3_20A7;
/// Magic code of a record with a longer topic.
pub const MAGIC_V2: u32 = 0xDAA3_20AB;
/// Longest topic of version 1.
pub const TOPIC_BYTES_V1_MAX: usize = 127;
/// The bytes before the body if both hosts are IPv4.
pub const FIXED_BYTES: usize = 88;
/// An empty record: the fixed bytes, and the lengths of topic and properties.
pub const RECORD_BYTES_MIN: usize = FIXED_BYTES + 1 + 2;
/// Bit of `sysFlag`: the body is compressed.
pub const SYS_COMPRESSED: i32 = 1;
/// Bits of `sysFlag`: the transaction's state, and its values of a half message and of a rollback.
pub const TRANSACTION_MASK: i32 = 0xC;
/// See `TRANSACTION_MASK`.
pub const TRANSACTION_PREPARED: i32 = 0x4;
/// See `TRANSACTION_MASK`.
pub const TRANSACTION_ROLLBACK: i32 = 0xC;
/// Bit of `sysFlag`: the host of the producer is IPv6.
pub const BORN_HOST_V6: i32 = 0x10;
/// Bit of `sysFlag`: the host of the broker is IPv6.
pub const STORE_HOST_V6: i32 = 0x20;
/// Either host is IPv6.
pub const HOSTS_V6: i32 = BORN_HOST_V6 | STORE_HOST_V6;
/// The bytes of a host and its port, and how many more IPv6 has.
pub const HOST_BYTES: usize = 8;
/// See `HOST_BYTES`.
pub const HOST_V6_MORE: usize = 12;
/// Ends the name of a property.
pub const NAME_END: u8 = 1;
/// Ends a property.
pub const PAIR_END: u8 = 2;
