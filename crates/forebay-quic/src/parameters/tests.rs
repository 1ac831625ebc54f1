use super::*;
use crate::error::{Code, Error};
use crate::id::Side;
use crate::varint;
use crate::version::Version;

fn id(bytes: &[u8]) -> ConnectionId {
    ConnectionId::new(bytes).expect("at most 20 bytes")
}

/// Parameters with all values of a client.
fn of_client() -> TransportParameters {
    TransportParameters {
        max_idle_timeout: 30_000,
        max_udp_payload_size: 1472,
        initial_max_data: 1 << 40,
        initial_max_stream_data_bidi_local: 1,
        initial_max_stream_data_bidi_remote: 64,
        initial_max_stream_data_uni: 1 << 14,
        initial_max_streams_bidi: 1 << 60,
        initial_max_streams_uni: 3,
        ack_delay_exponent: 20,
        max_ack_delay: (1 << 14) - 1,
        disable_active_migration: true,
        active_connection_id_limit: 8,
        max_datagram_frame_size: 65535,
        grease_quic_bit: true,
        version_information: Some(VersionInformation::new(Version::V1, &[Version::V2, Version::V1])),
        initial_source_connection_id: Some(id(b"source")),
        ..TransportParameters::default()
    }
}

/// Parameters with all values of a server.
fn of_server() -> TransportParameters {
    TransportParameters {
        original_destination_connection_id: Some(id(b"original")),
        retry_source_connection_id: Some(id(b"")),
        stateless_reset_token: Some([4; 16]),
        preferred_address: Some(Box::new(PreferredAddress {
            v4: Some("192.0.2.1:443".parse().expect("an address")),
            v6: Some("[2001:db8::1]:4433".parse().expect("an address")),
            id: id(b"preferred"),
            token: [5; 16],
        })),
        ..of_client()
    }
}

fn encoded(parameters: &TransportParameters, side: Side, grease: u64) -> Vec<u8> {
    let mut out = Vec::new();
    parameters.push(&mut out, side, grease);
    out
}

fn parameter(id: u64, value: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    varint::push(&mut out, id);
    varint::push(&mut out, value.len() as u64);
    out.extend_from_slice(value);
    out
}

fn integer(id: u64, value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    varint::push(&mut out, value);
    parameter(id, &out)
}

fn code(result: Result<TransportParameters, Error>) -> Option<Code> {
    result.err().map(|error| error.code)
}

#[test]
fn parameters_come_back() {
    for grease in [0, 1, 0x1234_5678_9abc_def0, u64::MAX] {
        for (parameters, side) in [(of_client(), Side::Client), (of_server(), Side::Server)] {
            let bytes = encoded(&parameters, side, grease);
            assert_eq!(TransportParameters::read(&bytes, side), Ok(parameters));
        }
        let default = TransportParameters::default();
        assert_eq!(
            TransportParameters::read(&encoded(&default, Side::Server, grease), Side::Server),
            Ok(default)
        );
    }
}

#[test]
fn a_client_sends_nothing_of_a_server() {
    let bytes = encoded(&of_server(), Side::Client, 7);
    assert_eq!(TransportParameters::read(&bytes, Side::Client), Ok(of_client()));
}

/// Parameters that nobody knows are sent and are of the reserved form.
#[test]
fn reserved_parameters_are_sent() {
    for grease in [0, 31, u64::MAX / 3, u64::MAX] {
        let bytes = encoded(&TransportParameters::default(), Side::Client, grease);
        let mut reader = varint::Reader::new(&bytes);
        let id = reader.varint().expect("an identifier");
        assert_eq!((id % 31, reader.sized().map(<[u8]>::len)), (27, Some((grease >> 61) as usize)));
        assert!(reader.is_empty());
    }
}

#[test]
fn cut_off_parameters_are_refused() {
    let bytes = encoded(&of_server(), Side::Server, 1);
    let mut whole = 0;
    for len in 0..bytes.len() {
        match code(TransportParameters::read(&bytes[..len], Side::Server)) {
            None => whole += 1,
            error => assert_eq!(error, Some(Code::TRANSPORT_PARAMETER_ERROR)),
        }
    }
    assert_eq!(whole, 21, "only between two parameters");
}

