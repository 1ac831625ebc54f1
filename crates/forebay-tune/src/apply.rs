//! Puts proven lines into the user's files, and takes them out again.

use forebay_copy::patch::{self, Edit, Source};
use forebay_core::control::Failure;
use forebay_core::control::blocking::{Address, Connection, Patience};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

fn replace(path: &Path, bytes: &[u8]) -> Result<(), String> {
    use std::os::unix::fs::MetadataExt;
    let say = |e: std::io::Error| format!("{}: {e}", path.display());
    // A link continues to point to the file that is written.
    let path = std::fs::canonicalize(path).map_err(say)?;
    let meta = std::fs::metadata(&path).map_err(say)?;
    let mut file = tempfile::NamedTempFile::new_in(path.parent().unwrap_or(Path::new("/"))).map_err(say)?;
    file.write_all(bytes).map_err(say)?;
    file.as_file().set_permissions(meta.permissions()).map_err(say)?;
    let _ = std::os::unix::fs::fchown(file.as_file(), Some(meta.uid()), Some(meta.gid()));
    file.as_file().sync_all().map_err(say)?;
    file.persist(&path).map_err(|e| say(e.error))?;
    Ok(())
}

/// The server whose configuration is changed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Server<'a> {
    /// Executable.
    pub program: &'a Path,
    /// Prefix, if not its own.
    pub prefix: Option<&'a Path>,
    /// Configuration.
    pub conf: &'a Path,
}

impl Server<'_> {
    /// Runs the program with the configuration and further arguments.
    fn run(&self, more: &[&str]) -> Result<(), String> {
        let mut c = Command::new(self.program);
        if let Some(p) = self.prefix {
            c.arg("-p").arg(p);
        }
        let out = c.arg("-c").arg(self.conf).args(more).output();
        let out = out.map_err(|e| format!("{}: {e}", self.program.display()))?;
        if out.status.success() {
            Ok(())
        } else {
            Err(String::from_utf8_lossy(&out.stderr).trim().to_owned())
        }
    }

    fn reload(&self) -> Result<(), String> {
        self.run(&["-s", "reload"])
    }
}

/// Replaces the files that `edits` change, tests, reloads, and watches for `canary` whether the server still answers
/// where it answered before. Puts the old files back if the test or the canary fails.
///
/// # Errors
/// The server's words, a file that could not be written, or an address that answers no more. A server that does not run
/// is no error.
pub(crate) fn apply(
    source: &Source,
    edits: &[Edit],
    out: &Path,
    server: &Server<'_>,
    canary: Duration,
) -> Result<(), String> {
    let before = Canary::before(source);
    install(source, edits, out, server)?;
    let reloaded = server.reload();
    if before.answering.is_empty() {
        if let Err(text) = reloaded {
            say!("Not reloaded (does the server run?): {text}");
        }
        return Ok(());
    }
    let reloaded = reloaded.map_err(|text| format!("it does not reload: {text}"));
    if let Err(text) = reloaded.and_then(|()| before.survives(canary)) {
        rollback(out)?;
        return Err(format!("the running server did not take the tuned configuration well: {text}"));
    }
    let addresses: Vec<String> = before.answering.iter().map(ToString::to_string).collect();
    say!("It still answers at {}.", addresses.join(", "));
    Ok(())
}

/// Replaces the files that `edits` change. Puts the old files back if the test fails.
fn install(source: &Source, edits: &[Edit], out: &Path, server: &Server<'_>) -> Result<(), String> {
    let changed = patch::changed(source, edits);
    back_up(source, &changed, out, server)?;
    for (path, new) in &changed {
        replace(path, new)?;
    }
    if let Err(text) = server.run(&["-t"]) {
        rollback(out)?;
        return Err(format!("the tuned configuration is refused, the old one is back: {text}"));
    }
    Ok(())
}

