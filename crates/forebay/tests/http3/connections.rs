//! Handshakes, and connections over reloads, moves of the client, and the end of the server.

use super::{Client, conf, serve, site};
use forebay_sys::datagrams::Batch;
use forebay_testkit::{Server, Signal, ask, wait_for, wait_until};
use serde_json::{Value, json};
use std::net::UdpSocket;

/// Two servers on one address, and one more with a name that is not asked for.
const NAMES: &str = "server { listen 127.0.0.1:%PORT0% quic; listen 127.0.0.1:%PORT0% ssl; server_name localhost;
                       return 200 first; }
                     server { listen 127.0.0.1:%PORT0% quic; listen 127.0.0.1:%PORT0% ssl; server_name other;
                       ssl_certificate other.crt; ssl_certificate_key other.key; return 200 \"second $ssl_server_name\"; }";

#[test]
fn names_choose_certificates_and_servers() {
    let Some(mut client) = Client::start() else { return };
    let server = Server::start_on(site(NAMES));
    for (name, subject, text) in [
        ("localhost", "CN=localhost", "first"),
        ("other", "CN=other", "second other"),
        ("none", "CN=localhost", "first"),
    ] {
        let told = client.connect_with(name, &server, json!({"name": name}));
        assert_eq!(told["certificate"], subject, "{name}");
        assert_eq!(client.ask(name, json!({"authority": name}))["text"], text, "{name}");
    }
}

#[test]
fn client_certificates() {
    let Some(mut client) = Client::start() else { return };
    let server = serve(
        "ssl_verify_client on; ssl_client_certificate client.crt;\n\
         return 200 \"$ssl_client_verify $ssl_client_s_dn\";",
    );
    client.connect("without", &server);
    let told = client.get("without", "/");
    assert_eq!(told["status"], 400);
    assert!(
        told["text"].as_str().is_some_and(|t| t.contains("No required SSL certificate was sent")),
        "{told}"
    );
    let file = |name: &str| server.dir().join(name).display().to_string();
    let own = json!({"cert": file("client.crt"), "key": file("client.key")});
    client.connect_with("with", &server, own);
    assert_eq!(client.get("with", "/")["text"], "SUCCESS CN=client");
    let wrong = json!({"cert": file("other.crt"), "key": file("other.key")});
    client.connect_with("wrong", &server, wrong);
    let told = client.get("wrong", "/");
    assert!(told["status"] == 400 || told["closed"]["code"].as_u64().is_some_and(|c| c >> 8 == 1), "{told}");
}

/// As over TCP, the cheapest suite of the client is taken without `ssl_prefer_server_ciphers`. With `off`, nginx's default, its first is.
#[test]
fn suites_of_tls() {
    let Some(mut client) = Client::start() else { return };
    let cheapest = serve("return 200 $ssl_cipher;");
    let of_client = serve("ssl_prefer_server_ciphers off; return 200 $ssl_cipher;");
    let (small, large) = ("AES_128_GCM_SHA256", "AES_256_GCM_SHA384");
    for (n, server, suites, suite) in [
        (0, &cheapest, [large, small], small),
        (1, &cheapest, [small, large], small),
        (2, &of_client, [large, small], large),
        (3, &of_client, [small, large], small),
    ] {
        let name = n.to_string();
        client.connect_with(&name, server, json!({"suites": suites}));
        assert_eq!(client.get(&name, "/")["text"], format!("TLS_{suite}"), "{n}");
    }
}

#[test]
fn retry() {
    let Some(mut client) = Client::start() else { return };
    let server = serve("quic_retry on;");
    assert_eq!(client.connect("a", &server)["retried"], true);
    assert_eq!(client.get("a", "/page")["length"], 10_000);
    // The token of that connection proves the address of the next one, once, and no other address.
    for (name, address, retried) in
        [("b", "127.0.0.2", true), ("c", "127.0.0.1", false), ("d", "127.0.0.1", true)]
    {
        let told = client.connect_with(name, &server, json!({"token": "a", "address": address}));
        assert_eq!((&told["connected"], &told["retried"]), (&json!(true), &json!(retried)), "{name}: {told}");
    }
    let server = serve("");
    assert_eq!(client.connect("e", &server)["retried"], false);
}

#[test]
fn resumption() {
    let Some(mut client) = Client::start() else { return };
    let server = serve("location / { return 200 $ssl_session_reused; }");
    assert_eq!(client.connect("a", &server)["resumed"], false);
    assert_eq!(client.get("a", "/")["text"], ".");
    let told = client.connect_with("b", &server, json!({"ticket": "a"}));
    assert_eq!(told["resumed"], true);
    assert_eq!(client.get("b", "/")["text"], "r");
}

/// A request with the handshake: once for each ticket, and the rest as ever.
#[test]
fn early_data() {
    let Some(mut client) = Client::start() else { return };
    let lines = "ssl_early_data on; location / { return 200 \"$ssl_early_data $ssl_session_reused $http3 $request_uri\"; }";
    let server = serve(lines);
    assert_eq!(client.connect("a", &server)["early"], false);
    assert_eq!(client.get("a", "/")["text"], " . h3 /");
    for (name, early, text) in [("b", true, "1 r h3 /early"), ("replayed", false, " . h3 /early")] {
        let told = client.connect_with(
            name,
            &server,
            json!({"ticket": "a", "early": {"as": format!("early {name}"), "path": "/early"}}),
        );
        assert_eq!((&told["connected"], &told["early"]), (&json!(true), &json!(early)), "{name}: {told}");
        let answer = client.answer(&format!("early {name}"));
        if early {
            assert_eq!(answer["text"], text, "{name}: {answer}");
        }
        // aioquic sends again what was refused as early data, as its users see fit: here not at all.
        let later = if early { " r h3 /later" } else { " . h3 /later" };
        assert_eq!(client.get(name, "/later")["text"], later);
    }
    // What came early counts as the connection's.
    assert_eq!(client.connect_with("c", &server, json!({"ticket": "b"}))["resumed"], true);
}

/// Early data comes before the client has proved its address, so it has to come from that of its session.
#[test]
fn early_data_from_elsewhere() {
    let Some(mut client) = Client::start() else { return };
    let server = serve("ssl_early_data on; location / { return 200 $remote_addr; }");
    for (address, early) in [("127.0.0.1", true), ("127.0.0.2", false)] {
        client.connect("a", &server);
        client.get("a", "/");
        let options = json!({"ticket": "a", "address": address, "early": {"as": "early", "path": "/"}});
        let told = client.connect_with("b", &server, options);
        assert_eq!((&told["connected"], &told["early"]), (&json!(true), &json!(early)), "{address}: {told}");
        assert_eq!(client.get("b", "/")["text"], address);
    }
}

/// Without the directive, and where clients have to show certificates, nothing is taken before the handshake is complete.
#[test]
fn early_data_is_refused() {
    let Some(mut client) = Client::start() else { return };
    for lines in ["", "ssl_early_data on; ssl_verify_client optional_no_ca; ssl_session_cache shared:a:1m;"] {
        let server = serve(lines);
        client.connect("a", &server);
        client.get("a", "/page");
        let early = json!({"as": "early", "path": "/page"});
        let told = client.connect_with("b", &server, json!({"ticket": "a", "early": early}));
        assert_eq!((&told["connected"], &told["early"]), (&json!(true), &json!(false)), "{lines}: {told}");
        assert_eq!(client.get("b", "/page")["length"], 10_000);
    }
}

/// QUIC version 2, from its first packet on.
#[test]
fn version_2() {
    let Some(mut client) = Client::start() else { return };
    for lines in ["ssl_early_data on;", "quic_retry on;"] {
        let server = serve(lines);
        let told = client.connect_with("a", &server, json!({"version": 2}));
        assert_eq!((&told["connected"], &told["version"]), (&json!(true), &json!(0x6b33_43cf_u32)), "{told}");
        assert_eq!(client.get("a", "/page")["length"], 10_000);
        client.request("a", "upload", json!({"path": "/page", "method": "POST", "length": 300_000}));
        assert_eq!(client.answer("upload")["status"], 405);
        let told = client.connect_with("b", &server, json!({"version": 2, "ticket": "a"}));
        assert_eq!((&told["connected"], &told["resumed"]), (&json!(true), &json!(true)), "{told}");
        assert_eq!(client.get("b", "/page")["length"], 10_000);
    }
}

/// Sessions of one version are not those of the other, nor do they bring requests with the handshake (RFC 9369, section 5). What a client
/// gets after it has gone on with version 2 is of that.
#[test]
fn sessions_are_of_one_version() {
    let Some(mut client) = Client::start() else { return };
    for lines in ["ssl_early_data on;", "ssl_session_tickets off; ssl_session_cache shared:versions:1m;"] {
        let server = serve(lines);
        for (name, version) in [
            ("one", json!({"version": 1})),
            ("two", json!({"version": 2})),
            ("change", json!({"versions": [2, 1]})),
        ] {
            for (later, resumed) in [(1, name == "one"), (2, name != "one")] {
                // Some sessions can be used once.
                client.connect_with(name, &server, version.clone());
                assert_eq!(client.get(name, "/page")["length"], 10_000);
                let early = json!({"as": "early", "path": "/page"});
                let told = client.connect_with(
                    "b",
                    &server,
                    json!({"version": later, "ticket": name, "early": early}),
                );
                assert_eq!(
                    (&told["connected"], &told["resumed"]),
                    (&json!(true), &json!(resumed)),
                    "{name}: {told}"
                );
                let early = resumed && lines.contains("early");
                assert_eq!(told["early"], early, "{name}: {told}");
                assert_eq!(client.get("b", "/page")["length"], 10_000);
            }
        }
    }
}

/// Clients that begin with version 1 go on with version 2 if they prefer it (RFC 9368, section 2.3).
#[test]
fn version_2_is_preferred() {
    const V2: u32 = 0x6b33_43cf;
    let Some(mut client) = Client::start() else { return };
    for lines in ["ssl_early_data on;", "quic_retry on;"] {
        let server = serve(lines);
        let told = client.connect_with("a", &server, json!({"versions": [2, 1]}));
        assert_eq!((&told["connected"], &told["version"]), (&json!(true), &json!(V2)), "{lines}: {told}");
        assert_eq!(client.get("a", "/page")["length"], 10_000);
        client.request("a", "upload", json!({"path": "/page", "method": "POST", "length": 300_000}));
        assert_eq!(client.answer("upload")["status"], 405);
        // A move after the change.
        client.call("move", json!({"on": "a"}));
        assert_eq!(client.get("a", "/page")["length"], 10_000);
        for versions in [[1, 2].as_slice(), &[1]] {
            let told = client.connect_with("b", &server, json!({"versions": versions}));
            assert_eq!((&told["connected"], &told["version"]), (&json!(true), &json!(1)), "{told}");
            assert_eq!(client.get("b", "/page")["length"], 10_000);
        }
    }
    // 0-RTT packets are of the first version, so that such a connection stays there.
    let server = serve("ssl_early_data on;");
    client.connect("a", &server);
    client.get("a", "/page");
    let early = json!({"as": "early", "path": "/page"});
    let told = client.connect_with("b", &server, json!({"versions": [2, 1], "ticket": "a", "early": early}));
    assert_eq!(
        (&told["connected"], &told["early"], &told["version"]),
        (&json!(true), &json!(true), &json!(1)),
        "{told}"
    );
    assert_eq!(client.answer("early")["length"], 10_000);
}

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

/// Application protocols that nobody agreed on, and a server that does not speak HTTP/3.
#[test]
fn http3_off() {
    let Some(mut client) = Client::start() else { return };
    let server = serve("http3 off;");
    let told = client.connect_with("a", &server, json!({}));
    // no_application_protocol, as a TLS alert (RFC 9001, section 4.8).
    assert_eq!((&told["connected"], &told["closed"]["code"]), (&json!(false), &json!(0x100 + 120)), "{told}");
    let server =
        Server::start_on(site(&NAMES.replace("server_name other;", "server_name other; http3 off;")));
    client.connect("b", &server);
    assert_eq!(client.ask("b", json!({"authority": "other"}))["status"], 421);
    assert_eq!(client.get("b", "/")["text"], "first");
    let told = client.connect_with("c", &server, json!({"alpn": "h2"}));
    assert_eq!((&told["connected"], &told["closed"]["code"]), (&json!(false), &json!(0x100 + 120)), "{told}");
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
fn a_listener_that_goes_away() {
    let Some(mut client) = Client::start() else { return };
    let second = "listen 127.0.0.1:%PORT1% quic;";
    let server = Server::start_on(site(&numbered(second, 0)));
    client.connect("stays", &server);
    client.connect_with("goes", &server, json!({"port": server.addr(1).port()}));
    client.request("goes", "running", json!({"path": "/large"}));
    client.call("answer", json!({"of": "running", "until": "head"}));
    reload(&server, &numbered("", 1));
    assert_eq!(client.call("wait", json!({"on": "goes", "for": "goaway"}))["goaways"], json!([4]));
    let told = client.answer("running");
    assert_eq!((&told["length"], &told["ended"]), (&json!(2_000_000), &json!(true)), "{told}");
    let told = client.call("wait", json!({"on": "goes", "for": "closed"}));
    assert_eq!(told["closed"]["code"], 0x100, "H3_NO_ERROR");
    assert_eq!(client.get("stays", "/version")["text"], "1");
    assert_eq!(client.call("state", json!({"on": "stays"}))["goaways"], json!([]));
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

#[test]
fn a_connection_serves_so_many_requests() {
    let Some(mut client) = Client::start() else { return };
    let server = serve("keepalive_requests 3;");
    client.connect("a", &server);
    for _ in 0..3 {
        let told = client.get("a", "/page");
        assert_eq!((&told["status"], &told["ended"]), (&json!(200), &json!(true)), "{told}");
    }
    let told = client.call("wait", json!({"on": "a", "for": "closed"}));
    assert_eq!((&told["goaways"], &told["closed"]["code"]), (&json!([12]), &json!(0x100)));
}
