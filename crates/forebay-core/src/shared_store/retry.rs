//! Conversations with the store, which begin again when they have ended.

#![allow(clippy::disallowed_methods, reason = "not on a thread of connections: the tokio thread runs this")]

use super::client::{Connection, tls_config};
use super::directive::Settings;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};

/// Time for a connection to open, with TLS and authentication.
const OPEN: Duration = Duration::from_secs(1);

/// Pauses before the store is tried again: the first one, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));
/// Time that a connection has to last before the next pause is the shortest again.
const STABLE: Duration = Duration::from_secs(10);

/// Conversation with the store.
pub(super) trait Conversation {
    /// Talks to the store over one connection.
    ///
    /// # Errors
    /// The text for the error log.
    fn session(&mut self) -> impl Future<Output = Result<Infallible, String>> + Send;

    /// Notes why the connection has ended.
    fn lost(&mut self, why: &str);
}

/// Has a conversation over one connection after the other until the future is dropped.
pub(super) async fn repeat(mut conversation: impl Conversation) {
    let mut pause = PAUSES.0;
    loop {
        let begun = Instant::now();
        let Err(why) = conversation.session().await;
        conversation.lost(&why);
        if begun.elapsed() > STABLE {
            pause = PAUSES.0;
        }
        // Not all replicas at the same moment.
        let jitter = u64::from(forebay_sys::random::quick() % 50);
        sleep(pause + Duration::from_millis(jitter)).await;
        pause = (pause * 2).min(PAUSES.1);
    }
}

/// Opens a connection.
///
/// # Errors
/// The text for the error log.
pub(super) async fn connect(settings: &Arc<Settings>) -> Result<Connection, String> {
    let owned = settings.clone();
    let tls = tokio::task::spawn_blocking(move || tls_config(&owned)).await;
    let tls = tls.map_err(|e| e.to_string())??;
    let opened = timeout(OPEN, Connection::open(settings, tls.as_ref())).await;
    opened.map_err(|_| "timed out".to_owned())?
}
