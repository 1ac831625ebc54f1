//! `allow`, `deny` (nginx: ngx_http_access_module).

use forebay_conf::error::Level;
pub use forebay_core::limit::access::{Settings, Written};
use forebay_server::module::levels::LocationSettings;
use forebay_server::module::{Module, Phase, PhaseHook, SettingsOf, Step, Verdict};
use forebay_server::modules::core::Satisfy;
use forebay_server::request::Request;

/// Settings of this module.
pub static SETTINGS: SettingsOf<Written> = SettingsOf::new();

/// `access`.
pub static MODULE: Module = Module {
    settings: &[&SETTINGS],
    hooks: &[PhaseHook::new(Phase::Access, enabled, check)],
    ..Module::NONE
};

/// Returns `true` if a location has rules.
fn enabled(s: &LocationSettings) -> bool {
    !SETTINGS.of(s).is_empty()
}

/// Applies the rules to the client.
fn check(req: &mut Request) -> Step<'_> {
    let http = req.http();
    let settings = &http.location(req).settings;
    let verdict = match SETTINGS.of(settings).judge(req.peer) {
        None => Verdict::Declined,
        Some(true) => Verdict::Allowed,
        Some(false) => {
            // With `satisfy any` another module may still let the client in.
            if settings.core.satisfy == Satisfy::All {
                req.log(Level::Error, "access forbidden by rule");
            }
            Verdict::Status(403)
        }
    };
    verdict.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use forebay_net::addr::Peer;

    fn judge(rules: &str, peer: Peer) -> Verdict {
        let mut req = testing::request(&format!("server {{ {rules} }}"), "");
        req.peer = peer;
        check(&mut req).now()
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
        assert_eq!(check(&mut req).now(), Verdict::Declined);
        assert_eq!(testing::error("deny ALL;").as_deref(), Some("invalid parameter \"ALL\""));
        assert_eq!(testing::warnings("deny 10.0.0.1/8;"), ["low address bits of 10.0.0.1/8 are meaningless"]);
    }
}
