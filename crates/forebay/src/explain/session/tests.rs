use super::*;
use forebay_core::config::listen::AddressOptions;
use forebay_core::config::names::ServerName;
use forebay_core::config::{Config, SocketOptions};
use std::path::Path;

const CONF: &str = "stream {
    map $ssl_preread_server_name $to {
        hostnames;
        shop.example shop;
        *.mail.example mail;
        ~^x\\d 10.0.0.3:443;
        include_is_a_name 10.0.0.4:443;
        default 10.0.0.5:443;
    }
    geo $near { default far.example:1; 10.0.0.0/8 10.0.0.6:1; 10.1.0.0/16 10.0.0.7:1; }
    upstream shop { least_conn; server 10.0.0.1:443 weight=2; server 10.0.0.2:443 backup; }
    upstream mail { server 10.0.0.8:443; }
    proxy_timeout 1h;
    server { listen 443; ssl_preread on; proxy_pass $to; proxy_protocol on; }
    server { listen 1000; set $there $near; allow 10.0.0.0/8; deny all; proxy_pass $there; }
    server { listen 53 udp; proxy_pass 10.0.0.9:53; proxy_responses 1; proxy_requests 3; }
    server { listen 514 udp; proxy_pass 10.0.0.9:514; proxy_timeout 0; }
    server { listen 1001 ssl proxy_protocol; pass 127.0.0.1:1000; proxy_protocol_timeout 5s; ssl_handshake_timeout 6s; }
    server { listen 1002; return a; access_log /l f; }
    server { listen 1003; ssl_preread on; pass $inside; }
    server { listen 1004; proxy_pass $things; }
    server { listen 1005; mqtt_preread on; proxy_pass $things; }
    map $mqtt_preread_clientid $things { ~. 10.0.0.1:1883; default 10.0.0.2:1883; }
    map $ssl_preread_server_name $inside { http 127.0.0.1:80; default 127.0.0.1:2; }
    server { listen 1003; server_name closed.example; deny 192.0.2.0/24; return x; }
    num_map $server_port $of_port { default 10.0.0.1:1; >1000 10.0.0.2:2; 1006 10.0.0.3:3; 1007-1008 10.0.0.4:4; }
    server { listen 1006; listen 1007; listen 999; proxy_pass $of_port; }
}
http { server { listen 80; } }
";

/// Explains a session; the servers listen at the addresses of `CONF`.
fn explain(target: &str, sni: Option<&str>, client: Option<&str>) -> Result<String, String> {
    let mut files = Files::recorded([("/n.conf", CONF)]);
    let parsed = forebay_conf::parse::parse(Path::new("/n.conf"), "", Path::new("/"), &mut files);
    let any = |port: u16| SocketAddr::from(([0, 0, 0, 0], port));
    let plain = AddressOptions::default();
    let wrapped = AddressOptions { ssl: true, proxy_protocol: true, ..plain };
    let listener = |addr, options, front, default_server| {
        let address = Address { default_server, options, ..Address::default() };
        Listener::new(addr, SocketOptions::default(), front, address)
    };
    let mut named = listener(ListenAddr::Inet(any(1003)), plain, STREAM, 6);
    named.default.names.add(&ServerName::Exact(b"closed.example".to_vec()), 9);
    let listeners = vec![
        named,
        listener(ListenAddr::Inet(any(443)), plain, STREAM, 0),
        listener(ListenAddr::Inet(any(1000)), plain, STREAM, 1),
        listener(ListenAddr::Udp(any(53)), plain, STREAM, 2),
        listener(ListenAddr::Udp(any(514)), plain, STREAM, 3),
        listener(ListenAddr::Inet(any(1001)), wrapped, STREAM, 4),
        listener(ListenAddr::Inet(any(1002)), plain, STREAM, 5),
        listener(ListenAddr::Inet(any(1004)), plain, STREAM, 7),
        listener(ListenAddr::Inet(any(1005)), plain, STREAM, 8),
        listener(ListenAddr::Inet(any(1006)), plain, STREAM, 10),
        listener(ListenAddr::Inet(any(1007)), plain, STREAM, 10),
        listener(ListenAddr::Inet(any(999)), plain, STREAM, 10),
        listener(ListenAddr::Inet(any(80)), plain, 0, 0),
        Listener::outside(ListenAddr::Udp(any(5300)), 0),
        Listener::outside(ListenAddr::Inet(any(5300)), 0),
    ];
    let config = Config { listeners, ..Config::default() };
    let client = client.map(|c| c.parse().expect("an address"));
    let question = Question::new(target, sni.map(str::to_owned), client)?;
    text(&question, &config, &Places { tree: &parsed.tree, files: &files }, false)
}

