//! Networks of trusted proxies (nginx: set_real_ip_from).

use super::value::{Setting, first};
use super::{Context, Scope};
use crate::limit::cidr::Cidr;
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use std::sync::Arc;

/// Trusted networks.
#[derive(Clone, Debug, Default)]
pub struct Networks(Arc<Vec<Cidr>>);

impl Networks {
    /// Returns the networks.
    pub fn networks(&self) -> &[Cidr] {
        &self.0
    }
}

impl<C: Context> Setting<C> for Networks {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
        let mut networks = previous.unwrap_or_default();
        let list = Arc::make_mut(&mut networks.0);
        let word = first(d);
        let text = String::from_utf8_lossy(word);
        if word == b"unix:" {
            list.push(Cidr::Unix);
        } else if let Some((network, low_bits)) = Cidr::parse(word) {
            if low_bits {
                cx.warn(d, format!("low address bits of {text} are meaningless"));
            }
            list.push(network);
        } else {
            let not_found = || cx.error(d, format!("host not found in set_real_ip_from \"{text}\""));
            let host = std::str::from_utf8(word).map_err(|_| not_found())?;
            let addrs = forebay_net::addr::look_up(host, 0).map_err(|_| not_found())?;
            list.extend(addrs.into_iter().map(|a| Cidr::host(a.ip())));
        }
        Ok(networks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Build, Environment};
    use crate::limit::cidr::any_contains;
    use forebay_conf::files::Files;
    use forebay_net::addr::Peer;
    use std::net::IpAddr;

    #[test]
    fn networks_of_any_front_end() {
        let env = Environment {
            prefix: "/p/".into(),
            conf_path: "/p/c".into(),
            globals: String::new(),
            error_log: None,
            access_log: "a".into(),
        };
        let directives = ["10.0.0.0/8", "unix:", "192.0.2.1/24", "no such host"];
        let text: String = directives.iter().map(|d| format!("set_real_ip_from \"{d}\";\n")).collect();
        let mut files = Files::recorded([(&env.conf_path, format!("stream {{ {text} }}"))]);
        let parsed = forebay_conf::parse::parse(&env.conf_path, "", &env.prefix, &mut files);
        let stream = parsed.tree.root.iter().find_map(|d| d.block.as_ref()).expect("a block");
        let mut messages = Vec::new();
        let mut cx = Scope::main(Build::new(&env, &mut files, &mut messages));
        let mut networks = Networks::default();
        for d in stream {
            match Setting::take(Some(networks.clone()), d, &mut cx) {
                Ok(more) => networks = more,
                Err(e) => cx.keep(Err(e)),
            }
        }
        let inet = |ip: &str| Peer::Inet((ip.parse::<IpAddr>().expect("an address"), 1).into());
        let trusted = ["10.1.1.1", "192.0.2.9", "192.0.3.1", "::1"]
            .map(|ip| any_contains(networks.networks(), inet(ip)));
        assert_eq!(trusted, [true, true, false, false]);
        assert!(any_contains(networks.networks(), Peer::Unix));
        assert_eq!(networks.networks().len(), 3);
        let messages: Vec<_> = messages.into_iter().map(|e| e.message).collect();
        let host = "host not found in set_real_ip_from \"no such host\"";
        assert_eq!(messages, ["low address bits of 192.0.2.1/24 are meaningless", host]);
    }
}
