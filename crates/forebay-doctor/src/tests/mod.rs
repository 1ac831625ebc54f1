mod detours;
mod doors;
mod fixes;
mod planted;
mod quic;
mod speed;
mod stream;

use super::facts::disk::{Disks, Mount, Place, Use};
use super::facts::{host, live};
use super::*;
use forebay_conf::error::Level;
use std::path::Path;

/// Rules that fire, with the lines where they do.
fn fired_for(conf: &str, host: &Host, target: Target) -> Vec<(String, u32)> {
    let mut files = Files::recorded([("/etc/n.conf", conf)]);
    let parsed = forebay_conf::parse::parse(Path::new("/etc/n.conf"), "", Path::new("/etc"), &mut files);
    let scene = Scene::new(&parsed.tree);
    examine(&scene, host, target)
        .into_iter()
        .map(|f| (f.rule.id.clone(), f.span.map_or(0, |s| s.line)))
        .collect()
}

fn fired(conf: &str, host: &Host) -> Vec<(String, u32)> {
    fired_for(conf, host, nginx())
}

/// The newest nginx.
fn nginx() -> Target {
    Target::Nginx(NginxVersion::parse("1.31.8"))
}

fn machine() -> Host {
    let mut h = Host {
        home: Home::Here,
        cpus: 4,
        online: 4,
        memory: 8 << 30,
        descriptors: (1024, 1 << 20),
        ..Host::default()
    };
    for (n, v) in
        [("net.core.somaxconn", "4096"), ("fs.file-max", "9000000"), ("net.ipv4.tcp_syncookies", "1")]
    {
        h.sysctls.insert(n.to_owned(), v.to_owned());
    }
    h
}

fn http(text: &str) -> String {
    format!(
        "worker_processes auto; events {{ worker_connections 600; }} http {{ server_tokens off; {text} }}"
    )
}

#[test]
fn every_rule_looks_and_has_an_example() {
    let ids: Vec<&str> = checks::ids().collect();
    for id in &ids {
        assert!(rule(id).is_some(), "{id} has no row in data/rules");
    }
    let of_machine = ["disks", "kernel", "running", "certificates"];
    let own = [
        "rsa-only",
        "udp-receive-buffer",
        "udp-drops",
        "udp-firewall",
        "worker-processes-quota",
        "descriptors-unset",
    ];
    for rule in rules() {
        assert!(ids.contains(&rule.id.as_str()), "{} looks for nothing", rule.id);
        let needs = !of_machine.contains(&rule.family) && !own.contains(&rule.id.as_str());
        assert!(!needs || rule.example.is_some(), "{} has no example", rule.id);
        assert!(!rule.evidence.is_empty() && !rule.instead.is_empty(), "{}", rule.id);
    }
}

/// What `forebay tune` can prove, doctor knows.
#[test]
fn every_setting_of_tune_has_a_rule() {
    let known: Vec<&String> = rules().flat_map(|r| &r.knobs).collect();
    for knob in forebay_tune::knobs::KNOBS {
        assert!(known.iter().any(|k| *k == knob.name), "no rule of data/rules has \"tune {}\"", knob.name);
    }
}

/// A server that a rule holds for.
fn target_of(rule: &Rule) -> Target {
    [nginx(), Target::Forebay, Target::Nginx(NginxVersion::parse("1.28.0"))]
        .into_iter()
        .find(|t| rule.holds.includes(*t))
        .expect("a server")
}

#[test]
fn each_example_has_the_fault_or_not() {
    let quota = Host { cpus: 2, online: 8, ..machine() };
    let auto = "worker_processes auto; events {}";
    let told = |h: &Host| fired(auto, h).iter().any(|(r, _)| r == "worker-processes-quota");
    assert!(told(&quota) && !told(&machine()));
    // On a machine that was not looked at.
    let unset = |conf: &str| fired(conf, &Host::default()).iter().any(|(r, _)| r == "descriptors-unset");
    assert!(unset("events { worker_connections 20000; }"));
    assert!(!unset("worker_rlimit_nofile 50000; events { worker_connections 20000; }"));
    let host = machine();
    for rule in rules() {
        let Some(example) = &rule.example else { continue };
        let has =
            |text: &str| fired_for(&whole(text), &host, target_of(rule)).iter().any(|(r, _)| *r == rule.id);
        assert!(has(&example.bad), "{} is silent about: {}", rule.id, example.bad);
        assert!(!has(&example.good), "{} fires for: {}", rule.id, example.good);
    }
}

