//! The state of certificates: `openssl ocsp` answers, `openssl s_client` is the client.

mod stream;

use forebay_net::tls::ocsp_message::{self as message, Signers, State, Subject};
use forebay_testkit::{Asked, Done, Origin, P256, RSA, Server, Site, free_port, wait_for, wait_until};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

forebay_testkit::cases!("cases/ocsp.cases": mistakes_are_told_in_nginx_words);

fn openssl_in(dir: &Path, args: &str) {
    let done = Done::of(Command::new("openssl").args(args.split_whitespace()).current_dir(dir));
    assert_eq!(done.code, 0, "openssl {args}: {}", done.err);
}

/// An authority: a certificate of its own, and who answers for it.
struct Authority {
    addr: SocketAddr,
    state: Arc<Answers>,
}

/// Behaviour of the test's responder.
struct Answers {
    dir: OnceLock<PathBuf>,
    asked: AtomicUsize,
    /// Name of the certificate that signs.
    signer: Mutex<&'static str>,
}

impl Answers {
    /// Lets `openssl ocsp` answer the request in a target.
    fn answer(&self, target: &str) -> Vec<u8> {
        let dir = wait_for("the directory", || self.dir.get());
        let n = self.asked.fetch_add(1, Ordering::SeqCst);
        let text = target.rsplit('/').next().unwrap_or_default();
        let text = text.replace("%2B", "+").replace("%2F", "/").replace("%3D", "=");
        let name = |what: &str| format!("{what}.{n}");
        std::fs::write(dir.join(name("b64")), text).expect("write");
        openssl_in(dir, &format!("base64 -d -A -in {} -out {}", name("b64"), name("req")));
        let signer = *self.signer.lock().expect("signer");
        respond(dir, &name("req"), &name("resp"), signer);
        std::fs::read(dir.join(name("resp"))).expect("response")
    }
}

fn respond(dir: &Path, question: &str, answer: &str, signer: &str) {
    let signs = format!("-rsigner {signer}.crt -rkey {signer}.key");
    openssl_in(
        dir,
        &format!("ocsp -index index -CA ca.crt {signs} -reqin {question} -respout {answer} -nmin 5"),
    );
}

fn send(asked: &mut Asked, body: &[u8]) {
    asked.write(b"HTTP/1.0 200 OK\r\nContent-Type: application/ocsp-response\r\n\r\n");
    asked.write(body);
}

impl Authority {
    fn new() -> Authority {
        let state =
            Arc::new(Answers { dir: OnceLock::new(), asked: AtomicUsize::new(0), signer: Mutex::new("ca") });
        let own = state.clone();
        let addr = Origin::start(move |asked| {
            let body = own.answer(asked.target());
            send(asked, &body);
            false
        });
        Authority { addr: addr.addr, state }
    }

    fn asked(&self) -> usize {
        self.state.asked.load(Ordering::SeqCst)
    }

    /// Makes the certificates below a site: `ca`, `other` that nobody trusts, `signer` that may answer for `ca`,
    /// and `rsa`, `ec`, `good`, `revoked`, `unknown`, `plain` of `ca`.
    fn issue(&self, site: &Site) {
        let config = include_str!("ocsp/ca.cnf").replace("%RESPONDER%", &self.addr.to_string());
        site.write("ca.cnf", config);
        let new = |name: &str, more: &str| {
            let key = if name == "rsa" { RSA } else { P256 };
            let begin =
                format!("req -config ca.cnf -nodes -keyout {name}.key -subj /CN={name} -newkey {key}");
            site.openssl(&format!("{begin} {more}"));
        };
        for name in ["ca", "other"] {
            new(name, &format!("-x509 -days 30 -extensions ca -out {name}.crt"));
        }
        let mut index = String::new();
        for (serial, name) in (4096..).zip(["rsa", "ec", "good", "revoked", "unknown", "plain", "signer"]) {
            let (kind, flag, since) = match name {
                "signer" => ("ocsp", "V", ""),
                "plain" => ("plain", "V", ""),
                "revoked" => ("leaf", "R", "260101000000Z"),
                _ => ("leaf", "V", ""),
            };
            new(name, &format!("-out {name}.csr"));
            let by = "x509 -req -CA ca.crt -CAkey ca.key -days 30 -extfile ca.cnf";
            let what = format!("-in {name}.csr -out {name}.crt -set_serial {serial} -extensions {kind}");
            site.openssl(&format!("{by} {what}"));
            if name != "unknown" {
                index += &format!("{flag}\t351231000000Z\t{since}\t{serial:X}\tunknown\t/CN={name}\n");
            }
        }
        site.write("index", index);
        // The worker reads keys as the user that it is only where their names have variables.
        self.state.dir.set(site.dir().to_owned()).expect("once");
    }
}

