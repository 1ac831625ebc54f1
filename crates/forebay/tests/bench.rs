//! `bench` as people start it, beside the tools whose words it speaks.

use forebay_bench::tls::{Kind, self_signed};
use forebay_testkit::{Asked, Origin, Server, Site, Talk, free_port, program, run, wait_for};
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};

forebay_testkit::cases!("cases/bench.cases": mistakes_are_told, options_without_sense_for_bytes_are_refused);

/// Answers 200 with five bytes, and 404 below `/missing`.
fn server(bind: &str) -> SocketAddr {
    let answer = |asked: &mut Asked| {
        let head = asked.head().to_ascii_lowercase();
        let status = if asked.target().starts_with("/missing") { "404 Not Found" } else { "200 OK" };
        let keep = !head.contains(" http/1.0") || head.contains("keep-alive");
        let kept = if keep { "Connection: keep-alive\r\n" } else { "Connection: close\r\n" };
        asked.answer(status, kept, "hello") && keep
    };
    Origin::on(TcpListener::bind(bind).expect("bind"), answer).addr
}

fn bench(args: &[&str]) -> (i32, String, String) {
    run(program(), &[&["bench"], args].concat()).expect("runs")
}

/// The lines with every number replaced, so that only the words are compared.
fn words(text: &str) -> Vec<String> {
    let word =
        |w: &str| if w.starts_with(|c: char| c.is_ascii_digit()) { "#".to_owned() } else { w.to_owned() };
    text.lines()
        .map(|line| line.split_whitespace().map(word).collect::<Vec<_>>().join(" "))
        .filter(|line| !line.is_empty())
        .collect()
}

#[test]
fn wrk_lines_are_those_of_wrk() {
    let addr = server("127.0.0.1:0");
    for path in ["", "missing"] {
        let url = format!("http://{addr}/{path}");
        let args = ["-t1", "-c4", "-d1s", "--latency", url.as_str()];
        let Some((_, theirs, _)) = run("wrk", &args) else {
            return eprintln!("skipped: wrk is not installed");
        };
        let (code, ours, errors) = bench(&[&["wrk"], &args[..]].concat());
        assert_eq!(code, 0, "{errors}");
        assert_eq!(words(&ours), words(&theirs), "{ours}\n{theirs}");
        // For those who cut columns.
        let lengths = |text: &str| text.lines().skip(2).map(str::len).collect::<Vec<_>>();
        let (mut ours_len, mut theirs_len) = (lengths(&ours), lengths(&theirs));
        let free = words(&ours).iter().skip(2).position(|l| l.contains("requests in")).expect("a line");
        (ours_len[free], theirs_len[free]) = (0, 0);
        if !path.is_empty() {
            (ours_len[free + 1], theirs_len[free + 1]) = (0, 0);
        }
        assert_eq!(ours_len, theirs_len, "{ours}\n{theirs}");
    }
    assert_eq!(bench(&["wrk", "-s", "x.lua", "http://127.0.0.1/"]).0, 1);
}

/// With a rate, the two distributions of wrk2, in its columns (it is in no distribution's packages, so its own output
/// cannot be had here).
#[test]
fn a_rate_prints_what_wrk2_prints() {
    let url = format!("http://{}/", server("127.0.0.1:0"));
    let (code, text, errors) = bench(&["wrk", "-t1", "-c2", "-d1s", "-R", "200", "-U", &url]);
    assert_eq!(code, 0, "{errors}");
    let heads: Vec<&str> = text.lines().filter(|l| l.contains("HdrHistogram")).collect();
    assert_eq!(
        heads,
        [
            "  Latency Distribution (HdrHistogram - Recorded Latency)",
            "  Latency Distribution (HdrHistogram - Uncorrected Latency (measured without taking delayed starts into \
             account))"
        ]
    );
    let ranks = ["50.000%", "75.000%", "90.000%", "99.000%", "99.900%", "99.990%", "99.999%", "100.000%"];
    for rank in ranks {
        let lines: Vec<&str> = text.lines().filter(|l| l.trim_start().starts_with(rank)).collect();
        assert!(lines.len() == 2 && lines.iter().all(|l| l.len() == 18), "{rank}: {lines:?}");
    }
    let table =
        text.lines().skip_while(|l| !l.starts_with("       Value   Percentile   TotalCount 1/")).skip(2);
    let rows: Vec<&str> = table.take_while(|l| !l.starts_with('#')).collect();
    assert!(rows.len() > 5 && rows.iter().all(|l| l.len() == 51), "{rows:?}");
    let last: Vec<&str> = rows.last().expect("a row").split_whitespace().skip(1).collect();
    assert_eq!(last, ["1.000000", "200", "inf"]);
}

