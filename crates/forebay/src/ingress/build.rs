//! Configurations of files in memory, made as the server makes them, to find what is wrong with them.

use crate::front_ends::load_all;
use forebay_conf::error::Level;
use forebay_conf::files::Files;
use forebay_core::config::Environment;
use forebay_k8s::judge::{Build, Refusal};
use forebay_k8s::translate::MAIN;
use forebay_sys::files;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Directory that the files are said to be in. It does not have to exist.
const PREFIX: &str = "/forebay";

/// Maker of configurations.
pub(crate) struct Builder {
    /// Files of this machine that the configuration names, by the paths that it has for them.
    pub files: Vec<(PathBuf, PathBuf)>,
    /// Any other file of this machine may be missing: the configuration is for another one.
    pub elsewhere: bool,
}

impl Build for Builder {
    fn errors(&self, given: &[(Arc<Path>, Arc<[u8]>)]) -> Vec<Refusal> {
        forebay_net::addr::offline(|| self.built(given))
    }
}

impl Builder {
    /// Makes a configuration and returns its errors. Names are looked up.
    fn built(&self, given: &[(Arc<Path>, Arc<[u8]>)]) -> Vec<Refusal> {
        let prefix = Path::new(PREFIX);
        let own = self.files.iter().map(|(path, from)| {
            let bytes = files::read_file(from, files::MAX_WHOLE).unwrap_or_default();
            (prefix.join(path), Arc::<[u8]>::from(bytes))
        });
        let given = given.iter().map(|(path, bytes)| (prefix.join(path), bytes.clone()));
        let mut files = Files::shared(given.chain(own));
        let (_, errors) = load_all(&environment(prefix), &mut files);
        let mut errors: Vec<_> = errors.into_iter().filter(|e| e.level <= Level::Emerg).collect();
        errors.sort_by_key(|e| e.ordinal);
        let elsewhere = |message: &str| {
            let message = message.to_ascii_lowercase();
            self.elsewhere && message.contains("no such file") && !message.contains(PREFIX)
        };
        let errors = errors.iter().filter(|e| !elsewhere(&e.message));
        errors
            .map(|error| {
                let at = error.at.or(error.span);
                let path = at.map(|at| files.path(at.file)).and_then(|path| path.strip_prefix(prefix).ok());
                let hint = error.hint.as_deref().map(|hint| format!(" ({hint})")).unwrap_or_default();
                Refusal {
                    path: path.map(Arc::from),
                    line: at.map_or(0, |at| at.line as usize),
                    message: error.message.replace(&format!("{PREFIX}/"), "") + &hint,
                    ..Refusal::default()
                }
            })
            .collect()
    }
}

