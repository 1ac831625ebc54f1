//! Field lines of requests and responses (RFC 9112, section 5), resumable at any byte; the accepted set is
//! nginx's. Reached from `request::parse` and `client::parse`. Hot path.

use super::line::slice;
use crate::field::{FieldLine, Name, Slice};

/// The part of a head that belongs into a message about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detail {
    None,
    /// `: "TEXT"`
    Quoted(Slice),
    /// `: "TEXT..."`, a line that was cut.
    Cut(Slice),
    /// `: "TEXT\xNN..."`: the byte after the slice is at fault.
    UpTo(Slice),
    /// `: "TEXT", previous value: "TEXT"`
    Duplicate(Slice, Slice),
}

impl Detail {
    pub(crate) fn append(&self, buf: &[u8], out: &mut Vec<u8>) {
        let mut put = |text: &[u8]| out.extend_from_slice(text);
        match *self {
            Detail::None => {}
            Detail::Quoted(text) => {
                put(b": \"");
                put(text.of(buf));
                put(b"\"");
            }
            Detail::Cut(text) => {
                put(b": \"");
                put(text.of(buf));
                put(b"...\"");
            }
            Detail::UpTo(text) => {
                const DIGITS: &[u8; 16] = b"0123456789abcdef";
                let byte = buf.get(text.end as usize).copied().unwrap_or(0);
                put(b": \"");
                put(text.of(buf));
                put(&[b'\\', b'x', DIGITS[byte as usize >> 4], DIGITS[byte as usize & 15]]);
                put(b"...\"");
            }
            Detail::Duplicate(text, previous) => {
                put(b": \"");
                put(text.of(buf));
                put(b"\", previous value: \"");
                put(previous.of(buf));
                put(b"\"");
            }
        }
    }
}

/// State of the scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum State {
    #[default]
    Method,
    BeforeTarget,
    Scheme,
    SchemeSlashes,
    HostStart,
    Host,
    HostLiteral,
    HostEnd,
    Port,
    Target,
    AfterTarget,
    Version,
    Minor,
    AfterVersion,
    LineEnd,
    FieldStart,
    FieldName,
    BeforeValue,
    Value,
    FieldEnd,
    HeadEnd,
    Done,
}

/// Offset in a head, which is far below 4 GiB: see `request::parse` and `client::parse`. Thousands of heads wait for the rest of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct At(u32);

impl At {
    #[inline(always)]
    pub(crate) fn of(offset: usize) -> At {
        At(offset as u32)
    }

    #[inline(always)]
    pub(crate) fn get(self) -> usize {
        self.0 as usize
    }

    #[inline(always)]
    pub(crate) fn advance(&mut self, bytes: u32) {
        self.0 += bytes;
    }
}

/// State of the parser between calls, as offsets in the buffer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Scan {
    pub(crate) state: State,
    pub(crate) pos: At,
    /// Start of the line under way.
    pub(crate) start: At,
    pub(crate) name_end: At,
    pub(crate) value_start: At,
    pub(crate) value_end: At,
    /// Classes of the bytes of the name.
    pub(crate) seen: u8,
    /// The name of a line that is complete.
    pub(crate) id: Name,
    /// Value of the last `Connection`.
    pub(crate) connection: Option<bool>,
}

impl Scan {
    #[inline]
    fn take_usual(&mut self, line: &UsualLine) {
        let FieldLine { id, name, value } = line.field;
        self.start = At(name.start);
        self.name_end = At(name.end);
        self.value_start = At(value.start);
        self.value_end = At(value.end);
        self.seen = line.seen;
        self.id = id;
        self.pos = At::of(line.end);
    }

    /// Returns the line of an `Event::Field`.
    #[inline]
    pub(crate) fn field(&self) -> FieldLine {
        FieldLine {
            id: self.id,
            name: Slice { start: self.start.0, end: self.name_end.0 },
            value: Slice { start: self.value_start.0, end: self.value_end.0 },
        }
    }
}

/// A field line that nginx refuses, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InvalidLine(pub(crate) Detail);

/// Classes of the bytes of a name, and of whole names in `Scan::seen`.
const USUAL: u8 = 0;
pub(crate) const UNDERSCORE: u8 = 1;
pub(crate) const UNUSUAL: u8 = 2;
const NAME_STOP: u8 = 4;

/// Classes of the bytes of field names.
static NAME: [u8; 256] = {
    let mut t = [UNUSUAL; 256];
    let mut i = 0;
    while i < 256 {
        let b = i as u8;
        if b.is_ascii_alphanumeric() || b == b'-' {
            t[i] = USUAL;
        } else if b <= b' ' || b == b':' || b == 0x7f {
            t[i] = NAME_STOP;
        }
        i += 1;
    }
    t[b'_' as usize] = UNDERSCORE;
    t
};

