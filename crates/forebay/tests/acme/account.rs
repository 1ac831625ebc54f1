//! The account of a server at Pebble, in the hands of somebody else who has its key.

use super::*;
use forebay_net::tls::pem;
use forebay_testkit::{Done, Site, files, free_port};
use rustls::SignatureScheme;
use serde_json::{Value, json};

/// Account with its key, which is one of P-256.
pub(super) struct Account<'s> {
    site: &'s Site,
    /// Directory with the files of the account, below that of the site.
    directory: &'static str,
}

/// Returns base64url without padding.
fn base64url(bytes: &[u8]) -> String {
    let text = forebay_testkit::through(&["base64", "-w0"], bytes);
    String::from_utf8_lossy(&text).replace('+', "-").replace('/', "_").replace('=', "")
}

/// Returns the chain that a server has written.
pub(super) fn chain(site: &Site, directory: &str) -> Vec<u8> {
    let is_chain = |path: &PathBuf| path.extension().is_some_and(|e| e == "crt");
    std::fs::read(files(&site.path(directory)).into_iter().find(is_chain).expect("a chain")).expect("a chain")
}

/// Returns both numbers of a signature by P-256, which DER has as two integers, in 32 bytes each (RFC 7518, section 3.4).
fn numbers(der: &[u8]) -> Vec<u8> {
    let first = &der[2..];
    let second = &first[2 + usize::from(first[1])..];
    let number = |integer: &[u8]| {
        let bytes = &integer[2..2 + usize::from(integer[1])];
        let bytes = &bytes[bytes.len().saturating_sub(32)..];
        [vec![0; 32 - bytes.len()], bytes.to_vec()].concat()
    };
    [number(first), number(second)].concat()
}

impl<'s> Account<'s> {
    pub(super) fn new(site: &'s Site, directory: &'static str) -> Account<'s> {
        Account { site, directory }
    }

    fn read(&self, name: &str) -> String {
        self.site.read(&format!("{}/{name}", self.directory))
    }

    fn resource(&self, name: &str) -> String {
        format!("https://{}/{name}", self.site.addr(2))
    }

    fn sign(&self, text: &str) -> Vec<u8> {
        let key = pem::private_key(self.read("account.key").as_bytes(), &[]).expect("a key");
        let key = rustls::crypto::aws_lc_rs::sign::any_supported_type(&key).expect("a key");
        let signer = key.choose_scheme(&[SignatureScheme::ECDSA_NISTP256_SHA256]).expect("a key of P-256");
        numbers(&signer.sign(text.as_bytes()).expect("a signature"))
    }

    /// Sends a signed request, which has to succeed. Without a payload it gets the resource.
    fn post(&self, url: &str, payload: Option<Value>) -> Value {
        let head = Done::of(Command::new("curl").args(["-sfkI", &self.resource("nonce-plz")])).out;
        let nonce = forebay_testkit::field(&head, "replay-nonce").expect("a nonce");
        let kid = self.read("account.url");
        let protected = json!({"alg": "ES256", "kid": kid.trim(), "nonce": nonce, "url": url});
        let payload = payload.map(|p| p.to_string()).unwrap_or_default();
        let (protected, payload) =
            (base64url(protected.to_string().as_bytes()), base64url(payload.as_bytes()));
        let signature = base64url(&self.sign(&format!("{protected}.{payload}")));
        let body = json!({"protected": protected, "payload": payload, "signature": signature}).to_string();
        let field = "Content-Type: application/jose+json";
        let options = ["-sSk", "-w", "\n%{http_code}", "-H", field, "-d", &body, url];
        let text = Done::of(Command::new("curl").args(options)).out;
        let (content, status) = text.rsplit_once('\n').unwrap_or_default();
        assert!(status.starts_with('2'), "{url}: {text}");
        serde_json::from_str(content).unwrap_or_default()
    }

    /// Revokes the certificate that the server has written.
    fn revoke(&self) {
        let chain = pem::certificates(&chain(self.site, self.directory));
        let leaf = base64url(chain.first().expect("a certificate"));
        self.post(&self.resource("revoke-cert"), Some(json!({"certificate": leaf, "reason": 1})));
    }

    /// Deactivates the authorizations of all orders. Returns their number.
    fn deactivate(&self) -> usize {
        let account = self.post(self.read("account.url").trim(), None);
        let orders = self.post(account["orders"].as_str().expect("a URL"), None);
        let orders = orders["orders"].as_array().expect("a list").iter().filter_map(Value::as_str);
        let authorizations: Vec<Value> = orders
            .flat_map(|o| self.post(o, None)["authorizations"].as_array().cloned().unwrap_or_default())
            .collect();
        for url in authorizations.iter().filter_map(Value::as_str) {
            self.post(url, Some(json!({"status": "deactivated"})));
        }
        authorizations.len()
    }
}

/// The authority says at the next question that a revoked certificate is to be renewed at once. Otherwise it would be renewed after a
/// minute.
#[test]
fn a_revoked_certificate_is_replaced_in_place() {
    let site = site("", NGINX_ACME);
    let settings = Settings { life: 90, refused_nonces: 0, ..LONG };
    let Some((_authority, server, first)) = certified(site, settings) else { return };
    Account::new(&server.site, "state").revoke();
    issued(&server.site, "a.test", &first);
    assert_replaced(&server.site, &first);
    assert!(!server.error_log().contains("reconfiguring"));
}

/// The authorization is gone before the order is finalized, which is invalid from then on. Pebble 2.10.1 hangs if it goes before its
/// challenge is looked at.
#[test]
fn an_invalid_order_is_followed_by_another() {
    let names = free_port();
    let site = Site::new(
        "events {} error_log logs/error.log notice;\n\
         http { access_log off; acme_client_path %DIR%/clients; acme_dns_program delay=0s %DIR%/dns-record;\n\
         acme_client c https://127.0.0.1:%PORT2%/dir trusted_certificate=%DIR%/ca.pem challenge=dns retry_after_error=1s;\n\
         server { listen 127.0.0.1:%PORT0%; listen 127.0.0.1:%PORT1% ssl; server_name a.test; acme c; } }\n",
    );
    // Fails for the first order, then waits before it removes, then does its work.
    let script = format!(
        "#!/bin/sh\necho $1 >> %DIR%/calls; [ $(wc -l < %DIR%/calls) -gt 2 ] || exit 1\n\
         case $1 in add) p=set-txt;; *) p=clear-txt;; esac\n\
         while [ $1 = remove ] && [ ! -e %DIR%/go ]; do sleep 0.05; done\n\
         curl -sSf -d \"{{\\\"host\\\": \\\"$2.\\\", \\\"value\\\": \\\"$3\\\"}}\" http://127.0.0.1:{names}/$p >&2\n"
    );
    dns::program_of(&site, &script);
    let settings = Settings { names: Some(names), refused_nonces: 0, ..LONG };
    let Some((_authority, server)) = started(site, settings) else { return };
    // The URL of the account is written at the end of an order.
    server.wait_for_log("no certificate for \"a.test\"", 1);
    // The removal for the first order may end after its failure is logged.
    wait_until("a proof that was found", || server.read("calls") == "add\nremove\nadd\nremove\n");
    assert!(Account::new(&server.site, "clients/c").deactivate() > 0);
    server.write("go", "");
    server.wait_for_log("no certificate for \"a.test\": finalizing the order: status \"invalid\"", 1);
    issued(&server.site, "a.test", "");
}
