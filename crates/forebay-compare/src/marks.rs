//! Edits of the private copies that make them comparable: marks that tell which blocks a request went through, access logs
//! with the number of the request, and constants in place of what differs from moment to moment.

use forebay_conf::print;
use forebay_copy::patch::{Edit, Source, View};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Name of the log with the marks.
pub(crate) const MARKS: &str = "forebay-marks";

/// Variables whose values differ from request to request, or between two servers that do the same.
const VOLATILE: [&str; 26] = [
    "time_local",
    "time_iso8601",
    "time_iso8601_ms",
    "msec",
    "date_local",
    "date_gmt",
    "request_time",
    "request_id",
    "connection",
    "connection_requests",
    "connection_time",
    "connections_active",
    "connections_waiting",
    "pid",
    "remote_port",
    "bytes_sent",
    "gzip_ratio",
    "nginx_version",
    "upstream_connect_time",
    "upstream_header_time",
    "upstream_response_time",
    "upstream_first_byte_time",
    "upstream_session_time",
    "upstream_bytes_sent",
    "upstream_bytes_received",
    "ssl_session_id",
];

/// Directives in whose arguments they become constants.
const SHOWN: [&str; 10] = [
    "add_header",
    "add_trailer",
    "proxy_set_header",
    "grpc_set_header",
    "fastcgi_param",
    "uwsgi_param",
    "scgi_param",
    "return",
    "sub_filter",
    "more_set_headers",
];

/// Returns the edits for the copy in `dir`.
pub(crate) fn edits(source: &Source, dir: &Path) -> Vec<Edit> {
    let view = source.view();
    let Some(http) = view.child(None, "http") else { return Vec::new() };
    let marker = Marker { view: &view, logs: dir.join("logs"), http };
    let mut edits = Vec::new();
    for n in (0..view.nodes.len()).filter(|n| view.within(*n, http)) {
        match view.name(n) {
            "server" | "location" | "if" if marker.has_block(n) => edits.extend(marker.mark(n)),
            "access_log" => edits.push(marker.access_log(n)),
            "log_format" => edits.extend(marker.log_format(n)),
            "limit_req_zone" => edits.extend(marker.arguments(n, |w| {
                if w.starts_with("rate=") { "rate=1000000r/s".into() } else { w.to_owned() }
            })),
            "time_format" => edits.extend(marker.last_argument(n, "(varies)")),
            "limit_conn" if view.args(n).len() == 2 => edits.extend(marker.last_argument(n, "65000")),
            name if SHOWN.contains(&name) => edits.extend(marker.arguments(n, constant)),
            _ => {}
        }
    }
    edits.push(marker.top());
    in_lines(edits)
}

/// Returns edits that keep the numbers of lines, which messages of a server name.
fn in_lines(edits: Vec<Edit>) -> Vec<Edit> {
    edits.into_iter().map(|e| Edit { text: e.text.replace('\n', " "), ..e }).collect()
}

/// Returns the edits for a copy that runs for long: it has no access logs, which nobody would empty.
pub(crate) fn quiet(source: &Source, dir: &Path) -> Vec<Edit> {
    let view = source.view();
    let mut edits: Vec<Edit> = view.all("access_log").map(|n| view.replace(n, "access_log off;")).collect();
    let Some(http) = view.child(None, "http") else { return edits };
    if view.child(Some(http), "access_log").is_none() {
        edits.push(view.insert(Some(http), "access_log off;"));
    }
    let marker = Marker { view: &view, logs: dir.join("logs"), http };
    let shown = (0..view.nodes.len()).filter(|n| view.within(*n, http) && SHOWN.contains(&view.name(*n)));
    edits.extend(shown.flat_map(|n| marker.arguments(n, constant)));
    edits.extend(view.all("time_format").filter_map(|n| marker.last_argument(n, "(varies)")));
    in_lines(edits)
}

struct Marker<'a> {
    view: &'a View<'a>,
    logs: std::path::PathBuf,
    http: usize,
}

fn word(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&print::quoted(bytes)).into_owned()
}

