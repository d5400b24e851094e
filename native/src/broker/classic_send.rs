//! A SEND_MESSAGE_V2 request of a classic client, if it is a common one.
//!
//! A common request is answered, has one message with an id, and no property that a client must not
//! set or that makes the broker keep the message back. Every other frame is left to Python
//! (`broker/classic/send.py`): other codes, repeated or missing fields, numbers in unusual forms,
//! and everything that cannot be decoded. Layouts: docs/formats/remoting.md, sections 2 and 11.

use std::borrow::Cow;

use crate::broker::send_plan::java_hash;

const CODE: i64 = 310;
const JSON: u8 = 0;
const BINARY: u8 = 1;
const NAME_END: char = '\x01';
const PAIR_END: char = '\x02';
/// Fields of a header; Python has the limit of the protocol.
const FIELDS_MAX: usize = 64;
/// Below the number at which Java's map of properties grows.
const PAIRS_MAX: usize = 64;
const BUCKETS: u32 = 128;
/// Letters of the fields that a request needs.
const REQUIRED: &[u8] = b"abcdefghi";

/// The fields that a record and an answer need.
#[derive(Debug, PartialEq)]
pub struct ClassicSend<'a> {
    /// Number of the request.
    pub opaque: i32,
    /// Name of the topic.
    pub topic: Cow<'a, str>,
    /// The queue that the client chose.
    pub queue_id: u32,
    /// Bits of the message.
    pub sys_flag: u32,
    /// Born time.
    pub born_ms: i64,
    /// The user's number of the message.
    pub flag: u32,
    /// Attempts so far.
    pub reconsume_times: u32,
    /// Properties as sent.
    pub properties: Cow<'a, str>,
    /// Not empty.
    pub body: &'a [u8],
}

/// Properties of a message in the order of a Java map.
pub struct Stored<'a> {
    /// Encoded parts.
    pub parts: Vec<&'a [u8]>,
    /// The unique id: printable, needs no escapes in JSON.
    pub id: &'a str,
    /// May be empty; ASCII.
    pub tag: &'a str,
}

impl<'a> ClassicSend<'a> {
    /// Decode a frame without its length field.
    pub fn parse(frame: &'a [u8]) -> Option<Self> {
        let word = u32::from_be_bytes(frame.get(..4)?.try_into().ok()?);
        let header = frame.get(4..4 + (word & 0x00FF_FFFF) as usize)?;
        let body = &frame[4 + header.len()..];
        if body.is_empty() {
            return None;
        }
        let mut fields = Letters::default();
        let opaque = match frame[0] {
            JSON => json_header(header, &mut fields)?,
            BINARY => binary_header(header, &mut fields)?,
            _ => return None,
        };
        if !REQUIRED.iter().all(|&letter| fields.get(letter).is_some()) {
            return None;
        }
        number(fields.get(b'd')?)?;
        if let Some(limit) = fields.get(b'l') {
            number(limit)?;
        }
        if fields.get(b'm').is_some_and(|batch| batch != "false") {
            return None;
        }
        Some(Self {
            opaque,
            queue_id: number(fields.get(b'e')?)?,
            sys_flag: number(fields.get(b'f')?)?,
            born_ms: long(fields.get(b'g')?)?,
            flag: number(fields.get(b'h')?)?,
            reconsume_times: fields.get(b'j').map_or(Some(0), number)?,
            topic: fields.take(b'b')?,
            properties: fields.take(b'i')?,
            body,
        })
    }

