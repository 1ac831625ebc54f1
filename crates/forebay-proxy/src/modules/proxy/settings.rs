//! Directives of `proxy_pass` (nginx: ngx_http_proxy_module), which the other protocols have under names of their own as
//! well.

use crate::upstream::attempts::Rules;
use crate::upstream::spool::{AheadLimits, Keep};
use forebay_conf::error::Error;
use forebay_conf::tree::{Directive, Word};
use forebay_core::config::value::{Buffers, Msec, Number, Setting, Size, first, once};
use forebay_core::keyword;
use forebay_core::upstream::greeting::SendProxy;
use forebay_core::upstream::lease::ConnectionDrop;
use forebay_core::vars::Template;
use forebay_core::vars::VarError;
use forebay_http::field::Name;
use forebay_net::relay::Timeouts;
use forebay_server::config::Scope;
use forebay_server::modules::core::TempPath;
use forebay_server::request::Request;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

forebay_server::module_settings! {
    /// `proxy_set_header`.
    "proxy_set_header" => set_header: SetHeaders = SetHeaders::default();
    /// `proxy_set_body`.
    "proxy_set_body" => set_body: Value = Value(None);
    /// `proxy_method`.
    "proxy_method" => method: Value = Value(None);
    /// `proxy_http_version`.
    "proxy_http_version" => http_version: HttpVersion = HttpVersion::V11;
    /// `proxy_protocol`: what connections begin with.
    // nginx has this directive for the stream module only.
    "proxy_protocol" => protocol_header: SendProxy = SendProxy::Off;
    /// `proxy_pass_header`.
    "proxy_pass_header" => pass_header: FieldNames = FieldNames::default();
    /// `proxy_hide_header`.
    "proxy_hide_header" => hide_header: FieldNames = FieldNames::default();
    /// `proxy_ignore_headers`.
    "proxy_ignore_headers" => ignore_headers: Ignored = Ignored::default();
    /// `proxy_pass_request_headers`.
    "proxy_pass_request_headers" => pass_request_headers: bool = true;
    /// `proxy_pass_request_body`.
    "proxy_pass_request_body" => pass_request_body: bool = true;
    /// `proxy_redirect`.
    "proxy_redirect" => redirect: Redirects = Redirects(Arc::new(vec![Redirect::Default]));
    /// `proxy_intercept_errors`.
    "proxy_intercept_errors" => intercept_errors: bool = false;
    /// `proxy_next_upstream`.
    "proxy_next_upstream" => next_upstream: NextMask = NextMask::DEFAULT;
    /// `proxy_next_upstream_tries`; 0 = no limit.
    "proxy_next_upstream_tries" => next_upstream_tries: Number = Number(0);
    /// `proxy_next_upstream_again`.
    "proxy_next_upstream_again" => next_upstream_again: bool = false;
    /// `proxy_next_upstream_delay`.
    "proxy_next_upstream_delay" => next_upstream_delay: Msec = Msec(Duration::ZERO);
    /// `proxy_next_upstream_timeout`; 0 = no limit.
    "proxy_next_upstream_timeout" => next_upstream_timeout: Msec = Msec(Duration::ZERO);
    /// `proxy_response_timeout`; 0 = no limit.
    "proxy_response_timeout" => response_timeout: Msec = Msec(Duration::ZERO);
    /// `proxy_connect_timeout`.
    "proxy_connect_timeout" => connect_timeout: Msec = Msec(Duration::from_secs(60));
    /// `proxy_send_timeout`.
    "proxy_send_timeout" => send_timeout: Msec = Msec(Duration::from_secs(60));
    /// `proxy_read_timeout`.
    "proxy_read_timeout" => read_timeout: Msec = Msec(Duration::from_secs(60));
    /// `proxy_connection_drop` (Angie).
    "proxy_connection_drop" => connection_drop: ConnectionDrop = ConnectionDrop::default();
    /// `proxy_request_buffering`.
    "proxy_request_buffering" => request_buffering: bool = true;
    /// `proxy_buffer_size`: longest head of a response, bytes.
    "proxy_buffer_size" => buffer_size: Size = Size(4096);
    /// `proxy_ignore_client_abort`.
    "proxy_ignore_client_abort" => ignore_client_abort: bool = false;
    /// `proxy_pass_trailers`.
    "proxy_pass_trailers" => pass_trailers: bool = false;
    /// `proxy_socket_keepalive`.
    "proxy_socket_keepalive" => socket_keepalive: bool = false;
    /// `proxy_force_ranges`.
    "proxy_force_ranges" => force_ranges: bool = false;
    /// `proxy_buffering`.
    "proxy_buffering" => buffering: bool = true;
    /// `proxy_buffers`: how much is read ahead in memory.
    "proxy_buffers" => buffers: Buffers = Buffers { count: 8, size: 4096 };
    /// `proxy_busy_buffers_size`: checked only, what is sent is not held back from reading.
    "proxy_busy_buffers_size" => busy_buffers_size: Option<Size> = None;
    /// `proxy_max_temp_file_size`, bytes; 0 = no file.
    "proxy_max_temp_file_size" => max_temp_file_size: Size = Size(1024 << 20);
    /// `proxy_temp_file_write_size`: number of bytes in memory from which some are written.
    "proxy_temp_file_write_size" => temp_file_write_size: Option<Size> = None;
    /// `proxy_temp_path`.
    "proxy_temp_path" => temp_path: TempPath = TempPath(None);
    /// `proxy_limit_rate`.
    "proxy_limit_rate" => limit_rate: Value = Value(None);
    /// `proxy_store`.
    "proxy_store" => store: Store = Store::Off;
    /// `proxy_store_access`.
    "proxy_store_access" => store_access: StoreAccess = StoreAccess(0o600);
}

