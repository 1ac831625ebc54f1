//! DNS messages, as far as a stub resolver needs them (RFC 1035, section 4; RFC 2782; RFC 3596; RFC 8659), and the question of a
//! query for a server. A malformed message is no answer. Names are in lower case, without the final dot.

use std::net::IpAddr;

/// Type of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Kind {
    A = 1,
    Aaaa = 28,
    Srv = 33,
    Caa = 257,
}

/// Data of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Data {
    Addr(IpAddr),
    Cname(Vec<u8>),
    Srv {
        priority: u16,
        weight: u16,
        port: u16,
        target: Vec<u8>,
    },
    Caa(Caa),
    /// Of another type.
    Other,
}

/// Rule about the authorities that may issue certificates for a name (RFC 8659, section 4.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caa {
    /// An authority that does not know the tag must not issue.
    pub critical: bool,
    /// Kind of rule, in lower case.
    pub tag: Vec<u8>,
    /// Text of the rule.
    pub value: Vec<u8>,
}

impl Data {
    /// Makes an alias. The root is not a name that can be looked up.
    fn cname(name: Vec<u8>) -> Data {
        if name.is_empty() { Data::Other } else { Data::Cname(name) }
    }
}

/// A record of the answer section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Name that the record belongs to.
    pub owner: Vec<u8>,
    /// Seconds.
    pub ttl: u32,
    /// Data.
    pub data: Data,
}

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// RCODE.
    pub code: u8,
    /// The response is truncated, so the query has to be repeated over TCP.
    pub truncated: bool,
    /// Answer section.
    pub records: Vec<Record>,
}

/// Longest name, in characters (nginx allows as much).
const MAX_NAME: usize = 255;
/// Largest number of records of a response that are read.
const MAX_RECORDS: usize = 256;
/// Largest number of compression pointers in one name.
const MAX_JUMPS: usize = 32;

/// Makes a query. Returns `None` if the name cannot be in one.
pub fn query(id: u16, name: &[u8], kind: Kind) -> Option<Vec<u8>> {
    let name = name.strip_suffix(b".").unwrap_or(name);
    if name.is_empty() || name.len() > MAX_NAME {
        return None;
    }
    let mut out = Vec::with_capacity(name.len() + 18);
    out.extend_from_slice(&id.to_be_bytes());
    // A standard query, recursion desired, one question.
    out.extend_from_slice(&[1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in name.split(|b| *b == b'.') {
        let len = u8::try_from(label.len()).ok().filter(|n| (1..=63).contains(n))?;
        out.push(len);
        out.extend_from_slice(label);
    }
    let [k1, k2] = (kind as u16).to_be_bytes();
    out.extend_from_slice(&[0, k1, k2, 0, 1]);
    Some(out)
}

/// Reader of a message.
struct Cursor<'m> {
    message: &'m [u8],
    at: usize,
}

impl Cursor<'_> {
    fn byte(&mut self) -> Option<u8> {
        let b = *self.message.get(self.at)?;
        self.at += 1;
        Some(b)
    }
    fn short(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes([self.byte()?, self.byte()?]))
    }
    fn long(&mut self) -> Option<u32> {
        Some(u32::from(self.short()?) << 16 | u32::from(self.short()?))
    }
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let got = self.message.get(self.at..self.at.checked_add(N)?)?.try_into().ok()?;
        self.at += N;
        Some(got)
    }

    /// Reads a name and follows its compression pointers.
    fn name(&mut self) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        let (mut at, mut end, mut jumps) = (self.at, None, 0);
        loop {
            let len = *self.message.get(at)?;
            match len {
                0 => break,
                1..=63 => {
                    let label = self.message.get(at + 1..at + 1 + usize::from(len))?;
                    push_label(&mut out, label)?;
                    at += 1 + usize::from(len);
                }
                192.. if jumps < MAX_JUMPS => {
                    // The record continues after the first pointer, wherever that pointer and its successors
                    // lead.
                    end.get_or_insert(at + 2);
                    // Pointers may lead in circles, so their number is limited, as is the length of the name.
                    jumps += 1;
                    at = usize::from(len & 63) << 8 | usize::from(*self.message.get(at + 1)?);
                }
                _ => return None,
            }
        }
        self.at = end.unwrap_or(at + 1);
        Some(out)
    }

    /// Reads a record of the answer section.
    fn record(&mut self) -> Option<Record> {
        let owner = self.name()?;
        let [k1, k2, c1, c2, t1, t2, t3, t4, l1, l2] = self.array()?;
        let (kind, class) = (u16::from_be_bytes([k1, k2]), u16::from_be_bytes([c1, c2]));
        let len = usize::from(u16::from_be_bytes([l1, l2]));
        let end = self.at.checked_add(len).filter(|e| *e <= self.message.len())?;
        let data = self.data(class, kind, end)?;
        // A lifetime with the highest bit set is 0 (RFC 2181, section 8).
        let ttl = if t1 >> 7 == 1 { 0 } else { u32::from_be_bytes([t1, t2, t3, t4]) };
        // Data shorter or longer than its length field says is malformed, not padding.
        (self.at == end).then_some(Record { owner, ttl, data })
    }

    /// Reads the data of a record, or skips it to `end` if the class or the type is not used.
    fn data(&mut self, class: u16, kind: u16, end: usize) -> Option<Data> {
        match (class, kind) {
            (1, 1) => self.array().map(|a: [u8; 4]| Data::Addr(a.into())),
            (1, 28) => self.array().map(|a: [u8; 16]| Data::Addr(a.into())),
            (1, 5) => self.name().map(Data::cname),
            (1, 33) => self.service(),
            (1, 257) => self.rule(end).map(Data::Caa),
            _ => {
                self.at = end;
                Some(Data::Other)
            }
        }
    }

    /// Reads a rule about authorities that ends at `end`.
    fn rule(&mut self, end: usize) -> Option<Caa> {
        let (flags, length) = (self.byte()?, self.byte()?);
        let tag_end = self.at.checked_add(usize::from(length)).filter(|e| length > 0 && *e <= end)?;
        let tag = self.message.get(self.at..tag_end)?.to_ascii_lowercase();
        let value = self.message.get(tag_end..end)?.to_vec();
        self.at = end;
        Some(Caa { critical: flags & 0x80 != 0, tag, value })
    }

    fn question(&mut self) -> Option<()> {
        self.name()?;
        self.long()?;
        Some(())
    }

    /// Reads the extension of a query (RFC 6891, section 6.1.2), if the next record is one.
    fn extension(&mut self) -> Option<Extension> {
        let [root, k1, k2, s1, s2, _, version, _, _] = self.array()?;
        let is_extension = root == 0 && u16::from_be_bytes([k1, k2]) == EXTENSION;
        is_extension.then_some(Extension { size: u16::from_be_bytes([s1, s2]), version })
    }

    fn service(&mut self) -> Option<Data> {
        let (priority, weight, port) = (self.short()?, self.short()?, self.short()?);
        Some(Data::Srv { priority, weight, port, target: self.name()? })
    }
}

