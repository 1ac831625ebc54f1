//! `acme_client` (Angie: ngx_http_acme_module).

use super::issuer::{contact, external_account, https, set_account_key, set_roots};
use super::tables::Issuers;
use forebay_acme::{Challenge, ExternalAccount, Issuer, KeyKind, MacAlgorithm, Profile, RenewalRule, Retry};
use forebay_conf::error::Error;
use forebay_conf::tree::{Directive, Word};
use forebay_conf::units;
use forebay_core::config::value::first;
use forebay_server::config::Scope;

/// `acme_client`: an issuer for one certificate.
pub(crate) struct Client {
    pub(super) issuer: Issuer,
    /// Kind of the certificate's key.
    pub(super) key: KeyKind,
}

/// Reads `acme_client NAME URI [PARAMETER ...]`.
pub(crate) fn client(d: &Directive, cx: &mut Scope<'_>) -> Result<(), Error> {
    let name = String::from_utf8_lossy(first(d)).into_owned();
    if cx.tables.parts.get_mut::<Issuers>().clients.iter().any(|c| c.issuer.name.eq_ignore_ascii_case(&name))
    {
        return Err(cx.error(d, format!("duplicate acme client \"{name}\"")));
    }
    // The name is a word of `acme` and a directory of its own, so it can be neither of its other words nor a
    // path.
    if matches!(name.as_str(), "" | "on" | "off") || name.starts_with('.') || name.contains(['/', '\0']) {
        return Err(cx.error(d, format!("invalid acme client name \"{name}\"")));
    }
    let uri = d.args.get(1).map(Word::as_str).unwrap_or_default().into_owned();
    let uri = https(uri).map_err(|text| cx.error(d, text))?;
    // The directive accepts the terms, as in Angie.
    let issuer = Issuer { terms_accepted: true, ..Issuer::new(&name, &uri) };
    let mut reading = ReadingClient { issuer, key_type: "ecdsa".to_owned(), key_bits: None };
    for w in d.args.iter().skip(2) {
        reading.parameter(d, w, cx)?;
    }
    let client = reading.finish().map_err(|text| cx.error(d, text))?;
    cx.tables.parts.get_mut::<Issuers>().clients.push(client);
    Ok(())
}

/// Client that is being read.
struct ReadingClient {
    issuer: Issuer,
    key_type: String,
    key_bits: Option<String>,
}

impl ReadingClient {
    fn parameter(&mut self, d: &Directive, w: &Word, cx: &mut Scope<'_>) -> Result<(), Error> {
        let text = w.as_str();
        let (name, value) = text.split_once('=').unwrap_or((&text, ""));
        match name {
            "account_key" => set_account_key(&mut self.issuer, d, value.as_bytes(), cx),
            "trusted_certificate" => set_roots(&mut self.issuer, d, value.as_bytes(), cx),
            "eab" => {
                // The value contains a secret key, so the message must not show it.
                let invalid =
                    |what| cx.error_at(d, w, format!("\"acme_client\" directive has an invalid {what}"));
                self.issuer.external = Some(eab(value).map_err(invalid)?);
                Ok(())
            }
            _ => {
                let invalid = || cx.error_at(d, w, format!("invalid parameter \"{text}\""));
                self.value(name, value).ok_or_else(invalid)
            }
        }
    }

    /// Reads a parameter that needs no file. Returns `None` if it is unknown or has an invalid value.
    fn value(&mut self, name: &str, value: &str) -> Option<()> {
        let issuer = &mut self.issuer;
        match (name, value) {
            ("enabled", "on") => issuer.enabled = true,
            ("enabled", "off") => issuer.enabled = false,
            ("key_type", "rsa" | "ecdsa") => self.key_type = value.to_owned(),
            ("key_bits", _) => self.key_bits = Some(value.to_owned()),
            ("email", _) if !value.is_empty() => issuer.contacts = vec![contact(value)],
            ("max_cert_size", _) => issuer.max_chain = Some(positive(units::size(value.as_bytes())?)?),
            // Key authorizations have a known length, so the parameter is checked but not needed.
            ("max_key_auth_size", _) => drop(positive(units::size(value.as_bytes())?)?),
            ("renew_before_expiry", _) => issuer.renewal = RenewalRule::Before(seconds(value)?),
            ("renew_on_load", "") => issuer.renew_on_load = true,
            ("retry_after_error", "off") => issuer.retry = Retry::Never,
            ("retry_after_error", _) => issuer.retry = Retry::After(seconds(value)?),
            ("challenge", "http" | "dns" | "alpn") => issuer.challenge = Challenge::parse(value)?,
            ("staging_uri", _) => issuer.staging = Some(https(value.to_owned()).ok()?),
            ("profile", _) if !value.is_empty() => {
                issuer.profile = Some(Profile { name: value.to_owned(), required: false });
            }
            _ => return None,
        }
        Some(())
    }

    fn finish(self) -> Result<Client, String> {
        let ReadingClient { issuer, key_type, key_bits } = self;
        let bits = key_bits.map(|bits| format!(":{bits}")).unwrap_or_default();
        let text = format!("{key_type}{bits}");
        let key = KeyKind::parse(&text).ok_or_else(|| format!("unsupported key: {text}"))?;
        Ok(Client { issuer, key })
    }
}

/// Reads `ID:KEY` or `ID:ALGORITHM:KEY`, with a key in base64url.
fn eab(value: &str) -> Result<ExternalAccount, &'static str> {
    let parts = value.split_once(':').filter(|(id, _)| !id.is_empty());
    let (id, rest) = parts.ok_or("\"eab\" value")?;
    let (algorithm, key) = match rest.split_once(':') {
        Some((name, key)) => (MacAlgorithm::parse(name), key),
        None => (Some(MacAlgorithm::default()), rest),
    };
    let algorithm = algorithm.ok_or("algorithm value in the \"eab\" parameter")?;
    let account = external_account(id.to_owned(), key.as_bytes());
    let account = account.map_err(|_| "key value in the \"eab\" parameter")?;
    Ok(ExternalAccount { algorithm, ..account })
}

fn positive(size: u64) -> Option<usize> {
    usize::try_from(size).ok().filter(|s| *s > 0)
}

fn seconds(text: &str) -> Option<i64> {
    units::time_secs(text.as_bytes()).and_then(|s| i64::try_from(s).ok())
}
