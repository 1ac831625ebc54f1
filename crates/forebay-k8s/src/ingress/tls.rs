//! Certificates of hosts.

use super::{Making, Members, Parsed, is_name};
use crate::model::{CertificateFiles, ClientCertificates, File, HostName, Tls};
use crate::objects::{Key, Secret};
use std::sync::Arc;
use x509_parser::extensions::GeneralName;

/// Makes the TLS part of a host's server: the certificate of the oldest Ingress that names one.
pub(super) fn of_host(making: &mut Making<'_>, host: &HostName, members: &Members) -> Tls {
    let mut tls = Tls::default();
    // Those of canaries do not count, as in ingress-nginx.
    for (parsed, _) in members.iter().filter(|(p, _)| !p.canary) {
        if tls.certificate.is_none() {
            tls.certificate = certificate(making, host, parsed);
        }
        let a = &parsed.annotations;
        if tls.ciphers.is_none() {
            tls.ciphers = a.get("ssl-ciphers").and_then(crate::value::ciphers);
        }
        if tls.prefer_server_ciphers.is_none() {
            tls.prefer_server_ciphers = a.get("ssl-prefer-server-ciphers").and_then(crate::value::parse_bool);
        }
        if tls.clients.is_none() {
            tls.clients = clients(making, parsed);
        }
    }
    tls
}

fn certificate(making: &mut Making<'_>, host: &HostName, parsed: &Parsed) -> Option<CertificateFiles> {
    let HostName::Name(name) = host else { return None };
    for (index, tls) in parsed.ingress.spec.tls.iter().enumerate() {
        let named = tls.hosts.is_empty() || tls.hosts.iter().any(|h| covers(h, name));
        if !named || tls.secret_name.is_empty() {
            continue;
        }
        let key = Key::new(parsed.key.namespace.as_str(), tls.secret_name.as_str());
        match of_key(making, &key) {
            Ok(files) if names_of(&files.chain.bytes).is_none_or(|n| n.iter().any(|n| covers(n, name))) => {
                making.files.extend([files.chain.clone(), files.key.clone()]);
                return Some(files);
            }
            // As in ingress-nginx, which always has a default one.
            Ok(files) => {
                let default = making.globals.default_certificate;
                let what = if default {
                    "the default certificate is used"
                } else {
                    "there is no default one, so it is used"
                };
                let text = format!("the certificate of the Secret {key} is not for \"{name}\"; {what}");
                let problem = parsed.problem(format!("spec.tls[{index}].secretName"), text);
                making.problems.push(problem.reason("CertificateMismatch"));
                if default {
                    continue;
                }
                making.files.extend([files.chain.clone(), files.key.clone()]);
                return Some(files);
            }
            Err(why) => {
                let text = format!("{why}; the default certificate is used");
                let problem = parsed.problem(format!("spec.tls[{index}].secretName"), text);
                making.problems.push(problem.reason("CertificateMissing"));
            }
        }
    }
    None
}

/// Makes the demand for certificates of clients. It holds for the whole server.
fn clients(making: &mut Making<'_>, parsed: &Parsed) -> Option<ClientCertificates> {
    let a = &parsed.annotations;
    let name = a.get("auth-tls-secret")?;
    let key = Key::parse(name).unwrap_or_else(|| Key::new(parsed.key.namespace.as_str(), name));
    let secret = making.referred(parsed, "auth-tls-secret", name, |view, key| view.secret(key));
    let authorities = secret.as_ref().and_then(|secret| authorities(&key, secret));
    let verify = a.or_default("auth-tls-verify-client").to_owned();
    if authorities.is_none() {
        let refused =
            secret.as_ref().and_then(|s| s.refused.iter().find(|(name, _)| name.starts_with("ca.")));
        let why = refused
            .map_or("has no ca.crt".to_owned(), |(name, why)| format!("has an unusable {name} ({why})"));
        let text = format!("the Secret {key} {why}; the paths of the Ingress answer 503");
        making.problems.push(parsed.annotation_problem("auth-tls-secret", text).reason("ReferenceMissing"));
    }
    let revoked = secret.and_then(|s| pem_file(&key, &s, "ca.crl", "crl"));
    making.files.extend(authorities.clone());
    making.files.extend(revoked.clone());
    let page = a.get("auth-tls-error-page");
    if let Some(text) = page.filter(|p| !crate::reach::is_link(p)) {
        let problem =
            parsed.annotation_problem("auth-tls-error-page", "it must be a path or a URL of http or https");
        making.problems.push(problem.reason("InvalidValue").at(text, 0));
    }
    let page = page.filter(|p| crate::reach::is_link(p));
    Some(ClientCertificates {
        authorities,
        revoked,
        verify,
        depth: a.number("auth-tls-verify-depth").unwrap_or(1),
        error_page: page.map(str::to_owned),
        match_cn: a.get("auth-tls-match-cn").map(str::to_owned),
    })
}

