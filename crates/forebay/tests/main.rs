//! The program as people start it: one test program, a module for each area.
#![allow(missing_docs)]
#![allow(clippy::disallowed_methods, reason = "tests make files as they like")]

mod acme;
mod answers_memory;
mod bench;
mod cache;
mod certificates;
mod command_line;
mod compare;
mod compress;
mod control_api;
mod dashboard;
mod dav;
mod differential;
mod differential_answers;
mod differential_proxy;
mod differential_upstream;
mod drills;
mod exchange;
mod expect;
mod explain;
mod fastcgi;
mod headers_more;
mod health;
mod healthcheck;
mod http2;
mod http3;
mod idle;
mod implied_groups;
#[cfg(feature = "kubernetes")]
mod ingress;
mod ingress_metrics;
#[cfg(feature = "kubernetes")]
mod ingress_show;
mod init_script;
mod kept_responses;
mod keyval;
mod language;
mod load;
mod loads;
mod logs;
mod many_servers;
mod memcached;
mod memory;
mod metrics;
mod modes;
mod moving;
mod ocsp;
mod own_shortage;
mod pages;
mod processes;
mod proxied_answers;
mod proxy;
mod proxy_h2;
mod proxy_h2_streams;
mod repeated;
mod robustness;
mod rotated_certificates;
mod scgi_uwsgi;
mod security;
mod service_manager;
mod shared_limits;
mod shared_purges;
mod shared_sessions;
mod stream;
mod stream_directives;
mod stream_faults;
mod stream_health;
mod stream_metrics;
mod stream_preread;
mod stream_reloads;
mod stream_sessions;
mod stream_udp;
mod stream_unix_datagrams;
mod subcommands;
mod subrequests;
mod switched;
mod tls;
mod unfinished;
mod uploads;
mod upstream;
mod upstream_variables;
mod watchdog;
mod websocket;

/// The program under test.
const PROGRAM: &str = env!("CARGO_BIN_EXE_forebay");

#[test]
fn the_kit_runs_the_program_that_cargo_has_built() {
    assert_eq!(forebay_testkit::program(), PROGRAM);
}
