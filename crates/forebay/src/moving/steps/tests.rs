use super::*;
use crate::moving::configuration::Configuration;
use crate::moving::running::Running;
use crate::paths::Paths;
use forebay_copy::record::{Digest, Versions};
use std::path::PathBuf;

fn digest(text: &str) -> Digest {
    Digest::new([(Path::new("/etc/nginx/nginx.conf"), text.as_bytes())])
}

/// Debian's nginx with its configuration. It runs.
fn debian() -> Facts {
    let paths = Paths::new(None);
    let nginx = Nginx { program: "/usr/sbin/nginx".into(), version: "1.22.1".into(), paths, is_aside: false };
    let configuration = Configuration {
        path: "/etc/nginx/nginx.conf".into(),
        digest: digest("a"),
        files: 3,
        errors: Vec::new(),
        warnings: 0,
        pid: "/run/nginx.pid".into(),
        names_pid: true,
        is_in_foreground: false,
        faults: 2,
        access_log: None,
        is_of_proxy_manager: false,
    };
    Facts {
        program: "/usr/sbin/forebay".into(),
        versions: versions("1.22.1"),
        nginx: Some(nginx),
        origin: Origin::Debian("nginx".into()),
        configuration,
        running: Some(running(Server::Nginx)),
        compared: None,
        tested: None,
        tests: Digest::default(),
        log: Some("/var/log/nginx/access log".into()),
        prefix: None,
    }
}

fn versions(nginx: &str) -> Versions {
    Versions { forebay: forebay_core::NGINX_VERSION.into(), nginx: Some(nginx.into()) }
}

fn running(server: Server) -> Running {
    let program = "/usr/sbin/nginx".into();
    Running {
        pid: 812,
        server,
        program,
        names_configuration: false,
        is_in_foreground: false,
        has_former: false,
    }
}

fn record<T: forebay_copy::record::Recorded>(text: &str, result: T) -> Option<Record<T>> {
    Some(Record::new(Path::new("/etc/nginx/nginx.conf"), digest(text), versions("1.22.1"), result))
}

fn compared(unknown: u64) -> Option<Record<Compared>> {
    record("a", Compared { requests: 900, unknown, known: 1, lines: 9, reached: 8, tests: None })
}

fn tested(failed: u64) -> Option<Record<Tested>> {
    let mut record = record("a", Tested { files: Digest::default(), tests: 5, failed })?;
    record.nginx = None;
    Some(record)
}

fn states(facts: &Facts) -> Vec<&'static str> {
    of(facts).iter().map(|step| step.state.name()).collect()
}

/// Commands that come next.
fn commands(facts: &Facts) -> Vec<String> {
    next(&of(facts)).iter().flat_map(|step| step.commands.clone()).collect()
}

/// Facts about one step.
fn fact(facts: &Facts, name: &str) -> String {
    let step = of(facts).into_iter().find(|step| step.name == name);
    step.expect("a step").fact
}

#[test]
fn the_first_step_that_is_not_done_is_next() {
    let mut facts = debian();
    assert_eq!(states(&facts), ["done", "done", "next", "later", "later", "later"]);
    assert_eq!(
        commands(&facts),
        ["forebay compare -c /etc/nginx/nginx.conf --log '/var/log/nginx/access log'"]
    );
    let found = fact(&facts, "nginx");
    assert_eq!(found, "1.22.1 of the package nginx, running as process 812; 2 CVEs concern it");
    facts.compared = compared(0);
    assert_eq!(states(&facts), ["done", "done", "done", "next", "later", "later"]);
    assert!(commands(&facts)[0].ends_with(" --write-tests tests.yaml"), "{:?}", commands(&facts));
    facts.tested = tested(0);
    assert_eq!(states(&facts), ["done", "done", "done", "done", "next", "later"]);
    assert!(commands(&facts)[0].starts_with("apt install ./forebay-nginx_"), "{:?}", commands(&facts));
    facts.running = Some(running(Server::Forebay));
    assert_eq!(states(&facts), ["done"; 6]);
    assert!(commands(&facts).is_empty());
    assert_eq!(fact(&facts, "way back"), "apt remove forebay-nginx");
}

#[test]
fn differences_do_not_stand_in_the_way() {
    let facts = Facts { compared: compared(2), ..debian() };
    assert_eq!(states(&facts), ["done", "done", "failed", "next", "later", "later"]);
    assert_eq!(commands(&facts).len(), 2);
    assert!(
        fact(&facts, "compared").starts_with("900 requests, 2 unknown differences, 1 known, 8 of 9 lines")
    );
    let facts = Facts { compared: compared(0), tested: tested(1), ..debian() };
    assert_eq!(states(&facts), ["done", "done", "done", "failed", "later", "later"]);
}

