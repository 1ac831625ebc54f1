//! Buffers, whose sizes must fit each other, and TLS to the upstream.

use super::{Making, Parsed, plain};
use crate::model::{File, Policy};
use crate::value::parse_size;

/// Returns a size in bytes.
fn bytes(text: &str) -> Option<u64> {
    forebay_conf::units::size(parse_size(text)?.as_bytes())
}

impl Making<'_> {
    /// Adds the sizes of buffers. A combination that nginx refuses would make the whole configuration invalid.
    pub(super) fn buffers(&mut self, parsed: &Parsed, policy: &mut Policy) {
        let a = &parsed.annotations;
        let s = &self.globals.settings;
        let names = [
            "proxy-buffer-size",
            "proxy-buffers-number",
            "proxy-busy-buffers-size",
            "proxy-max-temp-file-size",
        ];
        if names.iter().all(|n| a.get(n).is_none()) {
            return;
        }
        let size_text = a.get("proxy-buffer-size").unwrap_or_else(|| s.get("proxy-buffer-size"));
        let number = a.number("proxy-buffers-number").unwrap_or_else(|| s.number("proxy-buffers-number"));
        let size = bytes(size_text).unwrap_or(4096);
        if size == 0 || number < 2 {
            let text = "buffers need a size, and there must be two of them; the general ones are used";
            self.problems.push(parsed.annotation_problem("proxy-buffer-size", text).reason("InvalidValue"));
            return;
        }
        plain(policy, "proxy_buffer_size", [size.to_string()]);
        plain(policy, "proxy_buffers", [number.to_string(), size.to_string()]);
        let most = size.saturating_mul(number.unsigned_abs().saturating_sub(1));
        let busy = a.get("proxy-busy-buffers-size").and_then(bytes);
        match busy {
            Some(n) if n >= size && n < most => plain(policy, "proxy_busy_buffers_size", [n.to_string()]),
            Some(_) => {
                let text = format!(
                    "it must be at least {size} bytes and less than {most}; twice the size of a buffer is used"
                );
                self.problems
                    .push(parsed.annotation_problem("proxy-busy-buffers-size", text).reason("InvalidValue"));
                plain(
                    policy,
                    "proxy_busy_buffers_size",
                    [size.saturating_mul(2).min(most.saturating_sub(1)).max(size).to_string()],
                );
            }
            None => plain(
                policy,
                "proxy_busy_buffers_size",
                [size.saturating_mul(2).min(most.saturating_sub(1)).max(size).to_string()],
            ),
        }
        let temp = a.get("proxy-max-temp-file-size").unwrap_or_else(|| s.get("proxy-max-temp-file-size"));
        match bytes(temp) {
            Some(n) if n == 0 || n >= size => plain(policy, "proxy_max_temp_file_size", [n.to_string()]),
            _ => {
                let text = "it must be 0 or at least the size of a buffer; 0 is used";
                self.problems
                    .push(parsed.annotation_problem("proxy-max-temp-file-size", text).reason("InvalidValue"));
                plain(policy, "proxy_max_temp_file_size", ["0"]);
            }
        }
    }

    /// Adds the certificates for TLS to the upstream.
    pub(super) fn upstream_tls(&mut self, parsed: &Parsed, policy: &mut Policy) {
        let a = &parsed.annotations;
        if let Some(protocols) = a.get("proxy-ssl-protocols") {
            let words: Vec<&str> =
                protocols.split_ascii_whitespace().filter(|p| matches!(*p, "TLSv1.2" | "TLSv1.3")).collect();
            if !words.is_empty() {
                plain(policy, "proxy_ssl_protocols", words);
            }
        }
        let verify = a.get("proxy-ssl-verify") == Some("on");
        let Some(name) = a.get("proxy-ssl-secret") else {
            if verify {
                self.no_authorities(parsed);
            }
            return;
        };
        let key = crate::objects::Key::parse(name);
        let Some(secret) = self.referred(parsed, "proxy-ssl-secret", name, |view, key| view.secret(key))
        else {
            self.closed = true;
            return;
        };
        let key = key.unwrap_or_else(|| crate::objects::Key::new(parsed.key.namespace.as_str(), name));
        let authorities = super::super::tls::authorities(&key, &secret);
        let has = |part: &str| secret.data.contains_key(part);
        match super::super::tls::of_secret(&key, &secret) {
            Ok(files) => {
                plain(policy, "proxy_ssl_certificate", [files.chain.path.clone()]);
                plain(policy, "proxy_ssl_certificate_key", [files.key.path.clone()]);
                self.files.extend([files.chain, files.key]);
            }
            // A Secret of authorities alone is for the check of the upstream.
            Err(_) if authorities.is_some() && !has("tls.crt") && !has("tls.key") => {}
            Err(why) => self.no_upstream_tls(parsed, &why),
        }
        if has("ca.crt") && authorities.is_none() {
            self.no_upstream_tls(parsed, &format!("ca.crt of the Secret {key} is no PEM"));
        }
        match authorities {
            Some(file) => {
                let File { path, .. } = &file;
                plain(policy, "proxy_ssl_trusted_certificate", [path.clone()]);
                self.files.push(file);
                plain(policy, "proxy_ssl_verify", [if verify { "on" } else { "off" }]);
            }
            None if verify => self.no_authorities(parsed),
            None => {}
        }
    }

    /// Closes the paths of an Ingress whose Secret for TLS to the upstream is broken.
    fn no_upstream_tls(&mut self, parsed: &Parsed, why: &str) {
        let text = format!("{why}; the paths of the Ingress answer 503");
        self.problems.push(parsed.annotation_problem("proxy-ssl-secret", text).reason("ReferenceInvalid"));
        self.closed = true;
    }

    /// Closes the paths of an Ingress whose upstream was to be verified without anything to verify it by.
    fn no_authorities(&mut self, parsed: &Parsed) {
        let text =
            "proxy-ssl-secret has no ca.crt to verify the upstream by; the paths of the Ingress answer 503";
        self.problems.push(parsed.annotation_problem("proxy-ssl-verify", text).reason("ReferenceMissing"));
        self.closed = true;
    }
}
