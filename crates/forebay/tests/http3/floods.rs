//! Attacks on QUIC below HTTP/3, with their budgets: what a client sends without progress ends its connection, or costs no more than the
//! test says. And every rule of RFC 9000 and 9001 that a client can break in frames, packets and transport parameters.

use super::{Client, conf, serve, site};
use forebay_testkit::h3::steps::{hex, unhex};
use forebay_testkit::{Server, children, connect, memory, wait_for};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;

forebay_testkit::cases!("../cases/http3/floods.cases":
    wrong_frames, identifiers_of_a_client, wrong_packets, wrong_transport_parameters, acknowledgements_of_what_was_not_sent);

const EXCESSIVE_LOAD: u64 = 0x107;
const INTERNAL: u64 = 0x1;
const ID_LIMIT: u64 = 0x9;
const VIOLATION: u64 = 0xa;
/// Frames that a client may send without progress, with what it sends before the server's end reaches it.
const MOST: u64 = 1000 + 700;

fn start() -> Option<Client> {
    Client::start_script("attacker.py")
}

/// Memory of the worker process, KiB.
fn allocated(server: &Server) -> u64 {
    let workers = wait_for("a worker", || Some(children(server.pid())).filter(|workers| !workers.is_empty()));
    workers.into_iter().map(memory).max().expect("one")
}

/// Opens a connection.
fn open(client: &mut Client, name: &str, port: u16) {
    let told = client.call("open", json!({"as": name, "port": port}));
    assert_eq!((&told["connected"], &told["closed"]), (&json!(true), &Value::Null), "{told}");
}

/// Asks for a page a number of times, and checks that all answers come whole.
fn assert_served_often(client: &mut Client, on: &str, path: &str, count: u32) {
    let told = client.call("ask", json!({"on": on, "path": path, "count": count}));
    assert_eq!((&told["ended"], &told["closed"]), (&json!(true), &Value::Null), "{on}: {told}");
}

fn assert_served(client: &mut Client, on: &str) {
    assert_served_often(client, on, "/page", 1);
}

/// Makes a request of each thread, so that what a process allocates once is there.
fn warm_up(client: &mut Client, port: u16) {
    for n in 0..8 {
        let name = format!("early {n}");
        open(client, &name, port);
        assert_served(client, &name);
        client.call("close", json!({"on": name}));
    }
}

fn code(told: &Value) -> Option<u64> {
    told["closed"]["code"].as_u64()
}

/// Has a client send one kind of frame again and again on a connection of its own. Returns what it has seen, and the growth of the
/// worker, KiB.
fn flood(client: &mut Client, server: &Server, kind: &str, more: Value) -> (Value, u64) {
    open(client, "a", server.addr(0).port());
    let before = allocated(server);
    let mut command = json!({"on": "a", "kind": kind, "count": 20_000});
    more.as_object().expect("an object").iter().for_each(|(name, value)| command[name] = value.clone());
    let told = client.call("flood", command);
    let after = allocated(server);
    client.call("close", json!({"on": "a"}));
    (told, after.saturating_sub(before))
}

/// Each of these frames costs as much as a small request, and nothing comes of it.
#[test]
fn frames_without_progress() {
    let Some(mut client) = start() else { return };
    let server = serve("");
    let kinds = "ping path_challenge path_response max_data max_stream_data max_streams data_blocked stream_data_blocked \
                 streams_blocked empty_stream same_stream crypto_same stop_sending reset_stream same_id ack_again";
    let mut check = |kind: &str, more: Value, most: u64| {
        let (told, grown) = flood(&mut client, &server, kind, more);
        assert_eq!(code(&told), Some(EXCESSIVE_LOAD), "{kind}: {told}");
        assert!(told["sent"].as_u64() <= Some(MOST), "{kind}: {told}");
        assert!(grown <= most, "{kind}: {grown} KiB");
    };
    kinds.split(' ').for_each(|kind| check(kind, json!({}), 1024));
    // One frame in a packet.
    check("ping", json!({"per": 1}), u64::MAX);
    check("ack_ranges", json!({"per": 1}), u64::MAX);
    let log = server.error_log();
    assert!(log.contains("client sent too many QUIC frames without progress"), "{log}");
    assert!(!log.contains("panic"), "{log}");
}

