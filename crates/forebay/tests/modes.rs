//! Modes of all that a daemon makes: it has no umask.

use forebay_testkit::{DEADLINE, Signal, Site, alive, ask, kill, program, wait_for, wait_until};
use std::collections::BTreeSet;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::process::Stdio;

const CONF: &str = "user root; pid logs/nginx.pid; error_log logs/error.log; worker_processes 1; events {}
http {
    access_log logs/access.log; log_format short $uri;
    client_body_temp_path temp/body; proxy_temp_path temp/proxy; fastcgi_temp_path temp/fastcgi;
    uwsgi_temp_path temp/uwsgi; scgi_temp_path temp/scgi;
    proxy_cache_path cache levels=1:2 keys_zone=z:1m use_temp_path=off;
    proxy_cache_path moved levels=1:2 keys_zone=y:1m;
    server {
        listen 127.0.0.1:%PORT0%; listen unix:%DIR%/web.sock; root html;
        location /body { client_body_in_file_only on; proxy_pass http://127.0.0.1:%PORT0%/origin; }
        location /cached { proxy_cache z; proxy_cache_valid 1h; proxy_pass http://127.0.0.1:%PORT0%/origin; }
        location /moved { proxy_cache y; proxy_cache_valid 1h; proxy_pass http://127.0.0.1:%PORT0%/origin; }
        location /stored/ { proxy_store %DIR%/stored$uri; proxy_pass http://127.0.0.1:%PORT0%/origin; }
        location /shared/ { proxy_store %DIR%/stored$uri; proxy_store_access group:r all:r; proxy_pass http://127.0.0.1:%PORT0%/origin; }
        location /dav/ { dav_methods PUT MKCOL COPY; create_full_put_path on; root upload; }
        location /all/ { dav_methods PUT MKCOL; dav_access group:rw all:r; create_full_put_path on; root upload; }
        location /named { access_log logs/$host.log short; return 204; }
        location /origin { return 200 text; }
    }
}
";

/// Starts the program as a daemon, has it make one of each, and gives for each place what is there: kind and mode, by depth.
fn made_by(program: &str) -> BTreeSet<String> {
    let site = Site::new(CONF);
    for name in ["temp", "upload", "stored"] {
        std::fs::create_dir(site.dir().join(name)).expect("directory");
    }
    let started =
        site.command(program, &["-e", "logs/error.log"]).stdin(Stdio::null()).stderr(Stdio::null()).status();
    assert!(started.expect("starts").success(), "{program}: {}", site.read("logs/error.log"));
    let pid = wait_for("a pid file", || site.pid_in_file());
    wait_for("a server", || std::net::TcpStream::connect(site.addr(0)).ok());
    let body = "Host: name\r\nContent-Length: 4\r\nConnection: close\r\n\r\ntext";
    let send = |line: &str, rest: &str, status: &str| {
        let answer = ask(site.addr(0), format!("{line} HTTP/1.1\r\n{rest}"));
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{program}: {line}: {answer}");
    };
    for line in ["POST /body", "GET /cached", "GET /moved", "GET /stored/a/b", "GET /shared/a/b"] {
        send(line, body, "200");
    }
    send("PUT /dav/a/b", body, "201");
    send("PUT /all/a/b", body, "201");
    send("GET /named", body, "204");
    let head = "Host: name\r\nConnection: close\r\n";
    send("MKCOL /dav/made/", &format!("{head}\r\n"), "20");
    send("COPY /dav/a/b", &format!("{head}Destination: /dav/copy\r\n\r\n"), "20");
    let mut all = BTreeSet::new();
    // Files of caches and the like appear when the answer has left.
    let end = std::time::Instant::now() + DEADLINE;
    let late = ["cache/*/*/*", "moved/*/*/*", "stored/stored/*/*", "stored/shared/*/*", "temp/*/*"];
    let is_there = |all: &BTreeSet<String>, place: &str| {
        all.iter().any(|line| line.starts_with(&format!("{place} file")))
    };
    while !late.iter().all(|place| is_there(&all, place)) {
        assert!(std::time::Instant::now() < end, "{program}: {all:#?}");
        all.clear();
        for place in ["temp", "cache", "moved", "stored", "upload", "logs"] {
            look(&site.dir().join(place), place, &mut all);
        }
    }
    look(&site.dir().join("web.sock"), "web.sock", &mut all);
    kill(pid, Signal::SIGTERM);
    wait_until("the end", || !alive(pid));
    all
}

fn look(path: &Path, name: &str, all: &mut BTreeSet<String>) {
    let Ok(meta) = path.symlink_metadata() else { return };
    let kind = match meta.file_type() {
        kind if kind.is_dir() => "directory",
        kind if kind.is_socket() => "socket",
        _ => "file",
    };
    all.insert(format!("{name} {kind} {:o}", meta.permissions().mode() & 0o7777));
    for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
        let own = entry.file_name().to_string_lossy().into_owned();
        // Names that the test has chosen.
        let kept = ["dav", "all", "stored", "shared", "copy", "made"].contains(&&*own)
            || own.ends_with(".log")
            || own.ends_with(".pid");
        look(&entry.path(), &format!("{name}/{}", if kept { &own } else { "*" }), all);
    }
}

#[test]
fn files_of_a_daemon_have_the_modes_of_nginx() {
    // Inherited by the programs: with another one a mistake would hide in the foreground.
    let ours = made_by(program());
    let lines = "temp/*/* file 600|temp/* directory 700|cache/*/*/* file 600|cache/* directory 700|cache/*/* directory 700|\
                 moved/*/*/* file 600|stored/stored directory 700|stored/stored/* directory 700|stored/stored/*/* file 600|\
                 stored/shared/*/* file 644|stored/shared/* directory 755|upload/dav/*/* file 600|upload/dav/* directory 700|\
                 upload/all/* directory 775|logs/name.log file 644|logs/nginx.pid file 644|web.sock socket 666";
    for line in lines.split('|') {
        assert!(ours.contains(line), "{line}: {ours:#?}");
    }
    let Ok(nginx) = std::env::var("FOREBAY_TEST_NGINX") else {
        return println!("skipped: FOREBAY_TEST_NGINX names no nginx");
    };
    assert_eq!(ours, made_by(&nginx));
}
