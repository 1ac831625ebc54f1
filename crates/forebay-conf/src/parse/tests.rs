use super::*;

fn all(conf: &str) -> Vec<String> {
    let mut files = Files::recorded([("/etc/nginx.conf", conf)]);
    let parsed = parse(Path::new("/etc/nginx.conf"), "", Path::new("/etc"), &mut files);
    parsed.errors.iter().map(|e| format!("{}: {}", e.level.as_str(), files.render(e))).collect()
}

#[test]
fn a_tree() {
    let conf = "events {}\nhttp { server { listen 80; location / { root /x; } } }";
    let mut files = Files::recorded([("/n.conf", conf)]);
    let parsed = parse(Path::new("/n.conf"), "daemon off;", Path::new("/"), &mut files);
    assert_eq!(parsed.errors, []);
    let names: Vec<_> = parsed.tree.root.iter().map(|d| d.name.as_str().into_owned()).collect();
    assert_eq!(names, ["daemon", "events", "http"]);
    assert_eq!(parsed.tree.root.items[0].end.file, FileId::COMMAND_LINE);
}

#[test]
fn every_mistake_is_found() {
    let conf = "
evnts {}
http {
    gzip maybe;
    location / {}
    server {
        listen 80
        server_name x;
        root;
        foo { bar { baz; } }
        proxy_pass http://x;
        if ($a) { listen 1; }
        types { a b; include x y; }
    }
}
}
user nobody";
    assert_eq!(
        all(conf),
        [
            "emerg: unknown directive \"evnts\" in /etc/nginx.conf:2",
            "emerg: invalid value \"maybe\" in \"gzip\" directive, it must be \"on\" or \"off\" in /etc/nginx.conf:4",
            "emerg: \"location\" directive is not allowed here in /etc/nginx.conf:5",
            "emerg: invalid number of arguments in \"root\" directive in /etc/nginx.conf:9",
            "emerg: unknown directive \"foo\" in /etc/nginx.conf:10",
            "emerg: \"proxy_pass\" directive is not allowed here in /etc/nginx.conf:11",
            "emerg: \"listen\" directive is not allowed here in /etc/nginx.conf:12",
            "emerg: invalid number of arguments in \"include\" directive in /etc/nginx.conf:13",
            "emerg: unexpected \"}\" in /etc/nginx.conf:16",
            "emerg: unexpected end of file, expecting \";\" or \"}\" in /etc/nginx.conf:17",
        ]
    );
}

#[test]
fn includes() {
    let mut files = Files::recorded([
        ("/etc/n.conf", "include a.conf; include /etc/b.conf; include none; http { types { include t; } }"),
        ("/etc/a.conf", "events {}"),
        ("/etc/b.conf", "}\ninclude n.conf;"),
        ("/etc/t", "text/html html;"),
    ]);
    let parsed = parse(Path::new("/etc/n.conf"), "", Path::new("/etc"), &mut files);
    let errors: Vec<_> = parsed.errors.iter().map(|e| files.render(e)).collect();
    assert_eq!(
        errors,
        [
            "unexpected \"}\" in /etc/b.conf:1",
            "\"/etc/n.conf\" includes itself in /etc/b.conf:2",
            "open() \"/etc/none\" failed (2: No such file or directory) in /etc/n.conf:1",
        ]
    );
    let names: Vec<_> = parsed.tree.root.iter().map(|d| d.name.as_str().into_owned()).collect();
    assert_eq!(names, ["events", "http"]);
    let paths: Vec<_> = files.iter().map(|(_, path, _)| path.display().to_string()).collect();
    assert_eq!(paths, ["/etc/n.conf", "/etc/a.conf", "/etc/b.conf", "/etc/t"]);
}

#[test]
fn support() {
    let conf = "events { use epoll; }
http { directio 1g; directio off; gzip_vary off; server { tunnel_bind $x; } upstream x { server a; foo; } perl_modules x; proxy_buffering on; }
stream { server { listen 1; bar; } }";
    assert_eq!(
        all(conf),
        [
            "warn: \"directio\" directive is not supported yet, ignored in /etc/nginx.conf:2",
            "emerg: \"directio\" directive is duplicate in /etc/nginx.conf:2",
            "emerg: \"tunnel_bind\" directive is not supported yet in /etc/nginx.conf:2",
            "emerg: unknown directive \"foo\" in /etc/nginx.conf:2",
            "emerg: \"perl_modules\" directive is not supported: no Perl interpreter is embedded in /etc/nginx.conf:2",
            "emerg: unknown directive \"bar\" in /etc/nginx.conf:3",
        ]
    );
}

