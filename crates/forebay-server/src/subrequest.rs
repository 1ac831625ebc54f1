//! Internal requests made for another request (nginx: subrequests). The caller decides when they run and uses the
//! response. A subrequest is a separate [`Request`] without a connection. It goes through all phases except those that
//! decide on access.

use crate::access_log;
use crate::body::{Progress, Source};
use crate::phases;
use crate::request::Request;

/// Longest response that is read only to keep the connection to the upstream, bytes.
const WORTH_READING: usize = 1 << 20;

/// Runs a subrequest to its end and discards the response except for its head. A `target` that begins with `@` names a
/// location.
pub(crate) async fn run(sub: &mut Request, target: &[u8]) {
    phases::subrequest(sub, target).await;
    end(sub).await;
}

/// As [`run`] for a subrequest that begins in the location of `Request::location`.
pub(crate) async fn run_in_location(sub: &mut Request) {
    phases::in_location(sub).await;
    end(sub).await;
}

/// Discards the content of the response and ends the subrequest.
async fn end(sub: &mut Request) {
    if sub.resp.source.is_some() {
        sub.resp.body.clear();
        let mut source = Source::of(sub);
        discard(sub, &mut source).await;
        source.end(sub).await;
    }
    let http = sub.http();
    if http.location(sub).settings.core.log_subrequest {
        access_log::log_request(sub);
    }
    sub.body.end();
    sub.modules.limit_conn.clear();
}

/// Reads content without using it, up to its end or to [`WORTH_READING`].
async fn discard(sub: &mut Request, source: &mut Source) {
    let mut piece = sub.take_buf();
    let mut read = 0;
    while read < WORTH_READING {
        let got = source.read(sub, &mut piece, u64::MAX).await;
        read += piece.len();
        piece.clear();
        match got {
            Progress::Data => sub.thread.clone().io.poller.be_fair().await,
            Progress::Blocked if source.wait(sub).await => {}
            _ => break,
        }
    }
    sub.give_buf(piece);
}
