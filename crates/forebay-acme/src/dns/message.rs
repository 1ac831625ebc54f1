//! Answers of a name server (RFC 1035, section 4) that knows nothing but TXT records of DNS-01.

use forebay_net::resolver::message::{Question, question};

/// Length of a header, bytes.
const HEADER: usize = 12;
/// Longest answer over UDP to a client that names no length (RFC 1035, section 4.2.1), and to any client. The second leaves in one
/// packet on nearly all paths.
const DATAGRAM: (usize, usize) = (512, 1232);
/// Seconds for which a server may remember that there is no record. Short: it may be there soon.
const NOTHING_TTL: u32 = 1;

/// Types of records.
const SOA: u16 = 6;
const TXT: u16 = 16;
const ANY: u16 = 255;
/// The class of the Internet.
const INTERNET: u16 = 1;

/// Codes of results (RFC 1035, section 4.1.1; RFC 6891, section 9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Code {
    Success = 0,
    Malformed = 1,
    NotImplemented = 4,
    Refused = 5,
    /// Version of the extension. Its upper bits are in the record of the extension.
    BadVersion = 16,
}

/// Protocol that a query came over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DnsTransport {
    /// UDP, where answers may be cut off.
    Udp,
    /// TCP.
    Tcp,
}

/// Name that the server is responsible for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// Values of its TXT records.
    pub values: Vec<String>,
    /// Seconds for which answers may be kept.
    pub ttl: u32,
}

/// Answer under construction.
struct Reply<'q> {
    query: &'q [u8],
    question: Option<Question>,
    code: Code,
    /// The server is responsible for the name.
    authoritative: bool,
    /// Records with their number: answers, and authority.
    answers: (u16, Vec<u8>),
    authority: (u16, Vec<u8>),
}

/// Returns the answer to a message. `find` returns what is known of a name in lower case. Returns `None` for what is no query:
/// an answer to it might be answered.
pub fn answer(
    query: &[u8],
    transport: DnsTransport,
    find: impl FnOnce(&[u8]) -> Option<Served>,
) -> Option<Vec<u8>> {
    let flags = query.get(..HEADER)?.get(2)?;
    if flags & 0x80 != 0 {
        return None;
    }
    let mut answer = Reply {
        query,
        question: None,
        code: Code::Success,
        authoritative: false,
        answers: (0, Vec::new()),
        authority: (0, Vec::new()),
    };
    answer.code = match (flags >> 3 & 15, question(query)) {
        (0, Some(question)) => answer.look_up(question, find),
        (0, None) => Code::Malformed,
        _ => Code::NotImplemented,
    };
    Some(answer.text(transport))
}

impl Reply<'_> {
    fn look_up(&mut self, question: Question, find: impl FnOnce(&[u8]) -> Option<Served>) -> Code {
        let Question { class, kind, extension, .. } = question;
        let found = find(&question.name).filter(|_| class == INTERNET);
        self.question = Some(question);
        if extension.is_some_and(|e| e.version > 0) {
            return Code::BadVersion;
        }
        let Some(served) = found else { return Code::Refused };
        self.authoritative = true;
        match kind {
            TXT | ANY if !served.values.is_empty() => {
                for value in &served.values {
                    push(&mut self.answers, (TXT, served.ttl), &text(value));
                }
            }
            SOA => push(&mut self.answers, (SOA, served.ttl), &start_of_authority()),
            _ => push(&mut self.authority, (SOA, NOTHING_TTL), &start_of_authority()),
        }
        Code::Success
    }

    /// Returns the message, without records if it would be too long.
    fn text(&self, transport: DnsTransport) -> Vec<u8> {
        let asked = self.question.as_ref().and_then(|q| q.extension).map_or(0, |e| usize::from(e.size));
        let limit = match transport {
            DnsTransport::Udp => asked.clamp(DATAGRAM.0, DATAGRAM.1),
            DnsTransport::Tcp => usize::from(u16::MAX),
        };
        let whole = self.message(true);
        if whole.len() <= limit { whole } else { self.message(false) }
    }

    fn message(&self, whole: bool) -> Vec<u8> {
        let question = self.question.as_ref().and_then(|q| self.query.get(HEADER..q.end));
        let extension = self.question.as_ref().is_some_and(|q| q.extension.is_some());
        let nothing = (0, Vec::new());
        let [answers, authority] = [&self.answers, &self.authority].map(|r| if whole { r } else { &nothing });
        let id_and_flags = self.query.get(..4).unwrap_or_default();
        let mut out = id_and_flags.to_vec();
        if let [_, _, high, low] = out.as_mut_slice() {
            // An answer, with the operation and the wish for recursion of the query, which there is not.
            *high = 0x80 | (*high & 0x79) | u8::from(self.authoritative) << 2 | u8::from(!whole) << 1;
            *low = self.code as u8 & 15;
        }
        for count in [u16::from(question.is_some()), answers.0, authority.0, u16::from(extension)] {
            out.extend_from_slice(&count.to_be_bytes());
        }
        out.extend_from_slice(question.unwrap_or_default());
        out.extend_from_slice(&answers.1);
        out.extend_from_slice(&authority.1);
        if extension {
            let [high, low] = (DATAGRAM.1 as u16).to_be_bytes();
            out.extend_from_slice(&[0, 0, 41, high, low, self.code as u8 >> 4, 0, 0, 0, 0, 0]);
        }
        out
    }
}

