//! Answers to HTTP-01 (RFC 8555, section 8.3) at a port where no server listens.

use crate::challenge;
use crate::engine::Environment;
use crate::listening;
use forebay_conf::error::Level;
use forebay_core::tasks::Tasks;
use forebay_http::h1::request::{Limits, Status, parse};
use forebay_http::request::{Method, RequestHead};
use forebay_sys::errno::errno;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Path of challenges.
const WELL_KNOWN: &[u8] = b"/.well-known/acme-challenge/";
/// Longest head of a request, bytes.
const MAX_HEAD: usize = 8 * 1024;

/// Returns the answer to a request for a path, if that is of a challenge.
pub fn answer(path: &[u8], method: Method) -> Option<String> {
    let token = path.strip_prefix(WELL_KNOWN).filter(|_| method == Method::Get)?;
    challenge::http_answer(token)
}

/// Starts to answer requests on these sockets.
pub fn start(sockets: Vec<Arc<OwnedFd>>, tasks: &mut Tasks, environment: &Environment<'_>) {
    let Environment { tokio, log, .. } = environment;
    for socket in sockets {
        let log = (*log).clone();
        let serve = async move {
            if let Err(e) = listening::serve_each(&socket, converse).await {
                log(Level::Alert, &format!("cannot answer requests of ACME challenges ({})", errno(&e)));
            }
        };
        tasks.spawn(tokio, "answering challenges", serve);
    }
}

/// Answers one request.
async fn converse(mut connection: TcpStream) -> io::Result<()> {
    let mut head = RequestHead::default();
    let limits = Limits::default();
    loop {
        match parse(&mut head, &limits) {
            Ok(Status::Complete) => break,
            Ok(Status::Partial) if head.buf.len() < MAX_HEAD => {}
            _ => return connection.write_all(&response("400 Bad Request", "")).await,
        }
        if connection.read_buf(&mut head.buf).await? == 0 {
            return Ok(());
        }
    }
    let bytes = match answer(&head.path, head.method) {
        Some(text) => response("200 OK", &text),
        None => response("404 Not Found", ""),
    };
    connection.write_all(&bytes).await?;
    connection.shutdown().await
}

fn response(status: &str, text: &str) -> Vec<u8> {
    let length = text.len();
    let head = format!("HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\n");
    format!("{head}Connection: close\r\n\r\n{text}").into_bytes()
}
