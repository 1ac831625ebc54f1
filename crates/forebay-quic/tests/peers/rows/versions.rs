//! Versions (RFC 8999, section 6; RFC 9000, section 6; RFC 9368; RFC 9369).

use crate::lab::{Lab, Stage};
use crate::raw::{Shape, eight};
use crate::table::{BOTH, CLIENT, Row, SERVER, Want, of, row};
use forebay_quic::connection::Reason;
use forebay_quic::error::Code;
use forebay_quic::packet::{Kind, protect};
use forebay_quic::parameters::{VersionInformation, id};
use forebay_quic::varint;
use forebay_quic::version::Version;

const FRESH: Stage = Stage::Fresh;

/// Returns a Version Negotiation packet.
pub fn negotiation(dst: &[u8], src: &[u8], versions: &[u32]) -> Vec<u8> {
    let mut packet = vec![0x80, 0, 0, 0, 0, dst.len() as u8];
    packet.extend(dst);
    packet.push(src.len() as u8);
    packet.extend(src);
    packet.extend(versions.iter().flat_map(|v| v.to_be_bytes()));
    packet
}

/// Sends a Version Negotiation packet to the tested client.
fn negotiate(lab: &mut Lab, versions: &[u32]) {
    let packet = negotiation(&lab.raw.remote, &lab.raw.original, versions);
    lab.send(&packet);
}

fn is_over(reason: &Reason) -> bool {
    *reason == Reason::NoVersion
}

pub fn rows() -> Vec<Row> {
    let mut all = of(9000, negotiations());
    all.extend(of(8999, invariants()));
    all.extend(of(9368, informations()));
    all.extend(of(9369, second()));
    all
}

fn negotiations() -> Vec<Row> {
    vec![
        row(
            "6.2",
            CLIENT,
            FRESH,
            "Version Negotiation",
            |l| negotiate(l, &[0x0a0a_0a0a, 0x6b33_43cf]),
            Want::Lost(is_over),
        ),
        row(
            "6.2",
            CLIENT,
            FRESH,
            "Version Negotiation with the version in use",
            |l| negotiate(l, &[0x6b33_43cf, 1]),
            Want::Dropped,
        ),
        row(
            "6.2",
            CLIENT,
            FRESH,
            "Version Negotiation behind an Initial packet",
            |l| {
                l.frames(Kind::Initial, &[1]);
                negotiate(l, &[0x0a0a_0a0a]);
            },
            Want::That(|l| l.is_open()),
        ),
        row(
            "6.2",
            CLIENT,
            Stage::Connected,
            "Version Negotiation behind the handshake",
            |l| negotiate(l, &[0x0a0a_0a0a]),
            Want::Dropped,
        ),
        row(
            "6.2",
            CLIENT,
            FRESH,
            "Version Negotiation for another client",
            |l| {
                let packet = negotiation(&eight(1), &l.raw.original, &[0x0a0a_0a0a]);
                l.send(&packet);
            },
            Want::Dropped,
        ),
        row(
            "6.2",
            CLIENT,
            FRESH,
            "Version Negotiation that answers another packet",
            |l| {
                let packet = negotiation(&l.raw.remote, &eight(1), &[0x0a0a_0a0a]);
                l.send(&packet);
            },
            Want::Dropped,
        ),
        row(
            "6.1",
            SERVER,
            Stage::Connected,
            "Version Negotiation to a server",
            |l| {
                let packet = negotiation(&l.raw.remote, &l.raw.local, &[0x0a0a_0a0a]);
                l.send(&packet);
            },
            Want::Dropped,
        ),
        row(
            "5.2.1",
            CLIENT,
            Stage::Hello,
            "a Handshake packet of another version",
            |l| {
                l.shaped(Kind::Handshake, &[1], &Shape { version: Some(Version::V2), ..Shape::default() });
            },
            Want::Dropped,
        ),
    ]
}

fn invariants() -> Vec<Row> {
    vec![
        row(
            "6",
            CLIENT,
            FRESH,
            "Version Negotiation without a version",
            |l| negotiate(l, &[]),
            Want::Dropped,
        ),
        row(
            "6",
            CLIENT,
            FRESH,
            "Version Negotiation with a part of a version",
            |l| {
                let mut packet = negotiation(&l.raw.remote, &l.raw.original, &[0x0a0a_0a0a]);
                packet.extend([1, 2, 3]);
                l.send(&packet);
            },
            Want::Dropped,
        ),
        row(
            "6",
            CLIENT,
            FRESH,
            "Version Negotiation with bits that mean nothing",
            |l| {
                let mut packet = negotiation(&l.raw.remote, &l.raw.original, &[0x0a0a_0a0a]);
                packet[0] = 0xff;
                l.send(&packet);
            },
            Want::Lost(is_over),
        ),
    ]
}

/// Returns a parameter of some versions.
fn information(out: &mut Vec<u8>, versions: &[u32]) {
    varint::push(out, id::VERSION_INFORMATION);
    varint::push(out, 4 * versions.len() as u64);
    out.extend(versions.iter().flat_map(|v| v.to_be_bytes()));
}