/// The state machine has limits of its own for these.
#[test]
fn frames_that_would_be_held() {
    let Some(mut client) = start() else { return };
    let server = serve("");
    let rows = [
        // Its limit of gaps is about that of frames.
        ("gaps", json!({}), &[INTERNAL, EXCESSIVE_LOAD][..], MOST),
        ("crypto_gaps", json!({}), &[INTERNAL, EXCESSIVE_LOAD], MOST),
        ("new_id", json!({}), &[ID_LIMIT], 400),
        // Identifiers wait to be retired until the server sends: which limit comes first depends on how many datagrams it reads at once.
        ("new_id_retiring", json!({"per": 20, "settle": 100}), &[ID_LIMIT, EXCESSIVE_LOAD], MOST),
        ("retire", json!({}), &[VIOLATION], 400),
        ("reset_each", json!({"per": 5}), &[EXCESSIVE_LOAD], 400),
    ];
    for (kind, more, wanted, most) in rows {
        let (told, grown) = flood(&mut client, &server, kind, more);
        assert!(code(&told).is_some_and(|code| wanted.contains(&code)), "{kind}: {told}");
        assert!(told["sent"].as_u64() <= Some(most), "{kind}: {told}");
        assert!(grown <= 2048, "{kind}: {grown} KiB");
    }
}

/// A client that does what it is there for may send as many frames as that takes.
#[test]
fn progress_is_no_flood() {
    let Some(mut client) = start() else { return };
    let server = serve("keepalive_requests 100000; location /large { }");
    // The script does not widen the windows of its streams.
    let windows =
        json!({"as": "a", "port": server.addr(0).port(), "window": 4 << 20, "window_of_all": 16 << 20});
    client.call("open", windows);
    for _ in 0..20 {
        assert_served_often(&mut client, "a", "/page", 100);
    }
    assert_served_often(&mut client, "a", "/large", 5);
    // What was earned before does not last for ever.
    let told = client.call("flood", json!({"on": "a", "kind": "ping", "count": 20_000}));
    assert_eq!(code(&told), Some(EXCESSIVE_LOAD), "{told}");
    assert!(told["sent"].as_u64() <= Some(10_000 + MOST), "{told}");
}

/// A client with many requests for a large file that reads nothing has the server hold what it may send ahead, and no more.
#[test]
fn content_that_nobody_reads() {
    let Some(mut client) = start() else { return };
    let server = serve("");
    let port = server.addr(0).port();
    warm_up(&mut client, port);
    let before = allocated(&server);
    for n in 0..4 {
        // No windows, and windows without acknowledgements.
        let window = if n % 2 == 0 { 0 } else { 1 << 30 };
        let name = format!("{n}");
        client.call("open", json!({"as": name, "port": port, "window": window, "window_of_all": 1 << 30}));
        client.call("silence", json!({"on": name, "path": "/large", "count": 100}));
    }
    open(&mut client, "other", port);
    assert_served(&mut client, "other");
    // 16 times 64 KiB of each connection, and its requests with a part of the file each.
    let grown = allocated(&server).saturating_sub(before);
    assert!(grown <= 4 * 4 * 1024, "{grown} KiB");
}