fn site(authority: &Authority, servers: &str) -> Site {
    site_of(authority, &format!("http {{ access_log off; {CERTIFICATE} {servers} }}"))
}

const CERTIFICATE: &str = "ssl_certificate ec.crt; ssl_certificate_key ec.key;";

fn site_of(authority: &Authority, blocks: &str) -> Site {
    let site = Site::new(format!(
        "worker_processes 2; error_log logs/error.log info; pid logs/nginx.pid; events {{}}\n{blocks}"
    ));
    authority.issue(&site);
    site
}

fn s_client(server: &Server, port: usize, args: &str) -> String {
    forebay_testkit::s_client(server, port, args, crate::tls::GET)
}

#[test]
fn answers_are_stapled_and_outlive_a_reload() {
    let authority = Authority::new();
    let stapling = "ssl_stapling on; ssl_trusted_certificate ca.crt; return 200 ok;";
    let of = |name: &str| format!("ssl_certificate {name}.crt; ssl_certificate_key {name}.key;");
    let servers = format!(
        "server {{ listen 127.0.0.1:%PORT0% ssl; {} {} {stapling} }}\n\
         server {{ listen 127.0.0.1:%PORT1% ssl; ssl_stapling_verify on; {stapling} }}\n\
         server {{ listen 127.0.0.1:%PORT2% ssl; {2} {stapling} }}\n\
         server {{ listen 127.0.0.1:%PORT3% ssl; {2} ssl_stapling_responder http://{3}/y/; {stapling} }}",
        of("rsa"),
        of("ec"),
        of("plain"),
        authority.addr
    );
    let server = Server::start_on(site(&authority, &servers));
    // Nobody has to ask first.
    wait_until("the questions", || authority.asked() == 4);
    let status = |port, args: &str| s_client(&server, port, &format!("-status {args}"));
    for version in ["-tls1_2", "-tls1_3"] {
        for sigalgs in ["RSA-PSS+SHA256", "ECDSA+SHA256"] {
            let args = format!("{version} -sigalgs {sigalgs}");
            wait_until("a staple", || status(0, &args).contains("Cert Status: good"));
        }
        wait_until("a staple", || status(1, version).contains("Cert Status: good"));
    }
    assert!(status(2, "").contains("OCSP response: no response sent"), "it names no responder");
    wait_until("a staple", || status(3, "").contains("Cert Status: good"));
    let warning = "\"ssl_stapling\" ignored, no OCSP responder URL in the certificate";
    assert!(server.read("stderr").contains(warning));
    // What is known is known to the next configuration too, from its first connection on.
    server.reload();
    server.wait_for_log("reconfiguring", 1);
    for _ in 0..5 {
        assert!(status(1, "").contains("Cert Status: good"));
    }
    assert_eq!(authority.asked(), 4, "an answer that holds is not asked for again");
}

