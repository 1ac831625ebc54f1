//! Requests of ACME (RFC 8555): the directory, nonces, the account, and requests that the account's key signs.

use crate::failure::{Class, Failure, class_of};
use crate::key::{Key, base64url};
use crate::settings::{ExternalAccount, Issuer};
use crate::transport::{Answer, Content, Transport, clean};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// Most attempts at a request whose nonce the authority refuses.
const MAX_NONCES: u32 = 10;
/// Most attempts at a request that fails for reasons that pass.
const MAX_ATTEMPTS: u32 = 4;
/// Longest time before another attempt that the authority may ask for.
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// Resources of an authority (RFC 8555, section 7.1.1).
pub(crate) struct Directory {
    new_nonce: String,
    new_account: String,
    new_order: String,
    /// Renewal information (RFC 9773).
    pub(crate) renewal_info: Option<String>,
    /// URL of the terms of service.
    terms: Option<String>,
    /// Names of the profiles.
    pub(crate) profiles: Vec<String>,
}

impl Directory {
    fn parse(json: &Value) -> Result<Directory, Failure> {
        let url = |name: &str| {
            let missing = || Failure::temporary(format!("the directory of the authority has no \"{name}\""));
            text_of(json, name).ok_or_else(missing)
        };
        let meta = json.get("meta").cloned().unwrap_or_default();
        let profiles = meta.get("profiles").and_then(Value::as_object);
        Ok(Directory {
            new_nonce: url("newNonce")?,
            new_account: url("newAccount")?,
            new_order: url("newOrder")?,
            renewal_info: text_of(json, "renewalInfo"),
            terms: text_of(&meta, "termsOfService"),
            profiles: profiles.map(|p| p.keys().cloned().collect()).unwrap_or_default(),
        })
    }
}

/// Returns the text of a member of an object.
pub(crate) fn text_of(json: &Value, name: &str) -> Option<String> {
    json.get(name).and_then(Value::as_str).map(str::to_owned)
}

/// Conversation with an authority.
pub(crate) struct Session {
    pub(crate) issuer: Arc<Issuer>,
    transport: Transport,
    pub(crate) directory: Directory,
    /// Key of the account.
    pub(crate) key: Arc<Key>,
    /// URL of the account, if it is known.
    pub(crate) account: Option<String>,
    /// Nonce for the next request.
    nonce: Option<String>,
}

/// Fails unless a response has a status of success.
fn successful(answer: Answer) -> Result<Answer, Failure> {
    if answer.status < 300 { Ok(answer) } else { Err(problem(&answer)) }
}

/// Reads the problem of a response (RFC 7807).
fn problem(answer: &Answer) -> Failure {
    let json = serde_json::from_slice(&answer.body).unwrap_or_default();
    let Failure { text, class, problem, .. } = described_problem(&json);
    let text = if text.is_empty() { format!("status {}", answer.status) } else { text };
    let class = if answer.status == 429 { Class::RateLimited } else { class };
    Failure { text, class, problem, retry_after: answer.retry_after() }
}

/// Reads a problem (RFC 8555, section 6.7).
pub(crate) fn described_problem(json: &Value) -> Failure {
    let urn = text_of(json, "type").unwrap_or_default();
    let problem = urn.rsplit(':').next().unwrap_or_default().to_owned();
    let mut text = text_of(json, "detail").unwrap_or_default();
    let parts = json.get("subproblems").and_then(Value::as_array);
    for part in parts.into_iter().flatten().take(5) {
        let name = part.get("identifier").and_then(|i| text_of(i, "value")).unwrap_or_default();
        text += &format!("; {name}: {}", text_of(part, "detail").unwrap_or_default());
    }
    if !problem.is_empty() {
        text += &format!(" ({problem})");
    }
    Failure { class: class_of(&problem), problem, ..Failure::temporary(clean(&text)) }
}

