//! `ssl_ocsp` in the stream block.

use super::{Authority, CERTIFICATE, revoke, send, site_of};
use forebay_testkit::{DEADLINE, Origin, Server, free_port, s_client, wait_until};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};

/// Starts a stream block that asks about clients' certificates.
fn serve(authority: &Authority, lines: &str, servers: &str) -> Server {
    Server::start_on(site_of(
        authority,
        &format!(
            "stream {{ {CERTIFICATE} ssl_client_certificate ca.crt; ssl_verify_client on; {lines}\n{servers} }}"
        ),
    ))
}

const SAY: &str = "return \"state:$ssl_client_verify$ssl_session_reused;\";";

fn with(server: &Server, port: usize, name: &str, args: &str) -> String {
    s_client(server, port, &format!("-cert {name}.crt -key {name}.key {args}"), "")
}

#[test]
fn clients_of_stream_are_asked_about() {
    let authority = Authority::new();
    let lie = Origin::start(|asked| {
        send(asked, b"lie");
        false
    });
    let dead = free_port();
    let servers = [
        "leaf",
        "on",
        "on; ssl_verify_client optional",
        &format!("leaf; ssl_ocsp_responder http://{lie}"),
        &format!("leaf; ssl_ocsp_responder http://127.0.0.1:{dead}"),
        "leaf; ssl_ocsp_cache shared:o:1m",
    ];
    let listen = |(n, lines): (usize, &&str)| {
        format!("server {{ listen 127.0.0.1:%PORT{n}% ssl; ssl_ocsp {lines}; {SAY} }}\n")
    };
    let server = serve(&authority, "", &servers.iter().enumerate().map(listen).collect::<String>());
    for version in ["-tls1_2", "-tls1_3"] {
        for port in [0, 1, 2, 5] {
            let got = with(&server, port, "good", version);
            assert!(got.contains("state:SUCCESS.;"), "{port} {version}: {got}\n{}", server.error_log());
            for name in ["revoked", "unknown", "plain", "other"] {
                let got = with(&server, port, name, version);
                assert!(!got.contains("state:"), "{port} {version} {name}: {got}");
            }
        }
        for port in [3, 4] {
            let got = with(&server, port, "good", version);
            assert!(!got.contains("state:"), "{port} {version}: {got}");
        }
        assert!(!s_client(&server, 0, version, "").contains("state:"), "{version}");
        assert!(s_client(&server, 2, version, "").contains("state:NONE.;"), "{version}");
    }
    for text in [
        "client SSL certificate verify error: certificate revoked while SSL handshaking",
        "client SSL certificate verify error: certificate status unknown while SSL handshaking",
        "client SSL certificate verify error: certificate status request failed while SSL handshaking",
        "client sent no required SSL certificate while SSL handshaking",
    ] {
        server.wait_for_log(text, 2);
    }
    let before = authority.asked();
    assert!(with(&server, 5, "good", "").contains("state:SUCCESS.;"));
    assert_eq!(authority.asked(), before, "an answer that holds is not asked for again");
}

/// A session that is resumed is asked about again: the certificate may have been revoked since.
#[test]
fn resumed_sessions_of_stream_are_asked_about() {
    let authority = Authority::new();
    let listen = |n: usize, more: &str| {
        format!("server {{ listen 127.0.0.1:%PORT{n}% ssl; ssl_ocsp leaf; {more} {SAY} }}\n")
    };
    let kept = "ssl_session_tickets off; ssl_session_cache shared:S:1m;";
    let server = serve(&authority, "", &[listen(0, ""), listen(1, kept)].concat());
    let sessions = [("-tls1_2", 0), ("-tls1_3", 0), ("-tls1_2", 1), ("-tls1_3", 1)];
    for (version, port) in sessions {
        let got = with(&server, port, "good", &format!("{version} -sess_out s{port}{version}"));
        assert!(got.contains("state:SUCCESS.;"), "{version}: {got}");
        let before = authority.asked();
        let got = with(&server, port, "good", &format!("{version} -sess_in s{port}{version}"));
        assert!(got.contains("state:SUCCESSr;"), "{version}: {got}");
        assert_eq!(authority.asked() - before, 1, "{version}");
    }
    revoke(&server);
    for (version, port) in sessions {
        let got = with(&server, port, "good", &format!("{version} -sess_in s{port}{version}"));
        assert!(!got.contains("state:"), "{version}: {got}");
    }
}

/// A session waits for a responder that takes its time, and others are served meanwhile.
#[test]
fn a_slow_responder_holds_up_its_own_session_only() {
    let authority = Authority::new();
    let (gate, asked) = (Arc::new((Mutex::new(false), Condvar::new())), Arc::new(AtomicBool::new(false)));
    let (answers, shut, noted) = (authority.state.clone(), gate.clone(), asked.clone());
    let slow = Origin::start(move |question| {
        noted.store(true, Ordering::SeqCst);
        let open = shut.0.lock().expect("gate");
        let (open, late) = shut.1.wait_timeout_while(open, DEADLINE, |open| !*open).expect("gate");
        assert!(!late.timed_out(), "nobody opened");
        drop(open);
        let body = answers.answer(question.target());
        send(question, &body);
        false
    });
    let server = serve(
        &authority,
        "ssl_ocsp leaf;",
        &format!(
            "server {{ listen 127.0.0.1:%PORT0% ssl; ssl_ocsp_responder http://{slow}; {SAY} }}\n\
             server {{ listen 127.0.0.1:%PORT1% ssl; {SAY} }}"
        ),
    );
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| with(&server, 0, "good", ""));
        wait_until("the question", || asked.load(Ordering::SeqCst));
        assert!(with(&server, 1, "good", "").contains("state:SUCCESS.;"));
        assert!(!waiting.is_finished());
        *gate.0.lock().expect("gate") = true;
        gate.1.notify_all();
        assert!(waiting.join().expect("a client").contains("state:SUCCESS.;"));
    });
}

/// A responder that never answers costs the session.
#[test]
fn a_responder_that_hangs_ends_the_session() {
    let authority = Authority::new();
    // Holds the connection until the server gives up.
    let hanging = Origin::start(|asked| !asked.more());
    let listen = "listen 127.0.0.1:%PORT0% ssl; ssl_ocsp leaf;";
    let server =
        serve(&authority, "", &format!("server {{ {listen} ssl_ocsp_responder http://{hanging}; {SAY} }}"));
    let got = with(&server, 0, "good", "");
    assert!(!got.contains("state:"), "{got}");
    server.wait_for_log("OCSP responder timed out", 1);
}
