//! `secure_link` (nginx: ngx_http_secure_link_module).

use base64::Engine;
use base64::alphabet::URL_SAFE;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_conf::units;
use forebay_core::vars::RowSource;
use forebay_core::vars::Template;
use forebay_core::vars::VarError;
use forebay_server::config::Scope;
use forebay_server::module::{Directives, Module, SettingsOf};
use forebay_server::request::Request;
use forebay_server::request::rare::Unused;
use forebay_server::request::states::Slot;
use forebay_server::variables::Row;
use md5::{Digest, Md5};

mod table {
    use forebay_core::vars::Template;

    forebay_core::settings! {
        /// `secure_link`: checksum and, after a comma, expiry time.
        "secure_link" => link: Option<Template> = None;
        /// `secure_link_md5`.
        "secure_link_md5" => md5: Option<Template> = None;
        /// `secure_link_secret`.
        "secure_link_secret" => secret: Vec<u8> = Vec::new();
    }
}

pub use table::Settings;

/// Settings of one level. The two modes of the module exclude each other.
#[derive(Clone, Debug, Default)]
pub struct Written(table::Written);

/// Settings of this module.
pub static SETTINGS: SettingsOf<Written> = SettingsOf::new();

impl Directives for Written {
    type Settings = Settings;
    const DIRECTIVES: &'static [&'static str] = table::Written::DIRECTIVES;

    fn set(&mut self, d: &Directive, cx: &mut Scope<'_>) -> Result<bool, Error> {
        let taken = self.0.set(d, cx)?;
        if taken && self.0.secret.is_some() && self.by_md5() {
            let message =
                "\"secure_link_secret\" cannot be mixed with \"secure_link\" and \"secure_link_md5\"";
            return Err(cx.error(d, message));
        }
        Ok(taken)
    }

    /// Copies settings that this level left unset from `parent`, except those of the other mode.
    fn inherit(&mut self, parent: &Written) {
        let (secret, md5) = (self.0.secret.is_some(), self.by_md5());
        self.0.inherit(&parent.0);
        // A level that uses one mode must not get directives of the other mode from the level above.
        if secret {
            self.0.link = None;
            self.0.md5 = None;
        }
        if md5 {
            self.0.secret = None;
        }
    }

    /// Applies the defaults.
    fn resolve(&self) -> Settings {
        self.0.resolve()
    }
}

impl Written {
    fn by_md5(&self) -> bool {
        self.0.link.is_some() || self.0.md5.is_some()
    }
}

/// State of this module.
static STATE: Slot<LinkState> = Slot::new();

/// Values of the variables for a request.
#[derive(Clone, Debug, Default)]
pub struct LinkState {
    /// `$secure_link`, once it has been evaluated.
    link: Option<Option<Vec<u8>>>,
    /// `$secure_link_expires`.
    expires: Option<Vec<u8>>,
}

impl Unused for LinkState {
    const UNUSED: &'static LinkState = &LinkState { link: None, expires: None };

    fn clear(&mut self) {
        *self = LinkState::default();
    }
}

/// `secure_link`.
pub static MODULE: Module = Module { settings: &[&SETTINGS], variables: &[VARIABLES], ..Module::NONE };

const VARIABLES: &[Row] = &[
    Row { name: "secure_link", get: RowSource::Get(link), settable: false },
    Row { name: "secure_link_expires", get: RowSource::Get(expires), settable: false },
];

fn link(req: &mut Request, out: &mut Vec<u8>) -> Result<bool, VarError> {
    if STATE.of(req).link.is_none() {
        let found = judge(req)?;
        STATE.of_mut(req).link = Some(found);
    }
    let found = STATE.of(req).link.as_ref().and_then(Option::as_ref);
    Ok(found.map(|v| out.extend_from_slice(v)).is_some())
}

/// Appends `$secure_link_expires`. As in nginx, it has a value only after `$secure_link` has been evaluated.
fn expires(req: &mut Request, out: &mut Vec<u8>) -> Result<bool, VarError> {
    Ok(STATE.of(req).expires.as_ref().map(|v| out.extend_from_slice(v)).is_some())
}

fn judge(req: &mut Request) -> Result<Option<Vec<u8>>, VarError> {
    let http = req.http();
    let s = SETTINGS.of(&http.location(req).settings);
    if !s.secret.is_empty() {
        // The target counts as the client sent it, before decoding and rewriting, since links are made for
        // that form.
        return Ok(by_secret(req.head.target.of(&req.head.buf), &s.secret));
    }
    match (&s.link, &s.md5) {
        (Some(link), Some(md5)) => by_md5(req, link, md5),
        _ => Ok(None),
    }
}

/// Checks a target `/prefix/hash/link`, where the hash covers link and secret. Returns the link.
fn by_secret(target: &[u8], secret: &[u8]) -> Option<Vec<u8>> {
    let mut parts = target.strip_prefix(b"/")?.splitn(3, |b| *b == b'/');
    let (_, hash, link) = (parts.next()?, parts.next()?, parts.next()?);
    let want = hexadecimal(hash)?;
    let got: [u8; 16] = Md5::new().chain_update(link).chain_update(secret).finalize().into();
    (want == got && !link.is_empty()).then(|| link.to_vec())
}