/// Returns the configuration that an example is a part of.
pub(super) fn whole(example: &str) -> String {
    let has = |block: &str| example.split_whitespace().any(|word| word == block);
    let is_whole = ["events", "http", "stream"].iter().any(|b| has(b));
    match (is_whole, has("events")) {
        (true, true) => example.to_owned(),
        (true, false) => format!("worker_processes auto; events {{ worker_connections 600; }} {example}"),
        (false, _) => http(example),
    }
}

/// Forms of a fault that a rule could pass over, and what only looks like one.
#[test]
fn rules_see_through_other_ways_to_write_it() {
    let server = |t: &str| http(&format!("upstream up {{ server 10.0.0.1; }} server {{ listen 80; {t} }}"));
    let host = machine();
    let has = |rule: &str, conf: &str| fired(conf, &host).iter().any(|(r, _)| r == rule);
    for (rule, conf) in [
        ("ssrf", server("location / { proxy_pass http://${arg_host}/; }")),
        ("ssrf", server("location / { set $t $arg_host; set $u http://$t; proxy_pass $u; }")),
        ("ssrf", server("location ~ ^/d/(?<h>[^/]+)/ { proxy_pass http://$h/; }")),
        ("ssrf", server("server_name ~^(?<h>.+)\\.x$; location / { proxy_pass http://$h; }")),
        ("server-tokens", "http { server_tokens on; }".into()),
        ("server-tokens", "http { server { server_tokens off; } server {} }".into()),
        ("splitting", server("rewrite ^ http://x$uri permanent;")),
        ("splitting", server("location ~ ^/v1/(?<a>[^.]*)\\.json$ { add_header X-Action $a; }")),
        ("splitting", server("location ~ ^/a/([^/]+) { return 302 https://x/$1; }")),
        ("splitting", server("return 301 https://x${uri};")),
        ("missing-resolver", server("location / { set $b backend.example; proxy_pass http://$b; }")),
        ("missing-resolver", server("location / { fastcgi_pass $pool:9000; }")),
        ("return-before-access", server("deny all; location / { return 200 x; }")),
        ("tls-without-cache", http("ssl_session_cache none; server { listen 443 ssl; }")),
        ("multi-accept", "worker_processes 4; events { multi_accept on; } http { server { listen 80 reuseport; } server { \
                          listen 81; } }".into()),
        ("cache-zone-small", http("fastcgi_cache_path /c keys_zone=a:1m max_size=100g;")),
        ("cache-without-lock", server("fastcgi_cache a; location / { fastcgi_pass up; }")),
        ("pattern-backtracking", http("map $uri $a { ~^(.)\\1$ b; }")),
        ("body-unread", http("json_set $j $request_body a; server { client_body_early_read off; location $j { deny all; } }")),
        ("ssrf", http("json_set $j $request_body a; server { location / { proxy_pass http://$j; } }")),
    ] {
        assert!(has(rule, &conf), "{rule} is silent about: {conf}");
    }
    for (rule, conf) in [
        ("ssrf", server("location / { set $b up; proxy_pass http://$b; }")),
        ("ssrf", server("location / { proxy_pass http://$hostname; }")),
        ("ssrf", server("location / { proxy_pass http://up$request_uri; }")),
        ("server-tokens", "http { server { server_tokens off; } }".into()),
        ("splitting", server("location ~ ^/a/([^/\\s]+) { return 302 https://x/$1; }")),
        ("splitting", server("rewrite ^/(.*)$ /i?u=$uri last;")),
        ("missing-resolver", server("location / { set $b up; proxy_pass http://$b; }")),
        ("missing-resolver", server("location / { set $b 127.0.0.1:80; proxy_pass http://$b$request_uri; }")),
        ("missing-resolver", server("set $b http://up; location / { proxy_pass $b; }")),
        (
            "missing-resolver",
            format!("{} ", server("location / { proxy_pass http://$b; }")).replace("http {", "http { map $uri $b { default up; /x 10.0.0.1; }"),
        ),
        ("return-before-access", server("deny all; location / { return 301 https://x; }")),
        ("return-before-access", server("auth_basic off; location / { return 200 x; }")),
        ("multi-accept", "worker_processes 4; events { multi_accept on; } http { server { listen 80 reuseport; } server { \
                          listen 80; } }".into()),
        ("pattern-backtracking", http("map $uri $a { ~^(.)$ b; } server { server_name ~^www; }")),
        ("body-unread", http("json_set $j $arg_j a; server { location $j { deny all; } }")),
        ("ssrf", http("json_set $j $request_body a; server { location / { proxy_pass http://a/$j; } }")),
    ] {
        assert!(!has(rule, &conf), "{rule} fires for: {conf}");
    }
}