fn environment(prefix: &Path) -> Environment {
    Environment {
        prefix: prefix.join(""),
        conf_path: prefix.join(MAIN),
        globals: String::new(),
        error_log: Some("stderr".into()),
        access_log: "access.log".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_k8s::judge::Judge;
    use forebay_k8s::objects::{ConfigMap, Manifests, Metadata, Object};
    use forebay_k8s::settings::ROWS;
    use forebay_k8s::value::Value;
    use forebay_k8s::{Key, Objects, Options, Translation, Translator};
    use std::collections::BTreeMap;

    const INGRESS: &str = r#"
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: a, namespace: ns, annotations: {nginx.ingress.kubernetes.io/limit-rps: "5"}}
spec:
  rules:
  - host: a.example.com
    http: {paths: [{path: /p, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: ns}
spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}
"#;

    /// Values of which each is odd for most keys.
    const ODD: [&str; 24] = [
        " ",
        ",",
        ", ,",
        "0",
        "-1",
        "1",
        "99999999999",
        "text/html",
        "a b c d",
        "$x",
        "$remote_addr",
        "\"",
        ";",
        "}",
        "{",
        "on",
        "1k",
        "99999m",
        "~(",
        "~*é",
        "off",
        "10.0.0.0/8",
        "10.0.0.0/8,::/0",
        "a\nb;",
    ];

    fn builder() -> Builder {
        Builder { files: Vec::new(), elsewhere: false }
    }

    fn translated(data: BTreeMap<String, String>) -> (Translation, Options) {
        translated_with(INGRESS, data)
    }

    fn translated_with(manifests: &str, data: BTreeMap<String, String>) -> (Translation, Options) {
        let mut objects = Objects::new();
        for document in Manifests::read(manifests).documents {
            objects.apply(document.object);
        }
        let metadata = Metadata { name: "c".into(), namespace: "ns".into(), ..Metadata::default() };
        objects.apply(Object::ConfigMap(Arc::new(ConfigMap { metadata, data })));
        let options = Options {
            watch_ingress_without_class: true,
            config_map: Some(Key::new("ns", "c")),
            judge: Judge::new(builder()),
            endpoints_in_files: true,
            ..Options::default()
        };
        (Translator::new().translate(&objects, &options), options)
    }

    /// Returns the problems of a ConfigMap with which the server takes the files.
    fn accepted(data: BTreeMap<String, String>) -> Vec<String> {
        let (made, _) = translated(data.clone());
        let errors = builder().errors(&made.files);
        assert!(errors.is_empty(), "{data:?}: {errors:?}");
        let host = made.files.iter().find(|(path, _)| path.ends_with("a.example.com.conf"));
        assert!(host.is_some_and(|(_, bytes)| !bytes.is_empty()), "{data:?}");
        let problems: Vec<String> = made.problems.iter().map(|p| p.render()).collect();
        assert!(
            !problems.iter().any(|p| p.contains("no configuration can be made")),
            "{data:?}: {problems:?}"
        );
        problems
    }

    #[test]
    fn no_odd_value_of_a_key_stops_the_others() {
        for row in ROWS {
            for odd in ["0", "99999999999", "a b c d", "~(", "text/html", ","] {
                accepted([(row.name.to_owned(), odd.to_owned())].into());
            }
        }
    }

    #[test]
    fn odd_values_of_all_keys_together_do_not_stop_the_server() {
        for odd in ODD {
            accepted(ROWS.iter().map(|row| (row.name.to_owned(), odd.to_owned())).collect());
        }
    }

    #[test]
    fn of_keys_that_clash_one_is_set_aside() {
        let clashes = [
            [("http-snippet", "map $host $a { default 1; }"), ("server-snippet", "set $a 1;")],
            [
                ("http-snippet", "limit_req_zone $host zone=z:1m rate=1r/s;"),
                ("server-snippet", "limit_conn z 1;"),
            ],
            [("client-header-buffer-size", "64k"), ("large-client-header-buffers", "4 1k")],
            [("proxy-buffer-size", "1m"), ("http-snippet", "proxy_busy_buffers_size 4k;")],
        ];
        for pair in clashes {
            let one = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
            accepted(pair.into_iter().map(one).collect());
        }
        let clash = [("http-snippet", "proxy_buffers 2 4k;"), ("location-snippet", "proxy_buffer_size 1m;")];
        let problems = accepted(clash.map(|(k, v)| (k.to_owned(), v.to_owned())).into());
        assert!(problems.iter().any(|p| p.contains("snippet")), "{problems:?}");
    }

    #[test]
    fn names_without_an_address_do_not_stop_the_server() {
        let cases = [
            ("http-snippet", "upstream u { server nosuch.none.invalid; }"),
            ("stream-snippet", "upstream u { server nosuch.none.invalid:1; }"),
            ("location-snippet", "proxy_pass http://nosuch.none.invalid;"),
            ("server-snippet", "location /x { proxy_pass http://nosuch.none.invalid; }"),
            ("server-snippet", "location / { return 200; }"),
        ];
        for (key, value) in cases {
            let (made, _) = translated([(key.to_owned(), value.to_owned())].into());
            let errors = builder().built(&made.files);
            assert!(errors.is_empty(), "{key} {value}: {errors:?}");
            let snippets = made.files.iter().any(|(_, bytes)| {
                String::from_utf8_lossy(bytes)
                    .contains(value.split([';', '{']).next().unwrap_or_default().trim())
            });
            assert!(snippets, "{key} {value}");
        }
    }

    #[test]
    fn sizes_times_and_numbers_of_an_ingress_do_not_stop_the_server() {
        let mut refused = Vec::new();
        let rows = forebay_k8s::annotations::ROWS.iter();
        for row in rows {
            let values = match row.value {
                Value::Size => vec!["0".into(), "5g".into(), "1024g".into(), "1099511627776".into()],
                Value::Time => vec!["0".into(), "315360000".into(), "3650d".into()],
                Value::Number(least, most) => vec![least.to_string(), most.to_string()],
                _ => continue,
            };
            for value in values {
                let annotation = format!("{{nginx.ingress.kubernetes.io/{}: \"{value}\"}}", row.name);
                let ingress = INGRESS.replace("{nginx.ingress.kubernetes.io/limit-rps: \"5\"}", &annotation);
                assert_ne!(ingress, INGRESS);
                let (made, _) = translated_with(&ingress, BTreeMap::new());
                let errors = builder().errors(&made.files);
                refused.extend(errors.first().map(|e| format!("{annotation}: {}", e.message)));
            }
        }
        assert_eq!(refused, [""; 0]);
    }

    #[test]
    fn the_stream_snippet_of_an_ingress_has_an_effect() {
        let snippet = "upstream own { server 10.0.0.9:1; }";
        let annotation = format!("{{nginx.ingress.kubernetes.io/stream-snippet: \"{snippet}\"}}");
        let ingress = INGRESS.replace("{nginx.ingress.kubernetes.io/limit-rps: \"5\"}", &annotation);
        let data = [("allow-snippet-annotations", "true"), ("annotations-risk-level", "Critical")];
        let data = data.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        let (made, _) = translated_with(&ingress, data);
        let problems: Vec<String> = made.problems.iter().map(|p| p.render()).collect();
        assert!(!problems.iter().any(|p| p.contains("stream-snippet")), "{problems:?}");
        let main = made.files.iter().find(|(path, _)| path.ends_with(MAIN)).expect("the main file");
        assert!(String::from_utf8_lossy(&main.1).contains("upstream own {"), "{problems:?}");
    }

    #[test]
    fn a_list_of_types_without_others_is_fine() {
        let data = [("use-gzip", "true"), ("gzip-types", "text/html"), ("brotli-types", " ")];
        assert_eq!(accepted(data.map(|(k, v)| (k.to_owned(), v.to_owned())).into()), [""; 0]);
    }
}
