//! `gzip_static` (nginx: ngx_http_gzip_static_module).

use crate::file_cache::Found;
use crate::keyword;
use crate::modules::{gzip_accept, static_file};
use crate::phases::Outcome;
use crate::request::Request;
use forebay_conf::error::Level;
use forebay_http::request::Method;
use rustix::io::Errno;

crate::settings! {
    /// `gzip_static`.
    "gzip_static" => mode: Mode = Mode::Off;
}

keyword! {
    /// Whether files are sent from their `.gz` neighbours.
    pub enum Mode { Off = "off", On = "on", Always = "always", }
}

/// The content handler. `None`: not for this request.
pub async fn run(req: &mut Request) -> Option<Outcome> {
    let http = req.http();
    let s = &http.location(req).settings;
    if s.gzip_static.mode == Mode::Off
        || !matches!(req.method, Method::Get | Method::Head)
        || req.uri.last() == Some(&b'/')
    {
        return None;
    }
    let always = s.gzip_static.mode == Mode::Always;
    let accepted = always || gzip_accept::accepted(req);
    if !accepted && !s.gzip_accept.vary {
        return None;
    }
    let mut path = req.take_buf();
    if static_file::map_path(req, &mut path).is_err() {
        return Some(Outcome::Status(500));
    }
    path.extend_from_slice(b".gz");
    let found = static_file::open(req, &path).await;
    let out = match found {
        Found::Error(e) => {
            report(req, &path, e);
            None
        }
        found => {
            if !always {
                req.resp.gzip_vary = s.gzip_accept.vary;
            }
            match found {
                Found::File(file) if accepted => {
                    static_file::serve(req, file);
                    req.resp.fields.push(b"Content-Encoding", b"gzip");
                    Some(Outcome::Done)
                }
                _ => None,
            }
        }
    };
    req.give_buf(path);
    out
}

/// A file that is there but cannot be opened is worth a line; the plain file is sent instead.
fn report(req: &mut Request, path: &[u8], e: Errno) {
    let level = match e {
        Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG => return,
        Errno::ACCESS | Errno::LOOP | Errno::XDEV => Level::Error,
        _ => Level::Crit,
    };
    let text = String::from_utf8_lossy(path).into_owned();
    let call = static_file::open_call(req);
    req.log(level, &format!("{call} \"{text}\" failed {}", static_file::errno_text(e)));
}