#[test]
fn keys_and_responders_of_certificates() {
    let conf = http(
        "ssl_stapling on; resolver 127.0.0.1; ssl_trusted_certificate t; server { listen 443 ssl; ssl_certificate a; ssl_certificate b; }",
    );
    let mut files = Files::recorded([("/n.conf", conf.as_str())]);
    let parsed = forebay_conf::parse::parse(Path::new("/n.conf"), "", Path::new("/"), &mut files);
    let scene = Scene::new(&parsed.tree);
    let nodes: Vec<usize> = scene.all("ssl_certificate").collect();
    let fired = |rsa: [bool; 2], responder: bool| {
        let certificate = |n: usize| {
            (
                nodes[n],
                host::Certificate { rsa: rsa[n], responder, validity: (0, 1 << 40), ..Default::default() },
            )
        };
        let certificates = [certificate(0), certificate(1)].into_iter().collect();
        let found = examine(&scene, &Host { certificates, ..machine() }, nginx());
        ["rsa-only", "stapling"].map(|r| found.iter().any(|f| f.rule.id == r))
    };
    assert_eq!(fired([true, true], false), [true, true]);
    assert_eq!(fired([true, false], true), [false, false]);
}

#[test]
fn no_number_is_too_large() {
    let most = u64::MAX;
    let conf = format!(
        "worker_processes {most}; events {{ worker_connections {most}; }} http {{ client_body_buffer_size {most}; open_file_cache \
         max={most}; large_client_header_buffers {most} {most}; output_buffers {most} {most}; proxy_buffer_size {most}; \
         proxy_buffers {most} {most}; upstream u {{ server a; keepalive {most}; }} server {{ location / {{ proxy_pass http://u; }} }} }}"
    );
    let mut host = machine();
    host.take_sysctl_file(Path::new("x"), &format!("net.ipv4.tcp_mem = 1 1 {most}\n"));
    assert!(!fired(&conf, &host).is_empty());
    let mut files = Files::recorded([("/n.conf", conf.as_str())]);
    let parsed = forebay_conf::parse::parse(Path::new("/n.conf"), "", Path::new("/"), &mut files);
    assert!(Worst::of(&Scene::new(&parsed.tree), &host).memory() > 0);
}

#[test]
fn settings_of_the_kernel() {
    let sysctl = "net.core.somaxconn = 65535\nfs.file-max = 500000\nnet.ipv4.tcp_tw_reuse = 1\nnet.ipv4.tcp_fastopen=3\n\
                  net.ipv4.ip_local_port_range = 1024 65535\n# a comment\nnet.core.netdev_max_backlog = 16384\n\
                  net.ipv4.tcp_rmem = 4096 4096 16777216\nnet.ipv4.tcp_mem = 786432 2097152 3145728\n\
                  net.ipv4.tcp_max_syn_backlog = 1\nnet.ipv4.tcp_fin_timeout = 15\nnet.ipv4.tcp_tw_recycle = 1\n\
                  net.ipv4.tcp_max_orphans = 1\nnet.ipv4.tcp_wmem = 4096 4096 1\nnet.core.wmem_max = 1\nnet.ipv4.tcp_syncookies = 0\nnet.core.rmem_max = 1\n\
                  net.ipv4.tcp_slow_start_after_idle = 1\nnet.ipv4.tcp_congestion_control = reno\nnet.ipv4.tcp_notsent_lowat = 1\n";
    let mut host = machine();
    host.counters.insert("ListenOverflows".into(), 3);
    host.running = Some(Default::default());
    host.take_sysctl_file(Path::new("x.sysctl"), sysctl);
    let found = fired(&http(""), &host);
    for r in kernel::CHECKS.iter().map(|(id, _)| *id).chain(kernel::SETTINGS.iter().map(|(id, ..)| *id)) {
        assert!(found.iter().any(|(f, _)| f == r), "{r} is silent");
    }
    // A machine as it comes.
    let mut host = machine();
    host.sysctls.insert("net.ipv4.tcp_rmem".into(), "4096 131072 33554432".into());
    host.sysctls.insert("net.ipv4.ip_local_port_range".into(), "32768 60999".into());
    assert!(fired(&http(""), &host).is_empty(), "{:?}", fired(&http(""), &host));
}