#[test]
fn parameters_occur_once() {
    for id in [0x01, 0x0c, 0x20, 0x2ab2, 27, 63, 31 * 1000 + 27] {
        let value: &[u8] = if matches!(id, 0x0c | 0x2ab2) { &[] } else { &[5] };
        let once = parameter(id, value);
        assert!(TransportParameters::read(&once, Side::Client).is_ok(), "{id}");
        let twice = [once.clone(), integer(0x04, 9), once].concat();
        assert_eq!(
            code(TransportParameters::read(&twice, Side::Client)),
            Some(Code::TRANSPORT_PARAMETER_ERROR)
        );
    }
    // A long list is read to its end.
    let many: Vec<u8> = (100..10_000).flat_map(|id| parameter(id, b"")).collect();
    let last = integer(0x04, 9);
    let read = TransportParameters::read(&[many, last].concat(), Side::Client).expect("well-formed");
    assert_eq!(read.initial_max_data, 9);
}

/// RFC 9000, section 18.2: what clients must not send.
#[test]
fn a_client_must_not_send_parameters_of_a_server() {
    let address = [&[0; 24][..], &[1, 9], &[0; 16]].concat();
    for case in
        [parameter(0x00, b"id"), parameter(0x02, &[0; 16]), parameter(0x0d, &address), parameter(0x10, b"id")]
    {
        assert!(TransportParameters::read(&case, Side::Server).is_ok(), "{case:?}");
        assert_eq!(
            code(TransportParameters::read(&case, Side::Client)),
            Some(Code::TRANSPORT_PARAMETER_ERROR)
        );
    }
}

/// Values that RFC 9000, section 18.2, RFC 9221 and RFC 9287 forbid, and the nearest that they allow.
#[test]
fn ranges_of_values() {
    let cases = [
        (integer(0x03, 1200), integer(0x03, 1199)),
        (integer(0x08, 1 << 60), integer(0x08, (1 << 60) + 1)),
        (integer(0x09, 1 << 60), integer(0x09, (1 << 60) + 1)),
        (integer(0x0a, 20), integer(0x0a, 21)),
        (integer(0x0a, 0), integer(0x0a, 256 + 3)),
        (integer(0x0b, (1 << 14) - 1), integer(0x0b, 1 << 14)),
        (integer(0x0b, 0), integer(0x0b, 1 << 16)),
        (integer(0x0e, 2), integer(0x0e, 1)),
        (integer(0x01, 0), parameter(0x01, &[])),
        (parameter(0x01, &[0x40, 1]), parameter(0x01, &[1, 1])),
        (integer(0x20, 0), parameter(0x20, &[0x40])),
        (parameter(0x0c, &[]), parameter(0x0c, &[1])),
        (parameter(0x2ab2, &[]), parameter(0x2ab2, &[0])),
        (parameter(0x02, &[0; 16]), parameter(0x02, &[0; 15])),
        (parameter(0x02, &[1; 16]), parameter(0x02, &[0; 17])),
        (parameter(0x00, &[0; 20]), parameter(0x00, &[0; 21])),
        (parameter(0x0f, &[]), parameter(0x0f, &[0; 21])),
        (parameter(0x10, &[]), parameter(0x10, &[0; 21])),
    ];
    for (right, wrong) in cases {
        assert!(TransportParameters::read(&right, Side::Server).is_ok(), "{right:?}");
        let error = code(TransportParameters::read(&wrong, Side::Server));
        assert_eq!(error, Some(Code::TRANSPORT_PARAMETER_ERROR), "{wrong:?}");
    }
}

