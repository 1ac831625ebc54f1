//! `userid` (nginx: ngx_http_userid_filter_module): cookies that identify clients.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use forebay_conf::error::{Error, Level};
use forebay_conf::tree::Directive;
use forebay_conf::units;
use forebay_core::config::value::{OptionalSetting, Setting, first, once};
use forebay_core::keyword;
use forebay_core::vars::Names;
use forebay_core::vars::VarError;
use forebay_core::vars::{RowSource, VarId};
use forebay_http::field::Name;
use forebay_server::config::Scope;
use forebay_server::module::levels::LocationSettings;
use forebay_server::module::{HeaderFilter, Module};
use forebay_server::modules::vars::cookie_date;
use forebay_server::request::Request;
use forebay_server::request::credentials::LENIENT;
use forebay_server::request::rare::Unused;
use forebay_server::request::states::Slot;
use forebay_server::variables::Row;
use std::net::IpAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

forebay_server::module_settings! {
    /// `userid`.
    "userid" => mode: Mode = Mode { kind: CookieUse::Off, reset: None };
    /// `userid_domain`: the `domain` attribute of the cookie, empty for none.
    "userid_domain" => domain: OrNone = OrNone(Vec::new());
    /// `userid_expires`.
    "userid_expires" => expires: UidExpires = UidExpires::Session;
    /// `userid_flags`: the flags as text of the cookie.
    "userid_flags" => flags: UidFlags = UidFlags(Vec::new());
    /// `userid_mark`.
    "userid_mark" => mark: Mark = Mark(None);
    /// `userid_name`.
    "userid_name" => name: Vec<u8> = b"uid".to_vec();
    /// `userid_p3p`.
    "userid_p3p" => p3p: OrNone = OrNone(Vec::new());
    /// `userid_path`.
    "userid_path" => path: Vec<u8> = b"/".to_vec();
    /// `userid_service`.
    "userid_service" => service: Option<Service> = None;
}

/// `userid`.
pub static MODULE: Module = Module {
    settings: &[&SETTINGS],
    variables: &[VARIABLES],
    header_filters: &[HeaderFilter::new(enabled, filter)],
    ..Module::NONE
};

keyword! {
    /// Use of cookies.
    pub enum CookieUse {
        /// Cookies are ignored.
        Off = "off",
        /// Received cookies are logged, none are set.
        Log = "log",
        /// Cookies of version 1 are set.
        V1 = "v1",
        /// Cookies of version 2 are set.
        On = "on",
    }
}

/// `userid`.
#[derive(Clone, Copy, Debug)]
pub struct Mode {
    kind: CookieUse,
    /// `$uid_reset`, which the configuration may set.
    reset: Option<VarId>,
}

impl Setting<forebay_server::config::HttpContext> for Mode {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        let kind = CookieUse::take(previous.map(|p| p.kind), d, cx)?;
        Ok(Mode { kind, reset: Some(cx.vars.reference(b"uid_reset")) })
    }
}

/// A text that is empty for `none`.
#[derive(Clone, Debug)]
pub struct OrNone(Vec<u8>);

impl Setting<forebay_server::config::HttpContext> for OrNone {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        let word = first(d);
        Ok(OrNone(if word == b"none" { Vec::new() } else { word.to_vec() }))
    }
}

/// Lifetime of the cookie.
#[derive(Clone, Copy, Debug)]
pub enum UidExpires {
    /// Until the browser is closed.
    Session,
    /// Until the end of 2037.
    Max,
    /// For this number of seconds.
    After(u64),
}

impl UidExpires {
    /// Appends the attribute of the cookie. `now` is in seconds.
    fn push(self, now: i64, out: &mut Vec<u8>) {
        match self {
            UidExpires::Session => {}
            UidExpires::Max => out.extend_from_slice(b"; expires=Thu, 31-Dec-37 23:55:55 GMT"),
            UidExpires::After(seconds) => {
                let at = now.saturating_add(i64::try_from(seconds).unwrap_or(i64::MAX));
                out.extend_from_slice(b"; expires=");
                cookie_date(at, out);
            }
        }
    }
}