/// Keeps old and new files in `out`, with a note for [`rollback`].
fn back_up(
    source: &Source,
    changed: &BTreeMap<PathBuf, Vec<u8>>,
    out: &Path,
    server: &Server<'_>,
) -> Result<(), String> {
    let backup = out.join("backup");
    let say = |e: std::io::Error| format!("{}: {e}", backup.display());
    std::fs::create_dir_all(&backup).map_err(say)?;
    let mut list = Vec::new();
    for (i, (path, new)) in changed.iter().enumerate() {
        let old = read_unchanged(source, path)?;
        std::fs::write(backup.join(format!("{i}.old")), &old).map_err(say)?;
        std::fs::write(backup.join(format!("{i}.new")), new).map_err(say)?;
        list.push(path.display().to_string());
    }
    let Server { program, prefix, conf } = server;
    let note = json!({"files": list, "conf": conf, "program": program, "prefix": prefix});
    std::fs::write(out.join("applied.json"), format!("{note:#}\n")).map_err(say)
}

/// Reads a file of the configuration again, which has to be as it was.
fn read_unchanged(source: &Source, path: &Path) -> Result<Vec<u8>, String> {
    let old = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let known = source.files.iter().find(|(_, p, _)| *p == path).map(|(_, _, b)| b);
    if known != Some(old.as_slice()) {
        return Err(format!("{} has changed since it was read; nothing was applied", path.display()));
    }
    Ok(old)
}

/// Length of `HTTP/1.1 200`.
const STATUS: usize = 12;

/// Addresses of the running server, tried before and after.
struct Canary {
    answering: Vec<SocketAddr>,
}

/// Requests `/` at an address. Returns the status, or 0 for any other answer (TLS, other protocols).
fn answer(at: SocketAddr) -> Result<u16, String> {
    let say = |e: std::io::Error| format!("{at}: {e}");
    let patience = Patience::Each(Duration::from_secs(3));
    let mut connection = Connection::open(&Address::Inet(at), patience).map_err(say)?;
    let request = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    connection.request(request).map_err(|failure| match failure {
        Failure::Send(e) => say(e),
        other => format!("{at}: {other:?}"),
    })?;
    let start = connection.beginning(STATUS).map_err(say)?;
    if start.is_empty() {
        return Err(format!("{at}: closed without an answer"));
    }
    let text = String::from_utf8_lossy(&start);
    Ok(text.strip_prefix("HTTP/1.").and_then(|t| t.get(2..5)?.parse().ok()).unwrap_or(0))
}

impl Canary {
    /// Finds the addresses of a configuration that answer now. Uses the loopback for one that stands for all interfaces.
    fn before(source: &Source) -> Canary {
        let view = source.view();
        let mut answering = Vec::new();
        for n in view.all("listen") {
            let args = view.args(n);
            let Some(address) = args.first().filter(|a| !a.starts_with("unix:")) else { continue };
            if args.iter().any(|a| a == "quic" || a == "udp") {
                continue;
            }
            let Ok(mut at) = patch::normal(address).parse::<SocketAddr>() else { continue };
            if at.ip().is_unspecified() {
                at.set_ip(if at.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() });
            }
            if !answering.contains(&at) && answer(at).is_ok_and(|status| status < 500) {
                answering.push(at);
            }
        }
        Canary { answering }
    }

    /// Checks for a time that all of them go on answering.
    fn survives(&self, time: Duration) -> Result<(), String> {
        let until = Instant::now() + time;
        loop {
            for at in &self.answering {
                check(*at)?;
            }
            if Instant::now() >= until || forebay_bench::signals::interrupted() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(250));
        }
    }
}

/// Checks that an address answers. One failure may have another cause; two in a row are the configuration's.
fn check(at: SocketAddr) -> Result<(), String> {
    let mut last = answer(at);
    if !matches!(last, Ok(status) if status < 500) {
        std::thread::sleep(Duration::from_millis(200));
        last = answer(at);
    }
    match last? {
        status if status < 500 => Ok(()),
        status => Err(format!("{at} answers {status}")),
    }
}

