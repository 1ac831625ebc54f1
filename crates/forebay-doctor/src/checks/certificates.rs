//! Rules for certificates: those by ACME, and the end of all of them.

use super::Check;
use super::checks;
use super::safety::is_near;
use crate::facts::acme::{Answers, Meeting};
use crate::facts::host::{Certificate, Host};
use crate::scene::Scene;
use forebay_acme::{Challenge, Identifier, Order, Stored, stored};
use forebay_conf::tree::Span;
use forebay_net::resolver::Failure;
use forebay_net::resolver::message::Caa;
use std::borrow::Cow;
use std::net::IpAddr;

const DAY: i64 = 86_400;
/// Days before its end at which a certificate that is not renewed by itself should have been replaced.
const SOON: i64 = 14;
/// Name of Let's Encrypt in CAA records.
const LETS_ENCRYPT: &str = "letsencrypt.org";

/// Returns the place of an identifier of an order: in `acme_certificate`, or in `server_name`, or else the first directive about
/// ACME.
fn place(s: &Scene<'_>, order: &Order, identifier: &Identifier) -> Span {
    let name = identifier.to_string();
    let is_name = |arg: &Cow<'_, str>| {
        let arg = arg.to_ascii_lowercase();
        let below =
            arg.strip_prefix('.').is_some_and(|base| name.strip_prefix("*.").unwrap_or(&name) == base);
        arg == name || below
    };
    let of_issuer = s.all("acme_certificate").filter(|n| s.arg(*n, 0) == order.issuer.name);
    let named = of_issuer.chain(s.all("server_name"));
    let places = named.filter_map(|n| Some(s.arg_span(n, s.args(n).iter().position(is_name)?)));
    let any = || s.all("acme_certificate").chain(s.all("acme")).next().map(|n| s.span(n));
    places.into_iter().next().or_else(any).unwrap_or_default()
}

/// Returns the DNS names of orders that fit, with their orders and answers. A name of several orders is there once.
fn asked(h: &Host, fits: impl Fn(&Order) -> bool) -> impl Iterator<Item = (&Order, &Identifier, &Answers)> {
    let names =
        h.acme.orders.iter().filter(move |o| fits(o)).flat_map(|o| o.identifiers.iter().map(move |i| (o, i)));
    let mut seen = Vec::new();
    names.filter_map(move |(order, identifier)| {
        let answers = h.acme.answers.get(&identifier.to_string()).filter(|_| !seen.contains(&identifier))?;
        seen.push(identifier);
        Some((order, identifier, answers))
    })
}

/// Returns `true` if the authority connects to the names of an order.
fn connects(order: &Order) -> bool {
    order.issuer.challenge != Challenge::Dns01
}

/// Returns the reason for which no listener meets the challenge of an order.
fn unmet(s: &Scene<'_>, order: &Order) -> Option<String> {
    let meeting = Meeting::of(order).filter(|m| m.listeners(s).is_empty())?;
    let port = meeting.port(s);
    Some(match meeting {
        Meeting::Http => {
            format!("nothing listens on port {port} without TLS, where the authority looks for HTTP-01")
        }
        Meeting::Tls => {
            format!("nothing listens on port {port} with TLS, where the authority looks for TLS-ALPN-01")
        }
    })
}

/// Returns the addresses of a name of one family, if none of them is of this machine.
fn elsewhere<'a>(h: &Host, ips: &'a [IpAddr], v6: bool) -> Option<Vec<&'a IpAddr>> {
    let family: Vec<&IpAddr> = ips.iter().filter(|ip| ip.is_ipv6() == v6).collect();
    let leads_here = family.iter().any(|ip| h.acme.own.contains(ip));
    (!family.is_empty() && !leads_here && !h.acme.own.is_empty()).then_some(family)
}

/// Describes addresses that are not of this machine.
fn elsewhere_text(h: &Host, name: &Identifier, ips: &[&IpAddr]) -> String {
    let v6 = ips.iter().any(|ip| ip.is_ipv6());
    let has_public = h.acme.own.iter().any(|ip| ip.is_ipv6() == v6 && !is_near(*ip));
    let list: Vec<String> = ips.iter().map(ToString::to_string).collect();
    let mut text = format!("\"{name}\" leads to {}, no address of this machine", list.join(", "));
    // Behind address translation that is how it has to be.
    if !has_public && ips.iter().any(|ip| !is_near(**ip)) {
        text.push_str(", which has private ones only; so a router or a balancer has to pass the ports on");
    }
    text
}

