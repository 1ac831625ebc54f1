//! Limits that several servers share through Debian's redis-server.

use forebay_testkit::store::{PLAIN, Redis, metric, servers, wait_until_up};
use forebay_testkit::{
    Done, Origin, P256, Server, Signal, Site, Talk, connect, kill, program, s_client, wait_for, wait_until,
};
use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

forebay_testkit::cases!("cases/shared_limits.cases": mistakes_in_the_configuration_are_named);

/// `zone` are the parameters of `limit_req_zone` after its key; `limit` those of `limit_req`.
fn conf(store: &str, zone: &str, limit: &str) -> String {
    format!(
        "worker_processes 1; error_log logs/error.log notice; pid logs/nginx.pid; events {{}}\n\
         http {{ access_log off; shared_store {store}; limit_req_zone $arg_k zone=z:1m {zone};\n\
         limit_req_log_level info; limit_req_status 429;\n\
         server {{ listen 127.0.0.1:%PORT0%; location / {{ limit_req zone=z {limit}; empty_gif; }}\n\
         location /metrics {{ prometheus; }} location /api {{ api; }} }} }}"
    )
}

/// Sends a request over a connection that is kept, and returns the status.
fn ask(stream: &mut TcpStream, uri: &str) -> u16 {
    stream.get(uri);
    answer(stream)
}

/// Reads an answer and returns its status. It reads as much as there is: the load has to keep its rate.
fn answer(stream: &mut TcpStream) -> u16 {
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let length = stream.read(&mut buffer).expect("an answer");
        assert!(length > 0, "closed after {}", String::from_utf8_lossy(&answer));
        answer.extend_from_slice(&buffer[..length]);
        let text = String::from_utf8_lossy(&answer);
        if let Some(end) = text.find("\r\n\r\n") {
            let field = text.lines().find_map(|l| l.strip_prefix("Content-Length: ")).expect("a length");
            // A picture is no text: bytes are counted in `answer`.
            if answer.len() >= end + 4 + field.parse::<usize>().expect("a number") {
                return text.split(' ').nth(1).and_then(|s| s.parse().ok()).expect("a status");
            }
        }
    }
}

/// Requests that a server got, and those that it admitted.
#[derive(Clone, Copy)]
struct Part {
    sent: usize,
    admitted: usize,
}

/// Load on several servers, and its time in seconds.
struct Loaded {
    parts: Vec<Part>,
    seconds: f64,
}

/// Sends so many requests a second to each server for a time, as far as this machine can. Checks that all answers are 200, or
/// refusals by the limit.
fn load(servers: &[Server], rates: &[f64], time: Duration) -> Loaded {
    let one = |addr: SocketAddr, rate: f64| {
        let mut stream = connect(addr);
        let (begun, mut part) = (Instant::now(), Part { sent: 0, admitted: 0 });
        while begun.elapsed() < time {
            let due = Duration::from_secs_f64(part.sent as f64 / rate);
            std::thread::sleep(due.saturating_sub(begun.elapsed()));
            match ask(&mut stream, "/?k=client") {
                200 => part.admitted += 1,
                status => assert_eq!(status, 429),
            }
            part.sent += 1;
        }
        part
    };
    let begun = Instant::now();
    let parts = std::thread::scope(|scope| {
        let each: Vec<_> =
            servers.iter().zip(rates).map(|(s, rate)| scope.spawn(move || one(s.addr(0), *rate))).collect();
        let logs = || servers.iter().map(Server::error_log).collect::<Vec<_>>();
        each.into_iter().map(|thread| thread.join().unwrap_or_else(|_| panic!("{:#?}", logs()))).collect()
    });
    Loaded { parts, seconds: begun.elapsed().as_secs_f64() }
}