/// Returns the file of a Secret's authorities.
pub(super) fn authorities(key: &Key, secret: &Secret) -> Option<File> {
    // Without its list of revoked certificates it would let in those who are on it.
    if secret.refused.contains_key("ca.crl") {
        return None;
    }
    pem_file(key, secret, "ca.crt", "ca")
}

/// Returns the path of a file of a Secret. Names of Secrets may have dots, so a suffix has none: the last one is before it.
pub(super) fn secret_path(key: &Key, suffix: &str) -> String {
    debug_assert!(!suffix.contains('.'), "{suffix}");
    format!("secrets/{}_{}.{suffix}", key.namespace, key.name)
}

fn pem_file(key: &Key, secret: &Secret, part: &str, suffix: &str) -> Option<File> {
    let bytes = secret.data.get(part).filter(|bytes| is_pem(bytes))?;
    let named = is_name(&key.namespace) && is_name(&key.name);
    named.then(|| File { path: secret_path(key, suffix), bytes: bytes.clone() })
}

fn is_pem(bytes: &[u8]) -> bool {
    bytes.windows(11).any(|w| w == b"-----BEGIN ")
}

/// Returns `true` if a name of a certificate is that of a host, or its wildcard.
pub(super) fn covers(pattern: &str, host: &str) -> bool {
    let pattern = pattern.to_ascii_lowercase();
    if pattern == host {
        return true;
    }
    let Some(suffix) = pattern.strip_prefix('*') else { return false };
    host.strip_suffix(suffix).is_some_and(|label| !label.is_empty() && !label.contains('.'))
        && suffix.starts_with('.')
}

/// Returns the names of the first certificate of a chain: the alternative ones, or else the common one. `None`: it cannot be read.
fn names_of(chain: &[u8]) -> Option<Vec<String>> {
    let (_, pem) = x509_parser::pem::parse_x509_pem(chain).ok()?;
    let certificate = pem.parse_x509().ok()?;
    let alternative = certificate.subject_alternative_name().ok()?;
    if let Some(names) = alternative {
        let dns = names.value.general_names.iter().filter_map(|name| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            _ => None,
        });
        return Some(dns.collect());
    }
    let common = certificate.subject().iter_common_name().filter_map(|name| name.as_str().ok());
    Some(common.map(str::to_owned).collect())
}

/// Returns the files of a Secret of type `kubernetes.io/tls`.
fn of_key(making: &Making<'_>, key: &Key) -> Result<CertificateFiles, String> {
    let secret = making.view.secret(key).ok_or_else(|| format!("the Secret {key} does not exist"))?;
    of_secret(key, &secret)
}

/// Returns the files of a Secret.
///
/// # Errors
/// If it has no certificate or no key.
pub(crate) fn of_secret(key: &Key, secret: &Secret) -> Result<CertificateFiles, String> {
    if !is_name(&key.namespace) || !is_name(&key.name) {
        return Err(format!("the Secret {key} has an invalid name"));
    }
    if let Some(why) = secret.refused.get("tls.crt") {
        return Err(format!("the certificate of the Secret {key} cannot be used: {why}"));
    }
    let part = |name: &str| -> Result<Arc<[u8]>, String> {
        let bytes = secret.data.get(name).ok_or_else(|| format!("the Secret {key} has no {name}"))?;
        if is_pem(bytes) { Ok(bytes.clone()) } else { Err(format!("{name} of the Secret {key} is no PEM")) }
    };
    let file = |suffix: &str, bytes| File { path: secret_path(key, suffix), bytes };
    Ok(CertificateFiles { chain: file("crt", part("tls.crt")?), key: file("key", part("tls.key")?) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For fits.example.com and *.wild.example.com, with another common name.
    const ALTERNATIVE: &str = include_str!("../../tests/fits.pem");
    /// For a.example.com by its common name alone.
    const COMMON: &str = include_str!("../../tests/common_name.pem");

    #[test]
    fn names_of_certificates() {
        let names = |text: &str| names_of(text.as_bytes());
        assert_eq!(names(ALTERNATIVE), Some(vec!["fits.example.com".into(), "*.wild.example.com".into()]));
        assert_eq!(names(COMMON), Some(vec!["a.example.com".into()]));
        assert_eq!(names("-----BEGIN CERTIFICATE-----"), None);
        for (host, fits) in [
            ("fits.example.com", true),
            ("a.wild.example.com", true),
            ("*.wild.example.com", true),
            ("a.b.wild.example.com", false),
            ("wild.example.com", false),
            ("ignored.example.com", false),
        ] {
            let found = names(ALTERNATIVE).unwrap_or_default();
            assert_eq!(found.iter().any(|n| covers(n, host)), fits, "{host}");
        }
    }
}
