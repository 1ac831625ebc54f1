//! Content of a response, read piece by piece. Hot path.

use super::files::{STRETCH, Stretch, load};
use super::write::Done;
use crate::request::Request;
use crate::response::streamed::{Body, Empty, Pulled};
use crate::response::{Part, Window};

/// Content of a response: first its parts, then the body that an upstream sends, both cut to a window.
pub struct Source {
    parts: Vec<Part>,
    /// Bytes that parts refer to.
    text: Vec<u8>,
    /// Number of parts up to the last one that is not empty.
    end: usize,
    /// The part to read next, and how much of it has been read.
    next: usize,
    at: u64,
    body: Option<Body>,
    window: Window,
    /// The client's connection has sendfile.
    sendfile: bool,
}

/// Content that follows the content of a source.
pub enum Further {
    /// Of a cache.
    Part(Part),
    /// Of an upstream.
    Body(Body),
}

/// Result of [`Source::read`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Bytes were appended, and more may follow.
    Data,
    /// No bytes are ready; [`Source::wait`] waits for them.
    Blocked,
    /// The content is over. Bytes may have been appended.
    End,
    /// The content breaks off.
    Failed,
}

impl Source {
    /// Takes the content of a response.
    pub fn of(req: &mut Request) -> Source {
        let parts = std::mem::take(&mut req.resp.body);
        let text = std::mem::take(&mut req.resp.text);
        // Filters learn from the last piece that it is the last, so empty parts must not follow it.
        let end = parts.iter().rposition(|p| !p.is_empty()).map_or(0, |i| i + 1);
        let window = std::mem::take(&mut req.resp.window);
        let sendfile = req.conn.wire.has_sendfile();
        Source { parts, text, end, next: 0, at: 0, body: req.resp.source.take(), window, sendfile }
    }

    /// Appends the next piece without waiting for more of the body. Takes at most `most` bytes of a part.
    pub async fn read(&mut self, req: &mut Request, out: &mut Vec<u8>, most: u64) -> Progress {
        if self.window.left == 0 {
            return Progress::End;
        }
        self.skip();
        if self.next < self.end {
            return self.read_part(out, most).await;
        }
        let Some(body) = &mut self.body else { return Progress::End };
        let before = out.len();
        let got = read_body(body, req, out).await;
        self.window.cut(out, before);
        if self.window.left == 0 { Progress::End } else { got }
    }

    async fn read_part(&mut self, out: &mut Vec<u8>, most: u64) -> Progress {
        let Some(part) = self.parts.get(self.next) else { return Progress::End };
        let n = (part.len() - self.at).min(most).min(self.window.left);
        if !load(&self.text, part, self.at, n, out).await {
            return Progress::Failed;
        }
        self.advance(n);
        self.window.took(n);
        // The last bytes have to come together with the end, because filters finish their output with them.
        let over = self.window.left == 0 || (self.next == self.end && self.body.is_none());
        if over { Progress::End } else { Progress::Data }
    }

    /// Takes a stretch of a file if the next part is a file that is not in memory, or a file that is long enough for sendfile.
    pub(super) fn next_file(&mut self) -> Option<Stretch> {
        self.skip();
        match self.parts.get(..self.end)?.get(self.next)? {
            Part::File { file, start, end }
                if (file.content.is_none() || self.sendfile && file.leaves_by_sendfile(*start, *end))
                    && self.window.left > 0 =>
            {
                let at = start + self.at;
                // A stretch is bounded, so that other requests of the thread get their turn between two of them.
                let len = (end - at).min(STRETCH).min(self.window.left);
                let stretch = Stretch { file: file.clone(), start: at, len };
                self.advance(len);
                self.window.took(len);
                Some(stretch)
            }
            _ => None,
        }
    }

    /// Skips empty parts, and bytes of parts before the window.
    fn skip(&mut self) {
        while self.next < self.end
            && let Some(part) = self.parts.get(self.next)
        {
            let n = (part.len() - self.at).min(self.window.skip);
            self.window.skip -= n;
            if self.at + n < part.len() {
                self.at += n;
                return;
            }
            self.next += 1;
            self.at = 0;
        }
    }

    fn advance(&mut self, n: u64) {
        self.at += n;
        if self.parts.get(self.next).is_some_and(|p| self.at >= p.len()) {
            self.next += 1;
            self.at = 0;
        }
    }

    /// Gives up the bytes that parts refer to, once all parts have been read.
    pub(super) fn take_text(&mut self) -> Option<Vec<u8>> {
        (self.next >= self.end && self.text.capacity() > 0).then(|| std::mem::take(&mut self.text))
    }

    /// Returns the body if all parts have been read and all of the body is to be sent.
    #[inline]
    pub(super) fn next_body(&mut self) -> Option<&mut Body> {
        if self.next < self.end || self.window != Window::default() { None } else { self.body() }
    }

    /// Returns the body that follows the parts.
    #[inline]
    pub(super) fn body(&mut self) -> Option<&mut Body> {
        self.body.as_mut()
    }

    /// Goes on with other content where a body has ended.
    pub(super) fn go_on_with(&mut self, req: &mut Request, further: Further) {
        let Some(body) = &mut self.body else { return };
        body.abandon(req);
        *body = match further {
            Further::Body(next) => next,
            Further::Part(part) => {
                self.end = usize::from(!part.is_empty());
                self.parts.clear();
                self.parts.push(part);
                (self.next, self.at) = (0, 0);
                // The part is the whole of the segment, so no body follows it.
                Box::new(Empty)
            }
        };
    }

    /// Returns `true` if what has been read should leave before more is there.
    pub(super) fn is_unbuffered(&self) -> bool {
        self.body.as_ref().is_some_and(|b| b.is_unbuffered())
    }

    /// Waits until there may be more. Fails if that takes too long or the client is gone.
    pub async fn wait(&mut self, req: &mut Request) -> Done {
        match &mut self.body {
            Some(body) => body.wait(req).await,
            None => Ok(()),
        }
    }

    /// Reads the rest of a response that is to be stored, for the next client, and gives memory back to the request.
    pub async fn end(mut self, req: &mut Request) {
        if let Some(body) = &mut self.body {
            if body.keeps() {
                body.drain(req).await;
            }
            body.abandon(req);
        }
        // The buffers keep their capacity for the next request of the runner.
        self.text.clear();
        req.resp.text = self.text;
        req.resp.body = self.parts;
    }
}

/// Appends what has come of a body, also where it was put into a file.
async fn read_body(body: &mut Body, req: &mut Request, out: &mut Vec<u8>) -> Progress {
    let mut pulled = body.pull(req, out);
    if body.wants_save() {
        body.save(req).await;
    }
    if pulled == Pulled::Stored {
        pulled = body.load(req, out).await;
    }
    match pulled {
        Pulled::Data | Pulled::Stored => Progress::Data,
        Pulled::Blocked => Progress::Blocked,
        Pulled::End => Progress::End,
        Pulled::Failed => Progress::Failed,
    }
}