impl Session {
    /// Begins a conversation.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub(crate) async fn begin(
        issuer: &Arc<Issuer>,
        key: Arc<Key>,
        account: Option<String>,
    ) -> Result<Session, Failure> {
        let mut transport = Transport::new(issuer.clone()).await?;
        let directory = transport.get(&issuer.uri).await.and_then(successful).and_then(|a| a.json());
        let directory = directory.and_then(|json| Directory::parse(&json));
        let directory = directory.map_err(|f| f.during("reading the directory"))?;
        Ok(Session { issuer: issuer.clone(), transport, directory, key, account, nonce: None })
    }

    /// Gets a resource without a signature.
    ///
    /// # Errors
    /// If there is no response of success.
    pub(crate) async fn get(&mut self, url: &str) -> Result<Answer, Failure> {
        self.transport.get(url).await.and_then(successful)
    }

    /// Sends a signed request. Without a payload it gets the resource (RFC 8555, section 6.3).
    ///
    /// # Errors
    /// The authority's problem, or that of the last attempt.
    pub(crate) async fn post(&mut self, url: &str, payload: Option<&Value>) -> Result<Answer, Failure> {
        let (mut refused, mut failed) = (0, 0);
        loop {
            let failure = match self.post_once(url, payload).await {
                Ok(answer) if answer.status < 300 => return Ok(answer),
                Ok(answer) => (problem(&answer), answer.status >= 500),
                Err(failure) => (failure, true),
            };
            match failure {
                (f, _) if f.problem == "badNonce" && refused < MAX_NONCES => refused += 1,
                (f, true)
                    if matches!(f.class, Class::Temporary | Class::Own) && failed + 1 < MAX_ATTEMPTS =>
                {
                    let own = Duration::from_secs(1 << failed);
                    failed += 1;
                    tokio::time::sleep(f.retry_after.unwrap_or(own).min(MAX_PAUSE)).await;
                }
                (f, _) => return Err(f),
            }
        }
    }

    async fn post_once(&mut self, url: &str, payload: Option<&Value>) -> Result<Answer, Failure> {
        let nonce = match self.nonce.take() {
            Some(nonce) => nonce,
            None => self.new_nonce().await?,
        };
        let by = match &self.account {
            Some(account) => ("kid", json!(account)),
            None => ("jwk", self.key.jwk()),
        };
        let mut protected = json!({"alg": self.key.jws_algorithm(), "nonce": nonce, "url": url});
        if let Some(members) = protected.as_object_mut() {
            members.insert(by.0.to_owned(), by.1);
        }
        let payload = payload.map(Value::to_string).unwrap_or_default();
        let body = signed(&protected, &payload, |text| self.key.sign(text)).map_err(Failure::temporary)?;
        let content = Content { media_type: "application/jose+json", bytes: body.as_bytes() };
        let answer = self.transport.send("POST", url, Some(content)).await?;
        self.nonce = answer.field("replay-nonce").map(str::to_owned);
        Ok(answer)
    }

    async fn new_nonce(&mut self) -> Result<String, Failure> {
        let url = self.directory.new_nonce.clone();
        // GET rather than HEAD: its response has a length even over careless proxies.
        let answer = self.transport.get(&url).await.and_then(successful)?;
        let nonce = answer.field("replay-nonce").map(str::to_owned);
        nonce.ok_or_else(|| Failure::temporary("the authority sent no nonce"))
    }

    /// Finds or makes the account (RFC 8555, section 7.3).
    ///
    /// # Errors
    /// If there is none.
    pub(crate) async fn ensure_account(&mut self) -> Result<(), Failure> {
        if self.account.is_some() {
            return Ok(());
        }
        if let Some(terms) = self.directory.terms.as_ref().filter(|_| !self.issuer.terms_accepted) {
            let text = format!(
                "the terms of service have to be accepted with \"accept_terms_of_service\", read {}",
                clean(terms)
            );
            return Err(Failure::last(text));
        }
        let url = self.directory.new_account.clone();
        let mut payload = json!({"termsOfServiceAgreed": self.issuer.terms_accepted});
        if let Some(members) = payload.as_object_mut() {
            if !self.issuer.contacts.is_empty() {
                members.insert("contact".to_owned(), json!(self.issuer.contacts));
            }
            if let Some(external) = &self.issuer.external {
                let bound = binding(external, &url, &self.key.jwk());
                members.insert("externalAccountBinding".to_owned(), bound);
            }
        }
        let answer = self.post(&url, Some(&payload)).await.map_err(|f| f.during("making the account"))?;
        let missing = || Failure::temporary("the authority named no account");
        self.account = Some(answer.field("location").map(str::to_owned).ok_or_else(missing)?);
        Ok(())
    }

    /// Asks for a new order. If the authority has forgotten the account, makes it again.
    ///
    /// # Errors
    /// The authority's problem.
    pub(crate) async fn new_order(&mut self, payload: &Value) -> Result<Answer, Failure> {
        self.ensure_account().await?;
        let url = self.directory.new_order.clone();
        match self.post(&url, Some(payload)).await {
            Err(f) if f.problem == "accountDoesNotExist" => {
                self.account = None;
                self.ensure_account().await?;
                self.post(&url, Some(payload)).await
            }
            other => other,
        }
    }
}

