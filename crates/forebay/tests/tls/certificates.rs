//! Certificates of clients, servers and upstreams, their keys, and verdicts on them.

use super::{GET, site};
use forebay_testkit::{Kept, Server, run, s_client, wait_for};
use std::io::Write;
use std::process::{Command, Stdio};

forebay_testkit::cases!("../cases/tls/certificates.cases":
    client_certificates_are_judged, upstreams_are_judged, locked_keys_are_opened_by_their_passwords,
    a_certificate_is_judged_by_the_server_that_it_is_for, certificates_of_conf_command_are_presented, rsa_pss_keys_sign,
    renewed_certificates_are_used_without_a_reload, names_of_authorities_are_told_once,
    secrets_are_logged_for_those_who_may_read_them);

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
    site.openssl(
        "req -x509 -config names.cnf -newkey rsa:2048 -nodes -keyout names.key -out names.crt -days 9",
    );
    site.openssl(
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
            .current_dir(server.dir())
            .output()
            .expect("openssl");
        let told = String::from_utf8_lossy(&told.stdout).into_owned();
        assert_eq!(lines.next(), told.trim_end().strip_prefix("subject="), "{name}");
    }
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
    site.revocation_list("none.crl", false);
    site.revocation_list("revoked.crl", true);
    let server = Server::start_on(site);
    let written = server.read("nginx.conf");
    let mut loads = 0;
    let mut reload = |from: &str, to: &str| {
        let text = server.read("nginx.conf");
        assert!(text.contains(from), "{from}");
        server.reload_with(text.replacen(from, to, 1));
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
    server.write("nginx.conf", written.replace("ssl_verify_client on;", "ssl_verify_client off;"));
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

/// Values of several lines in fields of requests and responses, over each version of HTTP and to each kind of upstream.
#[test]
fn folded_values_are_one_line() {
    let fields = "$ssl_client_cert";
    let echo = "X-Lines: $http_x_cert";
    let site = site(&format!(
        "ssl_verify_client optional_no_ca; http2 on;\n\
         map $uri $mapped {{ default \"a;\n\t b; \r\n  c\"; }} map $uri $broken {{ default \"a\nB: c\"; }}\n\
         server {{ listen 127.0.0.1:%PORT0% ssl; listen 127.0.0.1:%PORT0% quic; set $text \"a;\n\t b; \r\n  c\";\n\
         more_set_headers \"X-More: {fields}\"; add_header X-Add {fields}; add_header X-Set $text; add_header X-Map $mapped;\n\
         add_header X-Text \"a;\n\t b; \r\n  c\"; add_trailer X-Trailer {fields};\n\
         location / {{ proxy_set_header X-Cert {fields}; proxy_pass http://127.0.0.1:%PORT1%; }}\n\
         location /input {{ more_set_input_headers \"X-Cert: {fields}\"; proxy_pass http://127.0.0.1:%PORT1%; }}\n\
         location /h2 {{ proxy_http_version 2; proxy_set_header X-Cert {fields}; proxy_pass http://127.0.0.1:%PORT1%; }}\n\
         location /grpc {{ grpc_set_header X-Cert {fields}; grpc_pass 127.0.0.1:%PORT1%; }}\n\
         location /return {{ return 302 \"/x?$text\"; }} location /rewrite {{ rewrite ^ \"https://h/?$mapped\" redirect; }}\n\
         location /broken {{ add_header X-Broken $broken; return 200 x; }}\n\
         location /raw {{ return 200 \"[$ssl_client_raw_cert]\"; }} }}\n\
         server {{ listen 127.0.0.1:%PORT1%; return 200 \"{echo}\\n\"; }}"
    ));
    let server = Server::start_on(site);
    let pem = server.read("client.crt");
    let cert = pem.trim_end().replace('\n', " ");
    let url = |path: &str| format!("https://{}{path}", server.addr(0));
    let dir = server.dir().display().to_string();
    let (cert_file, key_file) = (format!("{dir}/client.crt"), format!("{dir}/client.key"));
    let get = |version: &str, path: &str| {
        let url = url(path);
        let args = ["-ski", "-m", "30", version, "--cert", &cert_file, "--key", &key_file, &url];
        run("curl", &args).expect("curl").1.replace("\r\n", "\n")
    };
    for version in ["--http1.1", "--http2"] {
        for path in ["/", "/input", "/h2", "/grpc"] {
            let said = get(version, path);
            assert!(said.contains(&format!("X-Lines: {cert}\n")), "{version} {path}: {said}");
            let said = said.to_lowercase();
            for name in ["x-more", "x-add"] {
                let line = format!("\n{name}: {}\n", cert.to_lowercase());
                assert!(said.contains(&line), "{version} {path} {name}: {said}");
            }
            for name in ["x-set", "x-map", "x-text"] {
                assert!(said.contains(&format!("\n{name}: a; b; c\n")), "{version} {path} {name}: {said}");
            }
        }
        for path in ["/return", "/rewrite"] {
            let said = get(version, path).to_lowercase();
            assert!(said.contains("?a; b; c\n"), "{version} {path}: {said}");
        }
        let said = get(version, "/broken");
        assert!(said.contains(" 500") && !said.contains("B: c"), "{version}: {said}");
        assert!(
            get(version, "/raw").contains(&format!("[{pem}]")),
            "as nginx has it, with its last line break"
        );
    }
}

/// PEM with a byte order mark, line ends of other systems and text between blocks is read.
#[test]
fn pem_of_other_systems_is_read() {
    let site = site(
        "ssl_verify_client on; ssl_client_certificate all.pem;\n\
         server { listen 127.0.0.1:%PORT0% ssl; ssl_certificate marked.crt; ssl_certificate_key marked.key; return 200 \"[$ssl_client_verify]\"; }",
    );
    let marked =
        |name: &str| format!("\u{feff}Bag Attributes: x\r\n{}", site.read(name).replace('\n', "\r\n"));
    site.write("marked.crt", marked("rsa.crt"));
    site.write("marked.key", marked("rsa.key"));
    site.write("all.pem", format!("{}more: text\n{}", marked("ec.crt"), marked("client.crt")));
    let server = Server::start_on(site);
    for name in ["ec", "client"] {
        let said = s_client(&server, 0, &format!("-cert {name}.crt -key {name}.key"), GET);
        assert!(said.contains("[SUCCESS]"), "{name}: {said}");
    }
}
