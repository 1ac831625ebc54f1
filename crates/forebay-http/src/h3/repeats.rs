//! Request heads of field sections that clients send again and again, as callers of one method and those that poll do. A head that is
//! kept is copied instead of decoded. Hot path.

use super::qpack::Decoder;
use crate::h1::request::Limits;
use crate::request::RequestHead;
use foldhash::fast::RandomState;
use std::hash::BuildHasher;

/// Places for sections. Each has room for one, which depends on its bytes and its connection.
const PLACES: usize = 256;
/// Longest section that is kept, bytes.
const LONGEST: usize = 512;
/// Most bytes of a head that is kept.
const LARGEST: usize = 2048;

/// Everything that the head of a field section depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin<'s> {
    /// The section, encoded.
    pub section: &'s [u8],
    /// The dynamic table that it refers to; `None`: it refers to none.
    pub table: Option<TableState>,
    /// Limits and switches for the head.
    pub limits: &'s Limits,
    /// The request has no content.
    pub end_stream: bool,
}

/// State of a dynamic table, as far as a section depends on it: entries never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableState {
    /// Number of the connection, from [`Repeats::next_connection`].
    pub connection: u64,
    /// Insertions that the section needs.
    pub required: u64,
    /// Entries that have left the table.
    pub evicted: u64,
}

impl TableState {
    /// Returns the state of the table of a connection.
    pub fn of(connection: u64, decoder: &Decoder, required: u64) -> TableState {
        TableState { connection, required, evicted: decoder.evicted() }
    }
}

/// Head with all that it depends on.
#[derive(Debug)]
struct Kept {
    section: Vec<u8>,
    table: Option<TableState>,
    limits: Limits,
    end_stream: bool,
    head: RequestHead,
}

impl Kept {
    fn origin(&self) -> Origin<'_> {
        let Kept { section, table, limits, end_stream, .. } = self;
        Origin { section, table: *table, limits, end_stream: *end_stream }
    }
}

/// Place for a section.
#[derive(Debug, Default)]
struct Place {
    /// Digest of the section that was decoded last. It is kept once it comes again: most never do.
    last: u64,
    kept: Option<Box<Kept>>,
}

/// Heads of the sections that the connections of a thread have repeated.
#[derive(Debug, Default)]
pub struct Repeats {
    /// Empty until a section comes.
    places: Vec<Place>,
    /// Clients cannot choose sections that share a place.
    hasher: RandomState,
    connections: u64,
}

impl Repeats {
    /// Returns a number for a connection. None gets the same.
    pub fn next_connection(&mut self) -> u64 {
        self.connections += 1;
        self.connections
    }

    /// Copies the head of a section into `head`, whatever that was before. Returns `false`, and leaves it, if none is kept.
    #[inline]
    pub fn find(&self, origin: &Origin<'_>, head: &mut RequestHead) -> bool {
        let place = self.places.get(self.place(self.digest(origin)));
        match place.and_then(|place| place.kept.as_deref()) {
            Some(kept) if kept.origin() == *origin => {
                head.copy(&kept.head);
                true
            }
            _ => false,
        }
    }

    /// Notes the head that a section was decoded to.
    pub fn note(&mut self, origin: &Origin<'_>, head: &RequestHead) {
        if origin.section.len() > LONGEST || head.buf.len() > LARGEST {
            return;
        }
        if self.places.is_empty() {
            self.places.resize_with(PLACES, Place::default);
        }
        let digest = self.digest(origin);
        let at = self.place(digest);
        let Some(place) = self.places.get_mut(at) else { return };
        if std::mem::replace(&mut place.last, digest) != digest {
            return;
        }
        let mut copy = RequestHead::default();
        copy.copy(head);
        place.kept = Some(Box::new(Kept {
            section: origin.section.to_vec(),
            table: origin.table,
            limits: *origin.limits,
            end_stream: origin.end_stream,
            head: copy,
        }));
    }

    fn digest(&self, origin: &Origin<'_>) -> u64 {
        self.hasher.hash_one((origin.table.map_or(0, |table| table.connection), origin.section))
    }

