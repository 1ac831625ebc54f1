//! `acme_issuer` (nginx: ngx_http_acme_module).

use super::ordering::DEFAULT;
use super::tables::Issuers;
use super::tables::program;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use forebay_acme::{Challenge, ExternalAccount, Issuer, KeyKind, MacAlgorithm, Profile, Publication};
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_core::config::value::{Setting, first};
use forebay_net::tls::pem::{self, PemError};
use forebay_server::config::Scope;

/// Reads an `acme_issuer` block.
pub(crate) fn issuer(d: &Directive, cx: &mut Scope<'_>) -> Result<(), Error> {
    let name = String::from_utf8_lossy(first(d)).into_owned();
    if cx.tables.parts.get_mut::<Issuers>().defined.iter().any(|i| i.name == name) {
        return Err(cx.error(d, format!("duplicate acme issuer \"{name}\"")));
    }
    if name.is_empty() || name.contains(['/', '\0']) {
        return Err(cx.error(d, format!("invalid acme issuer name \"{name}\"")));
    }
    let mut reading = Reading { issuer: Issuer::new(&name, ""), seen: Vec::new(), cx };
    for inner in d.block.iter().flatten() {
        let read = reading.directive(inner);
        reading.cx.keep(read);
    }
    let Reading { mut issuer, seen, cx } = reading;
    if !seen.contains(&b"uri".to_vec()) {
        return Err(cx.error(d, format!("\"uri\" is missing in acme issuer \"{name}\"")));
    }
    let lacks_path = !seen.contains(&b"state_path".to_vec());
    if lacks_path && name == DEFAULT {
        // This default is our own. The directory is not below the prefix, since the prefix of a package
        // belongs to the package.
        cx.tables.parts.get_mut::<Issuers>().default_lacks_path = true;
    } else if lacks_path {
        let path = cx.full_path(format!("acme_{name}").as_bytes());
        cx.directory(d, &path, Some(Vec::new()))?;
        issuer.state_path = Some(path);
    }
    cx.tables.parts.get_mut::<Issuers>().defined.push(issuer);
    Ok(())
}

/// Names of the directives of the block.
#[cfg(test)]
pub const DIRECTIVES: &[&str] = &[
    "uri",
    "account_key",
    "challenge",
    "contact",
    "external_account_key",
    "preferred_chain",
    "profile",
    "common_name_in_csr",
    "ssl_verify",
    "ssl_trusted_certificate",
    "state_path",
    "accept_terms_of_service",
    "staging_uri",
    "acme_dns_program",
];

/// Issuer that is being read.
struct Reading<'r, 's> {
    issuer: Issuer,
    /// Names of the directives so far.
    seen: Vec<Vec<u8>>,
    cx: &'r mut Scope<'s>,
}

impl Reading<'_, '_> {
    fn directive(&mut self, d: &Directive) -> Result<(), Error> {
        let name = &d.name.text;
        // An account may have several contacts (RFC 8555, section 7.3). Everything else is given once.
        if name != b"contact" && self.seen.contains(name) {
            return Err(self.cx.error(d, format!("\"{}\" directive is duplicate", d.name.as_str())));
        }
        self.seen.push(name.clone());
        let text = String::from_utf8_lossy(first(d)).into_owned();
        match name.as_slice() {
            b"uri" => self.issuer.uri = https(text).map_err(|text| self.cx.error(d, text))?,
            b"staging_uri" => {
                self.issuer.staging = Some(https(text).map_err(|text| self.cx.error(d, text))?);
            }
            b"acme_dns_program" => self.issuer.publication = Publication::Program(program(d, self.cx)?),
            b"account_key" => self.account_key(d, &text)?,
            b"challenge" => self.challenge(d, &text)?,
            b"contact" => self.issuer.contacts.extend(d.args.iter().map(|w| contact(&w.as_str()))),
            b"external_account_key" => self.external(d, text)?,
            b"preferred_chain" => self.issuer.preferred_chain = Some(text),
            b"profile" => self.profile(d, text)?,
            b"common_name_in_csr" => self.issuer.common_name = bool::take(None, d, self.cx)?,
            b"ssl_verify" => self.issuer.verify = bool::take(None, d, self.cx)?,
            b"ssl_trusted_certificate" => set_roots(&mut self.issuer, d, first(d), self.cx)?,
            b"state_path" => self.state_path(d, &text)?,
            b"accept_terms_of_service" => self.issuer.terms_accepted = true,
            _ => {}
        }
        Ok(())
    }

