//! Purges of caches that several servers share through Debian's redis-server (`purge_sync`).

use forebay_testkit::store::{PLAIN, Redis, Way, metric, wait_until_up};
use forebay_testkit::{Origin, Server, Site, fastcgi, files, wait_until};
use std::net::SocketAddr;

forebay_testkit::cases!("cases/shared_purges.cases": mistakes_are_named);

/// A server with the caches `one`, whose purges are shared, and `own`, whose purges are not.
fn conf(port: u16, origin: impl std::fmt::Display) -> String {
    let php = fastcgi::start(|asked| asked.write(&fastcgi::answer("Content-Type: text/plain\r\n\r\nx")));
    format!(
        "worker_processes 1; error_log logs/error.log notice; pid logs/nginx.pid; events {{}}\n\
         http {{ access_log off; shared_store redis://127.0.0.1:{port} timeout=2s;\n\
         proxy_cache_path %DIR%/cache levels=1:2 keys_zone=one:1m purge_sync=on;\n\
         proxy_cache_path %DIR%/own keys_zone=own:1m;\n\
         map $request_method $purge {{ PURGE 1; default 0; }}\n\
         proxy_cache_valid 200 1h; proxy_cache_key $uri; proxy_cache_purge $purge;\n\
         fastcgi_cache_valid 200 1h; fastcgi_cache_key $uri; fastcgi_cache_purge $purge;\n\
         server {{ listen 127.0.0.1:%PORT0%; add_header X-Cache $upstream_cache_status;\n\
         location / {{ proxy_pass http://{origin}; proxy_cache one; }}\n\
         location /own/ {{ proxy_pass http://{origin}; proxy_cache own; }}\n\
         location /php/ {{ fastcgi_pass {php}; fastcgi_cache one; }}\n\
         location /metrics {{ prometheus; }} }} }}"
    )
}

fn origin() -> SocketAddr {
    // The connection ends with the answer.
    Origin::start(|asked| !asked.answer("200 OK", "Connection: close\r\n", "x")).addr
}

fn start(port: u16, origin: impl std::fmt::Display) -> Server {
    let server = Server::start(conf(port, origin));
    wait_until_up(&server);
    wait_until_reading(&server);
    server
}

/// Waits until a server reads purges.
fn wait_until_reading(server: &Server) {
    let file = server.dir().join("cache/last_shared_purge");
    wait_until("the begin", || file.exists());
}

fn hit(server: &Server, uri: &str) -> bool {
    let answer = server.get(uri);
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}\n{}", server.error_log());
    answer.contains("X-Cache: HIT")
}

/// Has a server cache these.
fn fill(server: &Server, uris: &[&str]) {
    for uri in uris {
        hit(server, uri);
        assert!(hit(server, uri), "{uri}");
    }
}

fn purge(server: &Server, uri: &str) {
    let answer = server.raw(format!("PURGE {uri} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"));
    assert!(answer.starts_with(b"HTTP/1.1 204 "), "{}", String::from_utf8_lossy(&answer));
}

fn heard(server: &Server) -> f64 {
    metric(server, "forebay_shared_purges_heard_total")
}

/// Waits until an entry is gone. Looks at the file, since a request would make it again.
fn wait_until_gone(server: &Server, entries: usize) {
    wait_until("the purge", || count(&server.dir().join("cache")) == entries);
}

/// Returns the number of entries in a directory of a cache.
fn count(directory: &std::path::Path) -> usize {
    files(directory).iter().filter(|path| path.file_name().is_some_and(|name| name.len() == 32)).count()
}

#[test]
fn a_purge_on_one_replica_is_one_on_all() {
    let Some(redis) = Redis::start(PLAIN) else { return };
    let origin = origin();
    let servers: Vec<Server> = (0..3).map(|_| start(redis.port, origin)).collect();
    let uris = ["/a/1", "/a/2", "/b", "/own/a"];
    servers.iter().for_each(|s| fill(s, &uris));
    purge(&servers[0], "/b");
    servers[1..].iter().for_each(|s| wait_until_gone(s, 2));
    for server in &servers {
        assert!(!hit(server, "/b") && hit(server, "/a/1") && hit(server, "/a/2"));
    }
    purge(&servers[1], "/a/*");
    [0, 2].iter().for_each(|s| wait_until_gone(&servers[*s], 1));
    for server in &servers {
        assert!(!hit(server, "/a/1") && !hit(server, "/a/2") && hit(server, "/b"));
    }
    // Not of a cache without the parameter.
    purge(&servers[0], "/own/*");
    purge(&servers[0], "/nothing");
    servers[1..].iter().for_each(|s| wait_until("the purges", || heard(s) >= 2.0));
    assert!(!hit(&servers[0], "/own/a") && hit(&servers[1], "/own/a") && hit(&servers[2], "/own/a"));
    // The one that tells does not listen to itself: what it has fetched since then stays.
    assert!(servers.iter().all(|s| hit(s, "/a/1") && hit(s, "/b")));
    assert_eq!(metric(&servers[0], "forebay_shared_purges_told_total"), 2.0);
    let each: Vec<f64> = servers.iter().map(heard).collect();
    assert_eq!(each, [1.0, 2.0, 3.0]);
    // The other modules purge in the same way.
    servers.iter().for_each(|s| fill(s, &["/php/a"]));
    purge(&servers[0], "/php/a");
    servers[1..].iter().for_each(|s| wait_until_gone(s, 3));
    // A key that is too long is purged here, and the log says that it is not elsewhere.
    purge(&servers[0], &format!("/{}*", "l".repeat(5000)));
    servers[0].wait_for_log("the purge is not passed on to other servers: the key before \"*\"", 1);
    assert_eq!(metric(&servers[0], "forebay_shared_purges_lost_total"), 1.0);
    // A reload loses none.
    servers[1].reload();
    purge(&servers[0], "/b");
    wait_until_gone(&servers[1], 2);
    servers.iter().for_each(|s| assert!(!s.error_log().contains("may be missing"), "{}", s.error_log()));
}

