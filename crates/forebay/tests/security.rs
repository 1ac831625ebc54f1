//! Faults of nginx with a CVE number, replayed: no crash, and the right answer. `forebay-doctor/data/nginx-cves.tsv` names the test of each.

use forebay_bench::load::Protocol;
use forebay_bench::tls::{self, Trust};
use forebay_http::h2::frame::{Code, flag, kind};
use forebay_testkit::{P256, Server, Site, h2, http, s_client};
use rustls::pki_types::ServerName;
use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

forebay_testkit::cases!("cases/security.cases":
    mp4_is_refused, mail_is_refused, copy_and_move_stay_below_an_alias, a_set_body_over_http2_is_content_only,
    captures_after_a_rewrite_with_a_question_mark, captures_inside_of_captures, captures_of_a_map_in_the_same_text,
    slices_and_captures, pages_that_include_what_fails, recoding_takes_characters_apart_anywhere,
    rewritten_paths_below_an_alias, plain_text_before_the_handshake_of_an_upstream_is_no_response,
    large_heads_to_upstreams_over_http2);

/// The table names a test of this program for each fault.
#[test]
fn each_fault_is_replayed() {
    let table = include_str!("../../forebay-doctor/data/nginx-cves.tsv");
    let this = std::env::current_exe().expect("this program");
    let list =
        std::process::Command::new(this).args(["--list", "--format", "terse"]).output().expect("a list");
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    let tests: HashSet<&str> = list.lines().filter_map(|line| line.strip_suffix(": test")).collect();
    let rows: Vec<Vec<&str>> = table.lines().skip(1).map(|line| line.split('\t').collect()).collect();
    for row in &rows {
        let (cve, replay) = (row[0], row.last().expect("columns"));
        assert!(tests.contains(replay), "{cve}: there is no test {replay}");
    }
    assert!(rows.len() >= 40, "{}", rows.len());
}

/// An upstream that says something as soon as it is connected to, and reads what comes.
fn says(text: Vec<u8>) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let text = text.clone();
            std::thread::spawn(move || {
                let _ = stream.write_all(&text);
                let _ = stream.set_read_timeout(Some(Duration::from_millis(500)));
                let _ = std::io::copy(&mut stream, &mut std::io::sink());
            });
        }
    });
    address
}

/// CVE-2026-42946
#[test]
fn heads_of_scgi_and_uwsgi_are_bounded() {
    let long = [b"Status: 200 OK\r\nX: ".as_slice(), &vec![b'a'; 1 << 20]].concat();
    let many = [b"Status: 200 OK\r\n".to_vec(), b"A: b\r\n".repeat(200_000)].concat();
    let answers: [(&str, Vec<u8>); 6] = [
        ("long", long),
        ("many", many),
        ("zero", b"Status: 200 OK\r\nX\0: y\r\n\r\nbody".to_vec()),
        ("nothing", Vec::new()),
        ("colon", b":\r\n\r\n".to_vec()),
        ("status", b"Status: 99999999999999999999\r\n\r\n".to_vec()),
    ];
    for (name, bytes) in answers {
        let up = says(bytes);
        let server = http(format!(
            "server {{ listen 127.0.0.1:%PORT0%; location /scgi {{ scgi_pass {up}; }} location /uwsgi {{ uwsgi_pass {up}; }} \
             location /alive {{ return 200 alive; }} }}"
        ))
        .start();
        for path in ["/scgi", "/uwsgi"] {
            let answer = server.get(path);
            assert!(answer.starts_with("HTTP/1.1 502 "), "{name} {path}: {answer}");
        }
        assert!(server.get("/alive").ends_with("alive"), "{name}");
    }
}

/// CVE-2026-123007
#[test]
fn windows_of_http2_do_not_overflow() {
    const MOST: u32 = (1 << 31) - 1;
    let control = Some(Code::FlowControlError as u32);
    let small = |window: u32| h2::settings(&[(4, window)]);
    type Frames = Vec<Vec<u8>>;
    let cases: [(&str, Frames, Option<u32>); 5] = [
        ("connection", vec![h2::window_update(0, MOST)], control),
        ("connection in steps", vec![h2::window_update(0, 1 << 30), h2::window_update(0, 1 << 30)], control),
        ("initial window of an open stream", vec![h2::window_update(1, MOST - 65_535), small(MOST)], control),
        ("initial window below zero and back", vec![small(0), small(MOST), small(1), small(MOST)], None),
        ("initial window that is too large", vec![small(MOST + 1)], control),
    ];
    for (name, frames, wanted) in cases {
        let server = large();
        let mut client = h2::Client::new(&server);
        client.reads = false;
        client.request(1, "/large", &[], true);
        for frame in &frames {
            client.send(frame);
        }
        if wanted.is_some() {
            assert_eq!(client.goodbye(), wanted, "{name}");
        }
        assert_eq!(server.get("/small").split("\r\n\r\n").nth(1), Some("small"), "{name}");
    }
    // A stream alone is reset.
    let server = large();
    let mut client = h2::Client::new(&server);
    client.request(1, "/large", &[], true);
    client.send(&h2::window_update(1, MOST));
    let reset = loop {
        match client.next() {
            Some(frame) if frame.kind == kind::RST_STREAM => break frame.code(),
            Some(frame) if frame.has(flag::END_STREAM) && frame.kind == kind::DATA => break u32::MAX,
            Some(_) => {}
            None => break u32::MAX - 1,
        }
    };
    assert_eq!(reset, Code::FlowControlError as u32);
}

/// A server of a file that is larger than the first windows.
fn large() -> Server {
    let site = Site::new(
        "events {} http { access_log off; server { listen 127.0.0.1:%PORT0%; http2 on; root html; } }\n",
    );
    site.write("html/large", "0123456789".repeat(100_000));
    site.write("html/small", "small");
    Server::start_on(site)
}

/// CVE-2026-90439: what only QUIC knows is ignored over TCP.
#[test]
fn transport_parameters_over_tcp_are_ignored() {
    let site = Site::new(
        "events {} http { access_log off; ssl_certificate own.crt; ssl_certificate_key own.key; \
         server { listen 127.0.0.1:%PORT0% ssl; return 200 alive; } }\n",
    );
    site.certificate("own", P256, "a", "");
    let server = Server::start_on(site);
    let config = tls::config(&Trust::Anyone, Protocol::Http3).expect("a configuration");
    for parameters in [vec![], vec![0xff; 3], vec![1; 1000], vec![4, 4, 0x80, 0, 0xff, 0xff]] {
        let name = ServerName::try_from("a").expect("a name");
        let version = rustls::quic::Version::V1;
        let mut client =
            rustls::quic::ClientConnection::new(config.clone(), version, name, parameters).expect("a client");
        let mut hello = Vec::new();
        client.write_hs(&mut hello);
        let length = u16::try_from(hello.len()).expect("one record").to_be_bytes();
        let mut stream = server.send([&[22, 3, 1], &length[..], &hello].concat());
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a limit");
        let mut record = [0; 6];
        stream.read_exact(&mut record).expect("a record");
        // ServerHello, or an alert for lack of a common protocol.
        assert!(matches!(record, [22, 3, 3, _, _, 2] | [21, 3, _, _, _, _]), "{record:?}");
    }
    let out = s_client(&server, 0, "", "GET / HTTP/1.0\r\n\r\n");
    assert!(out.contains("alive"), "{out}");
}
