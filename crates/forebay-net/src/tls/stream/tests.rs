use super::super::handshake::*;
use super::super::record::*;
use super::super::traffic::NO_RENEGOTIATION;
use super::super::traffic::Traffic;
use super::*;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::UnbufferedStatus;
use std::sync::Arc;

/// A certificate of its own with its key. `None`: openssl is missing.
fn certificate() -> Option<(CertificateDer<'static>, PrivateKeyDer<'static>)> {
    super::super::made::certificate("")
}

/// Takes all turns that need no more bytes, and hands over what has come of them.
fn all_turns(mut step: impl FnMut(&mut [u8]) -> (usize, Turn), input: &mut Vec<u8>) -> bool {
    loop {
        let (discard, turn) = step(input);
        input.drain(..discard);
        match turn {
            Turn::Again => {}
            Turn::Blocked => return false,
            Turn::Finished => return true,
        }
    }
}

/// A server and a client whose handshake is over; what the server has sent behind it waits with the client.
fn pair(v13: bool) -> Option<(Box<Traffic>, Box<Traffic>, Vec<u8>)> {
    let (cert, key) = certificate()?;
    let version = if v13 { &rustls::version::TLS13 } else { &rustls::version::TLS12 };
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[version])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert.clone()], key)
        .unwrap();
    config.enable_secret_extraction = true;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(cert).unwrap();
    let mut client = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(super::super::certified::VerifyLater))
        .with_no_client_auth();
    client.enable_secret_extraction = true;
    let name = ServerName::try_from("h").unwrap();
    let mut server = UnbufferedServerConnection::new(Arc::new(config)).unwrap();
    let mut client = UnbufferedClientConnection::new(Arc::new(client), name).unwrap();
    let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
    let (mut ready, mut ended, mut failure) = (Vec::new(), false, None);
    let mut done = (false, false);
    for _ in 0..9 {
        let mut owed = Vec::new();
        done.0 |= all_turns(
            |input| {
                let UnbufferedStatus { discard, state } = client.process_tls_records(input);
                (discard, take_turn(state, &mut owed, &mut ready, &mut ended, &mut failure))
            },
            &mut to_client,
        );
        to_server.append(&mut owed);
        done.1 |= all_turns(
            |input| {
                let UnbufferedStatus { discard, state } = server.process_tls_records(input);
                (discard, take_turn(state, &mut owed, &mut ready, &mut ended, &mut failure))
            },
            &mut to_server,
        );
        to_client.append(&mut owed);
        assert_eq!(failure, None);
        if done == (true, true) {
            break;
        }
    }
    let mut streams = (Stream::server(Vec::new()), Stream::client(client));
    streams.0.state = StreamState::Server(Box::new(server), Flight::default());
    streams.0.take_keys().unwrap();
    streams.1.take_keys().unwrap();
    match (streams.0.state, streams.1.state) {
        (StreamState::Traffic(a), StreamState::Traffic(b)) => Some((a, b, to_client)),
        _ => None,
    }
}

/// Returns a server's and a client's connection whose handshake is over, for tests of other modules.
pub(crate) fn established() -> Option<(Stream, Stream)> {
    let (server, client, tickets) = pair(true)?;
    let server = Stream::new(StreamState::Traffic(server));
    let mut client = Stream::new(StreamState::Traffic(client));
    client.unopened = !tickets.is_empty();
    client.partial = tickets;
    Some((server, client))
}

/// Seals a message in records of so many bytes of content.
fn records(tx: &mut Half, message: &[u8], size: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for piece in message.chunks(size) {
        let at = out.len();
        out.resize(at + tx.sealed_len(piece.len()), 0);
        tx.seal(HANDSHAKE, piece, &mut out[at..]).unwrap();
    }
    out
}

fn open(t: &mut Traffic, input: &mut [u8]) -> (Result<usize, Broken>, Vec<u8>, Vec<u8>) {
    let (mut out, mut owed, mut ended) = (Vec::new(), Vec::new(), false);
    (t.open_all(input, &mut out, &mut ended, &mut owed), out, owed)
}

