//! A record of the commit log: the fields that a delivery needs.
//!
//! The layout is that of `store/format/record.py`. Only well-formed records with properties in
//! their usual form are accepted; the Python path handles all others.

use crate::store::record_layout::{
    BORN_HOST_V6, FIXED_BYTES, HOST_BYTES, HOST_V6_MORE, MAGIC_V1, MAGIC_V2, NAME_END, PAIR_END,
    STORE_HOST_V6,
};

/// Repeated names are found by comparing with all names before.
const PAIRS_MAX: usize = 64;

/// The fields of a record; slices of it.
pub struct StoredRecord<'a> {
    pub queue_id: i32,
    pub queue_offset: i64,
    pub sys_flag: i32,
    pub born_ms: i64,
    pub born_host: &'a [u8],
    pub store_ms: i64,
    pub store_host: &'a [u8],
    pub reconsume_times: i32,
    pub body: &'a [u8],
    pub properties: &'a [u8],
}

impl<'a> StoredRecord<'a> {
    /// Return the fields of a whole record; None if its lengths do not add up.
    pub fn parse(data: &'a [u8]) -> Option<Self> {
        let mut at = Reader { data, at: 4 };
        let magic = at.i32()? as u32;
        at.take(4)?; // checksum of the body
        let queue_id = at.i32()?;
        at.take(4)?; // flag of the user
        let queue_offset = at.i64()?;
        at.take(8)?; // physical offset
        let sys_flag = at.i32()?;
        let host_bytes = |bit: i32| HOST_BYTES + if sys_flag & bit != 0 { HOST_V6_MORE } else { 0 };
        let born_ms = at.i64()?;
        let born_host = at.take(host_bytes(BORN_HOST_V6))?;
        let store_ms = at.i64()?;
        let store_host = at.take(host_bytes(STORE_HOST_V6))?;
        let reconsume_times = at.i32()?;
        at.take(8)?; // prepared transaction offset
        let body_length = usize::try_from(at.i32()?).ok()?;
        debug_assert!(at.at >= FIXED_BYTES);
        let body = at.take(body_length)?;
        let topic_length = match magic {
            MAGIC_V1 => usize::from(at.take(1)?[0]),
            MAGIC_V2 => at.u16()?,
            _ => return None,
        };
        at.take(topic_length)?;
        let length = at.u16()?;
        let properties = &data[at.at..];
        (properties.len() == length).then_some(Self {
            queue_id,
            queue_offset,
            sys_flag,
            born_ms,
            born_host,
            store_ms,
            store_host,
            reconsume_times,
            body,
            properties,
        })
    }
}

struct Reader<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(count)?;
        let found = self.data.get(self.at..end)?;
        self.at = end;
        Some(found)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u16(&mut self) -> Option<usize> {
        self.array()
            .map(|bytes| usize::from(u16::from_be_bytes(bytes)))
    }

    fn i32(&mut self) -> Option<i32> {
        self.array().map(i32::from_be_bytes)
    }

    fn i64(&mut self) -> Option<i64> {
        self.array().map(i64::from_be_bytes)
    }
}

/// Properties in the order of a Python dictionary: a repeated name keeps its first place and has
/// its last value.
#[derive(Default)]
pub struct Properties<'a> {
    pairs: Vec<(&'a [u8], &'a [u8])>,
    /// The last tags that are not empty: what a filter compares.
    pub tags: &'a [u8],
}

impl<'a> Properties<'a> {
    /// Decode; None for malformed UTF-8, a part that is no pair, and very many pairs.
    pub fn parse(data: &'a [u8]) -> Option<Self> {
        let mut found = Self::default();
        std::str::from_utf8(data).ok()?;
        let mut parts = data.split(|&byte| byte == PAIR_END).peekable();
        while let Some(part) = parts.next() {
            if part.is_empty() && parts.peek().is_none() {
                break;
            }
            let end = part.iter().position(|&byte| byte == NAME_END)?;
            found.add(&part[..end], &part[end + 1..])?;
        }
        Some(found)
    }

    fn add(&mut self, name: &'a [u8], value: &'a [u8]) -> Option<()> {
        if name == b"TAGS" && !value.is_empty() {
            self.tags = value;
        }
        if let Some(pair) = self.pairs.iter_mut().find(|pair| pair.0 == name) {
            pair.1 = value;
            return Some(());
        }
        if self.pairs.len() == PAIRS_MAX {
            return None;
        }
        self.pairs.push((name, value));
        Some(())
    }

