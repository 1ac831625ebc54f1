//! Connections to sockets that background work has, and the end of that work.

use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// Most connections to a socket at a time.
const MAX_CONNECTIONS: usize = 64;
/// Pause after an error of a socket.
pub(crate) const PAUSE: Duration = Duration::from_millis(100);

/// The process quits, and another may have the sockets (USR2).
static QUITS: AtomicBool = AtomicBool::new(false);

/// Ends answering over the sockets of this process, and asking for certificates.
pub fn quit() {
    QUITS.store(true, Relaxed);
}

/// Returns `true` after [`quit`].
pub(crate) fn quits() -> bool {
    QUITS.load(Relaxed)
}

/// Accepts connections and serves each, until the process quits.
///
/// # Errors
/// If the socket cannot be used.
pub(crate) async fn serve_each<W>(fd: &OwnedFd, serve: impl Fn(TcpStream) -> W) -> io::Result<()>
where
    W: Future<Output = io::Result<()>> + Send + 'static,
{
    let socket = TcpListener::from_std(fd.try_clone()?.into())?;
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        // Fails only if the semaphore is closed, which nothing does.
        let place = places.clone().acquire_owned().await.map_err(io::Error::other)?;
        let accepted = socket.accept().await;
        if quits() {
            // The client asks again, and gets to the other process.
            return Ok(());
        }
        let Ok((connection, _)) = accepted else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let served = serve(connection);
        tokio::spawn(async move {
            let _place = place;
            // A client that goes away is no error.
            let _ = served.await;
        });
    }
}
