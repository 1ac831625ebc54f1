//! Messages of a worker process to the master, as bytes.
//!
//! The master keeps privileges and the worker may be in the hands of an attacker, so that the master believes nothing of
//! it: a message is short, a text is printable before it reaches a log, and bytes that do not fit are an error and never a
//! reason to wait. A message is its kind (1 byte), the length of its content (4 bytes, little-endian) and the content: a text or
//! a number.
//!
//! This file depends on the standard library only: the fuzz target `worker_answers` includes it.

/// A message of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WorkerMessage {
    /// All threads use the configuration of this number.
    Applied(u64),
    /// The configuration is not in use, and why.
    Failed(String),
    /// Somebody sent USR1 to the worker, which cannot open the files itself.
    PleaseReopen,
    /// Somebody sent QUIT to the worker: it accepts no more connections, and another worker should.
    Leaving,
}

/// Length of a message before its content, bytes.
const HEAD: usize = 5;
/// Length of a number, bytes.
const NUMBER: usize = 8;
/// Longest text that a message may announce, bytes.
pub(crate) const LONGEST: usize = 64 << 10;
/// Longest text that reaches a log, bytes. Lines of nginx are no longer than 2048.
const SHOWN: usize = 1900;

const APPLIED: u8 = 3;
const FAILED: u8 = 4;
const PLEASE_REOPEN: u8 = 5;
const LEAVING: u8 = 6;

impl WorkerMessage {
    /// Returns the bytes of the message. A text is cut off at [`LONGEST`].
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (kind, content) = match self {
            WorkerMessage::Applied(generation) => (APPLIED, &generation.to_le_bytes()[..]),
            WorkerMessage::Failed(text) => (FAILED, text.as_bytes()),
            WorkerMessage::PleaseReopen => (PLEASE_REOPEN, &[][..]),
            WorkerMessage::Leaving => (LEAVING, &[][..]),
        };
        let content = content.get(..LONGEST).unwrap_or(content);
        let length = u32::try_from(content.len()).unwrap_or(0);
        [&[kind], &length.to_le_bytes()[..], content].concat()
    }

    /// Returns `true` if the content of a message of a kind may have this length.
    fn may_have(kind: u8, length: usize) -> bool {
        match kind {
            APPLIED => length == NUMBER,
            FAILED => length <= LONGEST,
            PLEASE_REOPEN | LEAVING => length == 0,
            _ => false,
        }
    }

    /// Reads the content of a message; `None` if it does not fit the kind.
    fn decode(kind: u8, content: &[u8]) -> Option<WorkerMessage> {
        Some(match kind {
            APPLIED => WorkerMessage::Applied(u64::from_le_bytes(content.try_into().ok()?)),
            FAILED => WorkerMessage::Failed(printable(content)),
            PLEASE_REOPEN => WorkerMessage::PleaseReopen,
            LEAVING => WorkerMessage::Leaving,
            _ => return None,
        })
    }
}

/// Bytes that no worker sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken;

/// Bytes of a worker that are no whole message yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct WorkerMessages {
    bytes: Vec<u8>,
}

impl WorkerMessages {
    /// Adds bytes that were read from the socket.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns `true` if a message has begun and not ended.
    pub(crate) fn waiting(&self) -> bool {
        !self.bytes.is_empty()
    }

    /// Takes all whole messages. Equal ones count once, since acting on them twice in a row has no use. The result is an
    /// error when nothing that follows can be read.
    pub(crate) fn take_all(&mut self) -> (Vec<WorkerMessage>, Result<(), Broken>) {
        let mut answers = Vec::new();
        loop {
            match self.next() {
                Ok(Some(answer)) if answers.contains(&answer) => {}
                Ok(Some(answer)) => answers.push(answer),
                Ok(None) => return (answers, Ok(())),
                Err(broken) => return (answers, Err(broken)),
            }
        }
    }

    /// Takes the next whole message; `None` when there is none yet.
    ///
    /// # Errors
    /// The bytes are no message; nothing that follows can be read then.
    pub(crate) fn next(&mut self) -> Result<Option<WorkerMessage>, Broken> {
        let Some((&[kind, a, b, c, d], rest)) = self.bytes.split_first_chunk::<HEAD>() else {
            return match self.bytes.first() {
                Some(APPLIED..=LEAVING) | None => Ok(None),
                Some(_) => Err(Broken),
            };
        };
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        if !WorkerMessage::may_have(kind, length) {
            return Err(Broken);
        }
        let Some(content) = rest.get(..length) else { return Ok(None) };
        let answer = WorkerMessage::decode(kind, content).ok_or(Broken)?;
        self.bytes.drain(..HEAD + length);
        Ok(Some(answer))
    }
}