impl Marker<'_> {
    fn has_block(&self, n: usize) -> bool {
        self.view.nodes.get(n).is_some_and(|n| n.d.block.is_some())
    }

    /// Returns the edit that notes that a request comes through a block.
    fn mark(&self, n: usize) -> Option<Edit> {
        let text = match self.view.name(n) {
            "server" if self.view.nodes.get(n)?.parent == Some(self.http) => {
                format!("set $forebay_at \"{n}.\";")
            }
            "server" => return None,
            _ => format!("set $forebay_at \"${{forebay_at}}{n}.\";"),
        };
        Some(self.view.insert(Some(n), &text))
    }

    fn marks_log(&self) -> String {
        format!("access_log {} forebay_marks;", self.path(MARKS))
    }

    /// Returns the path of a log. Its name may have variables, the directory has none.
    fn path(&self, name: &str) -> String {
        let mut path = print::without_variables(self.logs.as_os_str().as_bytes());
        path.push(b'/');
        path.extend_from_slice(name.as_bytes());
        word(&path)
    }

    fn access_log(&self, n: usize) -> Edit {
        let args = self.view.args(n);
        let target = args.first().map_or("", String::as_str);
        if target == "off" {
            return self.view.replace(n, &self.marks_log());
        }
        let name =
            target.split([':', ',']).next().filter(|n| *n == "syslog").unwrap_or(target).replace('/', "_");
        let format = args.get(1).filter(|a| !a.contains('=')).map_or("combined", String::as_str);
        let condition = args.iter().find(|a| a.starts_with("if="));
        let condition = condition.map_or(String::new(), |c| format!(" {}", word(c.as_bytes())));
        let log = format!("access_log {} {}{condition};", self.path(&name), word(own(format).as_bytes()));
        self.view.replace(n, &format!("{log} {}", self.marks_log()))
    }

    /// Returns the edits that add a format with the number of the request beside a format.
    fn log_format(&self, n: usize) -> Option<Edit> {
        let args = self.view.args(n);
        let (name, rest) = args.split_first()?;
        let (escape, texts): (Vec<&String>, Vec<&String>) =
            rest.iter().partition(|a| a.starts_with("escape="));
        let escape = escape.first().map_or(String::new(), |e| format!(" {e}"));
        let text: String = texts.into_iter().map(String::as_str).collect();
        let made = format!(
            "log_format {}{escape} {};",
            word(own(name).as_bytes()),
            word(numbered(&text).as_bytes())
        );
        let mut edit = self.view.replace(n, &made);
        edit.end = edit.start;
        edit.text.push(' ');
        Some(edit)
    }

    /// Returns the edit that replaces the last argument.
    fn last_argument(&self, n: usize, text: &str) -> Option<Edit> {
        let span = self.view.nodes.get(n)?.d.args.last()?.span;
        Some(Edit { file: span.file, start: span.start, end: span.end, text: text.to_owned() })
    }

    /// Returns the edits that replace arguments.
    fn arguments(&self, n: usize, new: fn(&str) -> String) -> Vec<Edit> {
        let Some(node) = self.view.nodes.get(n) else { return Vec::new() };
        let changed = node.d.args.iter().filter_map(|w| {
            let text = w.as_str();
            let new = new(&text);
            let span = w.span;
            let edit = |text| Edit { file: span.file, start: span.start, end: span.end, text };
            (new != *text).then(|| edit(word(new.as_bytes())))
        });
        changed.collect()
    }

    /// Returns what `http` needs: the formats, the first value of the marks, and logs where it has none.
    fn top(&self) -> Edit {
        let combined = word(numbered(crate::requests::log::COMBINED).as_bytes());
        let mut text = format!(
            "map \"\" $forebay_at {{ default \"\"; }} log_format forebay_marks \"$http_forebay_compare\\t$forebay_at\\t\"; \
             log_format {} {combined};",
            own("combined")
        );
        if self.view.child(Some(self.http), "access_log").is_none() {
            text.push_str(&format!(" access_log {} {}; ", self.path("access.log"), own("combined")));
            text.push_str(&self.marks_log());
        }
        self.view.insert(Some(self.http), &text)
    }
}

/// Returns the name of our form of a log format.
fn own(format: &str) -> String {
    format!("forebay_of_{format}")
}

/// Returns a log format with the number of the request before it.
fn numbered(text: &str) -> String {
    format!("$http_forebay_compare\t{}", constant(text))
}

/// Replaces variables that differ from moment to moment.
fn constant(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        let (head, tail) = rest.split_at(at);
        out.push_str(head);
        let behind = tail.get(1..).unwrap_or_default();
        let braced = behind.strip_prefix('{').and_then(|b| b.split_once('}'));
        let (name, after) = braced.unwrap_or_else(|| {
            behind.split_at(
                behind.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(behind.len()),
            )
        });
        if VOLATILE.contains(&name) || name.starts_with("tcpinfo_") {
            out.push_str("(varies)");
        } else {
            out.push_str(tail.strip_suffix(after).unwrap_or_default());
        }
        rest = after;
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_conf::tree::FileId;
    use forebay_copy::patch::apply;

    #[test]
    fn what_varies_becomes_a_constant() {
        assert_eq!(constant("a $msec ${request_id}b $uri$"), "a (varies) (varies)b $uri$");
        assert_eq!(constant("$connections $connection_x"), "$connections $connection_x");
    }

    #[test]
    fn a_quiet_copy_has_no_access_logs() {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("nginx.conf");
        let text = "events {}\nhttp { time_format $t %Y; server { access_log /a; location / { access_log /b; add_header X $msec; } } }\n";
        std::fs::write(&path, text).expect("written");
        let source = Source::read(&path).expect("parses");
        let edits = quiet(&source, Path::new("/copy"));
        let new = String::from_utf8(apply(source.files.bytes(FileId(0)), FileId(0), &edits)).expect("text");
        assert_eq!(new.matches("access_log off;").count(), 3, "{new}");
        assert!(
            !new.contains("/a;") && new.contains("X (varies)") && new.contains("time_format $t (varies)"),
            "{new}"
        );
    }

    #[test]
    fn blocks_are_marked_and_logs_numbered() {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("nginx.conf");
        let text = "events {}\nhttp { log_format main escape=json '$remote_addr $msec';\nserver { access_log /var/log/a main if=$arg_x buffer=4k;\n\
                    location / { access_log off; if ($arg_a) { return 204; } add_header X $request_id; } } }\n";
        std::fs::write(&path, text).expect("written");
        let source = Source::read(&path).expect("parses");
        let edits = edits(&source, Path::new("/copy"));
        let new = String::from_utf8(apply(source.files.bytes(FileId(0)), FileId(0), &edits)).expect("text");
        for part in [
            "log_format forebay_of_main escape=json",
            "access_log /copy/logs/_var_log_a forebay_of_main if=$arg_x; access_log /copy/logs/forebay-marks",
            "add_header X (varies)",
            "set $forebay_at \"${forebay_at}",
        ] {
            assert!(new.contains(part), "{part}: {new}");
        }
        assert_eq!(new.matches("set $forebay_at").count(), 3, "{new}");
        std::fs::write(&path, &new).expect("written");
        Source::read(&path).unwrap_or_else(|e| panic!("{e}: {new}"));
    }
}
