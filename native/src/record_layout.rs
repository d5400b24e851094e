//! The layout of a record of the commit log, as in `store/format/record.py`.

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
