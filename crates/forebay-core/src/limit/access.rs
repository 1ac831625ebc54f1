//! Rules about the addresses of clients: `allow`, `deny` (nginx: ngx_http_access_module, ngx_stream_access_module).

use super::cidr::Cidr;
use crate::config::value::first;
use crate::config::{Build, Context, Scope};
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_net::addr::Peer;
use std::net::IpAddr;
use std::sync::Arc;

/// One `allow` or `deny`, with its network (`None` for all).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rule {
    network: Option<Cidr>,
    allow: bool,
}

/// Rules of a level. Two directives fill one list, so it is not made by `settings!`.
#[derive(Clone, Debug, Default)]
pub struct Written {
    rules: Option<Arc<Vec<Rule>>>,
}

/// Rules in effect. The first one that matches the client decides.
#[derive(Clone, Debug)]
pub struct Settings {
    rules: Arc<Vec<Rule>>,
    /// `true` if an IPv4-mapped IPv6 address is matched as IPv4. As in nginx, only if a rule is for IPv4 or all.
    has_v4: bool,
}

impl Written {
    /// Names of the directives bound here.
    pub const DIRECTIVES: &'static [&'static str] = &["allow", "deny"];

    /// Returns `true` if a directive of this name belongs to this module.
    pub fn binds(name: &[u8]) -> bool {
        Self::DIRECTIVES.iter().any(|d| d.as_bytes() == name)
    }

    /// Reads a directive. Returns `Ok(false)` if it does not belong to this module.
    ///
    /// # Errors
    /// `invalid parameter "x"`.
    pub fn set<C: Context>(&mut self, d: &Directive, cx: &mut Scope<'_, C>) -> Result<bool, Error> {
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
    pub fn inherit(&mut self, parent: &Written) {
        if self.rules.is_none() {
            self.rules.clone_from(&parent.rules);
        }
    }

    /// Applies the defaults.
    pub fn resolve(&self) -> Settings {
        let rules = self.rules.clone().unwrap_or_default();
        let has_v4 = rules.iter().any(|r| matches!(r.network, None | Some(Cidr::V4(..))));
        Settings { rules, has_v4 }
    }
}

/// Reads the network of a rule, `None` for all. Warns if it has bits that do not count.
fn network(d: &Directive, cx: &mut Build<'_>) -> Result<Option<Cidr>, Error> {
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
    /// Returns `true` if there are no rules.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Returns whether the first rule that matches the client allows it, or `None` if no rule matches.
    pub fn judge(&self, peer: Peer) -> Option<bool> {
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
        Some(IpAddr::V6(a)) => (a.to_bits() ^ net).checked_shr(shift).unwrap_or(0) == 0,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Environment;
    use forebay_conf::files::Files;

    /// Reads the rules of a server and of the level around it. Also returns the messages.
    fn read(outer: &str, inner: &str) -> (Settings, Vec<String>) {
        let env = Environment {
            prefix: "/p/".into(),
            conf_path: "/p/c".into(),
            globals: String::new(),
            error_log: None,
            access_log: "a".into(),
        };
        let text = format!("stream {{ {outer} server {{ {inner} }} }}");
        let mut files = Files::recorded([(&env.conf_path, text)]);
        let parsed = forebay_conf::parse::parse(&env.conf_path, "", &env.prefix, &mut files);
        let stream = parsed.tree.root.iter().find_map(|d| d.block.as_ref()).expect("a block");
        let mut messages = Vec::new();
        let mut cx = Scope::main(Build::new(&env, &mut files, &mut messages));
        let (mut around, mut own) = (Written::default(), Written::default());
        for d in stream {
            let taken = match &d.block {
                Some(server) => server.iter().try_for_each(|d| own.set(d, &mut cx).map(drop)),
                None => around.set(d, &mut cx).map(drop),
            };
            cx.keep(taken);
        }
        own.inherit(&around);
        (own.resolve(), messages.into_iter().map(|e| e.message).collect())
    }

    #[test]
    fn rules_of_any_front_end() {
        let inet = |ip: &str| Peer::Inet((ip.parse::<IpAddr>().expect("an address"), 1).into());
        let (rules, messages) = read("deny 10.0.0.1; allow 10.0.0.0/8; allow unix:; deny all;", "");
        assert_eq!(messages, [""; 0]);
        let verdicts = ["10.0.0.1", "10.0.0.2", "::ffff:10.0.0.2", "::1"].map(|ip| rules.judge(inet(ip)));
        assert_eq!(verdicts, [Some(false), Some(true), Some(true), Some(false)]);
        assert_eq!(rules.judge(Peer::Unix), Some(true));
        let (rules, _) = read("deny all;", "allow ::1;");
        assert_eq!((rules.judge(inet("::1")), rules.judge(inet("::2"))), (Some(true), None));
        assert!(read("", "").0.is_empty() && !rules.is_empty());
        let (_, messages) = read("deny x; allow 10.0.0.1/8;", "");
        assert_eq!(messages, ["invalid parameter \"x\"", "low address bits of 10.0.0.1/8 are meaningless"]);
    }
}
