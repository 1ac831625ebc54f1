//! Any bytes as the transport parameters of each side: what is read comes back when it is written, and the choice of a version agrees
//! with it.
#![no_main]

use forebay_quic::error::Code;
use forebay_quic::id::Side;
use forebay_quic::parameters::{Attempt, TransportParameters, negotiate};
use forebay_quic::version::Version;
use libfuzzer_sys::fuzz_target;

fn read(bytes: &[u8], from: Side, grease: u64) {
    let parameters = match TransportParameters::read(bytes, from) {
        Ok(parameters) => parameters,
        Err(error) => return assert_eq!(error.code, Code::TRANSPORT_PARAMETER_ERROR),
    };
    let mut expected = parameters;
    if let Some(versions) = &mut expected.version_information {
        // A client has to list the version that it chose, which is kept only if it is spoken here.
        if !versions.available.iter().flatten().any(|version| version.number() == versions.chosen) {
            expected.version_information = None;
        } else {
            versions.lists_any = true;
        }
    }
    let mut again = Vec::new();
    expected.push(&mut again, from, grease);
    assert_eq!(TransportParameters::read(&again, from), Ok(expected.clone()));
    let remembered = expected.to_remember();
    assert!(expected.check_remembered(&remembered).is_ok());
}

fuzz_target!(|input: &[u8]| {
    let Some((grease, bytes)) = input.split_first_chunk() else { return };
    for side in [Side::Client, Side::Server] {
        read(bytes, side, u64::from_be_bytes(*grease));
    }
    for begun in [Version::V1, Version::V2] {
        for early in [false, true] {
            match negotiate(bytes, begun, early) {
                Ok(version) => assert!(version == begun || !early && version == Version::V2),
                Err(error) => assert!(
                    error.code == Code::VERSION_NEGOTIATION_ERROR
                        || TransportParameters::read(bytes, Side::Client).is_err()
                ),
            }
        }
        if let Ok(parameters) = TransportParameters::read(bytes, Side::Server) {
            let available = &[Version::V2, Version::V1];
            let attempt = Attempt { begun, negotiated: begun, available, is_reaction: grease[0] & 1 != 0 };
            let valid = attempt.validate_server(parameters.version_information.as_ref()).is_ok();
            let chosen = parameters.version_information.map(|versions| versions.chosen);
            assert!(!valid || chosen.is_none_or(|chosen| chosen == begun.number()));
        }
    }
});
