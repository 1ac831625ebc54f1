//! Directives of the stream block that no scenario needs: each changes what a session does.

use forebay_testkit::{Server, Talk, connect, wait_for, wait_until};
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

forebay_testkit::cases!("cases/stream_directives.cases": encrypted_connections, limits_and_logs);

/// Starts a server that takes connections into its queue and reads nothing.
fn deaf() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = listener.local_addr().expect("address");
    (listener, addr)
}

/// Returns the columns of the kernel's table about the socket that a server has connected to an address: the bytes to be sent and
/// to be read, and the kind of its timer.
fn socket(to: SocketAddr) -> Option<(u64, u64, u8)> {
    let table = std::fs::read_to_string("/proc/net/tcp").expect("a table");
    let remote = format!("0100007F:{:04X}", to.port());
    let row = table.lines().map(|l| l.split_whitespace().collect::<Vec<_>>()).find(|row| {
        // 01 is an open connection.
        row.get(2) == Some(&remote.as_str()) && row.get(3) == Some(&"01")
    })?;
    let (sent, read) = row.get(4)?.split_once(':')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    Some((number(sent)?, number(read)?, row.get(5)?.split(':').next()?.parse().ok()?))
}

/// Writes until nothing is taken any more.
fn fill(stream: &mut TcpStream) {
    stream.set_write_timeout(Some(Duration::from_millis(200))).expect("timeout");
    while stream.write_all(&[7; 65536]).is_ok() {}
}

#[test]
fn sockets_have_options() {
    const KEEPALIVE: u8 = 2;
    const SMALL: u64 = 32 * 1024;
    let ((alive, with), (plain, without)) = (deaf(), deaf());
    let ((small_to, narrow), (small_from, slow)) = (deaf(), deaf());
    let server = Server::start(format!(
        "worker_processes 1; error_log logs/error.log info; pid logs/nginx.pid; events {{}}\nstream {{\n\
         server {{ listen 127.0.0.1:%PORT0%; proxy_pass {with}; proxy_socket_keepalive on; }}\n\
         server {{ listen 127.0.0.1:%PORT1%; proxy_pass {without}; }}\n\
         server {{ listen 127.0.0.1:%PORT2%; proxy_pass {narrow}; proxy_socket_sndbuf 4k; }}\n\
         server {{ listen 127.0.0.1:%PORT3%; proxy_pass {slow}; proxy_socket_rcvbuf 4k; }} }}\n"
    ));
    let mut clients: Vec<TcpStream> = (0..4).map(|port| connect(server.addr(port))).collect();
    for client in &mut clients {
        client.send(b"x");
    }
    let timer = |to| wait_for("a connection", || socket(to)).2;
    assert_eq!(timer(with), KEEPALIVE);
    assert_ne!(timer(without), KEEPALIVE);
    fill(&mut clients[1]);
    fill(&mut clients[2]);
    let unsent = |to| socket(to).map_or(0, |row| row.0);
    // The kernel still moves bytes to the receiver for a while.
    wait_until("full send buffers", || unsent(without) > SMALL && unsent(narrow) < SMALL);
    let mut from = [&plain, &small_from].map(|l| l.accept().expect("a connection").0);
    from.iter_mut().for_each(fill);
    let unread = |to| socket(to).map_or(0, |row| row.1);
    wait_until("full receive buffers", || unread(without) > SMALL && unread(slow) < SMALL);
    drop((alive, small_to));
}