impl Loaded {
    /// Checks that so many requests a second were admitted, `percent` more or less, and a few that waited for their second. A
    /// server that this machine kept from its load may have admitted less, if each has a share.
    fn assert_near(&self, rate: f64, percent: f64, shares: bool) {
        let limit = rate * self.seconds;
        let admitted: usize = self.parts.iter().map(|p| p.admitted).sum();
        let sent = || self.parts.iter().map(|p| p.sent as f64);
        let least = if shares {
            sent().map(|sent| sent.min(limit / self.parts.len() as f64)).sum()
        } else {
            sent().sum::<f64>().min(limit)
        };
        let range = least * (1.0 - percent / 100.0) - 5.0..=limit * (1.0 + percent / 100.0) + 10.0;
        assert!(range.contains(&(admitted as f64)), "{admitted} in {} s, expected {range:?}", self.seconds);
    }
}

#[test]
fn replicas_keep_one_limit() {
    let Some(redis) = Redis::start(PLAIN) else { return };
    let store = format!("redis://127.0.0.1:{} timeout=25ms", redis.port);
    let servers = servers(3, &conf(&store, "rate=100r/s sync", "burst=20 nodelay"));
    for rates in [[100.0, 100.0, 100.0], [270.0, 15.0, 15.0]] {
        load(&servers, &rates, Duration::from_millis(500));
        load(&servers, &rates, Duration::from_millis(1500)).assert_near(100.0, 8.0, false);
    }
    assert!(metric(&servers[0], "forebay_shared_limit_cells_granted_total") > 50.0);
    assert!(metric(&servers[0], "forebay_shared_store_latency_seconds_count") > 10.0);
    // A zone keeps what it knows over a reload, which the log does not mention.
    servers[0].reload();
    servers[0].wait_for_log("reconfiguring", 1);
    load(&servers, &[100.0; 3], Duration::from_millis(1500)).assert_near(100.0, 8.0, false);
    assert!(!servers[0].error_log().contains("shared store"), "{}", servers[0].error_log());
}

#[test]
fn a_store_that_fails_leaves_each_replica_its_share() {
    let Some(mut redis) = Redis::start(PLAIN) else { return };
    // So a busy machine does not count as a store that hangs.
    let store = format!("redis://127.0.0.1:{} timeout=25ms", redis.port);
    let servers = servers(3, &conf(&store, "rate=100r/s sync", "burst=20 nodelay"));
    let half = Duration::from_millis(500);
    for (round, hung) in [(1, false), (2, true)] {
        load(&servers, &[100.0; 3], half);
        if hung {
            redis.signal(Signal::SIGSTOP)
        } else {
            redis.kill()
        }
        // With the moment of the failure.
        load(&servers, &[100.0; 3], 2 * half).assert_near(100.0, 30.0, true);
        for server in &servers {
            server.wait_for_log("cannot be used", round);
            assert_eq!(server.error_log().matches("its share of the limits: 1/3").count(), round);
            assert_eq!(metric(server, "forebay_shared_limit_degraded"), 1.0);
            assert!(server.get("/api/9/nginx").contains("\"up\":false"), "the dashboard reads it");
        }
        load(&servers, &[100.0; 3], 2 * half).assert_near(100.0, 30.0, true);
        if hung {
            redis.signal(Signal::SIGCONT)
        } else {
            redis.restart()
        }
        for server in &servers {
            server.wait_for_log("can be used again", round);
            wait_until_up(server);
        }
        load(&servers, &[100.0; 3], half);
        load(&servers, &[100.0; 3], 2 * half).assert_near(100.0, 15.0, false);
    }
}