#[test]
fn the_manual_is_printed_from_the_rules() {
    let page = include_str!("../../../../docs/doctor.md");
    if std::env::var_os("FOREBAY_GOLDEN").is_some() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/doctor.md");
        std::fs::write(path, manual::manual()).expect("written");
        return;
    }
    assert!(page == manual::manual(), "run: forebay doctor --explain all > docs/doctor.md");
}

#[test]
fn disks_are_looked_at() {
    let conf = "http { proxy_temp_path /t; proxy_cache_path /c keys_zone=a:1m max_size=20g; root /r; }";
    let mut files = Files::recorded([("/n.conf", conf)]);
    let parsed = forebay_conf::parse::parse(Path::new("/n.conf"), "", Path::new("/"), &mut files);
    let scene = Scene::new(&parsed.tree);
    let node = |name: &str| scene.all(name).next().expect("there");
    let mount = |kind: &str, options: &str| Mount {
        point: format!("/{kind}").into(),
        kind: kind.to_owned(),
        options: options.split(',').map(str::to_owned).collect(),
        bytes: (8 << 30, 16 << 30),
        inodes: (1000, 2000),
        rotational: false,
    };
    let place = |name: &str, used: Use, mount: usize| Place { node: node(name), used, mount };
    let fired = |disks: Disks| {
        let found = examine(&scene, &Host { disks, ..machine() }, nginx());
        let of = |r: &Rule| disks::CHECKS.iter().any(|(d, _)| *d == r.id);
        let mut ids: Vec<_> = found.iter().filter(|f| of(f.rule)).map(|f| f.rule.id.as_str()).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    };
    let cache = |m: usize| place("proxy_cache_path", Use::Cache, m);
    let (temp, files) = (place("proxy_temp_path", Use::Temp, 1), place("root", Use::Files, 2));
    let well = Mount { bytes: (30 << 30, 40 << 30), ..mount("ext4", "rw,relatime") };
    let good = Disks {
        mounts: vec![well],
        places: vec![cache(0), Place { mount: 0, ..temp.clone() }, Place { mount: 0, ..files.clone() }],
    };
    assert!(fired(good).is_empty());
    let bad = Disks {
        mounts: vec![
            Mount { bytes: (100 << 20, 16 << 30), ..mount("tmpfs", "ro") },
            Mount { inodes: (1, 1000), ..mount("xfs", "rw") },
            Mount { rotational: true, ..mount("ext4", "rw") },
            mount("nfs4", "rw"),
        ],
        places: vec![cache(0), temp, files.clone(), Place { mount: 3, ..files }],
    };
    let mut all: Vec<_> = disks::CHECKS.iter().map(|(id, _)| *id).collect();
    all.sort_unstable();
    assert_eq!(fired(bad), all);
}

#[test]
fn a_running_server_is_heard() {
    let log = "worker_connections are not enough\nToo many open files\nno live upstreams\nupstream timed out\n\
               a client request body is buffered to a temporary file\n\"ssl_stapling\" ignored\n\
               an upstream response is buffered to a temporary file\nCannot assign requested address\n";
    let sick = live::Running {
        pid: 1,
        program: "/usr/sbin/nginx".into(),
        name: "nginx".into(),
        title: Vec::new(),
        descriptors: vec![(10, 1024), (900, 1024)],
        log: Some(("/e.log".into(), log.to_owned())),
        accepted: Some((10, 7)),
    };
    let well = live::Running {
        pid: 1,
        program: "/usr/sbin/nginx".into(),
        name: "nginx".into(),
        title: Vec::new(),
        descriptors: vec![(10, 1024)],
        log: Some(("/e.log".into(), "all is well\n".to_owned())),
        accepted: Some((10, 10)),
    };
    let found = |r: live::Running| fired(&http(""), &Host { running: Some(r), ..machine() });
    let (sick, well) = (found(sick), found(well));
    let log = "descriptors are not enough for more than 100 connections, new connections wait\n".to_owned();
    let short = found(live::Running { log: Some(("/e.log".into(), log)), ..live::Running::default() });
    assert!(short.iter().any(|(rule, _)| rule == "log-descriptors"), "{short:?}");
    for (r, _) in running::CHECKS {
        assert!(sick.iter().any(|(f, _)| f == r), "{r} is silent");
        assert!(well.iter().all(|(f, _)| f != r), "{r} fires");
    }
}

