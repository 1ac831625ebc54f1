//! `visit URI`: a request is let in if a subrequest for a path succeeds. The response has the status of the subrequest in a field, and its
//! text in capital letters.

use forebay_core::vars::{RowSource, VarError};
use forebay_server::module::{HeaderFilter, Module, Phase, PhaseHook, Step, Verdict};
use forebay_server::request::rare::Unused;
use forebay_server::request::states::Slot;
use forebay_server::request::{Request, SubBody};
use forebay_server::response::{BodyFilter, FilterError};
use forebay_server::subrequest;
use forebay_server::variables::Row;

/// Rows of the grammar.
pub const GRAMMAR: &str = "visit\thttp_visit\thttp,server,location\t1\t\t\tyes\t";

forebay_server::module_settings! {
    /// `visit`: path of the subrequest; empty: none.
    "visit" => uri: Vec<u8> = Vec::new();
}

/// `visit`.
pub static MODULE: Module = Module {
    settings: &[&SETTINGS],
    variables: &[&[Row { name: "visit_status", get: RowSource::Get(status), settable: false }]],
    hooks: &[PhaseHook::new(
        Phase::Access,
        |s| !SETTINGS.of(s).uri.is_empty(),
        |req| Step::later(visit(req)),
    )],
    header_filters: &[HeaderFilter::new(|s| !SETTINGS.of(s).uri.is_empty(), filter)],
    ..Module::NONE
};

/// State of a request.
#[derive(Debug, Default)]
struct Visit {
    /// Status of the subrequest; 0: there was none.
    status: u16,
}

static STATE: Slot<Visit> = Slot::new();

impl Unused for Visit {
    const UNUSED: &'static Visit = &Visit { status: 0 };

    fn clear(&mut self) {
        self.status = 0;
    }
}

/// Sends the subrequest, and lets the request in if it succeeds.
async fn visit(req: &mut Request) -> Verdict {
    let http = req.http();
    let uri = &SETTINGS.of(&http.location(req).settings).uri;
    let mut sub = Request::subrequest(req, uri, b"", SubBody::None);
    subrequest::run(&mut sub, b"").await;
    let status = sub.status();
    sub.recycle();
    STATE.of_mut(req).status = status;
    if status == 200 { Verdict::Allowed } else { Verdict::Status(403) }
}

/// `$visit_status`.
fn status(req: &mut Request, out: &mut Vec<u8>) -> Result<bool, VarError> {
    match STATE.of(req).status {
        0 => Ok(false),
        status => {
            out.extend_from_slice(status.to_string().as_bytes());
            Ok(true)
        }
    }
}

/// Adds the field, and the filter of the content.
fn filter(req: &mut Request) -> Result<(), VarError> {
    let status = STATE.of(req).status.to_string();
    req.resp.fields.push(b"X-Visit", status.as_bytes());
    req.resp.filters.body.push(Box::new(Capitals));
    Ok(())
}

/// Makes capital letters of small ones. The length stays.
struct Capitals;

impl BodyFilter for Capitals {
    fn feed(&mut self, input: &[u8], _last: bool, out: &mut Vec<u8>) -> Result<(), FilterError> {
        out.extend(input.iter().map(u8::to_ascii_uppercase));
        Ok(())
    }
}