/// Result of `field_line`.
pub(crate) enum Event {
    /// A field line is complete: `Scan` has its parts.
    Field,
    /// The empty line.
    End,
}

/// A line that is there whole and has nothing unusual: all but one in a thousand.
pub(crate) struct UsualLine {
    pub(crate) field: FieldLine,
    /// Classes of the bytes of the name.
    seen: u8,
    /// Offset after the line end.
    pub(crate) end: usize,
}

/// Returns the line at `start`, if it is a usual one.
#[inline(always)]
pub(crate) fn usual_line(buf: &[u8], start: usize) -> Option<UsualLine> {
    // What follows the empty line may have colons, too.
    let line = buf.get(start..).filter(|line| line.first() != Some(&b'\r'))?;
    let colon = colon(line).filter(|c| *c > 0)?;
    // The bytes of a name that is known need no look.
    let id = Name::leading(line, colon);
    let mut seen = USUAL;
    if id == Name::Other {
        for b in line.get(..colon).unwrap_or_default() {
            seen |= NAME[*b as usize];
        }
        if seen & NAME_STOP != 0 {
            return None;
        }
    }
    let mut rest = line.get(colon + 1..)?;
    while let [b' ', behind @ ..] = rest {
        rest = behind;
    }
    let start_of_value = line.len() - rest.len();
    let stop = stop(rest);
    let (mut value, [b'\r', b'\n', ..]) = rest.split_at_checked(stop)? else { return None };
    while let [before @ .., b' '] = value {
        value = before;
    }
    // Heads are far below 4 GiB: see `request::parse` and `client::parse`.
    let slice = |from: usize, to: usize| Slice { start: (start + from) as u32, end: (start + to) as u32 };
    Some(UsualLine {
        field: FieldLine {
            id,
            name: slice(0, colon),
            value: slice(start_of_value, start_of_value + value.len()),
        },
        seen,
        end: start + start_of_value + stop + 2,
    })
}

/// Longest name that is looked for eight bytes at a time, and so the most that is looked at in vain.
const NAME_WINDOW: usize = 64;

/// Returns the offset of the first colon, if it is near.
#[inline]
fn colon(line: &[u8]) -> Option<usize> {
    const LOW: u64 = u64::from_ne_bytes([1; 8]);
    let mut p = 0;
    while let Some(chunk) = line.get(p..).and_then(|rest| rest.first_chunk::<8>())
        && p < NAME_WINDOW
    {
        let x = u64::from_le_bytes(*chunk) ^ (LOW * b':' as u64);
        // High bit of the first byte that is zero; borrows can only reach bytes after it.
        let zero = x.wrapping_sub(LOW) & !x & (LOW << 7);
        if zero != 0 {
            return Some(p + zero.trailing_zeros() as usize / 8);
        }
        p += 8;
    }
    None
}

/// Takes the scan to the end of a field line or of the head; `pos` is then after the line end.
pub(crate) fn field_line(buf: &[u8], scan: &mut Scan) -> Result<Option<Event>, InvalidLine> {
    if scan.state == State::FieldStart
        && let Some(line) = usual_line(buf, scan.pos.get())
    {
        scan.take_usual(&line);
        return Ok(Some(Event::Field));
    }
    loop {
        let (event, state) = step(buf, scan)?;
        if let Some(event) = event {
            scan.state = State::FieldStart;
            scan.id = Name::of(buf.get(scan.start.get()..scan.name_end.get()).unwrap_or_default());
            return Ok(Some(event));
        }
        // Its own state: bytes have run out, and `scan` keeps the place.
        if state == scan.state {
            return Ok(None);
        }
        scan.state = state;
    }
}

/// Each of the following returns an event, or the next state, or its own state when bytes run out.
type Progress = (Option<Event>, State);

#[inline]
fn step(buf: &[u8], scan: &mut Scan) -> Result<Progress, InvalidLine> {
    match scan.state {
        State::FieldStart => Ok(field_start(buf, scan)),
        State::FieldName => name(buf, scan),
        State::BeforeValue => Ok(before_value(buf, scan)),
        State::Value => value(buf, scan),
        State::FieldEnd => field_end(buf, scan),
        _ => head_end(buf, scan),
    }
}

fn field_start(buf: &[u8], scan: &mut Scan) -> Progress {
    scan.start = scan.pos;
    match buf.get(scan.pos.get()..).unwrap_or_default() {
        [] => (None, State::FieldStart),
        [b'\n', ..] => {
            scan.pos.advance(1);
            (Some(Event::End), State::FieldStart)
        }
        [b'\r', b'\n', ..] => {
            scan.pos.advance(2);
            (Some(Event::End), State::FieldStart)
        }
        [b'\r', ..] => {
            scan.pos.advance(1);
            (None, State::HeadEnd)
        }
        _ => {
            scan.seen = 0;
            (None, State::FieldName)
        }
    }
}

