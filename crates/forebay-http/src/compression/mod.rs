//! Compression of field sections, as far as HPACK (RFC 7541) and QPACK (RFC 9204) share it: numbers, Huffman code, decoded fields,
//! the dynamic table. Hot path.

pub mod huffman;
pub mod secret;
pub(crate) mod table;

use crate::field::Name;

/// Kind of a field's name, found once for an entry of a table instead of at each use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Label {
    /// `:method`
    Method,
    /// `:scheme`
    Scheme,
    /// `:path`
    Path,
    /// `:authority`
    Authority,
    /// `:status`
    Status,
    /// `:protocol` (RFC 8441, section 4; RFC 9220, section 3)
    Protocol,
    /// A name that begins with a colon and is none of these.
    Unknown,
    /// A known name with capital letters, which no field may have (RFC 9113, section 8.2.1).
    Capital,
    /// An ordinary field.
    Field(Name),
}

impl Label {
    /// Returns the label of a name.
    #[inline]
    pub fn of(name: &[u8]) -> Label {
        match name {
            [b':', ..] => match name {
                b":method" => Label::Method,
                b":scheme" => Label::Scheme,
                b":path" => Label::Path,
                b":authority" => Label::Authority,
                b":status" => Label::Status,
                b":protocol" => Label::Protocol,
                _ => Label::Unknown,
            },
            _ => match Name::of(name) {
                Name::Other => Label::Field(Name::Other),
                _ if name.iter().any(u8::is_ascii_uppercase) => Label::Capital,
                known => Label::Field(known),
            },
        }
    }
}

/// A decoded field.
#[derive(Clone, Copy, Debug)]
pub struct Field<'b> {
    /// Kind of its name.
    pub label: Label,
    /// The name as sent.
    pub name: &'b [u8],
    /// The value as sent.
    pub value: &'b [u8],
    /// The value has no CR, LF or NUL. Checked once for an entry of a table instead of at each use.
    pub sound: bool,
    /// Length of the longer of its strings as it was received with this block; 0 for an entry of a table.
    pub received: usize,
}

/// Receives decoded fields.
pub trait Sink {
    /// Receives a field. Called for each field of the block, even after one that makes the request invalid.
    fn field(&mut self, field: Field<'_>);
}

/// Appends a number with a prefix of `bits` bits, whose upper bits are `first` (RFC 7541, section 5.1).
pub fn push_int(out: &mut Vec<u8>, first: u8, bits: u32, value: usize) {
    let max = (1usize << bits) - 1;
    if value < max {
        out.push(first | value as u8);
        return;
    }
    out.push(first | max as u8);
    let mut rest = value - max;
    while rest >= 128 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// Returns what [`Name::of`] returns, at compile time.
pub(crate) const fn name_of(text: &[u8]) -> Name {
    let mut i = 0;
    while i < Name::COUNT {
        let known = Name::TEXT[i].as_bytes();
        let mut same = 0;
        while same < text.len() && same < known.len() && text[same] == known[same] {
            same += 1;
        }
        if same == text.len() && same == known.len() {
            return Name::ALL[i];
        }
        i += 1;
    }
    Name::Other
}

/// Returns the place of the first entry with a name in a static table, at compile time.
pub(crate) const fn place_of(table: &[(&str, &str)], name: &str) -> usize {
    let name = name.as_bytes();
    let mut i = 0;
    while i < table.len() {
        let known = table[i].0.as_bytes();
        let mut same = 0;
        while same < name.len() && same < known.len() && name[same] == known[same] {
            same += 1;
        }
        if same == name.len() && same == known.len() {
            return i;
        }
        i += 1;
    }
    panic!("not in the static table")
}