fn data(tx: &mut Half, text: &[u8]) -> Vec<u8> {
    let mut record = vec![0; tx.sealed_len(text.len())];
    tx.seal(DATA, text, &mut record).unwrap();
    record
}

#[test]
fn messages_behind_the_handshake_may_come_in_pieces() {
    let Some((mut server, mut client, tickets)) = pair(true) else { return };
    // Tickets that came with the handshake, as they are and in pieces.
    let mut whole = tickets.clone();
    assert_eq!(open(&mut client, &mut whole).0, Ok(tickets.len()));
    let ticket = [4, 0, 0, 18, 0, 0, 1, 0, 0, 0, 0, 0, 2, 7, 7, 0, 3, 1, 2, 3, 0, 0];
    for size in [1, 4, 7, 100] {
        let mut input = records(&mut server.tx, &ticket, size);
        let n = input.len();
        assert_eq!(open(&mut client, &mut input).0, Ok(n), "{size}");
        assert!(client.message.is_empty());
    }
    for size in [1, 2, 3, 4, 5] {
        let mut input = records(&mut client.tx, &[24, 0, 0, 1, 1], size);
        client.update(&mut Vec::new()).unwrap();
        let n = input.len();
        let (opened, _, mut owed) = open(&mut server, &mut input);
        assert_eq!(opened, Ok(n), "{size}");
        // The answer is in the old keys, what follows in new ones; so is what the client says.
        assert_eq!(open(&mut client, &mut owed).0, Ok(owed.len()));
        assert_eq!(open(&mut server, &mut data(&mut client.tx, b"up")).1, b"up");
        assert_eq!(open(&mut client, &mut data(&mut server.tx, b"down")).1, b"down");
    }
}

#[test]
fn messages_behind_the_handshake_are_held_to_their_form() {
    for (message, size, wanted) in [
        (&[24, 0, 0, 1, 2][..], 9, Broken::Illegal),
        (&[24, 0, 0, 2, 0, 0], 9, Broken::Undecodable),
        (&[24, 0, 0, 0], 9, Broken::Undecodable),
        // A length of 16 MB is not waited for.
        (&[24, 255, 255, 255], 1, Broken::Undecodable),
        (&[24, 0, 0, 1, 0, 24, 0, 0, 1, 0], 99, Broken::Malformed),
        // A ticket from a client, and a message that nobody knows.
        (&[4], 9, Broken::Malformed),
        (&[1], 9, Broken::Malformed),
    ] {
        let Some((mut server, mut client, _)) = pair(true) else { return };
        let mut input = records(&mut client.tx, message, size);
        assert_eq!(open(&mut server, &mut input).0, Err(wanted), "{message:?}");
    }
    let Some((mut server, mut client, _)) = pair(true) else { return };
    let mut input = records(&mut client.tx, &[24, 0], 9);
    input.extend(data(&mut client.tx, b"between"));
    assert_eq!(open(&mut server, &mut input).0, Err(Broken::Malformed), "nothing stands between pieces");
}

#[test]
fn alerts_end_a_connection_as_they_say() {
    for (alert, wanted) in [
        (&[1, 90][..], Ok(false)),
        (&[1, 0], Ok(true)),
        (&[2, 40], Err(Broken::Alerted)),
        (&[1, 41], Err(Broken::Alerted)),
        (&[3, 40], Err(Broken::Illegal)),
        (&[2], Err(Broken::Undecodable)),
        (&[], Err(Broken::Malformed)),
    ] {
        let Some((mut server, mut client, _)) = pair(true) else { return };
        let mut record = vec![0; client.tx.sealed_len(alert.len())];
        client.tx.seal(ALERT, alert, &mut record).unwrap();
        let (mut out, mut owed, mut ended) = (Vec::new(), Vec::new(), false);
        let opened = server.open_all(&mut record, &mut out, &mut ended, &mut owed);
        assert_eq!(opened.map(|_| ended), wanted, "{alert:?}");
    }
    assert_eq!(Broken::Alerted.alert(), None, "who has given up is told nothing");
}

