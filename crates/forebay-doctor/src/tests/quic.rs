//! Rules for HTTP/3.

use super::{Host, fired, http, machine};

fn server(text: &str) -> String {
    http(&format!("server {{ {text} }}"))
}

/// For each rule a configuration that has the fault and one that has not.
pub(super) fn cases() -> Vec<(&'static str, String, String)> {
    let both = "listen 443 quic; listen 443 ssl;";
    vec![
        ("quic-without-tcp", server("listen 443 quic; listen 80;"), server(both)),
        (
            "alt-svc-wrong-port",
            server(&format!("{both} location / {{ add_header Alt-Svc 'h3=\":8443\"; ma=1'; }}")),
            server(&format!("{both} add_header Alt-Svc 'h3=\":443\"; ma=1';")),
        ),
        (
            "alt-svc-by-hand",
            server(&format!("{both} add_header alt-svc 'h3=\":443\"';")),
            server("listen 443 ssl; add_header Alt-Svc 'h3=\":443\"';"),
        ),
        ("quic-gso-off", server(both), server(&format!("{both} quic_gso on;"))),
        ("quic-bpf", format!("quic_bpf on; {}", server(both)), format!("quic_bpf off; {}", server(both))),
        ("quic-retry", server(&format!("{both} quic_retry on;")), server(&format!("{both} quic_retry off;"))),
        ("quic-host-key", server(both), http(&format!("quic_host_key k; server {{ {both} }}"))),
    ]
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