impl Setting<forebay_server::config::HttpContext> for UidExpires {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        Ok(match first(d) {
            b"max" => UidExpires::Max,
            b"off" => UidExpires::Session,
            word => {
                let seconds = units::time_secs(word);
                UidExpires::After(
                    seconds.ok_or_else(|| cx.error(d, "\"userid_expires\" directive invalid value"))?,
                )
            }
        })
    }
}

/// Attributes of the cookie.
#[derive(Clone, Debug)]
pub struct UidFlags(Vec<u8>);

impl Setting<forebay_server::config::HttpContext> for UidFlags {
    fn take(_: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        // In the order in which they are sent.
        let mut sent: [&[u8]; 3] = [b"", b"", b""];
        for w in &d.args {
            let word = w.text.to_ascii_lowercase();
            match FLAGS.iter().find(|(name, ..)| *name == word) {
                Some((_, place, text)) => sent[*place] = text,
                None if word == b"off" => {}
                None => return Err(cx.error_at(d, w, format!("invalid value \"{}\"", w.as_str()))),
            }
        }
        Ok(UidFlags(sent.concat()))
    }
}

/// Words of `userid_flags`, with the place and the text of each attribute.
const FLAGS: &[(&[u8], usize, &[u8])] = &[
    (b"secure", 0, b"; secure"),
    (b"httponly", 1, b"; httponly"),
    (b"samesite=strict", 2, b"; samesite=strict"),
    (b"samesite=lax", 2, b"; samesite=lax"),
    (b"samesite=none", 2, b"; samesite=none"),
];

/// `userid_mark`: character that replaces the first `=` at the end of the cookie. Cookies without it are sent again.
#[derive(Clone, Copy, Debug)]
pub struct Mark(Option<u8>);

impl Setting<forebay_server::config::HttpContext> for Mark {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        match first(d) {
            b"off" => Ok(Mark(None)),
            [b] if b.is_ascii_alphanumeric() || *b == b'=' => Ok(Mark(Some(*b))),
            _ => Err(cx.error(
                d,
                "\"userid_mark\" directive value must be \"off\" or a single letter, digit or \"=\"",
            )),
        }
    }
}

/// `userid_service`.
#[derive(Clone, Copy, Debug)]
pub struct Service(u32);

impl OptionalSetting<forebay_server::config::HttpContext> for Service {
    fn read(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        let n = units::number(first(d));
        // As in nginx, only the low 32 bits of a larger number are used.
        n.map(|n| Service(n as u32))
            .ok_or_else(|| cx.error(d, format!("\"{}\" directive invalid number", d.name.as_str())))
    }
}

/// An identifier, in the byte order of the cookie.
type Uid = [u8; 16];

/// State of this module.
static STATE: Slot<UserIdState> = Slot::new();

/// Identifiers of a request, once they are known.
#[derive(Clone, Debug, Default)]
pub struct UserIdState {
    known: Option<Identifiers>,
}

impl Unused for UserIdState {
    const UNUSED: &'static UserIdState = &UserIdState { known: None };