/// A line that a rule misses may stand in a file that is not here.
#[test]
fn what_a_missing_file_may_hold_is_not_missed() {
    let has = |rule: &str, conf: &str| fired(conf, &machine()).iter().any(|(r, _)| r == rule);
    let listing = |line: &str| http(&format!("server {{ root /srv; autoindex on; {line} }}"));
    assert!(has("autoindex-wide", &listing("")) && has("autoindex-wide", &listing("include mime.types;")));
    assert!(!has("autoindex-wide", &listing("include acl.conf;")));
    // An include of the http block is not expected to guard one folder.
    assert!(has("autoindex-wide", &http("include gone.conf; server { root /srv; autoindex on; }")));
    assert!(has("gzip-types-missing", &http("gzip on;")));
    assert!(!has("gzip-types-missing", &http("gzip on; include gone.conf;")));
}

/// Rules about the machine speak only where the server runs on this one.
#[test]
fn other_machines_are_not_judged_by_this_one() {
    let conf = "worker_processes 64; events { worker_connections 60000; } http { proxy_buffers 64 64k; server { \
                location / { proxy_http_version 1.1; proxy_pass http://10.0.0.1; } } }";
    let rules = ["worker-processes-many", "memory-worst-case", "default-repeated"];
    let told = |home: Home| {
        let found = fired(conf, &Host { home, ..machine() });
        rules.map(|rule| found.iter().any(|(r, _)| r == rule))
    };
    assert_eq!(told(Home::Here), [true; 3]);
    assert_eq!(told(Home::Elsewhere), [false; 3]);
    assert_eq!(told(Home::Unknown), [false; 3]);
}

