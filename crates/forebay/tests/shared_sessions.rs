//! Sessions of `sticky learn ... sync` that several servers share through Debian's redis-server.

use forebay_testkit::store::{PLAIN, Redis, Way, metric, servers, wait_until_up};
use forebay_testkit::{Origin, Server, Signal, Site, body, wait_for, wait_until};
use std::net::SocketAddr;

forebay_testkit::cases!("cases/shared_sessions.cases": sync_needs_a_store);

/// Starts two upstream servers, whose answers are `one` and `two`.
fn origins() -> [SocketAddr; 2] {
    ["one", "two"].map(|name| Origin::start(move |asked| asked.answer("200 OK", "", name)).addr)
}

/// `new` begins a session, `s` continues one.
fn conf(store: &str, servers: [SocketAddr; 2]) -> String {
    let [one, two] = servers;
    format!(
        "worker_processes 1; error_log logs/error.log notice; pid logs/nginx.pid; events {{}}\n\
         http {{ access_log off; shared_store {store};\n\
         upstream u {{ server {one}; server {two};\n\
         sticky learn create=$arg_new lookup=$arg_s zone=z:1m timeout=1h sync; }}\n\
         server {{ listen 127.0.0.1:%PORT0%; location / {{ proxy_pass http://u; }}\n\
         location /metrics {{ prometheus; }} }} }}"
    )
}

/// Sends a request that has to succeed. Returns the name of the upstream server.
fn get(server: &Server, uri: &str) -> String {
    let answer = server.get(uri);
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}\n{}", server.error_log());
    body(&answer).to_owned()
}

fn begin(server: &Server, key: &str) -> String {
    get(server, &format!("/?new={key}"))
}

fn go_on(server: &Server, key: &str) -> String {
    get(server, &format!("/?s={key}"))
}

/// Waits until a server knows a session without asking the store.
fn wait_until_known(server: &Server, key: &str) {
    wait_for("the session", || {
        let asked = || metric(server, "forebay_shared_sessions_asked_total");
        let before = asked();
        go_on(server, key);
        (asked() == before).then_some(())
    });
}

/// Begins a session at the other upstream server than the one where it is.
fn move_away(server: &Server, key: &str, from: &str) -> String {
    wait_for("another upstream server", || Some(begin(server, key)).filter(|name| name != from))
}

#[test]
fn a_session_of_one_replica_is_known_to_all() {
    let Some(redis) = Redis::start(PLAIN) else { return };
    let store = format!("redis://127.0.0.1:{} timeout=2s", redis.port);
    let servers = servers(3, &conf(&store, origins()));
    let keys: Vec<String> = (0..20).map(|n| format!("session{n}")).collect();
    let homes: Vec<String> = keys.iter().map(|key| begin(&servers[0], key)).collect();
    assert!(homes.contains(&"one".to_owned()) && homes.contains(&"two".to_owned()));
    // At once, whether the others have heard of it or ask.
    for (key, home) in keys.iter().zip(&homes) {
        assert_eq!((&go_on(&servers[1], key), &go_on(&servers[2], key)), (home, home));
    }
    for server in &servers {
        let heard = || metric(server, "forebay_shared_sessions_heard_total") as usize;
        wait_until("messages", || heard() == keys.len());
    }
    // What they have heard of, they need no store for.
    let asked = metric(&servers[1], "forebay_shared_sessions_asked_total");
    redis.signal(Signal::SIGSTOP);
    for (key, home) in keys.iter().zip(&homes) {
        assert_eq!(&go_on(&servers[1], key), home);
    }
    redis.signal(Signal::SIGCONT);
    assert_eq!(metric(&servers[1], "forebay_shared_sessions_asked_total"), asked);
    wait_until_up(&servers[1]);
    // A session that moves is followed.
    let moved = move_away(&servers[2], &keys[0], &homes[0]);
    wait_until("the move", || go_on(&servers[1], &keys[0]) == moved);
    servers[1].reload();
    servers[1].wait_for_log("reconfiguring", 1);
    assert_eq!((go_on(&servers[1], &keys[0]), &go_on(&servers[1], &keys[1])), (moved, &homes[1]));
    // The store has no keys of clients.
    assert!(!redis.says("KEYS *").contains("session1"), "{}", redis.says("KEYS *"));
    assert!(!redis.says("XRANGE forebay:sessions - +").contains("session1"));
    // A server that begins later knows nothing, and asks.
    let late = Server::start(conf(&store, origins_of(&servers[0])));
    wait_until_up(&late);
    for (key, home) in keys.iter().zip(&homes).skip(1) {
        assert_eq!(&go_on(&late, key), home);
    }
    assert!(metric(&late, "forebay_shared_sessions_asked_total") >= 19.0);
}

