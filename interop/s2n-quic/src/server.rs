//! Server of the second table on s2n-quic. See ../../README.md for what it is called with.

use crate::http::{self, Frames};
use crate::{Result, UNSUPPORTED, tls};
use bytes::Bytes;
use s2n_quic::connection::Connection;
use s2n_quic::provider::endpoint_limits;
use s2n_quic::provider::limits::Limits;
use s2n_quic::stream::BidirectionalStream;
use s2n_quic::{Server, provider};
use sha2::{Digest, Sha256};
use std::process::ExitCode;
use std::time::Duration;

/// Handshakes at a time before clients have to prove their addresses.
const HANDSHAKES: usize = 100;

fn start(case: &str, address: &str, dir: &str) -> Result<Server> {
    let handshakes = if case == "retry" { 0 } else { HANDSHAKES };
    let endpoint = endpoint_limits::Default::builder().with_inflight_handshake_limit(handshakes)?.build()?;
    let limits = Limits::new()
        .with_max_handshake_duration(Duration::from_secs(60))?
        .with_max_open_remote_bidirectional_streams(128)?;
    #[allow(deprecated, reason = "the builder knows no certificates as DER")]
    let tls = provider::tls::rustls::Server::new(tls::server(dir, case == "amplificationlimit")?);
    let server = Server::builder()
        .with_tls(tls)?
        .with_endpoint_limits(endpoint)?
        .with_limits(limits)?
        .with_io(address)?
        .start()?;
    Ok(server)
}

async fn serve(mut connection: Connection, dir: String) -> Result<()> {
    let mut control = connection.open_send_stream().await?;
    control.send(Bytes::from_static(http::CONTROL)).await?;
    let (_handle, acceptor) = connection.split();
    let (mut requests, mut others) = acceptor.split();
    tokio::spawn(async move {
        while let Ok(Some(mut stream)) = others.accept_receive_stream().await {
            tokio::spawn(async move { while let Ok(Some(_)) = stream.receive().await {} });
        }
    });
    while let Some(stream) = requests.accept_bidirectional_stream().await? {
        let dir = dir.clone();
        tokio::spawn(async move {
            if let Err(e) = answer(stream, &dir).await {
                println!("{e}");
            }
        });
    }
    Ok(())
}

/// Answers with the hash of what was posted, or with a file.
async fn answer(mut stream: BidirectionalStream, dir: &str) -> Result<()> {
    let (mut frames, mut fields, mut sum) = (Frames::default(), Vec::new(), Sha256::new());
    while let Some(bytes) = stream.receive().await? {
        frames.take(&bytes, |kind, payload| match kind {
            http::HEADERS => fields = payload.to_vec(),
            http::DATA => sum.update(payload),
            _ => {}
        });
    }
    let (is_post, path) = http::method_and_path(&fields)?;
    let content = if is_post {
        Some(sum.finalize().iter().map(|b| format!("{b:02x}")).collect::<String>().into_bytes())
    } else {
        std::fs::read(format!("{dir}/html{path}")).ok()
    };
    stream.send(http::response(content.as_deref()).into()).await?;
    stream.finish()?;
    Ok(())
}

async fn run(case: &str, address: &str, dir: &str) -> Result<()> {
    let mut server = start(case, address, dir)?;
    while let Some(connection) = server.accept().await {
        let dir = dir.to_string();
        tokio::spawn(async move {
            let _ = serve(connection, dir).await;
        });
    }
    Ok(())
}

/// Serves a case until the process is ended.
pub async fn main(args: &[String]) -> ExitCode {
    let [case, address, dir] = args else {
        eprintln!("usage: interop-s2n-quic server CASE ADDRESS DIRECTORY");
        return ExitCode::from(2);
    };
    // s2n-quic updates its keys only once those are used up, and sends tickets only with an unstable feature.
    if matches!(case.as_str(), "keyupdate" | "resumption") {
        return ExitCode::from(UNSUPPORTED);
    }
    if let Err(e) = run(case, address, dir).await {
        println!("{e}");
    }
    ExitCode::FAILURE
}
