//! Directives of the stream block that no scenario needs: each changes what a session does.

use forebay_testkit::{Server, Site, Talk, connect, echo, free_port, wait_for, wait_until};
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// What an encrypted connection from one server to another is like.
struct Encrypted {
    /// Directives of the server that opens it.
    front: &'static str,
    /// Directives of the server that accepts it.
    back: &'static str,
    /// Begins what the second one sends; empty if the handshake fails.
    answer: &'static str,
}

const fn encrypted(front: &'static str, back: &'static str, answer: &'static str) -> Encrypted {
    Encrypted { front, back, answer }
}

const EC: &str = "ssl_certificate ec.crt; ssl_certificate_key ec.key;";
const CHAIN: &str = "ssl_certificate chain.crt; ssl_certificate_key leaf.key;";

const ENCRYPTED: &[Encrypted] = &[
    encrypted("", EC, "TLSv1.3"),
    encrypted("proxy_ssl_protocols TLSv1.2;", EC, "TLSv1.2"),
    encrypted(
        "proxy_ssl_protocols TLSv1.2; proxy_ssl_ciphers ECDHE-ECDSA-AES256-GCM-SHA384;",
        EC,
        "TLSv1.2 ECDHE-ECDSA-AES256-GCM-SHA384",
    ),
    encrypted(
        "proxy_ssl_protocols TLSv1.2; proxy_ssl_ciphers ECDHE-ECDSA-AES128-GCM-SHA256;",
        EC,
        "TLSv1.2 ECDHE-ECDSA-AES128-GCM-SHA256",
    ),
    encrypted(
        "proxy_ssl_protocols TLSv1.2; proxy_ssl_ciphers ECDHE-ECDSA-AES128-GCM-SHA256;",
        "ssl_ecdh_curve secp384r1; ssl_certificate ec.crt; ssl_certificate_key ec.key;",
        "TLSv1.2 ECDHE-ECDSA-AES128-GCM-SHA256 secp384r1",
    ),
    encrypted("proxy_ssl_verify on; proxy_ssl_name ec; proxy_ssl_crl none.crl;", EC, "TLS"),
    encrypted("proxy_ssl_verify on; proxy_ssl_name ec; proxy_ssl_crl revoked.crl;", EC, ""),
    encrypted("proxy_ssl_verify on; proxy_ssl_name leaf; proxy_ssl_verify_depth 1;", CHAIN, "TLS"),
    encrypted("proxy_ssl_verify on; proxy_ssl_name leaf; proxy_ssl_verify_depth 0;", CHAIN, ""),
    encrypted(OWN, "ssl_verify_client on; ssl_client_certificate ec.crt; ssl_crl none.crl;", "TLS"),
    encrypted(OWN, "ssl_verify_client on; ssl_client_certificate ec.crt; ssl_crl revoked.crl;", ""),
    encrypted(OWN_CHAIN, "ssl_verify_client on; ssl_client_certificate ec.crt; ssl_verify_depth 1;", "TLS"),
    encrypted(OWN_CHAIN, "ssl_verify_client on; ssl_client_certificate ec.crt; ssl_verify_depth 0;", ""),
    // Nobody answers at that port.
    encrypted(
        OWN_CHAIN,
        "ssl_verify_client on; ssl_client_certificate ec.crt; ssl_ocsp leaf; ssl_ocsp_cache shared:o:64k; \
         ssl_ocsp_responder http://127.0.0.1:%DEAD%/;",
        "",
    ),
    // A certificate that has been read stays for some time, where it is said so.
    encrypted(NAMED, "ssl_certificate_cache max=9; ssl_certificate $ssl_server_name.crt; %KEY%", "TLS"),
    encrypted(NAMED, "ssl_certificate_cache off; ssl_certificate $ssl_server_name.crt; %KEY%", ""),
];

const OWN: &str = "proxy_ssl_certificate ec.crt; proxy_ssl_certificate_key ec.key;";
const OWN_CHAIN: &str = "proxy_ssl_certificate chain.crt; proxy_ssl_certificate_key leaf.key;";
/// The certificate of this name is removed after the first connection.
const NAMED: &str = "proxy_ssl_server_name on; proxy_ssl_name copy; proxy_ssl_session_reuse off;";