/// Returns the upstream servers of a server.
fn origins_of(server: &Server) -> [SocketAddr; 2] {
    let conf = server.read("nginx.conf");
    let line = conf.lines().find(|l| l.starts_with("upstream")).expect("a group");
    let mut addrs = line.split("server ").skip(1).map(|s| s.split(';').next().expect("a word"));
    [(); 2].map(|()| addrs.next().and_then(|a| a.parse().ok()).expect("an address"))
}

#[test]
fn a_store_that_fails_costs_no_request() {
    let Some(mut redis) = Redis::start(PLAIN) else { return };
    let store = format!("redis://127.0.0.1:{} timeout=50ms", redis.port);
    let servers = servers(2, &conf(&store, origins()));
    let before = begin(&servers[0], "before");
    wait_until_known(&servers[1], "before");
    assert_eq!(go_on(&servers[1], "before"), before);
    redis.kill();
    servers.iter().for_each(|s| s.wait_for_log("cannot be used", 1));
    // Each goes on with what it knows.
    let meanwhile = begin(&servers[0], "meanwhile");
    for _ in 0..4 {
        assert_eq!(
            (go_on(&servers[0], "meanwhile"), go_on(&servers[0], "before")),
            (meanwhile.clone(), before.clone())
        );
        assert_eq!(go_on(&servers[1], "before"), before);
        go_on(&servers[1], "unknown");
    }
    redis.restart();
    servers.iter().for_each(|s| s.wait_for_log("can be used again", 1));
    // What was learnt meanwhile, and what goes on, is in the store again.
    let stored = || redis.says("KEYS forebay:sticky:*").matches("sticky:z/u:").count();
    wait_until("the session", || go_on(&servers[1], "meanwhile") == meanwhile);
    assert_eq!(go_on(&servers[1], "before"), before);
    wait_until("both sessions", || stored() == 2);
    for server in &servers {
        let log = server.error_log();
        assert_eq!(log.matches("[error]").count(), 1, "{log}");
    }
}

#[test]
fn a_replica_that_was_cut_off_catches_up() {
    let Some(redis) = Redis::start(PLAIN) else { return };
    let way = Way::to(redis.port);
    let origins = origins();
    let near = Server::start(conf(&format!("redis://127.0.0.1:{} timeout=2s", redis.port), origins));
    let far = Server::start(conf(&format!("redis://127.0.0.1:{} timeout=2s", way.port), origins));
    wait_until_up(&near);
    wait_until_up(&far);
    let heard = |server: &Server| metric(server, "forebay_shared_sessions_heard_total");
    // Not all who are up listen already.
    let mut others = 0;
    wait_for("a message", || {
        others += 1;
        begin(&near, &format!("other{others}"));
        (heard(&far) >= 1.0).then_some(())
    });
    let mut home = begin(&near, "k");
    wait_until_known(&far, "k");
    for (round, lost) in [(1, false), (2, true)] {
        way.cut();
        far.wait_for_log("cannot be used", round);
        let last = || redis.says("XREVRANGE forebay:sessions + - COUNT 1");
        let before = last();
        let moved = move_away(&near, "k", &home);
        assert_eq!(go_on(&far, "k"), home);
        if lost {
            // More has been told meanwhile than the store keeps.
            wait_until("the message", || last() != before);
            redis.says("DEL forebay:sessions");
        }
        way.mend();
        far.wait_for_log("can be used again", round);
        wait_until("the move", || go_on(&far, "k") == moved);
        let missed = || metric(&far, "forebay_shared_messages_missed_total") == f64::from(u8::from(lost));
        wait_until("the gap", missed);
        home = moved;
    }
    assert_eq!(metric(&near, "forebay_shared_messages_missed_total"), 0.0);
}

