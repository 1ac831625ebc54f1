//! Ingresses, requests and answers: each file in `ingress/` is a table of cases, run against a server on the rendered files.
//!
//! `ingress/cases.rs` has the form of the tables.
//!
//! Backends answer `NAME METHOD URI` and the fields that they got. `X-Answer: STATUS` asks for another status, `X-Add: NAME=VALUE` for a
//! field. `X-Answer: never` has the backend wait until the connection ends. The backend `auth` answers 401 without `X-Pass: yes`. A request for a WebSocket gets 101, and the same text behind it.

mod api;
mod backends;
mod cases;
mod clients;
mod protocols;
mod proxied;
mod running;

use backends::OTHER_BACKENDS;
use cases::{Case, Exchange, read};
use forebay_testkit::{
    Asked, DEADLINE, Done, Origin, RSA, Server, Site, ask, free_pair, free_port, program, raw, run,
};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

forebay_testkit::cases!("cases/ingress.cases":
    an_audit_names_what_is_refused, an_audit_without_findings_ends_with_0, an_audit_reads_the_values_of_the_chart);

/// Names of the backends.
const BACKENDS: &[&str] = &["web", "api", "errors", "auth", "mirror", "other"];

type Seen = Arc<Mutex<HashMap<String, String>>>;

/// Fields of requests that are not sent.
const OURS: &[&str] =
    &["proxy-protocol:", "host:", "body:", "port:", "sni:", "certificate:", "version:", "first:", "beside:"];

/// Answers a request as the backend of a name.
fn answer(name: &str, seen: &Seen, asked: &mut Asked) -> bool {
    seen.lock().expect("lock").insert(name.to_owned(), asked.text.clone());
    if asked.field("x-answer") == "never" {
        let _ = std::io::Read::read(&mut asked.stream, &mut [0]);
        return false;
    }
    let status = match (name, asked.field("x-answer")) {
        ("auth", _) if asked.field("x-pass") != "yes" => "401 Unauthorized".to_owned(),
        ("auth", _) => "200 OK".to_owned(),
        ("errors", "") if !asked.field("x-code").is_empty() => format!("{} Code", asked.field("x-code")),
        (_, "") => "200 OK".to_owned(),
        (_, code) => format!("{code} Asked"),
    };
    let mut fields = String::from("Server: backend\r\nContent-Type: text/plain\r\n");
    if name == "auth" {
        fields.push_str("X-User: ann\r\nX-Secret: s\r\nSet-Cookie: auth=1\r\n");
    }
    if let Some((field, value)) = asked.field("x-add").split_once('=') {
        fields.push_str(&format!("{field}: {value}\r\n"));
    }
    let head = asked.text.split("\r\n\r\n").next().unwrap_or_default();
    let (first, rest) = head.split_once("\r\n").unwrap_or((head, ""));
    let words: Vec<&str> = first.split(' ').collect();
    let body = format!("{name} {} {}\n{}\n", words[0], words.get(1).unwrap_or(&""), rest.replace('\r', ""));
    if asked.field("upgrade") == "websocket" {
        let accept = crate::websocket::accept(asked.field("sec-websocket-key"));
        let head = format!(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: {accept}\r\n"
        );
        asked.write(format!("{head}{fields}\r\n{body}"));
        let _ = asked.stream.shutdown(std::net::Shutdown::Both);
        return false;
    }
    asked.answer(&status, &fields, &body);
    if asked.field("connection") == "close" {
        let _ = asked.stream.shutdown(std::net::Shutdown::Both);
        return false;
    }
    true
}

/// Starts a name server that gives 127.0.0.1 for all names but those of one label and those below `none.test`; returns its address.
fn name_server() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("bind");
    let addr = socket.local_addr().expect("address");
    std::thread::spawn(move || {
        let mut buffer = [0; 1500];
        while let Ok((n, peer)) = socket.recv_from(&mut buffer) {
            let Some(end) = buffer[12..n].iter().position(|b| *b == 0).map(|i| 12 + i + 5) else { continue };
            let name = &buffer[12..end - 4];
            let one_label = name.get(usize::from(name[0]) + 1) == Some(&0);
            let unknown = one_label || name.ends_with(b"\x04none\x04test\0");
            let address = buffer[end - 3] == 1 && !unknown;
            let mut reply = buffer[..2].to_vec();
            let code = if unknown { 0x83 } else { 0x80 };
            reply.extend([0x81, code, 0, 1, 0, u8::from(address), 0, 0, 0, 0]);
            reply.extend(&buffer[12..end]);
            if address {
                reply.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 127, 0, 0, 1]);
            }
            let _ = socket.send_to(&reply, peer);
        }
    });
    addr
}

