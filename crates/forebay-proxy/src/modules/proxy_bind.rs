//! `proxy_bind` and what else is set on the sockets that go to upstreams (nginx: ngx_http_proxy_module).
//! [`forebay_core::upstream::bind`] implements them.

pub use forebay_core::upstream::bind::Written;

use forebay_server::module::SettingsOf;

/// Settings of this module.
pub static SETTINGS: SettingsOf<Written> = SettingsOf::new();

#[cfg(test)]
mod tests {
    use crate::testing::{error, request};
    use forebay_server::request::Request;

    #[test]
    fn addresses() {
        let mut req = request("proxy_bind $arg_a;", "a=127.0.0.2:5");
        let local = |req: &mut Request| {
            let http = req.http();
            super::SETTINGS
                .of(&http.location(req).settings)
                .local(req)
                .expect("no circle")
                .map(|local| local.addr)
        };
        assert_eq!(local(&mut req), Some(([127, 0, 0, 2], 5).into()));
        crate::testing::again(&mut req, "a=[::1]");
        assert_eq!(local(&mut req).map(|a| a.to_string()).as_deref(), Some("[::1]:0"));
        crate::testing::again(&mut req, "a=nonsense");
        assert_eq!(local(&mut req), None);
        assert!(error("proxy_bind 1.2.3;").is_some_and(|m| m.contains("invalid address")));
        assert!(error("proxy_bind 127.0.0.1 foreign;").is_some_and(|m| m.contains("invalid parameter")));
        assert_eq!(error("proxy_bind 127.0.0.1 transparent;"), None);
        let mut req = request("proxy_bind 127.0.0.1 transparent;", "");
        let http = req.http();
        let local = super::SETTINGS.of(&http.location(&req).settings).local(&mut req).expect("no circle");
        assert!(local.is_some_and(|local| local.transparent));
    }
}
