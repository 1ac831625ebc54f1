//! A FastCGI server whose every answer a test chooses, and PHP's.

use crate::{free_port, wait_for};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// A record, with padding.
pub fn record(kind: u8, content: &[u8], padding: u8) -> Vec<u8> {
    let [high, low] = u16::try_from(content.len()).expect("it fits").to_be_bytes();
    let mut out = vec![1, kind, 0, 1, high, low, padding, 0];
    out.extend_from_slice(content);
    out.resize(out.len() + usize::from(padding), 0);
    out
}

/// Output of the program.
pub fn stdout(text: &str) -> Vec<u8> {
    record(6, text.as_bytes(), 0)
}

/// Words of the program for the error log.
pub fn stderr(text: &str) -> Vec<u8> {
    record(7, text.as_bytes(), 0)
}

/// The end of an answer.
pub fn end() -> Vec<u8> {
    [record(6, b"", 0), record(3, &[0; 8], 0)].concat()
}

/// A whole answer.
pub fn answer(text: &str) -> Vec<u8> {
    [stdout(text), end()].concat()
}

/// A request as it came.
pub struct Asked {
    /// Parameters in their order.
    pub params: Vec<(String, String)>,
    /// Content.
    pub stdin: Vec<u8>,
    /// The connection is to stay open.
    pub keep: bool,
    /// Number of the connection, from 1, and of the request on it.
    pub connection: (usize, usize),
    /// The socket it came by.
    pub stream: Box<dyn Stream>,
}

/// A socket.
pub trait Stream: Read + Write + Send {
    /// Breaks it off with a reset when it is closed.
    fn reset(&self);
}

impl Stream for TcpStream {
    fn reset(&self) {
        let _ = rustix::net::sockopt::set_socket_linger(self, Some(Duration::ZERO));
    }
}

impl Stream for UnixStream {
    fn reset(&self) {}
}

impl Asked {
    /// Value of a parameter, empty if there is none.
    pub fn get(&self, name: &str) -> &str {
        self.params.iter().find(|(n, _)| n == name).map_or("", |(_, v)| v)
    }

    /// Writes bytes; a client that is gone is no error.
    pub fn write(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }
}

/// Reads a request: parameters, content and whether the connection is to be kept. `None` at the end of the connection.
fn read(stream: &mut dyn Stream) -> Option<(Vec<u8>, Vec<u8>, bool)> {
    let (mut params, mut stdin, mut keep) = (Vec::new(), Vec::new(), false);
    loop {
        let mut header = [0; 8];
        stream.read_exact(&mut header).ok()?;
        assert_eq!((header[0], header[2], header[3]), (1, 0, 1), "version and number of the request");
        let mut content = vec![0; usize::from(u16::from_be_bytes([header[4], header[5]]))];
        stream.read_exact(&mut content).ok()?;
        let mut padding = vec![0; usize::from(header[6])];
        stream.read_exact(&mut padding).ok()?;
        match header[1] {
            1 => keep = content[2] == 1,
            4 => params.extend(content),
            5 if content.is_empty() => return Some((params, stdin, keep)),
            5 => stdin.extend(content),
            other => panic!("a record of type {other}"),
        }
    }
}

fn pairs(mut bytes: &[u8]) -> Vec<(String, String)> {
    fn length(bytes: &mut &[u8]) -> usize {
        let short = bytes[0] < 128;
        let (len, rest) = bytes.split_at(if short { 1 } else { 4 });
        *bytes = rest;
        if short {
            len[0].into()
        } else {
            u32::from_be_bytes([len[0] & 127, len[1], len[2], len[3]]) as usize
        }
    }
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let (name, value) = (length(&mut bytes), length(&mut bytes));
        let (pair, rest) = bytes.split_at(name + value);
        bytes = rest;
        let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
        all.push((text(&pair[..name]), text(&pair[name..])));
    }
    all
}

type Answer = Arc<dyn Fn(&mut Asked) + Send + Sync>;