fn informations() -> Vec<Row> {
    const WRONG: Want = Want::Close(Code::TRANSPORT_PARAMETER_ERROR, 0);
    const OTHER: Want = Want::Close(Code::VERSION_NEGOTIATION_ERROR, 0);
    let up = |what, want, setup| row("4", BOTH, FRESH, what, Lab::connect, want).with(setup);
    vec![
        up("the version in use", Want::Ignored, |s| s.encoded = |out| information(out, &[1, 1])),
        up("another version than the one in use", OTHER, |s| {
            s.encoded = |out| information(out, &[0x6b33_43cf, 0x6b33_43cf, 1])
        }),
        up("a version that nobody speaks", OTHER, |s| {
            s.encoded = |out| information(out, &[0x0a0a_0a0a, 0x0a0a_0a0a, 1])
        }),
        up("a version 0 as the chosen one", WRONG, |s| s.encoded = |out| information(out, &[0, 0, 1])),
        up("a version 0 among the available ones", WRONG, |s| s.encoded = |out| information(out, &[1, 1, 0])),
        up("no version at all", WRONG, |s| s.encoded = |out| information(out, &[])),
        up("a part of a version", WRONG, |s| {
            s.encoded = |out| out.extend([id::VERSION_INFORMATION as u8, 6, 0, 0, 0, 1, 0, 0])
        }),
        up("two lists of versions", WRONG, |s| {
            s.encoded = |out| {
                information(out, &[1, 1]);
                information(out, &[1, 1]);
            }
        }),
        row("4", SERVER, FRESH, "a chosen version that is not available", Lab::flight, WRONG)
            .with(|s| s.encoded = |out| information(out, &[1, 0x6b33_43cf])),
        row("4", CLIENT, FRESH, "no available version of a server", Lab::connect, Want::Ignored)
            .with(|s| s.encoded = |out| information(out, &[1])),
        row("4", BOTH, FRESH, "versions as this crate says them", Lab::connect, Want::Ignored).with(|s| {
            s.parameters = |p| {
                p.version_information =
                    Some(VersionInformation::new(Version::V1, &[Version::V1, Version::V2]))
            }
        }),
    ]
}

fn second() -> Vec<Row> {
    fn other_initial(lab: &mut Lab) {
        let id = lab.raw.original;
        lab.raw.initial = protect::initial_keys(Version::V2, &id, lab.raw.side).ok();
        lab.shaped(Kind::Initial, &[1], &Shape { version: Some(Version::V2), ..Shape::default() });
    }
    vec![
        row(
            "3",
            BOTH,
            Stage::Connected,
            "a connection of version 2",
            |l| l.frames(Kind::OneRtt, &[1]),
            Want::Ignored,
        )
        .with(|s| s.version = Version::V2),
        row(
            "4.1",
            SERVER,
            Stage::Hello,
            "a Handshake packet of version 2 in a connection of version 1",
            |l| {
                l.shaped(Kind::Handshake, &[1], &Shape { version: Some(Version::V2), ..Shape::default() });
            },
            Want::Dropped,
        ),
        row(
            "4.1",
            BOTH,
            Stage::Hello,
            "a Handshake packet of version 1 in a connection of version 2",
            |l| {
                l.shaped(Kind::Handshake, &[1], &Shape { version: Some(Version::V1), ..Shape::default() });
            },
            Want::Dropped,
        )
        .with(|s| s.version = Version::V2),
        row(
            "4.1",
            SERVER,
            Stage::Hello,
            "an Initial packet of version 2 in a connection of version 1",
            other_initial,
            Want::Dropped,
        ),
        row(
            "4.1",
            CLIENT,
            FRESH,
            "an Initial packet of a version that was not offered",
            other_initial,
            Want::Dropped,
        ),
        row(
            "4.1",
            SERVER,
            FRESH,
            "a 0-RTT packet of another version",
            |l| {
                *l = super::places::resumed(l.setup.clone());
                let taken = l.node.taken();
                l.shaped(Kind::ZeroRtt, &[1], &Shape { version: Some(Version::V2), ..Shape::default() });
                assert_eq!(l.node.taken(), taken);
                l.frames(Kind::ZeroRtt, &[1]);
                assert_eq!(l.node.taken(), taken + 1);
            },
            Want::That(|l| l.is_open()),
        ),
        row(
            "5",
            SERVER,
            FRESH,
            "a token of version 1 in a packet of version 2",
            |l| {
                let mut token = Vec::new();
                assert!(crate::node::Plain::tokens().push_new(
                    &mut token,
                    Version::V1,
                    l.raw.addr.ip(),
                    crate::node::UNIX,
                    [8; 16]
                ));
                l.raw.token = token;
                l.flight();
            },
            Want::That(|l| l.node.connections.is_empty()),
        )
        .with(|s| (s.version, s.retries) = (Version::V2, true)),
    ]
}
