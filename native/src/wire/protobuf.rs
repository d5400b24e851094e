//! Protobuf's wire format: the fields of an encoded message. `wire_fields` writes them.
//!
//! Accepts a part of what protobuf decoders accept: varints and length-delimited fields, with keys
//! and lengths in their shortest form. Callers pass everything else to a complete decoder.

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// A number.
    Number(u64),
    /// A string, bytes or an encoded message.
    Bytes(&'a [u8]),
}

/// The message has another form, or is damaged.
#[derive(Debug, PartialEq)]
pub struct Unusual;

/// The fields of an encoded message, in order.
pub struct Fields<'a> {
    data: &'a [u8],
}

impl<'a> Fields<'a> {
    /// Start at the first field.
    pub fn of(data: &'a [u8]) -> Self {
        Self { data }
    }

    /// Return number and value of the next field.
    pub fn next(&mut self) -> Result<Option<(u32, Value<'a>)>, Unusual> {
        if self.data.is_empty() {
            return Ok(None);
        }
        let key = self.short()?;
        let value = match key & 7 {
            0 => Value::Number(self.number()?),
            2 => {
                let size = self.short()? as usize;
                if size > self.data.len() {
                    return Err(Unusual);
                }
                let (value, rest) = self.data.split_at(size);
                self.data = rest;
                Value::Bytes(value)
            }
            _ => return Err(Unusual),
        };
        Ok(Some((key >> 3, value)))
    }

    /// A key or a length: at most five bytes in the shortest form, below 2^31.
    fn short(&mut self) -> Result<u32, Unusual> {
        let mut value = 0u64;
        for at in 0..5 {
            let byte = *self.data.get(at).ok_or(Unusual)?;
            value |= u64::from(byte & 0x7F) << (7 * at);
            if byte < 0x80 {
                if value > i32::MAX as u64 || (byte == 0 && at > 0) {
                    return Err(Unusual);
                }
                self.data = &self.data[at + 1..];
                return Ok(value as u32);
            }
        }
        Err(Unusual)
    }

    fn number(&mut self) -> Result<u64, Unusual> {
        let mut value = 0u64;
        for at in 0..10 {
            let byte = *self.data.get(at).ok_or(Unusual)?;
            if at == 9 && byte > 1 {
                return Err(Unusual);
            }
            value |= u64::from(byte & 0x7F) << (7 * at);
            if byte < 0x80 {
                self.data = &self.data[at + 1..];
                return Ok(value);
            }
        }
        Err(Unusual)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chance::{rounds, Chance};
    use crate::wire::wire_fields::{put_varint, varint_bytes};

    fn fields(data: &[u8]) -> Result<Vec<(u32, Value<'_>)>, Unusual> {
        let mut fields = Fields::of(data);
        let mut found = Vec::new();
        while let Some(field) = fields.next()? {
            found.push(field);
        }
        Ok(found)
    }

    #[test]
    fn fields_are_read_in_order() {
        let data = b"\x08\x96\x01\x12\x02hi\x0a\x00";
        let found = fields(data).unwrap();
        assert_eq!(
            found,
            [
                (1, Value::Number(150)),
                (2, Value::Bytes(b"hi")),
                (1, Value::Bytes(b"")),
            ]
        );
    }

    #[test]
    fn other_forms_are_refused() {
        let cases: [&[u8]; 8] = [
            b"\x08",                                             // no value
            b"\x0a\x02a",                                        // cut
            b"\x0d\x01\x02\x03\x04",                             // four bytes
            b"\x0b\x0c",                                         // a group
            b"\x8a\x00\x00",                                     // a long key
            b"\x0a\x80\x00",                                     // a long length
            b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02",     // above 64 bits
            b"\x08\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", // eleven bytes
        ];
        for data in cases {
            assert_eq!(fields(data), Err(Unusual), "{data:x?}");
        }
    }

    #[test]
    fn varints_are_read_as_written() {
        for seed in rounds() {
            let mut chance = Chance::new(seed);
            let number = (chance.below(1 << 31) as u64) << chance.below(34);
            let mut data = vec![0x08];
            put_varint(&mut data, number);
            assert_eq!(data.len(), 1 + varint_bytes(number), "seed {seed}");
            assert_eq!(fields(&data).unwrap(), [(1, Value::Number(number))]);
        }
    }

    #[test]
    fn changed_messages_give_slices_in_order_or_are_refused() {
        for seed in rounds() {
            let mut chance = Chance::new(seed);
            let mut data = Vec::new();
            for _ in 0..chance.below(6) {
                let value = chance.bytes(20);
                put_varint(&mut data, (chance.below(30) as u64) << 3 | 2);
                put_varint(&mut data, value.len() as u64);
                data.extend(value);
            }
            chance.mutate(&mut data);
            let mut end = data.as_ptr();
            for (_, value) in fields(&data).unwrap_or_default() {
                if let Value::Bytes(part) = value {
                    assert!(part.as_ptr() > end, "seed {seed}");
                    end = part.as_ptr_range().end.wrapping_sub(1);
                }
            }
            assert!(end <= data.as_ptr_range().end, "seed {seed}");
        }
    }
}
