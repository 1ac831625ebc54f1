//! Getting one certificate (RFC 8555, section 7.4).

use crate::certificate;
use crate::challenge::Proof;
use crate::failure::{Class, Failure};
use crate::key::Key;
use crate::protocol::{Session, described_problem, text_of};
use crate::publish::Publisher;
use crate::settings::{Challenge, Identifier, Order};
use crate::transport::Answer;
use crate::x509;
use forebay_net::tls::pem;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};
use zeroize::Zeroizing;

/// Longest wait for the authority to look for proofs, and again for it to sign.
const PATIENCE: Duration = Duration::from_secs(300);
/// Shortest and longest pause between two looks at a resource.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Longest wait for the beginning of an issued certificate's validity, seconds.
const MAX_EARLY: i64 = 60;
/// Most alternate chains that are looked at.
const MAX_CHAINS: usize = 8;

/// Certificate that the authority issued.
pub(crate) struct Issued {
    /// Chain in PEM.
    pub(crate) chain: Vec<u8>,
    /// Key in PEM.
    pub(crate) key: Zeroizing<Vec<u8>>,
}

/// Order on its way.
pub(crate) struct Issuance<'s> {
    pub(crate) session: &'s mut Session,
    pub(crate) order: &'s Order,
    /// Publisher of the proofs.
    pub(crate) publisher: &'s Publisher,
    /// Challenge of this attempt.
    pub(crate) challenge: Challenge,
    /// Certificate that this one replaces, by its name for renewal information.
    pub(crate) replaces: Option<String>,
}

/// Authorization of one name (RFC 8555, section 7.1.4).
struct Authorization {
    url: String,
    identifier: Identifier,
    json: Value,
}

impl Authorization {
    /// Returns the name as the order has it.
    fn name(&self) -> String {
        let is_wildcard = self.json.get("wildcard").and_then(Value::as_bool).unwrap_or(false);
        format!("{}{}", if is_wildcard { "*." } else { "" }, self.identifier)
    }
}

/// Order as the authority created it.
struct Created {
    url: String,
    json: Value,
    /// URLs of its authorizations.
    authorizations: Vec<String>,
}

