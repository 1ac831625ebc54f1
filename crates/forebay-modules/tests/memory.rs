//! Memory of configurations with many servers. Nothing of a configuration that was replaced stays in memory.
#![allow(missing_docs)]
#![allow(clippy::disallowed_methods, reason = "tests make files as they like")]

use forebay_core::config::Config;
use forebay_sys::alloc::CountingAllocator;
use forebay_testkit::worker;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Weak};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Most that one more server may take, bytes: with TLS, a name and two locations of its own. nginx takes 52 KB for
/// the same, once for all its processes; here the master has a copy, too.
const SERVER: i64 = 10 * 1024;

/// Makes a certificate by `openssl`. `false`: that is missing.
fn certificate(dir: &Path, name: &str) -> bool {
    let (key, crt) = (format!("{name}.key"), format!("{name}.crt"));
    let done = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "9",
        ])
        .args(["-keyout", &key, "-out", &crt, "-subj", "/CN=h"])
        .current_dir(dir)
        .output();
    if done.is_err() {
        assert!(std::env::var_os("CI").is_none(), "openssl is missing");
        println!("skipped: openssl is missing");
    }
    done.is_ok_and(|d| d.status.success())
}

/// A configuration of so many servers that take turns with so many certificates.
fn load(dir: &Path, servers: usize, certificates: usize) -> Arc<Config> {
    let mut text = "events {}\nhttp { access_log off;\n".to_owned();
    for i in 0..servers {
        let c = i % certificates;
        let _ = writeln!(
            text,
            "server {{ listen 127.0.0.1:443 ssl; server_name s{i}.test; ssl_certificate c{c}.crt; \
             ssl_certificate_key c{c}.key; location / {{ proxy_pass http://127.0.0.1:8080; proxy_set_header Host $host; }} \
             location /static/ {{ root html; expires 1d; }} }}"
        );
    }
    text.push('}');
    Arc::new(worker::load(dir, &text, forebay_modules::FRONT_ENDS))
}

fn live() -> i64 {
    CountingAllocator::counts().live()
}

#[test]
fn servers_that_say_the_same_share_it() {
    let dir = tempfile::tempdir().expect("directory");
    if !certificate(dir.path(), "c0") || !certificate(dir.path(), "c1") {
        return;
    }
    for certificates in [1, 2] {
        // What all configurations of a process share is there from the first on.
        drop(load(dir.path(), 10, certificates));
        let before = live();
        let few = load(dir.path(), 50, certificates);
        let between = live();
        let many = load(dir.path(), 300, certificates);
        let (few_take, many_take) = (between - before, live() - between);
        let server = (many_take - few_take) / 250;
        println!("{certificates} certificates: {server} bytes a server");
        assert!(server < SERVER, "{server} bytes a server");
        drop((few, many));
    }
}

#[test]
fn nothing_stays_of_a_configuration_that_was_replaced() {
    let dir = tempfile::tempdir().expect("directory");
    if !certificate(dir.path(), "c0") {
        return;
    }
    let mut current = load(dir.path(), 100, 1);
    let mut first = None;
    for _ in 0..10 {
        let old: Weak<Config> = Arc::downgrade(&current);
        current = load(dir.path(), 100, 1);
        assert!(old.upgrade().is_none(), "somebody holds it");
        let now = live();
        let first = *first.get_or_insert(now);
        // Tables that are kept may have grown.
        assert!(now - first < 64 * 1024, "{} bytes more", now - first);
    }
}
