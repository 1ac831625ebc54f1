//! Transport parameters (RFC 9000, sections 7.3, 7.4 and 18; RFC 9221; RFC 9287; RFC 9368).

use crate::lab::{Lab, Stage};
use crate::raw::eight;
use crate::setup::Setup;
use crate::table::{BOTH, CLIENT, Row, SERVER, Want, of, row};
use forebay_quic::error::Code;
use forebay_quic::id::{ConnectionId, Side};
use forebay_quic::parameters::{PreferredAddress, TransportParameters, id};
use forebay_quic::varint;

const WRONG: Want = Want::Close(Code::TRANSPORT_PARAMETER_ERROR, 0);

/// Appends a parameter.
fn push(out: &mut Vec<u8>, id: u64, value: &[u8]) {
    varint::push(out, id);
    varint::push(out, value.len() as u64);
    out.extend_from_slice(value);
}

/// Appends a parameter that is an integer.
fn integer(out: &mut Vec<u8>, id: u64, value: u64) {
    let mut encoded = Vec::new();
    varint::push(&mut encoded, value);
    push(out, id, &encoded);
}

fn wrong(section: &'static str, sides: &'static [Side], what: &'static str, setup: fn(&mut Setup)) -> Row {
    row(section, sides, Stage::Fresh, what, Lab::connect, WRONG).with(setup)
}

fn right(section: &'static str, sides: &'static [Side], what: &'static str, setup: fn(&mut Setup)) -> Row {
    row(section, sides, Stage::Fresh, what, Lab::connect, Want::Ignored).with(setup)
}

pub fn rows() -> Vec<Row> {
    let mut all: Vec<Row> = [ids(), values(), forms(), of_servers(), early()].into_iter().flatten().collect();
    all.extend(of(
        9287,
        vec![
            wrong("3", BOTH, "grease_quic_bit with a value", |s| {
                s.encoded = |out| push(out, id::GREASE_QUIC_BIT, &[1])
            }),
            right("3", BOTH, "grease_quic_bit", |s| s.parameters = |p| p.grease_quic_bit = true),
        ],
    ));
    all.extend(of(
        9221,
        vec![
            wrong("3", BOTH, "max_datagram_frame_size that is no integer", |s| {
                s.encoded = |out| push(out, id::MAX_DATAGRAM_FRAME_SIZE, &[])
            }),
            right("3", BOTH, "max_datagram_frame_size of 2^62 - 1", |s| {
                s.parameters = |p| p.max_datagram_frame_size = varint::MAX
            }),
        ],
    ));
    all
}

fn ids() -> Vec<Row> {
    vec![
        wrong("7.3", BOTH, "no initial_source_connection_id", |s| {
            s.parameters = |p| p.initial_source_connection_id = None
        }),
        wrong("7.3", BOTH, "another initial_source_connection_id", |s| {
            s.parameters = |p| p.initial_source_connection_id = Some(eight(1))
        }),
        wrong("7.3", BOTH, "an empty initial_source_connection_id", |s| {
            s.parameters = |p| p.initial_source_connection_id = Some(ConnectionId::default());
        }),
        right("7.3", BOTH, "an empty initial_source_connection_id that is right", |s| s.id_len = 0),
        wrong("7.3", CLIENT, "no original_destination_connection_id", |s| {
            s.parameters = |p| p.original_destination_connection_id = None
        }),
        wrong("7.3", CLIENT, "another original_destination_connection_id", |s| {
            s.parameters = |p| p.original_destination_connection_id = Some(eight(1));
        }),
        wrong("7.3", CLIENT, "retry_source_connection_id without Retry", |s| {
            s.parameters = |p| p.retry_source_connection_id = Some(eight(1));
        }),
        wrong("18.2", BOTH, "initial_source_connection_id of 21 bytes", |s| {
            s.parameters = |p| p.initial_source_connection_id = None;
            s.encoded = |out| push(out, id::INITIAL_SOURCE_CONNECTION_ID, &[1; 21]);
        }),
    ]
}

