//! The systemd drop-in that a configuration needs.

use forebay_copy::patch::{Edit, Source};

/// Returns the value of a directive, from the last edit of it or else from the configuration.
fn value(source: &Source, edits: &[Edit], name: &str) -> Option<String> {
    let view = source.view();
    let of = |text: &str| {
        let at = text.find(&format!("{name} "))?;
        let rest = text.get(at + name.len() + 1..)?;
        Some(rest.split(';').next().unwrap_or_default().trim().to_owned())
    };
    let edited = edits.iter().rev().find_map(|e| of(&e.text));
    edited.or_else(|| view.all(name).last().map(|n| view.args(n).join(" ")))
}

/// Descriptors of a worker in the worst case: two for each connection where requests are passed on, one for each
/// cached file, and some for logs and sockets.
pub(crate) fn descriptors(source: &Source, edits: &[Edit]) -> u64 {
    let connections = value(source, edits, "worker_connections").and_then(|v| v.parse().ok()).unwrap_or(512);
    let cached = value(source, edits, "open_file_cache")
        .and_then(|v| v.split(' ').find_map(|w| w.strip_prefix("max=")?.parse().ok()))
        .unwrap_or(0);
    let view = source.view();
    let proxied = ["proxy_pass", "fastcgi_pass", "uwsgi_pass", "scgi_pass", "grpc_pass", "memcached_pass"];
    let each = if proxied.iter().any(|d| view.all(d).next().is_some()) { 2 } else { 1 };
    connections * each + cached + 64
}

/// Returns the drop-in, with a comment on its purpose and its place.
pub(crate) fn unit(source: &Source, edits: &[Edit]) -> String {
    let need = descriptors(source, edits);
    // systemd's own hard limit is half a million; 1024 is its default soft limit.
    let limit = need.next_power_of_two().max(1024);
    format!(
        "# For /etc/systemd/system/nginx.service.d/forebay.conf, or that of the unit that runs the server; then\n\
         # systemctl daemon-reload, and a restart.\n\
         [Service]\n\
         # A worker may need {need} descriptors: connections, those to upstreams, cached files, logs.\n\
         LimitNOFILE={limit}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_follow_the_configuration() {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("n.conf");
        let conf = "events { worker_connections 3000; }\nhttp { open_file_cache max=500; server { listen 80; location / { \
                    proxy_pass http://127.0.0.1:1; } } }\n";
        std::fs::write(&path, conf).expect("written");
        let source = Source::read(&path).expect("parses");
        assert_eq!(descriptors(&source, &[]), 6564);
        assert!(unit(&source, &[]).contains("\nLimitNOFILE=8192\n"), "{}", unit(&source, &[]));
        let edit = Edit {
            file: forebay_conf::tree::FileId(0),
            start: 0,
            end: 0,
            text: "worker_connections 100;".into(),
        };
        assert_eq!(descriptors(&source, &[edit]), 764);
    }
}