impl Settings {
    /// Returns how much of a response is read ahead of the client.
    pub fn ahead(&self) -> AheadLimits {
        let memory = self.buffers.count.saturating_mul(self.buffers.size).saturating_add(self.buffer_size.0);
        // The bound limits the memory for each slow client, whatever the configuration says.
        let memory = usize::try_from(memory).unwrap_or(usize::MAX).min(64 << 20);
        AheadLimits { memory, file: self.max_temp_file_size.0 }
    }

    /// Returns the timeouts of an upstream whose protocol was switched.
    pub(super) fn relay_timeouts(&self) -> Timeouts {
        Timeouts { read: self.read_timeout.0, send: self.send_timeout.0 }
    }

    /// Returns the place at which a response is to be stored, if at all (nginx: proxy_store).
    pub(super) fn store(&self, req: &mut Request) -> Result<Option<Keep>, VarError> {
        let mut path = Vec::new();
        let named = match &self.store {
            Store::Off => return Ok(None),
            Store::On => forebay_server::modules::static_file::map_path(req, &mut path),
            Store::Path(t) => t.eval(req, &mut path),
        };
        named?;
        let h = &req.modules.upstream.head;
        // As in nginx, only a 200 is stored, since a file carries no status.
        if h.status != 200 || path.is_empty() || path.contains(&0) || path.ends_with(b"/") {
            return Ok(None);
        }
        let modified = h.get(Name::LastModified).and_then(forebay_http::date::parse);
        let path = std::ffi::OsStr::from_bytes(&path);
        let prefix = std::path::Path::new(std::ffi::OsStr::from_bytes(&req.conf.config.prefix));
        Ok(Some(Keep::Store { path: prefix.join(path), mode: self.store_access.0, modified }))
    }

    /// Returns the rules by which another server is asked.
    pub fn rules(&self) -> Rules {
        let tries = tries(self.next_upstream_tries);
        let (timeout, again) = (self.next_upstream_timeout.0, self.next_upstream_again);
        Rules { next: self.next_upstream, tries, timeout, again, delay: self.next_upstream_delay.0 }
    }
}

