//! The same configuration and the same bytes go to nginx and to Forebay: status line, fields and body
//! must agree. Known differences are listed in docs/differences.md and are not asked for here.

mod caching;
mod files;
mod rewriting;

use forebay_testkit::{Oracle, Server, Site, get, open_up, oracle, page_files, raw, wait_until, wrap};

forebay_testkit::cases!("cases/differential.cases":
    refused_heads_and_odd_names, heads_by_server, headers_and_hosts, broken_bodies, configurations_are_judged_alike);

/// Lines in the error log of a server about the same requests, from the number of the connection on.
#[test]
fn error_lines_agree() {
    let Some(nginx) = oracle() else { return };
    let conf = wrap(
        r#"
        map $uri $log { default logs/default.log; /made logs/made-$arg_f.log; /missing logs/missing-$arg_f.log; /nodir logs/nodir/$arg_f.log; }
        server {
            listen 127.0.0.1:%PORT0%;
            server_name first;
            error_log logs/server.log info;
            access_log $log;
            location /made { return 200 x; }
            location /nodir { return 200 x; }
            location /missing { root %DIR%/html/$arg_f; return 200 x; }
            location /listing/ { autoindex on; autoindex_format jsonp; }
        }
        server { listen 127.0.0.1:%PORT0%; server_name ""; error_log logs/none.log info; }"#,
    );
    let (ours, theirs) = (Site::new(&conf), Site::new(&conf));
    for site in [&ours, &theirs] {
        page_files(site);
        // Logs with variables in their names are opened by the worker.
        open_up(&site.dir().join("logs"));
        open_up(site.dir());
    }
    let ours = Server::start_on(ours);
    let theirs = Oracle::start(&nginx, theirs);
    let post = "POST /made?f=a HTTP/1.1\r\nHost: first\r\nConnection: close\r\n";
    let requests: Vec<Vec<u8>> = [
        get("/made?f=one"),
        get("/missing?f=nowhere"),
        get("/nodir?f=x"),
        get("/listing/?callback=a(b)"),
        format!("{post}Transfer-Encoding: chunked\r\n\r\nx\r\n"),
        format!("{post}X_Y: 1\r\n\r\n"),
        "get / HTTP/1.1\r\n\r\n".to_owned(),
        "GET /made HTTP/1.1\r\nHost: first\r\n\r\nnone\r\n\r\n".to_owned(),
    ]
    .into_iter()
    .map(String::into_bytes)
    .chain([b"GET /made HTTP/1.1\r\nHost: first\r\nConnection: close\r\nX\xff: 1\r\n\r\n".to_vec()])
    .collect();
    let lines = |site: &Site| {
        let text = std::fs::read(site.dir().join("logs/server.log")).unwrap_or_default();
        let text: String = text.iter().map(|b| char::from(*b)).collect();
        let text = text.replace(&site.dir().display().to_string(), "DIR");
        let text = text.replace(&site.addr(0).port().to_string(), "PORT");
        let line = |l: &str| {
            let level = l.split(' ').nth(2).unwrap_or_default().to_owned();
            l.split_once(": *").map(|(_, l)| level + l.trim_start_matches(|c: char| c.is_ascii_digit()))
        };
        text.lines().filter_map(line).collect::<Vec<_>>()
    };
    for request in &requests {
        raw(theirs.addr(), request);
        ours.raw(request);
    }
    let last = "client sent invalid header line: \"X\u{ff}";
    for site in [theirs.site(), &ours.site] {
        wait_until("the last line", || lines(site).iter().any(|l| l.contains(last)));
        assert!(site.dir().join("logs/made-one.log").exists());
        assert!(!site.dir().join("logs/missing-nowhere.log").exists());
        assert_eq!(site.read("logs/none.log"), "");
    }
    assert_eq!(lines(&ours.site), lines(theirs.site()));
}