#[test]
fn encrypted_connections() {
    let mut servers = String::new();
    let mut ports = Vec::new();
    let dead = free_port().to_string();
    for case in ENCRYPTED {
        let (front, back) = (free_port(), free_port());
        ports.push(front);
        let own = if case.back.contains("ssl_certificate ") { "" } else { EC };
        let directives = case.back.replace("%DEAD%", &dead).replace("%KEY%", "ssl_certificate_key ec.key;");
        servers += &format!(
            "server {{ listen 127.0.0.1:{front}; proxy_pass 127.0.0.1:{back}; proxy_ssl on;\n\
             proxy_ssl_trusted_certificate ec.crt; {} }}\n\
             server {{ listen 127.0.0.1:{back} ssl; {own} {directives}\n\
             return \"$ssl_protocol $ssl_cipher $ssl_curve\"; }}\n",
            case.front
        );
    }
    let site = Site::new(format!(
        "worker_processes 1; error_log logs/error.log info; pid logs/nginx.pid; events {{}}\n\
         stream {{ server {{ listen 127.0.0.1:%PORT0%; return ready; }}\n{servers} }}"
    ));
    let new = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30";
    site.openssl(&format!("{new} -keyout ec.key -out ec.crt -subj /CN=ec"));
    for (name, by) in [("inter", "ec"), ("leaf", "inter")] {
        let signer = format!("-CA {by}.crt -CAkey {by}.key");
        site.openssl(&format!("{new} -keyout {name}.key -out {name}.crt -subj /CN={name} {signer}"));
    }
    // The worker, which may be another user, reads it in a handshake.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(site.dir().join("ec.key"), mode).expect("mode");
    site.write("chain.crt", [site.read("leaf.crt"), site.read("inter.crt")].concat());
    let copy = site.write("copy.crt", site.read("ec.crt"));
    site.revocation_list("none.crl", false);
    site.revocation_list("revoked.crl", true);
    let server = Server::start_on(site);
    let answer = |port: u16| connect(([127, 0, 0, 1], port).into()).rest();
    for (case, port) in ENCRYPTED.iter().zip(&ports).filter(|(case, _)| case.front == NAMED) {
        assert!(answer(*port).starts_with("TLS"), "{}\n{}", case.back, server.error_log());
    }
    std::fs::remove_file(copy).expect("removed");
    for (case, port) in ENCRYPTED.iter().zip(ports) {
        let got = answer(port);
        let fits = if case.answer.is_empty() { got.is_empty() } else { got.starts_with(case.answer) };
        assert!(fits, "{got} from {} and {}\n{}", case.front, case.back, server.error_log());
    }
}

/// Starts a server that takes connections into its queue and reads nothing.
fn deaf() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = listener.local_addr().expect("address");
    (listener, addr)
}

/// Returns the columns of the kernel's table about the socket that a server has connected to an address: the bytes to be sent and
/// to be read, and the kind of its timer.
fn socket(to: SocketAddr) -> Option<(u64, u64, u8)> {
    let table = std::fs::read_to_string("/proc/net/tcp").expect("a table");
    let remote = format!("0100007F:{:04X}", to.port());
    let row = table.lines().map(|l| l.split_whitespace().collect::<Vec<_>>()).find(|row| {
        // 01 is an open connection.
        row.get(2) == Some(&remote.as_str()) && row.get(3) == Some(&"01")
    })?;
    let (sent, read) = row.get(4)?.split_once(':')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    Some((number(sent)?, number(read)?, row.get(5)?.split(':').next()?.parse().ok()?))
}

/// Writes until nothing is taken any more.
fn fill(stream: &mut TcpStream) {
    stream.set_write_timeout(Some(Duration::from_millis(200))).expect("timeout");
    while stream.write_all(&[7; 65536]).is_ok() {}
}

#[test]
fn sockets_have_options() {
    const KEEPALIVE: u8 = 2;
    const SMALL: u64 = 32 * 1024;
    let ((alive, with), (plain, without)) = (deaf(), deaf());
    let ((small_to, narrow), (small_from, slow)) = (deaf(), deaf());
    let server = Server::start(format!(
        "worker_processes 1; error_log logs/error.log info; pid logs/nginx.pid; events {{}}\nstream {{\n\
         server {{ listen 127.0.0.1:%PORT0%; proxy_pass {with}; proxy_socket_keepalive on; }}\n\
         server {{ listen 127.0.0.1:%PORT1%; proxy_pass {without}; }}\n\
         server {{ listen 127.0.0.1:%PORT2%; proxy_pass {narrow}; proxy_socket_sndbuf 4k; }}\n\
         server {{ listen 127.0.0.1:%PORT3%; proxy_pass {slow}; proxy_socket_rcvbuf 4k; }} }}\n"
    ));
    let mut clients: Vec<TcpStream> = (0..4).map(|port| connect(server.addr(port))).collect();
    for client in &mut clients {
        client.send(b"x");
    }
    let timer = |to| wait_for("a connection", || socket(to)).2;
    assert_eq!(timer(with), KEEPALIVE);
    assert_ne!(timer(without), KEEPALIVE);
    fill(&mut clients[1]);
    fill(&mut clients[2]);
    let unsent = |to| socket(to).map_or(0, |row| row.0);
    // The kernel still moves bytes to the receiver for a while.
    wait_until("full send buffers", || unsent(without) > SMALL && unsent(narrow) < SMALL);
    let mut from = [&plain, &small_from].map(|l| l.accept().expect("a connection").0);
    from.iter_mut().for_each(fill);
    let unread = |to| socket(to).map_or(0, |row| row.1);
    wait_until("full receive buffers", || unread(without) > SMALL && unread(slow) < SMALL);
    drop((alive, small_to));
}