    /// Return the properties to store: `added` and those of the client, if none has a name of
    /// `reserved`.
    pub fn stored<'b>(
        &'b self,
        added: &'b [(String, String)],
        reserved: &[String],
    ) -> Option<Stored<'b>> {
        let mut pairs: Vec<(&str, &str)> = Vec::with_capacity(16);
        let (mut id, mut tag) = ("", "");
        let text = self.properties.as_ref();
        for part in text.strip_suffix(PAIR_END).unwrap_or(text).split(PAIR_END) {
            let (name, value) = part.split_once(NAME_END)?;
            let usual = !name.is_empty() && name.is_ascii() && !value.is_empty();
            let known = pairs.iter().any(|pair| pair.0 == name);
            let own = added.iter().any(|pair| pair.0 == name);
            let kept = reserved.iter().any(|other| other == name);
            if !usual || known || own || kept || value.contains(NAME_END) {
                return None;
            }
            match name {
                "UNIQ_KEY" => id = value,
                "TAGS" => tag = value,
                _ => {}
            }
            pairs.push((name, value));
        }
        let plain = |byte: u8| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\';
        if pairs.len() > PAIRS_MAX || id.is_empty() || !id.bytes().all(plain) || !tag.is_ascii() {
            return None;
        }
        pairs.extend(added.iter().map(|(name, value)| (&name[..], &value[..])));
        pairs.sort_by_key(|pair| bucket(pair.0));
        let mut parts: Vec<&[u8]> = Vec::with_capacity(4 * pairs.len());
        for (name, value) in pairs {
            parts.extend([name.as_bytes(), b"\x01", value.as_bytes(), b"\x02"]);
        }
        Some(Stored { parts, id, tag })
    }
}

/// The place of a name in a Java map.
fn bucket(name: &str) -> u32 {
    let hash = java_hash(name.as_bytes()) as u32;
    (hash ^ hash >> 16) & (BUCKETS - 1)
}

/// The fields whose names are one letter.
#[derive(Default)]
struct Letters<'a> {
    values: [Option<Cow<'a, str>>; 26],
    count: usize,
}

impl<'a> Letters<'a> {
    /// Enter a field; `None` if it is repeated or one too many.
    fn enter(&mut self, name: &str, value: Cow<'a, str>) -> Option<()> {
        self.count += 1;
        if self.count > FIELDS_MAX {
            return None;
        }
        if let [letter @ b'a'..=b'z'] = name.as_bytes() {
            let slot = &mut self.values[usize::from(letter - b'a')];
            if slot.is_some() {
                return None;
            }
            *slot = Some(value);
        }
        Some(())
    }

    fn get(&self, letter: u8) -> Option<&str> {
        self.values[usize::from(letter - b'a')].as_deref()
    }

    fn take(&mut self, letter: u8) -> Option<Cow<'a, str>> {
        self.values[usize::from(letter - b'a')].take()
    }
}

fn long(text: &str) -> Option<i64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (digits && text.len() <= 18).then(|| text.parse().ok())?
}

fn number(text: &str) -> Option<u32> {
    (text.len() <= 9)
        .then(|| long(text))?
        .map(|value| value as u32)
}

/// Read a header in the ROCKETMQ layout; return its opaque.
fn binary_header<'a>(header: &'a [u8], fields: &mut Letters<'a>) -> Option<i32> {
    let mut rest = Bytes(header);
    if i64::from(rest.short()?) != CODE {
        return None;
    }
    rest.take(3)?; // language, version
    let (opaque, flag) = (rest.int()?, rest.int()?);
    let remark = rest.int()?;
    rest.take(usize::try_from(remark).ok()?)?;
    let size = usize::try_from(rest.int()?).ok()?;
    let mut entries = Bytes(rest.take(size)?);
    while !entries.0.is_empty() {
        let length = usize::try_from(entries.short()?).ok()?;
        let name = std::str::from_utf8(entries.take(length)?).ok()?;
        let length = usize::try_from(entries.int()?).ok()?;
        let value = std::str::from_utf8(entries.take(length)?).ok()?;
        fields.enter(name, Cow::Borrowed(value))?;
    }
    (flag == 0).then_some(opaque)
}

struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (found, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(found)
    }

    fn short(&mut self) -> Option<i16> {
        Some(i16::from_be_bytes(self.take(2)?.try_into().ok()?))
    }

    fn int(&mut self) -> Option<i32> {
        Some(i32::from_be_bytes(self.take(4)?.try_into().ok()?))
    }
}