/// Appends a record of the name in the question.
fn push(records: &mut (u16, Vec<u8>), (kind, ttl): (u16, u32), data: &[u8]) {
    let Ok(length) = u16::try_from(data.len()) else { return };
    records.0 = records.0.saturating_add(1);
    let out = &mut records.1;
    // A pointer to the question behind the header.
    out.extend_from_slice(&[0xc0, HEADER as u8]);
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&INTERNET.to_be_bytes());
    out.extend_from_slice(&ttl.to_be_bytes());
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(data);
}

/// Returns the data of a TXT record.
fn text(value: &str) -> Vec<u8> {
    // Values are digests of 43 characters. A string has at most 255.
    let bytes = value.as_bytes().get(..255).unwrap_or(value.as_bytes());
    [&[bytes.len() as u8], bytes].concat()
}

/// Returns the data of the SOA record: the name is a zone of its own, whose server has the same name.
fn start_of_authority() -> Vec<u8> {
    let pointer = [0xc0, HEADER as u8];
    let mut data = [pointer.as_slice(), &[10], b"hostmaster", &pointer].concat();
    // Serial number, refresh, retry, expire, and the time for which the lack of a record may be remembered.
    for number in [1, 3600, 600, 86_400, NOTHING_TTL] {
        data.extend_from_slice(&number.to_be_bytes());
    }
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &[u8] = b"_acme-challenge.a.example";

    fn query(kind: u16, extension: Option<(u16, u8)>) -> Vec<u8> {
        let mut m = vec![0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, u8::from(extension.is_some())];
        for label in ["_Acme-Challenge", "A", "example"] {
            m.push(label.len() as u8);
            m.extend_from_slice(label.as_bytes());
        }
        m.push(0);
        m.extend_from_slice(&kind.to_be_bytes());
        m.extend_from_slice(&[0, 1]);
        if let Some((size, version)) = extension {
            let [high, low] = size.to_be_bytes();
            m.extend_from_slice(&[0, 0, 41, high, low, 0, version, 0, 0, 0, 0]);
        }
        m
    }

    fn served(values: &[&str]) -> impl Fn(&[u8]) -> Option<Served> {
        let values: Vec<String> = values.iter().map(|v| (*v).to_owned()).collect();
        move |name| (name == NAME).then(|| Served { values: values.clone(), ttl: 60 })
    }

    fn ask(query: &[u8], values: &[&str]) -> Vec<u8> {
        answer(query, DnsTransport::Udp, served(values)).expect("an answer")
    }

    #[test]
    fn values_are_answered_in_any_case_of_the_name() {
        let q = query(TXT, None);
        let a = ask(&q, &["one", "two"]);
        assert_eq!(a.get(..12), Some([0, 7, 0x85, 0, 0, 1, 0, 2, 0, 0, 0, 0].as_slice()));
        assert_eq!(a.get(12..q.len()), q.get(12..), "the question as it was asked");
        let one = [0xc0, 12, 0, 16, 0, 1, 0, 0, 0, 60, 0, 4, 3, b'o', b'n', b'e'];
        assert_eq!(a.get(q.len()..q.len() + one.len()), Some(one.as_slice()));
        assert!(a.ends_with(b"\x03two"));
    }

    #[test]
    fn missing_records_are_answered_with_an_authority() {
        for (kind, values) in [(TXT, [].as_slice()), (1, &["one"]), (2, &["one"])] {
            let a = ask(&query(kind, None), values);
            assert_eq!(a.get(2..12), Some([0x85, 0, 0, 1, 0, 0, 0, 1, 0, 0].as_slice()), "{kind}");
        }
        let a = ask(&query(SOA, None), &[]);
        assert_eq!(a.get(6..10), Some([0, 1, 0, 0].as_slice()));
    }

    #[test]
    fn other_names_and_classes_are_refused() {
        let a = answer(&query(TXT, None), DnsTransport::Udp, |_| None).expect("an answer");
        assert_eq!(a.get(2..12), Some([0x81, 5, 0, 1, 0, 0, 0, 0, 0, 0].as_slice()));
        let mut chaos = query(TXT, None);
        *chaos.last_mut().expect("a class") = 3;
        assert_eq!(ask(&chaos, &["one"]).get(3), Some(&5));
    }

    #[test]
    fn messages_that_are_no_questions() {
        let mut m = query(TXT, None);
        m[2] |= 0x80;
        assert_eq!(answer(&m, DnsTransport::Udp, served(&[])), None, "an answer");
        m[2] = 0x28;
        assert_eq!(ask(&m, &[]).get(2..4), Some([0xa8, 4].as_slice()), "an update");
        m[2] = 0;
        assert_eq!(ask(&m[..20], &[]).get(2..6), Some([0x80, 1, 0, 0].as_slice()), "cut off");
        assert_eq!(answer(&m[..11], DnsTransport::Udp, served(&[])), None);
    }

    #[test]
    fn extensions_are_answered() {
        let a = ask(&query(TXT, Some((1400, 0))), &["one"]);
        assert_eq!(a.get(a.len() - 11..), Some([0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0].as_slice()));
        let a = ask(&query(TXT, Some((1400, 1))), &["one"]);
        assert_eq!(a.get(3), Some(&0));
        assert_eq!(a.get(a.len() - 6), Some(&1), "version 0 only");
    }

    #[test]
    fn no_bytes_do_harm() {
        let mut seed = 1u32;
        for _ in 0..20_000 {
            let mut m = query(TXT, Some((1232, 0)));
            for _ in 0..4 {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let at = (seed >> 8) as usize % m.len();
                m[at] = seed as u8;
            }
            m.truncate(m.len() - (seed >> 28) as usize);
            for transport in [DnsTransport::Udp, DnsTransport::Tcp] {
                let Some(a) = answer(&m, transport, |_| served(&["one"])(NAME)) else { continue };
                assert!(a.len() >= HEADER && a[2] & 0x80 != 0 && a[..2] == m[..2], "{}", m.escape_ascii());
            }
        }
    }

    #[test]
    fn long_answers_go_over_tcp() {
        let long = "x".repeat(200);
        let values = [long.as_str(); 4];
        let q = query(TXT, None);
        let a = ask(&q, &values);
        assert_eq!((a.len(), a.get(2), a.get(7)), (q.len(), Some(&0x87), Some(&0)));
        assert_eq!(ask(&query(TXT, Some((4096, 0))), &values).get(2), Some(&0x85));
        let a = answer(&q, DnsTransport::Tcp, served(&values)).expect("an answer");
        assert_eq!((a.get(2), a.get(7)), (Some(&0x85), Some(&4)));
    }
}