    fn clear(&mut self) {
        self.known = None;
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Identifiers {
    got: Option<Uid>,
    /// Identifier to send in a cookie.
    set: Option<Uid>,
}

const VARIABLES: &[Row] = &[
    Row { name: "uid_got", get: RowSource::Get(|r, o| text(r, o, |k| k.got)), settable: false },
    Row { name: "uid_set", get: RowSource::Get(|r, o| text(r, o, |k| k.set)), settable: false },
    Row { name: "uid_reset", get: RowSource::Get(|_, _| Ok(false)), settable: true },
];

/// Appends `name=` and the four words of an identifier in native byte order, as nginx logs them.
fn text(
    req: &mut Request,
    out: &mut Vec<u8>,
    which: fn(&Identifiers) -> Option<Uid>,
) -> Result<bool, VarError> {
    let known = known(req)?;
    Ok(which(&known).map(|uid| describe(req, &uid, out)).is_some())
}

fn describe(req: &Request, uid: &Uid, out: &mut Vec<u8>) {
    let http = req.http();
    out.extend_from_slice(&SETTINGS.of(&http.location(req).settings).name);
    out.push(b'=');
    for word in uid.as_chunks::<4>().0 {
        out.extend_from_slice(format!("{:08X}", u32::from_ne_bytes(*word)).as_bytes());
    }
}

/// Returns the identifiers of the request. Only the first call computes them, so log and cookie agree.
fn known(req: &mut Request) -> Result<Identifiers, VarError> {
    let http = req.http();
    let s = SETTINGS.of(&http.location(req).settings);
    if s.mode.kind == CookieUse::Off {
        return Ok(Identifiers::default());
    }
    if let Some(k) = STATE.of(req).known {
        return Ok(k);
    }
    let received = received(req, s);
    let got = received.map(|(uid, _)| uid);
    let known = Identifiers { got, set: to_set(req, s, received)? };
    STATE.of_mut(req).known = Some(known);
    Ok(known)
}

/// Returns the identifier for the cookie of the response.
fn to_set(req: &mut Request, s: &Settings, received: Option<(Uid, bool)>) -> Result<Option<Uid>, VarError> {
    match received {
        // `log` only reads the cookies that another server has set.
        _ if s.mode.kind == CookieUse::Log => Ok(None),
        // A cookie without the mark is from before a change of the configuration. It is sent again, with the
        // same identifier and new attributes.
        Some((uid, marked)) if !reset(req, s, &uid)? => Ok((!marked).then_some(uid)),
        _ => Ok(Some(make(req, s))),
    }
}

/// Returns the client's identifier, and whether its cookie has the right mark.
fn received(req: &mut Request, s: &Settings) -> Option<(Uid, bool)> {
    let value = cookie(req, &s.name)?.to_vec();
    let complain = |req: &mut Request, what: &str| {
        let (name, value) = (String::from_utf8_lossy(&s.name), String::from_utf8_lossy(&value));
        req.log(Level::Error, &format!("client sent {what} userid cookie \"{name}={value}\""));
    };
    // The 16 bytes of an identifier are 22 letters of Base64. Two letters of padding follow, and the first
    // may be the mark.
    let Some((id, rest)) = value.split_at_checked(22) else {
        complain(req, "too short");
        return None;
    };
    let Some(uid) = LENIENT.decode(id).ok().and_then(|raw| Uid::try_from(raw).ok()) else {
        complain(req, "invalid");
        return None;
    };
    let marked = match s.mark.0 {
        None => true,
        Some(mark) => rest.starts_with(&[mark, b'=']),
    };
    Some((uid, marked))
}

/// Returns the value of the first cookie with this name, ignoring case.
fn cookie<'r>(req: &'r Request, name: &[u8]) -> Option<&'r [u8]> {
    let h = &req.head;
    let lines = h.fields.iter().filter(|f| f.id == Name::Cookie).map(|f| f.value.of(&h.buf));
    let mut pairs = lines.flat_map(|l| l.split(|b| *b == b';')).map(<[u8]>::trim_ascii_start);
    pairs.find_map(|p| {
        let (n, rest) = p.split_at_checked(name.len())?;
        n.eq_ignore_ascii_case(name).then_some(rest)?.trim_ascii_start().strip_prefix(b"=")
    })
}

