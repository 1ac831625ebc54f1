//! Fixes: what they leave behind.

use super::{machine, target_of, whole};
use crate::*;
use forebay_conf::parse::parse;
use forebay_core::config::Environment;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const PATH: &str = "/etc/n.conf";

fn environment(path: &Path) -> Environment {
    Environment {
        prefix: PathBuf::from("/etc/"),
        conf_path: path.to_owned(),
        globals: String::new(),
        error_log: None,
        access_log: String::new(),
    }
}

/// A machine with memory for all buffers: a fix that restores a default may need more of it.
fn large() -> Host {
    Host { memory: 1 << 44, descriptors: (1 << 20, 1 << 20), ..machine().without_places() }
}

/// Returns the rules that fire for a text, and the errors of the parser.
fn state(text: &str, target: Target) -> (BTreeSet<String>, Vec<String>) {
    let mut files = Files::recorded([(PATH, text)]);
    let parsed = parse(Path::new(PATH), "", Path::new("/etc"), &mut files);
    let found = examine(&Scene::new(&parsed.tree), &large(), target);
    let rules = found.into_iter().map(|f| f.rule.id.clone()).collect();
    (rules, parsed.errors.into_iter().map(|e| e.message).collect())
}

/// Returns a text with all fixes applied, or the same text.
pub(super) fn mended(text: &str, target: Target) -> String {
    let environment = environment(Path::new(PATH));
    let host = large();
    let surgery =
        Surgery { environment: &environment, host: &host, target, with_unsafe: true, with_optional: true };
    let outcome = surgery.perform(&|| Files::recorded([(PATH, text)]));
    let file = outcome.operations.into_iter().next();
    file.map_or_else(|| text.to_owned(), |o| String::from_utf8(o.new).expect("UTF-8"))
}

/// Asserts that fixes bring no other finding and no error.
fn assert_sound(name: &str, text: &str, target: Target) -> (BTreeSet<String>, String) {
    let (before, errors) = state(text, target);
    let new = mended(text, target);
    let (after, new_errors) = state(&new, target);
    let fresh: Vec<_> = after.difference(&before).collect();
    assert!(fresh.is_empty(), "{name}: {fresh:?} are new in\n{new}\nof\n{text}");
    for error in new_errors {
        assert!(errors.contains(&error), "{name}: {error} in\n{new}");
    }
    (after, new)
}

#[test]
fn every_fix_mends_its_example_and_brings_nothing_new() {
    for rule in rules() {
        let Some(example) = rule.example.as_ref().filter(|_| rule.fix.is_some()) else { continue };
        let target = target_of(rule);
        let (after, new) = assert_sound(&rule.id, &whole(&example.bad), target);
        assert!(!after.contains(&rule.id), "{} is still there: {new}", rule.id);
        // Over several lines as well.
        let lines = whole(&example.bad).replace("; ", ";\n    ").replace("{ ", "{\n    # a comment\n    ");
        let (after, new) = assert_sound(&rule.id, &lines, target);
        assert!(!after.contains(&rule.id), "{} is still there: {new}", rule.id);
    }
}

#[test]
fn examples_without_faults_stay_sound() {
    for rule in rules() {
        let Some(example) = &rule.example else { continue };
        assert_sound(&rule.id, &whole(&example.good), target_of(rule));
        assert_sound(&rule.id, &whole(&example.bad), Target::Forebay);
    }
}

/// Real configurations, which are no part of this repository: FOREBAY_TEST_CORPUS is their folder.
#[test]
fn fixes_of_real_configurations_bring_nothing_new() {
    let Some(dir) = std::env::var_os("FOREBAY_TEST_CORPUS") else {
        assert_sound("none", "events {}", Target::Forebay);
        return;
    };
    for entry in std::fs::read_dir(dir).expect("a folder").flatten() {
        let Ok(text) = std::fs::read_to_string(entry.path()) else { continue };
        for target in [Target::Forebay, Target::Nginx(None)] {
            assert_sound(&entry.path().display().to_string(), &text, target);
        }
    }
}

#[test]
fn layout_and_comments_stay() {
    let text = "# top\nworker_processes 1; # one\nevents {\n\tmulti_accept on;\n\tworker_connections 600;\n}\n\n\
                http {\n\tserver_tokens off;\n\tgzip on; # pages\n}\n";
    let expected = "# top\nworker_processes auto; # one\nevents {\n\tworker_connections 600;\n}\n\n\
                    http {\n\tserver_tokens off;\n\tgzip on; # pages\n\tgzip_types text/css text/plain text/xml application/javascript application/json \
                    application/xml image/svg+xml;\n\tgzip_min_length 256;\n\tgzip_vary on;\n}\n";
    assert_eq!(mended(text, Target::Nginx(None)), expected);
}

#[test]
fn included_files_are_mended_too() {
    let main = "events {}\nhttp {\n    include sites/*.conf;\n}\n";
    let site = "server {\n    keepalive_timeout 0;\n}\n";
    let environment = environment(Path::new(PATH));
    let host = machine();
    let surgery = Surgery {
        environment: &environment,
        host: &host,
        target: Target::Forebay,
        with_unsafe: false,
        with_optional: false,
    };
    let outcome = surgery.perform(&|| Files::recorded([(PATH, main), ("/etc/sites/a.conf", site)]));
    let changed = |name: &str| {
        let found = outcome.operations.iter().find(|o| o.path.ends_with(name));
        found.map(|o| String::from_utf8_lossy(&o.new).into_owned())
    };
    assert_eq!(changed("a.conf").as_deref(), Some("server {\n}\n"));
    assert!(changed("n.conf").is_some_and(|t| t.contains("    server_tokens off;\n    include")));
    assert!(outcome.applied.contains(&"keepalive-off"));
}

#[test]
fn fixes_neither_open_nor_shut_more_than_is_meant() {
    let unchanged = |text: &str, kept: &str| {
        let new = mended(&whole(text), Target::Nginx(None));
        assert!(new.contains(kept), "{kept} is gone:\n{new}");
    };
    // A rule for everybody in front of it makes "deny all" void.
    unchanged(
        "server { location /m { allow 0.0.0.0/0; proxy_pass http://10.0.0.1; } }",
        "allow 0.0.0.0/0; proxy_pass",
    );
    // Rules that are there come first.
    unchanged(
        "server { location /s { stub_status; allow 10.0.0.0/8; } }",
        "stub_status; allow 10.0.0.0/8; deny all;",
    );
    // Who is let in would get the sources of scripts.
    unchanged(
        "server { location /admin/ { allow 10.0.0.1; deny all; } location ~ \\.php$ { try_files $uri =404; fastcgi_pass 127.0.0.1:1; } }",
        "location /admin/ {",
    );
    // A user has no address.
    unchanged(
        "server { location / { uwsgi_param REMOTE_USER $http_a; uwsgi_pass 127.0.0.1:1; } }",
        "REMOTE_USER $http_a;",
    );
    // A line that does harm is not copied.
    unchanged(
        "server { add_header Strict-Transport-Security max-age=0 always; location /a { add_header X-A b; proxy_pass http://10.0.0.1; } }",
        "location /a { add_header X-A b;",
    );
    unchanged("server { location ~ /a/.*.php$ { return 404; } }", "location ~ /a/.*\\.php$ {");
}