#[test]
fn ab_lines_are_those_of_ab() {
    let addr = server("127.0.0.1:0");
    for (path, keep) in [("", false), ("", true), ("missing", false)] {
        let url = format!("http://{addr}/{path}");
        let mut args = vec!["-q", "-n", "200", "-c", "4"];
        if keep {
            args.push("-k");
        }
        args.push(&url);
        let Some((_, theirs, _)) = run("ab", &args) else { return eprintln!("skipped: ab is not installed") };
        let (code, ours, errors) = bench(&[&["ab"], &args[..]].concat());
        assert_eq!(code, 0, "{errors}");
        let after = |text: &str| {
            let lines = words(text).into_iter().skip_while(|l| !l.starts_with("Server Software"));
            // ab warns of a skewed set by chance, in two lines.
            let chance = ["WARNING:", "These results", "ERROR: The median", "deviation apart."];
            lines.filter(|l| !chance.iter().any(|c| l.starts_with(c))).collect::<Vec<_>>()
        };
        assert_eq!(after(&ours), after(&theirs), "{ours}\n{theirs}");
        let figure = |text: &str, name: &str| {
            let line = text.lines().find(|l| l.starts_with(name)).unwrap_or_default();
            line.split_whitespace().filter_map(|w| w.parse::<u64>().ok()).next()
        };
        for name in [
            "Document Length:",
            "Complete requests:",
            "Failed requests:",
            "HTML transferred:",
            "Total transferred:",
        ] {
            assert_eq!(figure(&ours, name), figure(&theirs, name), "{name}");
        }
    }
}

#[test]
fn results_for_programs_and_people() {
    let addr = server("127.0.0.1:0");
    let dir = tempfile::tempdir().expect("temporary");
    let file = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
    let (html, hgrm) = (file("r.html"), file("r.hgrm"));
    let url = format!("http://{addr}/");
    let (code, out, errors) =
        bench(&["-n", "500", "-c", "4", "-q", "--json", "-", "--html", &html, "--hgrm", &hgrm, &url]);
    assert_eq!(code, 0, "{errors}");
    let value: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((value["schema"].as_u64(), value["requests"]["ok"].as_u64()), (Some(1), Some(500)));
    assert_eq!(value["latency_us"]["count"].as_u64(), Some(500));
    let manual = include_str!("../../../docs/bench.md");
    for key in value.as_object().expect("an object").keys() {
        assert!(manual.contains(&format!("`{key}`")), "{key} is not in docs/bench.md");
    }
    let page = std::fs::read_to_string(&html).expect("report");
    assert!(page.matches("<svg").count() == 4 && !page.contains("NaN") && !page.contains("src="));
    let spectrum = std::fs::read_to_string(&hgrm).expect("spectrum");
    assert!(spectrum.contains("Total count    =          500]"), "{spectrum}");
}

/// Network namespaces joined by a bridge, removed at the end.
struct Namespaces {
    names: Vec<String>,
    bridge: String,
    /// The first three numbers of their addresses: of this process alone, several may test at once.
    network: String,
}

impl Namespaces {
    fn ip(args: &str) -> bool {
        let status =
            Command::new("ip").args(args.split(' ')).stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|s| s.success())
    }

    /// `None` where it is not allowed.
    fn new() -> Option<Namespaces> {
        let id = std::process::id() % 10_000;
        let bridge = format!("fbr{id}");
        let network = format!("10.{}.{}", 200 + id / 250, id % 250);
        let mut new = Namespaces { names: Vec::new(), bridge: bridge.clone(), network: network.clone() };
        if !Namespaces::ip(&format!("link add {bridge} type bridge")) {
            return None;
        }
        let mut good = Namespaces::ip(&format!("addr add {network}.1/24 dev {bridge}"));
        good &= Namespaces::ip(&format!("link set {bridge} up"));
        for i in 1..3 {
            let name = format!("fbn{id}x{i}");
            new.names.push(name.clone());
            for command in [
                format!("netns add {name}"),
                format!("link add fbv{id}x{i} type veth peer name eth0 netns {name}"),
                format!("link set fbv{id}x{i} master {bridge} up"),
                format!("-n {name} addr add {network}.1{i}/24 dev eth0"),
                format!("-n {name} link set eth0 up"),
            ] {
                good &= Namespaces::ip(&command);
            }
        }
        good.then_some(new)
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        self.names.iter().for_each(|name| {
            Namespaces::ip(&format!("netns del {name}"));
        });
        Namespaces::ip(&format!("link del {}", self.bridge));
    }
}