#[test]
fn load_module() {
    assert_eq!(all("load_module modules/ngx_stream_module.so; events {}"), Vec::<String>::new());
    assert_eq!(
        all("load_module x.so; events {} load_module y;"),
        [
            "notice: module \"x.so\" is not loaded: modules of nginx cannot be loaded, and none of this name is built in in \
         /etc/nginx.conf:1",
            "emerg: \"load_module\" directive is specified too late in /etc/nginx.conf:1",
        ]
    );
}

/// Modules that the packages of Debian and Ubuntu load in `modules-enabled`.
#[test]
fn modules_that_are_not_there_do_no_harm_until_they_are_used() {
    let modules = ["geoip", "image_filter", "xslt_filter", "fancyindex", "echo"];
    let load: String =
        modules.map(|name| format!("load_module modules/ngx_http_{name}_module.so; ")).concat();
    let errors = |conf: &str| all(&format!("{load} events {{}} http {{ {conf} }}"));
    let (notices, others): (Vec<_>, Vec<_>) =
        errors("").into_iter().partition(|error| error.starts_with("notice: module \"modules/ngx_http_"));
    assert_eq!((notices.len(), others), (modules.len(), vec![]));
    for directive in ["geoip_country x", "xslt_param a b", "fancyindex on"] {
        let fatal =
            errors(&format!("{directive};")).into_iter().filter(|error| error.starts_with("emerg")).count();
        assert_eq!(fatal, 1, "{directive}");
    }
}

#[test]
fn command_line() {
    let mut files = Files::recorded([("/n.conf", "events {}")]);
    let parsed = parse(Path::new("/n.conf"), "events {} daemon maybe; user", Path::new("/"), &mut files);
    let errors: Vec<_> = parsed.errors.iter().map(|e| files.render(e)).collect();
    assert_eq!(
        errors,
        [
            "block directives are not supported in -g option in command line",
            "invalid value \"maybe\" in \"daemon\" directive, it must be \"on\" or \"off\" in command line",
            "unexpected end of parameter, expecting \";\" in command line",
        ]
    );
}

#[test]
fn a_missing_main_file() {
    let mut files = Files::recorded::<&str, &str>([]);
    let parsed = parse(Path::new("/n.conf"), "", Path::new("/"), &mut files);
    let fatal = parsed.fatal().expect("an error");
    assert_eq!(files.render(fatal), "open() \"/n.conf\" failed (2: No such file or directory)");
}

#[test]
fn hints() {
    let hint = |conf: &str| {
        let mut files = Files::recorded([("/n.conf", conf)]);
        let parsed = parse(Path::new("/n.conf"), "", Path::new("/"), &mut files);
        parsed.fatal().and_then(|e| e.hint.clone()).unwrap_or_default()
    };
    assert_eq!(hint("http { sever {} }"), "did you mean \"server\"?");
    assert_eq!(hint("worker_processes 1\nuser x;"), "a \";\" is missing after \"1\" in line 1");
    assert_eq!(hint("worker_processes 1 2;"), "it takes 1 argument");
    assert_eq!(hint("http {\n"), "the block of \"http\" in line 1 is not closed");
}

#[test]
fn depth_is_bounded() {
    let conf = format!("http {{ server {{ {} }}", "location / {".repeat(100_000));
    assert!(all(&conf).iter().any(|e| e.contains("nested too deep")));
    let conf = "x {".repeat(100_000);
    all(&conf);
    let conf = "{".repeat(100_000);
    all(&conf);
}

#[test]
fn ends_of_directives() {
    let text = b"a b; stream { server { listen \"}\"; } # }\n} c d;";
    assert_eq!(end_of_directive(text, 0), 4);
    assert_eq!(&text[end_of_directive(text, 5)..], b" c d;");
    assert_eq!(end_of_directive(b"a {", 0), 3);
}

/// Files that include the next one twice would be read more often than any machine can.
#[test]
fn doubling_includes_end() {
    let files = (0..90).map(|n| (format!("/etc/{n}"), format!("include {0}; include {0};", n + 1)));
    let mut files = Files::recorded(files.chain([("/etc/90".to_owned(), "user x;".to_owned())]));
    let parsed = parse(Path::new("/etc/0"), "", Path::new("/etc"), &mut files);
    let errors: Vec<_> = parsed.errors.iter().map(|e| e.message.as_str()).collect();
    assert!(errors.contains(&"too many files are included"), "{errors:?}");
    assert_eq!(errors.iter().filter(|e| e.starts_with("too many")).count(), 1);
}
