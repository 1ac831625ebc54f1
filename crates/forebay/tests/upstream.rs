//! Groups of upstreams: which server is asked, what is found out about them, names that are resolved.

use forebay_http::h2::frame::{flag, kind};
use forebay_testkit::{
    Echo, Names, Oracle, Server, Signal, Site, Talk, accept, ask, connect, free_port, h2, http, kill, oracle,
    raw, receive, udp, wait_for, wait_until,
};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

forebay_testkit::cases!("cases/upstream.cases":
    a_name_that_is_not_found_at_the_start, groups_without_servers_have_fallbacks, names_are_resolved_at_run_time,
    resolved_names_are_kept_over_a_reload, a_group_follows_its_names, sick_servers_are_not_asked, servers_in_a_state_file,
    cookies_have_marks_and_are_secure_by_a_value, cookies_stay_where_they_are_if_a_failure_is_not_to_change_them,
    sessions_end_with_their_servers_if_that_is_wanted, the_resolver_of_the_system_and_none);

/// A server that answers each connection with its own port, after a while.
struct Up {
    addr: SocketAddr,
    delay: Arc<Mutex<Duration>>,
    /// Connections now, and most of them so far.
    now: Arc<AtomicUsize>,
    at_once: Arc<AtomicUsize>,
}

fn up() -> Up {
    let delay = Arc::<Mutex<Duration>>::default();
    let (now, at_once) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let (wait, count, most) = (delay.clone(), now.clone(), at_once.clone());
    let addr = accept(move |mut stream, _| {
        most.fetch_max(count.fetch_add(1, SeqCst) + 1, SeqCst);
        let _ = stream.read(&mut [0; 4096]);
        let pause = *wait.lock().unwrap_or_else(PoisonError::into_inner);
        std::thread::sleep(pause);
        let body = format!("port {}.", stream.local_addr().expect("address").port());
        // The next connection may come as soon as the answer has been read.
        count.fetch_sub(1, SeqCst);
        let length = body.len();
        let head = format!("HTTP/1.1 200 X\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
        let _ = stream.write_all((head + &body).as_bytes());
    });
    Up { addr, delay, now, at_once }
}

fn by(answer: &str, up: &Up) -> bool {
    answer.contains(&format!("port {}.", up.addr.port()))
}

/// Passes datagrams on to a name server while the gate is open, and holds them back while it is shut.
fn gate(server: SocketAddr, open: Arc<AtomicBool>) -> (SocketAddr, Arc<AtomicUsize>) {
    let (socket, held) = (UdpSocket::bind("127.0.0.1:0").expect("bind"), Arc::new(AtomicUsize::new(0)));
    let (addr, count) = (socket.local_addr().expect("address"), held.clone());
    std::thread::spawn(move || {
        let mut buf = [0; 512];
        while let Ok((len, from)) = socket.recv_from(&mut buf) {
            if !open.load(SeqCst) {
                count.fetch_add(1, SeqCst);
                wait_until("the gate", || open.load(SeqCst));
            }
            let ask = UdpSocket::bind("127.0.0.1:0").expect("bind");
            ask.send_to(&buf[..len], server).expect("sent");
            let len = ask.recv(&mut buf).expect("an answer");
            socket.send_to(&buf[..len], from).expect("sent");
        }
    });
    (addr, held)
}

/// A worker process that takes the place of one that died knows no addresses yet. Requests wait for them.
#[test]
fn requests_wait_for_the_first_addresses_of_a_worker_process() {
    let up = up();
    let dns = Names::start(&["later.test"]);
    let open = Arc::new(AtomicBool::new(true));
    let (dns, held) = gate(dns.addr, open.clone());
    let group =
        |zone| format!("upstream u {{ zone {zone} 64k; server later.test:{} resolve; }}", up.addr.port());
    let http = format!(
        "resolver {dns}; {} server {{ listen 127.0.0.1:%PORT0%; location / {{ proxy_pass http://u; }} }}",
        group("h")
    );
    let stream = format!(
        "stream {{ resolver {dns}; {} server {{ listen 127.0.0.1:%PORT1%; proxy_pass u; }} }}",
        group("s")
    );
    let server = Server::start(forebay_testkit::http(&http).to_string() + &stream);
    wait_until("the name", || by(&server.get("/"), &up));
    open.store(false, SeqCst);
    let old = server.workers(server.pid());
    kill(old[0], Signal::SIGKILL);
    wait_until("its questions", || held.load(SeqCst) > 0);
    let clients = [0, 1].map(|n| {
        let mut client = connect(server.addr(n));
        client.send(forebay_testkit::get("/"));
        client
    });
    // Neither is refused while the answer is still to come.
    for client in &clients {
        client.set_nonblocking(true).expect("option");
        let (mut byte, since) = ([0; 1], Instant::now());
        wait_for("some time", || {
            assert!(client.peek(&mut byte).is_err(), "an answer without an address");
            (since.elapsed() > Duration::from_millis(200)).then_some(())
        });
        client.set_nonblocking(false).expect("option");
    }
    open.store(true, SeqCst);
    for mut client in clients {
        let answer = client.rest();
        assert!(by(&answer, &up), "{answer}");
    }
}

#[test]
fn requests_wait_for_a_server() {
    let up = up();
    *up.delay.lock().expect("delay") = Duration::from_millis(150);
    let server = Server::start(http!(
        "upstream u {{ server {} max_conns=1; queue 3 timeout=10s; }}\n\
         upstream s {{ server {} max_conns=1; queue 1 timeout=10ms; }}\n\
         server {{ listen 127.0.0.1:%PORT0%; location / {{ proxy_pass http://u; }}\n\
         location /short {{ proxy_pass http://s; }} }}",
        up.addr,
        up.addr
    ));
    let addr = server.addr(0);
    let ask = |uri: &str| {
        let text = format!("GET {uri} HTTP/1.0\r\n\r\n");
        std::thread::spawn(move || ask(addr, &text))
    };
    let all: Vec<_> = (0..4).map(|_| ask("/")).collect();
    assert!(all.into_iter().all(|t| t.join().expect("answer").contains("200 X")));
    assert_eq!(up.at_once.load(SeqCst), 1);
    // Long enough for all to come meanwhile.
    *up.delay.lock().expect("delay") = Duration::from_secs(1);
    let first = ask("/");
    wait_until("the first", || up.now.load(SeqCst) == 1);
    let mut leaves = TcpStream::connect(addr).expect("connect");
    leaves.send(b"GET /leaves HTTP/1.0\r\n\r\n");
    drop(leaves);
    server.wait_for_log("closed too while waiting for a free upstream server", 1);
    assert!(
        first.join().expect("answer").contains("200 X") && !server.error_log().contains("no live upstreams")
    );
    let all: Vec<_> = (0..3).map(|_| ask("/short")).collect();
    let good = all.into_iter().map(|t| t.join().expect("answer"));
    assert_eq!(good.filter(|a| a.contains("200 X")).count(), 1);
}

#[test]
fn a_reload_keeps_what_is_known() {
    let (a, b) = (up(), up());
    let dead = free_port();
    let text = http!(
        "upstream u {{ server 127.0.0.1:{dead} fail_timeout=60s; server {}; server {}; sticky cookie s path=/; }}\n\
         upstream l {{ server {}; server {}; sticky learn create=$arg_s lookup=$arg_s zone=l:64k; }}\n\
         server {{ listen 127.0.0.1:%PORT0%; add_header X-Addr $upstream_addr; location / {{ proxy_pass http://u; }}\n\
         location /l {{ proxy_pass http://l; }} }}",
        a.addr,
        b.addr,
        a.addr,
        b.addr
    );
    let server = Server::start(&text);
    let first = server.get("/");
    assert!(first.contains(&format!("X-Addr: 127.0.0.1:{dead}, ")), "{first}");
    let learned = by(&server.get("/l?s=1"), &a);
    server.reload();
    server.wait_for_log("reconfiguring", 1);
    let end = Instant::now() + Duration::from_secs(1);
    while Instant::now() < end {
        assert!(!server.get("/").contains(&dead.to_string()), "the dead server was asked again");
        assert_eq!(by(&server.get("/l?s=1"), &a), learned);
    }
    let cookie = first.split("Set-Cookie: ").nth(1).and_then(|c| c.split(';').next()).expect("a cookie");
    let ask = format!("GET / HTTP/1.0\r\nCookie: x=y; {cookie}\r\n\r\n");
    let server_of = |t: &str| by(t, &a);
    for _ in 0..4 {
        assert_eq!(server_of(&String::from_utf8_lossy(&server.raw(&ask))), server_of(&first));
    }
}

#[test]
fn keys_find_the_servers_that_nginx_finds() {
    let Some(nginx) = oracle() else { return };
    let ups: Vec<Up> = (0..4).map(|_| up()).collect();
    let dead = free_port();
    let list = |weights: &[usize]| {
        let each = ups.iter().zip(weights).map(|(u, w)| format!("server {} weight={w};", u.addr));
        each.collect::<String>()
    };
    let groups = [
        ("plain", list(&[1, 1, 1, 1])),
        ("weights", list(&[1, 5, 2, 3])),
        ("dead", format!("server 127.0.0.1:{dead} weight=2; {}", list(&[1, 1, 2, 1]))),
        ("down", format!("server {} down; server {}; server {};", ups[0].addr, ups[1].addr, ups[2].addr)),
    ];
    let mut text = String::new();
    let mut locations = String::new();
    for (name, servers) in &groups {
        for (kind, method) in [("h", "hash $arg_k;"), ("c", "hash $arg_k consistent;"), ("i", "ip_hash;")] {
            text += &format!("upstream {kind}{name} {{ {method} {servers} }}\n");
            locations += &format!("location /{kind}{name} {{ proxy_pass http://{kind}{name}; }}\n");
        }
    }
    let text = http!(
        "{text} server {{ listen 127.0.0.1:%PORT0%; set_real_ip_from 127.0.0.1; {locations}\n\
         add_header X-Addr $upstream_addr; }}"
    );
    let theirs = Oracle::start(&nginx, Site::new(&text));
    let ours = Server::start(&text);
    let tell = |answer: &[u8]| {
        let text = String::from_utf8_lossy(answer).into_owned();
        text.lines().find(|l| l.starts_with("X-Addr: ")).map(str::to_owned).unwrap_or(text)
    };
    for (name, _) in &groups {
        for n in 0..60u32 {
            for kind in ["h", "c", "i"] {
                let ip = if n % 3 == 0 {
                    format!("2001:db8::{:x}", n * 77)
                } else {
                    format!("10.{}.{n}.1", n * 3)
                };
                let ask = format!("GET /{kind}{name}?k=key{n} HTTP/1.0\r\nX-Real-IP: {ip}\r\n\r\n");
                let want = tell(&raw(theirs.addr(), &ask));
                assert!(want.contains("127.0.0.1"), "{want}");
                assert_eq!(tell(&ours.raw(&ask)), want, "{kind}{name} {n}");
            }
        }
    }
}

/// The reply to a question: SRV records point to `srv.test` with this port, A is 127.0.0.1, AAAA is empty.
fn service_reply(question: &[u8], port: u16, cut_off: bool) -> Vec<u8> {
    let mut m = question.to_vec();
    let end = 12 + m[12..].iter().position(|b| *b == 0).expect("the end of the name");
    let kind = m[end + 2];
    (m[2], m[3]) = (if cut_off { 0x83 } else { 0x81 }, 0x80);
    if cut_off {
        return m;
    }
    let data = match kind {
        1 => vec![127, 0, 0, 1],
        33 => {
            let [high, low] = port.to_be_bytes();
            [&[0, 1, 0, 5, high, low, 3][..], b"srv", &[4], b"test", &[0]].concat()
        }
        _ => return m,
    };
    m[7] = 1;
    m.extend_from_slice(&[0xc0, 12, 0, kind, 0, 1, 0, 0, 0, 60, 0, data.len() as u8]);
    m.extend_from_slice(&data);
    m
}

#[test]
fn services_and_answers_that_are_cut_off() {
    let up = up();
    let port = up.addr.port();
    let tcp = TcpListener::bind("127.0.0.1:0").expect("bind");
    let dns = tcp.local_addr().expect("address");
    let udp = UdpSocket::bind(dns).expect("the same port");
    std::thread::spawn(move || {
        let mut buf = [0; 512];
        while let Ok((len, from)) = udp.recv_from(&mut buf) {
            // A stranger's answer comes first: another number, another name.
            let mut wrong = service_reply(&buf[..len], 1, false);
            wrong[0] ^= 1;
            let _ = udp.send_to(&wrong, from);
            let mut wrong = service_reply(&buf[..len], 1, false);
            wrong[13] ^= 1;
            let _ = udp.send_to(&wrong, from);
            let _ = udp.send_to(&service_reply(&buf[..len], port, true), from);
        }
    });
    std::thread::spawn(move || {
        for mut stream in tcp.incoming().flatten() {
            let mut head = [0; 2];
            if stream.read_exact(&mut head).is_err() {
                continue;
            }
            let mut question = vec![0; usize::from(u16::from_be_bytes(head))];
            let _ = stream.read_exact(&mut question);
            let m = service_reply(&question, port, false);
            let _ = stream.write_all(&[&(m.len() as u16).to_be_bytes(), m.as_slice()].concat());
        }
    });
    let server = Server::start(http!(
        "resolver {dns}; upstream u {{ zone u 64k; server srv.test service=http resolve; }}\n\
         server {{ listen 127.0.0.1:%PORT0%; location / {{ proxy_pass http://u; }}\n\
         location /name {{ proxy_pass http://$arg_h:{port}; }} }}"
    ));
    wait_until("the service", || by(&server.get("/"), &up));
    assert!(by(&server.get("/name?h=srv.test"), &up));
}

/// Sessions by a field, and sessions that end. The value has the times behind the name of the server.
#[test]
fn sessions_by_a_field_and_with_an_end() {
    let (a, b) = (up(), up());
    let (a, b) = (&a, &b);
    let server = Server::start(http!(
        "upstream f {{ server {0}; server {1}; sticky header X-Session mark=0 lifetime=100s; }}\n\
         upstream c {{ server {0}; server {1}; sticky cookie c lifetime=100s idle=10s expires=100s; }}\n\
         server {{ listen 127.0.0.1:%PORT0%; location /f {{ proxy_pass http://f; }} location /c {{ proxy_pass http://c; }} }}",
        a.addr,
        b.addr
    ));
    let ask = |uri: &str, field: &str| server.get_with(uri, format!("{field}\r\n"));
    let of = |text: &str, start: &str| {
        let line = text.lines().find_map(|l| l.strip_prefix(start)).unwrap_or_else(|| panic!("{text}"));
        line.split(';').next().unwrap_or_default().to_owned()
    };
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a time").as_secs();
    for (uri, start, field) in
        [("/f", "X-Session: 0.", "X-Session: 0."), ("/c", "Set-Cookie: c=", "Cookie: c=")]
    {
        let first = ask(uri, "X-None: 1");
        let value = of(&first, start);
        let parts: Vec<&str> = value.split('.').collect();
        let begun = u64::from_str_radix(parts[1], 16).expect("a time");
        assert!(begun.abs_diff(now) < 60, "{value}");
        let sid = parts[0];
        let rest = if uri == "/c" { format!(".{now:x}") } else { String::new() };
        // A session goes on with its beginning.
        let earlier = begun - 50;
        for _ in 0..4 {
            let answer = ask(uri, &format!("{field}{sid}.{earlier:x}{rest}"));
            assert_eq!(by(&answer, a), by(&first, a));
            let next = of(&answer, start);
            assert!(next.starts_with(&format!("{sid}.{earlier:x}")), "{next}");
            if uri == "/c" {
                let age = answer
                    .split("max-age=")
                    .nth(1)
                    .and_then(|t| t.split([';', '\r']).next()?.trim().parse::<u64>().ok());
                assert!(age.is_some_and(|age| (1..=50).contains(&age)), "{answer}");
            }
        }
        // One that is over begins anew, at any server.
        let over = begun - 200;
        let others: Vec<String> = (0..8).map(|_| ask(uri, &format!("{field}{sid}.{over:x}{rest}"))).collect();
        assert!(others.iter().any(|o| by(o, a)) && others.iter().any(|o| by(o, b)), "{others:?}");
        assert!(others.iter().all(|o| !of(o, start).contains(&format!(".{over:x}"))), "{others:?}");
    }
    let idle = now - 20;
    let others = [(); 8].map(|()| {
        let first = of(&ask("/c", "X-None: 1"), "Set-Cookie: c=");
        let sid = first.split('.').next().unwrap_or_default().to_owned();
        let answer = ask("/c", &format!("Cookie: c={sid}.{now:x}.{idle:x}"));
        of(&answer, "Set-Cookie: c=").starts_with(&sid)
    });
    assert!(others.contains(&false), "{others:?}");
    for wrong in ["header X_Y", "header X path=/", "cookie c lifetime=0", "cookie c idle=x"] {
        let text = format!(
            "upstream f {{ server {}; sticky {wrong}; }} server {{ listen 127.0.0.1:%PORT0%; }}",
            a.addr
        );
        assert!(!http!("{text}").site().run(&["-t"]).status.success(), "{wrong}");
    }
}

/// The same for the body of a response.
#[test]
fn responses_end_with_their_servers_if_that_is_wanted() {
    let known = Names::start(&["later.test"]);
    let dns = known.addr;
    let go_on = Arc::new(AtomicBool::new(false));
    let goes = go_on.clone();
    let up = accept(move |mut stream, _| {
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\nConnection: close\r\n\r\nhalf");
        wait_until("the end of the name", || goes.load(SeqCst));
        let _ = stream.write_all(b"rest");
    });
    let server = Server::start(http!(
        "resolver {dns} valid=1s; proxy_buffering off; upstream u {{ zone u 64k; server later.test:{} resolve; }} server {{ listen \
         127.0.0.1:%PORT0%; location / {{ proxy_pass http://u; }} location /drop {{ proxy_connection_drop on; proxy_pass \
         http://u; }} location /gone {{ proxy_pass http://u; }} }}",
        up.port()
    ));
    let begin = |target: &str| {
        let mut stream = server.send(forebay_testkit::get(target));
        let head = stream.head();
        let is_half = head.starts_with("HTTP/1.1 200 ");
        stream.until(if is_half { "half" } else { "</html>\r\n" });
        (stream, is_half)
    };
    wait_until("the name", || begin("/").1);
    let (mut kept, mut dropped) = (begin("/").0, begin("/drop").0);
    known.know(&[]);
    wait_until("the end of the name", || !begin("/gone").1);
    go_on.store(true, SeqCst);
    // To the end, which may be a reset.
    assert_eq!((kept.all_until("\0").as_str(), dropped.all_until("\0").as_str()), ("rest", ""));
    server.wait_for_log("upstream server was removed from its group while reading upstream", 1);
}

/// Starts an upstream that answers each read of what follows a request: a WebSocket, or content beside which its own goes on.
pub fn talkative() -> SocketAddr {
    accept(|mut stream, _| {
        let head = stream.head();
        let key = head.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: "));
        let key = key.or_else(|| head.lines().find_map(|line| line.strip_prefix("sec-websocket-key: ")));
        let answer = match key {
            Some(key) => format!(
                "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: {}\r\n\r\n",
                crate::websocket::accept(key)
            ),
            None if head.starts_with("GET") => {
                "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nhere".to_owned()
            }
            None => "HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n".to_owned(),
        };
        let _ = stream.write_all(answer.as_bytes());
        let mut buf = [0; 256];
        while !answer.ends_with("here") && matches!(stream.read(&mut buf), Ok(1..)) {
            if stream.write_all(b"word").is_err() {
                return;
            }
        }
    })
}

/// Locations of [`talkative`] upstreams: `/drop` with `proxy_connection_drop`.
pub fn talkative_locations(up: SocketAddr, dns: SocketAddr) -> [String; 2] {
    let pass = "proxy_pass http://u; proxy_request_buffering off; proxy_buffering off; proxy_set_header Upgrade $http_upgrade; \
                proxy_set_header Connection $http_connection;";
    [
        format!(
            "resolver {dns} valid=1s; upstream u {{ zone u 64k; server later.test:{} resolve; }}",
            up.port()
        ),
        format!("location / {{ {pass} }} location /drop {{ proxy_connection_drop on; {pass} }}"),
    ]
}

/// The same for tunnels and for content on streams of a client's HTTP/2.
#[test]
fn streams_end_with_their_servers_if_that_is_wanted() {
    let known = Names::start(&["later.test"]);
    let [http, locations] = talkative_locations(talkative(), known.addr);
    let server = crate::http2::serve(&http, &locations);
    let mut client = h2::Client::new(&server);
    let mut others = h2::Client::new(&server);
    let mut next = 1;
    let mut is_known = || {
        next += 2;
        others.get_status(next, "/gone") == "200"
    };
    wait_until("the name", &mut is_known);
    let tunnel = [(":method", "CONNECT"), (":protocol", "websocket")];
    let streams = [1, 3, 5, 7];
    for (stream, path) in streams.into_iter().zip(["/drop", "/drop", "/", "/"]) {
        let fields = if stream % 4 == 1 { &tunnel[..] } else { &[(":method", "POST")] };
        client.request(stream, path, fields, false);
    }
    let mut talk = |stream: u32| {
        client.frame(kind::DATA, 0, stream, b"x");
        loop {
            let frame = client.next().unwrap_or_else(|| panic!("stream {stream}: {}", server.error_log()));
            match frame.kind {
                _ if frame.stream != stream => {}
                kind::RST_STREAM => return false,
                kind::DATA if frame.has(flag::END_STREAM) => return false,
                kind::DATA if !frame.payload.is_empty() => return true,
                _ => {}
            }
        }
    };
    assert_eq!(streams.map(&mut talk), [true; 4], "{}", server.error_log());
    known.know(&[]);
    wait_until("the end of the name", || !is_known());
    assert_eq!(streams.map(&mut talk), [false, false, true, true], "{}", server.error_log());
    server.wait_for_log("upstream server was removed from its group while proxying upgraded connection", 1);
    server.wait_for_log("upstream server was removed from its group while reading upstream", 1);
}

/// A session of datagrams whose server is gone ends with the next one, and its client begins anew.
#[test]
fn sessions_of_datagrams_end_with_their_servers_if_that_is_wanted() {
    let (up, known) = (Echo::start(), Names::start(&["later.test"]));
    let dns = known.addr;
    let server = Server::start(format!(
        "error_log logs/error.log info; events {{}} stream {{ resolver {dns} valid=1s; upstream u {{ zone u 64k; server later.test:{} \
         resolve; }} server {{ listen 127.0.0.1:%PORT0%; return ready; }} server {{ listen 127.0.0.1:%PORT1% udp; \
         proxy_connection_drop on; proxy_pass u; }} }}\n",
        up.addr.port()
    ));
    let client = udp(server.addr(1));
    let ask = |client: &UdpSocket| {
        client.send(b"hello").expect("sent");
        receive(client).is_some()
    };
    wait_until("the name", || ask(&client));
    known.know(&[]);
    wait_until("the end of the session", || {
        let _ = client.send(b"hello");
        server.error_log().contains("udp ended since the server was removed")
    });
}