/// A process that prints where it listens, killed at the end.
struct Started(std::process::Child);

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts an agent, below `prefix`, and waits until it listens.
fn agent(prefix: &[&str], listen: &str, secret: &str, allow: &str) -> (Started, String) {
    let mut words: Vec<&str> = prefix.to_vec();
    words.extend([
        program(),
        "bench",
        "agent",
        "--listen",
        listen,
        "--secret-file",
        secret,
        "--allow",
        allow,
    ]);
    let mut child = Command::new(words[0]).args(&words[1..]).stdout(Stdio::piped()).spawn().expect("agent");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
    let at = line.split_whitespace().nth(2).unwrap_or_default().trim_end_matches(',').to_owned();
    (Started(child), at)
}

#[test]
fn agents_refuse_strangers_and_other_targets() {
    let addr = server("127.0.0.1:0");
    let dir = tempfile::tempdir().expect("temporary");
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).expect("write");
        path.to_string_lossy().into_owned()
    };
    let (good, bad) =
        (file("a", "a secret of more than 16 bytes"), file("b", "another secret, also long enough"));
    let (_agent, at) = agent(&[], "127.0.0.1:0", &good, "127.0.0.1");
    let url = format!("http://{addr}/");
    let with = |secret: &str, url: &str| {
        bench(&["-q", "-n", "100", "-c", "4", "--agents", &at, "--secret-file", secret, url])
    };
    let (code, _, errors) = with(&bad, &url);
    assert!(code == 2 && errors.contains("secret"), "{errors}");
    let (code, _, errors) = with(&good, "http://127.0.0.2:1/");
    assert!(code == 2 && errors.contains("was not allowed"), "{errors}");
    let (code, _, errors) = with(&file("c", "short"), &url);
    assert!(code == 2 && errors.contains("16 bytes"), "{errors}");
    let (code, out, errors) = with(&good, &url);
    assert!(code == 0 && out.contains("answered     100 "), "{out} {errors}");
}

#[test]
fn agents_in_namespaces_merge_to_the_sum() {
    let Some(spaces) = Namespaces::new() else {
        return eprintln!("skipped: no right to make network namespaces");
    };
    let here = format!("{}.1", spaces.network);
    let addr = server(&format!("{here}:0"));
    let dir = tempfile::tempdir().expect("temporary");
    let secret = dir.path().join("s");
    std::fs::write(&secret, "a secret of more than 16 bytes").expect("write");
    let secret = secret.to_string_lossy().into_owned();
    let started: Vec<_> = spaces
        .names
        .iter()
        .enumerate()
        .map(|(i, name)| {
            let listen = format!("{here}{}:7700", i + 1);
            agent(&["ip", "netns", "exec", name], &listen, &secret, &here)
        })
        .collect();
    let list = started.iter().map(|(_, at)| at.as_str()).collect::<Vec<_>>().join(",");
    let url = format!("http://{addr}/");
    let (code, out, errors) = bench(&[
        "-q",
        "-n",
        "1001",
        "-c",
        "7",
        "--json",
        "-",
        "--agents",
        &list,
        "--secret-file",
        &secret,
        &url,
    ]);
    assert_eq!(code, 0, "{errors}");
    let value: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(value["requests"]["ok"].as_u64(), Some(1001));
    assert_eq!(value["latency_us"]["count"].as_u64(), Some(1001));
    assert_eq!(value["bytes"]["content"].as_u64(), Some(5005));
    assert_eq!(value["connections_made"].as_u64(), Some(7));
}

/// Starts `bench backend`. Returns the addresses of its TCP and UDP sockets, as URLs.
fn backend() -> (Started, [String; 2]) {
    let mut command = Command::new(program());
    command.args(["bench", "backend", "tcp://127.0.0.1:0", "udp://127.0.0.1:0"]).stdout(Stdio::piped());
    let mut child = command.spawn().expect("a backend");
    let mut out = BufReader::new(child.stdout.take().expect("piped"));
    let started = Started(child);
    let urls = [(); 2].map(|()| {
        let mut line = String::new();
        out.read_line(&mut line).expect("a line");
        line.trim().strip_prefix("listening at ").expect("an address").to_owned()
    });
    (started, urls)
}