/// Appends a label to a name. Returns `None` if it has a dot or makes the name too long.
fn push_label(name: &mut Vec<u8>, label: &[u8]) -> Option<()> {
    if !name.is_empty() {
        name.push(b'.');
    }
    name.extend(label.iter().map(u8::to_ascii_lowercase));
    // A label may hold any byte (RFC 2181, section 11). One with a dot would pass for two labels.
    (!label.contains(&b'.') && name.len() <= MAX_NAME).then_some(())
}

/// Returns `true` if a message is a response with this number to this query. Any other message may come from
/// an attacker.
pub fn answers(message: &[u8], id: u16, name: &[u8], kind: Kind) -> bool {
    let mut c = Cursor { message, at: 0 };
    let (Some(got), Some(flags), Some(questions)) = (c.short(), c.short(), c.short()) else { return false };
    // QR set and opcode 0: a response to a standard query.
    if got != id || flags & 0xf800 != 0x8000 || questions != 1 {
        return false;
    }
    // The counts of the other sections do not matter here. The question begins after the header of 12 bytes.
    c.at = 12;
    let (Some(n), Some(k), Some(class)) = (c.name(), c.short(), c.short()) else { return false };
    n.eq_ignore_ascii_case(name) && k == kind as u16 && class == 1
}

/// Parses a response for which [`answers`] holds. Returns `None` if it is malformed.
pub fn parse(message: &[u8]) -> Option<Response> {
    let mut c = Cursor { message, at: 2 };
    let [high, low, _, _, c1, c2] = c.array()?;
    let count = u16::from_be_bytes([c1, c2]);
    let code = low & 15;
    let truncated = high & 0x02 != 0;
    let mut response = Response { code, truncated, records: Vec::new() };
    // The records of such a response are not used, so mistakes in them do not matter.
    if code != 0 || truncated {
        return Some(response);
    }
    c.at = 12;
    c.question()?;
    for _ in 0..usize::from(count).min(MAX_RECORDS) {
        response.records.push(c.record()?);
    }
    Some(response)
}

/// Type of the record that extends a message.
const EXTENSION: u16 = 41;

/// Extension of a query (EDNS, RFC 6891).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extension {
    /// Longest answer that the client takes over UDP, bytes.
    pub size: u16,
    /// Version.
    pub version: u8,
}

/// Question of a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// Name.
    pub name: Vec<u8>,
    /// Type of the records.
    pub kind: u16,
    /// Class of the records.
    pub class: u16,
    /// End of the question in the message.
    pub end: usize,
    /// Extension of the query.
    pub extension: Option<Extension>,
}