/// Puts the files back that [`apply`] replaced, and reloads.
///
/// # Errors
/// There is nothing to undo, or a file was changed since.
pub(crate) fn rollback(out: &Path) -> Result<(), String> {
    let file = out.join("applied.json");
    let note: Value = std::fs::read(&file)
        .ok()
        .and_then(|b| serde_json::from_slice(&b).ok())
        .ok_or_else(|| format!("nothing to undo: there is no {}", file.display()))?;
    for (path, old) in old_files(&note, out)? {
        replace(&path, &old)?;
    }
    let _ = std::fs::remove_file(&file);
    let (Some(program), Some(conf)) = (note["program"].as_str(), note["conf"].as_str()) else {
        return Ok(());
    };
    let prefix = note["prefix"].as_str().map(Path::new);
    let server = Server { program: Path::new(program), prefix, conf: Path::new(conf) };
    if let Err(text) = server.reload() {
        say!("Not reloaded (does the server run?): {text}");
    }
    say!("The old configuration is back.");
    Ok(())
}

/// Returns the files of a note with their old bytes. All of them are read before any is replaced.
fn old_files(note: &Value, out: &Path) -> Result<Vec<(PathBuf, Vec<u8>)>, String> {
    let read = |p: &Path| std::fs::read(p).map_err(|e| format!("{}: {e}", p.display()));
    let files = note["files"].as_array().into_iter().flatten().filter_map(|f| f.as_str().map(PathBuf::from));
    let mut all = Vec::new();
    for (i, path) in files.enumerate() {
        let kept = out.join(format!("backup/{i}.old"));
        let now = read(&path)?;
        let old = read(&kept)?;
        let new = read(&out.join(format!("backup/{i}.new")))?;
        if now != new && now != old {
            return Err(format!(
                "{} was changed after --apply; the old one is {}",
                path.display(),
                kept.display()
            ));
        }
        all.push((path, old));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::TcpListener;
    use std::os::unix::fs::PermissionsExt;

    /// A server that answers until `stop` exists, then closes; and a program whose reload makes `stop` when `harms`.
    fn site(harms: bool) -> (tempfile::TempDir, Source, PathBuf) {
        let dir = tempfile::tempdir().expect("dir");
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let port = listener.local_addr().expect("address").port();
        let stop = dir.path().join("stop");
        let sign = stop.clone();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut buf = [0; 1024];
                let _ = stream.read(&mut buf);
                if !sign.exists() {
                    let _ = stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
                }
            }
        });
        let conf = dir.path().join("n.conf");
        let text = format!("events {{}}\nhttp {{ sendfile off; server {{ listen 127.0.0.1:{port}; }} }}\n");
        std::fs::write(&conf, text).expect("written");
        let program = dir.path().join("server");
        let act = if harms { format!("touch {}", stop.display()) } else { "true".into() };
        // Put back, it answers again.
        let heal = format!("grep -q 'sendfile off' {} && rm -f {}", conf.display(), stop.display());
        let script = format!("#!/bin/sh\ncase \"$*\" in *reload*) {act}; {heal}; exit 0;; esac\n");
        std::fs::write(&program, script).expect("written");
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("set");
        let source = Source::read(&conf).expect("parses");
        (dir, source, program)
    }

    fn edits(source: &Source) -> Vec<Edit> {
        let view = source.view();
        let n = view.all("sendfile").next().expect("there");
        vec![view.replace(n, "sendfile on;")]
    }

    #[test]
    fn a_server_that_stops_answering_gets_the_old_files_back() {
        for harms in [false, true] {
            let (dir, source, program) = site(harms);
            let before = std::fs::read_to_string(&source.path).expect("there");
            let out = dir.path().join("out");
            std::fs::create_dir(&out).expect("made");
            let server = Server { program: &program, prefix: None, conf: &source.path };
            let done = apply(&source, &edits(&source), &out, &server, Duration::from_millis(300));
            let after = std::fs::read_to_string(&source.path).expect("there");
            if harms {
                let text = done.expect_err("noticed");
                assert!(text.contains("closed without an answer") && after == before, "{text}: {after}");
                assert!(!out.join("applied.json").exists());
            } else {
                assert_eq!(done, Ok(()));
                assert!(after.contains("sendfile on;"), "{after}");
            }
        }
    }
}
