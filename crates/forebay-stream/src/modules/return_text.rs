//! `return`: sends a text and ends the session (nginx: ngx_stream_return_module).

use super::Content;
use crate::config::Scope;
use crate::session::Session;
use forebay_conf::error::{Error, Level};
use forebay_conf::tree::Directive;
use forebay_core::vars::Template;
use forebay_net::wire::Then;
use forebay_sys::errno::errno_text;
use rustix::io::Errno;
use std::time::Duration;

/// Time in which the client has to take some of the text, as in nginx.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

/// Reads `return`.
///
/// # Errors
/// `is duplicate` if the server has a handler.
pub(crate) fn parse(d: &Directive, known: Option<&Content>, cx: &mut Scope<'_>) -> Result<Content, Error> {
    if matches!(known, Some(Content::Return(_))) {
        return Err(cx.directive_error(d, "is duplicate"));
    }
    let text = d.args.first().map(|w| cx.template(d, w)).transpose()?;
    Ok(Content::Return(text.unwrap_or_default()))
}

/// Sends the text. Returns the status.
pub(crate) async fn serve(s: &mut Session, text: &Template) -> u16 {
    let text = match text.value(s) {
        Ok(text) => text,
        Err(e) => {
            s.log(Level::Error, &e.0);
            return 500;
        }
    };
    if s.udp.is_some() {
        let thread = s.thread.clone();
        return thread.udp.answer(s, &text);
    }
    let (failure, status) = match send(s, &text).await {
        Ok(()) => return 200,
        Err(Unsent::TimedOut) => ("connection timed out (110: Connection timed out)".to_owned(), 200),
        Err(Unsent::Failed(e)) => (format!("send() failed {}", errno_text(e)), 500),
    };
    s.log(Level::Info, &format!("{failure} while returning text"));
    status
}

/// Reason for which the client does not get all of the text.
enum Unsent {
    /// It has taken nothing for [`SEND_TIMEOUT`].
    TimedOut,
    /// Its connection is broken.
    Failed(Errno),
}

async fn send(s: &mut Session, text: &[u8]) -> Result<(), Unsent> {
    let thread = s.thread.clone();
    let mut rest = text;
    // Sealed records may wait for room after the last byte has been taken.
    let mut full = false;
    while !rest.is_empty() || full {
        match s.wire.send(&thread.io, rest, Then::Nothing) {
            Ok(sent) => {
                s.sent += sent.bytes as u64;
                rest = rest.get(sent.bytes..).unwrap_or_default();
                full = sent.full;
            }
            Err(Errno::AGAIN) => full = true,
            Err(e) => return Err(Unsent::Failed(e)),
        }
        if full {
            let deadline = thread.io.poller.after(SEND_TIMEOUT);
            let writable = thread.io.poller.until(deadline, s.wire.wait_writable(&thread.io));
            writable.await.ok_or(Unsent::TimedOut)?;
        }
    }
    Ok(())
}
