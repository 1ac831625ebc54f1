//! Health checks beyond what `upstream.rs` has: encrypted ones.

use forebay_testkit::{P256, Server, Site, http};

forebay_testkit::cases!("cases/health.cases": require_takes_variables_only);

/// Makes `NAME.crt` and `NAME.key` for a name.
pub(crate) fn certificate(site: &Site, name: &str) {
    site.certificate(name, P256, &format!("{name}.test"), &format!("DNS:{name}.test"));
}

/// Each group is one server that no request reaches before its check has passed.
#[test]
fn checks_are_encrypted_as_requests_are() {
    let group = |name: &str, port: u8| {
        format!("upstream {name} {{ zone {name} 64k; server 127.0.0.1:%PORT{port}%; }}\n")
    };
    let location = |name: &str, more: &str| {
        format!(
            "location /{name} {{ proxy_pass https://{name}/; {more}\n\
             health_check mandatory interval=50ms uri=/well match=tls keepalive_time=1s; }}\n"
        )
    };
    let trust = "proxy_ssl_verify on; proxy_ssl_trusted_certificate a.crt;";
    let tls = "ssl_certificate a.crt; ssl_certificate_key a.key; location / { return 200 served; }\n\
               location /well { add_header X-Name $ssl_server_name; return 200 \"$scheme $request_length.\"; }";
    let site = Site::new(http!(
        "match tls {{ status 200; body ~ \"^https \"; }}\n{}{}{}{}{}\
         server {{ listen 127.0.0.1:%PORT0%; {}{}{}{}{} }}\n\
         server {{ listen 127.0.0.1:%PORT1% ssl; http2 on; {tls} }}\n\
         server {{ listen 127.0.0.1:%PORT2%; location / {{ return 200 \"https \"; }} }}",
        group("any", 1),
        group("good", 1),
        group("name", 1),
        group("chain", 1),
        group("plain", 2),
        location("any", "proxy_http_version 2;"),
        location("good", &format!("{trust} proxy_ssl_name a.test; proxy_ssl_server_name on;")),
        location("name", &format!("{trust} proxy_ssl_name b.test;")),
        location("chain", "proxy_ssl_verify on; proxy_ssl_trusted_certificate b.crt; proxy_ssl_name a.test;"),
        location("plain", "")
    ));
    certificate(&site, "a");
    certificate(&site, "b");
    let server = Server::start_on(site);
    for name in ["any", "good"] {
        server.wait_for_log(format!("is healthy in upstream \"{name}\""), 1);
        assert!(server.get(format!("/{name}")).ends_with("served"), "{name}");
    }
    let faults = [
        ("name", "upstream SSL certificate does not match \"b.test\""),
        ("chain", "upstream SSL certificate verify error: "),
        ("plain", "received corrupt message"),
    ];
    for (name, why) in faults {
        let group = format!("in upstream \"{name}\"");
        server.wait_for_log(&group, 1);
        let log = server.error_log();
        let line = log.lines().find(|l| l.contains(&group)).expect("a line");
        assert!(
            line.contains("unhealthy while SSL handshaking to upstream (") && line.contains(why),
            "{line}"
        );
        assert!(server.get(format!("/{name}")).contains("502 Bad Gateway"), "{name}");
    }
}

#[test]
fn variables_that_a_check_requires() {
    let text = "worker_processes 2; error_log logs/error.log info; pid logs/nginx.pid; events {}\n\
         http { access_log off;\n\
         map $upstream_http_x_load $has_room { default 1; ~^9 0; }\n\
         map $upstream_status:$request_uri:$proxy_host $is_asked { 201:/well:good 1; 201:/well:full 1; }\n\
         match able { status 200-299; require $has_room $is_asked; require $upstream_http_x_load; }\n\
         upstream good { zone good 64k; server 127.0.0.1:%PORT1%; }\n\
         upstream full { zone full 64k; server 127.0.0.1:%PORT2%; }\n\
         upstream mute { zone mute 64k; server 127.0.0.1:%PORT3%; }\n\
         server { listen 127.0.0.1:%PORT0%;\n\
           location /good { proxy_pass http://good/; health_check mandatory interval=50ms uri=/well match=able; }\n\
           location /full { proxy_pass http://full/; health_check mandatory interval=50ms uri=/well match=able; }\n\
           location /mute { proxy_pass http://mute/; health_check mandatory interval=50ms uri=/well match=able; } }\n\
         server { listen 127.0.0.1:%PORT1%; location / { add_header X-Load 10; return 201 served; } }\n\
         server { listen 127.0.0.1:%PORT2%; location / { add_header X-Load 97; return 201 served; } }\n\
         server { listen 127.0.0.1:%PORT3%; location / { return 201 served; } } }";
    let server = Server::start(text);
    server.wait_for_log("is healthy in upstream \"good\"", 1);
    assert!(server.get("/good").ends_with("served"));
    for name in ["full", "mute"] {
        server.wait_for_log(format!(
                "checking what is required of response (status 201), health check of peer 127.0.0.1:{} in upstream \"{name}\"",
                server.addr(if name == "full" { 2 } else { 3 }).port()
            ), 1);
        assert!(server.get(format!("/{name}")).contains("502 Bad Gateway"), "{name}");
    }
    // The checks of the next configuration are judged by that, whichever the threads have.
    server.reload_with(text.replace("~^9 0;", "~^1 0;"));
    server.wait_for_log("is healthy in upstream \"full\"", 1);
    server.wait_for_log("status 201), health check of peer", 3);
    assert!(server.get("/full").ends_with("served"));
    assert!(server.get("/good").contains("502 Bad Gateway"));
}

/// A server that insists on the header would refuse checks without it.
#[test]
fn checks_begin_with_the_proxy_protocol_of_their_location() {
    let server = Server::start(http(
        "upstream one { zone one 64k; server 127.0.0.1:%PORT1%; }\n\
         upstream two { zone two 64k; server 127.0.0.1:%PORT1%; }\n\
         server { listen 127.0.0.1:%PORT0%;\n\
           location /one { proxy_protocol on; proxy_pass http://one; health_check mandatory interval=50ms; }\n\
           location /two { proxy_protocol v2; proxy_pass http://two; health_check mandatory interval=50ms; } }\n\
         server { listen 127.0.0.1:%PORT1% proxy_protocol; return 200 served; }",
    ));
    for name in ["one", "two"] {
        server.wait_for_log(format!("is healthy in upstream \"{name}\""), 1);
        assert!(server.get(format!("/{name}")).ends_with("served"), "{name}");
    }
}
