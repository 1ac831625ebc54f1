//! `keyvals` of the API: the databases of `keyval_zone`, to read and to change, with the paths, statuses and codes of NGINX Plus.

use super::Block;
use super::api::{self, Failure, Reply};
use forebay_core::keyval::json::{Fault, Member, Members, Object};
use forebay_core::keyval::{Change, Lifetime, Pair, Refused, Store, Zone, zones};
use forebay_core::trace;
use forebay_http::field::Name;
use forebay_http::request::{Method, RequestHead};
use forebay_http::uri;
use forebay_server::body::{self, BodyError, Piece};
use forebay_server::module::Verdict;
use forebay_server::request::Request;
use serde_json::{Map, Value};
use std::sync::Arc;
use std::time::Duration;

/// Largest body in bytes.
const MOST: usize = 1 << 20;

/// A path below `keyvals`: the block, and the name of a zone.
pub(super) struct Place<'p> {
    block: Block,
    zone: Option<&'p str>,
}

impl<'p> Place<'p> {
    /// Reads a path with its version. `None`: it is another one.
    pub(super) fn find(path: &'p str) -> Option<Place<'p>> {
        let (version, path) = path.split_once('/')?;
        let mut parts = path.split('/');
        let block = match parts.next()? {
            "http" => Block::Http,
            "stream" => Block::Stream,
            _ => return None,
        };
        if !api::is_version(version) || parts.next()? != "keyvals" {
            return None;
        }
        let zone = parts.next();
        parts.next().is_none().then_some(Place { block, zone })
    }

    /// Returns its zone.
    fn zone(&self) -> Result<Arc<Zone>, Failure> {
        let name = self.zone.unwrap_or_default();
        let zone = zones(self.block.name()).into_iter().find(|z| z.name == name.as_bytes());
        zone.ok_or_else(|| Failure::new(404, "keyval not found", "KeyvalNotFound"))
    }

    /// Returns all zones, one of them, or one of its pairs.
    pub(super) fn read(&self, req: &Request) -> Result<Value, Failure> {
        if self.zone.is_none() {
            return Ok(all(req, self.block));
        }
        let zone = self.zone()?;
        let Some(key) = argument(req, "key=") else { return Ok(Value::Object(pairs(&zone))) };
        let missing = || failure_of(Refused::Missing, &key);
        let value = zone.store().ok_or_else(missing)?.value(&key).map_err(|_| missing())?;
        Ok(Value::Object(Map::from_iter([(key, value.into())])))
    }
}

/// Returns the pairs of all zones, or with `fields=` alone their names.
fn all(req: &Request, block: Block) -> Value {
    let zones = zones(block.name());
    if argument(req, "fields=").is_some_and(|fields| fields.is_empty()) {
        return zones.iter().map(|z| api::text(&z.name)).collect::<Vec<_>>().into();
    }
    zones.iter().map(|z| (api::text(&z.name), Value::Object(pairs(z)))).collect::<Map<_, _>>().into()
}

fn pairs(zone: &Zone) -> Map<String, Value> {
    let all = zone.store().map(|store| store.pairs()).unwrap_or_default();
    all.into_iter().map(|pair| (pair.key, pair.value.into())).collect()
}

/// Returns the value of an argument, decoded. `name` ends in `=`.
fn argument(req: &Request, name: &str) -> Option<String> {
    let mut args = req.uri.args.split(|b| *b == b'&');
    let value = args.find_map(|a| a.strip_prefix(name.as_bytes()))?;
    let mut decoded = Vec::new();
    uri::unescape(value, &mut decoded);
    Some(String::from_utf8_lossy(&decoded).into_owned())
}

/// Answers a request that changes a zone.
pub(super) async fn write(req: &mut Request, path: &str) -> Verdict {
    let Some(place) = Place::find(path).filter(|place| place.zone.is_some()) else {
        return api::reply(req, Err(api::METHOD_DISABLED.into()));
    };
    match change(req, &place).await {
        Ok(reply) => api::reply(req, Ok(reply)),
        Err(Stopped::Failed(failure)) => api::reply(req, Err(failure)),
        Err(Stopped::Body(e)) => e.outcome(req).into(),
    }
}

/// Reason for which nothing is changed.
enum Stopped {
    Failed(Failure),
    /// The client is gone, or has been too slow.
    Body(BodyError),
}

impl From<Failure> for Stopped {
    fn from(failure: Failure) -> Stopped {
        Stopped::Failed(failure)
    }
}

async fn change(req: &mut Request, place: &Place<'_>) -> Result<Reply, Stopped> {
    let zone = place.zone()?;
    check_origin(&req.head)?;
    if trace::is_on() {
        // `forebay explain` follows a request without effects.
        return Ok(Reply::Empty(204));
    }
    if req.method == Method::Delete {
        if let Some(store) = zone.store() {
            store.clear();
        }
        return Ok(Reply::Empty(204));
    }
    check_type(&req.head)?;
    let text = read(req).await?;
    let members = match Members::parse(&text) {
        Ok(Members(members)) => members,
        Err(Fault::Syntax(why)) => {
            return Err(Failure::new(415, format!("json error: {why}"), "JsonError").into());
        }
        Err(Fault::Form(why)) => return Err(misformed(why).into()),
    };
    let done = if req.method == Method::Post { add(&zone, members) } else { modify(&zone, members) };
    Ok(Reply::Empty(done?))
}

/// Refuses what a page of another site has a browser send: it could change a zone of a server that only its user can reach.
fn check_origin(head: &RequestHead) -> Result<(), Failure> {
    let crosses = head.all(b"sec-fetch-site").any(|site| !matches!(site, b"same-origin" | b"none"));
    if crosses || head.all(b"origin").any(|origin| !is_own(origin, head)) {
        return Err(Failure::new(403, "request of another origin", "CrossOrigin"));
    }
    Ok(())
}

/// Returns `true` if an origin is the one that the request is for.
fn is_own(origin: &[u8], head: &RequestHead) -> bool {
    let Ok(origin) = std::str::from_utf8(origin) else { return false };
    let (host, usual) = match (origin.strip_prefix("http://"), origin.strip_prefix("https://")) {
        (Some(host), _) => (host, 80),
        (_, Some(host)) => (host, 443),
        _ => return false,
    };
    // A colon inside of brackets belongs to the address.
    let (name, port) = match host.rsplit_once(':').filter(|(_, port)| !port.ends_with(']')) {
        None => (host, usual),
        Some((name, port)) => match port.parse() {
            Ok(port) => (name, port),
            Err(_) => return false,
        },
    };
    name.as_bytes().eq_ignore_ascii_case(&head.host) && port == head.port.unwrap_or(usual)
}

fn check_type(head: &RequestHead) -> Result<(), Failure> {
    let kind = head.get(Name::ContentType).unwrap_or_default();
    let kind = kind.split(|b| *b == b';').next().unwrap_or_default().trim_ascii();
    // A browser sends this type to other origins only after it has asked.
    match kind.eq_ignore_ascii_case(b"application/json") {
        true => Ok(()),
        false => Err(Failure::new(415, "the content type has to be application/json", "ContentTypeError")),
    }
}

/// Reads the body.
async fn read(req: &mut Request) -> Result<Vec<u8>, Stopped> {
    let too_large = || Failure::new(413, "request entity too large", "BodyTooLarge");
    if req.body.known_len(req.head.framing).is_some_and(|n| n > MOST as u64) {
        return Err(too_large().into());
    }
    let failed = || Failure::new(400, "reading request body failed", "BodyReadError");
    if req.body.stored.complete {
        // It was read before the location was known.
        let in_file = usize::try_from(req.body.stored.in_file).unwrap_or(usize::MAX);
        if in_file.saturating_add(req.body.stored.mem.len()) > MOST {
            return Err(too_large().into());
        }
        let mut text = vec![0; in_file];
        if let Some(file) = req.body.stored.file() {
            file.read_exact_at(&mut text, 0).map_err(|_| failed())?;
        }
        text.extend_from_slice(&req.body.stored.mem);
        return Ok(text);
    }
    let mut text = Vec::new();
    loop {
        match body::read_piece(req, &mut text).await {
            Ok(_) if text.len() > MOST => return Err(too_large().into()),
            Ok(Piece::More) => {}
            Ok(_) => return Ok(text),
            Err(BodyError::Status(413)) => return Err(too_large().into()),
            Err(BodyError::Status(400)) => return Err(failed().into()),
            Err(e) => return Err(Stopped::Body(e)),
        }
    }
}

/// Adds pairs: several to an empty zone only. Returns the status.
fn add(zone: &Zone, members: Vec<(String, Member)>) -> Result<u16, Failure> {
    let whole = zone.definition().and_then(|d| d.timeout).map_or(Lifetime::Endless, Lifetime::For);
    let mut pairs = Vec::with_capacity(members.len());
    for (key, member) in members {
        let (value, lifetime) = match member {
            Member::Value(value) => (value, whole),
            Member::Object(object @ Object { value: Some(_), .. }) => {
                let lifetime = lifetime(zone, &object)?.unwrap_or(whole);
                (object.value.unwrap_or_default(), lifetime)
            }
            _ => return Err(misformed(format!("the key {key:?} has no value"))),
        };
        pairs.push(Pair { key, value, lifetime });
    }
    let store = store(zone)?;
    match pairs.as_slice() {
        [] => Err(misformed("key required")),
        [pair] => store.add(pair).map_err(|refused| failure_of(refused, &pair.key)),
        several => store.fill(several).map_err(|refused| failure_of(refused, "")),
    }?;
    Ok(201)
}

/// Changes or removes a pair. Returns the status.
fn modify(zone: &Zone, members: Vec<(String, Member)>) -> Result<u16, Failure> {
    let mut members = members.into_iter();
    let (key, member) = match (members.next(), members.next()) {
        (Some(only), None) => only,
        (None, _) => return Err(misformed("key required")),
        _ => return Err(misformed("only one key can be updated")),
    };
    let store = store(zone)?;
    let whole = zone.definition().and_then(|d| d.timeout).map(Lifetime::For);
    let done = match &member {
        Member::Null => store.remove(&key),
        // A value counts from now on.
        Member::Value(value) => store.change(&key, Change { value: Some(value), lifetime: whole }),
        Member::Object(object) => {
            let own = lifetime(zone, object)?;
            if object.value.is_none() && own.is_none() {
                return Err(misformed(format!("the key {key:?} has no value")));
            }
            store.change(&key, Change { value: object.value.as_deref(), lifetime: own.or(whole) })
        }
    };
    done.map(|()| 204).map_err(|refused| failure_of(refused, &key))
}

fn store(zone: &Zone) -> Result<&Arc<Store>, Failure> {
    zone.store().ok_or_else(|| Failure::new(404, "keyval not found", "KeyvalNotFound"))
}

/// Returns the time that an object asks for.
fn lifetime(zone: &Zone, object: &Object) -> Result<Option<Lifetime>, Failure> {
    if object.until.is_some() {
        return Err(misformed("unknown field \"until\""));
    }
    let Some(ms) = object.expire else { return Ok(None) };
    match zone.definition().and_then(|d| d.timeout) {
        Some(_) => Ok(Some(Lifetime::For(Duration::from_millis(ms)))),
        None => Err(misformed("keyval timeout is not enabled")),
    }
}

fn misformed(why: impl Into<String>) -> Failure {
    Failure::new(400, why.into(), "KeyvalFormatError")
}

fn failure_of(refused: Refused, key: &str) -> Failure {
    match refused {
        Refused::Key(bad) => misformed(format!("invalid key {key:?}: {}", bad.text())),
        Refused::Exists => Failure::new(409, format!("key {key:?} already exists"), "KeyvalKeyExists"),
        Refused::Missing => Failure::new(404, format!("keyval key {key:?} not found"), "KeyvalKeyNotFound"),
        Refused::Full => Failure::new(413, "the keyval zone has no room", "KeyvalZoneFull"),
        Refused::NotEmpty => misformed("only one key can be added"),
        Refused::Twice => misformed("two keys are the same address"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_compared_with_the_host() {
        let head = |host: &str, port| {
            let mut head = RequestHead::default();
            (head.host, head.port) = (host.into(), port);
            head
        };
        for (origin, host, port, own) in [
            ("http://a.test", "a.test", None, true),
            ("https://A.test", "a.test", None, true),
            ("https://a.test:443", "a.test", None, true),
            ("http://a.test:8080", "a.test", Some(8080), true),
            ("http://[::1]:8080", "[::1]", Some(8080), true),
            ("http://[::1]", "[::1]", None, true),
            ("http://a.test", "a.test", Some(8080), false),
            ("http://a.test:8081", "a.test", Some(8080), false),
            ("http://b.test", "a.test", None, false),
            ("http://a.test.b.test", "a.test", None, false),
            ("http://a.test:x", "a.test", None, false),
            ("null", "a.test", None, false),
            ("", "", None, false),
            ("file://", "", None, false),
        ] {
            assert_eq!(is_own(origin.as_bytes(), &head(host, port)), own, "{origin} {host} {port:?}");
        }
    }

    #[test]
    fn places_are_found() {
        let found = |path| Place::find(path).map(|p| (p.block.name(), p.zone));
        assert_eq!(found("9/http/keyvals"), Some(("http", None)));
        assert_eq!(found("1/stream/keyvals/z"), Some(("stream", Some("z"))));
        for other in
            ["9", "9/http", "9/http/keyvals/z/k", "10/http/keyvals", "9/mail/keyvals", "x/http/keyvals"]
        {
            assert_eq!(found(other), None, "{other}");
        }
    }
}
