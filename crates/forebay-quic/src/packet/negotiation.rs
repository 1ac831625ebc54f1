//! Version Negotiation packets (RFC 8999, section 6; RFC 9000, section 17.2.1; RFC 9368, sections 2.1 and 4).

use super::build::push_ids;
use super::header::{FIXED, LONG};
use crate::version::Version;

/// Versions that servers offer and clients choose from, the preferred one first.
pub const OFFERED: [Version; 2] = [Version::V2, Version::V1];

/// Returns a version of the kind that nobody speaks (RFC 9000, section 15).
pub const fn reserved_version(random: u32) -> u32 {
    random & 0xf0f0_f0f0 | 0x0a0a_0a0a
}

/// Appends the answer to a packet whose version is not spoken here. `dst` and `src` are the identifiers that the packet had as
/// source and destination. Random bits go into bits without a meaning and into a reserved version, which is never
/// `version`, that of the packet: the client would ignore the answer.
pub fn push_negotiation(out: &mut Vec<u8>, version: u32, dst: &[u8], src: &[u8], random: u64) {
    out.push(LONG | FIXED | (random >> 32) as u8 & 0x3f);
    push_ids(out, 0, dst, src);
    let reserved = reserved_version(random as u32);
    let reserved = if reserved == version { reserved ^ 0x10 } else { reserved };
    let at = (random >> 40) as usize % (OFFERED.len() + 1);
    let mut offered = OFFERED.map(Version::number).into_iter();
    for index in 0..=OFFERED.len() {
        let number = if index == at { Some(reserved) } else { offered.next() };
        out.extend(number.map(u32::to_be_bytes).into_iter().flatten());
    }
}

/// Returns the versions of a Version Negotiation packet, or `None` if there is none or a part of one: it is ignored then.
pub fn versions(list: &[u8]) -> Option<impl Iterator<Item = u32> + Clone + '_> {
    let (chunks, rest) = list.as_chunks();
    (!chunks.is_empty() && rest.is_empty()).then(|| chunks.iter().map(|chunk| u32::from_be_bytes(*chunk)))
}

/// Reaction of a client to a Version Negotiation packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The packet is ignored: it has the version that the client began with.
    Ignore,
    /// The client begins again with another version.
    Use(Version),
    /// The server has no version that is spoken here.
    Fail,
}

/// Chooses the version of the next attempt of a client that began with `original`.
pub fn choose(list: impl Iterator<Item = u32> + Clone, original: Version) -> Choice {
    if list.clone().any(|version| version == original.number()) {
        return Choice::Ignore;
    }
    preferred(list).map_or(Choice::Fail, Choice::Use)
}

/// Returns the version that a client prefers among those of a server.
pub fn preferred(list: impl Iterator<Item = u32> + Clone) -> Option<Version> {
    OFFERED.into_iter().find(|version| list.clone().any(|number| number == version.number()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Header, Packet};

    #[test]
    fn versions_come_back() {
        for seed in 0..200_u64 {
            let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let theirs = reserved_version(random as u32);
            let mut out = Vec::new();
            push_negotiation(&mut out, theirs, &[7; 255], b"", random);
            let packet = Packet::parse(&out, 8).expect("well-formed");
            let Header::Negotiation { dst, src, versions: list } = packet.header else {
                panic!("{packet:?}")
            };
            assert_eq!((&out[dst], &out[src], packet.fixed), (&[7; 255][..], &[][..], true));
            let found: Vec<u32> = versions(&out[list]).expect("well-formed").collect();
            assert_eq!(found.iter().filter(|version| Version::from_number(**version).is_some()).count(), 2);
            let reserved = found.iter().find(|version| **version & 0x0f0f_0f0f == 0x0a0a_0a0a);
            assert!(found.len() == 3 && reserved.is_some_and(|version| *version != theirs), "{found:x?}");
        }
    }

    #[test]
    fn half_a_version_is_refused() {
        for len in 0..12 {
            let count = versions(&[1; 12][..len]).map(Iterator::count);
            assert_eq!(count, (len > 0 && len % 4 == 0).then_some(len / 4));
        }
    }

    #[test]
    fn choices_of_a_client() {
        let (v1, v2) = (Version::V1.number(), Version::V2.number());
        let choose = |list: &[u32], original| choose(list.iter().copied(), original);
        assert_eq!(choose(&[7, v1], Version::V1), Choice::Ignore);
        assert_eq!(choose(&[7, v1], Version::V2), Choice::Use(Version::V1));
        assert_eq!(choose(&[7], Version::V2), Choice::Fail);
        assert_eq!(preferred([v1, v2].into_iter()), Some(Version::V2));
    }
}
