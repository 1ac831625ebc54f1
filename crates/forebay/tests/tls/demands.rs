//! Demands on clients (`ssl_verify_client`) of servers with and without certificates: which requests and sessions are refused, over
//! every protocol, by every name, on resumed sessions, and after reloads.

mod matrix;

use super::GET;
use forebay_testkit::{Kept, Server, Site, s_client, wait_for};

forebay_testkit::cases!("../cases/tls/demands.cases":
    a_server_without_a_certificate_is_not_content_with_other_authorities,
    a_passed_connection_meets_the_demands_of_its_listener, a_server_of_stream_that_a_name_chooses_has_its_address_rules,
    a_reload_that_adds_tls_and_a_demand_ends_plain_connections);

/// A site with these blocks and the certificates `d`, `n`, `valid` and `foreign`, all signed by themselves.
fn site(blocks: &str) -> Site {
    let site = Site::new(format!(
        "worker_processes 1; error_log logs/error.log info; pid logs/nginx.pid; events {{ worker_connections 512; }}\n{blocks}"
    ));
    for name in ["d", "n", "valid", "foreign"] {
        let key = "ec -pkeyopt ec_paramgen_curve:P-256";
        let made = format!(
            "req -x509 -newkey {key} -nodes -keyout {name}.key -out {name}.crt -days 30 -subj /CN={name}.test"
        );
        site.openssl(&made);
    }
    site
}

const OF_D: &str = "server_name d.test; ssl_certificate d.crt; ssl_certificate_key d.key;";
const OWN: &str = "ssl_certificate n.crt; ssl_certificate_key n.key;";
const TRUST: &str = "ssl_client_certificate valid.crt;";

/// Two servers of an http block, the default one and `n.test`.
fn two_servers(default: &str, named: &str) -> String {
    format!(
        "http {{ access_log off; keepalive_timeout 60s;\n\
         server {{ listen 127.0.0.1:%PORT0% ssl; {OF_D} {default} return 200 \"d:$ssl_client_verify:$ssl_session_reused;end\"; }}\n\
         server {{ listen 127.0.0.1:%PORT0% ssl; server_name n.test; {named} return 200 \"n:$ssl_client_verify:$ssl_session_reused;end\"; }} }}"
    )
}

/// A session that began with one server is judged by the demands of the other.
#[test]
fn a_resumed_session_meets_the_demands_of_the_server() {
    for (default, own) in [("off", ""), ("optional", ""), ("on", ""), ("off", OWN), ("optional", OWN)] {
        let server = Server::start_on(site(&two_servers(
            &format!("{TRUST} ssl_verify_client {default};"),
            &format!("{own} {TRUST} ssl_verify_client on;"),
        )));
        for version in ["-tls1_2", "-tls1_3"] {
            for cert in ["", "-cert valid.crt -key valid.key", "-cert foreign.crt -key foreign.key"] {
                let ask = |name: &str, session: &str| {
                    let request = GET.replace("Host: h", &format!("Host: {name}"));
                    s_client(&server, 0, &format!("{version} {cert} -servername {name} {session}"), &request)
                };
                ask("d.test", "-sess_out begun");
                let got = ask("n.test", "-sess_in begun");
                let asked = default != "off" || !own.is_empty();
                let wanted = match cert {
                    _ if !asked => "No required SSL certificate was sent",
                    "" => "No required SSL certificate was sent",
                    cert if cert.contains("valid") => "n:SUCCESS:",
                    _ => "The SSL certificate error",
                };
                assert!(got.contains(wanted), "{default} {own} {version} {cert}: {got}");
                // A handshake of its own asks what the session that began with another server was not asked.
                let resumed = got.contains(":r;end");
                assert!(!resumed || own.is_empty(), "{default} {version} {cert}: {got}");
            }
        }
    }
}

/// Replaces a part of the configuration, and waits until the server has read it.
fn reload(server: &Server, times: usize, from: &str, to: &str) {
    let text = server.read("nginx.conf");
    assert!(text.contains(from), "{from}");
    server.reload_with(text.replacen(from, to, 1));
    server.wait_for_log("signal 1 (SIGHUP) received", times);
}

/// A connection that stays open meets what a reload demands, of a server without a certificate, too.
#[test]
fn a_reload_changes_what_an_open_connection_has_to_meet() {
    let server = Server::start_on(site(&two_servers(
        &format!("{TRUST} ssl_verify_client optional;"),
        "ssl_verify_client off;",
    )));
    let open = |cert: &str| Kept::open(&server, 0, &format!("-servername n.test {cert}"));
    let until = |conn: &mut Kept, what: &str| {
        wait_for(what, || conn.get("n.test").contains(what).then_some(()));
    };
    let (valid, foreign) = ("-cert valid.crt -key valid.key", "-cert foreign.crt -key foreign.key");
    let [mut none, mut good, mut bad] = ["", valid, foreign].map(open);
    until(&mut none, "n:NONE:");
    until(&mut good, "n:SUCCESS:");
    until(&mut bad, "n:FAILED:");
    reload(&server, 1, "ssl_verify_client off;", "ssl_verify_client on;");
    until(&mut none, "400 No required SSL certificate was sent");
    until(&mut good, "n:SUCCESS:");
    until(&mut bad, "400 The SSL certificate error");
    // The authorities of the handshake are no longer those of the server.
    reload(&server, 2, "ssl_verify_client on;", "ssl_verify_client on; ssl_client_certificate foreign.crt;");
    until(&mut good, "421 Misdirected Request");
}