/// Reads a list of objects.
fn objects(text: &str) -> Vec<Value> {
    serde_json::from_str(text).expect("JSON")
}

/// Makes the objects that all cases share: `%NAME%` in `shared.json` is the text of a file of the site.
fn shared(site: &Site, settings: &[(String, String)], ports: &HashMap<&str, u16>) -> Vec<Value> {
    let mut all = Vec::new();
    for (namespace, (name, port)) in
        ["default", "second"].iter().flat_map(|n| ports.iter().map(move |p| (n, p)))
    {
        let text =
            include_str!("ingress/backend.json").replace("%NAME%", name).replace("%NAMESPACE%", namespace);
        all.extend(objects(&text.replace("%PORT%", &port.to_string())));
    }
    let mut data: serde_json::Map<_, _> =
        settings.iter().map(|(k, v)| (k.clone(), v.clone().into())).collect();
    data.entry("bind-address").or_insert("127.0.0.1".into());
    data.entry("access-log-path").or_insert(format!("{}/logs/access.log", site.dir().display()).into());
    all.push(object("ConfigMap", "config", json!({"data": data})));
    let names = ["server.crt", "server.key", "client.crt", "client.key", "backend.crt"];
    all.extend(objects(&names.iter().fold(include_str!("ingress/shared.json").to_owned(), |text, name| {
        text.replace(&format!("%{name}%"), &site.read(name).replace('\n', "\\n"))
    })));
    all
}

/// A server on the rendered files of a table.
struct Table {
    server: Server,
    seen: Seen,
    /// Server of the backends with other protocols, if a case names one.
    _others: Option<Server>,
    http3: Mutex<Option<crate::http3::Client>>,
}

