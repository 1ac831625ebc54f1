//! Checks of the sizes of buffers against each other. Few of them affect how requests are served, but nginx users expect the messages.

use super::Written;

/// Checks the buffer sizes of one level against each other; `prefix` begins the directives' names.
///
/// # Errors
/// In nginx's words.
pub fn check(prefix: &str, written: &Written) -> Result<(), String> {
    let s = written.resolve();
    if s.buffers.count < 2 {
        return Err(format!("there must be at least 2 \"{prefix}buffers\""));
    }
    let least = s.buffer_size.0.max(s.buffers.size);
    // The default of nginx for `proxy_busy_buffers_size`.
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
