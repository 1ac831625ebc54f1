//! `ssi` (nginx: ngx_http_ssi_module): commands in pages, run while the page is sent. `parser.rs` finds them,
//! `page.rs` runs them, `script.rs` keeps the commands of pages in memory, `body/compose.rs` inserts the
//! bodies of their subrequests.

mod page;
pub mod parser;
mod script;
mod value;

use crate::compress;
use forebay_core::config::value::Size;
use forebay_core::strftime;
use forebay_core::vars::RowSource;
use forebay_core::vars::VarError;
use forebay_server::body::compose::{self, Join};
use forebay_server::config::mime_types::MimeTypes;
use forebay_server::module::levels::LocationSettings;
use forebay_server::module::{HeaderFilter, Module};
use forebay_server::request::Request;
use forebay_server::request::rare::Unused;
use forebay_server::request::states::Slot;
use forebay_server::variables::Row;
use std::cell::RefCell;
use std::rc::Rc;

use page::Page;

forebay_server::module_settings! {
    /// `ssi`.
    "ssi" => on: bool = false;
    /// `ssi_types`.
    "ssi_types" => types: MimeTypes = MimeTypes::of(&["text/html"]);
    /// `ssi_silent_errors`.
    "ssi_silent_errors" => silent_errors: bool = false;
    /// `ssi_last_modified`.
    "ssi_last_modified" => last_modified: bool = false;
    /// `ssi_value_length`, bytes.
    "ssi_value_length" => value_length: Size = Size(255);
}

/// `ssi`.
pub static MODULE: Module = Module {
    settings: &[&SETTINGS],
    variables: &[VARIABLES],
    header_filters: &[HeaderFilter::new(enabled, filter).included()],
    share: Some(share),
    page: Some(page),
    ..Module::NONE
};

/// Largest number of bytes in the variables and blocks of one request.
const SHARED: usize = 1 << 20;

/// Variables or blocks for which a request keeps room.
const KEPT: usize = 16;

/// Format of dates without `config timefmt`.
const TIME_FORMAT: &[u8] = b"%A, %d-%b-%Y %H:%M:%S %Z";

/// State that all pages of a request share.
static STATE: Slot<SsiState> = Slot::new();

/// SSI state of one request.
#[derive(Debug, Default)]
pub struct SsiState {
    shared: Option<Rc<RefCell<SharedState>>>,
    /// `config timefmt` of the page; `None` for [`TIME_FORMAT`].
    time_format: Option<Vec<u8>>,
}

impl Unused for SsiState {
    const UNUSED: &'static SsiState = &SsiState { shared: None, time_format: None };

    fn clear(&mut self) {
        self.time_format = None;
        let own = self.shared.as_mut().and_then(Rc::get_mut).map(RefCell::get_mut);
        match own.filter(|shared| shared.is_small()) {
            // The memory serves the next request, unless a subrequest still holds it or an unusual page has
            // made it large.
            Some(shared) => shared.clear(),
            None => self.shared = None,
        }
    }
}

/// State shared by a request and all its subrequests.
#[derive(Debug, Default)]
struct SharedState {
    /// Names in lower case, and values.
    variables: Vec<(Vec<u8>, Vec<u8>)>,
    /// Names and texts of blocks. The first block with a name counts.
    blocks: Vec<(Vec<u8>, Rc<[u8]>)>,
    bytes: usize,
}

impl SharedState {
    /// Returns `true` if the lists take as much memory as those of an ordinary page.
    fn is_small(&self) -> bool {
        self.variables.capacity() <= KEPT && self.blocks.capacity() <= KEPT
    }

    /// Forgets everything.
    fn clear(&mut self) {
        // The fields are named one by one, so that the compiler points here when one is added.
        let SharedState { variables, blocks, bytes } = self;
        variables.clear();
        blocks.clear();
        *bytes = 0;
    }

    /// Counts stored bytes. Returns `false`, and counts nothing, if that exceeds [`SHARED`].
    fn spend(&mut self, bytes: usize) -> bool {
        let fits = self.bytes.saturating_add(bytes) <= SHARED;
        if fits {
            self.bytes += bytes;
        }
        fits
    }

    fn variable(&self, name: &[u8]) -> Option<&[u8]> {
        self.variables.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_slice())
    }

    /// Sets a variable. Returns `false` if there is no room for it.
    fn set(&mut self, name: &[u8], value: &[u8]) -> bool {
        let at = self.variables.iter().position(|(n, _)| n == name);
        let old = at.and_then(|at| self.variables.get(at)).map_or(0, |(_, v)| v.len());
        // The old value makes room for the new one, and counts again below if that does not fit.
        self.bytes = self.bytes.saturating_sub(old);
        // Count the entry as well: many variables with empty values take memory too.
        let own = if at.is_some() { 0 } else { name.len() + 64 };
        if !self.spend(own + value.len()) {
            self.bytes += old;
            return false;
        }
        match at.and_then(|at| self.variables.get_mut(at)) {
            Some((_, v)) => *v = value.to_vec(),
            None => self.variables.push((name.to_vec(), value.to_vec())),
        }
        true
    }
}