fn values() -> Vec<Row> {
    vec![
        wrong("18.2", BOTH, "max_udp_payload_size of 1199", |s| {
            s.encoded = |out| integer(out, id::MAX_UDP_PAYLOAD_SIZE, 1199)
        }),
        right("18.2", BOTH, "max_udp_payload_size of 1200", |s| {
            s.encoded = |out| integer(out, id::MAX_UDP_PAYLOAD_SIZE, 1200)
        }),
        right("18.2", BOTH, "max_udp_payload_size of 2^62 - 1", |s| {
            s.encoded = |out| integer(out, id::MAX_UDP_PAYLOAD_SIZE, varint::MAX)
        }),
        wrong("18.2", BOTH, "ack_delay_exponent of 21", |s| {
            s.encoded = |out| integer(out, id::ACK_DELAY_EXPONENT, 21)
        }),
        right("18.2", BOTH, "ack_delay_exponent of 20", |s| {
            s.encoded = |out| integer(out, id::ACK_DELAY_EXPONENT, 20)
        }),
        wrong("18.2", BOTH, "ack_delay_exponent of 2^62 - 1", |s| {
            s.encoded = |out| integer(out, id::ACK_DELAY_EXPONENT, varint::MAX)
        }),
        wrong("18.2", BOTH, "max_ack_delay of 2^14", |s| {
            s.encoded = |out| integer(out, id::MAX_ACK_DELAY, 1 << 14)
        }),
        right("18.2", BOTH, "max_ack_delay of 2^14 - 1", |s| {
            s.encoded = |out| integer(out, id::MAX_ACK_DELAY, (1 << 14) - 1)
        }),
        wrong("18.2", BOTH, "active_connection_id_limit of 1", |s| {
            s.parameters = |p| p.active_connection_id_limit = 2;
            s.encoded = |out| integer(out, id::ACTIVE_CONNECTION_ID_LIMIT, 1);
        }),
        wrong("18.2", BOTH, "active_connection_id_limit of 0", |s| {
            s.parameters = |p| p.active_connection_id_limit = 2;
            s.encoded = |out| integer(out, id::ACTIVE_CONNECTION_ID_LIMIT, 0);
        }),
        right("18.2", BOTH, "active_connection_id_limit of 2^62 - 1", |s| {
            s.parameters = |p| p.active_connection_id_limit = varint::MAX
        }),
        wrong("4.6", BOTH, "initial_max_streams_bidi above 2^60", |s| {
            s.parameters = |p| p.initial_max_streams_bidi = 0;
            s.encoded = |out| integer(out, id::INITIAL_MAX_STREAMS_BIDI, (1 << 60) + 1);
        }),
        wrong("4.6", BOTH, "initial_max_streams_uni above 2^60", |s| {
            s.parameters = |p| p.initial_max_streams_uni = 0;
            s.encoded = |out| integer(out, id::INITIAL_MAX_STREAMS_UNI, varint::MAX);
        }),
        right("4.6", BOTH, "2^60 streams, and windows of 2^62 - 1", |s| {
            s.parameters = |p| {
                (p.initial_max_streams_bidi, p.initial_max_streams_uni) = (1 << 60, 1 << 60);
                p.initial_max_data = varint::MAX;
                p.initial_max_stream_data_bidi_local = varint::MAX;
                p.initial_max_stream_data_bidi_remote = varint::MAX;
                p.initial_max_stream_data_uni = varint::MAX;
                p.max_idle_timeout = varint::MAX;
            };
        }),
        right("10.1", BOTH, "no max_idle_timeout", |s| s.parameters = |p| p.max_idle_timeout = 0),
    ]
}

