//! `allow`, `deny` (nginx: ngx_http_access_module).

use crate::config::Scope;
use crate::config::value::first;
use crate::modules::core::Satisfy;
use crate::modules::{LocationSettings, Verdict};
use crate::request::Request;
use forebay_conf::error::{Error, Level};
use forebay_conf::tree::Directive;
use forebay_core::limit::cidr::Cidr;
use forebay_net::addr::Peer;
use std::sync::Arc;

/// One `allow` or `deny`, with its network (`None` for all).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    network: Option<Cidr>,
    allow: bool,
}

/// Rules of a level. Two directives fill one list, so it is not made by `settings!`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Written {
    rules: Option<Arc<Vec<Rule>>>,
}

/// Rules in effect. The first one that matches the client decides.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    rules: Arc<Vec<Rule>>,
    /// `true` if an IPv4-mapped IPv6 address is matched as IPv4. As in nginx, only if a rule is for IPv4 or all.
    has_v4: bool,
}

impl Written {
    /// Names of the directives bound here.
    pub(crate) const DIRECTIVES: &'static [&'static str] = &["allow", "deny"];

    /// Returns `true` if a directive of this name belongs to this module.
    pub(crate) fn binds(name: &[u8]) -> bool {
        Self::DIRECTIVES.iter().any(|d| d.as_bytes() == name)
    }

    /// Reads a directive. Returns `Ok(false)` if it does not belong to this module.
    ///
    /// # Errors
    /// `invalid parameter "x"`.
    pub(crate) fn set(&mut self, d: &Directive, cx: &mut Scope<'_>) -> Result<bool, Error> {
        let allow = match d.name.text.as_slice() {
            b"allow" => true,
            b"deny" => false,
            _ => return Ok(false),
        };
        let network = network(d, cx)?;
        Arc::make_mut(self.rules.get_or_insert_default()).push(Rule { network, allow });
        Ok(true)
    }

    /// Copies the rules of `parent` if this level has none.
    pub(crate) fn inherit(&mut self, parent: &Written) {
        if self.rules.is_none() {
            self.rules.clone_from(&parent.rules);
        }
    }

    /// Applies the defaults.
    pub(crate) fn resolve(&self) -> Settings {
        let rules = self.rules.clone().unwrap_or_default();
        let has_v4 = rules.iter().any(|r| matches!(r.network, None | Some(Cidr::V4(..))));
        Settings { rules, has_v4 }
    }
}

/// Reads the network of a rule, `None` for all. Warns if it has bits that do not count.
fn network(d: &Directive, cx: &mut Scope<'_>) -> Result<Option<Cidr>, Error> {
    let word = match first(d) {
        b"all" => return Ok(None),
        b"unix:" => return Ok(Some(Cidr::Unix)),
        word => word,
    };
    let text = String::from_utf8_lossy(word);
    let Some((network, low_bits)) = Cidr::parse(word) else {
        return Err(cx.error(d, format!("invalid parameter \"{text}\"")));
    };
    if low_bits {
        cx.warn(d, format!("low address bits of {text} are meaningless"));
    }
    Ok(Some(network))
}

impl Settings {
    /// Returns whether the first rule that matches the client allows it, or `None` if no rule matches.
    fn judge(&self, peer: Peer) -> Option<bool> {
        let rule = self.rules.iter().find(|r| match r.network {
            None => true,
            Some(Cidr::V6(net, bits)) if !self.has_v4 => mapped(peer, net, bits),
            Some(n) => n.contains(peer),
        });
        rule.map(|r| r.allow)
    }
}

/// Returns `true` if an IPv6 network contains the client. Unlike [`Cidr::contains`], treats mapped IPv4 addresses as
/// IPv6.
fn mapped(peer: Peer, net: u128, bits: u8) -> bool {
    let shift = 128 - u32::from(bits.min(128));
    match peer.ip() {
        Some(std::net::IpAddr::V6(a)) => (a.to_bits() ^ net).checked_shr(shift).unwrap_or(0) == 0,
        _ => false,
    }
}

/// Returns `true` if a location has rules.
pub(crate) fn enabled(s: &LocationSettings) -> bool {
    !s.access.rules.is_empty()
}

/// Applies the rules to the client. An access hook.
pub(crate) fn check(req: &mut Request) -> Verdict {
    let http = req.http();
    let settings = &http.location(req).settings;
    match settings.access.judge(req.peer) {
        None => Verdict::Declined,
        Some(true) => Verdict::Allowed,
        Some(false) => {
            if settings.core.satisfy == Satisfy::All {
                req.log(Level::Error, "access forbidden by rule");
            }
            Verdict::Status(403)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn judge(rules: &str, peer: Peer) -> Verdict {
        let mut req = testing::request(&format!("server {{ {rules} }}"), "");
        req.peer = peer;
        check(&mut req)
    }

    fn inet(ip: &str) -> Peer {
        Peer::Inet((ip.parse::<std::net::IpAddr>().expect("an address"), 1).into())
    }

    #[test]
    fn first_rule_decides() {
        let rules = "deny 10.0.0.1; allow 10.0.0.0/8; allow 2001:db8::/32; allow unix:; deny all;";
        let (yes, no) = (Verdict::Allowed, Verdict::Status(403));
        assert_eq!(judge(rules, inet("10.0.0.1")), no);
        assert_eq!(judge(rules, inet("10.0.0.2")), yes);
        assert_eq!(judge(rules, inet("::ffff:10.0.0.2")), yes);
        assert_eq!(judge(rules, inet("11.0.0.2")), no);
        assert_eq!(judge(rules, inet("2001:db8::1")), yes);
        assert_eq!(judge(rules, inet("::1")), no);
        assert_eq!(judge(rules, Peer::Unix), yes);
        assert_eq!(judge("deny unix:;", inet("::1")), Verdict::Declined);
        assert_eq!(judge("deny ::/0;", inet("::ffff:1.1.1.1")), Verdict::Status(403));
        assert_eq!(judge("deny ::/0; allow 9.9.9.9;", inet("::ffff:1.1.1.1")), Verdict::Declined);
    }

    #[test]
    fn a_level_with_rules_inherits_none() {
        let mut req = testing::request("deny all; server { allow ::1; }", "");
        req.peer = inet("10.0.0.1");
        assert_eq!(check(&mut req), Verdict::Declined);
        assert_eq!(testing::error("deny ALL;").as_deref(), Some("invalid parameter \"ALL\""));
        assert_eq!(testing::warnings("deny 10.0.0.1/8;"), ["low address bits of 10.0.0.1/8 are meaningless"]);
    }
}
