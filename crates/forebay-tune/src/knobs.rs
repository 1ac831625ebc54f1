//! The table of settings that can be tried. A level is text of a configuration; level 0 is always the user's own.

use crate::program::Which;

/// Place of a setting in a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Top of the file.
    Main,
    /// The `events` block.
    Events,
    /// Places where it is set already, outside of `upstream`; nowhere else, since the value is the default.
    There,
    /// The `http` block; deeper occurrences of the same directive change with it.
    Http,
    /// A parameter of each address's first `listen`. Text behind a `;` is for `events`.
    Listen,
    /// A parameter of `listen` where it is set to less already.
    ListenThere,
    /// The level of each `error_log` that writes more than this one.
    ErrorLog,
    /// An `upstream` block for each host that `proxy_pass` names, with the directives that its locations need for it.
    NewUpstream,
    /// A kept connection for each `fastcgi_pass`, with the directives that it needs.
    FastCgi,
    /// A cache for each location that passes requests on and whose answers may be stored.
    Cache,
    /// Parameters of each `access_log` that writes a file.
    AccessLog,
    /// Each `upstream` block, with the directives that its locations need for it.
    Upstream,
    /// A kernel setting, `name = value`. Text behind a `;` is a parameter of `listen`.
    Sysctl,
}

/// Condition under which a setting can have an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Always.
    Nothing,
    /// More than one CPU.
    Cpus,
    /// Files are served.
    Files,
    /// Files beyond 256 kB are served.
    LargeFiles,
    /// Answers are compressed.
    Gzip,
    /// The goal counts the bytes of answers.
    Transfer,
    /// The goal is the time of a page, and connections are encrypted.
    EncryptedPage,
    /// Requests are passed on.
    Proxy,
    /// The load reaches a real FastCGI application.
    FastCgi,
    /// The load reaches real upstreams.
    RealUpstreams,
    /// Connections are encrypted.
    Tls,
    /// HTTP/2 is spoken.
    Http2,
    /// HTTP/3 is spoken.
    Http3,
    /// Clients come over TCP.
    Tcp,
    /// The load comes near the number of connections that is allowed.
    ManyConnections,
}

impl Place {
    /// Returns the words for `--list`.
    pub fn text(self) -> &'static str {
        match self {
            Main => "a directive at the top of the file",
            Events => "a directive in events",
            There => "a directive, where it stands with another value",
            Http => "a directive in http, and wherever else it stands",
            Listen => "a parameter of each address's first listen",
            ListenThere => "a parameter of listen, where it is less",
            ErrorLog => "the level of each error_log that writes more",
            NewUpstream => "an upstream for each host that proxy_pass names",
            FastCgi => "an upstream for each fastcgi_pass",
            Cache => "a cache for each location with proxy_pass whose answers may be stored",
            AccessLog => "parameters of each access_log",
            Upstream => "a directive in each upstream",
            Sysctl => "a kernel setting, with --sysctl, as root; for the whole machine",
        }
    }
}

impl Need {
    /// Returns the words for `--list`.
    pub fn text(self) -> &'static str {
        match self {
            Need::Nothing => "any load",
            Need::Cpus => "more than one CPU for the server",
            Need::Files => "files",
            Need::LargeFiles => "files beyond 256 kB",
            Need::Gzip => "compressed answers",
            Need::Transfer => "--for transfer",
            Need::EncryptedPage => "TLS, with --for transfer",
            Need::Proxy => "proxied requests",
            Need::FastCgi => "FastCGI, with --real-upstreams",
            Need::RealUpstreams => "proxied requests, with --real-upstreams",
            Need::Tls => "TLS",
            Need::Http2 => "HTTP/2",
            Need::Http3 => "HTTP/3",
            Need::Tcp => "TCP",
            Need::ManyConnections => "as many connections as are allowed",
        }
    }
}

/// Risk of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Safety {
    /// Answers and logs stay as they are.
    Safe,
    /// Users or operators may notice it; the text says how.
    Notice(&'static str),
    /// Changes the whole machine.
    Machine,
}