/// Returns `true` if `$uid_reset` asks for a new identifier.
fn reset(req: &mut Request, s: &Settings, uid: &Uid) -> Result<bool, VarError> {
    let Some(id) = s.mode.reset else { return Ok(false) };
    let value = req.var_value(id)?.unwrap_or_default();
    if value == b"log" {
        let mut shown = Vec::new();
        describe(req, uid, &mut shown);
        req.log(Level::Notice, &format!("userid cookie \"{}\" was reset", String::from_utf8_lossy(&shown)));
    }
    Ok(!matches!(value.as_slice(), b"" | b"0"))
}

/// Sequence numbers for identifiers of version 1 and, below, of version 2.
static NEXT_V1: AtomicU32 = AtomicU32::new(1);
static NEXT: AtomicU32 = AtomicU32::new(0);

/// First sequence number of version 2.
const FIRST: u32 = 0x0303_0302;

/// Returns a number that distinguishes this process from others on the host.
fn start_value(pid: u32) -> u32 {
    static START: OnceLock<u32> = OnceLock::new();
    *START.get_or_init(|| {
        let mut low = [0; 2];
        let _ = rustix::rand::getrandom(&mut low, rustix::rand::GetRandomFlags::empty());
        // The process number alone would come back after a restart in a container, so two bytes are random.
        pid << 16 | u32::from(u16::from_ne_bytes(low))
    })
}

fn make(req: &Request, s: &Settings) -> Uid {
    let now = req.thread.clock.unix() as u32;
    let start = start_value(req.thread.pid);
    let v1 = s.mode.kind == CookieUse::V1;
    let words = if v1 {
        [s.service.map_or(0, |s| s.0), now, start, NEXT_V1.fetch_add(0x100, Ordering::Relaxed)]
    } else {
        let n = FIRST.wrapping_add(NEXT.fetch_add(0x100, Ordering::Relaxed) % (u32::MAX - FIRST));
        [s.service.map_or_else(|| local(req), |s| s.0), now, start, n]
    };
    let mut uid = Uid::default();
    for (to, word) in uid.as_chunks_mut::<4>().0.iter_mut().zip(words) {
        // Version 2 has one byte order on all machines, unlike version 1.
        *to = if v1 { word.to_ne_bytes() } else { word.to_be_bytes() };
    }
    uid
}

/// Returns the server's IPv4 address, or the last 32 bits of its IPv6 address.
fn local(req: &Request) -> u32 {
    match req.local_address().map(|a| a.ip()) {
        Some(IpAddr::V4(a)) => a.to_bits(),
        Some(IpAddr::V6(a)) => a.to_bits() as u32,
        None => 0,
    }
}

/// Returns `true` if a location sets cookies.
fn enabled(s: &LocationSettings) -> bool {
    !matches!(SETTINGS.of(s).mode.kind, CookieUse::Off | CookieUse::Log)
}

