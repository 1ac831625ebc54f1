//! Sessions: resumed, shared, kept across reloads, and early data.

use super::{GET, site};
use forebay_testkit::{Server, s_client};

forebay_testkit::cases!("../cases/tls/sessions.cases":
    sessions_are_resumed_where_they_may_be, early_data_is_taken_once_and_marked, tickets_do_not_depend_on_the_cache,
    a_session_does_not_outlive_what_it_was_judged_by);

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
