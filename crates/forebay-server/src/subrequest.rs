//! Internal requests made for another request (nginx: subrequests). The caller decides when they run and uses the
//! response. A subrequest is a separate [`Request`] without a connection. It goes through all phases except those that
//! decide on access.

use crate::access_log;
use crate::phases;
use crate::request::Request;
use crate::upstream::stream::Pulled;

/// Longest response that is read only to keep the connection to the upstream, bytes.
const WORTH_READING: usize = 1 << 20;

/// Runs a subrequest to its end and discards the response except for its head. A `target` that begins with `@` names a
/// location.
pub async fn run(sub: &mut Request, target: &[u8]) {
    phases::subrequest(sub, target).await;
    if let Some(mut source) = sub.resp.source.take() {
        let mut piece = sub.take_buf();
        let mut read = 0;
        while read < WORTH_READING {
            let mut pulled = source.pull(sub, &mut piece);
            if source.unsettled() {
                source.settle(sub).await;
            }
            if pulled == Pulled::Stored {
                pulled = source.load(sub, &mut piece).await;
            }
            read += piece.len();
            piece.clear();
            match pulled {
                Pulled::Data | Pulled::Stored => {}
                Pulled::Blocked if source.wait(sub).await => {}
                _ => break,
            }
        }
        sub.give_buf(piece);
        source.drain(sub).await;
        source.abandon(sub);
    }
    let http = sub.http();
    if http.location(sub).settings.core.log_subrequest {
        access_log::log_request(sub);
    }
    sub.body.end();
    sub.modules.limit_conn.clear();
}
