//! Rules for HTTP/3.

use super::{Host, fired, http, machine};

fn server(text: &str) -> String {
    http(&format!("server {{ {text} }}"))
}

#[test]
fn the_machine_is_looked_at() {
    let with = |change: &dyn Fn(&mut Host)| {
        let mut host = machine();
        change(&mut host);
        host
    };
    let small = with(&|h| {
        h.sysctls.insert("net.core.rmem_max".into(), "212992".into());
    });
    let large = with(&|h| {
        h.sysctls.insert("net.core.rmem_max".into(), "4194304".into());
    });
    let drops = with(&|h| {
        h.counters.insert("RcvbufErrors".into(), 7);
        h.running = Some(Default::default());
    });
    let closed = with(&|h| h.firewall = Some("tcp dport { 80, 443 } accept\n".into()));
    let open = with(&|h| h.firewall = Some("tcp dport 443 accept\nudp dport 443 accept\n".into()));
    let conf = server("listen 443 quic; listen 443 ssl;");
    let plain = server("listen 443 ssl;");
    for (rule, bad, good) in [
        ("udp-receive-buffer", &small, &large),
        ("udp-drops", &drops, &large),
        ("udp-firewall", &closed, &open),
    ] {
        let has = |conf: &str, host: &Host| fired(conf, host).iter().any(|(r, _)| r == rule);
        assert!(has(&conf, bad) && !has(&conf, good) && !has(&plain, bad), "{rule}");
    }
}
