//! Header of the PROXY protocol that connections to upstreams begin with (nginx: proxy_protocol).

use forebay_http::proxy_protocol;

crate::keyword! {
    /// `proxy_protocol`.
    pub enum SendProxy { Off = "off", On = "on", V1 = "v1", V2 = "v2", }
}

impl SendProxy {
    /// Returns the value of this name.
    pub fn of(text: &[u8]) -> Option<SendProxy> {
        let known =
            [("off", SendProxy::Off), ("on", SendProxy::On), ("v1", SendProxy::V1), ("v2", SendProxy::V2)];
        known.into_iter().find(|(name, _)| text.eq_ignore_ascii_case(name.as_bytes())).map(|(_, value)| value)
    }

    /// Returns the version of the header, or `None` if none is sent.
    pub fn version(self) -> Option<proxy_protocol::HeaderVersion> {
        match self {
            SendProxy::Off => None,
            SendProxy::On | SendProxy::V1 => Some(proxy_protocol::HeaderVersion::One),
            SendProxy::V2 => Some(proxy_protocol::HeaderVersion::Two),
        }
    }
}