#[test]
fn what_was_found_for_something_else_is_stale() {
    let mut facts = Facts { compared: compared(0), tested: tested(0), ..debian() };
    facts.configuration.digest = digest("b");
    assert_eq!(states(&facts), ["done", "done", "stale", "stale", "later", "later"]);
    assert!(fact(&facts, "compared").starts_with("/etc/nginx/nginx.conf has changed since 20"));
    assert_eq!(commands(&facts).len(), 1);
    let facts = Facts { compared: compared(0), tested: tested(0), versions: versions("1.24.0"), ..debian() };
    assert_eq!(states(&facts), ["done", "done", "stale", "done", "later", "later"], "tests do not run nginx");
    assert!(fact(&facts, "compared").starts_with("nginx was 1.22.1 since"));
}

#[test]
fn mistakes_come_first() {
    let mut facts = debian();
    facts.configuration.errors = vec!["unknown directive \"x\" in /etc/nginx/nginx.conf:3".into()];
    assert_eq!(states(&facts), ["done", "failed", "later", "later", "later", "later"]);
    assert_eq!(commands(&facts), ["forebay check /etc/nginx/nginx.conf"]);
    let facts = Facts { nginx: None, running: None, ..debian() };
    assert_eq!(states(&facts)[0], "failed");
}

#[test]
fn each_installation_has_its_way() {
    let built = |prefix: &str| Nginx {
        program: format!("{prefix}/sbin/nginx").into(),
        version: "1.28.0".into(),
        paths: Paths::new(Some(prefix)),
        is_aside: false,
    };
    let way = |facts: &Facts| (Way::of(facts), Way::of(facts).commands(facts).join(" ; "));
    let package = Facts { program: "/tmp/forebay".into(), ..debian() };
    assert!(way(&package).1.starts_with("apt install ./forebay_"), "both packages");
    for (origin, wanted, text) in [
        (Origin::Rpm("nginx".into()), Way::Rpm, "systemctl restart nginx"),
        (Origin::Image, Way::Image, "docker-daemon:forebay:debian"),
        (Origin::ProxyManager, Way::ProxyManager, "COPY --chmod=755 forebay /usr/sbin/nginx"),
        (Origin::ByHand, Way::Signal, "cp /usr/sbin/forebay /usr/sbin/nginx && kill -USR2"),
    ] {
        let (found, commands) = way(&Facts { origin, ..debian() });
        assert_eq!(found, wanted);
        assert!(commands.contains(text), "{commands}");
    }
    let mut hand = Facts { origin: Origin::ByHand, nginx: Some(built("/opt/nginx")), ..debian() };
    let (found, commands) = way(&hand);
    assert_eq!(found, Way::Signal);
    assert!(
        commands.contains("exec /usr/sbin/forebay -p /opt/nginx/ -c /etc/nginx/nginx.conf"),
        "{commands}"
    );
    let behind_script = Running {
        program: "/usr/sbin/forebay".into(),
        names_configuration: true,
        ..running(Server::Forebay)
    };
    let swapped = Facts { running: Some(behind_script), nginx: hand.nginx.clone(), ..debian() };
    let swapped = Facts { origin: Origin::ByHand, ..swapped };
    let back = Way::of(&swapped).back(&swapped).join(" ; ");
    assert!(back.contains("kill -TERM") && !back.contains("USR2"), "{back}");
    hand.configuration.is_in_foreground = true;
    assert_eq!(way(&hand).0, Way::Restart);
    let other = Facts { running: None, ..debian() };
    assert_eq!(way(&other).0, Way::Debian);
}

#[test]
fn the_way_back_needs_an_nginx() {
    let swapped = Facts { running: Some(running(Server::Forebay)), ..debian() };
    assert_eq!(states(&swapped), ["done", "done", "later", "later", "done", "done"]);
    assert!(commands(&swapped).is_empty(), "it serves");
    let without = Facts { nginx: None, running: Some(running(Server::Forebay)), ..debian() };
    assert_eq!(states(&without), ["done", "done", "later", "later", "done", "failed"]);
    let mut former = swapped;
    former.running = Some(Running { has_former: true, ..running(Server::Forebay) });
    assert!(fact(&former, "way back").starts_with("kill -HUP $(cat /run/nginx.pid.oldbin), then kill -QUIT"));
}

#[test]
fn paths_are_words_of_a_shell() {
    assert_eq!(word(&PathBuf::from("/etc/nginx/a-b_c.conf")), "/etc/nginx/a-b_c.conf");
    assert_eq!(word(Path::new("/etc/it's $x")), "'/etc/it'\\''s $x'");
}