/// Decodes an MD5 hash of 32 hexadecimal digits.
fn hexadecimal(digits: &[u8]) -> Option<[u8; 16]> {
    // An MD5 digest has 16 bytes, each of them two digits.
    if digits.len() != 32 {
        return None;
    }
    let mut hash = [0; 16];
    for (byte, pair) in hash.iter_mut().zip(digits.chunks(2)) {
        // The number parser would take a sign for the first digit.
        let pair = std::str::from_utf8(pair).ok().filter(|p| !p.starts_with('+'))?;
        *byte = u8::from_str_radix(pair, 16).ok()?;
    }
    Some(hash)
}

/// Base64 with the URL-safe alphabet. Padding is optional.
const URL: GeneralPurpose = GeneralPurpose::new(
    &URL_SAFE,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

fn by_md5(req: &mut Request, link: &Template, md5: &Template) -> Result<Option<Vec<u8>>, VarError> {
    let value = link.value(req)?;
    let mut parts = value.splitn(2, |b| *b == b',');
    let (sum, expiry) = (parts.next().unwrap_or_default(), parts.next());
    let mut until = None;
    if let Some(text) = expiry {
        let Some(t) = units::number(text).and_then(|n| i64::try_from(n).ok()).filter(|n| *n > 0) else {
            return Ok(None);
        };
        until = Some(t);
        STATE.of_mut(req).expires = Some(text.to_vec());
    }
    // Links may leave out the padding, or have it, without a difference.
    let sum = sum.split(|b| *b == b'=').next().unwrap_or_default();
    let Ok(want) = URL.decode(sum) else { return Ok(None) };
    let text = md5.value(req)?;
    if want != Md5::digest(&text).as_slice() {
        return Ok(None);
    }
    // The time is checked after the checksum, so only links of the site itself can be expired.
    let expired = until.is_some_and(|t| t < req.thread.clock.unix());
    Ok(Some(if expired { b"0".to_vec() } else { b"1".to_vec() }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn secrets() {
        let of = |target: &str| {
            by_secret(target.as_bytes(), b"word").map(|v| String::from_utf8_lossy(&v).into_owned())
        };
        assert_eq!(of("/ss/45c7b1dabbdd441a161852d6e82f9784/a/b").as_deref(), Some("a/b"));
        assert_eq!(of("/ss/45C7B1DABBDD441A161852D6E82F9784/a/b").as_deref(), Some("a/b"));
        for bad in [
            "/ss/45c7b1dabbdd441a161852d6e82f9784/a/c",
            "/ss/45c7b1dabbdd441a161852d6e82f9784",
            "/ss/c47d187067c6cf953245f128b5fde62a/",
            "/ss/x/a",
            "/ss//a",
            "/",
            "",
            "/ss/+5c7b1dabbdd441a161852d6e82f9784/a/b",
        ] {
            assert_eq!(of(bad), None, "{bad}");
        }
    }

    #[test]
    fn checksums() {
        let conf = "server { secure_link $arg_s,$arg_e; secure_link_md5 k/sl$secure_link_expires; }
            map $secure_link$secure_link_expires $x { default $secure_link; }";
        let mut req = testing::request(conf, "");
        for (args, link, until) in [
            ("s=k97qB35ems-gG8cUsLjOeA&e=2147483647", Some("1"), Some("2147483647")),
            ("s=k97qB35ems-gG8cUsLjOeA==&e=2147483647", Some("1"), Some("2147483647")),
            ("s=PaCSIQsFVBhuymUKiym4kg&e=1", Some("0"), Some("1")),
            ("s=bad&e=2147483647", None, Some("2147483647")),
            ("s=hOYC6OlWWyM6iCWOA-nFaA&e=0", None, None),
            ("s=k97qB35ems+gG8cUsLjOeA&e=2147483647", None, Some("2147483647")),
            ("", None, None),
        ] {
            testing::again(&mut req, args);
            assert_eq!(testing::value(&mut req, "secure_link_expires"), None);
            assert_eq!(testing::value(&mut req, "secure_link").as_deref(), link, "{args}");
            assert_eq!(testing::value(&mut req, "secure_link_expires").as_deref(), until, "{args}");
        }
    }

    #[test]
    fn not_mixed() {
        let want = "\"secure_link_secret\" cannot be mixed with \"secure_link\" and \"secure_link_md5\"";
        for conf in ["secure_link_secret a; secure_link b;", "secure_link_md5 a; secure_link_secret b;"] {
            assert_eq!(testing::error(conf).as_deref(), Some(want), "{conf}");
        }
        assert_eq!(
            testing::error("secure_link_secret a; server { secure_link b; secure_link_md5 c; }"),
            None
        );
    }
}
