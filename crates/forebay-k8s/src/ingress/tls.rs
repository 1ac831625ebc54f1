//! Certificates of hosts.

use super::{Making, Members, Parsed, is_name};
use crate::model::{CertificateFiles, File, HostName, Tls};
use crate::objects::{Key, Secret};
use std::sync::Arc;

/// Makes the TLS part of a host's server: the certificate of the oldest Ingress that names one.
pub(super) fn of_host(making: &mut Making<'_>, host: &HostName, members: &Members) -> Tls {
    let mut tls = Tls::default();
    for (parsed, _) in members {
        if tls.certificate.is_none() {
            tls.certificate = certificate(making, host, parsed);
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
        match files(making, &key) {
            Ok(files) => return Some(files),
            Err(why) => {
                let text = format!("{why}; the default certificate is used");
                let problem = parsed.problem(format!("spec.tls[{index}].secretName"), text);
                making.problems.push(problem.reason("CertificateMissing"));
            }
        }
    }
    None
}

/// Returns `true` if a name of a certificate is that of a host, or its wildcard.
fn covers(pattern: &str, host: &str) -> bool {
    let pattern = pattern.to_ascii_lowercase();
    if pattern == host {
        return true;
    }
    let Some(suffix) = pattern.strip_prefix('*') else { return false };
    host.strip_suffix(suffix).is_some_and(|label| !label.is_empty() && !label.contains('.'))
        && suffix.starts_with('.')
}

/// Returns the files of a Secret of type `kubernetes.io/tls`.
pub(super) fn files(making: &mut Making<'_>, key: &Key) -> Result<CertificateFiles, String> {
    let secret = making.view.secret(key).ok_or_else(|| format!("the Secret {key} does not exist"))?;
    let made = of_secret(key, &secret)?;
    making.files.extend([made.chain.clone(), made.key.clone()]);
    Ok(made)
}

/// Returns the files of a Secret.
///
/// # Errors
/// If it has no certificate or no key.
pub(crate) fn of_secret(key: &Key, secret: &Secret) -> Result<CertificateFiles, String> {
    if !is_name(&key.namespace) || !is_name(&key.name) {
        return Err(format!("the Secret {key} has an invalid name"));
    }
    let part = |name: &str| -> Result<Arc<[u8]>, String> {
        let bytes = secret.data.get(name).ok_or_else(|| format!("the Secret {key} has no {name}"))?;
        let begins = bytes.windows(11).any(|w| w == b"-----BEGIN ");
        if begins { Ok(bytes.clone()) } else { Err(format!("{name} of the Secret {key} is no PEM")) }
    };
    let file = |suffix: &str, bytes| File {
        path: format!("secrets/{}_{}.{suffix}", key.namespace, key.name),
        bytes,
    };
    Ok(CertificateFiles { chain: file("crt", part("tls.crt")?), key: file("key", part("tls.key")?) })
}