fn shared(req: &mut Request) -> Rc<RefCell<SharedState>> {
    STATE.of_mut(req).shared.get_or_insert_default().clone()
}

/// Shares the state of a request with its subrequest.
fn share(req: &mut Request, sub: &mut Request) {
    STATE.of_mut(sub).shared = Some(shared(req));
}

/// Returns `true` if a location processes SSI.
fn enabled(s: &LocationSettings) -> bool {
    SETTINGS.of(s).on
}

/// Prepares a response as an SSI page.
///
/// # Errors
/// Never.
fn filter(req: &mut Request) -> Result<(), VarError> {
    let http = req.http();
    let s = SETTINGS.of(&http.location(req).settings);
    let r = &req.resp;
    let bodiless = r.content_length == Some(0) || matches!(r.status, 204 | 304);
    if bodiless || !s.types.contains(compress::media_type(&r.content_type)) {
        return Ok(());
    }
    // The content depends on variables and includes, so the validators of the file say nothing about it by
    // default.
    if s.last_modified {
        compress::weaken_etag(req);
    } else {
        req.resp.clear_validators();
    }
    compress::unknown_length(req);
    let mut page = Page::new(req);
    // A fragment without commands is inserted as it is, and needs no page of its own.
    if page.find_script(req) && req.is_subrequest() {
        return Ok(());
    }
    let page: Option<Box<dyn compose::Page>> = Some(Box::new(page));
    let own_filters = req.resp.filters.body.len();
    match &mut req.resp.join {
        Some(join) => join.page = page,
        None => req.resp.join = Some(Box::new(Join { own_filters, page, around: [None, None] })),
    }
    Ok(())
}

/// Returns a page for a text, or `None` if the location of the request does not process SSI.
fn page(req: &mut Request) -> Option<Box<dyn compose::Page>> {
    let http = req.http();
    enabled(&http.location(req).settings).then(|| Box::new(Page::new(req)) as _)
}

const VARIABLES: &[Row] = &[
    Row { name: "date_local", get: RowSource::Get(date_local), settable: false },
    Row { name: "date_gmt", get: RowSource::Get(date_gmt), settable: false },
];

fn date_local(r: &mut Request, out: &mut Vec<u8>) -> Result<bool, VarError> {
    let unix = r.thread.clock.unix();
    let (offset, zone) = (r.thread.clock.offset(unix), r.thread.clock.zone(unix));
    push_date(r, &strftime::Moment { unix, offset, zone: &zone }, out)
}

fn date_gmt(r: &mut Request, out: &mut Vec<u8>) -> Result<bool, VarError> {
    let moment = strftime::Moment { unix: r.thread.clock.unix(), offset: 0, zone: "GMT" };
    push_date(r, &moment, out)
}

fn push_date(r: &Request, moment: &strftime::Moment<'_>, out: &mut Vec<u8>) -> Result<bool, VarError> {
    let format = STATE.of(r).time_format.as_deref().unwrap_or(TIME_FORMAT);
    let text = strftime::format(format, moment).ok_or_else(|| VarError("invalid time format".into()))?;
    out.extend_from_slice(&text);
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::request;

    #[test]
    fn variables_of_a_page_are_forgotten() {
        let mut req = request("", "");
        let variable = |req: &mut Request| shared(req).borrow().variable(b"a").map(<[u8]>::to_vec);
        assert!(shared(&mut req).borrow_mut().set(b"a", b"secret"));
        assert_eq!(variable(&mut req).as_deref(), Some(&b"secret"[..]));
        req.modules.states.clear();
        assert_eq!(variable(&mut req), None);
        // Room for many is given back.
        for n in 0..100 {
            assert!(shared(&mut req).borrow_mut().set(format!("v{n}").as_bytes(), b""));
        }
        req.modules.states.clear();
        assert_eq!(shared(&mut req).borrow().variables.capacity(), 0);
        // A subrequest that has ended later keeps them from the next request, too.
        assert!(shared(&mut req).borrow_mut().set(b"a", b"secret"));
        let held = shared(&mut req);
        req.modules.states.clear();
        assert_eq!(variable(&mut req), None);
        drop(held);
    }
}