/// Returns the number of servers that are asked for one request at most (nginx: proxy_next_upstream_tries).
pub fn tries(written: Number) -> usize {
    match written.0 {
        0 => usize::MAX,
        n => usize::try_from(n).unwrap_or(usize::MAX),
    }
}

/// `proxy_store`.
#[derive(Clone, Debug)]
pub enum Store {
    /// Nothing is stored.
    Off,
    /// Under the name that `root` or `alias` give.
    On,
    /// Under this name.
    Path(Template),
}

impl Setting<forebay_server::config::HttpContext> for Store {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        let Some(w) = d.args.first() else { return Ok(Store::Off) };
        match w.text.as_slice() {
            b"off" => Ok(Store::Off),
            b"on" => Ok(Store::On),
            _ => Ok(Store::Path(cx.template(d, w)?)),
        }
    }
}

/// `proxy_store_access`: the mode of stored files.
#[derive(Clone, Copy, Debug)]
pub struct StoreAccess(pub u32);

impl Setting<forebay_server::config::HttpContext> for StoreAccess {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        // As in nginx, the owner of the file may always read and write it.
        let mut mode = 0o600;
        for w in &d.args {
            let bits = mode_bits(&w.text);
            mode |= bits.ok_or_else(|| cx.error_at(d, w, format!("invalid value \"{}\"", w.as_str())))?;
        }
        Ok(StoreAccess(mode))
    }
}

/// Returns the bits of a mode that a word such as `group:rw` stands for.
fn mode_bits(word: &[u8]) -> Option<u32> {
    let (class, rights) = word.split_at(memchr::memchr(b':', word)?);
    let (_, places) = CLASSES.iter().find(|(name, _)| *name == class)?;
    let (_, bits) = RIGHTS.iter().find(|(name, _)| *name == rights)?;
    Some(bits * places)
}

/// Classes of users, and the lowest bits of their rights in a mode.
const CLASSES: [(&[u8], u32); 3] = [(b"user", 0o100), (b"group", 0o010), (b"all", 0o011)];

/// Rights, and their bits for one class.
const RIGHTS: [(&[u8], u32); 2] = [(b":rw", 6), (b":r", 4)];

keyword! {
    /// `proxy_http_version`.
    #[derive(Hash)]
    pub enum HttpVersion { V10 = "1.0", V11 = "1.1", V2 = "2", V3 = "3", }
}

/// A value that may be given once.
#[derive(Clone, Debug)]
pub struct Value(pub Option<Template>);

impl Setting<forebay_server::config::HttpContext> for Value {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        match d.args.first() {
            Some(w) => Ok(Value(Some(cx.template(d, w)?))),
            None => Ok(Value(None)),
        }
    }
}

/// Lines of `proxy_set_header`.
#[derive(Clone, Debug, Default)]
pub struct SetHeaders(pub Arc<Vec<SetHeader>>);

/// A line of `proxy_set_header`.
#[derive(Clone, Debug)]
pub struct SetHeader {
    /// Name of the field as written.
    pub name: Vec<u8>,
    /// Number of a known name.
    pub id: Name,
    /// Value of the field.
    pub value: Template,
}

impl SetHeaders {
    /// Returns `true` if there is a line for a field with this name.
    pub fn has(&self, id: Name, name: &[u8]) -> bool {
        self.0.iter().any(|h| h.id == id && (id != Name::Other || h.name.eq_ignore_ascii_case(name)))
    }
}

