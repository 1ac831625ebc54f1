//! Checks beyond single directives: repeated words, names of thread pools, sizes of buffers that must fit to each
//! other. Few of them affect how requests are served, but nginx users expect the messages.

use super::scope::Scope;
use super::value::first;
use crate::modules::proxy;
use forebay_conf::error::Error;
use forebay_conf::tree::{Block, Directive};
use forebay_conf::units;
use std::collections::HashMap;

/// Size of `connection_pool_size` where it is not given, bytes.
pub const CONNECTION_POOL: u64 = 512;

/// Directives of which each takes words from a set, by how their names end (those of families) or in full.
const SETS: &[&str] = &[
    "_next_upstream",
    "_cache_use_stale",
    "_cache_methods",
    "_ignore_headers",
    "ssl_protocols",
    "dav_methods",
    "keepalive_disable",
    "gzip_proxied",
    "userid_flags",
];

/// Pools defined by `thread_pool`, and the directives that use them.
#[derive(Debug, Default)]
pub struct Pools {
    names: Vec<Vec<u8>>,
    wanted: Vec<(Vec<u8>, Error)>,
}

impl Pools {
    /// `thread_pool`.
    fn add(&mut self, d: &Directive, cx: &Scope<'_>) -> Result<(), Error> {
        let name = first(d);
        if self.names.iter().any(|n| n == name) {
            return Err(cx.error(d, format!("duplicate thread pool \"{}\"", String::from_utf8_lossy(name))));
        }
        let mut threads = false;
        for w in d.args.iter().skip(1) {
            let invalid = |what: &str| cx.error_at(d, w, format!("invalid {what} value \"{}\"", w.as_str()));
            if let Some(n) = w.text.strip_prefix(b"threads=") {
                units::number(n).filter(|n| *n > 0).ok_or_else(|| invalid("threads"))?;
                threads = true;
            } else if let Some(n) = w.text.strip_prefix(b"max_queue=") {
                units::number(n).ok_or_else(|| invalid("max_queue"))?;
            }
        }
        if !threads {
            return Err(cx.error(d, "\"thread_pool\" must have \"threads\" parameter"));
        }
        self.names.push(name.to_vec());
        Ok(())
    }

    /// Records that an `aio` directive uses a pool, which may be defined later.
    fn want(&mut self, d: &Directive, cx: &Scope<'_>) {
        if let Some(name) = first(d).strip_prefix(b"threads=").filter(|n| !n.contains(&b'$')) {
            let text = format!("unknown thread pool \"{}\"", String::from_utf8_lossy(name));
            self.wanted.push((name.to_vec(), cx.error(d, text)));
        }
    }

    /// Returns the error for the first pool that is used but not defined.
    pub fn missing(self) -> Option<Error> {
        let Pools { names, wanted } = self;
        wanted.into_iter().find(|(name, _)| name != b"default" && !names.contains(name)).map(|(_, e)| e)
    }
}

/// Checks all directives and collects the errors.
pub fn tree(block: &Block, pools: &mut Pools, cx: &mut Scope<'_>) {
    let mut seen: HashMap<&[u8], Vec<Vec<u8>>> = HashMap::new();
    for d in block.iter().filter(|d| d.row.is_some()) {
        let name = d.name.text.as_slice();
        let set = SETS.iter().any(|s| match s.starts_with('_') {
            true => name.ends_with(s.as_bytes()),
            false => {
                name == s.as_bytes() || name.strip_suffix(s.as_bytes()).is_some_and(|f| f.ends_with(b"_"))
            }
        });
        if set {
            twice(d, seen.entry(name).or_default(), "value", cx);
        } else if name.ends_with(b"_types") {
            // `text/html` is always among them.
            let known = seen.entry(name).or_insert_with(|| vec![b"text/html".to_vec()]);
            twice(d, known, "MIME type", cx);
        }
        match name {
            b"thread_pool" => {
                let added = pools.add(d, cx);
                cx.keep(added);
            }
            b"aio" => pools.want(d, cx),
            // A socket option of BSD.
            _ if name.ends_with(b"send_lowat") => {
                cx.warn(d, format!("\"{}\" is not supported, ignored", d.name.as_str()));
            }
            _ => {}
        }
        if let Some(inner) = &d.block
            && name != b"state"
        {
            tree(inner, pools, cx);
        }
    }
}

