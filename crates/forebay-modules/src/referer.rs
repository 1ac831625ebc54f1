//! `valid_referers` (nginx: ngx_http_referer_module).

use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_core::config::names::ServerName;
use forebay_core::config::value::OptionalSetting;
use forebay_core::pattern::set::Patterns;
use forebay_core::pattern::{LimitExceeded, Pattern};
use forebay_core::vars::HostTable;
use forebay_core::vars::RowSource;
use forebay_core::vars::VarError;
use forebay_http::field::Name;
use forebay_server::config::Scope;
use forebay_server::module::ConfigHooks;
use forebay_server::module::Module;
use forebay_server::request::Request;
use forebay_server::variables::Row;
use std::sync::Arc;

forebay_server::module_settings! {
    /// `valid_referers`.
    "valid_referers" => valid: Option<Valid> = None;
}

/// Allowed values of `Referer`.
#[derive(Clone, Debug, Default)]
pub struct Referers {
    none: bool,
    blocked: bool,
    server_names: bool,
    /// Prefix of the path by host, empty for any path.
    hosts: HostTable<Box<[u8]>>,
    regexes: Patterns,
}

/// `valid_referers`.
#[derive(Clone, Debug, Default)]
pub struct Valid(Arc<Referers>);

impl OptionalSetting<forebay_server::config::HttpContext> for Valid {
    fn read(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        let mut all = previous.unwrap_or_default();
        let list = Arc::make_mut(&mut all.0);
        for w in &d.args {
            match w.text.as_slice() {
                b"" => return Err(cx.error_at(d, w, "invalid referer \"\"")),
                b"none" => list.none = true,
                b"blocked" => list.blocked = true,
                b"server_names" => list.server_names = true,
                b"~" => return Err(cx.error_at(d, w, "empty regex in \"~\"")),
                [b'~', re @ ..] => list.regexes.push(cx.pattern(d, re, true)?),
                word => {
                    let slash = memchr::memchr(b'/', word).unwrap_or(word.len());
                    let (host, path) = word.split_at(slash);
                    let host = host.to_ascii_lowercase();
                    let added = list.hosts.add_host(&host, path.into());
                    added.map_err(|refused| cx.error_at(d, w, refused.message(&host)))?;
                }
            }
        }
        Ok(all)
    }
}

impl Settings {
    /// Checks the list after all directives of a level have been read.
    ///
    /// # Errors
    /// In nginx's words.
    pub fn check(&self) -> Result<(), &'static str> {
        let lonely = |r: &Referers| {
            // Such a list would refuse all pages that link to the site, its own ones included.
            (r.none || r.blocked) && !r.server_names && r.hosts.is_empty() && r.regexes.is_empty()
        };
        if self.valid.as_ref().is_some_and(|valid| lonely(&valid.0)) {
            return Err(
                "the \"none\" or \"blocked\" referers are specified in the \"valid_referers\" directive \
                        without any valid referer",
            );
        }
        Ok(())
    }
}

/// `referer`.
pub static MODULE: Module = Module {
    settings: &[&SETTINGS],
    variables: &[VARIABLES],
    config: ConfigHooks {
        check_settings: Some(|level| SETTINGS.of(level.settings).check().map_err(str::to_owned)),
        ..ConfigHooks::NONE
    },
    ..Module::NONE
};

const VARIABLES: &[Row] =
    &[Row { name: "invalid_referer", get: RowSource::Get(invalid_referer), settable: true }];

fn invalid_referer(req: &mut Request, out: &mut Vec<u8>) -> Result<bool, VarError> {
    let http = req.http();
    let Some(Valid(valid)) = &SETTINGS.of(&http.location(req).settings).valid else { return Ok(true) };
    let names = &http.server(req).names;
    let referer = req.head.get(Name::Referer).map(<[u8]>::to_vec);
    if !valid.accepts(req, referer.as_deref(), names)? {
        out.push(b'1');
    }
    Ok(true)
}

/// Longest host in a valid referer, bytes.
const MAX_HOST: usize = 256;

/// Returns the text after the scheme. Like nginx, treats values shorter than `http://i.ru` as having none.
fn reference(referer: &[u8]) -> Option<&[u8]> {
    let after = |scheme: &[u8]| {
        let (head, rest) = referer.split_at_checked(scheme.len())?;
        head.eq_ignore_ascii_case(scheme).then_some(rest)
    };
    if referer.len() < b"http://i.ru".len() {
        return None;
    }
    after(b"http://").or_else(|| after(b"https://"))
}