fn serve(mut stream: Box<dyn Stream>, number: usize, answer: &Answer) {
    for request in 1.. {
        let Some((params, stdin, keep)) = read(&mut *stream) else { return };
        let mut asked = Asked { params: pairs(&params), stdin, keep, connection: (number, request), stream };
        answer(&mut asked);
        if !keep {
            return;
        }
        stream = asked.stream;
    }
}

/// Starts one on a port; `answer` is called for each request.
pub fn start(answer: impl Fn(&mut Asked) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let addr = listener.local_addr().expect("address");
    let (answer, count): (Answer, _) = (Arc::new(answer), AtomicUsize::new(0));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (answer, n) = (answer.clone(), count.fetch_add(1, Ordering::SeqCst) + 1);
            let _ = stream.set_nodelay(true);
            let _ = stream.set_read_timeout(Some(Duration::from_secs(60)));
            std::thread::spawn(move || serve(Box::new(stream), n, &answer));
        }
    });
    addr
}

/// Starts one on a unix socket.
pub fn start_unix(path: &Path, answer: impl Fn(&mut Asked) + Send + Sync + 'static) {
    let listener = UnixListener::bind(path).expect("bind");
    let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(path, everybody).expect("permissions");
    let (answer, count): (Answer, _) = (Arc::new(answer), AtomicUsize::new(0));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (answer, n) = (answer.clone(), count.fetch_add(1, Ordering::SeqCst) + 1);
            let _ = stream.set_read_timeout(Some(Duration::from_secs(60)));
            std::thread::spawn(move || serve(Box::new(stream), n, &answer));
        }
    });
}

/// The FastCGI server of PHP, on a unix socket and a port.
pub struct Fpm {
    child: Child,
    _dir: tempfile::TempDir,
    /// Its unix socket.
    pub socket: PathBuf,
    /// Its port.
    pub addr: SocketAddr,
}

/// Finds php-fpm. Debian's program has its version in the name.
fn php_fpm() -> Option<PathBuf> {
    ["/usr/sbin", "/usr/local/sbin", "/usr/bin"].iter().find_map(|dir| {
        let mut found: Vec<PathBuf> = std::fs::read_dir(dir)
            .ok()?
            .flatten()
            .filter(|e| e.file_name().to_string_lossy().starts_with("php-fpm"))
            .map(|e| e.path())
            .collect();
        found.sort();
        found.pop()
    })
}

impl Fpm {
    /// Starts it. `None`: there is none here, which is no failure but in CI.
    pub fn start() -> Option<Fpm> {
        let Some(program) = php_fpm() else {
            assert!(std::env::var_os("CI").is_none(), "there is no php-fpm");
            println!("skipped: there is no php-fpm");
            return None;
        };
        let dir = tempfile::Builder::new().prefix("forebay-fpm").tempdir().expect("temporary directory");
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(dir.path(), open).expect("mode");
        let d = dir.path().display();
        let port = free_port();
        let pool = "user = root\npm = static\npm.max_children = 2\n";
        let conf = format!(
            "[global]\nerror_log = {d}/log\ndaemonize = no\n\
             [socket]\nlisten = {d}/php.sock\nlisten.mode = 0666\n{pool}\
             [port]\nlisten = 127.0.0.1:{port}\n{pool}"
        );
        std::fs::write(dir.path().join("conf"), conf).expect("write");
        let child = Command::new(program)
            .args(["-n", "-R", "-F", "-y"])
            .arg(dir.path().join("conf"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("starts");
        let socket = dir.path().join("php.sock");
        let addr = SocketAddr::from(([127, 0, 0, 1], port));
        let mut fpm = Fpm { child, _dir: dir, socket, addr };
        wait_for("php-fpm", || {
            let ended = fpm.child.try_wait().expect("child");
            assert!(
                ended.is_none(),
                "{}",
                std::fs::read_to_string(fpm._dir.path().join("log")).unwrap_or_default()
            );
            UnixStream::connect(&fpm.socket).ok()?;
            TcpStream::connect(addr).ok()
        });
        Some(fpm)
    }
}

impl Drop for Fpm {
    fn drop(&mut self) {
        // It ends its children when it is asked to.
        crate::kill(self.child.id() as i32, crate::Signal::SIGTERM);
        let _ = self.child.wait();
    }
}
