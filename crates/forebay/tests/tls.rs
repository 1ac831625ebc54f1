//! Encrypted connections: OpenSSL's client and curl on one side.

use crate::harness::{Server, Site, wait_for};
use std::io::Write;
use std::process::{Command, Stdio};

pub fn openssl(site: &Site, args: &str) {
    let done =
        Command::new("openssl").args(args.split(' ')).current_dir(site.dir()).output().expect("openssl");
    assert!(done.status.success(), "openssl {args}: {}", String::from_utf8_lossy(&done.stderr));
}

/// A site with certificates of both kinds, all signed by themselves.
pub fn site(servers: &str) -> Site {
    let site = Site::new(&format!(
        "worker_processes 1; error_log logs/error.log info; pid logs/nginx.pid; events {{}}\n\
         http {{ access_log off; root %DIR%/html; client_body_temp_path %DIR%/body;\n\
         ssl_certificate rsa.crt; ssl_certificate_key rsa.key; {servers} }}"
    ));
    for (name, key) in
        [("rsa", "rsa:2048"), ("ec", "ec -pkeyopt ec_paramgen_curve:P-256"), ("client", "rsa:2048")]
    {
        openssl(
            &site,
            &format!(
                "req -x509 -newkey {key} -nodes -keyout {name}.key -out {name}.crt -days 30 -subj /CN={name}"
            ),
        );
    }
    site.write("html/index.html", "hello");
    site
}

/// Sends a request by `openssl s_client`; gives what it prints, the answer included.
pub fn s_client(server: &Server, port: usize, args: &str, request: &str) -> String {
    let mut child = Command::new("openssl")
        .args(["s_client", "-connect", &server.addr(port).to_string(), "-ign_eof"])
        .args(args.split_whitespace())
        .current_dir(server.site.dir())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("openssl");
    // It may have ended already, refused.
    let _ = child.stdin.take().expect("stdin").write_all(request.as_bytes());
    let done = child.wait_with_output().expect("end");
    [done.stdout, done.stderr].iter().map(|b| String::from_utf8_lossy(b).into_owned()).collect()
}

pub const GET: &str = "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";