/// Rows of a section, with single spaces.
fn rows(text: &str, title: &str) -> Vec<String> {
    let (_, rest) = text.split_once(&format!("\n{title}")).unwrap_or_else(|| panic!("{title}: {text}"));
    let lines = rest.lines().skip(1).take_while(|line| line.starts_with(' '));
    lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn phases_come_in_order_with_their_settings() {
    let text = explain("tcp://127.0.0.1:1001", None, None).expect("a session");
    let titles = [
        "session",
        "POST_ACCEPT",
        "PREACCESS",
        "ACCESS",
        "SSL",
        "PREREAD",
        "CONTENT",
        "LOG",
        "end of the session",
    ];
    let at: Vec<_> = titles.iter().map(|t| text.find(&format!("\n{t}\n")).expect("a section")).collect();
    assert!(at.is_sorted(), "{text}");
    assert_eq!(
        rows(&text, "POST_ACCEPT"),
        ["(header) PROXY protocol, version 1 or 2 /n.conf:18", "proxy_protocol_timeout 5s /n.conf:18"]
    );
    assert_eq!(rows(&text, "SSL")[0], "ssl_handshake_timeout 6s /n.conf:18");
    assert_eq!(rows(&text, "CONTENT"), ["pass 127.0.0.1:1000 /n.conf:18"]);
    assert_eq!(rows(&text, "LOG"), ["(nothing) no access_log: no line is written"]);
    assert_eq!(
        rows(&text, "passed to"),
        ["listener 127.0.0.1:1000 of stream: forebay explain tcp://127.0.0.1:1000 /n.conf:18"]
    );
    let ends = rows(&text, "end of the session");
    assert_eq!(ends.len(), 3, "{ends:?}");
    for (sni, listener) in [
        ("http", "127.0.0.1:80 of http"),
        ("none", "127.0.0.1:2 nothing listens there: the client is cut off"),
    ] {
        let text = explain("tcp://127.0.0.1:1003", Some(sni), None).expect("a session");
        assert_eq!(rows(&text, "passed to"), [format!("listener {listener} /n.conf:20")]);
    }
    let text = explain("tcp://127.0.0.1:1002", None, None).expect("a session");
    assert_eq!(rows(&text, "LOG"), ["access_log /l f /n.conf:19"]);
    assert_eq!(rows(&text, "end of the session"), ["(nothing) the end of the answer"]);
    assert!(!text.contains("passed to"), "{text}");
    let all = rows(&text, "all settings of server (no name) (/n.conf:19)");
    assert!(all.contains(&"proxy_timeout 1h /n.conf:13".to_owned()), "{all:?}");
}

#[test]
fn maps_choose_the_group() {
    let passed = |sni| {
        let text = explain("tls://127.0.0.1:443", Some(sni), None).expect("a session");
        let choice = rows(&text, "CONTENT").pop().expect("a choice");
        (choice, rows(&text, "passed to"))
    };
    let (choice, shop) = passed("Shop.example");
    assert_eq!(choice, "(map $to) shop.example shop /n.conf:4");
    assert_eq!(
        shop,
        [
            "least_conn /n.conf:11",
            "server 10.0.0.1:443 weight=2 /n.conf:11",
            "server 10.0.0.2:443 backup /n.conf:11",
            "proxy_protocol on /n.conf:14"
        ]
    );
    let (choice, mail) = passed("a.b.mail.example");
    assert_eq!(
        (choice.as_str(), mail[0].as_str()),
        ("(map $to) *.mail.example mail /n.conf:5", "(balancing) round robin by weight default")
    );
    for (sni, server) in [("x1", "10.0.0.3"), ("other", "10.0.0.5"), ("default", "10.0.0.5")] {
        assert_eq!(passed(sni).1[0], format!("server {server}:443 /n.conf:14"), "{sni}");
    }
    // The name of the URL is that of the client.
    let text = explain("tls://shop.example:443", None, None).expect("a session");
    assert!(text.contains("passed to the group shop (/n.conf:11)"), "{text}");
    let text = explain("tcp://127.0.0.1:443", None, None).expect("a session");
    assert!(rows(&text, "passed to")[0].contains("depends on values that are not known here"), "{text}");
    let ends = rows(&text, "end of the session");
    assert!(
        ends.contains(&"proxy_timeout 1h without a byte in either direction /n.conf:13".to_owned()),
        "{ends:?}"
    );
    assert!(ends.iter().any(|row| row.starts_with("preread_timeout 30s ")), "{ends:?}");
}

#[test]
fn numbers_choose_the_server() {
    for (port, server) in [(1006, "10.0.0.3:3"), (1007, "10.0.0.2:2"), (999, "10.0.0.1:1")] {
        let text = explain(&format!("tcp://127.0.0.1:{port}"), None, None).expect("a session");
        assert!(rows(&text, "passed to")[0].contains(server), "{port}: {text}");
    }
}

#[test]
fn first_bytes_that_nothing_reads_are_empty() {
    let passed = |target: &str, client| rows(&explain(target, None, client).expect("a session"), "passed to");
    assert_eq!(passed("tcp://127.0.0.1:1004", None), ["server 10.0.0.2:1883 /n.conf:21"]);
    let unknown = "proxy_pass $things depends on values that are not known here";
    assert_eq!(passed("tcp://127.0.0.1:1005", None), [format!("{unknown} (--client ADDRESS) /n.conf:22")]);
    assert_eq!(passed("tcp://127.0.0.1:1005", Some("10.0.0.1")), [format!("{unknown} /n.conf:22")]);
    let text = explain("tcp://127.0.0.1:1004", None, None).expect("a session");
    assert_eq!(rows(&text, "PREREAD"), ["(nothing) no ssl_preread, mqtt_preread or rdp_preread"]);
}

#[test]
fn the_client_address_decides_access_and_networks() {
    for (client, verdict, server) in [
        ("10.1.2.3", "may pass", "server 10.0.0.7:1 /n.conf:15"),
        ("10.2.2.3", "may pass", "server 10.0.0.6:1 /n.conf:15"),
        (
            "192.0.2.1",
            "is refused with status 403",
            "server far.example:1 its name cannot be resolved: there is no resolver /n.conf:15",
        ),
    ] {
        let text = explain("tcp://localhost:1000", None, Some(client)).expect("a session");
        let judged = rows(&text, "ACCESS").pop().expect("a verdict");
        assert_eq!(judged, format!("({client}) {verdict} /n.conf:15"));
        assert_eq!(rows(&text, "passed to"), [server]);
    }
}

/// Rules of the server that a name chooses apply as well.
#[test]
fn the_chosen_server_has_a_say_on_access() {
    let access =
        |sni, client| rows(&explain("tcp://127.0.0.1:1003", sni, Some(client)).expect("a session"), "ACCESS");
    let rule = "deny 192.0.2.0/24 /n.conf:25";
    let refused = "(192.0.2.1) is refused with status 403 /n.conf:25";
    assert_eq!(access(Some("closed.example"), "192.0.2.1"), [rule, refused]);
    assert_eq!(access(Some("closed.example"), "10.0.0.1"), [rule]);
    assert_eq!(access(Some("other.example"), "192.0.2.1"), ["(nothing) no allow and deny"]);
}

#[test]
fn datagrams_end_sessions() {
    let text = explain("udp://127.0.0.1:53", None, None).expect("a session");
    assert_eq!(rows(&text, "session")[0], "listener 0.0.0.0:53 udp /n.conf:16");
    assert_eq!(
        rows(&text, "end of the session"),
        [
            "proxy_timeout 1h without a byte in either direction /n.conf:13",
            "proxy_requests 3 the datagram after so many begins another session /n.conf:16",
            "proxy_responses 1 the session ends after so many answers to each datagram /n.conf:16"
        ]
    );
    let text = explain("udp://127.0.0.1:514", None, None).expect("a session");
    let ends = rows(&text, "end of the session");
    assert_eq!(ends[0], "proxy_timeout 0 at once: 0 does not mean never /n.conf:17");
    assert!(ends[2].starts_with("proxy_responses (unset) any number of answers may come"), "{ends:?}");
}

#[test]
fn other_targets_are_refused_in_words() {
    for (target, words) in [
        ("http://127.0.0.1:80/", "expected tcp://, tls:// or udp://"),
        ("tcp://127.0.0.1:80", "http listens there"),
        ("tcp://127.0.0.1:53", "nothing listens there"),
        ("udp://127.0.0.1:443", "nothing listens there"),
        ("tcp://[::1]:443", "nothing listens there"),
        ("tcp://127.0.0.1", "needs a port"),
    ] {
        let why = explain(target, None, None).expect_err(target);
        assert!(why.contains(words), "{target}: {why}");
    }
}

/// The sockets of `acme_dns_port` and `acme_http_port` belong to no server.
#[test]
fn challenges_are_answered_by_no_server() {
    for target in ["udp://127.0.0.1:5300", "tcp://127.0.0.1:5300"] {
        let text = explain(target, None, None).expect_err("no session");
        assert!(text.ends_with("challenges of ACME are answered there, and no server is"), "{text}");
    }
}