#[test]
fn preferred_addresses() {
    let value = |id: &[u8], rest: usize| [&[0; 24][..], &[id.len() as u8], id, &vec![3; rest]].concat();
    let read = |value: &[u8]| TransportParameters::read(&parameter(0x0d, value), Side::Server);
    let address = read(&value(b"id", 16)).expect("well-formed").preferred_address.expect("an address");
    assert_eq!(*address, PreferredAddress { v4: None, v6: None, id: id(b"id"), token: [3; 16] });
    for wrong in [value(b"", 16), value(b"id", 15), value(b"id", 17), value(&[0; 21], 16), vec![]] {
        assert_eq!(code(read(&wrong)), Some(Code::TRANSPORT_PARAMETER_ERROR), "{wrong:?}");
    }
    let without_id = [parameter(0x0d, &value(b"id", 16)), parameter(0x0f, b"")].concat();
    let error = code(TransportParameters::read(&without_id, Side::Server));
    assert_eq!(error, Some(Code::TRANSPORT_PARAMETER_ERROR));
}

/// RFC 9000, section 7.3.
#[test]
fn identifiers_are_compared() {
    let (a, b) = (id(b"a"), id(b"b"));
    let with = |initial: Option<ConnectionId>, original, retry| TransportParameters {
        initial_source_connection_id: initial,
        original_destination_connection_id: original,
        retry_source_connection_id: retry,
        ..TransportParameters::default()
    };
    let at_server = Ids { initial_source: &a, original_destination: None, retry_source: None };
    let at_client = Ids { original_destination: Some(&b), ..at_server };
    let after_retry = Ids { retry_source: Some(&a), ..at_client };
    for (parameters, ids, right) in [
        (with(Some(a), None, None), at_server, true),
        (with(Some(b), None, None), at_server, false),
        (with(None, None, None), at_server, false),
        (with(Some(a), Some(b), None), at_client, true),
        (with(Some(b), Some(b), None), at_client, false),
        (with(Some(a), Some(a), None), at_client, false),
        (with(Some(a), None, None), at_client, false),
        (with(Some(a), Some(b), Some(a)), at_client, false),
        (with(Some(a), Some(b), Some(a)), after_retry, true),
        (with(Some(a), Some(b), Some(b)), after_retry, false),
        (with(Some(a), Some(b), None), after_retry, false),
    ] {
        let code = parameters.check_ids(ids).err().map(|error| error.code);
        assert_eq!(code, (!right).then_some(Code::TRANSPORT_PARAMETER_ERROR), "{parameters:?}");
    }
}

#[test]
fn remembered_limits_must_not_shrink() {
    let before = of_server().to_remember();
    assert_eq!((before.max_ack_delay, before.ack_delay_exponent, before.grease_quic_bit), (25, 3, false));
    assert_eq!((before.initial_max_data, before.initial_source_connection_id), (1 << 40, None));
    assert_eq!(of_server().check_remembered(&before), Ok(()));
    let smaller = |change: fn(&mut TransportParameters)| {
        let mut now = of_server();
        change(&mut now);
        now.check_remembered(&before).err().map(|error| error.code)
    };
    for code in [
        smaller(|now| now.active_connection_id_limit -= 1),
        smaller(|now| now.initial_max_data -= 1),
        smaller(|now| now.initial_max_stream_data_bidi_local -= 1),
        smaller(|now| now.initial_max_stream_data_bidi_remote -= 1),
        smaller(|now| now.initial_max_stream_data_uni -= 1),
        smaller(|now| now.initial_max_streams_bidi -= 1),
        smaller(|now| now.initial_max_streams_uni -= 1),
        smaller(|now| now.max_datagram_frame_size -= 1),
    ] {
        assert_eq!(code, Some(Code::PROTOCOL_VIOLATION));
    }
    assert_eq!(smaller(|now| now.initial_max_data += 1), None);
}

mod versions {
    use super::*;

    const V1: u32 = 1;
    const V2: u32 = 0x6b33_43cf;

