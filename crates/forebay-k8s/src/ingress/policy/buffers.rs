//! Buffers, whose sizes must fit each other, and TLS to the upstream.

use super::{Making, Parsed, plain};
use crate::model::Policy;
use crate::objects::{Key, Secret};
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
            return self.wrong_size(parsed, "proxy-buffer-size", text);
        }
        plain(policy, "proxy_buffer_size", [size.to_string()]);
        plain(policy, "proxy_buffers", [number.to_string(), size.to_string()]);
        let most = size.saturating_mul(number.unsigned_abs().saturating_sub(1));
        let busy = self.busy_size(parsed, size, most);
        plain(policy, "proxy_busy_buffers_size", [busy.to_string()]);
        let temp = self.temp_size(parsed, size);
        plain(policy, "proxy_max_temp_file_size", [temp.to_string()]);
    }

    fn wrong_size(&mut self, parsed: &Parsed, annotation: &str, text: impl Into<String>) {
        self.problems.push(parsed.annotation_problem(annotation, text).reason("InvalidValue"));
    }

    /// Returns the size of buffers that are busy. `size`: one buffer; `most`: all buffers but one.
    fn busy_size(&mut self, parsed: &Parsed, size: u64, most: u64) -> u64 {
        let general = size.saturating_mul(2).min(most.saturating_sub(1)).max(size);
        match parsed.annotations.get("proxy-busy-buffers-size").and_then(bytes) {
            Some(n) if n >= size && n < most => n,
            Some(_) => {
                let text = format!(
                    "it must be at least {size} bytes and less than {most}; twice the size of a buffer is used"
                );
                self.wrong_size(parsed, "proxy-busy-buffers-size", text);
                general
            }
            None => general,
        }
    }

    /// Returns the size of temporary files. `size`: one buffer.
    fn temp_size(&mut self, parsed: &Parsed, size: u64) -> u64 {
        const KEY: &str = "proxy-max-temp-file-size";
        let text = parsed.annotations.get(KEY).unwrap_or_else(|| self.globals.settings.get(KEY));
        match bytes(text) {
            Some(n) if n == 0 || n >= size => n,
            _ => {
                let text = "it must be 0 or at least the size of a buffer; 0 is used";
                self.wrong_size(parsed, KEY, text);
                0
            }
        }
    }

    /// Adds the certificates for TLS to the upstream.
    pub(super) fn upstream_tls(&mut self, parsed: &Parsed, policy: &mut Policy) {
        let a = &parsed.annotations;
        let protocols = a.get("proxy-ssl-protocols").unwrap_or_default().split_ascii_whitespace();
        let words: Vec<&str> = protocols.filter(|p| matches!(*p, "TLSv1.2" | "TLSv1.3")).collect();
        if !words.is_empty() {
            plain(policy, "proxy_ssl_protocols", words);
        }
        if let Some(name) = a.get("proxy-ssl-secret") {
            match self.referred(parsed, "proxy-ssl-secret", name, |view, key| view.secret(key)) {
                Some(secret) => self.upstream_secret(parsed, name, &secret, policy),
                None => self.closed = true,
            }
        } else if a.get("proxy-ssl-verify") == Some("on") {
            self.no_authorities(parsed);
        }
    }

    /// Adds the certificate and the authorities of a Secret.
    fn upstream_secret(&mut self, parsed: &Parsed, name: &str, secret: &Secret, policy: &mut Policy) {
        let verify = parsed.annotations.get("proxy-ssl-verify") == Some("on");
        let key = Key::parse(name).unwrap_or_else(|| Key::new(parsed.key.namespace.as_str(), name));
        let authorities = super::super::tls::authorities(&key, secret);
        let has = |part: &str| secret.data.contains_key(part);
        match super::super::tls::of_secret(&key, secret) {
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
        if let Some(file) = authorities {
            plain(policy, "proxy_ssl_trusted_certificate", [file.path.clone()]);
            self.files.push(file);
            plain(policy, "proxy_ssl_verify", [if verify { "on" } else { "off" }]);
        } else if verify {
            self.no_authorities(parsed);
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