/// Without `ssl_prefer_server_ciphers` the cheapest suite is taken that the client has, unless the client shows
/// that AES is slow for it.
#[test]
fn the_suite_is_chosen_by_what_it_costs() {
    let server = Server::start_on(site(
        "server { listen 127.0.0.1:%PORT0% ssl; return 200 \"is $ssl_cipher\\n\"; }
         server { listen 127.0.0.1:%PORT1% ssl; ssl_prefer_server_ciphers off; return 200 \"is $ssl_cipher\\n\"; }
         server { listen 127.0.0.1:%PORT2% ssl; ssl_prefer_server_ciphers on; return 200 \"is $ssl_cipher\\n\"; }",
    ));
    const AES: &str =
        "-tls1_3 -ciphersuites TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256:TLS_AES_128_GCM_SHA256";
    const SLOW_AES: &str = "-tls1_3 -ciphersuites TLS_CHACHA20_POLY1305_SHA256:TLS_AES_128_GCM_SHA256";
    const OLD: &str = "-tls1_2 -cipher ECDHE-RSA-AES256-GCM-SHA384:ECDHE-RSA-AES128-GCM-SHA256";
    for (port, args, suite) in [
        (0, AES, "TLS_AES_128_GCM_SHA256"),
        (0, SLOW_AES, "TLS_CHACHA20_POLY1305_SHA256"),
        (0, OLD, "ECDHE-RSA-AES128-GCM-SHA256"),
        (1, AES, "TLS_AES_256_GCM_SHA384"),
        (1, OLD, "ECDHE-RSA-AES256-GCM-SHA384"),
        (2, SLOW_AES, "TLS_CHACHA20_POLY1305_SHA256"),
        (2, AES, "TLS_AES_256_GCM_SHA384"),
    ] {
        let said = s_client(&server, port, args, GET);
        assert!(said.contains(&format!("is {suite}\n")), "{port} {args}: {said}");
    }
}

#[test]
fn versions_ciphers_and_both_kinds_of_keys() {
    let server = Server::start_on(site(
        "ssl_certificate ec.crt; ssl_certificate_key ec.key;\n\
         server { listen 127.0.0.1:%PORT0% ssl; return 200 \"$ssl_protocol $ssl_cipher $https $scheme\\n\"; }",
    ));
    let get = |args: &str| s_client(&server, 0, args, GET);
    assert!(get("-tls1_3").contains("\nTLSv1.3 TLS_AES_128_GCM_SHA256 on https\n"));
    for cipher in [
        "ECDHE-RSA-AES128-GCM-SHA256",
        "ECDHE-ECDSA-AES256-GCM-SHA384",
        "ECDHE-RSA-CHACHA20-POLY1305",
        "ECDHE-ECDSA-CHACHA20-POLY1305",
    ] {
        let got = get(&format!("-tls1_2 -cipher {cipher}"));
        assert!(got.contains(&format!("\nTLSv1.2 {cipher} on https\n")), "{cipher}: {got}");
        let own = if cipher.contains("ECDSA") { "subject=CN = ec" } else { "subject=CN = rsa" };
        assert!(got.contains(own), "{cipher}");
    }
    assert!(
        get("-tls1_3 -ciphersuites TLS_CHACHA20_POLY1305_SHA256").contains("TLS_CHACHA20_POLY1305_SHA256 on")
    );
    let refused = get("-tls1_2 -cipher AES256-SHA");
    assert!(refused.contains("sslv3 alert handshake failure"), "{refused}");
    // Plain HTTP is told so, and bytes that are neither end the connection.
    let plain = String::from_utf8_lossy(&server.raw(GET.as_bytes())).into_owned();
    assert!(plain.starts_with("HTTP/1.1 400") && plain.contains("plain HTTP request was sent to HTTPS port"));
    assert_eq!(server.raw(&[0x16, 3, 1, 0, 5, 9, 9, 9, 9, 9]).first(), Some(&21), "an alert");
}

#[test]
fn files_of_every_size_arrive_whole_and_uploads_too() {
    let site = site(
        "server { listen 127.0.0.1:%PORT0% ssl; client_max_body_size 64m; location /up/ { \
         proxy_pass https://127.0.0.1:%PORT1%/; } }\n\
         server { listen 127.0.0.1:%PORT1% ssl; client_max_body_size 64m; ssl_buffer_size 4k; \
         location /len { proxy_pass http://127.0.0.1:%PORT2%; } }\n\
         server { listen 127.0.0.1:%PORT2%; client_max_body_size 64m; return 200 $content_length; }",
    );
    for size in [1usize, 5_000, 70_000, 1_000_000, 5_000_000] {
        let text: String = (0..size).map(|i| char::from(b'a' + (i * 7 % 26) as u8)).collect();
        site.write(&format!("html/{size}"), &text);
    }
    let server = Server::start_on(site);
    let curl = |args: &[&str]| {
        let done = Command::new("curl").args(["-sk", "--max-time", "30"]).args(args).output().expect("curl");
        assert!(done.status.success(), "{args:?}: {:?}\n{}", done.status, server.error_log());
        done.stdout
    };
    for size in ["1", "5000", "70000", "1000000", "5000000"] {
        let want = server.site.read(&format!("html/{size}"));
        for (port, path) in [(0, ""), (1, ""), (0, "/up")] {
            for version in ["--tls-max=1.2", "--tlsv1.3"] {
                let version: Vec<&str> = version.split('=').collect();
                let url = format!("https://{}{path}/{size}", server.addr(port));
                let got = curl(&[version.as_slice(), &[url.as_str()]].concat());
                assert!(got == want.as_bytes(), "{url}: {} bytes", got.len());
            }
        }
    }
    let file = server.site.dir().join("html/5000000");
    let url = format!("https://{}/up/len", server.addr(0));
    let got = curl(&["-X", "POST", "--data-binary", &format!("@{}", file.display()), &url]);
    assert_eq!(String::from_utf8_lossy(&got), "5000000");
}

/// Files of middle size are kept in memory for TLS when they are asked for again: they stay right.
#[test]
fn a_file_that_is_kept_for_tls_is_the_one_on_disk() {
    let server = Server::start_on(site("server { listen 127.0.0.1:%PORT0% ssl; http2 on; }"));
    let url = format!("https://{}/m", server.addr(0));
    let text = |seed: usize| -> String {
        (0..600_000).map(|i: usize| char::from(b'a' + (i * seed % 26) as u8)).collect()
    };
    let get = |args: &[&str]| {
        let done = Command::new("curl").args(["-sk", "--max-time", "30"]).args(args).arg(&url).output();
        let done = done.expect("curl");
        assert!(done.status.success(), "{args:?}: {:?}\n{}", done.status, server.error_log());
        done.stdout
    };
    for seed in [3, 7] {
        let text = text(seed);
        server.site.write("html/m", &text);
        for _ in 0..3 {
            for version in ["--http1.1", "--http2"] {
                assert!(get(&[version]) == text.as_bytes(), "{seed} {version}");
                let part = get(&[version, "-r", "200000-499999"]);
                assert!(part == text.as_bytes()[200_000..500_000], "{seed} {version}");
                assert!(get(&[version, "--limit-rate", "20M"]) == text.as_bytes(), "{seed} {version}");
            }
        }
    }
}

/// Servers are found by the name whatever its case, and the variable has it as the client wrote it.
#[test]
fn the_name_is_shown_as_the_client_wrote_it() {
    let server = Server::start_on(site(
        "server { listen 127.0.0.1:%PORT0% ssl; return 200 other; }\n\
         server { listen 127.0.0.1:%PORT0% ssl; server_name foo.example ~^(?<first>.+)[.]b[.]test$;\n\
           ssl_verify_client optional_no_ca; return 200 \"[$ssl_server_name|$host|$first]\"; }",
    ));
    let get = |name: &str, host: &str| {
        let request = GET.replace("Host: h", &format!("Host: {host}"));
        s_client(&server, 0, &format!("-servername {name}"), &request)
    };
    for (name, host, told) in [
        ("FoO.example", "foo.EXAMPLE", "[FoO.example|foo.example|]"),
        ("foo.example.", "foo.example", "[foo.example.|foo.example|]"),
        ("A.b.test", "a.b.test", "[A.b.test|a.b.test|a]"),
    ] {
        let got = get(name, host);
        assert!(got.contains(told), "{name}: {got}");
    }
}

#[test]
fn names_choose_certificates_and_refused_names_get_an_alert() {
    let server = Server::start_on(site(
        "server { listen 127.0.0.1:%PORT0% ssl; ssl_reject_handshake on; }\n\
         server { listen 127.0.0.1:%PORT0% ssl; server_name a.test; return 200 a; }\n\
         server { listen 127.0.0.1:%PORT0% ssl; server_name *.b.test; ssl_certificate ec.crt; \
         ssl_certificate_key ec.key; ssl_protocols TLSv1.2; return 200 \"$ssl_server_name $ssl_protocol\\n\"; }\n\
         server { listen 127.0.0.1:%PORT0% ssl; server_name v.test; ssl_certificate $ssl_server_name.crt; \
         ssl_certificate_key ec.key; return 200 v; }",
    ));
    let get = |name: &str| {
        s_client(
            &server,
            0,
            &format!("-servername {name}"),
            &GET.replace("Host: h", &format!("Host: {name}")),
        )
    };
    assert!(get("a.test").contains("subject=CN = rsa"));
    let b = get("x.b.test");
    assert!(b.contains("subject=CN = ec") && b.contains("\nx.b.test TLSv1.2\n"), "{b}");
    assert!(get("other.test").contains("unrecognized name"));
    assert!(!get("v.test").contains("200 OK"), "there is no such file");
    // The worker reads it as the user that it is.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(server.site.dir().join("ec.key"), open).expect("mode");
    std::fs::copy(server.site.dir().join("ec.crt"), server.site.dir().join("v.test.crt")).expect("copy");
    assert!(get("v.test").contains("subject=CN = ec"));
    assert!(server.error_log().contains("cannot load certificate"));
}

#[test]
fn sessions_are_resumed_where_they_may_be() {
    let tls = "return 200 \"reused:$ssl_session_reused\\n\";";
    let site = site(&format!(
        "server {{ listen 127.0.0.1:%PORT0% ssl; {tls} }}\n\
         server {{ listen 127.0.0.1:%PORT1% ssl; ssl_session_tickets off; {tls} }}\n\
         server {{ listen 127.0.0.1:%PORT2% ssl; ssl_session_tickets off; ssl_session_cache shared:S:1m; {tls} }}\n\
         server {{ listen 127.0.0.1:%PORT3% ssl; ssl_session_ticket_key k.key; {tls} }}"
    ));
    std::fs::write(site.dir().join("k.key"), [7; 80]).expect("key");
    let server = Server::start_on(site);
    for (port, resumes) in [(0, true), (1, false), (2, true), (3, true)] {
        for version in ["-tls1_2", "-tls1_3"] {
            let first = s_client(&server, port, &format!("{version} -sess_out s{port}"), GET);
            assert!(first.contains("\nreused:.\n"), "{port} {version}");
            if !server.site.dir().join(format!("s{port}")).exists() {
                assert!(!resumes, "{port} {version}: no session");
                continue;
            }
            let again = s_client(&server, port, &format!("{version} -sess_in s{port}"), GET);
            let want = if resumes { "\nreused:r\n" } else { "\nreused:.\n" };
            assert!(again.contains(want), "{port} {version}: {again}");
        }
    }
}

#[test]
fn client_certificates_are_judged() {
    let server = Server::start_on(site(
        "ssl_client_certificate client.crt;\n\
         server { listen 127.0.0.1:%PORT0% ssl; ssl_verify_client on; return 200 \
         \"$ssl_client_verify $ssl_client_s_dn\\n\"; }\n\
         server { listen 127.0.0.1:%PORT1% ssl; ssl_verify_client optional; return 200 \"$ssl_client_verify\\n\"; }\n\
         server { listen 127.0.0.1:%PORT2% ssl; ssl_verify_client optional_no_ca; return 200 \
         \"$ssl_client_verify\\n\"; }",
    ));
    let with = |port, name: &str| s_client(&server, port, &format!("-cert {name}.crt -key {name}.key"), GET);
    assert!(with(0, "client").contains("\nSUCCESS CN=client\n"));
    assert!(with(0, "rsa").contains("400 The SSL certificate error"));
    assert!(s_client(&server, 0, "", GET).contains("400 No required SSL certificate was sent"));
    assert!(s_client(&server, 1, "", GET).contains("\nNONE\n"));
    assert!(with(2, "ec").contains("\nFAILED:self-signed certificate\n"));
    server.wait_for_log("client SSL certificate verify error: (18:self-signed certificate)", 1);
}

#[test]
fn upstreams_are_judged() {
    let server = Server::start_on(site(
        "server { listen 127.0.0.1:%PORT1% ssl; return 200 \"[$ssl_server_name]\"; }\n\
         server { listen 127.0.0.1:%PORT0%; proxy_ssl_server_name on; proxy_ssl_verify on;\n\
         location /good { proxy_ssl_trusted_certificate rsa.crt; proxy_ssl_name rsa; \
         proxy_pass https://127.0.0.1:%PORT1%; }\n\
         location /name { proxy_ssl_trusted_certificate rsa.crt; proxy_ssl_name other; \
         proxy_pass https://127.0.0.1:%PORT1%; }\n\
         location /trust { proxy_ssl_trusted_certificate ec.crt; proxy_ssl_name rsa; \
         proxy_pass https://127.0.0.1:%PORT1%; } }",
    ));
    assert!(server.get("/good").ends_with("[rsa]"));
    assert!(server.get("/name").contains("502 Bad Gateway"));
    assert!(server.get("/trust").contains("502 Bad Gateway"));
    server.wait_for_log(
        "upstream SSL certificate does not match \"other\" while SSL handshaking to upstream",
        1,
    );
    server.wait_for_log("upstream SSL certificate verify error: (18:self-signed certificate)", 1);
}

#[test]
fn half_a_handshake_is_given_up() {
    let server =
        Server::start_on(site("server { listen 127.0.0.1:%PORT0% ssl; client_header_timeout 300ms; }"));
    let mut stream = std::net::TcpStream::connect(server.addr(0)).expect("connect");
    stream.write_all(&[0x16, 3, 1, 0, 200, 1]).expect("write");
    stream.set_read_timeout(Some(std::time::Duration::from_secs(10))).expect("timeout");
    assert_eq!(std::io::Read::read(&mut stream, &mut [0; 10]).expect("end"), 0);
    server.wait_for_log("client timed out (110: Connection timed out) while SSL handshaking", 1);
}

#[test]
fn mistakes_are_told_in_nginx_words() {
    let mistakes = [
        (
            "ssl_certificate nope.crt; ssl_certificate_key rsa.key;",
            "nope.crt\": BIO_new_file() failed (SSL: error:80000002:system library::No such file or directory",
        ),
        ("ssl_certificate rsa.crt; ssl_certificate_key nope.key;", "cannot load certificate key"),
        ("ssl_certificate rsa.crt; ssl_certificate_key other.key;", "key values mismatch"),
        ("ssl_certificate rsa.crt;", "no \"ssl_certificate_key\" is defined for certificate \"rsa.crt\""),
        ("", "no \"ssl_certificate\" is defined for the \"listen ... ssl\" directive in"),
        (
            "ssl_ciphers AES256-SHA;",
            "SSL_CTX_set_cipher_list(\"AES256-SHA\") failed (SSL: error:0A0000B9:SSL routines::no cipher match)",
        ),
        ("ssl_ecdh_curve foo;", "group 'foo' cannot be set"),
        ("ssl_session_cache foo;", "invalid session cache \"foo\""),
        ("ssl_session_ticket_key rsa.key;", "must be 48 or 80 bytes"),
        ("ssl_certificate rsa.crt; ssl_certificate_key locked.key;", "bad password read"),
        // A list that cannot be read would leave revocations out.
        ("ssl_certificate rsa.crt; ssl_certificate_key rsa.key; ssl_crl bad.crl;", "Type=X509_CRL"),
    ];
    for (lines, message) in mistakes {
        let site =
            Site::new(&format!("events {{}}\nhttp {{ server {{ listen 127.0.0.1:%PORT0% ssl; {lines} }} }}"));
        site.write("bad.crl", "-----BEGIN X509 CRL-----\nMAMCAQE=\n-----END X509 CRL-----\n");
        for name in ["rsa", "other"] {
            openssl(
                &site,
                &format!("req -x509 -newkey rsa:2048 -nodes -keyout {name}.key -out {name}.crt -subj /CN=x"),
            );
        }
        openssl(&site, "rsa -in rsa.key -aes256 -passout pass:x -out locked.key");
        let told = site.run(&["-t"]);
        let text = String::from_utf8_lossy(&told.stderr).into_owned();
        assert!(!told.status.success(), "{lines}");
        assert!(text.contains("[emerg]"), "{lines}: {text}");
        assert!(text.contains(message), "{lines}: {text}");
    }
}

/// A client that is refused while it still sends gets the alert, and no reset in its place.
#[test]
fn an_alert_arrives_before_the_end() {
    let server = Server::start_on(site("server { listen 127.0.0.1:%PORT0% ssl; return 200 fine; }"));
    for begin in [&[22, 3, 1, 0, 5, 9, 9, 9, 9, 9][..], &[22, 3, 1, 255, 255]] {
        let mut stream = std::net::TcpStream::connect(server.addr(0)).expect("connect");
        stream.write_all(&[begin, &[7; 40_000]].concat()).expect("write");
        let mut got = Vec::new();
        std::io::Read::read_to_end(&mut stream, &mut got).expect("an end");
        assert_eq!((got.len(), got[0]), (7, 21), "{got:?}");
    }
}

/// A ClientHello of TLS 1.2 with X25519 and ECDHE-RSA-AES128-GCM-SHA256.
fn old_hello() -> Vec<u8> {
    let extensions = [
        &[0, 10, 0, 4, 0, 2, 0, 29][..],
        &[0, 11, 0, 2, 1, 0],
        &[0, 13, 0, 6, 0, 4, 4, 1, 8, 4],
        &[255, 1, 0, 1, 0],
    ]
    .concat();
    let length = |bytes: &[u8]| (bytes.len() as u16).to_be_bytes();
    let fixed = [&[3, 3][..], &[7; 32], &[0, 0, 2, 0xc0, 0x2f, 1, 0]].concat();
    let body = [&fixed[..], &length(&extensions), &extensions].concat();
    let message = [&[1, 0][..], &length(&body), &body].concat();
    [&[22, 3, 1][..], &length(&message), &message].concat()
}

/// A record between the pieces of a message ends the handshake by an alert, as in nginx.
#[test]
fn an_interleaved_handshake_ends_with_an_alert() {
    use std::io::Read;
    let server = Server::start_on(site("server { listen 127.0.0.1:%PORT0% ssl; return 200 fine; }"));
    let mut stream = std::net::TcpStream::connect(server.addr(0)).expect("connect");
    stream.write_all(&old_hello()).expect("write");
    let mut got = Vec::new();
    // ServerHelloDone is the last message of the server's flight.
    while !got.ends_with(&[14, 0, 0, 0]) {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("a flight");
        got.push(byte[0]);
    }
    let piece = [&[22, 3, 3, 0, 9, 16, 0, 0, 33, 32][..], &[7; 4]].concat();
    stream.write_all(&[&piece[..], &[20, 3, 3, 0, 1, 1]].concat()).expect("write");
    let mut end = Vec::new();
    stream.read_to_end(&mut end).expect("an end");
    assert_eq!(end, [21, 3, 3, 0, 2, 2, 10]);
}

/// Passes bytes on, but holds back what the client sends behind its ClientHello until it sends more.
fn joiner(upstream: std::net::SocketAddr) -> std::net::SocketAddr {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let addr = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.expect("a connection");
            let mut server = TcpStream::connect(upstream).expect("connect");
            let (mut from, mut to) = (server.try_clone().expect("clone"), client.try_clone().expect("clone"));
            std::thread::spawn(move || std::io::copy(&mut from, &mut to));
            std::thread::spawn(move || {
                let mut read = |out: &mut Vec<u8>| {
                    let mut some = [0; 4096];
                    let n = client.read(&mut some).unwrap_or(0);
                    out.extend_from_slice(&some[..n]);
                    n
                };
                let mut hello = Vec::new();
                read(&mut hello);
                server.write_all(&hello).expect("write");
                let mut last = Vec::new();
                // ChangeCipherSpec and Finished are shorter, with the request it is longer.
                while last.len() < 200 && read(&mut last) > 0 {}
                let _ = server.write_all(&last);
                let _ = std::io::copy(&mut client, &mut server);
            });
        }
    });
    addr
}