/// Read a header in JSON; return its opaque.
fn json_header<'a>(header: &'a [u8], fields: &mut Letters<'a>) -> Option<i32> {
    let text = std::str::from_utf8(header).ok()?;
    let mut json = Json { text, at: 0 };
    let (mut code, mut flag, mut opaque, mut extended) = (None, None, None, false);
    json.object(|json, name| {
        match name {
            "code" if code.is_none() => code = Some(json.number().filter(|&code| code == CODE)?),
            "flag" if flag.is_none() => flag = Some(json.number()?),
            "opaque" if opaque.is_none() => opaque = Some(json.number()?),
            "version" => {
                i32::try_from(json.number()?).ok()?;
            }
            "language" | "remark" | "serializeTypeCurrentRPC" => {
                json.string()?;
            }
            "extFields" if !extended => {
                extended = true;
                json.object(|json, name| fields.enter(name, json.string()?))?;
            }
            _ => return None,
        }
        Some(())
    })?;
    json.end()?;
    let usual = code.is_some() && flag.unwrap_or(0) == 0;
    usual.then(|| i32::try_from(opaque.unwrap_or(0)).ok())?
}

/// The part of JSON that headers use.
struct Json<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Json<'a> {
    fn peek(&mut self) -> Option<u8> {
        let bytes = self.text.as_bytes();
        while matches!(bytes.get(self.at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
        bytes.get(self.at).copied()
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    fn end(&mut self) -> Option<()> {
        self.peek().is_none().then_some(())
    }

    /// Read an object; `member` reads the value of a name.
    fn object(&mut self, mut member: impl FnMut(&mut Self, &str) -> Option<()>) -> Option<()> {
        self.expect(b'{')?;
        if self.peek()? == b'}' {
            self.at += 1;
            return Some(());
        }
        loop {
            self.peek()?;
            let name = self.string()?;
            self.expect(b':')?;
            member(self, &name)?;
            if self.peek()? != b',' {
                return self.expect(b'}');
            }
            self.at += 1;
        }
    }

    fn number(&mut self) -> Option<i64> {
        self.peek()?;
        let rest = &self.text[self.at..];
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '-')?;
        let digits = rest[..end].trim_start_matches('-');
        let usual = !digits.is_empty() && (digits == "0" || !digits.starts_with('0'));
        let follows = matches!(rest.as_bytes()[end], b',' | b'}' | b' ');
        if end > 11 || !usual || !follows {
            return None;
        }
        self.at += end;
        rest[..end].parse().ok()
    }

    fn string(&mut self) -> Option<Cow<'a, str>> {
        self.expect(b'"')?;
        let rest = &self.text[self.at..];
        let special = |byte: &u8| matches!(byte, b'"' | b'\\' | 0..=0x1F);
        let end = rest.as_bytes().iter().position(special)?;
        if rest.as_bytes()[end] == b'"' {
            self.at += end + 1;
            return Some(Cow::Borrowed(&rest[..end]));
        }
        self.escaped(rest, end).map(Cow::Owned)
    }

    /// Read a text that has an escape at `at`.
    fn escaped(&mut self, rest: &str, mut at: usize) -> Option<String> {
        let bytes = rest.as_bytes();
        let mut found = String::with_capacity(rest.len().min(1_024));
        let mut copied = 0;
        loop {
            match bytes.get(at)? {
                b'"' => break,
                b'\\' => {
                    found.push_str(&rest[copied..at]);
                    let (char, size) = escape(&bytes[at + 1..])?;
                    found.push(char);
                    at += 1 + size;
                    copied = at;
                }
                0..=0x1F => return None,
                _ => at += 1,
            }
        }
        found.push_str(&rest[copied..at]);
        self.at += at + 1;
        Some(found)
    }
}