/// What others write to the store neither leads a request elsewhere nor stops the messages.
#[test]
fn foreign_entries_of_the_store_do_no_harm() {
    let Some(redis) = Redis::start(PLAIN) else { return };
    let store = format!("redis://127.0.0.1:{} timeout=2s", redis.port);
    let origins = origins();
    let servers = servers(2, &conf(&store, origins));
    let home = begin(&servers[0], "k");
    wait_until_known(&servers[1], "k");
    assert_eq!(go_on(&servers[1], "k"), home);
    let name = redis.says("KEYS forebay:sticky:*");
    let name = name.lines().find(|l| l.starts_with("forebay:")).expect("a key").to_owned();
    let hash = name.rsplit(':').next().expect("a hash");
    let evil = Origin::start(|_| panic!("a server that is not in the group was asked"));
    let add = |fields: &str| {
        let said = redis.says(&format!("XADD forebay:sessions * {fields}"));
        assert!(said.starts_with('$'), "{said}");
    };
    add(&format!("from x zone z/u session {hash} server {evil}"));
    add(&format!("from x zone z/u session {hash} server {}", "0".repeat(32)));
    add(&format!("from x zone z/u session {} server one", "Z".repeat(64)));
    add("from x zone z/u session 5e server one");
    add(&format!("from x zone nowhere session {hash} server one"));
    add("from x zone z/u prefix http:");
    add("a b");
    wait_until("the messages", || metric(&servers[1], "forebay_shared_messages_ignored_total") == 5.0);
    assert_eq!((go_on(&servers[0], "k"), go_on(&servers[1], "k")), (home.clone(), home));
    // A message that is too long to be read is left out, with what went before.
    let long =
        "EVAL \"return redis.call('XADD', 'forebay:sessions', '*', 'from', string.rep('x', 100000))\" 0";
    assert!(redis.says(long).starts_with('$'));
    wait_until("the end", || metric(&servers[1], "forebay_shared_messages_missed_total") == 1.0);
    let home = begin(&servers[0], "after");
    let heard = || metric(&servers[1], "forebay_shared_sessions_heard_total");
    let before = heard();
    begin(&servers[0], "later");
    wait_until("a message", || heard() > before);
    assert_eq!(go_on(&servers[1], "after"), home);
    // A server that knows nothing asks the store, whose values are just as odd.
    let late = Server::start(conf(&store, origins));
    wait_until_up(&late);
    for value in ["SET", "LPUSH", "SETEX"] {
        redis.says(&format!("DEL {name}"));
        let command = match value {
            "SET" => format!("SET {name} {evil}"),
            "LPUSH" => format!("LPUSH {name} x"),
            _ => format!("EVAL \"return redis.call('SET', KEYS[1], string.rep('x', 100000))\" 1 {name}"),
        };
        assert!(!redis.says(&command).starts_with('-'), "{command}");
        go_on(&late, "k");
    }
    let home = begin(&late, "k");
    wait_until("the session", || go_on(&servers[1], "k") == home);
}

/// A user without the rights for messages: the limits work, and the log names the right that lacks.
#[test]
fn rights_that_lack_are_named() {
    let rights = "+select +eval +evalsha +time +get +set +zadd +zremrangebyscore +zcard +pexpire +expire";
    let more = "+xadd +xread +xrange +xrevrange";
    let lines = format!(
        "port %PORT%\nuser old on >secret ~forebay:* -@all {rights}\n\
         user new on >secret ~forebay:* -@all {rights} {more}"
    );
    let Some(redis) = Redis::start(&lines) else { return };
    let origins = origins();
    let start = |user: &str| {
        let store =
            format!("redis://127.0.0.1:{} user={user} password=file:%DIR%/password timeout=2s", redis.port);
        let site = Site::new(conf(&store, origins));
        site.write("password", "secret");
        let server = Server::start_on(site);
        wait_until_up(&server);
        server
    };
    let (old, new, other) = (start("old"), start("new"), start("new"));
    begin(&old, "k");
    old.wait_for_log("refuses a message to the other replicas: ", 1);
    old.wait_for_log("messages of other replicas cannot be read from shared store", 1);
    assert!(!old.error_log().contains("cannot be used"), "{}", old.error_log());
    let mut keys = 0;
    wait_for("a message", || {
        keys += 1;
        begin(&new, &format!("k{keys}"));
        (metric(&other, "forebay_shared_sessions_heard_total") >= 1.0).then_some(())
    });
    let home = begin(&new, "k");
    wait_until("the session", || go_on(&other, "k") == home);
    for server in [&new, &other] {
        assert!(!server.error_log().contains("[error]"), "{}", server.error_log());
    }
}
