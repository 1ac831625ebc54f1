//! Messages as both sides of a comparison have them.

/// A field of a message.
pub type Field = (String, String);

/// Most bytes of a body that are kept.
pub(crate) const MOST_BODY: usize = 4 << 20;

/// A request as an upstream received it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Protocol of the upstream.
    pub protocol: &'static str,
    /// Method, target and version.
    pub line: String,
    /// Fields, or parameters, in the order in which they came.
    pub fields: Vec<Field>,
    /// Content.
    pub body: Vec<u8>,
}

/// A response as a client received it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Status; 0 if there was no response.
    pub status: u16,
    /// Version in the status line.
    pub version: String,
    /// Fields in the order in which they came.
    pub fields: Vec<Field>,
    /// Content, without chunks.
    pub body: Vec<u8>,
    /// Bytes of the content as they came, with chunks.
    pub wire: usize,
    /// The reason for which there was no whole response.
    pub failure: Option<String>,
}

/// Returns the first value of a field.
pub fn field<'f>(fields: &'f [Field], name: &str) -> Option<&'f str> {
    fields.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_str())
}

/// Returns bytes as text in which each byte has a place: those that are not UTF-8 become characters below 256.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap_or_else(|_| bytes.iter().map(|b| char::from(*b)).collect())
}