/// Returns the reason for which CAA records keep Let's Encrypt from issuing a certificate for a name.
fn forbidden(rules: &[Caa], name: &Identifier, challenge: Challenge) -> Option<String> {
    let is_known = |r: &&Caa| {
        ["issue", "issuewild", "iodef", "issuemail", "contactemail", "contactphone"]
            .iter()
            .any(|t| r.tag == t.as_bytes())
    };
    if let Some(unknown) = rules.iter().find(|r| r.critical && !is_known(r)) {
        return Some(format!("CAA has the critical tag \"{}\"", String::from_utf8_lossy(&unknown.tag)));
    }
    let tagged = |tag: &str| rules.iter().filter(|r| r.tag == tag.as_bytes()).collect::<Vec<_>>();
    let wild = if name.is_wildcard() { tagged("issuewild") } else { Vec::new() };
    // RFC 8659, section 4.3: without issuewild the rules for other names hold for wildcards.
    let relevant = if wild.is_empty() { tagged("issue") } else { wild };
    let allows = |r: &&Caa| Permission::of(&r.value).allows(challenge);
    if relevant.is_empty() || relevant.iter().any(allows) {
        return None;
    }
    let texts = relevant
        .iter()
        .map(|r| format!("{} \"{}\"", String::from_utf8_lossy(&r.tag), r.value.escape_ascii()));
    Some(format!("CAA has {}", texts.collect::<Vec<_>>().join(", ")))
}

/// Value of a CAA record of the tags `issue` and `issuewild` (RFC 8659, section 4.2).
struct Permission {
    /// Name of the authority, in lower case; empty for none.
    authority: String,
    /// Challenges that may prove control (RFC 8657, section 4), if they are limited.
    methods: Option<Vec<String>>,
}

impl Permission {
    fn of(value: &[u8]) -> Permission {
        let text = String::from_utf8_lossy(value).to_ascii_lowercase();
        let mut parts = text.split(';').map(str::trim);
        let authority = parts.next().unwrap_or_default().to_owned();
        let pairs = parts.filter_map(|p| p.split_once('='));
        let mut limits = pairs.filter(|(name, _)| name.trim() == "validationmethods");
        let methods = limits.next().map(|(_, list)| list.split(',').map(|m| m.trim().to_owned()).collect());
        Permission { authority, methods }
    }

    fn allows(&self, challenge: Challenge) -> bool {
        let names: &[&str] = match challenge {
            Challenge::Http01 => &["http-01"],
            Challenge::TlsAlpn01 => &["tls-alpn-01"],
            Challenge::Dns01 => &["dns-01"],
            Challenge::Either => &["http-01", "tls-alpn-01"],
        };
        let by = |methods: &Vec<String>| methods.iter().any(|m| names.contains(&m.as_str()));
        self.authority == LETS_ENCRYPT && self.methods.as_ref().is_none_or(by)
    }
}

/// A certificate in a file.
struct Filed {
    span: Span,
    file: String,
    certificate: Certificate,
    /// Forebay renews it.
    is_renewed: bool,
}

impl Filed {
    /// Returns the certificates that are known, of files of the configuration and of orders.
    fn all(s: &Scene<'_>, h: &Host) -> Vec<Filed> {
        let named = h.certificates.iter().map(|(n, c)| Filed {
            span: s.arg_span(*n, 0),
            file: s.arg(*n, 0).to_owned(),
            certificate: c.clone(),
            is_renewed: false,
        });
        let of_order = |order: &Order| {
            let Stored::Until(_, path) = stored(order) else { return None };
            let span = place(s, order, order.identifiers.first()?);
            let certificate = Certificate::read(&path)?;
            Some(Filed { span, file: path.display().to_string(), certificate, is_renewed: true })
        };
        named.chain(h.acme.orders.iter().filter_map(of_order)).collect()
    }