/// Returns the text as a log may have it, cut to a length.
fn printable(bytes: &[u8]) -> String {
    let mut text = forebay_sys::printable::printable(bytes);
    if text.len() > SHOWN {
        text.truncate(text.floor_char_boundary(SHOWN));
        text.push_str("...");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(bytes: &[u8]) -> (Vec<WorkerMessage>, Result<Option<WorkerMessage>, Broken>) {
        let mut answers = WorkerMessages::default();
        answers.add(bytes);
        let mut got = Vec::new();
        loop {
            match answers.next() {
                Ok(Some(answer)) => got.push(answer),
                end => return (got, end),
            }
        }
    }

    #[test]
    fn messages_arrive_whole_and_byte_by_byte() {
        let sent = [
            WorkerMessage::Applied(1 << 40),
            WorkerMessage::Failed("no".into()),
            WorkerMessage::PleaseReopen,
            WorkerMessage::Leaving,
        ];
        let bytes: Vec<u8> = sent.iter().flat_map(WorkerMessage::encode).collect();
        assert_eq!(all(&bytes), (sent.to_vec(), Ok(None)));
        let (mut answers, mut got) = (WorkerMessages::default(), Vec::new());
        for byte in &bytes {
            answers.add(&[*byte]);
            got.extend(answers.next().expect("no broken bytes"));
        }
        assert_eq!(got, sent);
        assert!(!answers.waiting());
    }

    #[test]
    fn texts_are_printable_and_short() {
        let failed = |text: &str| all(&WorkerMessage::Failed(text.into()).encode()).0;
        assert_eq!(
            failed("a\n2026/01/01 [emerg] \x1b[31m\u{85}é"),
            [WorkerMessage::Failed("a\\x0A2026/01/01 [emerg] \\x1B[31m\\xC2\\x85é".into())]
        );
        let (got, end) = all(&[&[FAILED, 2, 0, 0, 0][..], b"\xff\x80"].concat());
        assert_eq!((got, end), (vec![WorkerMessage::Failed("\\xFF\\x80".into())], Ok(None)));
        for long in ["x".repeat(1 << 20), "\n".repeat(LONGEST), "é".repeat(LONGEST)] {
            let [WorkerMessage::Failed(text)] = &failed(&long)[..] else { panic!("one message") };
            assert!(text.len() < 2000 && text.ends_with("..."), "{}", text.len());
        }
        // What is not UTF-8 becomes four times as long.
        for byte in [0xff, 0xe2] {
            let length = u32::try_from(LONGEST).expect("a length").to_le_bytes();
            let (got, _) = all(&[&[FAILED], &length[..], &vec![byte; LONGEST]].concat());
            let [WorkerMessage::Failed(text)] = &got[..] else { panic!("one message") };
            assert!(text.len() < 2000 && text.ends_with("..."), "{}", text.len());
        }
    }

    #[test]
    fn impossible_answers_are_refused_at_once() {
        for bytes in [
            &[0][..],
            &[255],
            &[1, 0, 0, 0, 0],
            &[APPLIED, 0, 0, 0, 0],
            &[APPLIED, 9, 0, 0, 0],
            &[FAILED, 1, 0, 1, 0],
            &[FAILED, 255, 255, 255, 255],
            &[LEAVING, 0, 0, 0, 1],
        ] {
            assert_eq!(all(bytes), (vec![], Err(Broken)), "{bytes:?}");
        }
    }

    /// The test of the fuzz target `worker_answers`, with bytes of a simple generator.
    #[test]
    fn any_bytes_in_any_pieces_give_the_same() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let mut whole = 0;
        for _ in 0..2000 {
            let mut bytes = Vec::new();
            for _ in 0..random() % 12 {
                match random() % 3 {
                    0 => bytes.extend((0..random() % 9).map(|_| random() as u8)),
                    1 => bytes.extend(WorkerMessage::Applied(random()).encode()),
                    _ => bytes.extend(WorkerMessage::Failed("x".repeat((random() % 50) as usize)).encode()),
                }
            }
            let at = random() as usize % (bytes.len() + 1);
            let (first, second) = bytes.split_at(at);
            let mut answers = WorkerMessages::default();
            let mut got = Vec::new();
            let mut end = Ok(None);
            for piece in [first, second] {
                answers.add(piece);
                end = loop {
                    match answers.next() {
                        Ok(Some(answer)) => got.push(answer),
                        end => break end,
                    }
                };
                if end.is_err() {
                    break;
                }
            }
            whole += got.len();
            assert_eq!((got, end), all(&bytes), "{bytes:?} cut at {at}");
        }
        assert!(whole > 100, "{whole}");
    }
}