    fn account_key(&mut self, d: &Directive, text: &str) -> Result<(), Error> {
        if let Some(kind) = KeyKind::parse(text) {
            self.issuer.account_kind = kind;
            return Ok(());
        }
        // These are kinds of keys with a mistake in them, and hardly names of files, so the message is about
        // the kind.
        if text.starts_with("ecdsa:") || text.starts_with("rsa:") {
            return Err(self.cx.error(d, format!("unsupported key: {text}")));
        }
        set_account_key(&mut self.issuer, d, first(d), self.cx)
    }

    fn challenge(&mut self, d: &Directive, text: &str) -> Result<(), Error> {
        let unsupported = || self.cx.error(d, format!("unsupported challenge: {text}"));
        self.issuer.challenge = Challenge::parse(text).ok_or_else(unsupported)?;
        Ok(())
    }

    fn external(&mut self, d: &Directive, id: String) -> Result<(), Error> {
        let value = d.args.get(1).map(|w| w.text.as_slice()).unwrap_or_default();
        let text = match value.strip_prefix(b"data:") {
            Some(text) => text.to_vec(),
            None => file(d, value, self.cx)?,
        };
        self.issuer.external = Some(external_account(id, &text).map_err(|text| self.cx.error(d, text))?);
        Ok(())
    }

    fn profile(&mut self, d: &Directive, name: String) -> Result<(), Error> {
        let required = match d.args.get(1) {
            None => false,
            Some(w) if w.text == b"require" => true,
            Some(w) => {
                return Err(self.cx.error_at(d, w, format!("invalid parameter \"{}\"", w.as_str())));
            }
        };
        self.issuer.profile = Some(Profile { name, required });
        Ok(())
    }

    fn state_path(&mut self, d: &Directive, text: &str) -> Result<(), Error> {
        if text != "off" {
            let path = self.cx.full_path(first(d));
            self.cx.directory(d, &path, Some(Vec::new()))?;
            self.issuer.state_path = Some(path);
        }
        Ok(())
    }
}

/// Returns a URL that begins with `https://`.
///
/// # Errors
/// For any other.
pub(super) fn https(text: String) -> Result<String, String> {
    match text.strip_prefix("https://") {
        Some(rest) if !rest.is_empty() => Ok(text),
        _ => Err(format!("invalid URL \"{text}\", it must begin with \"https://\"")),
    }
}

/// Reads a file with the private key of the account.
///
/// # Errors
/// If it cannot be read, or has none.
pub(super) fn set_account_key(
    issuer: &mut Issuer,
    d: &Directive,
    name: &[u8],
    cx: &mut Scope<'_>,
) -> Result<(), Error> {
    let key = file(d, name, cx)?;
    if pem::private_key(&key, &[]).is_err() {
        let name = String::from_utf8_lossy(name);
        return Err(cx.error(d, format!("\"{name}\" has no private key in PEM without a password")));
    }
    issuer.account_key = Some(key.into());
    Ok(())
}

/// Reads a file with the roots of the authority's own certificate.
///
/// # Errors
/// If it cannot be read, or has none.
pub(super) fn set_roots(
    issuer: &mut Issuer,
    d: &Directive,
    name: &[u8],
    cx: &mut Scope<'_>,
) -> Result<(), Error> {
    let roots = pem::all_certificates(&file(d, name, cx)?).map_err(|e| match e {
        PemError::None => cx.error(d, "there is no certificate in the file"),
        e => cx.error(d, format!("cannot load certificate: {e}")),
    })?;
    issuer.roots = Some(roots);
    Ok(())
}

/// Reads the key of an external account in base64url.
///
/// # Errors
/// If it is none.
pub(super) fn external_account(id: String, key: &[u8]) -> Result<ExternalAccount, String> {
    let text = key.trim_ascii();
    // RFC 8555 uses base64url without padding (section 6.1), but padding in a copied key does no harm.
    let bare = text.iter().rposition(|b| *b != b'=').map_or(0, |last| last + 1);
    let key = URL_SAFE_NO_PAD.decode(text.get(..bare).unwrap_or_default()).ok().filter(|k| !k.is_empty());
    let key = key.ok_or("invalid external account key, it must be base64url")?;
    Ok(ExternalAccount { id, algorithm: MacAlgorithm::default(), key: key.into() })
}

/// Reads a file, below the directory of the configuration.
fn file(d: &Directive, name: &[u8], cx: &mut Scope<'_>) -> Result<Vec<u8>, Error> {
    let path = cx.conf_path(name);
    let read = cx.files.read(&path).map(|(_, bytes)| bytes.to_vec());
    read.map_err(|e| {
        let why = forebay_sys::errno::errno(&e);
        cx.error(d, format!("open() \"{}\" failed ({why})", path.display()))
    })
}

/// Returns a URL of a contact. What has no scheme is an address for mail.
pub(super) fn contact(text: &str) -> String {
    if text.contains(':') { text.to_owned() } else { format!("mailto:{text}") }
}