/// RFC 9000, section 8: three times what has come from an address that is not proved.
#[test]
fn clients_that_are_not_there() {
    let Some(mut client) = start() else { return };
    let long = site("server { listen 127.0.0.1:%PORT0% quic; listen 127.0.0.1:%PORT0% ssl; }");
    // A chain of 24 KB.
    let one = long.read("localhost.crt");
    let big = "req -x509 -newkey rsa:4096 -nodes -keyout big.key -out big.crt -days 30 -subj /CN=big";
    long.openssl(big);
    let more = long.read("big.crt");
    long.write("localhost.crt", format!("{one}{}", more.repeat(16)));
    for server in [serve(""), Server::start_on(long)] {
        let port = server.addr(0).port();
        let told = client.call("hello", json!({"port": port, "seconds": 3}));
        let bytes = |told: &Value, name: &str| told[name].as_u64().expect("bytes");
        let received = bytes(&told, "received");
        assert!(received > 0 && received <= 3 * bytes(&told, "sent"), "{told}");
        // Initial packets in datagrams that are too short (section 14.1).
        let told = client.call("hello", json!({"port": port, "cut": 1199}));
        assert_eq!(told["received"], 0, "{told}");
        // Whoever answers gets it all.
        open(&mut client, "a", port);
        let told = client.call("garbage", json!({"port": port, "count": 3000}));
        assert!(bytes(&told, "received") <= bytes(&told, "sent"), "{told}");
        assert_served(&mut client, "a");
        client.call("close", json!({"on": "a"}));
    }
}

/// After 64 handshakes of clients that do not answer, all others prove their addresses first, and nothing is held for them.
#[test]
fn handshakes_that_nobody_completes() {
    let (Some(mut client), Some(mut reader)) = (start(), Client::start()) else { return };
    let server = serve("location /api { api; }");
    let port = server.addr(0).port();
    warm_up(&mut client, port);
    reader.connect("reader", &server);
    let before = allocated(&server);
    let told = client.call("hellos", json!({"port": port, "count": 64}));
    assert_eq!((&told["retries"], &told["others"]), (&json!(0), &json!(64)));
    let held = allocated(&server);
    assert!(held.saturating_sub(before) <= 64 * 100, "{} KiB", held - before);
    let told = client.call("hellos", json!({"port": port, "count": 300}));
    assert_eq!((&told["retries"], &told["others"]), (&json!(300), &json!(0)));
    let grown = allocated(&server).saturating_sub(held);
    assert!(grown <= 512, "{grown} KiB");
    let counted = reader.get("reader", "/api/9/forebay/quic");
    let counted: Value = serde_json::from_str(counted["text"].as_str().expect("text")).expect("JSON");
    assert_eq!((&counted["handshaking"], &counted["retries"]), (&json!(64), &json!(300)), "{counted}");
    // Those, the reader, and what has warmed the server up.
    assert_eq!((&counted["version1"], &counted["floods"]), (&json!(64 + 1 + 8), &json!(0)), "{counted}");
    // Clients that are there are served.
    open(&mut client, "a", port);
    assert_served(&mut client, "a");
}

fn crowded(connections: u32) -> Server {
    let text = conf(
        "server { listen 127.0.0.1:%PORT0% quic; listen 127.0.0.1:%PORT0% ssl; listen 127.0.0.1:%PORT1%; }",
    );
    let few = text.replace("worker_connections 256", &format!("worker_connections {connections}"));
    let site = site("server { listen 127.0.0.1:%PORT0%; listen 127.0.0.1:%PORT1%; }");
    site.write("nginx.conf", &few);
    Server::start_on(site)
}

