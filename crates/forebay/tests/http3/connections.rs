//! Handshakes, and connections over reloads, moves of the client, and the end of the server.

use super::{Client, conf, serve, site};
use forebay_sys::datagrams::Batch;
use forebay_testkit::{Server, Signal, ask, wait_for, wait_until};
use serde_json::{Value, json};
use std::net::UdpSocket;

forebay_testkit::cases!("../cases/http3/connections.cases":
    names_choose_certificates_and_servers, client_certificates, suites_of_tls, retry, resumption, early_data,
    early_data_from_elsewhere, early_data_is_refused, version_2, sessions_are_of_one_version, version_2_is_preferred,
    http3_off, a_connection_serves_so_many_requests, a_listener_that_goes_away);

#[test]
fn clients_move() {
    let Some(mut client) = Client::start() else { return };
    let server = serve("location = /port { return 200 $remote_port; } location /large { limit_rate 1m; }");
    client.connect("a", &server);
    client.request("a", "running", json!({"path": "/large"}));
    client.call("answer", json!({"of": "running", "until": "head"}));
    let before = client.get("a", "/port")["text"].clone();
    let ports = client.call("move", json!({"on": "a"}))["ports"].clone();
    assert_eq!(before, ports[0].to_string());
    // Requests count under an address once it is proved: what is acknowledged has followed the question.
    client.call("ping", json!({"on": "a"}));
    let after = client.get("a", "/port")["text"].clone();
    assert_eq!(after, ports[1].to_string());
    let told = client.answer("running");
    assert_eq!((&told["length"], &told["ended"]), (&json!(2_000_000), &json!(true)), "{told}");
}

/// A client whose address changes gets its answer although it has sent little from there: the question for it is as short as that allows
/// (RFC 9000, section 8.2.1). A request that comes before the address is proved counts as one of the address before: anybody can write
/// another address into a datagram, and access may depend on it.
#[test]
fn addresses_change() {
    let Some(mut client) = Client::start() else { return };
    let server = serve("location = /address { return 200 $remote_addr; }");
    client.connect("a", &server);
    let mut before = "127.0.0.1";
    assert_eq!(client.get("a", "/address")["text"], before);
    for address in ["127.0.0.2", "127.0.0.3"] {
        // No acknowledgment leaves before the request then.
        client.call("ping", json!({"on": "a"}));
        let first = json!({"as": "first", "path": "/address"});
        client.call("move", json!({"on": "a", "address": address, "request": first}));
        assert_eq!(client.answer("first")["text"], before);
        assert_eq!(client.get("a", "/page")["length"], 10_000);
        wait_until("the proof", || client.get("a", "/address")["text"] == address);
        before = address;
    }
}

/// A site whose answer at `/version` is a number, for seeing which configuration is in effect.
fn numbered(listen: &str, version: u32) -> String {
    format!(
        "server {{ listen 127.0.0.1:%PORT0% quic; listen 127.0.0.1:%PORT0% ssl; {listen}\n\
         location /version {{ return 200 {version}; }} location /large {{ limit_rate 1m; }} }}"
    )
}

fn reload(server: &Server, http: &str) {
    server.reload_with(conf(http));
}