impl Table {
    fn start(settings: &[(String, String)], cases: &[Case], more: &[&str]) -> (Table, String) {
        let seen = Seen::default();
        let port = |name: &'static str| {
            let seen = seen.clone();
            (name, Origin::start(move |asked| answer(name, &seen, asked)).port())
        };
        let mut ports: HashMap<&str, u16> = BACKENDS.iter().map(|name| port(name)).collect();
        let site = Site::new("pid logs/nginx.pid; include forebay.conf; # %PORT0% %PORT1%");
        Table::certificates(&site);
        let is_wanted = |case: &Case| {
            let mut services =
                case.ingresses.iter().flat_map(|i| &i.paths).map(|(.., service)| service.as_str());
            services.any(|service| OTHER_BACKENDS.contains(&service))
                || case.objects.iter().any(|o| OTHER_BACKENDS.iter().any(|n| o.contains(&format!("\"{n}\""))))
        };
        let others = cases.iter().any(is_wanted).then(|| backends::start(site.dir(), ports["web"]));
        if let Some(server) = &others {
            let numbers = [backends::fast(), server.addr(0).port(), server.addr(1).port()];
            ports.extend(OTHER_BACKENDS.into_iter().zip(numbers));
        }
        let mut objects = shared(&site, settings, &ports);
        let fill =
            |t: String, (name, port): (&&str, &u16)| t.replace(&format!("%{name}%"), &port.to_string());
        for case in cases {
            objects.extend(case.manifests());
            for text in &case.objects {
                let authority = site.read("backend.crt").replace('\n', "\\n");
                let text = ports.iter().fold(text.replace("%BACKEND.CRT%", &authority), fill);
                objects.push(serde_json::from_str(&text).expect("JSON"));
            }
        }
        // The ports of backends, for URLs in annotations.
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string();
        let mut list = ports.iter().fold(list, fill);
        for (index, name) in ["\"%HTTP%\"", "\"%HTTPS%\""].into_iter().enumerate() {
            list = list.replace(name, &site.addr(index).port().to_string());
        }
        std::fs::write(site.dir().join("objects.json"), list).expect("write");
        let dns = name_server().to_string();
        let (http, https) = (site.addr(0).port().to_string(), site.addr(1).port().to_string());
        let dir = site.dir().display().to_string();
        let input = format!("{dir}/objects.json");
        let args = format!("-f {input} -o {dir} --http-port {http} --https-port {https} --resolver {dns}");
        let (_, problems) = render(&args, more);
        let http3 = Mutex::default();
        (Table { server: Server::start_on(site), seen, _others: others, http3 }, problems)
    }

    /// Sends a request, and returns the answer. `None`: there is no client for it here.
    fn send(&self, case: &Case, exchange: &Exchange) -> Option<String> {
        let mut words = exchange.request.split(' ');
        let (method, uri) = (words.next().unwrap_or("GET"), words.next().unwrap_or("/"));
        let pairs: Vec<(&str, &str)> = exchange.fields.iter().filter_map(|f| f.split_once(": ")).collect();
        let field = |name: &str| pairs.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| *v);
        let is_ours = |name: &str| OURS.contains(&format!("{}:", name.to_ascii_lowercase()).as_str());
        let host = field("host").unwrap_or(&case.host);
        let name = field("sni").unwrap_or_else(|| host.split(':').next().unwrap_or_default());
        let own = self.server.addr(usize::from(exchange.tls)).port();
        let port = field("port").map_or(own, |port| port.parse().expect("a port"));
        let request = clients::Request {
            method,
            uri,
            host,
            sni: exchange.tls.then_some(name),
            fields: pairs.iter().filter(|(name, _)| !is_ours(name)).copied().collect(),
            body: field("body").unwrap_or_default(),
            certificate: field("certificate"),
            beside: field("beside"),
            first: field("first"),
            header: field("proxy-protocol").map(|header| format!("PROXY {header}\r\n")),
            port,
        };
        let dir = self.server.dir();
        match field("version") {
            Some("2") => return Some(clients::http2(dir, &request)),
            Some("3") => {
                let mut client = self.http3.lock().expect("lock");
                if client.is_none() {
                    *client = crate::http3::Client::start();
                }
                return client.as_mut().map(|client| clients::http3(client, &self.server, &request));
            }
            _ => {}
        }
        let text = request.http1();
        if !exchange.tls {
            let text = request.header.unwrap_or_default() + &text;
            let addr = SocketAddr::from(([127, 0, 0, 1], port));
            return Some(ask(addr, &text));
        }
        if request.header.is_some() {
            return Some(clients::http1(dir, &request, &text));
        }
        // Of two addresses the last one counts.
        let port = field("port").map(|port| format!("-connect 127.0.0.1:{port}")).unwrap_or_default();
        let own = field("certificate").map(|n| format!("-cert {n}.crt -key {n}.key")).unwrap_or_default();
        let options = format!("-quiet -servername {name} {own} {port}");
        let answer = forebay_testkit::s_client(&self.server, 1, &options, &text);
        Some(answer.find("HTTP/1.1 ").map_or(answer.clone(), |i| answer[i..].to_owned()))
    }

    fn check(&self, case: &Case, exchange: &Exchange) -> Result<(), String> {
        let Some(answer) = self.send(case, exchange) else { return Ok(()) };
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        for assert in &exchange.asserts {
            let (word, rest) = assert.split_once(' ').unwrap_or((assert, ""));
            let fine = match word {
                "saw" => has_field(body, rest, true),
                "never" => !answer.is_empty() && !body.contains(rest),
                "at" => self.at(rest),
                "share" => self.share(case, exchange, rest),
                "logged" => self.wait_for("logs/access.log", rest),
                "unlogged" => !self.server.read("logs/access.log").contains(rest),
                "noted" => self.wait_for("stderr", rest),
                "unnoted" => !self.server.read("stderr").contains(rest),
                _ if rest == "closed" => !answer.contains("HTTP/"),
                _ if rest.starts_with('!') || rest.split(' ').next().is_some_and(|w| w.ends_with(':')) => {
                    has_field(head, rest, false)
                }
                _ => {
                    let mut words = rest.splitn(2, ' ');
                    let status = words.next().unwrap_or_default();
                    head.starts_with("HTTP/")
                        && head.split([' ', '\r']).nth(1) == Some(status)
                        && words.next().is_none_or(|t| answer.contains(t))
                }
            };
            if !fine {
                return Err(format!(
                    "line {}: \"{assert}\" does not hold; the answer:\n{answer}",
                    exchange.line
                ));
            }
        }
        Ok(())
    }

    fn at(&self, rest: &str) -> bool {
        let (name, text) = rest.split_once(' ').expect("at SERVICE TEXT");
        if let Some(text) = text.strip_prefix('!') {
            return self.seen.lock().expect("lock").get(name).is_none_or(|seen| !seen.contains(text));
        }
        comes(|| self.seen.lock().expect("lock").get(name).is_some_and(|seen| seen.contains(text)))
    }

    /// Waits until a log has a text.
    fn wait_for(&self, log: &str, text: &str) -> bool {
        comes(|| self.server.read(log).contains(text))
    }

    fn share(&self, case: &Case, exchange: &Exchange, rest: &str) -> bool {
        let words: Vec<&str> = rest.split(' ').collect();
        let [name, least, most] = words[..] else { panic!("share SERVICE LEAST MOST") };
        let of = |_: i32| self.send(case, exchange).is_some_and(|a| a.contains(&format!("\r\n\r\n{name} ")));
        let count = (0..100).filter(|i| of(*i)).count();
        (least.parse().expect("number")..=most.parse().expect("number")).contains(&count)
    }
}