fn forms() -> Vec<Row> {
    vec![
        wrong("7.4", BOTH, "a parameter twice", |s| s.encoded = |out| integer(out, id::INITIAL_MAX_DATA, 1)),
        wrong("7.4", BOTH, "an unknown parameter twice", |s| {
            s.encoded = |out| (0..2).for_each(|_| push(out, 0x7777, &[1]))
        }),
        right("7.4.2", BOTH, "an unknown parameter", |s| {
            s.encoded = |out| push(out, 0x3fff_ffff_ffff_ff00, &[1; 100])
        }),
        right("18.1", BOTH, "a reserved parameter", |s| s.encoded = |out| push(out, 31 * 7 + 27, &[])),
        wrong("18", BOTH, "a parameter that is cut off", |s| {
            s.encoded = |out| out.extend([0x40, 0x77, 5, 1])
        }),
        wrong("18", BOTH, "a number of a parameter that is cut off", |s| s.encoded = |out| out.push(0xc0)),
        wrong("18", BOTH, "a length of a parameter that is missing", |s| {
            s.encoded = |out| out.extend([0x40, 0x77])
        }),
        wrong("18.2", BOTH, "an integer with a byte behind it", |s| {
            s.encoded = |out| push(out, id::MAX_ACK_DELAY, &[1, 1])
        }),
        wrong("18.2", BOTH, "an integer without bytes", |s| {
            s.encoded = |out| push(out, id::MAX_ACK_DELAY, &[])
        }),
        wrong("18.2", BOTH, "an integer that is cut off", |s| {
            s.encoded = |out| push(out, id::MAX_ACK_DELAY, &[0x40])
        }),
        right("18.2", BOTH, "an integer that is longer than it must be", |s| {
            s.encoded = |out| push(out, id::MAX_ACK_DELAY, &[0x80, 0, 0, 25])
        }),
        wrong("18.2", BOTH, "disable_active_migration with a value", |s| {
            s.encoded = |out| push(out, id::DISABLE_ACTIVE_MIGRATION, &[1])
        }),
        right("18.2", BOTH, "disable_active_migration", |s| {
            s.parameters = |p| p.disable_active_migration = true
        }),
    ]
}

fn of_servers() -> Vec<Row> {
    fn address(id_len: usize) -> Vec<u8> {
        let mut value = vec![10, 0, 0, 3, 1, 0xbb];
        value.extend([0; 18]);
        value.push(id_len as u8);
        value.resize(value.len() + id_len + 16, 5);
        value
    }
    vec![
        wrong("18.2", SERVER, "original_destination_connection_id of a client", |s| {
            s.encoded = |out| push(out, id::ORIGINAL_DESTINATION_CONNECTION_ID, &[1; 8]);
        }),
        wrong("18.2", SERVER, "retry_source_connection_id of a client", |s| {
            s.encoded = |out| push(out, id::RETRY_SOURCE_CONNECTION_ID, &[1; 8])
        }),
        wrong("18.2", SERVER, "stateless_reset_token of a client", |s| {
            s.encoded = |out| push(out, id::STATELESS_RESET_TOKEN, &[1; 16])
        }),
        wrong("18.2", SERVER, "preferred_address of a client", |s| {
            s.encoded = |out| push(out, id::PREFERRED_ADDRESS, &address(8))
        }),
        wrong("18.2", CLIENT, "stateless_reset_token of 15 bytes", |s| {
            s.encoded = |out| push(out, id::STATELESS_RESET_TOKEN, &[1; 15])
        }),
        wrong("18.2", CLIENT, "stateless_reset_token of 17 bytes", |s| {
            s.encoded = |out| push(out, id::STATELESS_RESET_TOKEN, &[1; 17])
        }),
        wrong("18.2", CLIENT, "preferred_address without an identifier", |s| {
            s.encoded = |out| push(out, id::PREFERRED_ADDRESS, &address(0))
        }),
        wrong("18.2", CLIENT, "preferred_address with an identifier of 21 bytes", |s| {
            s.encoded = |out| push(out, id::PREFERRED_ADDRESS, &address(21))
        }),
        wrong("18.2", CLIENT, "preferred_address that is cut off", |s| {
            s.encoded = |out| push(out, id::PREFERRED_ADDRESS, &address(8)[..40])
        }),
        wrong("18.2", CLIENT, "preferred_address with a byte too many", |s| {
            s.encoded = |out| {
                let mut value = address(8);
                value.push(0);
                push(out, id::PREFERRED_ADDRESS, &value);
            }
        }),
        wrong("18.2", CLIENT, "preferred_address of a server without identifiers", |s| {
            s.id_len = 0;
            s.encoded = |out| push(out, id::PREFERRED_ADDRESS, &address(8));
        }),
        row(
            "5.1.2",
            CLIENT,
            Stage::Connected,
            "the identifier of preferred_address wanted back",
            |l| {
                let frame = super::made(|out| {
                    forebay_quic::frame::push_new_connection_id(out, 2, 2, &eight(2), &[2; 16]);
                });
                l.frames(forebay_quic::packet::Kind::OneRtt, &frame);
            },
            Want::Answered("RetireConnectionId(1)"),
        )
        .with(preferred),
        row(
            "5.1.1",
            CLIENT,
            Stage::Connected,
            "the number of the identifier of preferred_address again",
            |l| {
                let frame = super::made(|out| {
                    forebay_quic::frame::push_new_connection_id(out, 1, 0, &eight(2), &[2; 16]);
                });
                l.frames(forebay_quic::packet::Kind::OneRtt, &frame);
            },
            Want::Close(Code::PROTOCOL_VIOLATION, forebay_quic::frame::kind::NEW_CONNECTION_ID),
        )
        .with(preferred),
    ]
}

