//! A module of the HTTP front end as one value: the directives that it reads, its variables, and its part in requests (nginx:
//! `ngx_http_module_t`). `forebay-modules/src/lib.rs` lists all modules. The order of the list is the order of their hooks in a phase and of
//! their filters. Hot path.

pub mod assembly;
pub mod levels;
pub mod list;
pub mod message;
pub mod process;
pub mod settings;
pub mod sharing;
pub mod thread;

pub use assembly::ConfigHooks;
pub use settings::{Directives, SettingsOf};

use crate::body::compose;
use crate::config::Scope;
use crate::config::http::{Http, LocationBuild};
use crate::module::levels::LocationSettings;
use crate::phases::Outcome;
use crate::request::Request;
use crate::response::coding::Ranked;
use crate::variables::Row;
use forebay_conf::error::{Error, Level};
use forebay_conf::tree::Directive;
use forebay_core::vars::VarError;
use forebay_sys::pooled::Pooled;
use std::any::Any;
use std::sync::{Arc, OnceLock};

/// Hook for the end of the process.
pub type Ended = fn(&Http, &dyn Fn(Level, &str));

/// A module. Fields that it does not need come from [`Module::NONE`].
pub struct Module {
    /// Settings, with their directives.
    pub settings: &'static [&'static dyn settings::AnySettings],
    /// Directives of the http level that define something by name.
    pub http_directives: &'static [(&'static str, HttpDirective)],
    /// Directives of a location, a server or an `if` that levels inside do not inherit. Inherited ones are in the module's settings.
    pub location_directives: &'static [(&'static str, LocationDirective)],
    /// Tables of variables.
    pub variables: &'static [&'static [Row]],
    /// Hooks.
    pub hooks: &'static [PhaseHook],
    /// Header filters.
    pub header_filters: &'static [HeaderFilter],
    /// Shares state with a subrequest whose content becomes part of the response.
    pub share: Option<fn(&mut Request, &mut Request)>,
    /// Returns the commands for a text that is part of the response, if its location has any.
    pub page: Option<PageOf>,
    /// Adds trailers to the response, after its content, when variables have their final values.
    pub trailers: Option<RequestHook>,
    /// Hook of the log phase.
    pub log: Option<LogHook>,
    /// Functions that check and complete what was read.
    pub config: ConfigHooks,
    /// Prepares the process for a configuration, before its first connection.
    pub prepare: Option<fn(&Http)>,
    /// Called at the end of the process, after the last request. The second argument writes to the error log.
    pub ended: Option<Ended>,
    /// Begins the work for a configuration that goes on independently of requests.
    pub begin: Option<fn(&mut process::Beginning<'_>)>,
    /// States in worker threads.
    pub threads: &'static [&'static dyn thread::AnyThreadSlot],
}

impl Module {
    /// A module without anything.
    pub const NONE: Module = Module {
        settings: &[],
        http_directives: &[],
        location_directives: &[],
        variables: &[],
        hooks: &[],
        header_filters: &[],
        share: None,
        page: None,
        trailers: None,
        log: None,
        config: ConfigHooks::NONE,
        prepare: None,
        ended: None,
        begin: None,
        threads: &[],
    };
}

/// Reader of a directive of the http level.
pub type HttpDirective = fn(&Directive, &mut Scope<'_>) -> Result<(), Error>;
/// Reader of a directive of a level.
pub type LocationDirective = fn(&Directive, &mut LocationBuild, &mut Scope<'_>) -> Result<(), Error>;

/// Phase in which hooks run (nginx: `ngx_http_phases`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Once for a request, before the first rewrite, with the settings of the server.
    PostRead,
    /// After the rewrite directives of the location.
    Rewrite,
    /// Before access.
    PreAccess,
    /// Decides on access.
    Access,
    /// Before the content is made.
    PreContent,
    /// Makes the content, in locations without a content handler. After these hooks, index files and files answer.
    Content,
}

/// Number of phases.
const PHASES: usize = 6;

/// Decision of a hook.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Goes on with the next hook.
    Declined,
    /// Grants access. With `satisfy any` the other hooks of the phase are then skipped.
    Allowed,
    /// Answers with this status: its error page, or `Request::resp` if that is already filled in.
    Status(u16),
    /// The response in `Request::resp` is complete.
    Done,
    /// The phases start over with the path in `Request::uri`.
    Redirect,
    /// The phases go on in the named location that `Request::location` has been set to.
    Named,
}

