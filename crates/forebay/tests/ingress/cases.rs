//! Tables of cases.
//!
//! A file begins with lines `KEY: VALUE` of the ConfigMap. `== NAME` begins a case, whose host is `cN.test`:
//!
//! - `PATH TYPE SERVICE[:PORT]` adds a path, `@NAME: VALUE` an annotation (`\n` is a line break, `{host}` the host), `host NAME` sets the
//!   host of the Ingress, `tls` gives it the Secret `tls`, `default SERVICE` a default backend, `ingress` begins another, younger
//!   Ingress, `namespace NAME` sets its namespace;
//! - `object JSON` adds an object; `problem TEXT` asserts a problem of the Ingress that contains the text, and
//!   `says TEXT` one of anything;
//! - `> METHOD URI` sends a request with the fields of the lines `NAME: VALUE` after it; `>> ` sends it by TLS;
//! - `< STATUS [TEXT...]` asserts the status, and texts in head or body; `< NAME: VALUE` a field; `< !NAME` its absence;
//!   `saw NAME: VALUE` and `saw !NAME` a field that the backend got (once); `never TEXT` the absence of a text in the body; `at SERVICE TEXT` a text in the last request at a backend, `at SERVICE !TEXT` its absence;
//!   `port: NUMBER` among the fields sends the request to another port, `%FREE0%` to `%FREE3%` are ports that are free,
//!   `proxy-protocol: REST` sends the line of a PROXY header first,
//!   `version: 2` or `3` sends it over HTTP/2 or HTTP/3, `first: HOST` sends one to another host before, on the same connection;
//!   `beside: HOST` sends a field Host beside `:authority`;
//!   `"%HTTP%"` and `"%HTTPS%"` are our own ones; `sni: NAME` sends another name in the handshake, and `certificate: NAME` a certificate;
//!   `%BACKEND.CRT%` in an object is the certificate of the backend with TLS;
//!   `< closed` asserts that there is no answer;
//!   `share SERVICE LEAST MOST` of 100 repetitions of the request;
//!   `logged TEXT` and `unlogged TEXT` a text in the access log and its absence, `noted TEXT` and `unnoted TEXT` the same of the error log.
//!   What must be absent belongs to a request before one whose line is there.

use serde_json::{Value, json};

/// One Ingress of a case.
#[derive(Default, Clone)]
pub(super) struct Ingress {
    pub(super) host: Option<String>,
    pub(super) namespace: Option<String>,
    pub(super) paths: Vec<(String, String, String)>,
    pub(super) annotations: Vec<(String, String)>,
    pub(super) tls: bool,
    pub(super) default: Option<String>,
}

/// A request and what is asserted about its answer.
#[derive(Default, Clone)]
pub(super) struct Exchange {
    pub(super) line: usize,
    pub(super) tls: bool,
    pub(super) request: String,
    pub(super) fields: Vec<String>,
    pub(super) asserts: Vec<String>,
}

/// A case.
#[derive(Default)]
pub(super) struct Case {
    pub(super) name: String,
    pub(super) host: String,
    pub(super) ingresses: Vec<Ingress>,
    pub(super) objects: Vec<String>,
    pub(super) problems: Vec<String>,
    pub(super) says: Vec<String>,
    pub(super) exchanges: Vec<Exchange>,
}

/// Reads a table: the settings and the cases.
pub(super) fn read(text: &str) -> (Vec<(String, String)>, Vec<Case>) {
    let (mut settings, mut cases) = (Vec::new(), Vec::<Case>::new());
    for (index, line) in text.lines().enumerate() {
        let line = line.trim_end();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(name) = line.strip_prefix("== ") {
            let host = format!("c{}.test", cases.len());
            cases.push(Case {
                name: name.into(),
                host,
                ingresses: vec![Ingress::default()],
                ..Case::default()
            });
            continue;
        }
        let Some(case) = cases.last_mut() else {
            let (key, value) = line.split_once(": ").unwrap_or_else(|| panic!("line {}: {line}", index + 1));
            settings.push((key.to_owned(), value.replace("\\n", "\n")));
            continue;
        };
        case.line(index + 1, line);
    }
    (settings, cases)
}