/// Warns of words that a directive, or one of the same name before it, has given already. Case does not count.
fn twice(d: &Directive, known: &mut Vec<Vec<u8>>, what: &str, cx: &mut Scope<'_>) {
    for w in &d.args {
        let text = w.text.to_ascii_lowercase();
        if known.iter().any(|k| k == b"*") {
            return;
        }
        if known.contains(&text) {
            // Types are told in lower case.
            let told = if what == "value" { w.as_str() } else { String::from_utf8_lossy(&text) };
            cx.warn(d, format!("duplicate {what} \"{told}\""));
        } else {
            known.push(text);
        }
    }
}

/// Checks the buffer sizes of one level against each other; `prefix` begins the directives' names.
///
/// # Errors
/// In nginx's words.
pub fn buffers(prefix: &str, written: &proxy::Written) -> Result<(), String> {
    let s = written.resolve();
    if s.buffers.count < 2 {
        return Err(format!("there must be at least 2 \"{prefix}buffers\""));
    }
    let least = s.buffer_size.0.max(s.buffers.size);
    let twice = least.saturating_mul(2);
    let enough = |name: &str, beginning: &str| {
        format!(
            "\"{prefix}{name}\" must be {beginning}equal to or greater than the maximum of the value of \
             \"{prefix}buffer_size\" and one of the \"{prefix}buffers\""
        )
    };
    let busy = s.busy_buffers_size.map_or(twice, |size| size.0);
    if busy < least {
        return Err(enough("busy_buffers_size", ""));
    }
    if busy > (s.buffers.count - 1).saturating_mul(s.buffers.size) {
        return Err(format!(
            "\"{prefix}busy_buffers_size\" must be less than the size of all \"{prefix}buffers\" minus one buffer"
        ));
    }
    if s.temp_file_write_size.is_some_and(|size| size.0 < least) {
        return Err(enough("temp_file_write_size", ""));
    }
    let file = s.max_temp_file_size.0;
    if file != 0 && file < least {
        return Err(enough(
            "max_temp_file_size",
            "equal to zero to disable temporary files usage or must be ",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::error;

    fn at(line: &str) -> Option<String> {
        error(&format!("server {{ location / {{ {line} }} }}"))
    }

    #[test]
    fn sizes_fit_to_each_other() {
        for (name, also) in [("proxy", ""), ("fastcgi", ""), ("uwsgi", ""), ("scgi", "gzip on;")] {
            let of = |text: &str| at(&format!("{also} {}", text.replace("X_", &format!("{name}_"))));
            let said = |text: &str| Some(text.replace("X_", &format!("{name}_")));
            assert_eq!(of("X_buffers 1 4k;"), said("there must be at least 2 \"X_buffers\""));
            let most =
                "\"X_busy_buffers_size\" must be less than the size of all \"X_buffers\" minus one buffer";
            for text in ["X_buffer_size 64k;", "X_buffers 2 4k;", "X_buffers 8 4k; X_busy_buffers_size 29k;"]
            {
                assert_eq!(of(text), said(most), "{text}");
            }
            let enough = "equal to or greater than the maximum of the value of \"X_buffer_size\" and one of the \"X_buffers\"";
            for (text, directive, beginning) in [
                ("X_busy_buffers_size 2k;", "busy_buffers_size", ""),
                ("X_buffers 8 16k; X_temp_file_write_size 8k;", "temp_file_write_size", ""),
                (
                    "X_max_temp_file_size 1k;",
                    "max_temp_file_size",
                    "equal to zero to disable temporary files usage or must be ",
                ),
            ] {
                let want = format!("\"X_{directive}\" must be {beginning}{enough}");
                assert_eq!(of(text), said(&want), "{text}");
            }
            for text in [
                "X_buffers 3 4k;",
                "X_max_temp_file_size 0;",
                "X_buffers 8 4k; X_busy_buffers_size 28k;",
                "X_buffers 8 16k; X_temp_file_write_size 16k;",
            ] {
                assert_eq!(of(text), None, "{text}");
            }
        }
        // What the level above says counts, and is wrong for itself only where there is a level below.
        assert_eq!(error("proxy_buffers 1 4k;"), None);
        let text = "proxy_buffers 1 4k; server { location / { proxy_buffers 8 4k; } }";
        assert!(error(text).is_some());
        let text = "proxy_buffer_size 8k; server { proxy_temp_file_write_size 4k; }";
        assert!(error(text).is_some_and(|e| e.starts_with("\"proxy_temp_file_write_size\" must be")));
    }

    #[test]
    fn heads_take_a_pool() {
        let want = "the \"large_client_header_buffers\" size must be equal to or greater than \"connection_pool_size\"";
        for (conf, want) in [
            ("large_client_header_buffers 4 511; server { }", Some(want)),
            ("large_client_header_buffers 4 511;", None),
            ("large_client_header_buffers 4 512; server { }", None),
            ("connection_pool_size 8k; server { large_client_header_buffers 4 4k; }", Some(want)),
            (
                "connection_pool_size 8k; large_client_header_buffers 4 4k; server { connection_pool_size 256; }",
                None,
            ),
        ] {
            assert_eq!(error(conf).as_deref(), want, "{conf}");
        }
    }

    #[test]
    fn pools_are_known_by_name() {
        let error = |main: &str| crate::testing::error_of(&format!("{main}\nevents {{ }}\n"));
        for (main, want) in [
            ("thread_pool x nosuch=1;", "\"thread_pool\" must have \"threads\" parameter"),
            ("thread_pool default max_queue=1;", "\"thread_pool\" must have \"threads\" parameter"),
            ("thread_pool x threads=0;", "invalid threads value \"threads=0\""),
            ("thread_pool x threads=4 max_queue=-1;", "invalid max_queue value \"max_queue=-1\""),
            ("thread_pool x threads=4; thread_pool x threads=4;", "duplicate thread pool \"x\""),
            ("http { aio threads=x; }", "unknown thread pool \"x\""),
            ("http { server { location / { aio threads=; } } }", "unknown thread pool \"\""),
        ] {
            assert_eq!(error(main).as_deref(), Some(want), "{main}");
        }
        for main in [
            "http { aio threads=x; } thread_pool x threads=1 max_queue=0;",
            "http { aio threads=default; server { aio threads; location / { aio threads=$host; } } }",
            "thread_pool x threads=4 nosuch; thread_pool default threads=2;",
        ] {
            assert_eq!(error(main), None, "{main}");
        }
    }

    #[test]
    fn words_that_come_twice() {
        let warned = |text: &str| crate::testing::warnings(&format!("server {{ {text} }}"));
        assert_eq!(warned("proxy_next_upstream error timeout;"), [""; 0]);
        assert_eq!(
            warned("proxy_next_upstream error ERROR; proxy_next_upstream error;"),
            ["duplicate value \"ERROR\"", "duplicate value \"error\""]
        );
        assert_eq!(warned("ssl_protocols TLSv1.3 tlsv1.3;"), ["duplicate value \"tlsv1.3\""]);
        assert_eq!(
            warned("gzip_types text/html a/b A/B; gzip_types * a/b;"),
            ["duplicate MIME type \"text/html\"", "duplicate MIME type \"a/b\""]
        );
        assert_eq!(warned("gzip_types a/b; location / { gzip_types a/b; }"), [""; 0]);
        assert_eq!(warned("gzip_proxied any Any;"), ["duplicate value \"Any\""]);
        assert_eq!(warned("send_lowat 0;"), ["\"send_lowat\" is not supported, ignored"]);
    }
}