    fn information(numbers: &[u32]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_be_bytes()).collect()
    }

    fn offer(numbers: &[u32]) -> Vec<u8> {
        [integer(0x04, 9), parameter(0x11, &information(numbers))].concat()
    }

    #[test]
    fn a_server_chooses() {
        use Version::{V1 as One, V2 as Two};
        let cases = [
            (offer(&[V1, V2, V1]), One, false, Ok(Two)),
            (offer(&[V1, V2, V1]), One, true, Ok(One)),
            (offer(&[V1, 0x1a2a_3a4a, V2, V1]), One, false, Ok(Two)),
            (offer(&[V1, V1, V2]), One, false, Ok(One)),
            (offer(&[V1, V1]), One, false, Ok(One)),
            (offer(&[V2, V2, V1]), Two, false, Ok(Two)),
            (offer(&[V2, V1, V2]), Two, false, Ok(Two)),
            (integer(0x04, 9), Two, false, Ok(Two)),
            (vec![], One, false, Ok(One)),
            (offer(&[V2, V2, V1]), One, false, Err(Code::VERSION_NEGOTIATION_ERROR)),
            (offer(&[V1, V2, V1]), Two, true, Err(Code::VERSION_NEGOTIATION_ERROR)),
            (offer(&[]), One, false, Err(Code::TRANSPORT_PARAMETER_ERROR)),
            (offer(&[V1]), One, false, Err(Code::TRANSPORT_PARAMETER_ERROR)),
            (offer(&[V1, V2]), One, false, Err(Code::TRANSPORT_PARAMETER_ERROR)),
            (offer(&[0, 0]), One, false, Err(Code::TRANSPORT_PARAMETER_ERROR)),
            (offer(&[V1, V1, 0]), One, false, Err(Code::TRANSPORT_PARAMETER_ERROR)),
            (parameter(0x11, &[0, 0, 0, 1, 0, 0, 0, 1, 0]), One, false, Err(Code::TRANSPORT_PARAMETER_ERROR)),
            (vec![0x11, 8, 0], One, false, Err(Code::TRANSPORT_PARAMETER_ERROR)),
        ];
        for (parameters, begun, early, expected) in cases {
            let version = negotiate(&parameters, begun, early).map_err(|error| error.code);
            assert_eq!(version, expected, "{parameters:?}");
            if expected == Err(Code::TRANSPORT_PARAMETER_ERROR) {
                assert_eq!(code(TransportParameters::read(&parameters, Side::Client)), expected.err());
            }
        }
    }

    #[test]
    fn the_list_of_a_server_may_be_empty() {
        let read = |numbers: &[u32]| TransportParameters::read(&offer(numbers), Side::Server);
        let information = read(&[V2]).expect("well-formed").version_information.expect("an information");
        assert_eq!(
            (information.chosen, information.available, information.lists_any),
            (V2, [None; 2], false)
        );
        let information =
            read(&[V1, 9, V2, V2]).expect("well-formed").version_information.expect("an information");
        let available = [Some(Version::V2), None];
        assert_eq!((information.chosen, information.available, information.lists_any), (V1, available, true));
        for wrong in [&[][..], &[0], &[V1, 0]] {
            assert_eq!(code(read(wrong)), Some(Code::TRANSPORT_PARAMETER_ERROR));
        }
    }

    #[test]
    fn a_client_validates() {
        let both: &[Version] = &[Version::V2, Version::V1];
        let first =
            Attempt { begun: Version::V1, negotiated: Version::V1, available: both, is_reaction: false };
        let switched = Attempt { negotiated: Version::V2, ..first };
        let reaction = Attempt { is_reaction: true, ..first };
        let only_v1 = Attempt { available: &[Version::V1], ..first };
        let cases: [(Attempt<'_>, Option<&[u32]>, bool); 14] = [
            (first, None, true),
            (first, Some(&[V1]), true),
            (first, Some(&[V1, V1, V2]), true),
            (first, Some(&[V2, V2]), false),
            (first, Some(&[9, 9]), false),
            (switched, None, false),
            (switched, Some(&[V2]), true),
            (switched, Some(&[V1, V2]), false),
            (only_v1, Some(&[V2, V1]), false),
            (reaction, None, false),
            (reaction, Some(&[V1]), false),
            (reaction, Some(&[V1, V1]), true),
            (reaction, Some(&[V1, 9]), true),
            (reaction, Some(&[V1, V1, V2]), false),
        ];
        for (attempt, sent, right) in cases {
            let information =
                sent.map(|sent| VersionInformation::read(&information(sent)).expect("well-formed"));
            let code = attempt.validate_server(information.as_ref()).err().map(|error| error.code);
            assert_eq!(code, (!right).then_some(Code::VERSION_NEGOTIATION_ERROR), "{attempt:?} {sent:?}");
        }
    }
}