    /// Returns the text about the end of the certificate, if that is near.
    fn ending(&self, now: i64) -> Option<String> {
        let (from, until) = self.certificate.validity;
        let (left, life) = (until.saturating_sub(now), until.saturating_sub(from));
        // Renewal is due after two thirds of the lifetime, or half of a short one; a day is for attempts that fail.
        let near = match self.is_renewed {
            true if life < 10 * DAY => left < life / 4,
            true => left < life / 3 - DAY,
            false => left < SOON * DAY,
        };
        let late = if self.is_renewed { ", and was to be renewed by now" } else { "" };
        (near && left > 0).then(|| format!("{} ends in {} days{late}", self.file, left / DAY))
    }
}

/// Returns `true` if a certificate is for a name: itself, or a wildcard for its first label (RFC 6125, section 6.4.3).
fn covers(names: &[String], name: &str) -> bool {
    let wild = name.split_once('.').map(|(_, rest)| format!("*.{rest}"));
    names.iter().any(|n| n == name || Some(n) == wild.as_ref())
}

/// Returns a name of the server of a certificate that none of its certificates is for.
fn foreign(s: &Scene<'_>, h: &Host, node: usize) -> Option<String> {
    let server = s.parent(node).filter(|p| s.is(*p, "server"))?;
    let beside = s.children(Some(server), "ssl_certificate").filter_map(|n| h.certificates.get(&n));
    let names: Vec<String> = beside.flat_map(|c| c.names.clone()).collect();
    let servers = s.children(Some(server), "server_name");
    let plain = |name: &&Cow<'_, str>| {
        name.contains('.')
            && !name.starts_with(['~', '.', '*'])
            && !name.contains('$')
            && name.parse::<IpAddr>().is_err()
    };
    let mut wanted = servers.flat_map(|n| s.args(n)).filter(plain).map(|n| n.to_ascii_lowercase());
    if names.is_empty() { None } else { wanted.find(|name| !covers(&names, name)) }
}