#[test]
fn limits_and_logs() {
    let (backend, _) = echo();
    let deaf: Vec<_> = (0..3).map(|_| deaf()).collect();
    let deaf_servers: String = deaf.iter().map(|(_, addr)| format!("server {addr};")).collect();
    let site = Site::new(format!(
        "worker_processes 1; error_log logs/error.log info; pid logs/nginx.pid; events {{}}\nstream {{\n\
         log_format l '$server_port $status [$upstream_addr]'; access_log logs/access.log l;\n\
         limit_conn_zone $hostname zone=one:1m;\n\
         upstream deaf {{ {deaf_servers} }}\n\
         server {{ listen 127.0.0.1:%PORT0%; return ready; access_log off; }}\n\
         server {{ listen 127.0.0.1:%PORT1%; limit_conn one 1; limit_conn_log_level notice; proxy_pass {backend}; }}\n\
         server {{ listen 127.0.0.1:%PORT2%; return x; access_log logs/kept-$protocol l;\n\
           open_log_file_cache max=4 inactive=1h valid=1h min_uses=1; }}\n\
         server {{ listen 127.0.0.1:%PORT3%; return x; access_log logs/opened-$protocol l; }}\n\
         server {{ listen 127.0.0.1:%PORT4%; proxy_pass deaf; proxy_ssl on; proxy_connect_timeout 200ms;\n\
           proxy_next_upstream_timeout 300ms; }}\n\
         server {{ listen 127.0.0.1:%PORT5% ssl; ssl_certificate ec.crt; ssl_certificate_key ec.key; return x;\n\
           ssl_handshake_timeout 50ms; }} }}\n"
    ));
    site.openssl("req -x509 -newkey rsa:2048 -nodes -keyout ec.key -out ec.crt -days 30 -subj /CN=ec");
    // The worker may be another user, who may not create files there.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(site.dir().join("logs"), mode).expect("mode");
    let server = Server::start_on(site);
    let mut only = connect(server.addr(1));
    assert_eq!(only.echo(b"x"), b"x");
    assert_eq!(connect(server.addr(1)).rest(), "");
    server.wait_for_log("limiting connections", 1);
    assert!(server.error_log().lines().any(|l| l.contains("[notice]") && l.contains("limiting")));
    for (port, name, new) in [(2, "kept-TCP", ""), (3, "opened-TCP", " 200 [-]\n")] {
        let (old, current) = (format!("logs/{name}.old"), format!("logs/{name}"));
        let lines = |file: &str| server.read(file).lines().count();
        assert_eq!(connect(server.addr(port)).rest(), "x");
        wait_until("a line", || lines(&current) == 1);
        let dir = server.dir();
        std::fs::rename(dir.join(&current), dir.join(&old)).expect("renamed");
        assert_eq!(connect(server.addr(port)).rest(), "x");
        wait_until("another line", || lines(&old) + lines(&current) == 2);
        assert!(server.read(&current).ends_with(new), "{name}");
        assert_eq!(lines(&old), if new.is_empty() { 2 } else { 1 }, "{name}");
    }
    assert_eq!(connect(server.addr(4)).rest(), "");
    let line = wait_for("a line", || {
        let log = server.read("logs/access.log");
        log.lines().find(|l| l.starts_with(&server.addr(4).port().to_string())).map(str::to_owned)
    });
    // The second attempt ends after the time, so there is no third one.
    assert_eq!(line.matches("127.0.0.1:").count(), 2, "{line}");
    assert_eq!(connect(server.addr(5)).rest(), "");
    server.wait_for_log("client timed out (110: Connection timed out) while SSL handshaking", 1);
}
