//! `forebay tune` with a real server.

use crate::alone;
use forebay_testkit::{Signal, Site, kill, program, wait_for, wait_until};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

const BAD: &str = "# my server\nworker_processes 1;\nevents { worker_connections 512; }\nhttp {\n    # disk was slow once\n    \
                   sendfile off;          # since 2019\n    keepalive_requests 1;\n    server {\n        listen 80;   # public\n    \
                   root ROOT;\n    }\n}\n";

fn site() -> Site {
    let site = Site::new("events {}\n");
    site.write("nginx.conf", BAD.replace("ROOT", &site.dir().display().to_string()));
    site
}

fn tune(site: &Site, more: &[&str]) -> Command {
    let dir = site.dir();
    let mut c = Command::new(program());
    c.arg("tune").arg("-c").arg(dir.join("nginx.conf")).arg("--out").arg(dir.join("out"));
    c.arg("--state").arg(dir.join("state")).args(["--static-size", "2k", "--connections", "8"]).args(more);
    c.stdin(Stdio::null());
    c
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn a_bad_configuration_gets_better_and_comes_back() {
    let _machine = alone();
    let site = site();
    let conf = site.dir().join("nginx.conf");
    let before = read(&conf);
    // A search holds in most cases, not in all: a neighbour can take the machine for as long as one lasts.
    let (mut said, mut result) = (String::new(), serde_json::Value::Null);
    let mut seed = "";
    for next in ["1", "2", "3"] {
        seed = next;
        let only = ["--only", "sendfile,keepalive_requests", "--budget", "45s", "--apply", "--seed", seed];
        let output = tune(&site, &only).output().expect("runs");
        said = text(&output);
        assert!(output.status.success(), "{said}");
        result = serde_json::from_str(&read(&site.dir().join("out/result.json"))).expect("JSON");
        if result["proven"] == true {
            break;
        }
        assert_eq!(read(&conf), before, "what is not proven is not applied");
    }
    assert_eq!(result["proven"], true, "{said}");
    assert!(result["gain"]["low"].as_f64().expect("a number") > 0.0, "{said}");
    // Where the time was over, as on a slow machine, that is said.
    let pairs = |result: &serde_json::Value| result["half_load"]["pairs"].as_u64();
    let checked = said.contains("At half of the load (") && pairs(&result) >= Some(3);
    let late =
        said.contains("Not checked at half of the load: the time was over") && pairs(&result).is_none();
    assert!(checked || late, "{said}");
    let tuned = read(&site.dir().join("out/tuned.conf"));
    for part in [
        "# my server\n",
        "    # disk was slow once\n",
        "# since 2019",
        "listen 80;   # public",
        "keepalive_requests 100",
    ] {
        assert!(tuned.contains(part), "{part}: {tuned}");
    }
    assert_eq!(read(&conf), tuned);
    let unit = read(&site.dir().join("out/nginx.service.d/forebay.conf"));
    assert!(unit.contains("[Service]") && unit.contains("LimitNOFILE=1024"), "{unit}");
    for name in ["report.html", "rejected.md", "tuned.patch", "runs.jsonl"] {
        assert!(!read(&site.dir().join("out").join(name)).is_empty(), "{name}");
    }
    let output = tune(&site, &["--rollback"]).output().expect("runs");
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!(read(&conf), before);
    // The same runs give the same result without a server.
    let more = ["--only", "sendfile,keepalive_requests", "--budget", "45s", "--resume", "--seed", seed];
    let output = tune(&site, &more).output().expect("runs");
    assert!(output.status.success(), "{}", text(&output));
    let again: serde_json::Value =
        serde_json::from_str(&read(&site.dir().join("out/result.json"))).expect("JSON");
    assert_eq!(again["gain"], result["gain"]);
    // What the check still lacked it may have got.
    assert!(pairs(&again) >= pairs(&result), "{again:#}");
    if pairs(&again) == Some(4) && pairs(&result) == Some(4) {
        // Text loses the last bit of others.
        let p99 = |result: &serde_json::Value| result["half_load"]["after"]["p99_ns"].clone();
        assert_eq!(p99(&again), p99(&result));
    }
    assert_eq!(read(&conf), before);
    // Nor is it applied when half of the load shows that it is worse there; as by these runs.
    let log = site.dir().join("out/runs.jsonl");
    let lines: Vec<serde_json::Value> =
        read(&log).lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
    let search: Vec<_> = lines.iter().filter(|l| l["half_load"].is_null()).collect();
    let moved = |l: &&&serde_json::Value| l["point"].as_array().is_some_and(|p| p.iter().any(|l| *l != 0));
    let best = search.iter().rfind(moved).expect("a run of the final configuration")["point"].clone();
    let rate = said.split("-- half of the load: ").nth(1).and_then(|t| t.split(' ').next());
    let rate: f64 = rate.expect("a rate").parse().expect("a number");
    let half = [0, 1, 1, 0, 1, 0, 0, 1].map(|tuned| {
        let base = vec![0; best.as_array().map_or(0, Vec::len)];
        let point = if tuned == 1 { best.clone() } else { serde_json::json!(base) };
        serde_json::json!({"half_load": rate, "point": point, "rate": rate, "p50": 1000, "p99": 2000 + 3000 * tuned,
                           "cpu": 50.0, "memory": 1, "errors": 0})
    });
    let put = |lines: &[serde_json::Value]| {
        let lines = search.iter().copied().chain(lines);
        std::fs::write(&log, lines.map(|l| format!("{l}\n")).collect::<String>()).expect("written");
    };
    put(&half);
    let output = tune(&site, &[&more[..], &["--apply"]].concat()).output().expect("runs");
    let said = text(&output);
    assert!(
        said.contains("Not applied: at half of the load the tuned configuration is worse: p99 is 2.50"),
        "{said}"
    );
    assert!(read(&site.dir().join("out/report.html")).contains("But at half of the load"));
    // ^C in the check keeps the gain.
    put(&[]);
    let mut run = tune(&site, &more).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("starts");
    let mut lines = BufReader::new(run.stdout.take().expect("piped")).lines().map_while(Result::ok);
    assert!(lines.any(|l| l.starts_with("-- half of the load")));
    kill(run.id() as i32, Signal::SIGINT);
    let said: Vec<String> = lines.collect();
    assert_eq!(run.wait().expect("ends").code(), Some(130));
    assert!(said.iter().any(|l| l == "Not checked at half of the load: it was interrupted."), "{said:#?}");
    let kept: serde_json::Value =
        serde_json::from_str(&read(&site.dir().join("out/result.json"))).expect("JSON");
    assert_eq!((&kept["gain"], &kept["proven"]), (&result["gain"], &result["proven"]));
    assert_eq!(read(&conf), before);
}

#[test]
fn the_load_is_a_part_of_the_capacity_and_stays_so() {
    let _machine = alone();
    let site = site();
    // What it says of the load and of the first run, ended by ^C after that.
    let said = |more: &[&str]| {
        let args = [&["--load", "50%", "--budget", "60s", "--only", "keepalive_requests"], more].concat();
        let mut run =
            tune(&site, &args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("starts");
        let mut lines = BufReader::new(run.stdout.take().expect("piped")).lines().map_while(Result::ok);
        let mut line =
            |start: &str| lines.find(|l| l.starts_with(start)).unwrap_or_else(|| panic!("no {start}"));
        let said = (line("capacity: "), line("As it is: "), line("   2/"));
        kill(run.id() as i32, Signal::SIGINT);
        for _ in lines {}
        assert_eq!(run.wait().expect("ends").code(), Some(130));
        said
    };
    let number = |text: &str, after: &str| {
        let rest = text.split(after).nth(1).unwrap_or_else(|| panic!("{text}"));
        rest.split(' ').next().and_then(|n| n.parse::<f64>().ok()).unwrap_or_else(|| panic!("{text}"))
    };
    let (capacity, first, _) = said(&[]);
    let (all, rate) = (number(&capacity, "capacity: "), number(&capacity, "fixed at 50 % of it: "));
    assert!((rate - all / 2.0).abs() <= 1.0, "{capacity}");
    // The arrivals of a short run are chance.
    let sent = number(&first, "As it is: ");
    assert!(sent > 0.5 * rate && sent < 1.5 * rate, "{capacity}, {first}");
    assert_eq!(said(&["--resume"]).0, capacity);
    let other =
        tune(&site, &["--budget", "60s", "--only", "keepalive_requests", "--resume"]).output().expect("runs");
    assert!(text(&other).contains("is of another tuning"), "{}", text(&other));
    let output = tune(&site, &["--load", "87%", "--for", "throughput"]).output().expect("runs");
    assert!(text(&output).contains("--load fixes the requests a second"), "{}", text(&output));
}

#[test]
fn servers_are_loaded_over_http3() {
    let _machine = alone();
    let site = site();
    let refused = tune(&site, &["--http3"]).output().expect("runs");
    assert!(text(&refused).contains("--http3 needs a server with a listen with quic"), "{}", text(&refused));
    let words = "req -x509 -newkey rsa:2048 -nodes -keyout k -out c -days 30 -subj /CN=localhost";
    let made =
        Command::new("openssl").args(words.split(' ')).current_dir(site.dir()).output().expect("openssl");
    assert!(made.status.success(), "{}", text(&made));
    // A port for QUIC alone accepts no connection over TCP.
    let listens =
        "listen 443 quic; listen 443 ssl; listen 8443 quic; ssl_certificate c; ssl_certificate_key k;";
    site.write("nginx.conf", BAD.replace("listen 80;   # public", listens).replace("ROOT", "html"));
    let mut run = tune(&site, &["--http3", "--budget", "60s"]);
    let mut run = run.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("starts");
    let mut lines = BufReader::new(run.stdout.take().expect("piped")).lines().map_while(Result::ok);
    let mut line = |start: &str| lines.find(|l| l.starts_with(start)).unwrap_or_else(|| panic!("no {start}"));
    let tried = line("Trying ");
    assert!(tried.contains("quic_congestion_control") && !tried.contains("tcp_nodelay"), "{tried}");
    let first = line("As it is: ");
    let rate: u32 = first.split(' ').nth(3).and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{first}"));
    assert!(rate > 0, "{first}");
    kill(run.id() as i32, Signal::SIGINT);
    for _ in lines {}
    assert_eq!(run.wait().expect("ends").code(), Some(130));
}

#[test]
fn mistakes_are_told() {
    let site = site();
    site.write("nginx.conf", "events {}\nhttp { servr {} }\n");
    let output = tune(&site, &[]).output().expect("runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains("unknown directive \"servr\" in "), "{}", text(&output));
    // What answers nothing but errors says so, and leaves no private copy.
    site.write(
        "nginx.conf",
        "events {}\nhttp { server { listen 80; location / { proxy_pass http://a; return 503; } } }\n",
    );
    let output = tune(&site, &[]).output().expect("runs");
    let said = text(&output);
    assert!(
        output.status.code() == Some(1) && said.contains("nothing to ask for") && said.contains("503"),
        "{said}"
    );
    assert!(!site.dir().join("state/copy").exists());
    site.write("nginx.conf", BAD);
    let output = tune(&site, &["--program", "/bin/false"]).output().expect("runs");
    assert!(text(&output).contains("/bin/false -t fails without a word"), "{}", text(&output));
    let output = tune(&site, &["--only", "nonsense"]).output().expect("runs");
    assert!(text(&output).contains("no setting \"nonsense\""), "{}", text(&output));
    let output = tune(&site, &["--rollback"]).output().expect("runs");
    assert!(text(&output).contains("nothing to undo"), "{}", text(&output));
    let table =
        Command::new(program()).args(["tune", "table", "--loads", "nonsense"]).output().expect("runs");
    assert!(
        table.status.code() == Some(1) && text(&table).contains("no load \"nonsense\""),
        "{}",
        text(&table)
    );
}

#[test]
fn the_list_shows_settings_as_they_would_be_written() {
    let output = Command::new(program()).args(["tune", "--list"]).output().expect("runs");
    let said = text(&output);
    assert!(!said.contains('{') && said.contains("is a kernel setting"), "{said}");
}

#[test]
fn one_tuner_at_a_time_and_a_killed_one_leaves_nothing() {
    let _machine = alone();
    let site = site();
    let root = site.dir().join("sys");
    std::fs::create_dir_all(root.join("net/ipv4")).expect("made");
    let file = root.join("net/ipv4/tcp_slow_start_after_idle");
    std::fs::write(&file, "1\n").expect("written");
    let root = root.display().to_string();
    let args = ["--sysctl", "--sysctl-root", &root, "--only", "tcp_slow_start_after_idle", "--budget", "60s"];
    let mut first = tune(&site, &args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("starts");
    let mut lines = BufReader::new(first.stdout.take().expect("piped")).lines();
    assert!(lines.any(|l| l.is_ok_and(|l| l.starts_with("-- noise"))));
    let output = tune(&site, &["--budget", "30s"]).output().expect("runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains("another tuner runs"), "{}", text(&output));
    wait_for("a changed setting", || std::fs::read_to_string(&file).ok().filter(|t| t.trim() == "0"));
    let server: i32 = read(&site.dir().join("state/copy/server.pid")).trim().parse().expect("a pid");
    kill(first.id() as i32, Signal::SIGKILL);
    let _ = first.wait();
    // Somebody beside it puts the setting back, and ends the server that was left, without a next start.
    wait_until("the old setting", || read(&file).trim() == "1");
    wait_for("the end of the server that was left", || {
        let stat = std::fs::read_to_string(format!("/proc/{server}/stat")).unwrap_or_default();
        (stat.is_empty() || stat.contains(") Z ")).then_some(())
    });
    assert!(!site.dir().join("state/journal").exists());
    // And a next start works.
    let mut next = tune(&site, &["--budget", "30s"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("starts");
    let mut lines = BufReader::new(next.stdout.take().expect("piped")).lines();
    assert!(lines.any(|l| l.is_ok_and(|l| l.starts_with("-- noise"))));
    kill(next.id() as i32, Signal::SIGINT);
    assert_eq!(next.wait().expect("ends").code(), Some(130));
}

#[test]
fn a_kill_at_any_moment_leaves_kernel_settings_as_they_were() {
    let _machine = alone();
    let site = site();
    let root = site.dir().join("sys");
    std::fs::create_dir_all(root.join("net/ipv4")).expect("made");
    std::fs::create_dir_all(root.join("net/core")).expect("made");
    let files = [
        (root.join("net/ipv4/tcp_slow_start_after_idle"), "1"),
        (root.join("net/ipv4/tcp_notsent_lowat"), "4294967295"),
        (root.join("net/core/netdev_max_backlog"), "1000"),
    ];
    for (file, value) in &files {
        std::fs::write(file, format!("{value}\n")).expect("written");
    }
    let root = root.display().to_string();
    let only = "tcp_slow_start_after_idle,tcp_notsent_lowat,netdev_max_backlog,sendfile";
    let args = ["--sysctl", "--sysctl-root", &root, "--only", only, "--budget", "60s"];
    let conf = read(&site.dir().join("nginx.conf"));
    // Moments as they come: after so many lines of output.
    for lines in [4, 12, 19, 26] {
        let mut run =
            tune(&site, &args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("starts");
        let out = BufReader::new(run.stdout.take().expect("piped")).lines();
        assert_eq!(out.take(lines).count(), lines);
        kill(run.id() as i32, Signal::SIGKILL);
        let _ = run.wait();
        for (file, value) in &files {
            wait_until("the old setting", || read(file).trim() == *value);
        }
        wait_until("the journal's end", || !site.dir().join("state/journal").exists());
        assert_eq!(read(&site.dir().join("nginx.conf")), conf);
    }
}