#[test]
fn a_responder_that_fails_costs_a_line_and_no_handshake() {
    let authority = Authority::new();
    let state = authority.state.clone();
    let of = |answer: fn(&Answers, &mut Asked)| {
        let state = state.clone();
        let origin = Origin::start(move |asked| {
            answer(&state, asked);
            false
        });
        origin.addr
    };
    fn signed_by(state: &Answers, target: &str, signer: &'static str) -> Vec<u8> {
        *state.signer.lock().expect("signer") = signer;
        state.answer(target)
    }
    let responders = [
        of(|s, a| send(a, &signed_by(s, a.target(), "other"))),
        of(|_, a| send(a, b"garbage")),
        of(|_, _| std::thread::sleep(Duration::from_secs(60))),
        of(|_, a| {
            a.answer("404 Not Found", "", "no");
        }),
        of(|_, a| {
            a.answer("200 OK", "", "<html>");
        }),
        // It speaks about another certificate.
        of(|s, a| {
            let dir = s.dir.get().expect("directory");
            openssl_in(dir, "ocsp -issuer ca.crt -cert good.crt -reqout o.req");
            respond(dir, "o.req", "o.resp", "ca");
            send(a, &std::fs::read(dir.join("o.resp")).expect("read"));
        }),
        of(|_, a| send(a, &[0x30, 3, 0x0a, 1, 6])),
        of(|_, a| {
            a.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/ocsp-response\r\n\r\n");
            a.write([7; 409_600]);
        }),
        SocketAddr::from(([127, 0, 0, 1], free_port())),
    ];
    let mut servers = String::new();
    for (i, addr) in responders.iter().enumerate() {
        servers += &format!(
            "server {{ listen 127.0.0.1:%PORT{i}% ssl; ssl_stapling_responder http://{addr}/; return 200 ok; }}\n"
        );
    }
    let servers = format!("ssl_stapling on; ssl_client_certificate ca.crt; {servers}");
    let server = Server::start_on(site(&authority, &servers));
    for port in 0..responders.len() {
        let got = s_client(&server, port, "-status");
        assert!(got.contains("OCSP response: no response sent") && got.contains("200 OK"), "{port}: {got}");
    }
    for text in [
        "OCSP_basic_verify() failed (SSL: error:13800065:OCSP routines::certificate verify error",
        "d2i_OCSP_RESPONSE() failed (SSL:",
        "OCSP responder sent status \"404 Not Found\" while requesting certificate status, responder: 127.0.0.1",
        "OCSP responder sent invalid \"Content-Type\" header: \"\"",
        "certificate status not found in the OCSP response",
        "OCSP response not successful (6: unauthorized)",
        "OCSP responder sent too big response",
        "connect() failed (111: Connection refused) while requesting certificate status",
        "OCSP responder timed out (110: Connection timed out)",
    ] {
        server.wait_for_log(text, 1);
    }
    assert!(server.error_log().contains(&format!("certificate: \"{}/ec.crt\"", server.dir().display())));
    // The same failure is told once, however often it comes.
    assert_eq!(server.error_log().matches("sent status \"404").count(), 1);
    for port in 0..responders.len() {
        assert!(s_client(&server, port, "-status").contains("no response sent"), "{port}");
    }
}

#[test]
fn a_certificate_that_is_taken_back_is_not_stapled_and_a_named_signer_is_believed() {
    let authority = Authority::new();
    *authority.state.signer.lock().expect("signer") = "signer";
    let servers = "ssl_stapling on; ssl_trusted_certificate ca.crt; ssl_stapling_verify on;\n\
         server { listen 127.0.0.1:%PORT0% ssl; return 200 ok; }\n\
         server { listen 127.0.0.1:%PORT1% ssl; ssl_certificate revoked.crt; ssl_certificate_key revoked.key; }\n\
         server { listen 127.0.0.1:%PORT2% ssl; ssl_certificate unknown.crt; ssl_certificate_key unknown.key; }";
    let server = Server::start_on(site(&authority, servers));
    let status = |port| s_client(&server, port, "-status");
    wait_until("a staple", || status(0).contains("Cert Status: good"));
    server.wait_for_log("certificate status \"revoked\" in the OCSP response", 1);
    server.wait_for_log("certificate status \"unknown\" in the OCSP response", 1);
    assert!(status(1).contains("no response sent") && status(2).contains("no response sent"));
}

/// Has the authority take back the certificate `good`.
fn revoke(server: &Server) {
    let (valid, revoked) = ("V\t351231000000Z\t\t1002", "R\t351231000000Z\t260101000000Z\t1002");
    let index = server.read("index");
    assert!(index.contains(valid), "{index}");
    server.write("index", index.replacen(valid, revoked, 1));
}

