//! Networks of trusted proxies (nginx: set_real_ip_from).

use super::value::{Setting, first};
use super::{Context, Scope};
use crate::limit::cidr::Cidr;
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use std::net::ToSocketAddrs;
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
            let addrs = (host, 0).to_socket_addrs().map_err(|_| not_found())?;
            list.extend(addrs.map(|a| Cidr::host(a.ip())));
        }
        Ok(networks)
    }
}
