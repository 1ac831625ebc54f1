//! Client of the interoperability matrix on s2n-quic. See ../README.md for what it is called with.

mod http;
mod server;
mod tls;

use bytes::Bytes;
use http::Frames;
use s2n_quic::client::Connect;
use s2n_quic::connection::Handle;
use s2n_quic::provider::limits::Limits;
use s2n_quic::{Client, Connection, provider};
use sha2::{Digest, Sha256};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;
use tokio::task::JoinSet;

/// Exit status for a case that the client cannot do.
const UNSUPPORTED: u8 = 127;
/// Longest time of a connection.
const DEADLINE: Duration = Duration::from_secs(60);

type Error = Box<dyn std::error::Error + Send + Sync>;
type Result<T> = std::result::Result<T, Error>;

/// File to download, with the hash that its content has to have.
#[derive(Clone)]
struct File {
    path: String,
    hash: String,
}

/// Settings in which cases differ.
#[derive(Default)]
struct Options {
    is_chacha20: bool,
    window: Option<u64>,
}

fn start(server: SocketAddr, options: &Options) -> Result<Client> {
    let mut limits = Limits::new().with_max_handshake_duration(DEADLINE)?.with_max_idle_timeout(DEADLINE)?;
    if let Some(window) = options.window {
        limits = limits.with_data_window(2 * window)?.with_bidirectional_local_data_window(window)?;
    }
    #[allow(deprecated, reason = "the builder knows no verifier that takes any certificate")]
    let tls = provider::tls::rustls::Client::new(tls::client(options.is_chacha20)?);
    let local = if server.is_ipv6() { "[::1]:0" } else { "127.0.0.1:0" };
    Ok(Client::builder().with_tls(tls)?.with_limits(limits)?.with_io(local)?.start()?)
}

/// Connects, downloads the files at the same time, and closes.
async fn connect(client: &Client, server: SocketAddr, files: &[File]) -> Result<()> {
    let mut connection = client.connect(Connect::new(server).with_server_name("localhost")).await?;
    connection.keep_alive(true)?;
    let mut control = connection.open_send_stream().await?;
    control.send(Bytes::from_static(http::CONTROL)).await?;
    let (handle, others) = Connection::split(connection);
    let (_requests, mut others) = others.split();
    tokio::spawn(async move {
        while let Ok(Some(mut stream)) = others.accept_receive_stream().await {
            tokio::spawn(async move { while let Ok(Some(_)) = stream.receive().await {} });
        }
    });
    let mut downloads = JoinSet::new();
    for file in files {
        downloads.spawn(fetch(handle.clone(), file.clone()));
    }
    while let Some(done) = downloads.join_next().await {
        done??;
    }
    handle.close(http::NO_ERROR.into());
    Ok(())
}

async fn fetch(mut handle: Handle, file: File) -> Result<()> {
    let mut stream = handle.open_bidirectional_stream().await?;
    stream.send(http::request(&file.path).into()).await?;
    stream.finish()?;
    let (mut frames, mut is_ok, mut sum, mut length) = (Frames::default(), false, Sha256::new(), 0);
    while let Some(bytes) = stream.receive().await? {
        frames.take(&bytes, |kind, payload| match kind {
            http::HEADERS => is_ok = http::is_ok(payload),
            http::DATA => {
                sum.update(payload);
                length += payload.len();
            }
            _ => {}
        });
    }
    let hash: String = sum.finalize().iter().map(|b| format!("{b:02x}")).collect();
    if !is_ok {
        return Err(format!("another status for {}", file.path).into());
    }
    if hash != file.hash {
        return Err(format!("{length} bytes with another content").into());
    }
    Ok(())
}

/// Runs a case. `None` is for one that s2n-quic cannot do.
async fn run(case: &str, server: SocketAddr, files: &[File]) -> Result<Option<()>> {
    let mut options = Options::default();
    match case {
        "handshake" | "retry" | "multiplexing" | "http3" | "ecn" | "multiconnect" => {}
        "chacha20" => options.is_chacha20 = true,
        "transfer" => options.window = Some(1 << 16),
        // s2n-quic has no early data, no version 2, nothing by which a client moves or updates its keys, and takes tickets only with an
        // unstable feature.
        _ => return Ok(None),
    }
    let mut client = start(server, &options)?;
    for files in files.chunks(if case == "multiconnect" { 1 } else { files.len() }) {
        tokio::time::timeout(DEADLINE, connect(&client, server, files)).await??;
    }
    tokio::time::timeout(DEADLINE, client.wait_idle()).await??;
    Ok(Some(()))
}

async fn begin(mut args: Vec<String>) -> ExitCode {
    if args.first().is_some_and(|arg| arg == "server") {
        return server::main(&args.split_off(1)).await;
    }
    let [case, address, files @ ..] = &args[..] else { return ExitCode::from(2) };
    let Ok(address) = address.parse() else { return ExitCode::from(2) };
    let files: Vec<File> = files
        .iter()
        .filter_map(|a| a.rsplit_once('=').map(|(path, hash)| File { path: path.into(), hash: hash.into() }))
        .collect();
    match run(case, address, &files).await {
        Ok(Some(())) => ExitCode::SUCCESS,
        Ok(None) => ExitCode::from(UNSUPPORTED),
        Err(e) => {
            println!("{e}");
            ExitCode::FAILURE
        }
    }
}

fn main() -> ExitCode {
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(begin(std::env::args().skip(1).collect())),
        Err(e) => {
            println!("{e}");
            ExitCode::FAILURE
        }
    }
}