/// A replica that was cut off, or not running, learns of the purges afterwards.
#[test]
fn a_replica_catches_up_on_purges() {
    let Some(redis) = Redis::start(PLAIN) else { return };
    let (way, origin) = (Way::to(redis.port), origin());
    let near = start(redis.port, origin);
    let mut far = start(way.port, origin);
    for server in [&near, &far] {
        fill(server, &["/a", "/b", "/c", "/d", "/e"]);
    }
    way.cut();
    far.wait_for_log("cannot be used", 1);
    purge(&near, "/a");
    assert!(hit(&far, "/a"));
    way.mend();
    wait_until_gone(&far, 4);
    // It was not running when the purge came.
    way.cut();
    purge(&near, "/b");
    far.restart();
    assert!(hit(&far, "/b"));
    way.mend();
    wait_until_gone(&far, 3);
    assert!(!far.error_log().contains("may be missing"), "{}", far.error_log());
    // It cannot know what it has missed, and says so.
    way.cut();
    purge(&near, "/c");
    let told = || metric(&near, "forebay_shared_purges_told_total") == 3.0;
    wait_until("the purge", told);
    redis.says("DEL forebay:purges");
    purge(&near, "/d");
    wait_until("the purge", || redis.says("XLEN forebay:purges") == ":1\r\n");
    way.mend();
    far.wait_for_log(
        "no longer has the last message that was read here, purges by other replicas may be missing in: one",
        1,
    );
    wait_until_gone(&far, 2);
    assert!(hit(&far, "/c") && hit(&far, "/e"));
    assert_eq!(metric(&far, "forebay_shared_messages_missed_total"), 1.0);
    // A replica that could not reach the store from its start on has entries that others have purged.
    way.cut();
    let late = Server::start(conf(way.port, origin));
    fill(&late, &["/e"]);
    purge(&near, "/e");
    way.mend();
    wait_until_gone(&late, 0);
}

/// A purge that comes while the store is away is told when it is back.
#[test]
fn purges_wait_for_the_store() {
    let Some(mut redis) = Redis::start(PLAIN) else { return };
    let origin = origin();
    let servers: Vec<Server> = (0..2).map(|_| start(redis.port, origin)).collect();
    servers.iter().for_each(|s| fill(s, &["/a", "/b"]));
    redis.kill();
    servers.iter().for_each(|s| s.wait_for_log("cannot be used", 1));
    purge(&servers[0], "/a");
    assert!(!hit(&servers[0], "/a") && hit(&servers[1], "/a"));
    redis.restart();
    wait_until_gone(&servers[1], 1);
    assert!(hit(&servers[1], "/b"));
    for server in &servers {
        let log = server.error_log();
        assert_eq!(log.matches("[error]").count(), 1, "{log}");
    }
}

#[test]
fn foreign_entries_of_the_purge_log_do_no_harm() {
    let Some(redis) = Redis::start(PLAIN) else { return };
    let origin = origin();
    let server = start(redis.port, origin);
    fill(&server, &["/a", "/own/a"]);
    let add = |fields: &str| {
        let said = redis.says(&format!("XADD forebay:purges * {fields}"));
        assert!(said.starts_with('$'), "{said}");
    };
    add("from x zone own prefix /");
    add("from x zone one entry ../../own");
    add("from x zone one entry 5E");
    add(&format!("from x zone one prefix {}", "p".repeat(5000)));
    add(&format!("from x zone one session {} server x", "5e".repeat(32)));
    add(&format!("from {} zone one prefix /", "f".repeat(100)));
    wait_until("the messages", || metric(&server, "forebay_shared_messages_ignored_total") == 6.0);
    assert!(hit(&server, "/a") && hit(&server, "/own/a"));
    // An odd position in the file of the cache counts as none.
    let site: &Site = &server.site;
    site.write("cache/last_shared_purge", "99999999999999999999-0 or so");
    let mut server = server;
    server.restart();
    wait_until_up(&server);
    assert!(hit(&server, "/a"));
    let long = "EVAL \"return redis.call('XADD', 'forebay:purges', '*', 'from', string.rep('x', 100000))\" 0";
    assert!(redis.says(long).starts_with('$'));
    server
        .wait_for_log("has messages that cannot be read, purges by other replicas may be missing in: one", 1);
    add("from x zone one prefix /");
    wait_until_gone(&server, 0);
}