    fn place(&self, digest: u64) -> usize {
        digest as usize % PLACES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compression::push_int;
    use crate::field::Name;
    use crate::h2::request::{Outcome, build};
    use crate::request::{Framing, Version};

    /// Appends a field line with a literal name and value (RFC 9204, section 4.5.6).
    fn push_line(section: &mut Vec<u8>, name: &str, value: &str) {
        push_int(section, 0x20, 3, name.len());
        section.extend_from_slice(name.as_bytes());
        push_int(section, 0, 7, value.len());
        section.extend_from_slice(value.as_bytes());
    }

    fn section(path: &str, more: &[(&str, &str)]) -> Vec<u8> {
        let mut section = vec![0, 0];
        let pseudo =
            [(":method", "POST"), (":scheme", "https"), (":authority", "Example.org:8443"), (":path", path)];
        for (name, value) in pseudo.iter().chain(more) {
            push_line(&mut section, name, value);
        }
        section
    }

    fn decoded(decoder: &Decoder, origin: &Origin<'_>) -> RequestHead {
        let mut head = RequestHead::default();
        let built = build(Version::Http3, origin.end_stream, &mut head, origin.limits, |fields| {
            decoder.decode(origin.section, &mut Vec::new(), fields).map(|_| ())
        });
        assert_eq!(built, Ok(Outcome::Complete));
        head
    }

    /// Returns everything of a head that requests can see.
    fn visible(head: &RequestHead) -> String {
        let mut copy = RequestHead::default();
        copy.copy(head);
        format!("{copy:?}")
    }

    #[test]
    fn a_section_that_came_twice_is_copied_the_third_time() {
        let (mut repeats, limits, decoder) = (Repeats::default(), Limits::default(), Decoder::new(0));
        let bytes = section(
            "/a/../b//c?d=e",
            &[("content-length", "5"), ("x", "y"), ("cookie", "a=b"), ("cookie", "c")],
        );
        let origin = Origin { section: &bytes, table: None, limits: &limits, end_stream: false };
        let head = decoded(&decoder, &origin);
        // The old content of a reused head has no influence.
        let other = section("/other", &[("te", "trailers"), ("range", "bytes=0-1")]);
        let mut used = decoded(&decoder, &Origin { section: &other, end_stream: true, ..origin });
        for _ in 0..2 {
            assert!(!repeats.find(&origin, &mut used));
            assert_eq!(used.get(Name::Range), Some(b"bytes=0-1".as_slice()), "left as it was");
            repeats.note(&origin, &head);
        }
        assert!(repeats.find(&origin, &mut used));
        assert_eq!(visible(&used), visible(&head));
        assert_eq!(
            (used.path.as_slice(), used.framing, used.port),
            (b"/b/c".as_slice(), Framing::Length(5), Some(8443))
        );
        assert_eq!((used.get(Name::Range), used.get(Name::Cookie)), (None, Some(b"a=b; c".as_slice())));
    }

    #[test]
    fn everything_a_head_depends_on_is_compared() {
        let (mut repeats, limits, decoder) = (Repeats::default(), Limits::default(), Decoder::new(0));
        let bytes = section("/", &[]);
        let table = Some(TableState { connection: repeats.next_connection(), required: 3, evicted: 1 });
        let origin = Origin { section: &bytes, table, limits: &limits, end_stream: true };
        let head = decoded(&decoder, &Origin { table: None, ..origin });
        repeats.note(&origin, &head);
        repeats.note(&origin, &head);
        let found = |origin: Origin<'_>| repeats.find(&origin, &mut RequestHead::default());
        assert!(found(origin));
        let others = [
            None,
            Some(TableState { connection: 2, required: 3, evicted: 1 }),
            Some(TableState { connection: 1, required: 4, evicted: 1 }),
            Some(TableState { connection: 1, required: 3, evicted: 2 }),
        ];
        assert!(others.into_iter().all(|table| !found(Origin { table, ..origin })));
        assert!(!found(Origin { end_stream: false, ..origin }));
        assert!(!found(Origin { section: &section("/x", &[]), ..origin }));
        let fewer = Limits { max_headers: 3, ..limits };
        assert!(!found(Origin { limits: &fewer, ..origin }));
    }

    #[test]
    fn memory_is_bounded() {
        let (mut repeats, limits, decoder) = (Repeats::default(), Limits::default(), Decoder::new(0));
        for n in 0..4 * PLACES {
            let bytes = section(&format!("/{n}"), &[]);
            let origin = Origin { section: &bytes, table: None, limits: &limits, end_stream: true };
            let head = decoded(&decoder, &origin);
            repeats.note(&origin, &head);
            repeats.note(&origin, &head);
        }
        assert_eq!(repeats.places.len(), PLACES);
        let long = section(&"/".repeat(LONGEST), &[]);
        let origin = Origin { section: &long, table: None, limits: &limits, end_stream: true };
        let head = decoded(&decoder, &origin);
        for _ in 0..3 {
            repeats.note(&origin, &head);
        }
        assert!(!repeats.find(&origin, &mut RequestHead::default()));
    }
}
