//! Requests that are made for another one, inside the server: who asks decides when they run and what becomes of
//! the answer (nginx: subrequests). A subrequest is a [`Request`] of its own without a connection, which goes through
//! the phases as any other, except that access has been decided on.

use crate::access_log;
use crate::phases;
use crate::request::Request;
use crate::upstream::stream::Pulled;

/// Most of an answer that is read to keep the connection to the upstream, bytes.
const WORTH_READING: usize = 1 << 20;

/// Runs it to its end; what it answers is thrown away but for its head. A path that begins with `@` in `target` is the
/// name of a location.
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