/// Waits until a condition holds. Returns `false` if it does not in time.
fn comes(holds: impl Fn() -> bool) -> bool {
    let end = Instant::now() + DEADLINE / 4;
    while !holds() {
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// Returns `true` if lines have a field `NAME: VALUE`, or with `!NAME` have it not. `VALUE*` is a beginning. `once`: there is no other
/// one of the name.
fn has_field(text: &str, wanted: &str, once: bool) -> bool {
    let name = wanted.trim_start_matches('!').split(": ").next().unwrap_or_default().trim_end_matches(':');
    let of = |line: &str| {
        let (n, value) = line.trim_end().split_once(':')?;
        n.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
    };
    let values: Vec<String> = text.lines().filter_map(of).collect();
    if wanted.starts_with('!') {
        return values.is_empty();
    }
    if once && values.len() > 1 {
        return false;
    }
    let value = wanted.split_once(": ").map_or("", |(_, v)| v);
    match value.strip_suffix('*') {
        Some(start) => values.iter().any(|v| v.starts_with(start)),
        None => values.iter().any(|v| v == value),
    }
}

const OWN: &str = "--resolver 127.0.0.1 --default-ssl-certificate default/tls";

/// Runs `forebay ingress render` with options. Returns what it prints, and the problems.
fn render(args: &str, more: &[&str]) -> (String, String) {
    let common = ["ingress", "render", "--watch-ingress-without-class", "--configmap", "default/config"];
    let args: Vec<&str> = common.into_iter().chain(args.split(' ')).chain(more.iter().copied()).collect();
    let (code, text, problems) = run(program(), &args).expect("runs");
    assert!(code <= 1, "{problems}");
    (text, problems)
}

/// Renders one Ingress with annotations and keys. Returns the text and the problems.
fn written(site: &Site, secret: &Value, pairs: &[(&str, String)]) -> (String, String) {
    let (mut annotations, mut data) = (serde_json::Map::new(), serde_json::Map::new());
    for (name, value) in pairs {
        match name.strip_prefix('@') {
            Some(name) => {
                annotations.insert(format!("nginx.ingress.kubernetes.io/{name}"), value.clone().into());
            }
            None => drop(data.insert((*name).to_owned(), value.clone().into())),
        }
    }
    let map = |name: &str, data: Value| object("ConfigMap", name, json!({"data": data}));
    let spec = json!({"tls": [{"hosts": ["a.test"], "secretName": "tls"}], "rules": [rule("a.test", "/")]});
    let items = json!([
        object("Service", "web", json!({"spec": {"clusterIP": "10.0.0.1", "ports": [{"port": 80}]}})),
        object("Secret", "tls", json!({"stringData": secret})),
        object("Secret", "pw", json!({"metadata": {"namespace": "second"}, "stringData": {"auth": "a:b"}})),
        map("fields", json!({"X-Custom": "yes"})),
        map("parameters", json!({"APP_ENV": "yes"})),
        map("config", data.into()),
        object("Ingress", "a", json!({"metadata": {"annotations": annotations}, "spec": spec})),
    ]);
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    let path = site.write("written.json", list.to_string()).display().to_string();
    render(&format!("-f {path} --default-backend-service default/web {OWN}"), &[])
}

/// Each value becomes the line that `written.cases` names, and the server takes it.
#[test]
fn values_become_their_lines() {
    let (site, _) = certified();
    let secret = json!({"tls.crt": site.read("server.crt"), "tls.key": site.read("server.key"), "ca.crt": site.read("server.crt")});
    let count = |text: &str, wanted: &str| {
        let of = |line: &str| match wanted.strip_suffix('*') {
            Some(start) => line.trim().starts_with(start),
            None => line.trim() == wanted,
        };
        text.lines().filter(|line| of(line)).count()
    };
    let mut failures = Vec::new();
    let lines = include_str!("ingress/written.cases").lines();
    for line in lines.filter(|l| !l.is_empty() && !l.starts_with(['#', '~'])) {
        let (given, wanted) = line.rsplit_once(" => ").expect("=>");
        let pairs: Vec<(&str, String)> = given
            .split(" | ")
            .map(|p| p.split_once(": ").map(|(k, v)| (k, v.replace("\\n", "\n"))).expect("KEY: VALUE"))
            .collect();
        let (with, problems) = written(&site, &secret, &pairs);
        let (without, _) = written(&site, &secret, &pairs[1..]);
        let (wanted, gone) = wanted.strip_prefix('!').map_or((wanted, false), |w| (w, true));
        let (more, less) = if gone { (&without, &with) } else { (&with, &without) };
        if count(more, wanted) <= count(less, wanted) || problems.contains("refused:") {
            failures.push(format!("{line}\n{problems}"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Runs a table.
fn table(text: &str, more: &[&str]) -> usize {
    // Ports that a table names are those of this machine that are free.
    let mut ports = vec![free_pair()];
    ports.extend((1..4).map(|_| free_port()));
    let fill = |text: &str| {
        ports
            .iter()
            .enumerate()
            .fold(text.to_owned(), |t, (i, port)| t.replace(&format!("%FREE{i}%"), &port.to_string()))
    };
    let (text, more) = (&fill(text), more.iter().map(|m| fill(m)).collect::<Vec<_>>());
    let more = &more.iter().map(String::as_str).collect::<Vec<_>>();
    let (settings, cases) = read(text);
    let (table, problems) = Table::start(&settings, &cases, more);
    let mut failures = Vec::new();
    for case in &cases {
        for wanted in &case.problems {
            // Those of the case begin with its name.
            let id = format!("/{}-", case.host.trim_end_matches(".test"));
            if !problems.lines().any(|l| l.contains(&id) && l.contains(wanted)) {
                failures.push(format!("{}: no problem says {wanted:?}", case.name));
            }
        }
        for wanted in case.says.iter().filter(|wanted| !problems.contains(*wanted)) {
            failures.push(format!("{}: nothing says {wanted:?}", case.name));
        }
        for exchange in &case.exchanges {
            if let Err(text) = table.check(case, exchange) {
                failures.push(format!("{}: {text}", case.name));
                break;
            }
        }
    }
    // A request that is refused before a location is chosen sets none of the variables in the log format.
    let told = settings.iter().any(|(key, value)| key == "use-proxy-protocol" && value == "true");
    let header = if told { "PROXY UNKNOWN\r\n" } else { "" };
    let refused = raw(table.server.addr(0), format!("{header}GET / HTTP/1.1\r\nHost: a b\r\n\r\n"));
    assert!(refused.starts_with(b"HTTP/1.1 400"), "{}", String::from_utf8_lossy(&refused));
    let log = table.server.read("stderr");
    assert!(!log.contains("using uninitialized"), "{log}");
    assert!(
        failures.is_empty(),
        "{} of {} cases fail:\n{}\n{problems}\n{log}",
        failures.len(),
        cases.len(),
        failures.join("\n\n")
    );
    cases.len()
}

/// Makes a test of tables, `FILE, options of the program, least number of cases` each.
macro_rules! tables {
    ($($(#[$doc:meta])* $name:ident: $($file:literal [$($more:literal),*] $least:literal),+;)*) => {
        $($(#[$doc])*
        #[test]
        fn $name() {
            $({
                let text = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ingress/", $file, ".cases"));
                assert!($crate::ingress::table(text, &[$($more),*]) >= $least, $file);
            })+
        })*
    };
}
pub(crate) use tables;

tables! {
    routing: "routing" [] 25;
    proxying: "proxying" [] 20;
    access: "access" [] 20;
    identity: "identity" [] 50;
    snippets: "snippets" [] 10;
    names: "names" [] 8;
    ports: "ports" ["--tcp-services-configmap", "default/tcp", "--udp-services-configmap", "default/udp",
        "--enable-ssl-passthrough", "--ssl-passthrough-proxy-port", "%FREE0%"] 5;
    gateways: "gateways" [] 4;
    access_at_gateways: "gateways-access" [] 5;
    encryption_behind_gateways: "gateways-encrypted" [] 1;
    keys_that_decide_on_access_at_gateways: "gateways-open" [] 1, "gateways-blocked" [] 1, "gateways-closed" [] 1,
        "gateways-asked" [] 1;
    routes: "routes" [] 12;
    /// What ingress-nginx's documents say, by annotations, and by keys with two ConfigMaps.
    expected: "expected" [] 70, "expected-settings" ["--default-backend-service", "default/errors"] 15, "expected-plain" [] 10;
    /// What is logged, and how long an upstream is waited for, by annotations and by keys.
    logs: "logs" ["--default-backend-service", "default/errors"] 6, "upstreams" [] 6, "unlogged" [] 1, "unlogged-http" [] 1;
    settings: "settings" ["--default-backend-service", "default/errors"] 10;
    /// A ConfigMap that asks for a firewall closes all hosts, unless an option says otherwise.
    a_missing_firewall: "firewall" [] 2, "firewall-ignored" ["--ignore-missing-waf"] 2;
    /// Short names of ExternalName Services are looked for below the domains of `search`.
    short_names: "short-names" ["--search-domain", "none.test", "--search-domain", "found.test"] 3;
    refusals_by_options: "catch-all" ["--disable-catch-all=true"] 2, "external" ["--disable-svc-external-name=false"] 1,
        "external-refused" ["--disable-svc-external-name"] 1;
}

/// Other spellings of fields, with underscores let in and without.
#[test]
fn spellings() {
    let cases = include_str!("ingress/spellings.cases");
    for setting in ["enable-underscores-in-headers: true", "ignore-invalid-headers: false", "use-gzip: false"]
    {
        assert!(table(&format!("{setting}\n{cases}"), &[]) >= 5, "{setting}");
    }
}

#[path = "../../forebay-k8s/tests/samples/mod.rs"]
mod samples;

/// Renders objects and tests the files; returns what `-t` says if it fails.
fn builds(site: &Site, objects: &Value, more: &[&str]) -> Result<(), String> {
    let input = site.dir().join("objects.json");
    std::fs::write(&input, objects.to_string()).expect("write");
    // Those of the objects before would be included.
    let _ = std::fs::remove_dir_all(site.dir().join("hosts"));
    let (input, dir) = (input.display().to_string(), site.dir().display().to_string());
    render(&format!("-f {input} -o {dir} {OWN}"), more);
    let Done { code, err, .. } = site.forebay(&format!("-t -p {dir} -c forebay.conf"));
    (code == 0)
        .then_some(())
        .ok_or(err.lines().filter(|l| l.contains("emerg")).collect::<Vec<_>>().join("\n"))
}

fn certified() -> (Site, Vec<Value>) {
    let site = Site::new("");
    site.certificate("server", RSA, "test", "DNS:*.test");
    for end in ["crt", "key"] {
        std::fs::copy(site.dir().join(format!("server.{end}")), site.dir().join(format!("client.{end}")))
            .expect("copy");
    }
    let objects = shared(&site, &[], &[("web", 80)].into());
    (site, objects)
}

/// Makes an object of the namespace `default` with further members.
fn object(kind: &str, name: &str, more: Value) -> Value {
    let version = api::KINDS.iter().find(|(k, ..)| *k == kind).expect("a kind").1;
    let mut all =
        json!({"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": "default"}});
    for (member, value) in more.as_object().expect("members") {
        match value.as_object().filter(|_| member == "metadata") {
            Some(more) => more.iter().for_each(|(member, value)| all["metadata"][member] = value.clone()),
            None => all[member] = value.clone(),
        }
    }
    all
}

/// Returns a rule for all requests of a host that begin with a path.
fn rule(host: &str, path: &str) -> Value {
    let web = json!({"service": {"name": "web", "port": {"number": 80}}});
    json!({"host": host, "http": {"paths": [{"path": path, "pathType": "Prefix", "backend": web}]}})
}

fn one_ingress(name: &str, annotations: serde_json::Map<String, Value>) -> Value {
    let host = format!("{name}.test");
    let tls = json!([{"hosts": [host], "secretName": "tls"}]);
    object(
        "Ingress",
        name,
        json!({"metadata": {"annotations": annotations}, "spec": {"tls": tls, "rules": [rule(&host, "/p")]}}),
    )
}

/// Whatever value an annotation has: if it is accepted, the server takes the configuration.
#[test]
fn every_value_of_an_annotation_builds() {
    let (site, mut objects) = certified();
    let mut random = samples::Random(0x1357_9bdf_2468_ace1);
    for (i, row) in forebay_k8s::annotations::ROWS.iter().enumerate() {
        let mut values = samples::samples(row.name, row.value, row.default);
        let valid = values.clone();
        values.extend((0..20).map(|_| samples::hostile(&mut random, &valid)));
        for (j, value) in values.into_iter().enumerate() {
            let mut annotations: serde_json::Map<_, _> =
                samples::companions(row.name).into_iter().map(|(k, v)| (k, v.into())).collect();
            annotations.insert(format!("nginx.ingress.kubernetes.io/{}", row.name), value.into());
            objects.push(one_ingress(&format!("r{i}v{j}"), annotations));
        }
    }
    let all = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    if let Err(text) = builds(&site, &all, &[]) {
        let name = text.split("/hosts/").nth(1).and_then(|t| t.split(".test").next()).unwrap_or_default();
        let id = Value::from(name);
        let items = all["items"].as_array().expect("a list");
        let guilty = items.iter().find(|o| o["metadata"]["name"] == id);
        panic!("{text}\n{guilty:?}");
    }
}

/// The same for the keys of the ConfigMap, one after the other.
#[test]
fn every_value_of_a_key_builds() {
    let (site, objects) = certified();
    let mut failures = Vec::new();
    for row in forebay_k8s::settings::ROWS {
        for value in samples::samples(row.name, row.value, row.default).into_iter().take(3) {
            let mut objects = objects.clone();
            for object in &mut objects {
                if object["metadata"]["name"] == "config" {
                    object["data"] = json!({"access-log-path": "logs/access.log"});
                    object["data"][row.name] = value.clone().into();
                }
            }
            objects.push(one_ingress("a", serde_json::Map::new()));
            let all = json!({"apiVersion": "v1", "kind": "List", "items": objects});
            if let Err(text) = builds(&site, &all, &[]) {
                failures.push(format!("{}={value:?}: {text}", row.name));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// All variables that values may mention exist.
#[test]
fn the_known_variables_exist() {
    let site = Site::new("");
    let text = |names: Vec<&str>| names.iter().map(|n| format!("${{{n}}}")).collect::<Vec<_>>().join("' '");
    let http = text(forebay_k8s::variables::known().collect());
    let stream = text(forebay_k8s::variables::known_in_stream().collect());
    site.write(
        "nginx.conf",
        format!(
            "events {{}} http {{ log_format x '{http}'; access_log logs/x x; server {{ listen 127.0.0.1:8; }} }}\n\
             stream {{ log_format x '{stream}'; access_log logs/x x; server {{ listen 127.0.0.1:9; ssl_preread on; proxy_pass 127.0.0.1:7; }} }}"
        ),
    );
    let done = Done::of(&mut site.command(program(), &["-t"]));
    assert_eq!(done.code, 0, "{}", done.err);
}

#[test]
fn a_rendered_text_hides_keys() {
    let (site, _) = certified();
    let (crt, key) = (site.read("server.crt"), site.read("server.key"));
    let mut shop = one_ingress("a", serde_json::Map::new());
    shop["metadata"]["annotations"]["nginx.ingress.kubernetes.io/configuration-snippet"] =
        "add_header X-A b;".into();
    let items = json!([
        shop,
        one_ingress("b", serde_json::Map::new()),
        object("Secret", "tls", json!({"stringData": {"tls.crt": crt, "tls.key": key}}))
    ]);
    site.write("m.json", json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string());
    let Done { code, out, err } = site.forebay("ingress render -f m.json --watch-ingress-without-class");
    assert_eq!(code, 1, "{err}");
    assert!(
        out.contains("# file forebay.conf\n") && out.contains("# file hosts/b.test.conf\nserver {"),
        "{out}"
    );
    let hidden = format!("# file secrets/default_tls.key\n# {} bytes\n", key.len());
    assert!(out.contains(&hidden) && !out.contains("PRIVATE"), "{out}");
    assert!(err.contains("snippets are not allowed"), "{err}");
}

/// Whatever Ingresses come together, the server takes the configuration.
#[test]
fn random_clusters_build() {
    let (site, shared) = certified();
    let hosts = ["a.test", "b.test", "*.c.test", "www.a.test", "d.test", ""];
    let paths = ["/", "/x", "/x/", "/x/y", "/z(.*)", "/X", "/.well-known/acme-challenge/t"];
    let kinds = ["Prefix", "Exact", "ImplementationSpecific"];
    let snippets = [
        "location /x { return 200; }",
        "add_header a b;",
        "location /x/ { return 200; } location = /x { return 202; }",
    ];
    let rows = forebay_k8s::annotations::ROWS;
    for seed in 1..=20_u64 {
        let mut random = samples::Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut objects = shared.clone();
        for object in objects.iter_mut().filter(|o| o["metadata"]["name"] == "config") {
            object["data"] =
                json!({"allow-snippet-annotations": "true", "annotations-risk-level": "Critical"});
            for _ in 0..4 {
                let row = &forebay_k8s::settings::ROWS[random.below(forebay_k8s::settings::ROWS.len())];
                let values = samples::samples(row.name, row.value, row.default);
                if !values.is_empty() && !row.name.contains("log-path") {
                    object["data"][row.name] = values[random.below(values.len())].clone().into();
                }
            }
        }
        for i in 0..12 {
            let mut annotations = serde_json::Map::new();
            for _ in 0..random.below(8) {
                let row = &rows[random.below(rows.len())];
                let mut values = samples::samples(row.name, row.value, row.default);
                if matches!(row.name, "configuration-snippet" | "server-snippet") {
                    values.extend(snippets.map(str::to_owned));
                }
                if values.is_empty() {
                    continue;
                }
                annotations.extend(samples::companions(row.name).into_iter().map(|(k, v)| (k, v.into())));
                annotations.insert(
                    format!("nginx.ingress.kubernetes.io/{}", row.name),
                    values[random.below(values.len())].clone().into(),
                );
            }
            let mut ingress = one_ingress(&format!("i{i}"), annotations);
            let rules: Vec<_> = (0..1 + random.below(3))
                .map(|_| {
                    let paths: Vec<_> = (0..1 + random.below(3))
                        .map(|_| {
                            let service = json!({"name": random.pick(&["web", "empty", "nonsuch"]), "port": {"number": 80}});
                            json!({"path": random.pick(&paths), "pathType": random.pick(&kinds), "backend": {"service": service}})
                        })
                        .collect();
                    json!({"host": random.pick(&hosts), "http": {"paths": paths}})
                })
                .collect();
            ingress["spec"]["rules"] = rules.into();
            ingress["spec"]["tls"] =
                if random.below(2) == 0 { json!([{"secretName": "tls"}]) } else { json!([]) };
            ingress["metadata"]["creationTimestamp"] =
                format!("2026-01-01T00:00:{:02}Z", random.below(60)).into();
            objects.push(ingress);
        }
        let all = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        let more: &[&str] = if random.below(2) == 0 {
            &["--enable-ssl-passthrough", "--default-backend-service", "default/web"]
        } else {
            &[]
        };
        builds(&site, &all, more).unwrap_or_else(|text| panic!("seed {seed}: {text}"));
    }
}