#[test]
fn a_backend_serves_without_a_reader_of_its_output() {
    let port = free_port();
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let address = format!("127.0.0.1:{port}");
    let mut command = Command::new(program());
    command.args(["bench", "backend", &format!("tcp://{address}")]).stdout(writer);
    let _backend = Started(command.spawn().expect("a backend"));
    let mut client = wait_for("the backend", || TcpStream::connect(&address).ok());
    client.send(b"well");
    let mut back = [0; 4];
    client.read_exact(&mut back).expect("an echo");
    assert_eq!(&back, b"well");
}

/// Runs `bench` with `--json -`, and returns what it wrote.
fn bench_json(args: &[&str]) -> serde_json::Value {
    let (code, out, errors) = bench(&[&["-q", "--json", "-"], args].concat());
    assert!(code == 0 || code == 2, "{args:?}: {errors}");
    serde_json::from_str(&out).expect("JSON")
}

#[test]
fn bytes_are_loaded_over_tcp_and_udp() {
    let (_backend, [tcp, udp]) = backend();
    let counts = |args: &[&str]| {
        let v = bench_json(&[&["-n", "50", "-c", "4"], args].concat());
        let n = |v: &serde_json::Value| v.as_u64().expect("a number");
        let errors: u64 = v["errors"].as_object().expect("errors").values().map(n).sum();
        assert_eq!((n(&v["requests"]["ok"]), errors, n(&v["latency_us"]["count"])), (50, 0, 50), "{v}");
        assert_eq!(v["statuses"], serde_json::json!({}));
        [n(&v["bytes"]["received"]), n(&v["bytes"]["sent"]), n(&v["connections_made"])]
    };
    assert_eq!(counts(&[&tcp]), [3200, 3200, 4]);
    assert_eq!(counts(&[&tcp, "--size", "100k", "--no-keepalive"]), [50 * 102_400, 50 * 102_400, 50]);
    assert_eq!(
        counts(&[&tcp, "--download", "1m"]),
        [50 << 20, 50 * "forebay down 1048576\n".len() as u64, 4]
    );
    assert_eq!(
        counts(&[&tcp, "--upload", "1m"])[..2],
        [150, 50 * ("forebay up 1048576\n".len() as u64 + (1 << 20))]
    );
    assert_eq!(counts(&[&tcp, "--payload", "PING\\r\\n", "--expect-body", "PING\r\n"]), [300, 300, 4]);
    assert_eq!(counts(&[&udp, "--payload", "hex:00ff", "--answer", "2"]), [100, 100, 4]);
    assert_eq!(counts(&[&udp, "--no-keepalive", "-r", "2000"]), [3200, 3200, 50]);
    assert_eq!(
        bench_json(&["-n", "9", "-c", "1", &tcp, "--payload", "a", "--expect-body", "b"])["errors"]["body"],
        9
    );
}

#[test]
fn loads_of_bytes_have_all_outputs() {
    let (_backend, [tcp, udp]) = backend();
    let dir = tempfile::tempdir().expect("temporary");
    let page = dir.path().join("page").to_string_lossy().into_owned();
    let (code, out, errors) = bench(&["-c", "2", "-d", "300ms", "--html", &page, "--plain", &tcp]);
    assert_eq!(code, 0, "{errors}");
    for part in
        [&tcp, "TCP, 64 bytes there and back, 2 connections", "  sent   ", "  latency\n", "(forebay, pid "]
    {
        assert!(out.contains(part), "{part}: {out}");
    }
    assert!(!out.contains("  status "), "{out}");
    assert!(std::fs::read_to_string(&page).is_ok_and(|page| page.contains("TCP, 64 bytes there and back")));
    let (code, out, errors) = bench(&["-q", "-c", "2", "-d", "300ms", "-r", "500", &udp]);
    assert_eq!(code, 0, "{errors}");
    assert!(out.contains("UDP, 64 bytes there and back") && out.contains("from due"), "{out}");
    let (code, out, _) = bench(&["compare", "--rounds", "4", "--turn", "500ms", "-c", "2", &tcp, &tcp]);
    assert!(code == 0 && out.contains("95 %"), "{out}");
    let site = Site::new(format!(
        "error_log logs/e;\npid logs/p;\nevents {{}}\nstream {{ server {{ listen 127.0.0.1:%PORT0%; proxy_pass {}; }} }}\n",
        tcp.trim_start_matches("tcp://")
    ));
    let (conf, url) =
        (format!("forebay:{}/nginx.conf", site.dir().display()), format!("tcp://{}", site.addr(0)));
    let turns = ["--rounds", "2", "--turn", "500ms", "-c", "2", "--json", "-"];
    let (code, out, errors) =
        bench(&[&["compare", "-q", "--url", &url], &turns[..], &[&conf, &conf]].concat());
    assert!(code == 0 && out.contains("\"rounds\": 2"), "{out} {errors}");
    let secret = dir.path().join("s");
    std::fs::write(&secret, "a secret of more than 16 bytes").expect("write");
    let secret = secret.to_string_lossy().into_owned();
    let (_agent, at) = agent(&[], "127.0.0.1:0", &secret, "127.0.0.1");
    let with = ["-n", "40", "-c", "4", "--agents", &at, "--secret-file", &secret];
    let sum = bench_json(&[&with[..], &[&udp, "--payload", "\\x00a"]].concat());
    assert_eq!((&sum["requests"]["ok"], &sum["bytes"]["received"]), (&40.into(), &80.into()), "{sum}");
}