#[inline]
fn name(buf: &[u8], scan: &mut Scan) -> Result<Progress, InvalidLine> {
    let mut p = scan.pos.get();
    let mut seen = scan.seen;
    while let Some(&b) = buf.get(p) {
        let class = NAME[b as usize];
        if class == NAME_STOP {
            scan.seen = seen;
            scan.name_end = At::of(p);
            // A line without a colon has an empty value.
            scan.value_start = At::of(p);
            scan.value_end = At::of(p);
            scan.pos = At::of(p + 1);
            return match b {
                b':' if p > scan.start.get() => Ok((None, State::BeforeValue)),
                b'\r' => Ok((None, State::FieldEnd)),
                b'\n' => Ok((Some(Event::Field), State::FieldStart)),
                _ => Err(invalid_line(scan.start.get(), p)),
            };
        }
        seen |= class;
        p += 1;
    }
    scan.seen = seen;
    scan.pos = At::of(p);
    Ok((None, State::FieldName))
}

fn before_value(buf: &[u8], scan: &mut Scan) -> Progress {
    let mut p = scan.pos.get();
    while buf.get(p) == Some(&b' ') {
        p += 1;
    }
    scan.pos = At::of(p);
    scan.value_start = At::of(p);
    (None, if p < buf.len() { State::Value } else { State::BeforeValue })
}

#[inline]
fn value(buf: &[u8], scan: &mut Scan) -> Result<Progress, InvalidLine> {
    let p = value_stop(buf, scan.pos.get());
    scan.pos = At::of(p);
    let Some(&b) = buf.get(p) else { return Ok((None, State::Value)) };
    if b == 0 {
        return Err(invalid_line(scan.start.get(), p));
    }
    let mut end = p;
    while end > scan.value_start.get() && buf.get(end - 1) == Some(&b' ') {
        end -= 1;
    }
    scan.value_end = At::of(end);
    scan.pos = At::of(p + 1);
    match b {
        b'\n' => Ok((Some(Event::Field), State::FieldStart)),
        _ => Ok((None, State::FieldEnd)),
    }
}

/// Returns the offset of the first CR, LF or NUL from `p` on, or the end.
pub(crate) fn value_stop(buf: &[u8], p: usize) -> usize {
    p + stop(buf.get(p..).unwrap_or_default())
}

/// Returns the length of `text` up to the first CR, LF or NUL, or all of it. Eight bytes at a time: values are short, so
/// calling memchr would cost more than it saves.
#[inline]
pub(crate) fn stop(text: &[u8]) -> usize {
    const LOW: u64 = u64::from_ne_bytes([1; 8]);
    const HIGH: u64 = LOW << 7;
    let mut rest = text;
    loop {
        while let Some((chunk, behind)) = rest.split_first_chunk::<8>() {
            let x = u64::from_le_bytes(*chunk);
            // High bit of the first byte below 0x0e; borrows can only reach bytes after it.
            // CR, LF and NUL are below it; so are the tab and others, which the match skips one at a time.
            let below = x.wrapping_sub(LOW * 0x0e) & !x & HIGH;
            if below != 0 {
                rest = rest.get(below.trailing_zeros() as usize / 8..).unwrap_or_default();
                break;
            }
            rest = behind;
        }
        match rest {
            [] | [b'\r' | b'\n' | 0, ..] => return text.len() - rest.len(),
            [_, behind @ ..] => rest = behind,
        }
    }
}

/// Reads on behind the CR of a field line, which may repeat, as in nginx.
fn field_end(buf: &[u8], scan: &mut Scan) -> Result<Progress, InvalidLine> {
    loop {
        match buf.get(scan.pos.get()) {
            None => return Ok((None, State::FieldEnd)),
            Some(b'\r') => scan.pos.advance(1),
            Some(b'\n') => {
                scan.pos.advance(1);
                return Ok((Some(Event::Field), State::FieldStart));
            }
            Some(_) => return Err(invalid_line(scan.start.get(), scan.value_end.get())),
        }
    }
}

/// Reads on behind the CR of the empty line.
fn head_end(buf: &[u8], scan: &mut Scan) -> Result<Progress, InvalidLine> {
    match buf.get(scan.pos.get()) {
        None => Ok((None, State::HeadEnd)),
        Some(b'\n') => {
            scan.pos.advance(1);
            Ok((Some(Event::End), State::FieldStart))
        }
        Some(_) => Err(invalid_line(scan.start.get(), scan.start.get())),
    }
}

fn invalid_line(start: usize, end: usize) -> InvalidLine {
    InvalidLine(Detail::UpTo(slice(start, end)))
}