/// Return the character of an escape, and the length of the escape behind the backslash.
fn escape(bytes: &[u8]) -> Option<(char, usize)> {
    let simple = match bytes.first()? {
        byte @ (b'"' | b'\\' | b'/') => char::from(*byte),
        b'b' => '\x08',
        b'f' => '\x0C',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        b'u' => {
            let digits = bytes.get(1..5)?;
            if !digits.iter().all(u8::is_ascii_hexdigit) {
                return None;
            }
            let code = u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
            return char::from_u32(code).map(|char| (char, 5));
        }
        _ => return None,
    };
    Some((simple, 1))
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::chance::{rounds, Chance};

    /// Frame a JSON header and a body.
    pub fn frame(header: &str, body: &[u8]) -> Vec<u8> {
        let mut data = (header.len() as u32).to_be_bytes().to_vec();
        data.extend(header.as_bytes());
        data.extend(body);
        data
    }

    /// The header that a Java client sends.
    pub fn header(more: &str) -> String {
        let fields = concat!(
            r#""a":"p","b":"orders","c":"TBW102","d":"4","e":"2","f":"0","g":"1795389060489","h":"7","#,
            r#""i":"KEYS\u0001k\u0002UNIQ_KEY\u0001id1\u0002TAGS\u0001TagA\u0002","j":"0","k":"false","m":"false""#,
        );
        format!(
            r#"{{"code":310,"extFields":{{{fields}{more}}},"flag":0,"language":"JAVA","opaque":12,"serializeTypeCurrentRPC":"JSON","version":513}}"#
        )
    }

    fn added() -> Vec<(String, String)> {
        vec![("CLUSTER".into(), "c".into())]
    }

    #[test]
    fn a_header_in_json_is_read() {
        let data = frame(&header(""), b"body");
        let found = ClassicSend::parse(&data).expect("a common request");
        assert_eq!((found.opaque, found.queue_id, found.flag), (12, 2, 7));
        assert_eq!((found.topic.as_ref(), found.body), ("orders", &b"body"[..]));
        assert_eq!(found.born_ms, 1_795_389_060_489);
        let added = added();
        let stored = found
            .stored(&added, &["DELAY".into()])
            .expect("common properties");
        assert_eq!((stored.id, stored.tag), ("id1", "TagA"));
        assert_eq!(stored.parts.len(), 16);
        assert!(found.stored(&added, &["KEYS".into()]).is_none());
        assert!(found.stored(&[("KEYS".into(), "v".into())], &[]).is_none());
    }

    #[test]
    fn other_requests_are_left_to_python() {
        for (from, to) in [
            ("310", "10"),
            (r#""flag":0"#, r#""flag":2"#),
            (r#""m":"false""#, r#""m":"true""#),
            (r#""e":"2""#, r#""e":"-1""#),
            (r#""e":"2""#, r#""e":2"#),
            (r#""h":"7","#, ""),
            (r#""d":"4""#, r#""d":"x""#),
            (r#""opaque":12"#, r#""opaque":1.5"#),
            (r#""opaque":12"#, r#""opaque":012"#),
            (r#""opaque":12"#, r#""opaque":99999999999"#),
            (r#""language""#, r#""unknown""#),
            ("TagA", r"\ud800"),
        ] {
            let changed = header("").replace(from, to);
            assert_ne!(changed, header(""), "{from}");
            assert!(ClassicSend::parse(&frame(&changed, b"b")).is_none(), "{to}");
        }
        assert!(ClassicSend::parse(&frame(&header(r#","b":"twice""#), b"b")).is_none());
        assert!(ClassicSend::parse(&frame(&header(""), b"")).is_none());
    }

    #[test]
    fn other_properties_are_left_to_python() {
        for properties in [
            "",
            r"TAGS\u0001t\u0002",
            r"UNIQ_KEY\u0001\u0002",
            r"UNIQ_KEY\u0001i\u0002UNIQ_KEY\u0001j\u0002",
            r"UNIQ_KEY\u0001i\u0001j\u0002",
            r"UNIQ_KEY\u0001i\u0002none\u0002",
            r"UNIQ_KEY\u0001i\u0002CLUSTER\u0001x\u0002",
            r#"UNIQ_KEY\u0001a\"b\u0002"#,
        ] {
            let from = r"KEYS\u0001k\u0002UNIQ_KEY\u0001id1\u0002TAGS\u0001TagA\u0002";
            let data = frame(&header("").replace(from, properties), b"b");
            let found = ClassicSend::parse(&data).expect("the header is common");
            assert!(found.stored(&added(), &[]).is_none(), "{properties}");
        }
    }

    #[test]
    fn changed_frames_are_read_or_refused() {
        for seed in rounds() {
            let mut chance = Chance::new(seed);
            let mut data = frame(&header(""), b"body");
            chance.mutate(&mut data);
            if let Some(found) = ClassicSend::parse(&data) {
                let _ = found.stored(&added(), &[]);
                assert!(!found.body.is_empty(), "seed {seed}");
            }
        }
    }
}