/// TLS in front of a backend and a plain port, as a user measures a proxy alone.
#[test]
fn bytes_pass_through_a_stream_proxy() {
    let (_backend, [tcp, udp]) = backend();
    let site = Site::new(format!(
        "error_log logs/error.log;\nevents {{}}\nstream {{ ssl_certificate %DIR%/c.crt; ssl_certificate_key %DIR%/c.key;\n\
         server {{ listen 127.0.0.1:%PORT0%; proxy_pass {0}; }}\n\
         server {{ listen 127.0.0.1:%PORT1% ssl; proxy_pass {0}; }}\n\
         server {{ listen 127.0.0.1:%PORT0% udp; proxy_pass {1}; proxy_responses 1; }} }}\n",
        tcp.trim_start_matches("tcp://"),
        udp.trim_start_matches("udp://")
    ));
    self_signed(Kind::Ecdsa, &site.dir().join("c.crt"), &site.dir().join("c.key")).expect("a certificate");
    let server = Server::start_on(site);
    for (scheme, port) in [("tcp", 0), ("tls", 1)] {
        let url = format!("{scheme}://{}", server.addr(port));
        for (more, received) in
            [(&["--download", "300k"][..], 20 * 300 * 1024), (&["--no-keepalive"], 20 * 64)]
        {
            let v = bench_json(&[&["-n", "20", "-c", "2", "--insecure", &url], more].concat());
            assert_eq!(
                (&v["requests"]["ok"], &v["bytes"]["received"]),
                (&20.into(), &received.into()),
                "{v}"
            );
            let handshakes = if scheme == "tls" { v["connections_made"].clone() } else { 0.into() };
            assert_eq!(v["tls"]["handshakes"], handshakes, "{v}");
        }
    }
    let url = format!("udp://{}", server.addr(0));
    for more in [&[][..], &["--no-keepalive"]] {
        let v = bench_json(&[&["-n", "20", "-c", "2", &url], more].concat());
        assert_eq!((&v["requests"]["ok"], &v["bytes"]["received"]), (&20.into(), &(20 * 64).into()), "{v}");
    }
}

/// A reader of the results may leave, as `head` does.
#[test]
fn a_closed_pipe_is_no_failure() {
    let unread = |args: &[&str]| {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = Command::new(program());
        command.arg("bench").args(args).stdout(writer).stderr(Stdio::piped());
        command
    };
    let url = format!("http://{}/", server("127.0.0.1:0"));
    for args in [
        &["compare", "-q", "--rounds", "2", "--turn", "500ms", "-c", "2", &url, &url][..],
        &["matrix", "--parts", "http", "-d", "1s", "-c", "2", "--max-cpus", "1", "--nginx", "/nonexistent"],
        &["ab", "-q", "-n", "4", &url],
        &["wrk", "-t", "1", "-c", "1", "-d", "1s", &url],
        &["wrk", "--help"],
    ] {
        let done = unread(args).output().expect("forebay bench");
        let errors = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(0), "{args:?}: {errors}");
        assert!(!errors.contains("panicked"), "{args:?}: {errors}");
    }
    // An agent serves without a reader of its address.
    let dir = tempfile::tempdir().expect("temporary");
    let secret = dir.path().join("s");
    std::fs::write(&secret, "a secret of more than 16 bytes").expect("write");
    let at = format!("127.0.0.1:{}", free_port());
    let secret = secret.to_string_lossy().into_owned();
    let args = ["agent", "--listen", &at, "--secret-file", &secret, "--allow", "127.0.0.1"];
    let _agent = Started(unread(&args).spawn().expect("agent"));
    wait_for("the agent", || TcpStream::connect(&at).ok());
}