/// Asks for a page on a kept connection.
fn get_kept(stream: &mut TcpStream) -> std::io::Result<bool> {
    stream.write_all(b"GET /page HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
    let (mut got, mut buf) = (0, [0; 4096]);
    while got < 10_000 {
        match stream.read(&mut buf)? {
            0 => return Ok(false),
            n => got += n,
        }
    }
    Ok(true)
}

/// Whoever has not proved its address takes no place of an idle connection, whichever it speaks. Of these the one that waits longest goes.
#[test]
fn connections_without_room() {
    let Some(mut client) = start() else { return };
    let server = crowded(24);
    let port = server.addr(0).port();
    let names: Vec<String> = (0..6).map(|n| format!("quic {n}")).collect();
    let mut early: Vec<TcpStream> = (0..6).map(|_| connect(server.addr(1))).collect();
    for stream in &mut early {
        assert!(get_kept(stream).expect("an answer"));
    }
    for name in &names {
        open(&mut client, name, port);
        assert_served(&mut client, name);
    }
    let mut late: Vec<TcpStream> = (0..12).map(|_| connect(server.addr(1))).collect();
    for stream in &mut late {
        assert!(get_kept(stream).expect("an answer"));
    }
    // All places are taken: nobody goes for these.
    let told = client.call("hellos", json!({"port": port, "count": 40}));
    assert_eq!((&told["retries"], &told["others"]), (&json!(40), &json!(0)));
    assert!(early.iter_mut().chain(&mut late).all(|stream| get_kept(stream).is_ok_and(|whole| whole)));
    names.iter().for_each(|name| assert_served(&mut client, name));
    // The first ones have just been used, so that those over QUIC go last but for them.
    assert!(early.iter_mut().all(|stream| get_kept(stream).is_ok_and(|whole| whole)));
    for n in 0..3 {
        open(&mut client, &format!("new {n}"), port);
    }
    let ended =
        late.iter_mut().map(|stream| get_kept(stream).unwrap_or(false)).filter(|whole| !whole).count();
    assert!((1..=4).contains(&ended), "{ended}");
    names.iter().for_each(|name| assert_served(&mut client, name));
}

/// Datagrams of a connection that come from addresses of others (RFC 9000, sections 8.2.2, 9.3 and 9.4).
#[test]
fn addresses_of_others() {
    let Some(mut client) = start() else { return };
    let server = serve("");
    let port = server.addr(0).port();
    let challenge = hex(&[&[0x1a][..], &[7; 8]].concat());
    for (frames, packets, size) in
        [(&*challenge, 1, 0), (&*challenge, 3, 100), (&*challenge, 1, 1200), ("01", 1, 0), ("01", 2, 1200)]
    {
        open(&mut client, "a", port);
        let asked = json!({"on": "a", "frames": frames, "count": 40, "packets": packets, "size": size});
        let told = client.call("spoof", asked);
        for socket in told["sockets"].as_array().expect("sockets") {
            let [sent, received] = [0, 1].map(|n| socket[n].as_u64().expect("bytes"));
            assert!(received <= 3 * sent, "{frames} {size}: {sent} {received}");
        }
        // Also a short one, by a datagram that is short (section 8.2.2).
        if frames.starts_with("1a") {
            let answered = told["sockets"].as_array().expect("sockets").iter().filter(|s| s[1] != 0).count();
            assert!(answered > 0, "{told}");
        }
        // The client is still there.
        assert_served(&mut client, "a");
        client.call("close", json!({"on": "a"}));
    }
}

/// Packets of unknown versions get one answer, which is shorter; an answer to that gets none (RFC 9000, section 6.1).
#[test]
fn version_negotiation() {
    let Some(mut client) = start() else { return };
    let server = serve("");
    let port = server.addr(0).port();
    let packet = [&[0xc3, 0x0a, 0x1a, 0x2a, 0x3a, 8][..], &[1; 8], &[8], &[2; 8], &[0; 1177]].concat();
    assert_eq!(packet.len(), 1200);
    let answer = client.call("exchange", json!({"port": port, "datagram": hex(&packet)}));
    let answer = answer["answer"].as_str().expect("hex");
    assert_eq!(&answer[2..10], "00000000", "{answer}");
    assert_eq!(&answer[10..46], "080202020202020202080101010101010101", "{answer}");
    assert!(answer.contains("00000001") && answer.contains("6b3343cf") && answer.len() < 200, "{answer}");
    for silent in [&packet[..1199], &[&unhex(answer)[..], &[0; 1200]].concat()] {
        let told = client.call("exchange", json!({"port": port, "datagram": hex(silent)}));
        assert_eq!(told["answer"], "");
    }
}
