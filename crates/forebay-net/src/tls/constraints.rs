//! Name constraints of authorities (RFC 5280, section 4.2.1.10), which limit the names in the certificates below them.
//! Like OpenSSL, honours them whether or not they are marked critical.

use super::verify::VerifyError;
use x509_parser::prelude::*;

/// Checks a path, whose first certificate is the one in question.
///
/// # Errors
/// A name is outside of the constraints of an authority above, or of an unknown kind.
pub fn check(path: &[(&X509Certificate<'_>, bool)]) -> Result<(), VerifyError> {
    for (i, (authority, _)) in path.iter().enumerate().skip(1) {
        let Ok(found) = authority.name_constraints() else { return Err(VerifyError(51)) };
        let Some(constraints) = found.map(|e| e.value) else { continue };
        for (j, (cert, _)) in path.iter().enumerate().take(i) {
            let is_leaf = j == 0;
            if is_leaf || cert.subject().as_raw() != cert.issuer().as_raw() {
                names(cert, is_leaf)?.iter().try_for_each(|name| permit(constraints, name))?;
            }
        }
    }
    Ok(())
}

/// Checks one name.
fn permit(constraints: &NameConstraints<'_>, name: &GeneralName<'_>) -> Result<(), VerifyError> {
    if is_below(name, constraints.excluded_subtrees.as_deref())? == Some(true) {
        return Err(VerifyError(48));
    }
    if is_below(name, constraints.permitted_subtrees.as_deref())? == Some(false) {
        return Err(VerifyError(47));
    }
    Ok(())
}

/// Returns `true` if a name is below one of these bases, `None` if no base is of its kind.
fn is_below(
    name: &GeneralName<'_>,
    bases: Option<&[GeneralSubtree<'_>]>,
) -> Result<Option<bool>, VerifyError> {
    let mut below = None;
    for subtree in bases.unwrap_or_default() {
        if let Some(fits) = fits(name, &subtree.base)? {
            below = Some(below.unwrap_or(false) || fits);
        }
    }
    Ok(below)
}

/// Returns all names in a certificate.
fn names<'a>(cert: &'a X509Certificate<'a>, leaf: bool) -> Result<Vec<GeneralName<'a>>, VerifyError> {
    let mut all = Vec::new();
    let subject = cert.subject();
    if subject.iter_rdn().next().is_some() {
        all.push(GeneralName::DirectoryName(subject.clone()));
    }
    all.extend(subject.iter_email().filter_map(|e| e.as_str().ok()).map(GeneralName::RFC822Name));
    let mut has_hosts = false;
    match cert.subject_alternative_name() {
        Ok(Some(more)) => {
            for n in &more.value.general_names {
                has_hosts |= matches!(n, GeneralName::DNSName(_));
                all.push(n.clone());
            }
        }
        Ok(None) => {}
        Err(_) => return Err(VerifyError(51)),
    }
    // Without names of hosts, the common name counts as one.
    if leaf && !has_hosts {
        let hosts = subject.iter_common_name().filter_map(|n| n.as_str().ok());
        let is_host = |n: &&str| {
            n.contains('.') && n.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'))
        };
        all.extend(hosts.filter(is_host).map(GeneralName::DNSName));
    }
    Ok(all)
}

/// Returns `true` if a name is below a base, `None` if they are of different kinds.
fn fits(name: &GeneralName<'_>, base: &GeneralName<'_>) -> Result<Option<bool>, VerifyError> {
    use GeneralName as G;
    Ok(Some(match (name, base) {
        (G::DNSName(n), G::DNSName(b)) => below(n, b),
        (G::RFC822Name(n), G::RFC822Name(b)) => mailbox(n, b),
        (G::IPAddress(n), G::IPAddress(b)) => address(n, b),
        (G::DirectoryName(n), G::DirectoryName(b)) => prefix(n, b),
        // Of the same kind, but an unknown one.
        _ if std::mem::discriminant(name) == std::mem::discriminant(base) => return Err(VerifyError(51)),
        (_, G::Invalid(..)) | (G::Invalid(..), _) => return Err(VerifyError(51)),
        _ => return Ok(None),
    }))
}

fn below(name: &str, base: &str) -> bool {
    let name = name.trim_end_matches('.');
    let Some(at) = name.len().checked_sub(base.len()) else { return false };
    let tail = name.as_bytes().get(at..).unwrap_or_default();
    let whole =
        at == 0 || base.is_empty() || base.starts_with('.') || name.as_bytes().get(at - 1) == Some(&b'.');
    tail.eq_ignore_ascii_case(base.as_bytes()) && whole
}

fn mailbox(name: &str, base: &str) -> bool {
    let Some((local, host)) = name.rsplit_once('@') else { return false };
    match base.rsplit_once('@') {
        Some((l, h)) => l == local && h.eq_ignore_ascii_case(host),
        None if base.starts_with('.') => below(host, base),
        None => base.is_empty() || host.eq_ignore_ascii_case(base),
    }
}

/// Compares an address with `base`, an address and a mask.
fn address(name: &[u8], base: &[u8]) -> bool {
    if base.len() != 2 * name.len() {
        return false;
    }
    let (net, mask) = base.split_at(name.len());
    name.iter().zip(net).zip(mask).all(|((n, b), m)| n & m == b & m)
}

/// Returns `true` if a name begins with the parts of another, apart from the case of letters.
fn prefix(name: &X509Name<'_>, base: &X509Name<'_>) -> bool {
    let mut parts = name.iter_rdn();
    base.iter_rdn().all(|wanted| {
        let Some(part) = parts.next() else { return false };
        let mut own = part.iter();
        let same = wanted.iter().all(|w| {
            own.next().is_some_and(|o| {
                let (a, b) = (o.attr_value().data.trim_ascii(), w.attr_value().data.trim_ascii());
                o.attr_type() == w.attr_type() && a.eq_ignore_ascii_case(b)
            })
        });
        same && own.next().is_none()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lie_below_bases() {
        assert!(below("a.example.com", "example.com") && below("EXAMPLE.com", "example.com"));
        assert!(below("a.example.com", ".example.com") && !below("example.com", ".example.com"));
        assert!(!below("badexample.com", "example.com") && !below("com", "example.com") && below("x", ""));
        assert!(mailbox("a@x.test", "x.test") && !mailbox("a@b.x.test", "x.test"));
        assert!(mailbox("a@b.x.test", ".x.test") && mailbox("a@X.test", "a@x.test"));
        assert!(!mailbox("A@x.test", "a@x.test"));
        assert!(address(&[10, 1, 2, 3], &[10, 0, 0, 0, 255, 0, 0, 0]));
        assert!(!address(&[11, 1, 2, 3], &[10, 0, 0, 0, 255, 0, 0, 0]));
        assert!(!address(&[0; 16], &[10, 0, 0, 0, 255, 0, 0, 0]));
    }
}