/// Three replicas at the same moment: none has asked before, and no request too many passes.
#[test]
fn exact_limits_wait_for_the_store() {
    let Some(redis) = Redis::start(PLAIN) else { return };
    let store = format!("redis://127.0.0.1:{} timeout=2s", redis.port);
    let servers = servers(3, &conf(&store, "rate=1r/m sync exact", "burst=4 nodelay"));
    let passed: usize = std::thread::scope(|scope| {
        let one = |addr| usize::from(ask(&mut connect(addr), "/?k=client") == 200);
        let addrs = servers.iter().cycle().take(30).map(|s| s.addr(0));
        let all: Vec<_> = addrs.map(|addr| scope.spawn(move || one(addr))).collect();
        all.into_iter().map(|thread| thread.join().expect("no panic")).sum()
    });
    assert_eq!(passed, 5);
    // A store that hangs: the request goes on after the timeout, by what the replica knows.
    redis.signal(Signal::SIGSTOP);
    let begun = Instant::now();
    assert_eq!(ask(&mut connect(servers[0].addr(0)), "/?k=another"), 200);
    assert!(begun.elapsed() < Duration::from_secs(10));
    redis.signal(Signal::SIGCONT);
}

/// A request is counted in the store as long as it is under way, also for a server that dies.
#[test]
fn replicas_count_requests_under_way_together() {
    let Some(mut redis) = Redis::start(PLAIN) else { return };
    let open = Arc::new(AtomicBool::new(false));
    let held = open.clone();
    let origin = Origin::start(move |asked| {
        wait_until("the gate", || held.load(Relaxed));
        asked.answer("200 OK", "", "well")
    });
    let conf = format!(
        "worker_processes 1; error_log logs/error.log notice; pid logs/nginx.pid; events {{}}\n\
         http {{ access_log off; shared_store redis://127.0.0.1:{} timeout=2s; limit_conn_zone $arg_k zone=c:1m sync;\n\
         limit_conn_log_level info; server {{ listen 127.0.0.1:%PORT0%;\n\
         location / {{ limit_conn c 4; proxy_pass http://{origin}; proxy_ignore_client_abort on; }}\n\
         location /metrics {{ prometheus; }} }} }}",
        redis.port
    );
    let servers = servers(3, &conf);
    let begin = |servers: &[Server], count: usize| -> Vec<TcpStream> {
        let one = |server: &Server| server.send(b"GET /?k=client HTTP/1.1\r\nHost: localhost\r\n\r\n");
        servers.iter().cycle().take(count).map(one).collect()
    };
    // Of nine requests at the same moment four get through to the origin, which lets them wait.
    let mut streams = begin(&servers, 9);
    let outcomes = |servers: &[Server], outcome: &str| -> f64 {
        let name = format!("forebay_limit_conn_total{{zone=\"c\",outcome=\"{outcome}\"}}");
        servers.iter().map(|s| metric(s, &name)).sum()
    };
    wait_until("five refusals", || outcomes(&servers, "rejected") == 5.0);
    assert_eq!(outcomes(&servers, "passed"), 4.0);
    open.store(true, Relaxed);
    let mut statuses: Vec<u16> = streams.iter_mut().map(answer).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 200, 200, 503, 503, 503, 503, 503]);
    // All places are free again, once the store knows it.
    let free = |server: &Server| (ask(&mut server.connect(), "/?k=client") == 200).then_some(());
    servers.iter().for_each(|s| wait_for("a place", || free(s)));
    wait_until("the last place", || redis.says("EXISTS forebay:conn:c:client") == ":0\r\n");
    // A store that has forgotten everything is told again.
    open.store(false, Relaxed);
    let held = begin(&servers[..1], 4);
    wait_until("four requests", || outcomes(&servers, "passed") >= 11.0);
    redis.kill();
    redis.restart();
    servers.iter().for_each(|s| s.wait_for_log("can be used again", 1));
    wait_until("a report", || redis.says("EXISTS forebay:conn:c:client") == ":1\r\n");
    assert_eq!(ask(&mut connect(servers[1].addr(0)), "/?k=client"), 503);
    // The places of a server that hangs or has died are free after a while.
    let workers = servers[0].workers(servers[0].pid());
    workers.iter().for_each(|worker| kill(*worker, Signal::SIGSTOP));
    assert_eq!(ask(&mut connect(servers[1].addr(0)), "/?k=client"), 503);
    open.store(true, Relaxed);
    wait_for("a place", || free(&servers[1]));
    workers.iter().for_each(|worker| kill(*worker, Signal::SIGCONT));
    drop(held);
}