impl Issuance<'_> {
    /// Gets the certificate.
    ///
    /// # Errors
    /// The step that failed.
    pub(crate) async fn run(&mut self) -> Result<Issued, Failure> {
        let Created { url, json: order, authorizations } = self.begin().await?;
        for authorization in &authorizations {
            self.prove(authorization).await.1?;
        }
        let key = self.new_key().await?;
        let finalize = text_of(&order, "finalize");
        let finalize = finalize.ok_or_else(|| Failure::temporary("the order has no \"finalize\""))?;
        let link =
            self.finalize(&url, &finalize, &key).await.map_err(|f| f.during("finalizing the order"))?;
        let chain = self.download(&link).await.map_err(|f| f.during("getting the certificate"))?;
        let key = key.to_pem();
        // The authority could send anything.
        let (_, leaf) = certificate::checked(&self.order.identifiers, &chain, &key)
            .map_err(|text| Failure::temporary(format!("what the authority issued is not used: {text}")))?;
        let max = self.order.issuer.max_chain;
        if max.is_some_and(|max| chain.len() > max) {
            return Err(Failure::last(format!(
                "the issued certificate has {} bytes, see \"max_cert_size\"",
                chain.len()
            )));
        }
        // Clocks differ by seconds. A certificate of a later time is not presented, since no client would accept it.
        let early = leaf.from - forebay_net::tls::verify::now();
        if early > MAX_EARLY {
            return Err(Failure::temporary(format!(
                "the issued certificate is not valid for another {early} s, is the clock right?"
            )));
        }
        if let Ok(seconds @ 1..) = u64::try_from(early) {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
        }
        if leaf.until <= forebay_net::tls::verify::now() {
            return Err(Failure::temporary(
                "the issued certificate has expired already, is the clock right?",
            ));
        }
        Ok(Issued { chain, key })
    }

    /// Proves control of all names and asks for no certificate. Returns the result for each name.
    ///
    /// # Errors
    /// If there is no order.
    pub(crate) async fn rehearse(&mut self) -> Result<Vec<(String, Result<(), Failure>)>, Failure> {
        let created = self.begin().await?;
        let mut results = Vec::new();
        for authorization in &created.authorizations {
            results.push(self.prove(authorization).await);
        }
        Ok(results)
    }

    async fn begin(&mut self) -> Result<Created, Failure> {
        let created = self.create().await.map_err(|f| f.during("creating the order"))?;
        let url = created.field("location").map(str::to_owned);
        let url = url.ok_or_else(|| Failure::temporary("the authority named no order"))?;
        let json = created.json()?;
        let listed = json.get("authorizations").and_then(Value::as_array);
        let authorizations =
            listed.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();
        Ok(Created { url, json, authorizations })
    }

    /// Creates the order. Without the part that names the old certificate if the authority does not know that.
    async fn create(&mut self) -> Result<Answer, Failure> {
        let identifiers: Vec<Value> = (self.order.identifiers.iter())
            .map(|i| json!({"type": i.kind(), "value": i.to_string()}))
            .collect();
        let mut payload = json!({"identifiers": identifiers});
        if let Some(profile) = self.profile()? {
            payload["profile"] = json!(profile);
        }
        let Some(replaces) = self.replaces.clone() else { return self.session.new_order(&payload).await };
        let mut replacing = payload.clone();
        replacing["replaces"] = json!(replaces);
        match self.session.new_order(&replacing).await {
            Err(f) if may_be_about_the_old_one(&f.problem) => self.session.new_order(&payload).await,
            other => other,
        }
    }

    fn profile(&self) -> Result<Option<String>, Failure> {
        let Some(profile) = &self.order.issuer.profile else { return Ok(None) };
        let offered = &self.session.directory.profiles;
        match (offered.contains(&profile.name), profile.required) {
            (true, _) => Ok(Some(profile.name.clone())),
            (false, false) => Ok(None),
            (false, true) => {
                let offered = offered.join("\", \"");
                Err(Failure::last(format!(
                    "no profile \"{}\", the authority has \"{offered}\"",
                    profile.name
                )))
            }
        }
    }

    /// Proves control of the name of an authorization. Returns the name, too.
    async fn prove(&mut self, url: &str) -> (String, Result<(), Failure>) {
        let authorization = match self.authorization(url).await {
            Ok(authorization) => authorization,
            Err(failure) => return (self.order.names(), Err(failure)),
        };
        let name = authorization.name();
        let proven = self.prove_pending(&authorization).await;
        let proven = proven.map_err(|f| f.during(&format!("proving control of \"{name}\"")));
        (name, proven)
    }

    async fn authorization(&mut self, url: &str) -> Result<Authorization, Failure> {
        let json = self.session.post(url, None).await?.json()?;
        let identifier = json.get("identifier").and_then(|i| text_of(i, "value"));
        let identifier = identifier.and_then(|i| Identifier::parse(&i));
        let identifier =
            identifier.ok_or_else(|| Failure::temporary("an authorization has no identifier"))?;
        Ok(Authorization { url: url.to_owned(), identifier, json })
    }

    async fn prove_pending(&mut self, authorization: &Authorization) -> Result<(), Failure> {
        if text_of(&authorization.json, "status").as_deref() == Some("valid") {
            return Ok(());
        }
        let (challenge, kind) = self.choose(authorization)?;
        let (Some(url), Some(token)) = (text_of(&challenge, "url"), text_of(&challenge, "token")) else {
            return Err(Failure::temporary("a challenge has no \"url\" or no \"token\""));
        };
        if token.is_empty() || !token.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_') {
            return Err(Failure::temporary("a challenge has an invalid token"));
        }
        let key_authorization = format!("{token}.{}", self.session.key.thumbprint());
        let identifier = authorization.identifier.clone();
        let proof = Proof { identifier, token, authorization: key_authorization };
        let published = self.publisher.publish(kind, proof).await?;
        let judged = self.judge(&url, &authorization.url).await;
        // Before the next proof: a wildcard and the name below it share a record, and a hook may remove all its values.
        published.withdraw().await;
        judged
    }

    /// Has the authority look for a proof.
    async fn judge(&mut self, challenge: &str, authorization: &str) -> Result<(), Failure> {
        self.session.post(challenge, Some(&json!({}))).await?;
        let ended = self.wait(authorization, |status| status != "pending").await?;
        match text_of(&ended, "status").as_deref() {
            Some("valid") => Ok(()),
            _ => Err(refusal(&ended)),
        }
    }

    /// Chooses the challenge of an authorization.
    fn choose(&self, authorization: &Authorization) -> Result<(Value, Challenge), Failure> {
        let wanted = self.challenge.types();
        let offered = authorization.json.get("challenges").and_then(Value::as_array);
        let offered: Vec<&Value> = offered.into_iter().flatten().collect();
        let found = wanted.iter().find_map(|(kind, name)| {
            let found = offered.iter().find(|c| text_of(c, "type").as_deref() == Some(name));
            found.map(|c| ((*c).clone(), *kind))
        });
        found.ok_or_else(|| {
            let names: Vec<String> = offered.iter().filter_map(|c| text_of(c, "type")).collect();
            let wanted: Vec<&str> = wanted.iter().map(|(_, name)| *name).collect();
            Failure::last(format!("the authority offers {}, not {}", names.join(", "), wanted.join(" or ")))
        })
    }

    async fn new_key(&mut self) -> Result<Arc<Key>, Failure> {
        let kind = self.order.key;
        let made = tokio::task::spawn_blocking(move || Key::generate(kind)).await;
        let made = made.unwrap_or_else(|e| Err(e.to_string()));
        made.map(Arc::new).map_err(|e| Failure::temporary(format!("making the key: {e}")))
    }

    /// Has the authority sign. Returns the URL of the certificate.
    async fn finalize(&mut self, order: &str, finalize: &str, key: &Key) -> Result<String, Failure> {
        // An order is ready shortly after its last authorization is valid.
        let ready = self.wait(order, |status| status != "pending").await?;
        if text_of(&ready, "status").as_deref() == Some("invalid") {
            return Err(refusal(&ready));
        }
        let common = self.order.identifiers.first().filter(|_| self.order.issuer.common_name);
        let common = common.map(Identifier::to_string);
        let request = x509::request(key, &self.order.identifiers, common.as_deref());
        let request = crate::key::base64url(&request.map_err(Failure::temporary)?);
        self.session.post(finalize, Some(&json!({"csr": request}))).await?;
        let ended = self.wait(order, |status| !matches!(status, "ready" | "processing")).await?;
        text_of(&ended, "certificate").ok_or_else(|| refusal(&ended))
    }

    /// Waits until the status of a resource is one that `ends` the wait.
    async fn wait(&mut self, url: &str, ends: impl Fn(&str) -> bool) -> Result<Value, Failure> {
        let (begun, mut pause) = (Instant::now(), PAUSES.0);
        loop {
            let answer = self.session.post(url, None).await?;
            let json = answer.json()?;
            if ends(&text_of(&json, "status").unwrap_or_default()) {
                return Ok(json);
            }
            if begun.elapsed() > PATIENCE {
                return Err(Failure::temporary("the authority takes too long"));
            }
            tokio::time::sleep(answer.retry_after().unwrap_or(pause).clamp(PAUSES.0, PAUSES.1)).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// Gets the chain, or the alternate one that is preferred.
    async fn download(&mut self, url: &str) -> Result<Vec<u8>, Failure> {
        let answer = self.session.post(url, None).await?;
        let Some(preferred) = self.order.issuer.preferred_chain.clone() else { return Ok(answer.body) };
        if has_top(&answer.body, &preferred) {
            return Ok(answer.body);
        }
        let others: Vec<String> = answer.fields("link").filter_map(alternate).collect();
        for other in others.iter().take(MAX_CHAINS) {
            let chain = self.session.post(other, None).await?.body;
            if has_top(&chain, &preferred) {
                return Ok(chain);
            }
        }
        Ok(answer.body)
    }
}

/// Returns `true` if an authority may have refused an order because it does not know the certificate that is to be replaced (RFC 9773,
/// section 5, and problems of RFC 8555, section 6.7). Pebble 2.10.1 has answered serverInternal for a serial number of seven bytes, where
/// most have eight: it did not find the order.
fn may_be_about_the_old_one(problem: &str) -> bool {
    matches!(problem, "alreadyReplaced" | "malformed" | "notFound" | "serverInternal" | "unauthorized")
}

/// Returns the reason for which the authority refused an authorization or an order.
fn refusal(json: &Value) -> Failure {
    let of_challenge = |c: &Value| c.get("error").cloned();
    let challenges = json.get("challenges").and_then(Value::as_array);
    let error = challenges.into_iter().flatten().find_map(of_challenge).or_else(|| of_challenge(json));
    match error {
        Some(error) => match described_problem(&error) {
            f if f.class == Class::Temporary => Failure::unproven(f.text),
            f => f,
        },
        None => Failure::unproven(format!("status \"{}\"", text_of(json, "status").unwrap_or_default())),
    }
}

/// Returns `true` if the topmost certificate of a chain was issued by this common name.
fn has_top(chain: &[u8], issuer: &str) -> bool {
    let certificates = pem::certificates(chain);
    certificates.last().and_then(|c| x509::issuer_name(c)).is_some_and(|name| name == issuer)
}

/// Returns the URL of a `Link` field line with the relation `alternate` (RFC 8288).
fn alternate(link: &str) -> Option<String> {
    let (url, parameters) = link.trim().strip_prefix('<')?.split_once('>')?;
    let is_alternate = |p: &str| matches!(p.trim(), "rel=\"alternate\"" | "rel=alternate");
    parameters.split(';').any(is_alternate).then(|| url.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_to_other_chains_are_found() {
        let link = |text: &str| alternate(text);
        assert_eq!(link("<https://a/1>;rel=\"alternate\"").as_deref(), Some("https://a/1"));
        assert_eq!(link(" <https://a/1>; title=x; rel=alternate").as_deref(), Some("https://a/1"));
        assert_eq!(link("<https://a/dir>;rel=\"index\""), None);
        assert_eq!(link("https://a"), None);
    }

    #[test]
    fn orders_that_replace_nothing_may_be_taken() {
        for problem in ["alreadyReplaced", "malformed", "notFound", "serverInternal", "unauthorized"] {
            assert!(may_be_about_the_old_one(problem), "{problem}");
        }
        for problem in ["", "rateLimited", "rejectedIdentifier", "badCSR"] {
            assert!(!may_be_about_the_old_one(problem), "{problem}");
        }
    }

    #[test]
    fn refusals_give_the_reason_of_the_challenge() {
        let error = json!({"type": "urn:ietf:params:acme:error:unauthorized", "detail": "wrong text"});
        let f = refusal(&json!({"status": "invalid", "challenges": [{"type": "x"}, {"error": error}]}));
        assert_eq!((f.class, f.text.as_str()), (Class::Unproven, "wrong text (unauthorized)"));
        let f = refusal(&json!({"status": "invalid"}));
        assert_eq!((f.class, f.text.as_str()), (Class::Unproven, "status \"invalid\""));
    }
}