checks! { Check;
    "certificate-names" |s, h, found| for node in h.certificates.keys() {
        if let Some(name) = foreign(s, h, *node) {
            found(s.arg_span(*node, 0), format!("it is not for {name}"));
        }
    },
    "acme-port" |s, h, found| for order in &h.acme.orders {
        if let (Some(text), Some(first)) = (unmet(s, order), order.identifiers.first()) {
            found(place(s, order, first), text);
        }
    },
    "acme-port-closed" |s, h, found| for (addr, why) in &h.acme.closed {
        let at = s.all("acme_certificate").chain(s.all("acme")).next().map(|n| s.span(n));
        found(at.unwrap_or_default(), format!("no connection to {addr}: {why}"));
    },
    "acme-no-resolver" |s, h, found| {
        let mut all = asked(h, |_| true).peekable();
        let first = all.peek().map(|(order, name, _)| place(s, order, name));
        let silent = |(_, _, a): (&Order, &Identifier, &Answers)| matches!(a.addresses, Err(Failure::Timeout | Failure::Refused));
        if let (Some(first), true) = (first, all.all(silent)) {
            found(first, "no name server answers".to_owned());
        }
    },
    "acme-name-unknown" |s, h, found| for (order, name, answers) in asked(h, connects) {
        match answers.addresses {
            Err(Failure::NotFound) => found(place(s, order, name), format!("\"{name}\" has no address")),
            Err(e @ (Failure::Server | Failure::Format)) => found(place(s, order, name), format!("\"{name}\" cannot be resolved ({e})")),
            _ => {}
        }
    },
    "acme-name-elsewhere" |s, h, found| for (order, name, answers) in asked(h, connects) {
        for v6 in [false, true] {
            let ips = answers.addresses.as_deref().unwrap_or_default();
            if let Some(ips) = elsewhere(h, ips, v6) {
                found(place(s, order, name), elsewhere_text(h, name, &ips));
            }
        }
    },
    "acme-caa" |s, h, found| for (order, name, answers) in asked(h, |o| o.issuer.is_lets_encrypt()) {
        let why = match &answers.rules {
            Ok(rules) => forbidden(rules, name, order.issuer.challenge),
            Err(Failure::Server) => Some("the question for CAA records fails".to_owned()),
            Err(_) => None,
        };
        if let Some(why) = why {
            found(place(s, order, name), format!("\"{name}\": {why}"));
        }
    },
    "certificate-expired" |s, h, found| for filed in Filed::all(s, h) {
        let ago = h.now.saturating_sub(filed.certificate.validity.1);
        if ago >= 0 {
            found(filed.span, format!("{} expired {} days ago", filed.file, ago / DAY));
        }
    },
    "certificate-ending" |s, h, found| for filed in Filed::all(s, h) {
        if let Some(text) = filed.ending(h.now) {
            found(filed.span, text);
        }
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::acme::Acme;
    use crate::{Target, examine};
    use forebay_acme::{Issuer, LETS_ENCRYPT as DIRECTORY};
    use forebay_conf::files::Files;
    use std::path::Path;
    use std::sync::Arc;

    const NOW: i64 = 1_800_000_000;

    /// Returns the rules of this table that fire, with line and text.
    fn fired(conf: &str, host: &Host) -> Vec<(&'static str, u32, String)> {
        let mut files = Files::recorded([("/n.conf", conf)]);
        let parsed = forebay_conf::parse::parse(Path::new("/n.conf"), "", Path::new("/"), &mut files);
        let found = examine(&Scene::new(&parsed.tree), host, Target::Forebay);
        let own = found.into_iter().filter(|f| CHECKS.iter().any(|(id, _)| *id == f.rule.id));
        own.map(|f| (f.rule.id.as_str(), f.span.map_or(0, |s| s.line), f.message)).collect()
    }

    fn ips(list: &[&str]) -> Vec<IpAddr> {
        list.iter().map(|ip| ip.parse().expect("an address")).collect()
    }

    fn order(names: &[&str], challenge: Challenge) -> Order {
        let identifiers = names.iter().map(|n| Identifier::parse(n).expect("a name")).collect();
        let issuer = Issuer { challenge, ..Issuer::new("le", DIRECTORY) };
        Order { issuer: Arc::new(issuer), identifiers, key: forebay_acme::KeyKind::P256 }
    }

    fn rule(tag: &str, value: &str) -> Caa {
        Caa { critical: false, tag: tag.into(), value: value.into() }
    }

    /// A machine with an order for one name and answers about it.
    fn host(name: &str, challenge: Challenge, answers: Answers) -> Host {
        let acme = Acme {
            orders: vec![order(&[name], challenge)],
            answers: [(name.to_owned(), answers)].into(),
            own: ips(&["127.0.0.1", "10.0.0.5", "203.0.113.5", "2001:db8::5"]),
            ..Acme::default()
        };
        Host { acme, now: NOW, ..Host::default() }
    }

    fn well() -> Answers {
        Answers { addresses: Ok(ips(&["203.0.113.5"])), rules: Ok(vec![rule("issue", "letsencrypt.org")]) }
    }

    const CONF: &str =
        "http {\nserver {\nlisten 80;\nlisten 443 ssl;\nserver_name other\na.example;\nacme on; } }";

    #[test]
    fn a_sound_configuration_is_left_alone() {
        for challenge in [Challenge::Http01, Challenge::TlsAlpn01, Challenge::Either, Challenge::Dns01] {
            assert_eq!(fired(CONF, &host("a.example", challenge, well())), []);
        }
        // Without orders there is nothing to say, whatever the machine.
        assert_eq!(fired(CONF, &Host { now: NOW, ..Host::default() }), []);
    }

    #[test]
    fn challenges_need_their_ports() {
        let is_met = |challenge, listens: &str| {
            let (outside, listens) = listens.split_once('|').unwrap_or(("", listens));
            let conf = format!("http {{ {outside} server {{ {listens} acme on; server_name a.example; }} }}");
            fired(&conf, &host("a.example", challenge, well())).is_empty()
        };
        use Challenge::{Dns01, Either, Http01, TlsAlpn01};
        for (challenge, listens) in [
            (Http01, "listen 80;"),
            (Http01, "listen [::]:80;"),
            (Http01, "listen 192.0.2.1;"),
            (Http01, ""),
            (Http01, "acme_http_port 8080; | listen 8080;"),
            (Either, "listen 79-81;"),
            (TlsAlpn01, "listen 443 ssl;"),
            (Dns01, "listen 8443 ssl;"),
        ] {
            assert!(is_met(challenge, listens), "{challenge:?} {listens}");
        }
        for (challenge, listens) in [
            (Http01, "listen 8080;"),
            (Http01, "listen 80 ssl;"),
            (Http01, "acme_http_port 8080; | listen 80;"),
            (TlsAlpn01, "listen 443;"),
            (TlsAlpn01, "listen 443 quic;"),
            (TlsAlpn01, "listen 80; listen 8443 ssl;"),
        ] {
            assert!(!is_met(challenge, listens), "{challenge:?} {listens}");
        }
        let found = fired(
            "http { server {\nlisten 81;\nserver_name .a.example; acme on; } }",
            &host("*.a.example", Http01, well()),
        );
        assert_eq!(found.iter().map(|f| (f.0, f.1)).collect::<Vec<_>>(), [("acme-port", 3)]);
        let mut closed = host("a.example", Http01, well());
        closed.acme.closed =
            vec![("127.0.0.1:80".parse().expect("an address"), "111: Connection refused".to_owned())];
        assert_eq!(
            fired(CONF, &closed),
            [("acme-port-closed", 7, "no connection to 127.0.0.1:80: 111: Connection refused".to_owned())]
        );
    }

    #[test]
    fn names_lead_here() {
        let of = |addresses: Result<Vec<IpAddr>, Failure>, challenge| {
            let found = fired(CONF, &host("a.example", challenge, Answers { addresses, ..well() }));
            assert!(found.iter().all(|f| f.1 == 6), "{found:?}");
            found.into_iter().map(|f| f.0).collect::<Vec<_>>()
        };
        let http = Challenge::Http01;
        assert_eq!(of(Err(Failure::NotFound), http), ["acme-name-unknown"]);
        assert_eq!(of(Err(Failure::Server), http), ["acme-name-unknown"]);
        assert_eq!(of(Err(Failure::Timeout), http), ["acme-no-resolver"]);
        assert_eq!(of(Ok(ips(&["192.0.2.1"])), http), ["acme-name-elsewhere"]);
        // The other family counts for itself, since the authority may choose it.
        assert_eq!(of(Ok(ips(&["203.0.113.5", "2001:db8::9"])), http), ["acme-name-elsewhere"]);
        assert_eq!(of(Ok(ips(&["192.0.2.1", "203.0.113.5", "2001:db8::5"])), http), [""; 0]);
        // Over DNS the authority does not connect.
        assert_eq!(of(Err(Failure::NotFound), Challenge::Dns01), [""; 0]);
        // Behind a router all names lead elsewhere.
        let mut private = host("a.example", http, Answers { addresses: Ok(ips(&["192.0.2.1"])), ..well() });
        private.acme.own = ips(&["127.0.0.1", "10.0.0.5"]);
        assert!(fired(CONF, &private)[0].2.contains("private ones only"));
    }

    #[test]
    fn authorities_that_records_allow() {
        let may = |name: &str, challenge, rules: &[Caa]| {
            let answers = Answers { rules: Ok(rules.to_vec()), addresses: Ok(Vec::new()) };
            let found = fired(CONF, &host(name, challenge, answers));
            assert!(found.iter().all(|f| f.0 == "acme-caa"), "{found:?}");
            found.is_empty()
        };
        let (http, dns) = (Challenge::Http01, Challenge::Dns01);
        let (own, other) =
            (rule("issue", " LetsEncrypt.org; accounturi=https://x/1"), rule("issue", "ca.example"));
        let wild = rule("issuewild", ";");
        assert!(may("a.example", http, &[]));
        assert!(may("a.example", http, &[rule("iodef", "mailto:a@b")]));
        assert!(may("a.example", http, &[other.clone(), own.clone()]));
        assert!(!may("a.example", http, std::slice::from_ref(&other)));
        assert!(!may("a.example", http, &[rule("issue", "")]));
        // Wildcards have rules of their own, if there are any.
        assert!(may("a.example", http, &[own.clone(), wild.clone()]));
        assert!(!may("*.a.example", dns, &[own.clone(), wild]));
        assert!(may("*.a.example", dns, std::slice::from_ref(&own)));
        let critical = Caa { critical: true, ..rule("policy", "x") };
        assert!(!may("a.example", http, &[own, critical]));
        let limited = rule("issue", "letsencrypt.org; validationmethods=dns-01, tls-alpn-01");
        assert!(may("a.example", dns, std::slice::from_ref(&limited)));
        assert!(!may("a.example", http, std::slice::from_ref(&limited)));
        let failed = |failure| {
            let answers = Answers { rules: Err(failure), addresses: Ok(Vec::new()) };
            !fired(CONF, &host("a.example", http, answers)).is_empty()
        };
        // A resolver that does not know the type says nothing about the records.
        assert_eq!((failed(Failure::Server), failed(Failure::Unimplemented)), (true, false));
        // The names of other authorities are not known.
        let mut private = host("a.example", http, Answers { rules: Ok(vec![other]), ..well() });
        private.acme.orders[0].issuer = Arc::new(Issuer::new("own", "https://ca.internal/acme"));
        assert_eq!(fired(CONF, &private), []);
    }

    #[test]
    fn certificates_near_their_end() {
        let of = |is_renewed, life: i64, left: i64| {
            let certificate =
                Certificate { validity: (NOW + left - life, NOW + left), ..Certificate::default() };
            let filed = Filed { span: Span::default(), file: "f".to_owned(), certificate, is_renewed };
            filed.ending(NOW)
        };
        assert_eq!(of(false, 90 * DAY, 14 * DAY), None);
        assert_eq!(of(false, 90 * DAY, 14 * DAY - 1).as_deref(), Some("f ends in 13 days"));
        assert_eq!(of(true, 90 * DAY, 29 * DAY), None);
        assert!(of(true, 90 * DAY, 28 * DAY).is_some_and(|t| t.contains("was to be renewed")));
        // Six days, renewed after three.
        assert_eq!((of(true, 6 * DAY, 2 * DAY), of(true, 6 * DAY, DAY).is_some()), (None, true));
        // Another rule reports certificates that have expired.
        let conf = "http { server {\nssl_certificate a.pem; } }";
        let mut files = Files::recorded([("/n.conf", conf)]);
        let parsed = forebay_conf::parse::parse(Path::new("/n.conf"), "", Path::new("/"), &mut files);
        let node = Scene::new(&parsed.tree).all("ssl_certificate").next().expect("there");
        let ending = |until: i64| {
            let certificate = Certificate { validity: (0, until), ..Certificate::default() };
            let certificates = [(node, certificate)].into();
            let found = fired(conf, &Host { certificates, now: NOW, ..Host::default() });
            found.into_iter().map(|f| (f.0, f.1)).collect::<Vec<_>>()
        };
        assert_eq!(ending(NOW), [("certificate-expired", 2)]);
        assert_eq!(ending(NOW + 1), [("certificate-ending", 2)]);
    }

    #[test]
    fn names_of_certificates() {
        let conf = "http { server { server_name a.example www.b.example ~x _; ssl_certificate c; ssl_certificate d; } }";
        let mut files = Files::recorded([("/n.conf", conf)]);
        let parsed = forebay_conf::parse::parse(Path::new("/n.conf"), "", Path::new("/"), &mut files);
        let scene = Scene::new(&parsed.tree);
        let of = |first: &[&str], second: &[&str]| {
            let nodes: Vec<usize> = scene.all("ssl_certificate").collect();
            let certificate = |names: &[&str]| Certificate {
                names: names.iter().map(|n| (*n).to_owned()).collect(),
                validity: (0, 1 << 40),
                ..Certificate::default()
            };
            let certificates = [(nodes[0], certificate(first)), (nodes[1], certificate(second))].into();
            let found = examine(&scene, &Host { certificates, ..Host::default() }, Target::Forebay);
            found
                .into_iter()
                .filter(|f| f.rule.id == "certificate-names")
                .map(|f| f.message)
                .collect::<Vec<_>>()
        };
        assert_eq!(of(&["a.example"], &["*.b.example"]), [""; 0]);
        assert_eq!(of(&["a.example"], &["b.example"]), ["it is not for www.b.example"; 2]);
        assert_eq!(of(&["*.example"], &["*.b.example"]), [""; 0]);
        assert_eq!(of(&[], &[]), [""; 0], "of a file that has none nothing is known");
    }
}