/// A handshake that fails is told so by one alert, whatever the client goes on with.
#[test]
fn a_handshake_that_fails_ends_with_one_alert() {
    let Some((cert, key)) = certificate() else { return };
    let config =
        rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    let config = Arc::new(config.with_single_cert(vec![cert], key).unwrap());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let client = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(super::super::certified::VerifyLater))
        .with_no_client_auth();
    let name = ServerName::try_from("h").unwrap();
    let mut client = UnbufferedClientConnection::new(Arc::new(client), name).unwrap();
    let (mut hello, mut ready, mut ended, mut failure) = (Vec::new(), Vec::new(), false, None);
    all_turns(
        |input| {
            let UnbufferedStatus { discard, state } = client.process_tls_records(input);
            (discard, take_turn(state, &mut hello, &mut ready, &mut ended, &mut failure))
        },
        &mut Vec::new(),
    );
    // Nobody has sealed it, and no record of this type follows.
    let forged = [&[DATA, 3, 3, 0, 40][..], &[7; 40]].concat();
    for behind in [forged.repeat(1), forged.repeat(3), vec![9; 50], [forged.as_slice(), &[9; 50]].concat()] {
        let mut server = UnbufferedServerConnection::new(config.clone()).unwrap();
        let mut input = [hello.as_slice(), &behind].concat();
        let (mut owed, mut failure) = (Vec::new(), None);
        all_turns(
            |input| {
                let UnbufferedStatus { discard, state } = server.process_tls_records(input);
                (discard, take_turn(state, &mut owed, &mut ready, &mut ended, &mut failure))
            },
            &mut input,
        );
        assert!(failure.is_some());
        let mut alerts = 0;
        let mut rest = owed.as_slice();
        while let Ok(Some(n)) = whole(rest) {
            alerts += usize::from(is_alert(&rest[..n]));
            rest = &rest[n..];
        }
        assert_eq!(alerts, 1, "{failure:?}");
    }
}

/// Keeps the client's first secret of TLS 1.3.
#[derive(Debug, Default)]
struct Secret(std::sync::Mutex<Vec<u8>>);

impl rustls::KeyLog for Secret {
    fn log(&self, label: &str, _: &[u8], secret: &[u8]) {
        if label == "CLIENT_HANDSHAKE_TRAFFIC_SECRET" {
            *self.0.lock().unwrap() = secret.to_vec();
        }
    }
}

impl Secret {
    /// The keys that a client seals its Finished by (RFC 8446, section 7.3), with
    /// TLS_CHACHA20_POLY1305_SHA256.
    fn half(&self) -> Half {
        use aws_lc_rs::hmac;
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.0.lock().unwrap());
        let expand = |label: &str, n: u8| {
            let label = format!("tls13 {label}");
            let info = [&[0, n, label.len() as u8], label.as_bytes(), &[0, 1]].concat();
            hmac::sign(&key, &info).as_ref()[..usize::from(n)].to_vec()
        };
        let key: [u8; 32] = expand("key", 32).try_into().unwrap();
        let iv: [u8; 12] = expand("iv", 12).try_into().unwrap();
        let secrets = rustls::ConnectionTrafficSecrets::Chacha20Poly1305 {
            key: rustls::crypto::cipher::AeadKey::from(key),
            iv: rustls::crypto::cipher::Iv::new(iv),
        };
        Half::new((0, secrets), true).unwrap()
    }
}

/// A server that waits for the client's last flight, and that flight.
struct Waiting {
    server: Box<UnbufferedServerConnection>,
    client: Stream,
    last: Vec<u8>,
    secret: Arc<Secret>,
}