impl Setting<forebay_server::config::HttpContext> for SetHeaders {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        let mut lines = previous.map(|p| Arc::unwrap_or_clone(p.0)).unwrap_or_default();
        if let Some(value) = d.args.get(1) {
            let name = first(d).to_vec();
            let line = SetHeader { id: Name::of(&name), name, value: cx.template(d, value)?.folded() };
            if line.id == Name::Host {
                // A request has a single `Host`. As in nginx the last line counts and is sent first, while all lines with
                // other names are sent.
                lines.retain(|l| l.id != Name::Host);
                lines.insert(0, SetHeader { name: b"Host".to_vec(), ..line });
            } else {
                lines.push(line);
            }
        }
        Ok(SetHeaders(Arc::new(lines)))
    }
}

/// Field names.
#[derive(Clone, Debug, Default)]
pub struct FieldNames(pub Arc<Vec<Vec<u8>>>);

impl FieldNames {
    /// Returns `true` if the list has a name. Case does not count.
    pub fn has(&self, name: &[u8]) -> bool {
        self.0.iter().any(|n| n.eq_ignore_ascii_case(name))
    }
}

impl Setting<forebay_server::config::HttpContext> for FieldNames {
    fn take(previous: Option<Self>, d: &Directive, _cx: &mut Scope<'_>) -> Result<Self, Error> {
        let mut names = previous.map(|p| Arc::unwrap_or_clone(p.0)).unwrap_or_default();
        names.extend(d.args.iter().map(|w| w.text.clone()));
        Ok(FieldNames(Arc::new(names)))
    }
}

/// Fields of a response that are not honoured (nginx: proxy_ignore_headers).
#[derive(Clone, Debug, Default)]
pub struct Ignored(FieldNames);

impl Ignored {
    const ALL: [&[u8]; 9] = [
        b"X-Accel-Redirect",
        b"X-Accel-Expires",
        b"X-Accel-Limit-Rate",
        b"X-Accel-Buffering",
        b"X-Accel-Charset",
        b"Expires",
        b"Cache-Control",
        b"Set-Cookie",
        b"Vary",
    ];

    /// Returns `true` if the list has a name. Case does not count.
    pub fn has(&self, name: &[u8]) -> bool {
        self.0.has(name)
    }
}

impl Setting<forebay_server::config::HttpContext> for Ignored {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        for w in &d.args {
            if !Ignored::ALL.iter().any(|n| n.eq_ignore_ascii_case(&w.text)) {
                return Err(cx.error_at(d, w, format!("invalid value \"{}\"", w.as_str())));
            }
        }
        FieldNames::take(previous.map(|p| p.0), d, cx).map(Ignored)
    }
}

/// One `proxy_redirect`.
#[derive(Clone, Debug)]
pub enum Redirect {
    /// `default`: the location in place of the `proxy_pass`.
    Default,
    /// A prefix and what replaces it.
    Prefix(Template, Template),
    /// A pattern and what replaces the whole.
    Pattern(forebay_core::pattern::Pattern, Template),
}

impl Redirect {
    /// Reads the words of the directive. Returns `None` for `off`.
    fn parse(d: &Directive, cx: &mut Scope<'_>) -> Result<Option<Redirect>, Error> {
        match d.args.as_slice() {
            [from, to, ..] => Redirect::read(d, from, to, cx).map(Some),
            [w] if w.text == b"default" => Ok(Some(Redirect::Default)),
            [w] if w.text != b"off" => {
                Err(cx.error_at(d, w, format!("invalid parameter \"{}\"", w.as_str())))
            }
            _ => Ok(None),
        }
    }

    fn read(d: &Directive, from: &Word, to: &Word, cx: &mut Scope<'_>) -> Result<Redirect, Error> {
        let to = cx.template(d, to)?;
        match as_pattern(&from.text, false) {
            Some((p, caseless)) => Ok(Redirect::Pattern(cx.pattern(d, p, caseless)?, to)),
            None => Ok(Redirect::Prefix(cx.template(d, from)?, to)),
        }
    }
}

/// Returns the pattern after `~` or `~*`, and whether it ignores case. `~` alone ignores case if `caseless` is set.
pub fn as_pattern(text: &[u8], caseless: bool) -> Option<(&[u8], bool)> {
    match text {
        [b'~', b'*', p @ ..] => Some((p, true)),
        [b'~', p @ ..] => Some((p, caseless)),
        _ => None,
    }
}