/// A request that comes in one piece with the end of the handshake waits for nothing more.
#[test]
fn a_request_may_come_with_the_end_of_the_handshake() {
    let server = Server::start_on(site("server { listen 127.0.0.1:%PORT0% ssl; return 200 \"fine\\n\"; }"));
    let addr = joiner(server.addr(0));
    let request = format!("GET / HTTP/1.1\r\nHost: h\r\nX: {}\r\nConnection: close\r\n\r\n", "x".repeat(200));
    let mut child = Command::new("openssl")
        .args(["s_client", "-connect", &addr.to_string(), "-ign_eof", "-tls1_3"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("openssl");
    child.stdin.take().expect("stdin").write_all(request.as_bytes()).expect("write");
    let done = child.wait_with_output().expect("end");
    assert!(String::from_utf8_lossy(&done.stdout).contains("\nfine\n"), "{done:?}");
}

/// Configurations that were replaced are freed: memory does not grow with reloads.
#[test]
fn reloads_of_many_servers_leave_nothing_behind() {
    const SERVERS: usize = 350;
    let conf = |version: usize| {
        let servers: String = (0..SERVERS)
            .map(|i| {
                format!(
                    "server {{ listen 127.0.0.1:%PORT0% ssl; server_name s{i}.test; ssl_certificate ec.crt; \
                     ssl_certificate_key ec.key; location / {{ return 200 v{version}; }} location /{i} {{ expires {i}s; }} }}\n"
                )
            })
            .collect();
        format!("server {{ listen 127.0.0.1:%PORT1%; return 200 v{version}; }}\n{servers}")
    };
    let site = site(&conf(0));
    let text = site.read("nginx.conf");
    let server = Server::start_on(site);
    let resident = |pid: i32| -> i64 {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
        let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).expect("VmRSS");
        line.trim_end_matches("kB").trim().parse().expect("a number")
    };
    let worker = wait_for("a worker", || server.workers(server.pid()).first().copied());
    let mut before = [0, 0];
    for version in 1..=9 {
        server.site.write("nginx.conf", &text.replace("v0;", &format!("v{version};")));
        server.signal(nix::sys::signal::Signal::SIGHUP);
        let request = b"GET / HTTP/1.0\r\n\r\n";
        let serves =
            || crate::harness::raw(server.addr(1), request).ends_with(format!("v{version}").as_bytes());
        wait_for("the new configuration", || serves().then_some(()));
        if version == 3 {
            before = [server.pid(), worker].map(resident);
        }
    }
    let now = [server.pid(), worker].map(resident);
    for (before, now) in before.into_iter().zip(now) {
        // Each configuration takes about 4 MB.
        assert!(now - before < 8_000, "{before} KiB, then {now} KiB");
    }
}

/// Every name that OpenSSL 3.0 knows is taken; what is not served is told.
#[test]
fn curves_are_known_by_openssls_names() {
    let server = Server::start_on(site(
        "server { listen 127.0.0.1:%PORT0% ssl; ssl_ecdh_curve secp521r1; return 200 \"on $ssl_curve\\n\"; }
         server { listen 127.0.0.1:%PORT1% ssl; ssl_ecdh_curve sect571r1; return 200 \"on $ssl_curve\\n\"; }
         server { listen 127.0.0.1:%PORT2% ssl; ssl_ecdh_curve X448:K-283:secp384r1; return 200 \"on $ssl_curve\\n\"; }",
    ));
    for (port, version, curve) in [
        (0, "-tls1_3", "secp521r1"),
        (0, "-tls1_2", "secp521r1"),
        (1, "-tls1_3", "X25519"),
        (2, "-tls1_3", "secp384r1"),
    ] {
        let got = s_client(&server, port, version, GET);
        assert!(got.contains(&format!("on {curve}\n")), "{port} {version}: {got}");
    }
    let told = server.site.run(&["-t"]);
    let told = String::from_utf8_lossy(&told.stderr).into_owned();
    assert!(
        told.contains("[warn] none of the curves \"sect571r1\" is served, the default ones are used"),
        "{told}"
    );
    assert!(told.contains("[warn] curves that are not served: X448:K-283"), "{told}");
}

#[test]
fn locked_keys_are_opened_by_their_passwords() {
    let site = site(
        "server { listen 127.0.0.1:%PORT0% ssl; ssl_certificate_key aes.key; ssl_certificate rsa.crt; \
         ssl_password_file words; }\n\
         server { listen 127.0.0.1:%PORT1% ssl; ssl_certificate_key old.key; ssl_certificate rsa.crt; \
         ssl_password_file words; }\n\
         server { listen 127.0.0.1:%PORT2% ssl; ssl_certificate_key des.key; ssl_certificate rsa.crt; \
         ssl_password_file words; }",
    );
    openssl(&site, "pkcs8 -topk8 -in rsa.key -v2 aes-256-cbc -passout pass:second -out aes.key");
    openssl(&site, "rsa -in rsa.key -aes128 -traditional -passout pass:second -out old.key");
    openssl(&site, "pkcs8 -topk8 -in rsa.key -v2 des3 -passout pass:second -out des.key");
    site.write("words", "first\nsecond\n");
    let server = Server::start_on(site);
    for port in 0..3 {
        wait_for("an answer", || s_client(&server, port, "", GET).contains("HTTP/1.1 ").then_some(()));
    }
}

#[test]
fn renewed_certificates_are_used_without_a_reload() {
    let server = Server::start_on(site("server { listen 127.0.0.1:%PORT0% ssl; return 200 x; }"));
    let subject =
        |name: &str| s_client(&server, 0, "", GET).contains(&format!("subject=CN = {name}")).then_some(());
    assert!(subject("rsa").is_some());
    let copy = |from: &str, to: &str| {
        std::fs::copy(server.site.dir().join(from), server.site.dir().join(to)).expect("copy");
    };
    // Half of a new pair is refused.
    copy("client.crt", "rsa.crt");
    wait_for("the refusal", || {
        server.error_log().contains("renewed certificates are not used").then_some(())
    });
    assert!(subject("rsa").is_some());
    copy("client.key", "rsa.key");
    wait_for("the new certificate", || subject("client"));
    assert!(server.error_log().contains("certificates were renewed"));
}

#[test]
fn keys_may_change_while_a_connection_is_idle() {
    fn until(from: &mut impl std::io::Read, what: &str) {
        let (mut seen, mut buf) = (String::new(), [0; 4096]);
        while !seen.contains(what) {
            let n = from.read(&mut buf).expect("output");
            assert!(n > 0, "{what}: {seen}");
            seen.push_str(&String::from_utf8_lossy(&buf[..n]));
        }
    }
    let server = Server::start_on(site(
        "keepalive_timeout 10s; server { listen 127.0.0.1:%PORT0% ssl; return 200 fine; }",
    ));
    let mut child = Command::new("openssl")
        .args(["s_client", "-tls1_3", "-connect", &server.addr(0).to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("openssl");
    let mut input = child.stdin.take().expect("stdin");
    let mut output = child.stdout.take().expect("stdout");
    let mut told = child.stderr.take().expect("stderr");
    for _ in 0..3 {
        input.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").expect("request");
        until(&mut output, "fine");
        // A line that begins with `K` changes the keys and asks for the same.
        input.write_all(b"K\n").expect("change");
        until(&mut told, "KEYUPDATE");
    }
    drop(input);
    child.wait().expect("end");
}

#[test]
fn what_both_sides_signed_by_is_known() {
    let server = Server::start_on(site(
        "ssl_certificate ec.crt; ssl_certificate_key ec.key; ssl_verify_client optional_no_ca;\n\
         server { listen 127.0.0.1:%PORT0% ssl; return 200 \"[$ssl_sigalg|$ssl_client_sigalg]\\n\"; }",
    ));
    let get = |args: &str| s_client(&server, 0, args, GET);
    assert!(get("-sigalgs RSA-PSS+SHA384").contains("[rsa_pss_rsae_sha384|]"));
    assert!(get("-tls1_2 -sigalgs RSA+SHA256").contains("[rsa_pkcs1_sha256|]"));
    let both = get("-sigalgs ECDSA+SHA256:RSA-PSS+SHA256 -cert ec.crt -key ec.key -sess_out s");
    assert!(both.contains("[ecdsa_secp256r1_sha256|ecdsa_secp256r1_sha256]"), "{both}");
    // Whoever comes back does not sign again.
    assert!(get("-sess_in s").contains("[|]"));
}

#[test]
fn sessions_outlive_a_reload_and_are_shared_by_processes_with_the_same_key() {
    let tls = "return 200 \"reused:$ssl_session_reused\\n\";";
    let conf = format!(
        "server {{ listen 127.0.0.1:%PORT0% ssl; {tls} }}\n\
         server {{ listen 127.0.0.1:%PORT1% ssl; ssl_session_tickets off; ssl_session_cache shared:S:1m; {tls} }}\n\
         server {{ listen 127.0.0.1:%PORT2% ssl; ssl_session_ticket_key k.key; {tls} }}"
    );
    let one = site(&conf);
    std::fs::write(one.dir().join("k.key"), [9; 80]).expect("key");
    let two = site(&conf);
    // The same certificates: a session is good only where it could have begun.
    for name in ["rsa.crt", "rsa.key", "k.key"] {
        std::fs::copy(one.dir().join(name), two.dir().join(name)).expect("copy");
    }
    let (one, two) = (Server::start_on(one), Server::start_on(two));
    let kinds = || (0..3).flat_map(|port| ["-tls1_2", "-tls1_3"].map(|version| (port, version)));
    let file = |port: usize, version: &str| one.site.dir().join(format!("s{port}{version}"));
    for (port, version) in kinds() {
        let file = file(port, version);
        let first = s_client(&one, port, &format!("{version} -sess_out {}", file.display()), GET);
        assert!(first.contains("\nreused:.\n"), "{port} {version}");
    }
    one.signal(nix::sys::signal::Signal::SIGHUP);
    one.wait_for_log("reconfiguring", 1);
    for (port, version) in kinds() {
        let with = format!("{version} -sess_in {}", file(port, version).display());
        // In the other process only what its own key has sealed too; before this one, which may take it away.
        let there = s_client(&two, port, &with, GET);
        assert!(
            there.contains(if port == 2 { "\nreused:r\n" } else { "\nreused:.\n" }),
            "{port} {version}: {there}"
        );
        let here = s_client(&one, port, &with, GET);
        assert!(here.contains("\nreused:r\n"), "{port} {version}: {here}");
    }
}

#[test]
fn early_data_is_taken_once_and_marked() {
    let site = site(
        "ssl_early_data on; ssl_session_cache shared:S:1m;\n\
         server { listen 127.0.0.1:%PORT0% ssl; return 200 \"early:[$ssl_early_data] reused:$ssl_session_reused\\n\"; }\n\
         server { listen 127.0.0.1:%PORT1% ssl; ssl_early_data off; return 200 \"early:[$ssl_early_data]\\n\"; }",
    );
    site.write("early", GET);
    let server = Server::start_on(site);
    let first = s_client(&server, 0, "-tls1_3 -sess_out s", GET);
    assert!(first.contains("early:[] reused:."), "{first}");
    std::fs::copy(server.site.dir().join("s"), server.site.dir().join("replayed")).expect("copy");
    let early = s_client(&server, 0, "-tls1_3 -sess_in s -early_data early", "");
    assert!(early.contains("Early data was accepted") && early.contains("early:[1] reused:r"), "{early}");
    // The same session, and so the same bytes, a second time: not as early data.
    let again = s_client(&server, 0, "-tls1_3 -sess_in replayed -early_data early", GET);
    assert!(again.contains("Early data was rejected") && !again.contains("early:[1]"), "{again}");
    // However many records come behind it, it is counted once against what is passed over.
    std::fs::write(server.site.dir().join("long"), [b'x'; 9000]).expect("write");
    let long = s_client(&server, 0, "-tls1_3 -sess_in replayed -early_data long", GET);
    assert!(long.contains("Early data was rejected") && long.contains("early:[]"), "{long}");
    let off = s_client(&server, 1, "-tls1_3 -sess_out s2", GET);
    assert!(off.contains("Max Early Data: 0") && off.contains("early:[]"), "{off}");
}

/// sslyze, which `./test` installs. In CI it has to be there.
fn sslyze() -> Option<String> {
    let found = std::env::var("FOREBAY_TEST_SSLYZE").ok().filter(|p| !p.is_empty());
    if found.is_none() {
        assert!(std::env::var_os("CI").is_none(), "FOREBAY_TEST_SSLYZE names no sslyze");
        println!("skipped: FOREBAY_TEST_SSLYZE names no sslyze");
    }
    found
}

#[test]
fn a_scanner_finds_no_weakness_of_the_default_settings() {
    let Some(sslyze) = sslyze() else { return };
    let server = Server::start_on(site(
        "ssl_certificate ec.crt; ssl_certificate_key ec.key;\n\
         server { listen 127.0.0.1:%PORT0% ssl; return 200 ok; }",
    ));
    let json = server.site.dir().join("scan.json");
    let told = Command::new(sslyze)
        .args(["--mozilla_config=intermediate", &format!("--json_out={}", json.display())])
        .arg(server.addr(0).to_string())
        .output()
        .expect("sslyze");
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    // Keys of certificates stand there as numbers of hundreds of digits.
    let mut digits = 0;
    let mut text = server.site.read("scan.json");
    text.retain(|c| {
        digits = if c.is_ascii_digit() { digits + 1 } else { 0 };
        digits < 16
    });
    let all: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let scan = &all["server_scan_results"][0]["scan_result"];
    let result = |what: &str| {
        assert_eq!(scan[what]["status"], "COMPLETED", "{what}: {told}");
        &scan[what]["result"]
    };
    let suites = |version: &str| -> Vec<String> {
        let all = result(&format!("{version}_cipher_suites"))["accepted_cipher_suites"].as_array();
        let name = |s: &serde_json::Value| s["cipher_suite"]["name"].as_str().expect("a name").to_owned();
        all.expect("a list").iter().map(name).collect()
    };
    for old in ["ssl_2_0", "ssl_3_0", "tls_1_0", "tls_1_1"] {
        assert!(suites(old).is_empty(), "{old}");
    }
    let (v12, v13) = (suites("tls_1_2"), suites("tls_1_3"));
    assert!(v12.len() >= 6 && v13.len() == 3, "{v12:?} {v13:?}");
    for name in &v12 {
        assert!(name.starts_with("TLS_ECDHE_"), "{name}: no forward secrecy");
        assert!(name.contains("_GCM_") || name.contains("_POLY1305_"), "{name}");
    }
    for (what, field, wanted) in [
        ("tls_compression", "supports_compression", false),
        ("openssl_ccs_injection", "is_vulnerable_to_ccs_injection", false),
        ("heartbleed", "is_vulnerable_to_heartbleed", false),
        ("tls_fallback_scsv", "supports_fallback_scsv", true),
        ("session_renegotiation", "is_vulnerable_to_client_renegotiation_dos", false),
        ("session_renegotiation", "supports_secure_renegotiation", true),
        ("tls_extended_master_secret", "supports_ems_extension", true),
    ] {
        assert_eq!(result(what)[field], wanted, "{what}: {}", result(what));
    }
    let robot = result("robot")["robot_result"].to_string();
    assert!(robot.contains("NOT_VULNERABLE"), "{robot}");
    // Mozilla's recommendation holds but for the certificate, which the test has signed itself.
    let (_, verdict) = told.split_once("COMPLIANCE AGAINST").expect("a verdict");
    let faults: Vec<&str> = verdict.lines().filter_map(|l| l.trim().strip_prefix("* ")).collect();
    assert!(faults.iter().all(|f| f.starts_with("certificate") || f.starts_with("rsa_key")), "{faults:?}");
}

#[test]
fn a_certificate_is_judged_by_the_server_that_it_is_for() {
    let server = Server::start_on(site(
        "server { listen 127.0.0.1:%PORT0% ssl default_server; server_name a.test; ssl_client_certificate ec.crt; \
         ssl_verify_client optional; return 200 \"a:$ssl_client_verify\\n\"; }\n\
         server { listen 127.0.0.1:%PORT0% ssl; server_name b.test; ssl_client_certificate client.crt; \
         ssl_verify_client on; return 200 \"b:$ssl_client_verify\\n\"; }",
    ));
    let get = |host: &str, args: &str| {
        s_client(
            &server,
            0,
            &format!("-noservername {args}"),
            &GET.replace("Host: h", &format!("Host: {host}")),
        )
    };
    let ec = "-cert ec.crt -key ec.key";
    assert!(get("a.test", ec).contains("\na:SUCCESS\n"));
    // Judged by a.test, which trusts others.
    let got = get("b.test", ec);
    assert!(got.contains("421 Misdirected Request") && !got.contains("\nb:"), "{got}");
    assert!(get("b.test", "").contains("400 No required SSL certificate was sent"));
    let named = s_client(
        &server,
        0,
        "-servername b.test -cert client.crt -key client.key",
        &GET.replace("Host: h", "Host: b.test"),
    );
    assert!(named.contains("\nb:SUCCESS\n"), "{named}");
}

/// Passes records of TLS 1.3 on and leaves out alerts: nothing says any more that nothing follows.
fn cutter(upstream: std::net::SocketAddr) -> std::net::SocketAddr {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    /// Level, description, type and tag: nothing else is as short.
    const ALERT: usize = 2 + 1 + 16;
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let addr = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.expect("a connection");
            let mut server = TcpStream::connect(upstream).expect("connect");
            let (mut from, mut to) = (client.try_clone().expect("clone"), server.try_clone().expect("clone"));
            std::thread::spawn(move || std::io::copy(&mut from, &mut to));
            std::thread::spawn(move || {
                let mut head = [0; 5];
                while server.read_exact(&mut head).is_ok() {
                    let mut body = vec![0; usize::from(u16::from_be_bytes([head[3], head[4]]))];
                    if server.read_exact(&mut body).is_err() {
                        break;
                    }
                    if body.len() != ALERT && client.write_all(&[head.as_slice(), &body].concat()).is_err() {
                        break;
                    }
                }
                let _ = client.shutdown(std::net::Shutdown::Both);
            });
        }
    });
    addr
}

/// A response that ends with its connection may have been cut off by an attacker. It is sent to the client, but not stored.
#[test]
fn a_response_that_may_be_cut_off_is_not_kept() {
    let origin = crate::harness::origin::start(|mut asked| {
        asked.write(b"HTTP/1.0 200 OK\r\nCache-Control: max-age=60\r\n\r\nhalf a page");
        false
    });
    let behind = Server::start_on(site(&format!(
        "server {{ listen 127.0.0.1:%PORT0% ssl; location / {{ proxy_pass http://{origin}; }} }}"
    )));
    let (whole, cut) = (behind.addr(0), cutter(behind.addr(0)));
    let front = Server::start_on(site(&format!(
        "proxy_cache_path %DIR%/cache keys_zone=c:1m; proxy_cache c; proxy_cache_key $uri; proxy_http_version 1.0; \
         proxy_set_header Connection close; add_header X-Cache $upstream_cache_status; \
         server {{ listen 127.0.0.1:%PORT0%; location /whole {{ proxy_pass https://{whole}; }} \
         location /cut {{ proxy_pass https://{cut}; }} \
         location /stored {{ proxy_cache off; proxy_pass https://{cut}; proxy_store %DIR%/stored; }} }}"
    )));
    let cached = |uri: &str| {
        let got = front.get(uri);
        assert!(got.contains("half a page"), "{uri}: {got}");
        got.contains("X-Cache: HIT")
    };
    // A response is kept a moment after it was sent.
    wait_for("what came whole", || cached("/whole").then_some(()));
    for _ in 0..3 {
        assert!(!cached("/cut"));
    }
    assert!(front.get("/stored").contains("half a page"));
    front.wait_for_log("upstream closed connection without close_notify, response is not kept", 4);
    assert!(!front.error_log().contains("GET /whole"), "it ended as it should");
    assert!(!front.site.dir().join("stored").exists());
}

/// Authorities with the same name, or the same authority twice, are told to clients once.
#[test]
fn names_of_authorities_are_told_once() {
    let site = site(
        "server { listen 127.0.0.1:%PORT0% ssl; ssl_verify_client on; ssl_client_certificate all.crt; return 200 fine; }",
    );
    let (ec, rsa) = (site.read("ec.crt"), site.read("rsa.crt"));
    site.write("all.crt", &[ec.as_str(), &rsa, &ec].concat());
    let server = Server::start_on(site);
    let got = s_client(&server, 0, "", GET);
    let names = got.split("Acceptable client certificate CA names\n").nth(1).expect("names");
    let names: Vec<&str> = names.lines().take_while(|l| l.starts_with("CN")).collect();
    assert_eq!(names, ["CN = ec", "CN = rsa"], "{got}");
}

/// As with nginx: what is kept in the process and what clients keep are two things.
#[test]
fn tickets_do_not_depend_on_the_cache() {
    let server = Server::start_on(site(
        "server { listen 127.0.0.1:%PORT0% ssl; ssl_session_cache off; return 200 \"is $ssl_session_reused;\"; }",
    ));
    for version in ["tls1_2", "tls1_3"] {
        let first = s_client(&server, 0, &format!("-{version} -sess_out {version}"), GET);
        assert!(first.contains("is .;") && first.contains("lifetime hint: 300 (seconds)"), "{first}");
        let again = s_client(&server, 0, &format!("-{version} -sess_in {version}"), GET);
        assert!(again.contains("is r;"), "{again}");
    }
}

/// The names in a certificate get into headers and logs: no character in them may end a line or imitate other text.
#[test]
fn names_of_certificates_are_escaped() {
    let site = site(
        "server { listen 127.0.0.1:%PORT0% ssl; ssl_verify_client optional_no_ca; \
         return 200 \"\\n<$ssl_client_s_dn_legacy>\\n<$ssl_client_s_dn>\\n\"; }",
    );
    site.write(
        "names.cnf",
        "[req]\ndistinguished_name=dn\nprompt=no\nutf8=yes\nstring_mask=default\n[dn]\nC=DE\nO=a/CN=b+c\\, \\\\ d\n\
         1.OU=x\\r\\nSet-Cookie: y\n2.OU=\u{e9}\u{20ac}\nbusinessCategory=Private\n1.2.3.4.5=odd\nCN=<end>\n",
    );
    openssl(
        &site,
        "req -x509 -config names.cnf -newkey rsa:2048 -nodes -keyout names.key -out names.crt -days 9",
    );
    openssl(
        &site,
        "req -x509 -subj /CN=a+OU=b/O=x -newkey rsa:2048 -nodes -keyout several.key -out several.crt",
    );
    let server = Server::start_on(site);
    for (name, legacy) in [
        (
            "names",
            "/C=DE/O=a\\/CN=b\\+c, \\ d/OU=x\\x0D\\x0ASet-Cookie: y/OU=\\x00\\xE9 \\xAC/businessCategory=Private/\
             2.3.4.5=odd/CN=<end>",
        ),
        ("several", "/CN=a+OU=b/O=x"),
    ] {
        let got = s_client(&server, 0, &format!("-cert {name}.crt -key {name}.key"), GET);
        let mut lines = got.lines().filter_map(|l| l.strip_prefix('<')?.strip_suffix('>'));
        assert_eq!(lines.next(), Some(legacy), "{got}");
        let told = Command::new("openssl")
            .args(["x509", "-noout", "-subject", "-nameopt", "RFC2253", "-in", &format!("{name}.crt")])
            .current_dir(server.site.dir())
            .output()
            .expect("openssl");
        let told = String::from_utf8_lossy(&told.stdout).into_owned();
        assert_eq!(lines.next(), told.trim_end().strip_prefix("subject="), "{name}");
    }
}

/// A connection on which requests are sent one by one, by `openssl s_client`.
struct Kept {
    child: std::process::Child,
    input: std::process::ChildStdin,
    output: std::process::ChildStdout,
}

impl Kept {
    fn open(server: &Server, port: usize, args: &str) -> Kept {
        let mut child = Command::new("openssl")
            .args(["s_client", "-quiet", "-connect", &server.addr(port).to_string()])
            .args(args.split_whitespace())
            .current_dir(server.site.dir())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("openssl");
        let (input, output) = (child.stdin.take().expect("stdin"), child.stdout.take().expect("stdout"));
        Kept { child, input, output }
    }

    /// Sends a request. Returns the answer, up to the mark at the end of a body or to the end of the connection.
    fn get(&mut self, host: &str) -> String {
        let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
        // It may be closed already.
        let _ = self.input.write_all(request.as_bytes());
        let (mut seen, mut buf) = (String::new(), [0; 4096]);
        while !seen.contains("</html>") && !seen.contains(";end") {
            let n = std::io::Read::read(&mut self.output, &mut buf).expect("output");
            if n == 0 {
                break;
            }
            seen.push_str(&String::from_utf8_lossy(&buf[..n]));
        }
        seen
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A revocation list of `ec` that names its own certificate or nothing.
pub fn revocation_list(site: &Site, name: &str, revoked: bool) {
    site.write("ca.cnf", "[ca]\ndefault_ca=d\n[d]\ndatabase=index\ndefault_md=sha256\ndefault_crl_days=9\n");
    site.write("index", "");
    if revoked {
        openssl(site, "ca -config ca.cnf -revoke ec.crt -cert ec.crt -keyfile ec.key");
    }
    openssl(site, &format!("ca -config ca.cnf -gencrl -cert ec.crt -keyfile ec.key -out {name}"));
}

/// The verdict on a certificate is valid for one configuration: on connections that stay open it is made again after a reload,
/// over HTTP/1 and HTTP/2.
#[test]
fn a_verdict_does_not_outlive_its_reason() {
    let body = "return 200 \"$ssl_client_verify;end\";";
    let conf = |extra: &str, ca: &str, mode: &str| {
        format!(
            "keepalive_timeout 60s; server {{ listen 127.0.0.1:%PORT0% ssl; http2 on; ssl_client_certificate {ca}.crt; \
             ssl_verify_client {mode}; {extra} {body} }}\n\
             server {{ listen 127.0.0.1:%PORT1% ssl; return 200 \"$ssl_client_verify;end\"; }}"
        )
    };
    let site = site(&conf("", "ec", "on"));
    revocation_list(&site, "none.crl", false);
    revocation_list(&site, "revoked.crl", true);
    let server = Server::start_on(site);
    let written = server.site.read("nginx.conf");
    let mut loads = 0;
    let mut reload = |from: &str, to: &str| {
        let text = server.site.read("nginx.conf");
        assert!(text.contains(from), "{from}");
        server.site.write("nginx.conf", &text.replacen(from, to, 1));
        server.signal(nix::sys::signal::Signal::SIGHUP);
        loads += 1;
        // Every thread has it when a request of its own shows it.
        server.wait_for_log("signal 1 (SIGHUP) received", loads);
    };
    let until = |conn: &mut Kept, what: &str| {
        wait_for(what, || {
            let got = conn.get("h");
            got.contains(what).then_some(got)
        })
    };
    let args = "-cert ec.crt -key ec.key";
    let mut conn = Kept::open(&server, 0, args);
    assert!(conn.get("h").contains("\r\n\r\nSUCCESS;end"));
    // The same settings, written again: nothing changes.
    reload("keepalive_timeout 60s", "keepalive_timeout 61s");
    until(&mut conn, "SUCCESS;end");
    reload("ssl_verify_client on;", "ssl_verify_client on; ssl_crl none.crl;");
    until(&mut conn, "SUCCESS;end");
    reload("none.crl", "revoked.crl");
    let refused = until(&mut conn, "The SSL certificate error");
    assert!(refused.starts_with("HTTP/1.1 400"), "{refused}");
    server.wait_for_log("client SSL certificate verify error: (23:certificate revoked)", 1);
    reload("revoked.crl", "none.crl");
    let mut conn = Kept::open(&server, 0, args);
    until(&mut conn, "SUCCESS;end");
    // Another authority.
    reload("ssl_client_certificate ec.crt", "ssl_client_certificate client.crt");
    until(&mut conn, "The SSL certificate error");
    // A client that was not asked has to come again to be asked.
    server.site.write("nginx.conf", &written.replace("ssl_verify_client on;", "ssl_verify_client off;"));
    reload("keepalive_timeout 60s", "keepalive_timeout 62s");
    let mut conn = wait_for("no verification", || {
        let mut conn = Kept::open(&server, 0, args);
        conn.get("h").contains("NONE;end").then_some(conn)
    });
    reload("ssl_verify_client off;", "ssl_verify_client on;");
    let told = until(&mut conn, "421 Misdirected Request");
    assert!(told.contains("Connection: close"), "{told}");
    assert!(Kept::open(&server, 0, args).get("h").contains("SUCCESS;end"));
    // What issuers say is asked during a handshake.
    let mut conn = Kept::open(&server, 0, args);
    assert!(conn.get("h").contains("SUCCESS;end"));
    reload(
        "ssl_verify_client on;",
        "ssl_verify_client on; ssl_ocsp leaf; ssl_ocsp_responder http://127.0.0.1:1/;",
    );
    until(&mut conn, "421 Misdirected Request");
    reload(" ssl_ocsp leaf; ssl_ocsp_responder http://127.0.0.1:1/;", "");
    wait_for("no questions", || Kept::open(&server, 0, args).get("h").contains("SUCCESS;end").then_some(()));
    // One that was, and has no certificate, is told so.
    assert!(Kept::open(&server, 0, "").get("h").contains("No required SSL certificate was sent"));
}

/// A session that was judged by other settings is not resumed.
#[test]
fn a_session_does_not_outlive_what_it_was_judged_by() {
    let site = site(
        "server { listen 127.0.0.1:%PORT0% ssl; ssl_client_certificate ec.crt; ssl_verify_client on; ssl_crl none.crl; \
         ssl_session_cache shared:S:1m; return 200 \"$ssl_client_verify $ssl_session_reused;end\"; }",
    );
    revocation_list(&site, "none.crl", false);
    revocation_list(&site, "revoked.crl", true);
    let server = Server::start_on(site);
    let get = |args: &str| s_client(&server, 0, &format!("-cert ec.crt -key ec.key {args}"), GET);
    for version in ["tls1_2", "tls1_3"] {
        assert!(get(&format!("-{version} -sess_out {version}")).contains("SUCCESS .;end"), "{version}");
        assert!(get(&format!("-{version} -sess_in {version}")).contains("SUCCESS r;end"), "{version}");
    }
    let text = server.site.read("nginx.conf").replace("none.crl", "revoked.crl");
    server.site.write("nginx.conf", &text);
    server.signal(nix::sys::signal::Signal::SIGHUP);
    wait_for("the new list", || get("").contains("The SSL certificate error").then_some(()));
    for version in ["tls1_2", "tls1_3"] {
        let later = get(&format!("-{version} -sess_in {version}"));
        assert!(later.contains("The SSL certificate error") && !later.contains("Reused, "), "{later}");
    }
}

#[test]
fn sessions_have_identifiers() {
    let tls = "return 200 \"[$ssl_session_id|$ssl_session_reused]\\n\";";
    let server = Server::start_on(site(&format!(
        "server {{ listen 127.0.0.1:%PORT0% ssl; ssl_session_cache shared:S:1m; ssl_session_tickets off; {tls} }}\n\
         server {{ listen 127.0.0.1:%PORT1% ssl; {tls} }}"
    )));
    // What the client and what the variable say.
    let ids = |port, args: &str| {
        let got = s_client(&server, port, args, GET);
        let of = |begin: &str, end: &str| {
            let rest = got.split(begin).nth(1).unwrap_or_default();
            rest.split(end).next().unwrap_or_default().to_ascii_lowercase()
        };
        (of("Session-ID: ", "\n"), of("\n[", "]"))
    };
    let (first, shown) = ids(0, "-tls1_2 -sess_out s");
    assert!(first.len() == 64 && shown == format!("{first}|."), "{first} {shown}");
    assert_eq!(ids(0, "-tls1_2 -sess_in s").1, format!("{first}|r"));
    // A ticket has none, but the client makes one of it, and comes back with that.
    let (first, shown) = ids(1, "-tls1_2 -sess_out s");
    assert_eq!(shown, "|.");
    assert_eq!(ids(1, "-tls1_2 -sess_in s").1, format!("{first}|r"));
    for port in 0..2 {
        let (one, two) = (ids(port, "-tls1_3").1, ids(port, "-tls1_3").1);
        assert!(one.len() == 66 && one != two, "{one} {two}");
    }
}

/// A handshake whose messages do not fit into the socket continues once there is room.
#[test]
fn a_handshake_waits_for_room() {
    let site = site(
        "server { listen 127.0.0.1:%PORT0% ssl sndbuf=2k; ssl_certificate chain.crt; return 200 whole; }",
    );
    // More than the kernel takes at once, less than the 100 kB that OpenSSL takes at most.
    let chain = [site.read("rsa.crt"), site.read("ec.crt").repeat(240)].concat();
    site.write("chain.crt", &chain);
    let server = Server::start_on(site);
    for n in 0..5 {
        let got = s_client(&server, 0, "", GET);
        assert!(got.contains("HTTP/1.1 200 OK") && got.contains("whole"), "{n}: {got}");
    }
}

/// Answers of busy turns are sealed one behind the other and leave together; clients that read late get all of them, whole and in
/// order, whatever found no room at first.
#[test]
fn answers_of_busy_turns_arrive_whole() {
    let site = site(
        "server { listen 127.0.0.1:%PORT0% ssl sndbuf=8k; lingering_close off; add_header X-Uri $request_uri; \
         location = /short { return 200 short; } }",
    );
    let body: String = (0..1000).map(|n| format!("line {n:04} ")).collect();
    site.write("html/long", &body);
    let script = site.write(
        "late.py",
        "import socket, ssl, sys\n\
         port, body = int(sys.argv[1]), open(sys.argv[2], 'rb').read()\n\
         context = ssl.create_default_context()\n\
         context.check_hostname, context.verify_mode = False, ssl.CERT_NONE\n\
         if len(sys.argv) > 3: context.maximum_version = ssl.TLSVersion.TLSv1_2\n\
         def connect():\n\
         \x20   s = socket.socket()\n\
         \x20   s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)\n\
         \x20   s.settimeout(20)\n\
         \x20   s.connect(('127.0.0.1', port))\n\
         \x20   return context.wrap_socket(s)\n\
         clients = [connect() for _ in range(16)]\n\
         def path(c, n): return ('/short' if (c + n) % 3 == 0 else '/long') + f'?{c}-{n}'\n\
         for n in range(20):\n\
         \x20   for c, s in enumerate(clients):\n\
         \x20       last = 'Connection: close\\r\\n' if n == 19 else ''\n\
         \x20       s.sendall(f'GET {path(c, n)} HTTP/1.1\\r\\nHost: h\\r\\n{last}\\r\\n'.encode())\n\
         for c, s in enumerate(clients):\n\
         \x20   got = b''.join(iter(lambda: s.recv(65536), b''))\n\
         \x20   answers = got.split(b'HTTP/1.1 200 OK\\r\\n')[1:]\n\
         \x20   assert len(answers) == 20, (c, len(answers))\n\
         \x20   for n, answer in enumerate(answers):\n\
         \x20       head, _, content = answer.partition(b'\\r\\n\\r\\n')\n\
         \x20       assert f'X-Uri: {path(c, n)}'.encode() in head.split(b'\\r\\n'), (c, n, head)\n\
         \x20       assert content == (b'short' if (c + n) % 3 == 0 else body), (c, n, len(content))\n",
    );
    let server = Server::start_on(site);
    for old in [None, Some("1.2")] {
        let mut python = Command::new("python3");
        python.arg(&script).arg(server.addr(0).port().to_string()).arg(server.site.dir().join("html/long"));
        let out = python.args(old).output().expect("python3 runs");
        assert!(out.status.success(), "{old:?}: {}", String::from_utf8_lossy(&out.stderr));
    }
}

/// The beginning of a record is no request: the connection is as idle as it was, and has its time for a head but once.
#[test]
fn pieces_of_records_do_not_keep_a_connection() {
    let site = site(
        "keepalive_timeout 1s; client_header_timeout 1s; \
         server { listen 127.0.0.1:%PORT0% ssl; return 200 whole; }",
    );
    let script = site.write(
        "pieces.py",
        "import socket, ssl, sys, time\n\
         context = ssl.create_default_context()\n\
         context.check_hostname, context.verify_mode = False, ssl.CERT_NONE\n\
         s = context.wrap_socket(socket.create_connection(('127.0.0.1', int(sys.argv[1]))))\n\
         if len(sys.argv) > 2: s.sendall(b'GET / HTTP/1.1\\r\\nHost: h\\r\\n\\r\\n')\n\
         got = b''\n\
         while len(sys.argv) > 2 and not got.endswith(b'whole'): got += s.recv(4096)\n\
         s = socket.socket(fileno=s.detach())\n\
         s.settimeout(0.1)\n\
         end = time.monotonic() + 15\n\
         rest = iter(b'\\x17\\x03\\x03\\x40' + bytes(1000))\n\
         while True:\n\
         \x20   assert time.monotonic() < end, 'it is still open'\n\
         \x20   try:\n\
         \x20       if not s.recv(4096): break\n\
         \x20   except TimeoutError: s.send(bytes([next(rest)]))\n\
         \x20   except ConnectionError: break\n",
    );
    let server = Server::start_on(site);
    for asks in [None, Some("asks")] {
        let mut python = Command::new("python3");
        let out = python
            .arg(&script)
            .arg(server.addr(0).port().to_string())
            .args(asks)
            .output()
            .expect("python3 runs");
        assert!(out.status.success(), "{asks:?}: {}", String::from_utf8_lossy(&out.stderr));
    }
}

/// curl before 8.2 loses an answer that is in one record with the reset behind it.
#[test]
fn curl_gets_answers_that_come_before_the_end_of_its_upload() {
    let up = crate::exchange::upstream(|asked| {
        asked.write(b"HTTP/1.1 409 Early\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig");
        false
    });
    let site = site(&format!(
        "server {{ listen 127.0.0.1:%PORT0% ssl; http2 on; client_max_body_size 0;
         location /413 {{ client_max_body_size 1k; proxy_pass http://{up}; }}
         location /401 {{ auth_basic x; auth_basic_user_file users; }}
         location /403 {{ return 403; }}
         location /302 {{ return 302 /x; }}
         location /409 {{ proxy_request_buffering off; proxy_pass http://{up}; }} }}"
    ));
    site.write("users", "");
    site.write("html/405", "a file");
    site.write("upload", &"x".repeat(2_000_000));
    let server = Server::start_on(site);
    for status in ["413", "401", "403", "302", "405", "409"] {
        let done = Command::new("curl")
            .args(["-sk", "--http2", "-o", "/dev/null", "-w", "%{http_version} %{http_code}"])
            .args(["--data-binary", "@upload", &format!("https://{}/{status}", server.addr(0))])
            .current_dir(server.site.dir())
            .output()
            .expect("curl");
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        assert_eq!((said, done.status.code()), (format!("2 {status}"), Some(0)), "{status}");
    }
}