/// Adds the cookie to the response.
///
/// # Errors
/// If `$uid_reset` cannot be evaluated.
fn filter(req: &mut Request) -> Result<(), VarError> {
    let Some(uid) = known(req)?.set else { return Ok(()) };
    let http = req.http();
    let s = SETTINGS.of(&http.location(req).settings);
    let mut value = [s.name.as_slice(), b"="].concat();
    let mut id = STANDARD.encode(uid).into_bytes();
    if let (Some(mark), Some(at)) = (s.mark.0, id.get_mut(22)) {
        *at = mark;
    }
    value.extend_from_slice(&id);
    s.expires.push(req.thread.clock.unix(), &mut value);
    if !s.domain.0.is_empty() {
        value.extend_from_slice(b"; domain=");
        value.extend_from_slice(&s.domain.0);
    }
    value.extend_from_slice(b"; path=");
    value.extend_from_slice(&s.path);
    value.extend_from_slice(&s.flags.0);
    req.resp.fields.push(b"Set-Cookie", &value);
    if !s.p3p.0.is_empty() {
        req.resp.fields.push(b"P3P", &s.p3p.0);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    const COOKIE: &str = "AAAAB2AAAAASNFZ4AwMDAw==";
    const TEXT: &str = "uid=07000000000000607856341203030303";

    fn run(settings: &str, lines: &str) -> (Option<String>, Option<String>, Option<String>) {
        let conf =
            format!("server {{ userid_service 7; {settings} }} map $uid_got$uid_set $x {{ default 1; }}");
        let mut req = testing::request(&conf, "");
        testing::head(&mut req, lines);
        if enabled(&req.http().location(&req).settings) {
            filter(&mut req).expect("no circle");
        }
        let sent = req.resp.fields.get(b"Set-Cookie").map(|v| String::from_utf8_lossy(v).into_owned());
        (testing::value(&mut req, "uid_got"), testing::value(&mut req, "uid_set"), sent)
    }

    #[test]
    fn cookies() {
        let with = format!("Cookie: a=b; UID={COOKIE}\n");
        assert_eq!(run("", &with), (None, None, None));
        assert_eq!(run("userid log;", &with), (Some(TEXT.into()), None, None));
        assert_eq!(run("userid log;", ""), (None, None, None));
        assert_eq!(run("userid on;", &with), (Some(TEXT.into()), None, None));
        let (got, set, sent) = run("userid on; userid_mark t;", &with);
        assert_eq!((got.as_deref(), set.as_deref()), (Some(TEXT), Some(TEXT)));
        assert_eq!(sent.as_deref(), Some("uid=AAAAB2AAAAASNFZ4AwMDAwt=; path=/"));
        let (_, set, sent) = run("userid on; userid_mark t;", &format!("Cookie: uid={}t=\n", &COOKIE[..22]));
        assert_eq!((set, sent), (None, None));
        for bad in [
            "",
            "Cookie: uid=\n",
            "Cookie: uid=short\n",
            "Cookie: uid=!!!!!!!!!!!!!!!!!!!!!!\n",
            "Cookie: xuid=1\n",
        ] {
            let (got, set, sent) = run("userid on;", bad);
            assert_eq!(got, None, "{bad}");
            assert!(set.is_some_and(|s| s.starts_with("uid=07000000") && s.len() == 36), "{bad}");
            assert!(sent.is_some_and(|s| s.starts_with("uid=AAAAB") && s.ends_with("; path=/")), "{bad}");
        }
        let (_, set, _) = run("userid v1;", "");
        assert!(set.is_some_and(|s| s.starts_with("uid=00000007")));
    }

    #[test]
    fn attributes() {
        let all = "userid on; userid_name n; userid_domain d.com; userid_path /p; userid_expires max; userid_flags \
            secure httponly samesite=lax;";
        let sent = run(all, "").2.expect("a cookie");
        let want =
            "; expires=Thu, 31-Dec-37 23:55:55 GMT; domain=d.com; path=/p; secure; httponly; samesite=lax";
        assert!(sent.starts_with("n=") && sent.ends_with(want), "{sent}");
        let mut out = Vec::new();
        cookie_date(1_795_245_758, &mut out);
        out.push(b' ');
        cookie_date(2_524_608_000, &mut out);
        assert_eq!(
            String::from_utf8_lossy(&out),
            "Sat, 21-Nov-26 07:22:38 GMT Sat, 01-Jan-2050 00:00:00 GMT"
        );
    }

    #[test]
    fn errors() {
        for (conf, want) in [
            ("userid foo;", "invalid value \"foo\""),
            ("userid_expires x;", "\"userid_expires\" directive invalid value"),
            ("userid_flags secure foo;", "invalid value \"foo\""),
            (
                "userid_mark ab;",
                "\"userid_mark\" directive value must be \"off\" or a single letter, digit or \"=\"",
            ),
            ("userid_service -1;", "\"userid_service\" directive invalid number"),
            ("server { set $uid_set 1; }", "the duplicate \"uid_set\" variable"),
        ] {
            assert_eq!(testing::error(conf).as_deref(), Some(want), "{conf}");
        }
        assert_eq!(testing::error("server { set $uid_reset 1; }"), None);
    }
}
