//! Fields of requests and answers that annotations set.

use super::{Making, Parsed};
use crate::model::Policy;

impl Making<'_> {
    /// Adds fields of requests and of answers.
    pub(super) fn headers(&mut self, parsed: &Parsed, policy: &mut Policy) {
        let a = &parsed.annotations;
        if let Some(host) = a.get("upstream-vhost") {
            policy.headers.push(("Host".into(), host.into()));
        }
        if let Some(value) = a.get("connection-proxy-header") {
            policy.headers.push(("Connection".into(), value.into()));
        }
        if let Some(prefix) = a.get("x-forwarded-prefix") {
            policy.headers.push(("X-Forwarded-Prefix".into(), prefix.into()));
        }
        let Some(name) = a.get("custom-headers") else { return };
        let Some(fields) = self.literal_fields(parsed, "custom-headers", name) else { return };
        for (field, value) in fields {
            let mut allowed = self.globals.settings.list("global-allowed-response-headers");
            if allowed.any(|a| a.eq_ignore_ascii_case(&field)) {
                policy.response_headers.push((field, value));
                continue;
            }
            let text = format!(
                "the field \"{}\" is not in global-allowed-response-headers; the paths of the Ingress answer 503",
                field.escape_debug()
            );
            self.problems.push(parsed.annotation_problem("custom-headers", text).reason("HeaderNotAllowed"));
            self.closed = true;
        }
    }

    /// Reads the fields of a ConfigMap that an annotation names. In their values a `$` is a letter: variables may tell what is not
    /// for the author of the ConfigMap. Closes the paths of the Ingress if the ConfigMap is missing or a field is not valid.
    pub(super) fn literal_fields(
        &mut self,
        parsed: &Parsed,
        annotation: &'static str,
        name: &str,
    ) -> Option<Vec<(String, String)>> {
        let Some(map) = self.referred(parsed, annotation, name, |view, key| view.config_map(key)) else {
            self.closed = true;
            return None;
        };
        let mut fields = Vec::new();
        for (field, value) in &map.data {
            if let Some(why) = bad_literal(field, value) {
                let text = format!(
                    "the field \"{}\" of the ConfigMap is not valid: {why}; the paths of the Ingress answer 503",
                    field.escape_debug()
                );
                self.problems.push(parsed.annotation_problem(annotation, text).reason("InvalidValue"));
                self.closed = true;
            } else {
                fields.push((field.clone(), crate::gateway::literal(value.trim())));
            }
        }
        Some(fields)
    }

    /// Adds parameters for FastCGI.
    pub(super) fn fastcgi(&mut self, parsed: &Parsed, policy: &mut Policy) {
        let Some(name) = parsed.annotations.get("fastcgi-params-configmap") else { return };
        let Some(map) =
            self.referred(parsed, "fastcgi-params-configmap", name, |view, key| view.config_map(key))
        else {
            return;
        };
        for (name, value) in &map.data {
            let fine = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
            let checked = crate::value::Value::Template.check(value.trim(), &self.globals.settings.defined);
            match checked {
                Ok(()) if fine => policy.fastcgi.push((name.clone(), value.trim().to_owned())),
                _ => {
                    let text = format!(
                        "the parameter \"{}\" of the ConfigMap is left out: its name or value is not valid",
                        name.escape_debug()
                    );
                    self.problems.push(
                        parsed.annotation_problem("fastcgi-params-configmap", text).reason("InvalidValue"),
                    );
                }
            }
        }
    }
}

/// Returns why a field without variables cannot be set.
fn bad_literal(name: &str, value: &str) -> Option<String> {
    let known = crate::variables::Known::new();
    if let Err(invalid) = crate::value::Value::Token.check(name, &known) {
        return Some(format!("its name is not valid: {}", invalid.reason));
    }
    let line = value.trim();
    let control = line.chars().find(|c| c.is_control());
    control.map(|c| format!("the character U+{:04X} is not allowed", u32::from(c))).or_else(|| {
        // Each `$` becomes a variable.
        let longest = crate::value::LONGEST;
        (crate::gateway::literal(line).len() > longest)
            .then(|| format!("the value is longer than {longest} bytes"))
    })
}