/// The last file of each tuning article and its kernel settings: what is found, line by line, as it was agreed.
/// `FOREBAY_GOLDEN=1` writes the lists anew.
#[test]
fn articles_have_the_faults_that_are_known() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/articles");
    for (name, must) in [
        (
            "step-by-step",
            &["worker-processes-many", "descriptors-short", "file-cache-stale", "sendfile-off"][..],
        ),
        (
            "vps-guide",
            &[
                "multi-accept",
                "use-epoll",
                "worker-affinity",
                "default-repeated",
                "keepalive-requests",
                "file-cache-errors",
                "file-cache-stale",
                "tcp-nopush-cost",
                "gzip-breach",
                "stapling",
                "tickets-off",
                "tls-timeout-long",
                "somaxconn-alone",
                "file-max",
                "tw-reuse",
                "fastopen",
                "port-range",
                "netdev-backlog",
            ],
        ),
        (
            "high-concurrency",
            &[
                "worker-processes-one",
                "use-epoll",
                "keepalive-off",
                "syncookies-off",
                "tw-recycle",
                "tw-reuse",
                "tcp-buffers",
                "tcp-mem",
                "core-buffers",
                "max-orphans",
                "syn-backlog",
                "fin-timeout",
                "netdev-backlog",
                "somaxconn-alone",
                "idle-recipe",
                "descriptors-short",
            ],
        ),
        (
            "production",
            &[
                "syntax",
                "method-list",
                "multi-accept",
                "use-epoll",
                "output-buffers",
                "default-repeated",
                "header-buffers-small",
                "timeouts-short",
                "gzip-breach",
                "cache-control-twice",
                "header-lost",
                "xss-protection",
                "stub-status-argument",
                "burst-nodelay",
                "asset-location",
                "file-cache-errors",
                "file-cache-stale",
                "keepalive-short",
                "keepalive-requests-stale",
                "keepalive-http10",
                "tcp-nopush-cost",
            ],
        ),
    ] {
        let conf = std::fs::read_to_string(dir.join(format!("{name}.conf"))).expect("an article");
        let mut host = machine();
        if let Ok(text) = std::fs::read_to_string(dir.join(format!("{name}.sysctl"))) {
            host.take_sysctl_file(Path::new("sysctl.conf"), &text);
        }
        let mut files = Files::recorded([("/etc/n.conf", conf.as_str())]);
        let parsed = forebay_conf::parse::parse(Path::new("/etc/n.conf"), "", Path::new("/etc"), &mut files);
        let errors: Vec<Error> = parsed.errors.into_iter().filter(|e| e.level == Level::Emerg).collect();
        let mut findings = examine(&Scene::new(&parsed.tree), &host, Target::Nginx(None));
        findings.extend(refused_lines(&errors, &files));
        let mut lines: Vec<(u32, String)> = errors
            .iter()
            .map(|e| (e.span.or(e.at).map_or(0, |s| s.line), format!("syntax harm: {}", e.message)))
            .collect();
        lines.extend(findings.iter().map(|f| {
            let text = format!("{} {}: {}", f.rule.id, f.rule.severity.name(), f.message);
            (f.span.map_or(0, |s| s.line), text)
        }));
        lines.sort();
        let text: String = lines.iter().map(|(n, t)| format!("{n}: {t}\n")).collect();
        for rule in must {
            assert!(text.contains(&format!(": {rule} ")), "{name}: {rule} is missing\n{text}");
        }
        let golden = dir.join(format!("{name}.findings"));
        if std::env::var_os("FOREBAY_GOLDEN").is_some() {
            std::fs::write(&golden, &text).expect("written");
        }
        assert_eq!(
            text,
            std::fs::read_to_string(&golden).unwrap_or_default(),
            "{name}: run with FOREBAY_GOLDEN=1"
        );
    }
}

/// Requirements of SARIF 2.1.0.
#[test]
fn sarif_has_its_shape() {
    let conf = "events { multi_accept on; }\nhttp { bogus; server_tokens off; }\nmail {}\n";
    let mut files = Files::recorded([("/etc/n.conf", conf)]);
    let parsed = forebay_conf::parse::parse(Path::new("/etc/n.conf"), "", Path::new("/etc"), &mut files);
    let mut host = machine();
    host.take_sysctl_file(Path::new("x"), "net.ipv4.tcp_syncookies = 0\n");
    let findings = examine(&Scene::new(&parsed.tree), &host, nginx());
    let log: serde_json::Value = serde_json::from_str(
        &output::Report { findings: &findings, errors: &parsed.errors, files: &files }.sarif(),
    )
    .expect("JSON");
    assert_eq!(log["version"], "2.1.0");
    let run = &log["runs"][0];
    let driver = &run["tool"]["driver"];
    assert!(driver["name"].is_string() && driver["version"].is_string());
    let rules = driver["rules"].as_array().expect("rules");
    let results = run["results"].as_array().expect("results");
    assert!(results.len() >= 4, "{results:?}");
    // nginx runs this one.
    let missing = results.iter().find(|r| r["ruleId"] == "not-supported").expect("a line");
    assert_eq!(missing["level"], "warning");
    for r in results {
        assert!(["error", "warning", "note", "none"].contains(&r["level"].as_str().expect("level")));
        assert!(r["message"]["text"].as_str().is_some_and(|t| !t.is_empty()));
        let at = r["ruleIndex"].as_u64().expect("an index") as usize;
        assert_eq!(rules[at]["id"], r["ruleId"]);
        for l in r["locations"].as_array().expect("places") {
            let place = &l["physicalLocation"];
            let uri = place["artifactLocation"]["uri"].as_str().expect("URI");
            assert!(!uri.is_empty() && !uri.contains([' ', '\\']), "{uri}");
            assert!(
                place["region"]["startLine"].as_u64() >= Some(1)
                    && place["region"]["startColumn"].as_u64() >= Some(1)
            );
        }
    }
    for r in rules {
        assert!(r["shortDescription"]["text"].is_string() && r["defaultConfiguration"]["level"].is_string());
    }
}