impl Waiting {
    fn new(version: &'static rustls::SupportedProtocolVersion) -> Option<Waiting> {
        let (cert, key) = certificate()?;
        let mut provider = rustls::crypto::aws_lc_rs::default_provider();
        provider.cipher_suites.retain(|s| u16::from(s.suite()) == 0x1303 || s.tls13().is_none());
        let provider = Arc::new(provider);
        let mut config = rustls::ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[version])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![cert], key)
            .unwrap();
        config.enable_secret_extraction = true;
        let mut client = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[version])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(super::super::certified::VerifyLater))
            .with_no_client_auth();
        client.enable_secret_extraction = true;
        let secret = Arc::new(Secret::default());
        client.key_log = secret.clone();
        let name = ServerName::try_from("h").unwrap();
        let mut client = UnbufferedClientConnection::new(Arc::new(client), name).unwrap();
        let mut server = Box::new(UnbufferedServerConnection::new(Arc::new(config)).unwrap());
        let (mut ready, mut ended) = (Vec::new(), false);
        let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
        let mut failure = None;
        let mut from_client = |input: &mut Vec<u8>, owed: &mut Vec<u8>| {
            let mut flight = Flight::new(std::mem::take(input));
            turns(&mut flight, &mut failure, |input, failure| {
                let UnbufferedStatus { discard, state } = client.process_tls_records(input);
                (discard, take_turn(state, owed, &mut ready, &mut ended, failure))
            })
        };
        from_client(&mut to_client, &mut to_server);
        let hello = std::mem::take(&mut to_server);
        let (finished, failure) = serve(&mut server, Flight::new(hello), &mut to_client).1;
        assert_eq!((finished, failure), (false, None));
        let done = from_client(&mut to_client, &mut to_server);
        let mut client = Stream::client(client);
        if done {
            client.take_keys().unwrap();
        }
        Some(Waiting { server, client, last: to_server, secret })
    }

    /// Gives `input` to the server. Returns the bytes that it leaves, its answer, and the state of its handshake.
    fn serve(&mut self, input: Vec<u8>) -> (Vec<u8>, Vec<u8>, (bool, Option<HandshakeFailure>)) {
        let mut owed = Vec::new();
        let (flight, end) = serve(&mut self.server, Flight::new(input), &mut owed);
        (flight.received, owed, end)
    }
}

fn serve(
    server: &mut UnbufferedServerConnection,
    mut flight: Flight,
    owed: &mut Vec<u8>,
) -> (Flight, (bool, Option<HandshakeFailure>)) {
    let (mut ready, mut ended, mut failure) = (Vec::new(), false, None);
    let finished = turns(&mut flight, &mut failure, |input, failure| {
        let UnbufferedStatus { discard, state } = server.process_tls_records(input);
        (discard, take_turn(state, owed, &mut ready, &mut ended, failure))
    });
    assert_eq!(ready, b"", "content is for the record layer");
    (flight, (finished, failure))
}

/// Records that come together with the client's Finished are opened like later ones, also messages in fragments.
#[test]
fn records_behind_the_handshake_are_left_to_the_record_layer() {
    for (version, message) in
        [(&rustls::version::TLS13, &[24, 0, 0, 1, 0][..]), (&rustls::version::TLS12, &[])]
    {
        let Some(mut waiting) = Waiting::new(version) else { return };
        if !waiting.client.established() {
            // TLS 1.2: the client waits for the server's Finished.
            let (rest, _, end) = waiting.serve([waiting.last.clone(), vec![DATA, 3, 3, 0, 9, 7]].concat());
            assert_eq!((rest.as_slice(), end), (&[DATA, 3, 3, 0, 9, 7][..], (true, None)));
            continue;
        }
        let StreamState::Traffic(client) = &mut waiting.client.state else { return };
        let mut behind = records(&mut client.tx, message, 2);
        client.update(&mut Vec::new()).unwrap();
        behind.extend(data(&mut client.tx, b"GET"));
        let (rest, _, end) = waiting.serve([waiting.last.clone(), behind.clone()].concat());
        assert_eq!((&rest, end), (&behind, (true, None)));
        let mut stream = Stream::new(StreamState::Server(waiting.server, Flight::new(rest)));
        stream.take_keys().unwrap();
        assert!(stream.has_ready(), "nothing may wait for the next byte");
        let StreamState::Traffic(server) = &mut stream.state else { return };
        let (opened, content, _) = open(server, &mut behind);
        assert_eq!((opened, content.as_slice()), (Ok(behind.len()), &b"GET"[..]));
    }
}

