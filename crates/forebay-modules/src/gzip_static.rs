//! `gzip_static`, `brotli_static`, `zstd_static`: precompressed files (nginx: ngx_http_gzip_static_module).

use crate::brotli;
use crate::compress;
use crate::gzip_accept;
use crate::zstd;
use forebay_conf::error::Level;
use forebay_core::keyword;
use forebay_http::request::Method;
use forebay_server::file_cache::Found;
use forebay_server::module::levels::LocationSettings;
use forebay_server::module::{Module, Phase, PhaseHook, Step, Verdict};
use forebay_server::modules::static_file;
use forebay_server::phases::Outcome;
use forebay_server::request::Request;
use forebay_server::response::coding::Coding;
use forebay_server::response::coding::Set;
use rustix::io::Errno;

forebay_server::module_settings! {
    /// `gzip_static`.
    "gzip_static" => mode: Mode = Mode::Off;
}

/// `gzip_static`.
pub static MODULE: Module = Module {
    settings: &[&SETTINGS],
    hooks: &[PhaseHook::new(Phase::Content, enabled, answer)],
    ..Module::NONE
};

keyword! {
    /// `gzip_static`: whether precompressed files are sent.
    pub enum Mode { Off = "off", On = "on", Always = "always", }
}

fn modes(s: &LocationSettings) -> [Mode; 3] {
    [zstd::SETTINGS.of(s).ready, brotli::SETTINGS.of(s).ready, SETTINGS.of(s).mode]
}

/// Returns `true` if a location looks for precompressed files.
#[inline]
fn enabled(s: &LocationSettings) -> bool {
    modes(s) != [Mode::Off; 3]
}

/// Answers a path that does not end in a slash.
fn answer(req: &mut Request) -> Step<'_> {
    if !matches!(req.method, Method::Get | Method::Head) || req.uri.path.last() == Some(&b'/') {
        return Verdict::Declined.into();
    }
    Step::later(async { run(req).await.into() })
}

/// Answers with a precompressed file. Returns `None` if there is none for this request.
async fn run(req: &mut Request) -> Option<Outcome> {
    let http = req.http();
    let s = &http.location(req).settings;
    let modes = modes(s);
    // A subrequest's body becomes part of another response, so it must not be compressed (except with `always`).
    let on = Set(modes.map(|m| m == Mode::On && !req.is_subrequest()));
    // Without `Vary` a shared cache could send one client's encoding to another client. nginx leaves that to gzip_vary;
    // here codings other than gzip always add it.
    let vary = gzip_accept::SETTINGS.of(s).vary || (on != Set::default() && on != Set::of(Coding::Gzip));
    match serve_first(req, s, on, vary).await {
        Ok(true) => Some(Outcome::Done),
        Ok(false) => None,
        Err(refused) => Some(refused),
    }
}

/// Answers with the first precompressed file that exists and suits the client. Returns `false` if there is none.
async fn serve_first(req: &mut Request, s: &LocationSettings, on: Set, vary: bool) -> Result<bool, Outcome> {
    for (coding, wanted) in candidates(req, s, on, vary).into_iter().flatten() {
        let Some(found) = neighbour(req, coding).await? else { continue };
        // The file exists, so other clients get another response for this URL, and caches have to know it.
        if on.has(coding) {
            req.resp.server_fields.vary = vary;
        }
        if let Found::File(file) = found
            && wanted
        {
            static_file::serve(req, file);
            // The type is the one of the plain file, whose name the request has. The coding is said on its
            // own.
            req.resp.fields.push(b"Content-Encoding", coding.name());
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the codings to look for, and whether the client may get each: first those that it accepts, then those sent
/// always, then those that only other clients would get. If a file for one of the last exists, the response needs `Vary`.
/// Each coding is in the list once.
fn candidates(req: &Request, s: &LocationSettings, on: Set, vary: bool) -> [Option<(Coding, bool)>; 3] {
    let modes = modes(s);
    let ranked = compress::rank(req, s, on);
    let accepted = ranked.iter().map(|c| (c, true));
    let always = Coding::ALL.into_iter().filter(|c| modes[*c as usize] == Mode::Always);
    let others = Coding::ALL.into_iter().filter(|c| vary && on.has(*c));
    let all = accepted.chain(always.map(|c| (c, true))).chain(others.map(|c| (c, false)));
    let mut seen = Set::default();
    let each = all.filter(|(c, _)| !std::mem::replace(&mut seen.0[*c as usize], true));
    let mut queue = [None; 3];
    for (slot, c) in queue.iter_mut().zip(each) {
        *slot = Some(c);
    }
    queue
}

/// Opens the precompressed version of the requested file, if it exists.
async fn neighbour(req: &mut Request, coding: Coding) -> Result<Option<Found>, Outcome> {
    let mut path = req.take_buf();
    if static_file::map_path(req, &mut path).is_err() {
        return Err(Outcome::Status(500));
    }
    path.extend_from_slice(coding.suffix());
    let found = match static_file::open(req, &path).await {
        Found::Error(e) => {
            report(req, &path, e);
            None
        }
        found => Some(found),
    };
    req.give_buf(path);
    Ok(found)
}

/// Logs that a file exists but cannot be opened. The plain file is sent instead.
fn report(req: &mut Request, path: &[u8], e: Errno) {
    let level = match e {
        Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG => return,
        Errno::ACCESS | Errno::LOOP | Errno::XDEV => Level::Error,
        _ => Level::Crit,
    };
    let text = String::from_utf8_lossy(path).into_owned();
    let call = static_file::open_call(req);
    req.log(level, &format!("{call} \"{text}\" failed {}", forebay_sys::errno::errno_text(e)));
}