/// A UDP port goes from the stream block to QUIC and back. Sockets stay open over a reload; their options are those of their use.
#[test]
fn a_port_moves_between_stream_and_http() {
    let Some(mut client) = Client::start() else { return };
    let told = |what: &str| format!("server {{ listen 127.0.0.1:%PORT0%; return 200 {what}; }}");
    let quic = "server { listen 127.0.0.1:%PORT0% quic; return 200 quic; }";
    let stream = |http: &str| {
        format!("{} stream {{ server {{ listen 127.0.0.1:%PORT0% udp; return hello; }} }}", conf(http))
    };
    let site = site(&told("first"));
    site.write("nginx.conf", stream(&told("first")));
    let server = Server::start_on(site);
    let wait = |what: &str| {
        let request = b"GET / HTTP/1.0\r\n\r\n";
        let all = || ask(server.addr(0), request);
        wait_until(what, || all().ends_with(what));
    };
    let ask = || {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("bound");
        forebay_sys::sockets::set_ecn_info(&socket, false).expect("option");
        socket.send_to(b"?", server.addr(0)).expect("sent");
        let mut batch = Batch::new();
        wait_for("an answer", || batch.receive(&socket, 1).ok());
        (batch.get(0).expect("a datagram").bytes.to_vec(), batch.ecn(0))
    };
    wait("first");
    assert_eq!(ask(), (b"hello".to_vec(), 0));
    reload(&server, &format!("{} {quic}", told("second")));
    wait("second");
    client.connect("a", &server);
    assert_eq!(client.get("a", "/")["text"], "quic");
    server.reload_with(stream(&told("third")));
    wait("third");
    assert_eq!(ask(), (b"hello".to_vec(), 0));
    assert!(!server.error_log().contains("[alert]"), "{}", server.error_log());
}

/// A hundred reloads, with requests, downloads that last over several of them, and new connections.
#[test]
fn connections_outlive_reloads() {
    let Some(mut client) = Client::start() else { return };
    let server = Server::start_on(site(&numbered("", 0)));
    client.connect("a", &server);
    for n in 1..=100 {
        if n % 10 == 1 {
            client.request("a", "running", json!({"path": "/large"}));
            client.call("answer", json!({"of": "running", "until": "head"}));
        }
        reload(&server, &numbered("", n));
        wait_for("the new configuration", || {
            let told = client.get("a", "/version");
            assert_eq!((&told["status"], &told["closed"]), (&json!(200), &Value::Null));
            (told["text"].as_str() == Some(n.to_string().as_str())).then_some(())
        });
        let told = client.call("many", json!({"on": "a", "path": "/page", "count": 5}));
        assert_eq!(told["seen"], json!({"200 10000 True": 5}));
        if n % 10 == 0 {
            // New ones are taken as well.
            client.connect(&format!("new {n}"), &server);
            assert_eq!(client.get(&format!("new {n}"), "/page")["length"], 10_000);
            let told = client.answer("running");
            assert_eq!(
                (&told["length"], &told["ended"], &told["closed"]),
                (&json!(2_000_000), &json!(true), &Value::Null)
            );
        }
    }
    let told = client.call("state", json!({"on": "a"}));
    assert_eq!(told["goaways"], json!([]));
}

#[test]
fn quit_lets_requests_end() {
    let Some(mut client) = Client::start() else { return };
    let mut server = Server::start_on(site(&numbered("", 0)));
    client.connect("a", &server);
    client.connect("idle", &server);
    client.request("a", "running", json!({"path": "/large"}));
    client.call("answer", json!({"of": "running", "until": "head"}));
    server.signal(Signal::SIGQUIT);
    let any = (1u64 << 62) - 4;
    // RFC 9114, section 5.2: at first no request is refused, since it may have crossed the GOAWAY.
    let told = client.call("wait", json!({"on": "a", "for": "goaway"}));
    assert_eq!(told["goaways"][0], json!(any));
    // On a slow machine the second GOAWAY may be there, too.
    if told["goaways"].as_array().is_some_and(|all| all.len() == 1) {
        assert_eq!(client.get("a", "/version")["status"], 200);
    }
    let told = client.call("wait", json!({"on": "idle", "for": "closed"}));
    assert_eq!((&told["closed"]["code"], &told["goaways"]), (&json!(0x100), &json!([any, 0])), "{told}");
    // The client may send requests that it opens now again on another connection.
    client.request("a", "late", json!({"path": "/version"}));
    let late = client.answer("late");
    assert_eq!((&late["status"], &late["reset"]), (&json!(0), &json!(0x10b)), "{late}");
    let told = client.answer("running");
    assert_eq!((&told["length"], &told["ended"]), (&json!(2_000_000), &json!(true)), "{told}");
    assert_eq!(client.call("wait", json!({"on": "a", "for": "closed"}))["closed"]["code"], 0x100);
    assert_eq!(server.wait_end(), Some(0));
}