/// A record without a type during the handshake is answered by `unexpected_message`.
#[test]
fn a_record_without_a_type_is_unexpected() {
    let Some(mut waiting) = Waiting::new(&rustls::version::TLS13) else { return };
    let mut half = waiting.secret.half();
    let mut record = vec![0; half.sealed_len(3)];
    half.seal(0, &[0; 3], &mut record).unwrap();
    let (_, owed, (finished, failure)) = waiting.serve(record);
    let failure = failure.unwrap();
    assert!(!finished && failure.alert == AlertDue::Nothing, "{failure:?}");
    assert!(failure.text.contains("IllegalTlsInnerPlaintext"), "{failure:?}");
    let StreamState::Traffic(client) = &mut waiting.client.state else { return };
    let mut owed = owed;
    let (kind, at) = client.rx.open(&mut owed).unwrap();
    assert_eq!((kind, &owed[at]), (ALERT, [2, UNEXPECTED_MESSAGE].as_slice()));
}

/// rustls writes no alert for a record between the pieces of a message.
#[test]
fn an_interleaved_message_is_unexpected() {
    let Some(mut waiting) = Waiting::new(&rustls::version::TLS12) else { return };
    let exchange = whole(&waiting.last).unwrap().unwrap();
    let body = waiting.last[HEADER + 20..exchange].to_vec();
    let mut input = [&[HANDSHAKE, 3, 3, 0, 20], &waiting.last[HEADER..HEADER + 20]].concat();
    input.extend([CCS, 3, 3, 0, 1, 1]);
    input.extend([&[HANDSHAKE, 3, 3, 0, body.len() as u8], body.as_slice()].concat());
    let (_, owed, (finished, failure)) = waiting.serve(input);
    assert_eq!((finished, owed.len(), failure.map(|f| f.alert)), (false, 0, Some(AlertDue::Soon)));
    assert!(Stream::new(StreamState::Server(waiting.server, Flight::default())).is_in_clear());
}

/// A client of TLS 1.2 that wants to negotiate again is told that it is not done, and may go on.
#[test]
fn nothing_is_negotiated_again() {
    let Some((mut server, mut client, _)) = pair(false) else { return };
    let mut input = records(&mut client.tx, &[1, 0, 0, 3, 7, 7, 7], 99);
    input.extend(data(&mut client.tx, b"more"));
    let (opened, out, mut owed) = open(&mut server, &mut input);
    assert_eq!((opened, out.as_slice()), (Ok(input.len()), b"more".as_slice()));
    let (kind, at) = client.rx.open(&mut owed).unwrap();
    assert_eq!((kind, &owed[at]), (ALERT, [1, NO_RENEGOTIATION].as_slice()));
    let mut input = records(&mut client.tx, &[20, 0, 0, 0], 99);
    assert_eq!(open(&mut server, &mut input).0, Err(Broken::Malformed));
}

/// TLS 1.2 cannot change keys: what is being sent goes on, and no further request is taken. TLS 1.3 changes them.
#[test]
fn worn_keys_cut_nothing_off() {
    for v13 in [false, true] {
        let Some((mut server, mut client, _)) = pair(v13) else { return };
        server.tx.wear();
        client.rx.wear();
        let mut owed = Vec::new();
        server.renew(&mut owed).unwrap();
        assert_eq!(owed.is_empty(), !v13);
        let mut stream = Stream::new(StreamState::Traffic(server));
        assert_eq!(stream.worn(), !v13);
        let StreamState::Traffic(server) = &mut stream.state else { return };
        owed.extend(data(&mut server.tx, b"more"));
        assert_eq!(open(&mut client, &mut owed).1, b"more", "{v13}");
    }
}