#[test]
fn clients_certificates_are_asked_about() {
    let authority = Authority::new();
    let lying = Origin::start(|asked| {
        send(asked, b"lie");
        false
    });
    let say = "add_header X-V \"[$ssl_client_verify:$ssl_session_reused]\" always; return 200 ok;";
    let server = Server::start_on(site(
        &authority,
        &format!(
            "ssl_client_certificate ca.crt; ssl_verify_client on; ssl_ocsp leaf; ssl_session_cache shared:S:1m;\n\
             server {{ listen 127.0.0.1:%PORT0% ssl http2; {say} }}\n\
             server {{ listen 127.0.0.1:%PORT1% ssl; ssl_ocsp_responder http://{lying}; {say} }}\n\
             server {{ listen 127.0.0.1:%PORT2% ssl; ssl_ocsp_cache shared:O:1m; {say} }}\n\
             server {{ listen 127.0.0.1:%PORT3% ssl; ssl_verify_client optional; ssl_ocsp on; \
             error_page 495 =403 /refused; location = /refused {{ return 403 refused; }} location / {{ {say} }} }}"
        ),
    ));
    let with = |port, name: &str, more: &str| {
        s_client(&server, port, &format!("-cert {name}.crt -key {name}.key {more}"))
    };
    let says = |got: &str, what: &str| assert!(got.contains(&format!("X-V: [{what}:")), "{what}: {got}");
    says(&with(0, "good", ""), "SUCCESS");
    let refused = with(0, "revoked", "");
    says(&refused, "FAILED:certificate revoked");
    assert!(refused.contains("400 Bad Request") && refused.contains("400 The SSL certificate error"));
    says(&with(0, "unknown", ""), "FAILED:certificate status unknown");
    says(&with(0, "plain", ""), "FAILED:certificate status request failed");
    says(&with(1, "good", ""), "FAILED:certificate status request failed");
    server.wait_for_log("client SSL certificate verify error: certificate revoked", 1);
    server.wait_for_log("no OCSP responder URL in certificate", 1);
    server.wait_for_log("d2i_OCSP_RESPONSE() failed", 1);
    // HTTP/2 on the same terms.
    for (name, code) in [("good", "200"), ("revoked", "400")] {
        let (own, url) =
            (format!("--cert {name}.crt --key {name}.key"), format!("https://{}/", server.addr(0)));
        let mut curl = Command::new("curl");
        curl.args(["-sk", "--http2", "-o", "/dev/null", "-w", "%{http_version} %{http_code}", &url]);
        let done = Done::of(curl.args(own.split(' ')).current_dir(server.dir()));
        assert_eq!(done.out, format!("2 {code}"), "{name}");
    }
    // Kept as long as it holds.
    let before = authority.asked();
    for _ in 0..3 {
        says(&with(2, "good", ""), "SUCCESS");
        says(&with(2, "revoked", ""), "FAILED:certificate revoked");
    }
    assert_eq!(authority.asked() - before, 2);
    // A session that is taken up again is judged again.
    assert!(with(0, "good", "-tls1_3 -sess_out s").contains("SUCCESS:."));
    let before = authority.asked();
    assert!(with(0, "good", "-tls1_3 -sess_in s").contains("X-V: [SUCCESS:r]"));
    assert_eq!(authority.asked() - before, 1);
    revoke(&server);
    assert!(with(0, "good", "-tls1_3 -sess_in s").contains("X-V: [FAILED:certificate revoked:r]"));
    says(&with(2, "good", ""), "SUCCESS");
    assert!(s_client(&server, 3, "").contains("X-V: [NONE:.]"));
    assert!(with(3, "revoked", "").contains("403 Forbidden"));
    // Nobody answers: the certificate is not good.
    let hanging = Origin::start(|_| {
        std::thread::sleep(Duration::from_secs(60));
        false
    });
    let conf = server.read("nginx.conf").replace(&lying.to_string(), &hanging.to_string());
    server.reload_with(conf);
    server.wait_for_log("reconfiguring", 1);
    wait_for("the verdict after the time limit", || {
        let got = with(1, "good", "");
        says(&got, "FAILED:certificate status request failed");
        server.error_log().contains("OCSP responder timed out").then_some(())
    });
}