impl Case {
    fn line(&mut self, number: usize, line: &str) {
        let host = self.host.clone();
        let text = line.replace("{host}", &host);
        let (word, rest) = text.split_once(' ').unwrap_or((text.as_str(), ""));
        if let Some(tls) = [("> ", false), (">> ", true)].iter().find(|(p, _)| text.starts_with(p)) {
            self.exchanges.push(Exchange {
                line: number,
                tls: tls.1,
                request: rest.into(),
                ..Exchange::default()
            });
            return;
        }
        if let Some(exchange) = self.exchanges.last_mut() {
            if matches!(
                word,
                "<" | "saw" | "never" | "at" | "share" | "logged" | "unlogged" | "noted" | "unnoted"
            ) {
                exchange.asserts.push(text.clone());
            } else if word.ends_with(':') {
                exchange.fields.push(text.clone());
            } else {
                panic!("line {number}: {line}");
            }
            return;
        }
        let last = self.ingresses.last_mut().expect("one");
        match word {
            "ingress" => self.ingresses.push(Ingress::default()),
            "host" => last.host = Some(rest.into()),
            "namespace" => last.namespace = Some(rest.into()),
            "tls" => last.tls = true,
            "default" => last.default = Some(rest.into()),
            "object" => self.objects.push(rest.into()),
            "problem" => self.problems.push(rest.into()),
            "says" => self.says.push(rest.into()),
            _ if word.starts_with('@') => {
                let (name, value) = text[1..].split_once(": ").expect("@NAME: VALUE");
                last.annotations.push((name.into(), value.replace("\\n", "\n")));
            }
            _ => {
                let words: Vec<&str> = text.split(' ').collect();
                let [path, kind, service] = words[..] else { panic!("line {number}: {line}") };
                last.paths.push((path.into(), kind.into(), service.into()));
            }
        }
    }

    /// Returns the Ingresses as manifests. Ingress `I` of case `N` is named `cN-I`.
    pub(super) fn manifests(&self) -> Vec<Value> {
        let id = self.host.trim_end_matches(".test");
        let ingress = |(i, ingress): (usize, &Ingress)| {
            let host = ingress.host.clone().unwrap_or_else(|| self.host.clone());
            let backend = |service: &str| {
                let (name, port) = service.split_once(':').unwrap_or((service, "80"));
                let port = match port.parse::<u16>() {
                    Ok(number) => json!({"number": number}),
                    Err(_) => json!({"name": port}),
                };
                json!({"service": {"name": name, "port": port}})
            };
            let path = |(path, kind, service): &(String, String, String)| json!({"path": path, "pathType": kind, "backend": backend(service)});
            let paths: Vec<_> = ingress.paths.iter().map(path).collect();
            let full = |n: &str| {
                if n.contains('/') { n.to_owned() } else { format!("nginx.ingress.kubernetes.io/{n}") }
            };
            let annotations: serde_json::Map<_, _> =
                ingress.annotations.iter().map(|(n, v)| (full(n), v.clone().into())).collect();
            let mut spec = json!({"rules": [{"host": host, "http": {"paths": paths}}]});
            if ingress.tls {
                spec["tls"] = json!([{"hosts": [host], "secretName": "tls"}]);
            }
            if let Some(service) = &ingress.default {
                spec["defaultBackend"] = backend(service);
            }
            let metadata = json!({
                "namespace": ingress.namespace.as_deref().unwrap_or("default"),
                "creationTimestamp": format!("2026-01-01T00:00:{i:02}Z"), "annotations": annotations,
            });
            super::object("Ingress", &format!("{id}-{i}"), json!({"metadata": metadata, "spec": spec}))
        };
        self.ingresses.iter().enumerate().map(ingress).collect()
    }
}