/// Refuses `off` together with other directives of the same level. `previous` is empty after `off`.
pub fn check_off<T>(previous: Option<&Vec<T>>, d: &Directive, cx: &Scope<'_>) -> Result<(), Error> {
    let off = d.args.len() == 1 && first(d) == b"off";
    match previous {
        Some(p) if off || p.is_empty() => Err(cx.directive_error(d, "is duplicate")),
        _ => Ok(()),
    }
}

/// All `proxy_redirect` of a level. Empty for `off`.
#[derive(Clone, Debug)]
pub struct Redirects(pub Arc<Vec<Redirect>>);

impl Setting<forebay_server::config::HttpContext> for Redirects {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        check_off(previous.as_ref().map(|p| p.0.as_ref()), d, cx)?;
        let mut all = previous.map(|p| Arc::unwrap_or_clone(p.0)).unwrap_or_default();
        all.extend(Redirect::parse(d, cx)?);
        Ok(Redirects(Arc::new(all)))
    }
}

/// Failure of a server after which the next one may be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum NextUpstream {
    Error,
    Timeout,
    InvalidHeader,
    NonIdempotent,
    Http403,
    Http404,
    Http429,
    Http500,
    Http502,
    Http503,
    Http504,
    /// Another status, which `http_NUMBER` names.
    HttpOther,
}

/// Failures that are a status of the response.
const STATUSES: &[(u16, &[u8], NextUpstream)] = &[
    (403, b"http_403", NextUpstream::Http403),
    (404, b"http_404", NextUpstream::Http404),
    (429, b"http_429", NextUpstream::Http429),
    (500, b"http_500", NextUpstream::Http500),
    (502, b"http_502", NextUpstream::Http502),
    (503, b"http_503", NextUpstream::Http503),
    (504, b"http_504", NextUpstream::Http504),
];

impl NextUpstream {
    /// Returns the failure that a status is.
    pub fn of_status(status: u16) -> Option<NextUpstream> {
        STATUSES.iter().find(|(s, ..)| *s == status).map(|(.., kind)| *kind)
    }

    /// Returns the failure with a name `http_...`. Only servers that may be gateways answer 502 and 504.
    pub fn of_status_name(word: &[u8], gateway: bool) -> Option<NextUpstream> {
        let (status, _, kind) = STATUSES.iter().find(|(_, name, _)| *name == word)?;
        (gateway || !matches!(status, 502 | 504)).then_some(*kind)
    }
}

/// `proxy_next_upstream`: a set.
#[derive(Clone, Copy, Debug)]
pub struct NextMask {
    /// Bits of the failures.
    kinds: u32,
    /// Bits of the statuses from 400 that are no failures of their own.
    statuses: [u64; 4],
}

/// Bit for `off`, in addition to the bits of the failures.
pub const OFF: u32 = 1 << 31;

impl NextMask {
    /// The default.
    pub const DEFAULT: NextMask =
        NextMask::of(1 << NextUpstream::Error as u32 | 1 << NextUpstream::Timeout as u32);

    const fn of(kinds: u32) -> NextMask {
        NextMask { kinds, statuses: [0; 4] }
    }

    /// Returns `true` if the set has a kind.
    pub fn has(self, kind: NextUpstream) -> bool {
        match kind {
            // A status is only this kind if the set has it.
            NextUpstream::HttpOther => self.statuses != [0; 4],
            _ => self.kinds & (1 << kind as u32) != 0,
        }
    }

    /// Returns the failure that a status is, if the set has it.
    pub fn of_status(self, status: u16) -> Option<NextUpstream> {
        match NextUpstream::of_status(status) {
            Some(kind) => Some(kind).filter(|kind| self.has(*kind)),
            None => {
                let index = usize::from(status.checked_sub(400)?);
                let bits = self.statuses.get(index / 64)?;
                (bits >> (index % 64) & 1 != 0).then_some(NextUpstream::HttpOther)
            }
        }
    }