impl From<Outcome> for Verdict {
    fn from(outcome: Outcome) -> Verdict {
        match outcome {
            Outcome::Done => Verdict::Done,
            Outcome::Status(status) => Verdict::Status(status),
            Outcome::Redirect => Verdict::Redirect,
            Outcome::Named => Verdict::Named,
        }
    }
}

impl From<Option<Outcome>> for Verdict {
    fn from(outcome: Option<Outcome>) -> Verdict {
        outcome.map_or(Verdict::Declined, Verdict::from)
    }
}

impl Verdict {
    /// Returns how a phase ends with it.
    pub fn outcome(self) -> Outcome {
        match self {
            Verdict::Declined | Verdict::Allowed | Verdict::Done => Outcome::Done,
            Verdict::Status(status) => Outcome::Status(status),
            Verdict::Redirect => Outcome::Redirect,
            Verdict::Named => Outcome::Named,
        }
    }
}

/// Result of a hook: its decision, or a future that waits and then decides.
pub enum Step<'r> {
    /// The decision.
    Now(Verdict),
    /// Waits for something: a subrequest, a timer, another thread.
    Later(Pooled<'r, Verdict>),
}

impl<'r> Step<'r> {
    /// Makes a step that waits.
    pub fn later(future: impl Future<Output = Verdict> + 'r) -> Step<'r> {
        Step::Later(Pooled::new(future))
    }

    /// Waits for the decision.
    #[inline]
    pub async fn decide(self) -> Verdict {
        match self {
            Step::Now(verdict) => verdict,
            Step::Later(future) => future.await,
        }
    }

    /// Returns the decision of a hook that does not wait.
    #[cfg(any(test, feature = "testing"))]
    pub fn now(self) -> Verdict {
        match self {
            Step::Now(verdict) => verdict,
            Step::Later(_) => panic!("the hook waits"),
        }
    }
}

impl From<Verdict> for Step<'_> {
    fn from(verdict: Verdict) -> Self {
        Step::Now(verdict)
    }
}

/// Function that returns the commands for a text that is part of the response, if its location has any.
pub type PageOf = fn(&mut Request) -> Option<Box<dyn compose::Page>>;

/// Function that looks at the request and decides how it continues.
pub type Hook = for<'r> fn(&'r mut Request) -> Step<'r>;

/// Condition under which a module takes part in the requests of a location.
pub type Enabled = fn(&LocationSettings) -> bool;

/// A hook of a phase.
pub struct PhaseHook {
    /// Phase.
    pub phase: Phase,
    /// Condition.
    pub enabled: Condition,
    /// Function.
    pub hook: Hook,
}

impl PhaseHook {
    /// Makes a hook of the locations with some settings.
    pub const fn new(phase: Phase, enabled: Enabled, hook: Hook) -> PhaseHook {
        PhaseHook { phase, enabled: Condition::Location(enabled), hook }
    }
}

/// Condition under which a hook runs.
pub enum Condition {
    /// In locations with these settings; in [`Phase::PostRead`] in servers with them.
    Location(Enabled),
    /// In all requests of a configuration, before the hooks of servers. In [`Phase::PostRead`] only.
    Http(fn(&Http) -> bool),
}

/// Changes the response before its head is written.
pub type Filter = fn(&mut Request) -> Result<(), VarError>;

/// A header filter. A filter that changes content adds a [`BodyFilter`](crate::response::BodyFilter) to the response.
pub struct HeaderFilter {
    /// Condition.
    pub enabled: Enabled,
    /// Function.
    pub filter: Filter,
    /// Effect on the head of a plain answer.
    pub head: Head,
    /// Function that returns the codings which [`Head::Coding`] depends on.
    pub codings: Option<Codings>,
    /// Responses that it is for.
    pub scope: FilterScope,
}

/// Returns the codings that the client accepts at a location, or `None` if the request alone does not decide, because fields of the
/// response count, too.
pub type Codings = fn(&Request, &LocationSettings) -> Option<Ranked>;

/// Filter that another filter has asked for because it has to wait. It runs after all other filters.
pub type LateFilter = for<'r> fn(&'r mut Request) -> Pooled<'r, ()>;

impl HeaderFilter {
    /// Makes a filter of responses with a head, which may differ from request to request.
    pub const fn new(enabled: Enabled, filter: Filter) -> HeaderFilter {
        HeaderFilter { enabled, filter, head: Head::Request, codings: None, scope: FilterScope::Heads }
    }

