//! Configurations that take over what has not changed are compared with those that are read as a whole, along random changes.

use crate::{access, limit_req};
use forebay_conf::error::Error;
use forebay_conf::files::Files;
use forebay_core::config::Memory;
use forebay_core::config::{Config, Environment};
use forebay_proxy::modules::proxy::{self, To, destination};
use forebay_server::config::http::Http;
use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

const MAIN: &str = "error_log stderr emerg;
events {}
http {
    access_log off;
    log_format own '$host $tenant';
    map $host $tenant { default none; ~^(?<first>[a-z]+)\\. $first; }
    limit_req_zone $tenant zone=requests:1m rate=5r/s;
    limit_conn_zone $binary_remote_addr zone=connections:1m;
    proxy_cache_path /c keys_zone=cached:1m;
    proxy_set_header X-Level http;
    upstream common { server 127.0.0.1:1; server 127.0.0.1:2; }
    include sites/*.conf;
    server { listen 80 default_server; return 404; }
}
";

/// Sequences of changes, and the length of each.
const SEEDS: u64 = 3;
const STEPS: usize = 60;

/// Forms of a site. `#` is its number, `%` a number that is random.
const SITES: &[&str] = &[
    "server { server_name #.org; location / { proxy_pass http://common; proxy_read_timeout %s; } }",
    "upstream own# { server 127.0.0.1:1%; keepalive 8; } server { listen 81; server_name #.org www%.#.org; \
     location / { proxy_pass http://own#; proxy_set_header X-Site $host; } }",
    "server { server_name #.org; set $shared%0 $tenant; location / { return 200 $shared%0; } }",
    "server { server_name #.org; location / { return 200 $shared%0; } }",
    "server { server_name ~^(?<name>.*)\\.#\\.org$; if ($name = a%) { return 403; } rewrite ^/%/(.*)$ /$1 last; \
     location ~ ^/(.*)%$ { alias /srv/$1; } }",
    "upstream own# { zone shared 64k; hash $tenant consistent; server 127.0.0.1:1%; server 127.0.0.1:2 backup; } \
     server { server_name #.org; location / { limit_req zone=requests burst=%; limit_conn connections %; proxy_pass https://own#/x; } }",
    "server { server_name #.org; access_log /var/log/#.log own; location = /% { error_page 404 = @named; } \
     location @named { proxy_pass http://127.0.0.1:3%; } }",
    "server { server_name #.org; location / { proxy_cache cached; proxy_pass http://common; } }",
    "server { server_name #.org; location /% { include snippet; } location / { include snippet; root /%; } }",
    "server { server_name same.org; location / { return 20%; } }",
    "upstream common# { server localhost:%1; } server { server_name #.org; location / { proxy_pass http://common#; } }",
    "server { server_name #.org; location / { proxy_pass http://owns1; } } server { listen 82; server_name more.#.org; }",
    "map $uri $of_site# { /% a; } server { server_name #.org; location / { return 200 $of_site#; } }",
    "upstream own# { server 127.0.0.1:1%; fallback common; } server { server_name #.org; location / { proxy_pass http://own#; } }",
    "server { server_name #.org; location / { proxy_pass http://common; health_check uri=/%; } }",
    "server { server_name #.org; status_zone z%; location / { proxy_pass http://$tenant; sub_filter a% b; add_header X % always; } }",
    "server { server_name #.org; auth_basic x%; auth_basic_user_file /users; satisfy any; deny all; \
     location / { limit_except GET { deny all; } tunnel_pass; } }",
    "",
    // Refused.
    "server { server_name #.org; location / { return 200 $unknown%; } }",
    "server { server_name #.org; proxy_read_timeout wrong%; }",
    "upstream common { server 127.0.0.1:9; }",
    "server { listen 80 default_server; server_name #.org; }",
    "server { server_name #.org; location / { aio threads=none%; } }",
    // Warnings.
    "server { server_name #.org; location / { ssi on; ssi_types a/b a/b; } } server { server_name #.org; }",
];

/// Configuration that changes at random.
struct Changing {
    seed: u64,
    main: String,
    snippet: u64,
    sites: BTreeMap<u64, String>,
}

impl Changing {
    fn random(&mut self, below: usize) -> usize {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) as usize % below
    }

    fn site(&mut self, number: u64) -> String {
        let mut text = String::new();
        let form = SITES[self.random(SITES.len())];
        for c in form.replace('#', &format!("s{number}")).chars() {
            match c {
                '%' => text.push_str(&(1 + self.random(3)).to_string()),
                c => text.push(c),
            }
        }
        text
    }

    fn change(&mut self) {
        let number = self.random(10) as u64;
        match self.random(20) {
            0 => self.snippet += 1,
            1 => self.main = MAIN.replace("X-Level http", &format!("X-Level {number}")),
            2..=6 => drop(self.sites.remove(&number)),
            _ => {
                let text = self.site(number);
                self.sites.insert(number, text);
            }
        }
    }

    fn files(&self) -> Files {
        let sites = self.sites.iter().map(|(n, text)| (format!("/t/sites/{n:02}.conf"), text.clone()));
        let snippet = ("/t/snippet".to_owned(), format!("add_header X-Snippet {};", self.snippet));
        Files::recorded(sites.chain([snippet, ("/t/nginx.conf".to_owned(), self.main.clone())]))
    }
}

fn environment() -> Environment {
    Environment {
        prefix: "/t/".into(),
        conf_path: "/t/nginx.conf".into(),
        globals: String::new(),
        error_log: None,
        access_log: "access.log".into(),
    }
}

/// Returns the message and the place of an error, and those of warnings.
fn messages(files: &Files, errors: &[Error]) -> Vec<String> {
    errors.iter().map(|e| files.render(e)).collect()
}

/// Replaces the number after each `name` in a text by what `of` says about it.
fn renumber(text: &str, name: &str, of: impl Fn(usize) -> String) -> String {
    let mut parts = text.split(name);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let digits = part.len() - part.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        out.push_str(name);
        out.push_str(&part[..digits].parse().map_or_else(|_| String::new(), &of));
        out.push_str(&part[digits..]);
    }
    out
}

/// Sorts the lines of a description, since some tables in it have no order. Bytes are put together to words first.
fn sorted(text: &str) -> String {
    let mut lines: Vec<String> = vec![String::new()];
    let mut in_word = false;
    for line in text.lines().map(str::trim_start) {
        let is_byte = line.trim_end_matches(',').parse::<u8>().is_ok();
        match lines.last_mut() {
            Some(last) if is_byte && in_word => last.push_str(line),
            _ => lines.push(line.to_owned()),
        }
        in_word = is_byte;
    }
    // The number of a variable is in a line of its own.
    let mut text = lines.join("\n").replace("VarId(\n", "VarId(");
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    text = lines.join("\n");
    text + "\n"
}

/// Describes all of a configuration but numbers that may differ, with the names that they stand for.
fn described(config: &Config) -> String {
    let http: Arc<Http> = config.front(0).expect("the front end of HTTP");
    let variable = |id: usize| {
        let var = http.vars.get(id).expect("a variable with this number");
        format!("<{} {:?} {} {}>", String::from_utf8_lossy(&var.name), var.source, var.settable, var.by_set)
    };
    let mut text = format!("{:?} {:?}\n", config.log_files, config.temp_paths);
    text += &format!("{:?} {:?}\n", config.default_temp_paths, config.certificate_files);
    text += &format!("{:?}\n{:?}\n", http.log_formats, http.upstreams);
    text += &format!("{} {} {}\n", http.heads_differ, http.has_auto_redirect, http.is_watched);
    text += &format!("{}\n", http.shows_certificates);
    text += &format!("{} {}\n", http.logs_sent_fields, http.shows_hello);
    let groups: Vec<_> = config.groups.iter().map(|(_, g)| String::from_utf8_lossy(&g.name)).collect();
    text += &format!("{groups:?}\n");
    for server in &http.servers {
        text += &sorted(&format!("{server:#?}\n"));
        for l in &server.locations {
            // Where the order matters.
            let s = &l.settings;
            text += &format!(
                "{:?}\n{:?}\n{:?}\n",
                l.ops,
                proxy::SETTINGS.of(s).set_header,
                access::SETTINGS.of(s)
            );
            text += &format!(
                "{:?}\n{:?}\n{:?}\n",
                s.log.access_log,
                limit_req::SETTINGS.of(s),
                s.core.error_page
            );
            if let Some(pass) = destination(l.content.as_ref())
                && let To::Fixed { group, .. } = &pass.to
            {
                text += &format!("to {:?}\n", http.upstreams.get(*group));
            }
        }
    }
    for l in &config.listeners {
        text += &format!("{} {:?} {:?} {:?}\n", l.text, l.options, l.nodelay, l.default.options);
        let hosts =
            (0..10).flat_map(|n| [format!("s{n}.org"), format!("www1.s{n}.org"), format!("a1.s{n}.org")]);
        for host in hosts.chain(["same.org".to_owned()]) {
            let found = l.default.names.find(host.as_bytes()).map(|found| found.map(|(server, _)| server));
            text += &format!("{host} {} {:?}\n", l.default.default_server, found.expect("no limit"));
        }
    }
    let text = renumber(&text, "VarId(", variable);
    let text = renumber(&text, "id: ", |_| String::new());
    // Of errors that did not occur.
    let text = renumber(&text, "ordinal: ", |_| String::new());
    let text = renumber(&text, "FileId(", |_| String::new());
    renumber(&text, "number: ", |_| String::new())
}

/// Returns the addresses of the servers, which are equal if they were taken over.
fn servers(config: &Config) -> HashSet<usize> {
    let http: Arc<Http> = config.front(0).expect("the front end of HTTP");
    http.servers.iter().map(|s| Arc::as_ptr(s) as usize).collect()
}

fn run(seed: u64) -> (usize, usize) {
    let mut changing = Changing { seed, main: MAIN.to_owned(), snippet: 0, sites: BTreeMap::new() };
    let mut memory = Memory::serving();
    let mut checking = Memory::checking();
    let (mut last, mut accepted, mut taken_over) = (None::<Config>, 0, 0);
    for step in 0..STEPS {
        let good = changing.sites.clone();
        changing.change();
        let mut whole = changing.files();
        let wanted = forebay_core::config::load(&environment(), &mut whole, crate::FRONT_ENDS);
        let mut files = memory.files(changing.files());
        let got = memory.load(&environment(), &mut files, crate::FRONT_ENDS);
        let mut checked = checking.files(changing.files());
        let verdict = checking.load(&environment(), &mut checked, crate::FRONT_ENDS);
        let context = format!("seed {seed}, step {step}: {:#?}", changing.sites);
        let verdict = verdict.map(|(config, warnings)| {
            assert!(config.fronts.is_empty());
            (config.log_files, config.default_temp_paths, messages(&checked, &warnings))
        });
        let plain = |e: Error, files: &Files| files.render(&e);
        match (wanted, got, verdict) {
            (Ok((wanted, wanted_warnings)), Ok((got, warnings)), Ok((logs, paths, warned))) => {
                let wanted_warnings = messages(&whole, &wanted_warnings);
                assert_eq!(messages(&files, &warnings), wanted_warnings, "{context}");
                assert_eq!(warned, wanted_warnings, "{context}");
                assert_eq!(
                    (logs, paths),
                    (wanted.log_files.clone(), wanted.default_temp_paths.clone()),
                    "{context}"
                );
                let (a, b) = (described(&got), described(&wanted));
                if a != b {
                    let at = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
                    let near = |text: &str| {
                        let bytes = &text.as_bytes()[at.saturating_sub(200)..(at + 100).min(text.len())];
                        String::from_utf8_lossy(bytes).into_owned()
                    };
                    panic!("{}\n---\n{}\n{context}", near(&a), near(&b));
                }
                taken_over += last.as_ref().map_or(0, |l| servers(l).intersection(&servers(&got)).count());
                memory.accept(files);
                checking.accept(checked);
                last = Some(got);
                accepted += 1;
            }
            (Err(wanted), Err(got), Err(verdict)) => {
                let wanted = plain(wanted, &whole);
                assert_eq!(plain(got, &files), wanted, "{context}");
                assert_eq!(plain(verdict, &checked), wanted, "{context}");
                // The operator takes the mistake back.
                (changing.main, changing.sites) = (MAIN.to_owned(), good.clone());
            }
            (wanted, got, verdict) => panic!(
                "wanted {:?}, got {:?} and {:?}\n{context}",
                wanted.map(|_| ()),
                got.map(|_| ()),
                verdict.map(|_| ())
            ),
        }
    }
    (accepted, taken_over)
}

#[test]
fn servers_taken_over_equal_servers_read() {
    let (mut accepted, mut taken_over) = (0, 0);
    for seed in 0..SEEDS {
        let (a, t) = run(seed);
        (accepted, taken_over) = (accepted + a, taken_over + t);
    }
    assert!(accepted > 90 && taken_over > 60, "{accepted} {taken_over}");
}

/// Loads sites, and counts the servers that are the same objects as in the `last` configuration.
fn kept(memory: &mut Memory, last: &mut Option<Config>, files: Vec<(PathBuf, String)>) -> usize {
    let mut files = memory.files(Files::recorded(files));
    let (config, _) = memory.load(&environment(), &mut files, crate::FRONT_ENDS).expect("a configuration");
    memory.accept(files);
    let before = last.as_ref().map(servers).unwrap_or_default();
    let same = servers(&config).intersection(&before).count();
    *last = Some(config);
    same
}

#[test]
fn only_what_has_changed_is_read() {
    let site =
        |n: usize, text: &str| (format!("/t/sites/{n:02}.conf").into(), text.replace('#', &n.to_string()));
    let plain = "upstream u# { server 127.0.0.1:1; } server { server_name #.org; location / { proxy_pass http://u#; } }";
    let sites = |changed: &str, count: usize| -> Vec<(PathBuf, String)> {
        let all = (0..count).map(|n| site(n, if n == 3 { changed } else { plain }));
        all.chain([
            ("/t/nginx.conf".into(), MAIN.to_owned()),
            ("/t/snippet".into(), "add_header A b;".to_owned()),
        ])
        .collect()
    };
    let (mut memory, mut last) = (Memory::serving(), None);
    assert_eq!(kept(&mut memory, &mut last, sites(plain, 10)), 0);
    assert_eq!(memory.units(), 10);
    assert_eq!(kept(&mut memory, &mut last, sites(plain, 10)), 10, "nothing has changed");
    let other = plain.replace("127.0.0.1:1", "127.0.0.1:2");
    assert_eq!(kept(&mut memory, &mut last, sites(&other, 10)), 9, "one file has");
    assert_eq!(kept(&mut memory, &mut last, sites(&other, 12)), 10, "two are new");
    assert_eq!(kept(&mut memory, &mut last, sites(&other, 8)), 8, "four are gone");
    // Another file includes the same text.
    let nested = "server { server_name #.org; location / { include snippet; } }";
    assert_eq!(kept(&mut memory, &mut last, sites(nested, 8)), 7);
    let mut changed = sites(nested, 8);
    changed.last_mut().expect("the snippet").1 = "add_header A c;".to_owned();
    assert_eq!(kept(&mut memory, &mut last, changed.clone()), 7, "what a unit includes has changed");
    changed[8].1 = changed[8].1.replace("X-Level", "X-Other");
    assert_eq!(kept(&mut memory, &mut last, changed), 0, "the http level has changed");
}