    /// Return the value of a property.
    pub fn get(&self, name: &[u8]) -> Option<&'a [u8]> {
        let found = self.pairs.iter().find(|pair| pair.0 == name);
        found.map(|pair| pair.1)
    }

    /// Return the value of a property, unless it is absent or empty.
    pub fn filled(&self, name: &[u8]) -> Option<&'a [u8]> {
        self.get(name).filter(|value| !value.is_empty())
    }

    /// Return all pairs.
    pub fn iter(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + '_ {
        self.pairs.iter().copied()
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::chance::{rounds, Chance};

    /// Make a record of version 1 without checksums.
    pub fn record(sys_flag: i32, body: &[u8], properties: &[u8]) -> Vec<u8> {
        let host_bytes = |bit: i32| HOST_BYTES + if sys_flag & bit != 0 { HOST_V6_MORE } else { 0 };
        let mut data = vec![0; 4];
        data.extend(MAGIC_V1.to_be_bytes());
        data.extend([0; 4]);
        data.extend(3i32.to_be_bytes()); // queue id
        data.extend([0; 4]);
        data.extend(77i64.to_be_bytes()); // queue offset
        data.extend(1000i64.to_be_bytes());
        data.extend(sys_flag.to_be_bytes());
        data.extend(1_800_000_000_123i64.to_be_bytes());
        data.extend(vec![9; host_bytes(BORN_HOST_V6)]);
        data.extend(1_800_000_000_999i64.to_be_bytes());
        data.extend(vec![7; host_bytes(STORE_HOST_V6)]);
        data.extend(2i32.to_be_bytes()); // reconsume times
        data.extend([0; 8]);
        data.extend((body.len() as i32).to_be_bytes());
        data.extend(body);
        data.extend([1, b't']);
        data.extend((properties.len() as u16).to_be_bytes());
        data.extend(properties);
        let size = (data.len() as i32).to_be_bytes();
        data[..4].copy_from_slice(&size);
        data
    }

    #[test]
    fn the_fields_of_a_record_are_found() {
        for sys_flag in [0, BORN_HOST_V6, STORE_HOST_V6, BORN_HOST_V6 | STORE_HOST_V6] {
            let data = record(sys_flag, b"body", b"a\x01b\x02");
            let found = StoredRecord::parse(&data).expect("a record");
            assert_eq!((found.queue_id, found.queue_offset), (3, 77));
            assert_eq!(
                (found.body, found.properties),
                (&b"body"[..], &b"a\x01b\x02"[..])
            );
            assert_eq!(found.reconsume_times, 2);
        }
    }

    #[test]
    fn a_record_cut_anywhere_is_refused() {
        let data = record(0, b"body", b"a\x01b\x02");
        for end in 0..data.len() {
            assert!(StoredRecord::parse(&data[..end]).is_none(), "{end}");
        }
    }

    #[test]
    fn a_repeated_name_keeps_its_place_and_has_its_last_value() {
        let found = Properties::parse(b"a\x01b\x02TAGS\x01t\x02a\x01c\x02TAGS\x01\x02").unwrap();
        let pairs: Vec<_> = found.iter().collect();
        assert_eq!(pairs, [(&b"a"[..], &b"c"[..]), (b"TAGS", b"")]);
        assert_eq!(found.tags, b"t");
    }

    #[test]
    fn other_forms_are_left_to_python() {
        assert!(Properties::parse(b"").unwrap().pairs.is_empty());
        for data in [&b"a"[..], b"\x02", b"a\x01b\x02\x02", b"a\x01\xff\x02"] {
            assert!(Properties::parse(data).is_none(), "{data:?}");
        }
        let many: Vec<u8> = (0..=PAIRS_MAX)
            .flat_map(|n| format!("{n}\x01v\x02").into_bytes())
            .collect();
        assert!(Properties::parse(&many).is_none());
    }

    #[test]
    fn changed_records_have_parts_that_fit_or_are_refused() {
        for seed in rounds() {
            let mut chance = Chance::new(seed);
            let flags = [0, BORN_HOST_V6, STORE_HOST_V6, BORN_HOST_V6 | STORE_HOST_V6];
            let properties = [b"a\x01b\x02".to_vec(), chance.bytes(60)].concat();
            let mut data = record(flags[chance.below(4)], &chance.bytes(50), &properties);
            chance.mutate(&mut data);
            let Some(found) = StoredRecord::parse(&data) else {
                continue;
            };
            let parts = found.body.len() + found.properties.len();
            let hosts = found.born_host.len() + found.store_host.len();
            assert!(parts + hosts + 72 < data.len(), "seed {seed}");
            for (name, value) in Properties::parse(found.properties)
                .iter()
                .flat_map(Properties::iter)
            {
                assert!(!name.contains(&NAME_END), "seed {seed}");
                assert!(!value.contains(&PAIR_END), "seed {seed}");
            }
        }
    }
}