/// A session that one server began is resumed by another.
#[test]
fn replicas_resume_sessions_of_each_other() {
    let Some(redis) = Redis::start(PLAIN) else { return };
    let (directory, cert, key) = certificate();
    let site = |tickets: &str| {
        format!(
            "worker_processes 1; error_log logs/error.log notice; pid logs/nginx.pid; events {{}}\n\
             http {{ access_log off; shared_store redis://127.0.0.1:{} {tickets};\n\
             ssl_certificate {cert}; ssl_certificate_key {key};\n\
             server {{ listen 127.0.0.1:%PORT0%; listen 127.0.0.1:%PORT1% ssl;\n\
             location /metrics {{ prometheus; }} }} }}",
            redis.port
        )
    };
    let session = directory.path("session").display().to_string();
    let handshake = |server: &Server, option: &str| {
        let printed = s_client(server, 1, &format!("-tls1_2 {option} {session}"), "GET / HTTP/1.0\r\n\r\n");
        printed.lines().any(|l| l.starts_with("Reused"))
    };
    for (tickets, expected) in [("session_tickets", true), ("", false)] {
        let servers = servers(2, &site(tickets));
        assert!(!handshake(&servers[0], "-sess_out"));
        assert!(handshake(&servers[0], "-sess_in"), "{tickets}");
        assert_eq!(handshake(&servers[1], "-sess_in"), expected, "{tickets}");
    }
}

/// Makes a certificate for 127.0.0.1. Returns a directory, and the names of its file and of that of its key.
fn certificate() -> (Site, String, String) {
    let site = Site::new("");
    let names = "-addext subjectAltName=IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE";
    site.openssl(&format!(
        "req -x509 -newkey {P256} -nodes -days 2 -subj /CN=store {names} -keyout key.pem -out cert.pem"
    ));
    let [cert, key] = ["cert.pem", "key.pem"].map(|name| site.path(name).display().to_string());
    (site, cert, key)
}

/// The store asks for a user, a password, and TLS.
#[test]
fn the_store_may_ask_for_a_password_and_tls() {
    let (_directory, cert, key) = certificate();
    let lines = format!(
        "port 0\ntls-port %PORT%\ntls-cert-file {cert}\ntls-key-file {key}\ntls-auth-clients no\n\
         user limits on >secret ~our:* -@all +select +eval +evalsha +time +get +set +zadd +zremrangebyscore +pexpire +zcard +hgetall +hset +hdel"
    );
    let Some(redis) = Redis::start(&lines) else { return };
    let port = redis.port;
    let start = |password: &str, ca: &str| {
        let store =
            format!("rediss://127.0.0.1:{port}/3 user=limits password=file:%DIR%/password {ca} prefix=our:");
        let site = Site::new(conf(&store, "rate=1r/m sync exact", "nodelay"));
        site.write("password", password);
        Server::start_on(site)
    };
    let server = start("secret\n", &format!("ca={cert}"));
    wait_until_up(&server);
    assert_eq!(ask(&mut server.connect(), "/?k=client"), 200);
    assert_eq!(ask(&mut server.connect(), "/?k=client"), 429);
    assert!(!server.error_log().contains("secret"));
    let dumped = Done::of(&mut server.command(program(), &["-T"])).out;
    assert!(dumped.contains("password=file:") && !dumped.contains("secret"), "{dumped}");
    let server = start("wrong-one\n", &format!("ca={cert}"));
    server.wait_for_log("cannot be used: WRONGPASS", 1);
    assert!(!server.error_log().contains("wrong-one"), "{}", server.error_log());
    assert_eq!(ask(&mut server.connect(), "/?k=client"), 200);
    // The system's authorities have not issued its certificate.
    let server = start("secret\n", "");
    server.wait_for_log("cannot be used: TLS handshake failed", 1);
}