/// A setting that can be tried.
#[derive(Clone, Copy, Debug)]
pub struct Knob {
    /// Name, for `--only`, `--skip` and reports.
    pub name: &'static str,
    /// Place of the setting.
    pub place: Place,
    /// Levels from 1 on, the most promising first. `{half}` and `{more}` are numbers of this machine.
    pub levels: &'static [&'static str],
    /// Condition for an effect.
    pub need: Need,
    /// Its risk.
    pub safety: Safety,
    /// The only server that has it, or in which it does something.
    pub only: Option<Which>,
}

const fn row(name: &'static str, place: Place, levels: &'static [&'static str], need: Need) -> Knob {
    Knob { name, place, levels, need, safety: Safety::Safe, only: None }
}

const fn notice(knob: Knob, text: &'static str) -> Knob {
    Knob { safety: Safety::Notice(text), ..knob }
}

const fn machine(knob: Knob) -> Knob {
    Knob { safety: Safety::Machine, ..knob }
}

const fn only(server: Which, knob: Knob) -> Knob {
    Knob { only: Some(server), ..knob }
}

use Place::{
    AccessLog, Cache, ErrorLog, Events, FastCgi, Http, Listen, ListenThere, Main, NewUpstream, Sysctl, There,
    Upstream,
};

/// The setting with which clients come by another version of HTTP.
pub(crate) const HTTP2: &str = "http2";

/// What is text and worth compressing.
const TEXT_TYPES: &str = "gzip_types text/plain text/css text/xml text/javascript application/javascript application/json application/xml image/svg+xml;";
const TRANSFER_GZIP: &str = "gzip on; gzip_comp_level 4; gzip_min_length 256; gzip_vary on; gzip_proxied any; gzip_types \
                             text/plain text/css text/xml text/javascript application/javascript application/json application/xml image/svg+xml;";
const TRANSFER_GZIP_6: &str = "gzip on; gzip_comp_level 6; gzip_min_length 256; gzip_vary on; gzip_proxied any; gzip_types \
                               text/plain text/css text/xml text/javascript application/javascript application/json application/xml image/svg+xml;";
const TRANSFER_BROTLI: &str = "brotli on; brotli_comp_level 4; brotli_min_length 256; brotli_types text/plain text/css text/xml \
                               text/javascript application/javascript application/json application/xml image/svg+xml;";

/// All settings that can be tried.
pub const KNOBS: &[Knob] = &[
    row(
        "worker_processes",
        Main,
        &["worker_processes auto;", "worker_processes {half};", "worker_processes {more};"],
        Need::Nothing,
    ),
    row("worker_priority", There, &["worker_priority 0;"], Need::Nothing),
    row("worker_cpu_affinity", Main, &["worker_cpu_affinity auto;"], Need::Cpus),
    // multi_accept without reuseport lets one worker take all connections, so it comes with it only.
    row("reuseport", Listen, &["reuseport", "reuseport; multi_accept on;"], Need::Cpus),
    row("accept_mutex", There, &["accept_mutex off;"], Need::Cpus),
    row("listen_backlog", ListenThere, &["backlog=511", "backlog=4096"], Need::Tcp),
    row("multi_accept", There, &["multi_accept off;"], Need::Nothing),
    row(
        "worker_connections",
        Events,
        &["worker_connections 4096;", "worker_connections 16384;"],
        Need::ManyConnections,
    ),
    row("sendfile", Http, &["sendfile on; tcp_nopush on;", "sendfile on; tcp_nopush off;"], Need::Files),
    row(
        "sendfile_max_chunk",
        Http,
        &["sendfile_max_chunk 256k;", "sendfile_max_chunk 2m;"],
        Need::LargeFiles,
    ),
    row("aio", Http, &["aio threads;"], Need::LargeFiles),
    notice(
        row(
            "open_file_cache",
            Http,
            &[
                "open_file_cache max=10000 inactive=30s; open_file_cache_valid 5s;",
                "open_file_cache max=10000 inactive=60s; open_file_cache_valid 60s;",
            ],
            Need::Files,
        ),
        "changed files are noticed after that time only",
    ),
    notice(
        row("access_log", AccessLog, &["buffer=64k flush=1s", "buffer=256k flush=5s"], Need::Nothing),
        "lines come late, and a crash (of the machine, in nginx also of a worker) loses those in the buffer",
    ),
    notice(
        row("error_log", ErrorLog, &["error", "warn"], Need::Nothing),
        "lines below that level are no longer written",
    ),
    row(
        "keepalive_requests",
        Http,
        &["keepalive_requests 100000;", "keepalive_requests 1000;"],
        Need::Nothing,
    ),
    row("keepalive_timeout", There, &["keepalive_timeout 75s;"], Need::Nothing),
    notice(
        row(
            "gzip_comp_level",
            Http,
            &["gzip_comp_level 1;", "gzip_comp_level 2;", "gzip_comp_level 4;", "gzip_comp_level 6;"],
            Need::Gzip,
        ),
        "less CPU time means more bytes sent",
    ),
    row("gzip_min_length", Http, &["gzip_min_length 1000;", "gzip_min_length 256;"], Need::Gzip),
    row("gzip_types", There, &[TEXT_TYPES], Need::Gzip),
    notice(
        row("gzip", Http, &[TRANSFER_GZIP, TRANSFER_GZIP_6], Need::Transfer),
        "compression costs CPU time, and a page with secrets and text of its visitor in one answer may leak them (BREACH)",
    ),
    notice(
        only(Which::Forebay, row("brotli", Http, &[TRANSFER_BROTLI], Need::Transfer)),
        "compression costs CPU time, and a page with secrets and text of its visitor in one answer may leak them (BREACH)",
    ),
    row("client_header_buffer_size", There, &["client_header_buffer_size 1k;"], Need::Nothing),
    row("large_client_header_buffers", There, &["large_client_header_buffers 4 8k;"], Need::Nothing),
    row("tcp_nodelay", There, &["tcp_nodelay on;"], Need::Tcp),
    row("output_buffers", Http, &["output_buffers 4 64k;", "output_buffers 2 32k;"], Need::Files),
    row(
        "proxy_buffers",
        Http,
        &[
            "proxy_buffer_size 8k; proxy_buffers 8 16k; proxy_busy_buffers_size 32k;",
            "proxy_buffer_size 16k; proxy_buffers 4 32k; proxy_busy_buffers_size 64k;",
        ],
        Need::Proxy,
    ),
    notice(
        row("proxy_buffering", Http, &["proxy_buffering on;"], Need::Proxy),
        "answers that trickle arrive in larger pieces",
    ),
    row("proxy_http_version", There, &["proxy_http_version 1.1;"], Need::Proxy),
    row("proxy_max_temp_file_size", There, &["proxy_max_temp_file_size 1024m;"], Need::Proxy),
    notice(
        row("proxy_keepalive", NewUpstream, &["keepalive 32;"], Need::Proxy),
        "the host stands in an upstream block: redirects of the upstream to itself need a proxy_redirect of their own",
    ),
    row("upstream_keepalive", Upstream, &["keepalive 32;", "keepalive 128;"], Need::Proxy),
    notice(
        row("fastcgi_keep_conn", FastCgi, &["keepalive 4;", "keepalive 16;"], Need::FastCgi),
        "a kept connection holds a process of PHP-FPM: pm.max_children has to exceed keepalive times worker_processes",
    ),
    notice(
        row(
            "proxy_cache",
            Cache,
            &["proxy_cache_valid 200 1s;", "proxy_cache_valid 200 10s;"],
            Need::RealUpstreams,
        ),
        "answers are up to that old, and were the same in a few requests only: what differs by visitor must not be stored",
    ),
    row(
        "ssl_session_cache",
        Http,
        &["ssl_session_cache shared:tuned:10m; ssl_session_timeout 1h;"],
        Need::Tls,
    ),
    row("ssl_session_tickets", There, &["ssl_session_tickets on;"], Need::Tls),
    notice(
        row("ssl_ecdh_curve", Http, &["ssl_ecdh_curve X25519;"], Need::Tls),
        "leaves out key exchanges that withstand quantum computers",
    ),
    row("ssl_buffer_size", Http, &["ssl_buffer_size 4k;", "ssl_buffer_size 16k;"], Need::Tls),
    row(HTTP2, Http, &["http2 on;"], Need::EncryptedPage),
    // Forebay always does it.
    only(Which::Nginx, row("quic_gso", Http, &["quic_gso on;"], Need::Http3)),
    only(
        Which::Forebay,
        row(
            "quic_congestion_control",
            Http,
            &["quic_congestion_control cubic;", "quic_congestion_control bbr;"],
            Need::Http3,
        ),
    ),
    row("http3_stream_buffer_size", Http, &["http3_stream_buffer_size 256k;"], Need::Http3),
    row("http2_chunk_size", Http, &["http2_chunk_size 16k;", "http2_chunk_size 32k;"], Need::Http2),
    machine(row("backlog", Sysctl, &["net.core.somaxconn = 4096; backlog=4096"], Need::Tcp)),
    machine(row("port_range", Sysctl, &["net.ipv4.ip_local_port_range = 15000 65000"], Need::Proxy)),
    machine(row("tcp_tw_reuse", Sysctl, &["net.ipv4.tcp_tw_reuse = 1"], Need::Proxy)),
    machine(row("tcp_fastopen", Sysctl, &["net.ipv4.tcp_fastopen = 3; fastopen=256"], Need::Tcp)),
    machine(row("netdev_max_backlog", Sysctl, &["net.core.netdev_max_backlog = 4000"], Need::Nothing)),
    // Newer kernels have these values by default: less would be a step back.
    machine(row("tcp_rmem", Sysctl, &["net.ipv4.tcp_rmem = 4096 131072 33554432"], Need::Tcp)),
    machine(row("tcp_wmem", Sysctl, &["net.ipv4.tcp_wmem = 4096 65536 16777216"], Need::Tcp)),
    machine(row("tcp_notsent_lowat", Sysctl, &["net.ipv4.tcp_notsent_lowat = 131072"], Need::Tcp)),
    machine(row("tcp_congestion_control", Sysctl, &["net.ipv4.tcp_congestion_control = bbr"], Need::Tcp)),
    machine(row("tcp_slow_start_after_idle", Sysctl, &["net.ipv4.tcp_slow_start_after_idle = 0"], Need::Tcp)),
];

/// Returns a level with the numbers of a machine.
pub fn level_text(text: &str, cpus: usize) -> String {
    text.replace("{half}", &(cpus / 2).max(1).to_string()).replace("{more}", &(cpus + 1).to_string())
}

/// Returns statements of a level: `a b; c d;` to `[(a, b), (c, d)]`.
pub fn statements(text: &str) -> Vec<(&str, &str)> {
    text.split(';')
        .map(str::trim)
        .filter(|s| !s.is_empty())
        .map(|s| s.split_once(' ').map_or((s, ""), |(n, a)| (n, a.trim())))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_directive_exists_and_names_differ() {
        for (i, k) in KNOBS.iter().enumerate() {
            assert!(KNOBS[..i].iter().all(|o| o.name != k.name), "{}", k.name);
            assert!(!k.levels.is_empty() && k.levels.len() < 8);
            for level in k.levels {
                let level = level_text(level, 4);
                let directives = match k.place {
                    Main | Events | Http | There | Upstream => statements(&level),
                    Listen => statements(&level)[1..].to_vec(),
                    NewUpstream | FastCgi | Cache => statements(&level),
                    AccessLog | ListenThere | ErrorLog => Vec::new(),
                    Sysctl => {
                        assert!(
                            level.split_once(" = ").is_some_and(|(n, _)| n.starts_with("net.")),
                            "{level}"
                        );
                        Vec::new()
                    }
                };
                for (name, _) in directives {
                    assert!(!forebay_conf::grammar::rows(name.as_bytes()).is_empty(), "{name}");
                }
            }
            assert_eq!(matches!(k.safety, Safety::Machine), k.place == Sysctl);
        }
    }

    #[test]
    fn multi_accept_comes_with_reuseport_only() {
        for k in KNOBS {
            for level in k.levels.iter().filter(|l| l.contains("multi_accept on")) {
                assert!(level.contains("reuseport"), "{level}");
            }
        }
    }

    #[test]
    fn numbers_of_the_machine() {
        assert_eq!(level_text("worker_processes {half};", 1), "worker_processes 1;");
        assert_eq!(statements("a b c; d;"), [("a", "b c"), ("d", "")]);
    }
}
