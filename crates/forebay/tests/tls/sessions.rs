//! Sessions: resumed, shared, kept across reloads, and early data.

use super::{GET, site};
use forebay_testkit::{Server, s_client, wait_until};

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
            if !server.dir().join(format!("s{port}")).exists() {
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
    let file = |port: usize, version: &str| one.dir().join(format!("s{port}{version}"));
    for (port, version) in kinds() {
        let file = file(port, version);
        let first = s_client(&one, port, &format!("{version} -sess_out {}", file.display()), GET);
        assert!(first.contains("\nreused:.\n"), "{port} {version}");
    }
    one.reload();
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
    std::fs::copy(server.dir().join("s"), server.dir().join("replayed")).expect("copy");
    let early = s_client(&server, 0, "-tls1_3 -sess_in s -early_data early", "");
    assert!(early.contains("Early data was accepted") && early.contains("early:[1] reused:r"), "{early}");
    // The same session, and so the same bytes, a second time: not as early data.
    let again = s_client(&server, 0, "-tls1_3 -sess_in replayed -early_data early", GET);
    assert!(again.contains("Early data was rejected") && !again.contains("early:[1]"), "{again}");
    // However many records come behind it, it is counted once against what is passed over.
    std::fs::write(server.dir().join("long"), [b'x'; 9000]).expect("write");
    let long = s_client(&server, 0, "-tls1_3 -sess_in replayed -early_data long", GET);
    assert!(long.contains("Early data was rejected") && long.contains("early:[]"), "{long}");
    let off = s_client(&server, 1, "-tls1_3 -sess_out s2", GET);
    assert!(off.contains("Max Early Data: 0") && off.contains("early:[]"), "{off}");
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

/// A session that was judged by other settings is not resumed.
#[test]
fn a_session_does_not_outlive_what_it_was_judged_by() {
    let site = site(
        "server { listen 127.0.0.1:%PORT0% ssl; ssl_client_certificate ec.crt; ssl_verify_client on; ssl_crl none.crl; \
         ssl_session_cache shared:S:1m; return 200 \"$ssl_client_verify $ssl_session_reused;end\"; }",
    );
    site.revocation_list("none.crl", false);
    site.revocation_list("revoked.crl", true);
    let server = Server::start_on(site);
    let get = |args: &str| s_client(&server, 0, &format!("-cert ec.crt -key ec.key {args}"), GET);
    for version in ["tls1_2", "tls1_3"] {
        assert!(get(&format!("-{version} -sess_out {version}")).contains("SUCCESS .;end"), "{version}");
        assert!(get(&format!("-{version} -sess_in {version}")).contains("SUCCESS r;end"), "{version}");
    }
    let text = server.read("nginx.conf").replace("none.crl", "revoked.crl");
    server.reload_with(text);
    wait_until("the new list", || get("").contains("The SSL certificate error"));
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