fn preferred(setup: &mut Setup) {
    setup.parameters = |p: &mut TransportParameters| {
        let v4 = Some(std::net::SocketAddrV4::new([10, 0, 0, 3].into(), 443));
        p.preferred_address = Some(Box::new(PreferredAddress { v4, v6: None, id: eight(9), token: [9; 16] }));
    };
}

/// Makes a connection that gives a session to the tested client, and another one with changed parameters.
fn again(lab: &mut Lab, change: fn(&mut TransportParameters)) {
    let mut setup = Setup { parameters: |p| p.max_datagram_frame_size = 1000, ..Setup::default() }.shared();
    let mut first = Lab::new(Side::Client, Stage::Connected, &setup);
    first.flight();
    setup.parameters = change;
    *lab = Lab::new(Side::Client, Stage::Fresh, &setup);
    let id = lab.only().streams().open(forebay_quic::id::Dir::Bi).expect("a stream of early data");
    lab.only().streams().write_slice(id, b"early").expect("early data");
    lab.turn();
    lab.connect();
}

fn early() -> Vec<Row> {
    const LESS: Want = Want::Close(Code::PROTOCOL_VIOLATION, 0);
    const FRESH: Stage = Stage::Fresh;
    let all = vec![
        row(
            "7.4.1",
            CLIENT,
            FRESH,
            "early data with the same limits",
            |l| again(l, |p| p.max_datagram_frame_size = 1000),
            Want::Ignored,
        ),
        row(
            "7.4.1",
            CLIENT,
            FRESH,
            "early data with less initial_max_data",
            |l| {
                again(l, |p| {
                    (p.max_datagram_frame_size, p.initial_max_data) = (1000, 99_999);
                })
            },
            LESS,
        ),
        row(
            "7.4.1",
            CLIENT,
            FRESH,
            "early data with less initial_max_stream_data_bidi_remote",
            |l| {
                again(l, |p| {
                    (p.max_datagram_frame_size, p.initial_max_stream_data_bidi_remote) = (1000, 1);
                })
            },
            LESS,
        ),
        row(
            "7.4.1",
            CLIENT,
            FRESH,
            "early data with less initial_max_streams_bidi",
            |l| {
                again(l, |p| {
                    (p.max_datagram_frame_size, p.initial_max_streams_bidi) = (1000, 2);
                })
            },
            LESS,
        ),
        row(
            "7.4.1",
            CLIENT,
            FRESH,
            "early data with less active_connection_id_limit",
            |l| {
                again(l, |p| {
                    (p.max_datagram_frame_size, p.active_connection_id_limit) = (1000, 3);
                })
            },
            LESS,
        ),
    ];
    let datagrams = row(
        "3",
        CLIENT,
        FRESH,
        "early data with less max_datagram_frame_size",
        |l| {
            again(l, |p| {
                p.max_datagram_frame_size = 999;
            })
        },
        LESS,
    );
    all.into_iter().chain(of(9221, vec![datagrams])).collect()
}