    /// Returns the set of a word `http_NUMBER`, with a status that nginx has no word for.
    fn of_other_status(word: &[u8]) -> Option<NextMask> {
        let digits = word.strip_prefix(b"http_")?;
        let status = forebay_conf::units::number(digits)?;
        let index = usize::try_from(status).ok()?.checked_sub(400).filter(|index| *index < 200)?;
        let mut mask = NextMask::of(0);
        *mask.statuses.get_mut(index / 64)? |= 1 << (index % 64);
        (digits.len() == 3).then_some(mask)
    }

    fn add(&mut self, other: NextMask) {
        self.kinds |= other.kinds;
        self.statuses.iter_mut().zip(other.statuses).for_each(|(own, bits)| *own |= bits);
    }
}

/// Returns `true` if the servers of a directive may be gateways, which answer 502 and 504.
pub fn says_gateway(d: &Directive) -> bool {
    [&b"fastcgi_"[..], b"uwsgi_", b"scgi_"].iter().all(|prefix| !d.name.text.starts_with(prefix))
}

/// Returns `true` for a directive that takes any status from 400 to 599.
fn names_statuses(d: &Directive) -> bool {
    matches!(d.name.text.as_slice(), b"proxy_next_upstream" | b"grpc_next_upstream")
}

impl Setting<forebay_server::config::HttpContext> for NextMask {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        let family = Failures::of(d);
        // As in nginx, several directives of a level add up, and `off` stays.
        let mut mask = previous.unwrap_or(NextMask::of(0));
        for w in &d.args {
            let word = w.text.to_ascii_lowercase();
            let other = || NextMask::of_other_status(&word).filter(|_| names_statuses(d));
            let found = family.bits(&word, d).map(NextMask::of).or_else(other);
            mask.add(found.ok_or_else(|| cx.error_at(d, w, format!("invalid value \"{}\"", w.as_str())))?);
        }
        Ok(if mask.kinds & OFF != 0 { NextMask::of(OFF) } else { mask })
    }
}

/// Directives with the same failures.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Failures {
    Http,
    /// A tunnel has no response to judge.
    Tunnel,
    /// memcached has no status.
    Memcached,
}

impl Failures {
    fn of(d: &Directive) -> Failures {
        let name = d.name.text.as_slice();
        if name.starts_with(b"tunnel_") {
            Failures::Tunnel
        } else if name.starts_with(b"memcached_") {
            Failures::Memcached
        } else {
            Failures::Http
        }
    }

    /// Returns the bits of a word in a [`NextMask`].
    fn bits(self, word: &[u8], d: &Directive) -> Option<u32> {
        match word {
            b"off" => Some(OFF),
            // nginx reads this directive by the table of `proxy_cache_use_stale`, so it accepts the word, which has no
            // effect here.
            b"updating" if self == Failures::Http && !d.name.text.starts_with(b"grpc_") => Some(0),
            _ => self.failure(word, says_gateway(d)).map(|kind| 1 << kind as u32),
        }
    }

    fn failure(self, word: &[u8], gateway: bool) -> Option<NextUpstream> {
        match (self, word) {
            (_, b"error") => Some(NextUpstream::Error),
            (_, b"timeout") => Some(NextUpstream::Timeout),
            (Failures::Memcached, b"not_found") => Some(NextUpstream::Http404),
            (Failures::Memcached, b"invalid_response") => Some(NextUpstream::InvalidHeader),
            (Failures::Http, b"invalid_header") => Some(NextUpstream::InvalidHeader),
            (Failures::Http, b"non_idempotent") => Some(NextUpstream::NonIdempotent),
            (Failures::Http, _) => NextUpstream::of_status_name(word, gateway),
            _ => None,
        }
    }
}