    /// Makes the same filter with another effect on heads.
    pub const fn with_head(self, head: Head) -> HeaderFilter {
        HeaderFilter { head, ..self }
    }

    /// Makes the same filter with an effect on heads that depends on the codings which the client accepts.
    pub const fn by_coding(self, codings: Codings) -> HeaderFilter {
        HeaderFilter { head: Head::Coding, codings: Some(codings), ..self }
    }

    /// Makes the same filter for included responses, too.
    pub const fn included(self) -> HeaderFilter {
        HeaderFilter { scope: FilterScope::Included, ..self }
    }
}

/// Effect of a filter on the head of a plain answer for a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Head {
    /// The head depends on the file alone, so that it can be remembered with the file. Conditions and ranges count as this, since the
    /// request asks for them.
    File,
    /// The head depends on the file and on the coding that the client accepts.
    Coding,
    /// The head may differ from request to request.
    Request,
}

/// Responses that a filter is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterScope {
    /// Responses with a head.
    Heads,
    /// Responses with a head, and responses of subrequests whose content becomes part of another response.
    Included,
}

/// Function that runs at the end of a request.
pub struct RequestHook {
    /// Condition.
    pub enabled: Enabled,
    /// Function.
    pub hook: fn(&mut Request),
}

/// Hook of the log phase.
#[derive(Clone, Copy, Debug)]
pub struct LogHook {
    /// Condition that a location has it.
    pub enabled: Enabled,
    /// Returns `true` if it has something to do for a request. Only then the bytes of a tunnel keep all of their request until its end.
    pub concerns: fn(&Request) -> bool,
    /// Function.
    pub hook: fn(&mut Request),
}

/// Content handler of a location, in place of files.
#[derive(Clone, Debug)]
pub struct Content(Arc<dyn Handler>);

impl Content {
    /// Makes the content of a handler.
    pub fn of(handler: impl Handler) -> Option<Content> {
        Some(Content(Arc::new(handler)))
    }

    /// Makes the response.
    #[inline]
    pub fn handle<'r>(&'r self, req: &'r mut Request) -> Step<'r> {
        self.0.handle(req)
    }

    /// Returns the needs of the handler besides the request.
    pub fn needs(&self) -> Needs {
        self.0.needs()
    }

    /// Returns the handler, if it has this type.
    pub fn handler<H: Handler>(&self) -> Option<&H> {
        let handler: &dyn Any = &*self.0;
        handler.downcast_ref()
    }
}

/// A content handler.
pub trait Handler: Any + std::fmt::Debug + Send + Sync {
    /// Makes the response.
    fn handle<'r>(&'r self, req: &'r mut Request) -> Step<'r>;

    /// Returns its needs besides the request.
    fn needs(&self) -> Needs {
        Needs::default()
    }
}

/// A content handler that does not wait.
#[derive(Debug)]
pub struct Page {
    /// Function.
    pub answer: fn(&mut Request) -> Verdict,
    /// Needs besides the request.
    pub needs: Needs,
}

impl Handler for Page {
    fn handle<'r>(&'r self, req: &'r mut Request) -> Step<'r> {
        (self.answer)(req).into()
    }

    fn needs(&self) -> Needs {
        self.needs
    }
}

/// Needs of a content handler besides the request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Needs {
    /// CONNECT. All servers accept it then, because heads are read before the location is known.
    pub connect: bool,
    /// The response comes from an upstream: a path that lacks only the final slash of its location is redirected (nginx: location), and
    /// `limit_except` in the location has the handler, too.
    pub upstream: bool,
    /// A history of the counters.
    pub history: bool,
    /// Times at which certificates expire.
    pub certificates: bool,
}

impl Needs {
    /// No needs.
    pub const NONE: Needs = Needs { connect: false, upstream: false, history: false, certificates: false };
}

/// Parts of modules that are enabled in one location, selected once when the configuration is built.
#[derive(Debug)]
pub struct Plan {
    /// Hooks of all phases, one phase after the other.
    hooks: Box<[Hook]>,
    /// End of the hooks of each phase.
    ends: [u8; PHASES],
    /// Header filters.
    pub header_filters: Box<[Filter]>,
    /// Header filters of a subrequest whose content becomes part of another response.
    included_filters: Box<[Filter]>,
    /// Facts that the head of a plain answer for a file depends on.
    pub head: Head,
    /// Codings that this head depends on.
    pub codings: Option<Codings>,
    /// Functions that add trailers.
    pub trailers: Box<[fn(&mut Request)]>,
    /// Hooks of the log phase.
    pub log: Box<[LogHook]>,
}