/// Makes a JSON Web Signature (RFC 7515, section 7.2.2).
fn signed(
    protected: &Value,
    payload: &str,
    sign: impl FnOnce(&[u8]) -> Result<Vec<u8>, String>,
) -> Result<String, String> {
    let (protected, payload) = (base64url(protected.to_string().as_bytes()), base64url(payload.as_bytes()));
    let signature = sign(format!("{protected}.{payload}").as_bytes())?;
    let whole = json!({"protected": protected, "payload": payload, "signature": base64url(&signature)});
    Ok(whole.to_string())
}

/// Binds the account's key to an external account (RFC 8555, section 7.3.4).
fn binding(external: &ExternalAccount, url: &str, jwk: &Value) -> Value {
    let protected = json!({"alg": external.algorithm.text(), "kid": external.id, "url": url});
    let key = aws_lc_rs::hmac::Key::new(external.algorithm.function(), &external.key);
    let sign = |text: &[u8]| Ok(aws_lc_rs::hmac::sign(&key, text).as_ref().to_vec());
    let text = signed(&protected, &jwk.to_string(), sign).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::MacAlgorithm;

    #[test]
    fn problems_say_what_follows() {
        let of = |kind: &str| {
            let urn = format!("urn:ietf:params:acme:error:{kind}");
            described_problem(&json!({"type": urn, "detail": "no\nway"}))
        };
        assert_eq!(of("rateLimited").class, Class::RateLimited);
        assert_eq!(of("badNonce").class, Class::Temporary);
        assert_eq!(of("caa").class, Class::Unproven);
        let last = of("rejectedIdentifier");
        assert_eq!((last.class, last.text.as_str()), (Class::Final, "no way (rejectedIdentifier)"));
        assert_eq!(described_problem(&Value::Null).text, "");
    }

    #[test]
    fn parts_of_a_problem_are_named() {
        let part = json!({"identifier": {"type": "dns", "value": "a.example"}, "detail": "closed"});
        let json = json!({"detail": "some failed", "subproblems": [part]});
        assert_eq!(described_problem(&json).text, "some failed; a.example: closed");
    }

    #[test]
    fn a_binding_is_signed_with_its_algorithm() {
        let of = |algorithm| {
            let external = ExternalAccount { id: "id".to_owned(), algorithm, key: vec![1, 2, 3].into() };
            let bound = binding(&external, "https://a.example/", &json!({}));
            let decoded = |name| {
                let text = text_of(&bound, name).unwrap_or_default();
                base64::Engine::decode(&base64::engine::general_purpose::URL_SAFE_NO_PAD, text)
                    .unwrap_or_default()
            };
            let protected: Value = serde_json::from_slice(&decoded("protected")).unwrap_or_default();
            (text_of(&protected, "alg").unwrap_or_default(), decoded("signature").len())
        };
        for (algorithm, wanted) in [
            (MacAlgorithm::Hs256, ("HS256".to_owned(), 32)),
            (MacAlgorithm::Hs384, ("HS384".to_owned(), 48)),
            (MacAlgorithm::Hs512, ("HS512".to_owned(), 64)),
        ] {
            assert_eq!(of(algorithm), wanted);
        }
    }

    #[test]
    fn a_directory_needs_its_resources() {
        let mut json = json!({"newNonce": "a", "newAccount": "b", "newOrder": "c",
            "meta": {"termsOfService": "t", "profiles": {"short": "x"}}});
        let read = Directory::parse(&json).map_err(|f| f.text).expect("a directory");
        assert_eq!((read.terms.as_deref(), read.renewal_info), (Some("t"), None));
        assert_eq!(read.profiles, ["short"]);
        json["newOrder"] = json!(1);
        let failed = Directory::parse(&json).err().map(|f| f.text);
        assert_eq!(failed.as_deref(), Some("the directory of the authority has no \"newOrder\""));
    }
}