impl Referers {
    fn accepts(
        &self,
        req: &mut Request,
        referer: Option<&[u8]>,
        names: &[ServerName],
    ) -> Result<bool, LimitExceeded> {
        let Some(referer) = referer else { return Ok(self.none) };
        let Some(rest) = reference(referer) else { return Ok(self.blocked) };
        // A port in the referer does not count, since names of servers have none.
        let end = memchr::memchr2(b'/', b':', rest).unwrap_or(rest.len());
        let (host, after) = rest.split_at(end);
        if host.is_empty() || host.len() > MAX_HOST {
            return Ok(false);
        }
        // Names of servers are in lower case, and browsers may send any.
        let host = host.to_ascii_lowercase();
        // After the host there may be a port, which is no part of the path.
        let path = memchr::memchr(b'/', after).and_then(|at| after.get(at..)).unwrap_or_default();
        if self.server_names && is_own_host(req, names, &host)? {
            return Ok(true);
        }
        if self.hosts.find(&host).is_some_and(|prefix| path.starts_with(prefix)) {
            return Ok(true);
        }
        self.matches(req, rest)
    }

    /// Matches the text after the scheme with the patterns.
    fn matches(&self, req: &mut Request, text: &[u8]) -> Result<bool, LimitExceeded> {
        let test = |pattern: &Pattern| pattern.is_match(text).map_err(|_| pattern.log_failure(req, text));
        self.regexes.first(text, test).map(|first| first.is_some())
    }
}

/// Returns `true` if one of the server's names matches the host.
fn is_own_host(req: &mut Request, names: &[ServerName], host: &[u8]) -> Result<bool, LimitExceeded> {
    for name in names {
        if names_host(req, name, host)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns `true` if a name of the server matches the host.
fn names_host(req: &mut Request, name: &ServerName, host: &[u8]) -> Result<bool, LimitExceeded> {
    Ok(match name {
        ServerName::Exact(n) => n == host,
        ServerName::Head(n) => host.len() > n.len() && host.ends_with(n),
        ServerName::Label(n) => {
            host.strip_suffix(n.as_slice()).is_some_and(|label| !label.is_empty() && !label.contains(&b'.'))
        }
        ServerName::Dot(n) => n.get(1..) == Some(host) || (host.len() > n.len() && host.ends_with(n)),
        ServerName::Tail(n) => host.len() > n.len() && host.starts_with(n),
        ServerName::Regex(p, _) => p.is_match(host).map_err(|_| p.log_failure(req, host))?,
    })
}

#[cfg(test)]
mod tests {
    use crate::testing;

    #[test]
    fn referers() {
        let conf = "server { server_name foo.bar *.wild.org ~^re\\.x; valid_referers none blocked server_names
            example.com .dot.com path.com/p ~^x\\.y ~org/a; } map $invalid_referer $x { default $invalid_referer; }";
        let mut req = testing::request(conf, "");
        for (referer, valid) in [
            (None, true),
            (Some("-"), true),
            (Some("http://x.y"), true),
            (Some("ftp://example.com"), true),
            (Some("http://example.com"), true),
            (Some("HTTPS://EXAMPLE.com:80/x"), true),
            (Some("http://example.com?x"), false),
            (Some("http://a.dot.com/"), true),
            (Some("http://path.com:8/pq"), true),
            (Some("http://path.com/"), false),
            (Some("http://foo.bar/x"), true),
            (Some("http://a.wild.org"), true),
            (Some("http://wild.org"), false),
            (Some("http://re.x/aaa"), true),
            (Some("http://X.Y.z/"), true),
            (Some("http://some.org/a"), true),
            (Some("http://other.net/"), false),
            (Some("http:///aaaaaaaaaa"), false),
        ] {
            testing::again(&mut req, "");
            testing::head(&mut req, &referer.map(|r| format!("Referer: {r}\n")).unwrap_or_default());
            let want = if valid { "" } else { "1" };
            assert_eq!(testing::value(&mut req, "invalid_referer").as_deref(), Some(want), "{referer:?}");
        }
    }

    #[test]
    fn errors() {
        let lonely = "the \"none\" or \"blocked\" referers are specified in the \"valid_referers\" directive \
            without any valid referer";
        for (conf, want) in [
            ("valid_referers \"\";", "invalid referer \"\""),
            ("valid_referers a.*.b;", "invalid hostname or wildcard \"a.*.b\""),
            ("valid_referers a.com a.com;", "conflicting parameter \"a.com\""),
            ("valid_referers ~;", "empty regex in \"~\""),
            ("valid_referers none blocked;", lonely),
        ] {
            assert_eq!(testing::error(&format!("server {{ {conf} }}")).as_deref(), Some(want), "{conf}");
        }
    }
}
