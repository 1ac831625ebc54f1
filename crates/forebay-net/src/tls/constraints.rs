//! Name constraints of authorities (RFC 5280, section 4.2.1.10), which limit the names in the certificates below them.
//! Like OpenSSL, honours them whether or not they are marked critical.

use super::dn::canonical;
use super::verify::{Purpose, VerifyError, common_hosts, is_self_issued};
use std::net::IpAddr;
use x509_parser::prelude::*;

/// Tag of an `IA5String`.
const IA5_STRING: u32 = 22;

/// Checks a path, whose first certificate is the one in question.
///
/// # Errors
/// A name is outside of the constraints of an authority above, or of an unknown kind.
pub fn check(path: &[(&X509Certificate<'_>, bool)], purpose: Purpose) -> Result<(), VerifyError> {
    for (i, (authority, _)) in path.iter().enumerate().skip(1) {
        let Ok(found) = authority.name_constraints() else { return Err(VerifyError(51)) };
        let Some(constraints) = found.map(|e| e.value) else { continue };
        for (j, (cert, _)) in path.iter().enumerate().take(i) {
            let is_leaf = j == 0;
            // RFC 5280, section 6.1.3: constraints do not apply to self-issued intermediates, which a change
            // of keys needs.
            if is_leaf || !is_self_issued(cert) {
                names(cert)?.iter().try_for_each(|name| permit(constraints, name))?;
            }
            if is_leaf {
                permit_hosts(constraints, cert, purpose)?;
            }
        }
    }
    Ok(())
}

/// Checks one name.
fn permit(constraints: &NameConstraints<'_>, name: &GeneralName<'_>) -> Result<(), VerifyError> {
    let excluded = constraints.excluded_subtrees.as_deref();
    let reached = excluded.unwrap_or_default().iter().any(|subtree| reaches(name, &subtree.base));
    if reached || is_below(name, excluded)? == Some(true) {
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

/// Returns all names in a certificate, without the common name.
fn names<'a>(cert: &'a X509Certificate<'a>) -> Result<Vec<GeneralName<'a>>, VerifyError> {
    let mut all = Vec::new();
    let subject = cert.subject();
    if subject.iter_rdn().next().is_some() {
        all.push(GeneralName::DirectoryName(subject.clone()));
    }
    for address in subject.iter_email() {
        // As in OpenSSL, other types of strings are refused, since they would have to be compared in other
        // ways.
        let text = address.as_str().ok().filter(|_| address.attr_value().tag().0 == IA5_STRING);
        all.push(GeneralName::RFC822Name(text.ok_or(VerifyError(53))?));
    }
    match cert.subject_alternative_name() {
        Ok(Some(more)) => all.extend(more.value.general_names.iter().cloned()),
        Ok(None) => {}
        Err(_) => return Err(VerifyError(51)),
    }
    Ok(all)
}

/// Checks the common names that stand for hosts, where no alternative name is one.
fn permit_hosts(
    constraints: &NameConstraints<'_>,
    cert: &X509Certificate<'_>,
    purpose: Purpose,
) -> Result<(), VerifyError> {
    let alternative = cert.subject_alternative_name().ok().flatten();
    let alternative = alternative.map(|n| n.value.general_names.as_slice()).unwrap_or_default();
    if alternative.iter().any(|n| matches!(n, GeneralName::DNSName(_))) {
        return Ok(());
    }
    for host in common_hosts(cert) {
        // The common name of a client may be the name of a person. A server is known by a name without dots, too.
        if purpose != Purpose::Server && !host.contains('.') {
            continue;
        }
        permit(constraints, &GeneralName::DNSName(&host))?;
        match host.parse() {
            Ok(IpAddr::V4(a)) => permit(constraints, &GeneralName::IPAddress(&a.octets()))?,
            Ok(IpAddr::V6(a)) => permit(constraints, &GeneralName::IPAddress(&a.octets()))?,
            Err(_) => {}
        }
    }
    Ok(())
}

/// Returns `true` if a name is below a base, `None` if they are of different kinds.
fn fits(name: &GeneralName<'_>, base: &GeneralName<'_>) -> Result<Option<bool>, VerifyError> {
    use GeneralName as G;
    Ok(Some(match (name, base) {
        (G::DNSName(n), G::DNSName(b)) => below(n, b),
        (G::RFC822Name(n), G::RFC822Name(b)) => mailbox(n, b),
        (G::IPAddress(n), G::IPAddress(b)) => address(n, b),
        (G::DirectoryName(n), G::DirectoryName(b)) => prefix(n, b),
        // The name and the base are of the same kind, which is unknown here.
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
        // The part before the `@` is compared with regard to case, since only the mail server of the host
        // knows its meaning.
        Some((l, h)) => l == local && h.eq_ignore_ascii_case(host),
        None if base.starts_with('.') => below(host, base),
        None => base.is_empty() || host.eq_ignore_ascii_case(base),
    }
}

/// Compares an address with `base`, an address and a mask.
fn address(name: &[u8], base: &[u8]) -> bool {
    // A base of IPv4 says nothing about an address of IPv6, and the other way round.
    if base.len() != 2 * name.len() {
        return false;
    }
    let (net, mask) = base.split_at(name.len());
    name.iter().zip(net).zip(mask).all(|((n, b), m)| n & m == b & m)
}

/// Returns `true` if a name begins with the parts of another.
fn prefix(name: &X509Name<'_>, base: &X509Name<'_>) -> bool {
    canonical(name.as_raw()).starts_with(&canonical(base.as_raw()))
}

/// Returns `true` if a name with a star matches hosts below a base that it is not below itself: `*.up.test` and `bad.up.test`.
fn reaches(name: &GeneralName<'_>, base: &GeneralName<'_>) -> bool {
    let (GeneralName::DNSName(name), GeneralName::DNSName(base)) = (name, base) else { return false };
    // A star alone stands for no host without a further dot.
    let Some(rest) = name.strip_prefix("*.").filter(|rest| rest.contains('.')) else { return false };
    let label = base.trim_start_matches('.').split_once('.');
    label.is_some_and(|(_, above)| above.eq_ignore_ascii_case(rest.trim_end_matches('.')))
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