impl Default for Plan {
    /// Returns a plan without hooks and filters.
    fn default() -> Plan {
        Plan {
            hooks: Box::default(),
            ends: [0; PHASES],
            header_filters: Box::default(),
            included_filters: Box::default(),
            head: Head::Request,
            codings: None,
            trailers: Box::default(),
            log: Box::default(),
        }
    }
}

impl Plan {
    /// Selects the parts of modules that these settings enable.
    pub fn new(modules: &[&Module], s: &LocationSettings) -> Plan {
        const ORDER: [Phase; PHASES] = [
            Phase::PostRead,
            Phase::Rewrite,
            Phase::PreAccess,
            Phase::Access,
            Phase::PreContent,
            Phase::Content,
        ];
        let all = || modules.iter().flat_map(|module| module.hooks);
        let (mut hooks, mut ends) = (Vec::new(), [0; PHASES]);
        for phase in ORDER {
            let enabled = |h: &&PhaseHook| matches!(h.enabled, Condition::Location(is) if is(s));
            hooks.extend(all().filter(|h| h.phase == phase).filter(enabled).map(|h| h.hook));
            // No hook may be left out silently, because it could be a hook that decides on access.
            ends[phase as usize] = u8::try_from(hooks.len()).expect("fewer than 256 hooks");
        }
        let trailers = modules.iter().filter_map(|m| m.trailers.as_ref()).filter(|h| (h.enabled)(s));
        let filters = || modules.iter().flat_map(|m| m.header_filters).filter(|f| (f.enabled)(s));
        // A remembered head has to fit the filter that depends on the request most, so the greatest effect counts.
        let head = filters().map(|f| f.head).max().unwrap_or(Head::File);
        Plan {
            hooks: hooks.into(),
            ends,
            header_filters: filters().map(|f| f.filter).collect(),
            included_filters: filters()
                .filter(|f| f.scope == FilterScope::Included)
                .map(|f| f.filter)
                .collect(),
            // Some settings make the head differ from request to request even without a filter.
            head: if s.core.has_fixed_head() { head } else { Head::Request },
            codings: filters().find_map(|f| f.codings),
            trailers: trailers.map(|h| h.hook).collect(),
            log: modules.iter().filter_map(|m| m.log).filter(|h| (h.enabled)(s)).collect(),
        }
    }

    /// Returns the hooks of a phase.
    #[inline]
    pub fn hooks(&self, phase: Phase) -> &[Hook] {
        let end = |phase: usize| usize::from(self.ends[phase]);
        // The hooks of a phase begin where the hooks of the phase before it end.
        let start = (phase as usize).checked_sub(1).map_or(0, end);
        self.hooks.get(start..end(phase as usize)).unwrap_or_default()
    }

    /// Returns `true` if a hook runs between the rewrite directives and the content.
    #[inline]
    pub fn has_hooks_before_content(&self) -> bool {
        // The hooks of all phases are in one list, so two ends show whether any hooks are between them.
        self.ends[Phase::PreContent as usize] > self.ends[Phase::PostRead as usize]
    }
}

/// Returns the hooks that run first in all requests of a configuration.
pub fn first_hooks(modules: &[&Module], http: &Http) -> Vec<Hook> {
    let hooks = modules.iter().flat_map(|module| module.hooks);
    hooks.filter(|h| matches!(h.enabled, Condition::Http(is) if is(http))).map(|h| h.hook).collect()
}

/// Has modules share their state with a subrequest whose content becomes part of the response.
pub fn share(req: &mut Request, sub: &mut Request) {
    type Share = fn(&mut Request, &mut Request);
    // Few modules share anything, so the list of all modules is searched only once.
    static ALL: OnceLock<Vec<Share>> = OnceLock::new();
    let all = ALL.get_or_init(|| list::all().iter().filter_map(|module| module.share).collect());
    all.iter().for_each(|share| share(req, sub));
}

/// Returns the commands for a text that is part of the response, if its location has any.
pub fn page(req: &mut Request) -> Option<Box<dyn compose::Page>> {
    list::all().iter().filter_map(|module| module.page).find_map(|page| page(req))
}

/// Runs the filters of a subrequest whose content becomes part of another.
///
/// # Errors
/// If a variable cannot be evaluated.
pub fn filter_included(req: &mut Request) -> Result<(), VarError> {
    let http = req.http();
    http.location(req).plan.included_filters.iter().try_for_each(|filter| filter(req))
}
