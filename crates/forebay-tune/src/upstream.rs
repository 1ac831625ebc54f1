//! A stand-in for the user's upstreams: answers anything after a given time with a given number of bytes.

use forebay_bench::observe::shares;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

/// Most connections at a time; more are closed.
const MOST: usize = 2048;

/// Starts it on a free port of the loopback, in threads of this process; ends with it.
///
/// # Errors
/// No port.
pub(crate) fn start(latency: Duration, size: usize) -> std::io::Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    let mut answer =
        format!("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {size}\r\n\r\n").into_bytes();
    let words = b"<p>the quick brown fox jumps over the lazy dog</p>\n";
    answer.extend(words.iter().cycle().take(size));
    let answer: std::sync::Arc<[u8]> = answer.into();
    let count = std::sync::Arc::new(());
    let serve_all = move || {
        for stream in listener.incoming().flatten() {
            if std::sync::Arc::strong_count(&count) > MOST {
                continue;
            }
            let (answer, mine) = (answer.clone(), count.clone());
            let _ = std::thread::Builder::new().stack_size(256 << 10).spawn(move || {
                let _mine = mine;
                let _ = serve(stream, &answer, latency);
            });
        }
    };
    // Not on the server's CPUs.
    let spawn = || std::thread::Builder::new().name("upstream".into()).spawn(serve_all);
    forebay_sys::affinity::pinned(&shares().1, spawn)??;
    Ok(port)
}

fn serve(mut stream: TcpStream, answer: &[u8], latency: Duration) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(120)))?;
    let mut buf = vec![0; 16 << 10];
    let mut have = 0;
    loop {
        let n = stream.read(&mut buf[have..])?;
        if n == 0 {
            return Ok(());
        }
        have += n;
        while let Some(end) = buf[..have].windows(4).position(|w| w == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&buf[..end]).to_ascii_lowercase();
            let close = head.contains("\r\nconnection: close")
                || head.lines().next().is_some_and(|l| l.ends_with("http/1.0"));
            buf.copy_within(end + 4..have, 0);
            have -= end + 4;
            if !latency.is_zero() {
                std::thread::sleep(latency);
            }
            stream.write_all(answer)?;
            if close {
                return Ok(());
            }
        }
        if have == buf.len() {
            return Ok(());
        }
    }
}