/// Reads the question of a query. Returns `None` if it has none, several, or is malformed.
pub fn question(message: &[u8]) -> Option<Question> {
    let mut c = Cursor { message, at: 4 };
    if c.short()? != 1 {
        return None;
    }
    let (answers, authorities, more) = (c.short()?, c.short()?, c.short()?);
    let (name, kind, class) = (c.name()?, c.short()?, c.short()?);
    let end = c.at;
    let follows = answers == 0 && authorities == 0 && more > 0;
    Some(Question { name, kind, class, end, extension: follows.then(|| c.extension()).flatten() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn a_question_with_and_without_an_extension() {
        let mut m = query(7, b"A.example", Kind::Srv).expect("a name");
        let plain = question(&m).expect("a question");
        assert_eq!((plain.name.as_slice(), plain.kind, plain.class), (b"a.example".as_slice(), 33, 1));
        assert_eq!((plain.end, plain.extension), (m.len(), None));
        m[11] = 1;
        m.extend_from_slice(&[0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0]);
        let extended = question(&m).expect("a question");
        assert_eq!(extended.extension, Some(Extension { size: 1232, version: 0 }));
        assert_eq!(extended.end, plain.end);
        m[5] = 2;
        assert_eq!(question(&m), None);
        assert_eq!(question(&m[..11]), None);
    }

    fn reply(id: u16, name: &[u8], kind: Kind, count: u8, records: &[u8]) -> Vec<u8> {
        let mut m = query(id, name, kind).expect("a name");
        m[2] = 0x81;
        m[3] = 0x80;
        m[7] = count;
        m.extend_from_slice(records);
        m
    }

    #[test]
    fn an_answer_and_whose_it_is() {
        let record = [0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 9, 0, 4, 127, 0, 0, 1];
        let m = reply(7, b"a.Example", Kind::A, 1, &record);
        assert!(answers(&m, 7, b"A.example", Kind::A));
        assert!(!answers(&m, 8, b"a.example", Kind::A));
        assert!(!answers(&m, 7, b"b.example", Kind::A));
        assert!(!answers(&m, 7, b"a.example", Kind::Aaaa));
        let records = parse(&m).expect("well formed").records;
        let data = Data::Addr(IpAddr::V4(Ipv4Addr::LOCALHOST));
        assert_eq!(records, [Record { owner: b"a.example".to_vec(), ttl: 9, data }]);
    }

    #[test]
    fn rules_about_authorities() {
        let record = |data: &[u8]| [&[0xc0, 12, 1, 1, 0, 1, 0, 0, 0, 9, 0, data.len() as u8], data].concat();
        let read = |data: &[u8]| {
            let m = reply(7, b"a.example", Kind::Caa, 1, &record(data));
            assert!(answers(&m, 7, b"a.example", Kind::Caa));
            parse(&m).map(|r| r.records[0].data.clone())
        };
        let rule = Caa { critical: true, tag: b"issue".to_vec(), value: b"ca.example".to_vec() };
        assert_eq!(read(b"\x80\x05Issueca.example"), Some(Data::Caa(rule)));
        let empty = Caa { critical: false, tag: b"issue".to_vec(), value: Vec::new() };
        assert_eq!(read(b"\x00\x05issue"), Some(Data::Caa(empty)));
        // A tag that is too long, none at all, and no data.
        for bad in [&b"\x00\x06issue"[..], b"\x00\x00issue", b"\x00", b""] {
            assert_eq!(read(bad), None, "{}", bad.escape_ascii());
        }
    }

    #[test]
    fn no_bytes_do_harm() {
        // Too short, data longer or shorter than its type, a pointer to itself, an end in the middle.
        let bad: [&[u8]; 5] = [
            &[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 9, 0, 0],
            &[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 9, 0, 5, 127, 0, 0, 1, 1],
            &[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 9, 0, 200, 127, 0, 0, 1],
            &[0xc0, 21, 0, 1, 0, 1, 0, 0, 0, 9, 0, 4, 127, 0, 0, 1],
            &[0xc0],
        ];
        for b in bad {
            assert_eq!(parse(&reply(7, b"abc", Kind::A, 1, b)), None, "{}", b.escape_ascii());
        }
        let mut seed = 1u32;
        for _ in 0..20_000 {
            let mut m =
                reply(7, b"a.example", Kind::Srv, 3, &[0xc0, 12, 0, 5, 0, 1, 0, 0, 0, 9, 0, 2, 0xc0, 12]);
            for _ in 0..3 {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let at = (seed >> 8) as usize % m.len();
                m[at] = seed as u8;
            }
            let _ = (answers(&m, 7, b"a.example", Kind::Srv), parse(&m));
        }
    }

    #[test]
    fn names_that_cannot_be_asked_for() {
        for bad in [&b""[..], b".", b"a..b", &[b'a'; 64], &[b'.'; 300]] {
            assert_eq!(query(1, bad, Kind::A), None);
        }
        assert!(query(1, b"a.b.", Kind::A).is_some());
    }
}