/// Handshakes over QUIC do not wait for responders. A certificate that one would have to be asked about is refused.
#[test]
fn over_quic_certificates_that_are_to_be_asked_about_are_refused() {
    let Some(mut client) = crate::http3::Client::start() else { return };
    let authority = Authority::new();
    let say = "return 200 $ssl_client_verify;";
    let server = Server::start_on(site(
        &authority,
        &format!(
            "ssl_client_certificate ca.crt; ssl_ocsp leaf;\n\
             server {{ listen 127.0.0.1:%PORT0% quic; listen 127.0.0.1:%PORT0% ssl; ssl_verify_client on; {say} }}\n\
             server {{ listen 127.0.0.1:%PORT1% quic; ssl_verify_client optional; {say} }}"
        ),
    ));
    for (port, name, wanted) in
        [(0, "good", 400), (0, "revoked", 400), (0, "", 400), (1, "good", 400), (1, "", 200)]
    {
        let mut options = serde_json::json!({ "port": server.addr(port).port() });
        if !name.is_empty() {
            options["cert"] = server.dir().join(format!("{name}.crt")).display().to_string().into();
            options["key"] = server.dir().join(format!("{name}.key")).display().to_string().into();
        }
        let told = client.connect_with("c", &server, options);
        assert_eq!(told["connected"], true, "{port} {name}: {told}");
        let told = client.get("c", "/");
        assert_eq!(told["status"], wanted, "{port} {name}: {told}");
    }
    assert_eq!(authority.asked(), 0);
    server.wait_for_log("client SSL certificate verify error: certificate status request failed", 3);
}

#[test]
fn answers_are_checked_to_the_last_byte() {
    let authority = Authority::new();
    let site = Site::new("");
    authority.issue(&site);
    let dir = site.dir();
    let der = |name: &str| {
        openssl_in(dir, &format!("x509 -in {name}.crt -outform DER -out out.der"));
        std::fs::read(dir.join("out.der")).expect("read")
    };
    let subject = Subject::of(&der("good"), &der("ca"));
    openssl_in(dir, "ocsp -issuer ca.crt -cert good.crt -no_nonce -reqout openssl.req");
    let question = message::request(&subject).expect("a question");
    assert_eq!(question, std::fs::read(dir.join("openssl.req")).expect("read"), "as OpenSSL asks");
    respond(dir, "openssl.req", "resp", "ca");
    let good = std::fs::read(dir.join("resp")).expect("read");
    let now = forebay_net::tls::verify::now();
    let check = |bytes: &[u8], now| message::check(bytes, &subject, Signers(&[]), now);
    let answer = check(&good, now).expect("a good answer");
    assert_eq!(answer.state, State::Good);
    assert_eq!(answer.until, Some(answer.from + 300));
    assert!(check(&good, now + 900).unwrap_err().contains("status expired"));
    assert!(check(&good, now - 900).unwrap_err().contains("status not yet valid"));
    // What is signed cannot be changed, and nothing can be left out.
    let signed =
        good.windows(4).position(|w| w == [0x30, 0x0a, 0x06, 0x08]).expect("the signature's algorithm");
    for at in 0..signed {
        for bit in [1, 0x80] {
            let mut bad = good.clone();
            bad[at] ^= bit;
            assert!(check(&bad, now).is_err(), "byte {at}");
        }
        assert!(check(&good[..at], now).is_err());
    }
    // Another issuer's answer, another one's key, one that may sign only web servers' handshakes.
    let elsewhere = Subject::of(&der("good"), &der("other"));
    assert!(message::check(&good, &elsewhere, Signers(&[]), now).is_err());
    for (signer, believed) in [("other", false), ("ec", false), ("signer", true)] {
        respond(dir, "openssl.req", "resp2", signer);
        let got = check(&std::fs::read(dir.join("resp2")).expect("read"), now);
        assert_eq!(got.is_ok(), believed, "{signer}: {got:?}");
    }
    respond(dir, "openssl.req", "resp2", "other");
    let known = [Subject::of(&der("other"), &[]).cert];
    let got =
        message::check(&std::fs::read(dir.join("resp2")).expect("read"), &subject, Signers(&known), now);
    assert!(got.is_ok(), "who is named by the configuration may sign: {got:?}");
}
