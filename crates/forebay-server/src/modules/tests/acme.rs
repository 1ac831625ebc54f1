use super::*;
use crate::testing::{error, request, value, warnings};

const ISSUER: &str = "acme_issuer a { uri https://ca.example/dir; state_path off; }";

/// Returns the names of the orders of a configuration, with those of their issuers.
fn orders(conf: &str) -> Vec<String> {
    let req = request(conf, "");
    let show = |o: &Order| format!("{} {} {}", o.issuer.name, o.names(), o.key.text());
    req.http().acme.iter().map(show).collect()
}

fn with(conf: &str) -> String {
    format!("{ISSUER} {conf}")
}

#[test]
fn certificates_are_for_the_names_of_the_server() {
    let conf = |line: &str| with(&format!("server {{ server_name A.example b.example; {line} }}"));
    assert_eq!(orders(&conf("acme_certificate a;")), ["a a.example,b.example ecdsa:256"]);
    assert_eq!(orders(&conf("acme_certificate a c.example key=rsa;")), ["a c.example rsa:2048"]);
    assert_eq!(
        orders(&conf("acme_certificate a 192.0.2.1 [2001:db8::1];")),
        ["a 192.0.2.1,2001:db8::1 ecdsa:256"]
    );
    assert_eq!(orders(&conf("")), [""; 0]);
    let twice = with(
        "server { server_name x.example; acme_certificate a; } server { server_name y.example; acme_certificate a x.example; }",
    );
    assert_eq!(orders(&twice).len(), 1);
}

#[test]
fn mistakes_in_names_are_refused() {
    let says = |conf: &str| error(&with(conf)).unwrap_or_default();
    let none = "\"acme_certificate\": no identifiers found in \"server_name\"";
    assert_eq!(says("server { acme_certificate a; }"), none);
    assert_eq!(says("server { server_name ~x; acme_certificate a; }"), none);
    let conf = "server { server_name x.example ~x; acme_certificate a; }";
    let warned = warnings(&with(conf));
    assert!(warned.iter().any(|w| w.contains("regular expression \"~x\"")), "{warned:?}");
    assert!(says("server { server_name .x.example; acme_certificate a; }").contains("wildcard identifier"));
    assert!(says("server { acme_certificate a *.x.example; }").contains("wildcard identifier"));
    assert!(says("server { acme_certificate a x..example; }").contains("invalid identifier"));
    assert!(says("server { acme_certificate a x.example x.example; }").contains("duplicate identifier"));
    assert!(says("server { acme_certificate a x.example key=dsa; }").contains("unsupported key: dsa"));
    assert_eq!(says("server { acme_certificate b x.example; }"), "acme issuer \"b\" is not defined");
}

#[test]
fn mistakes_in_issuers_are_refused() {
    let says = |inside: &str| error(&format!("acme_issuer a {{ {inside} }}")).unwrap_or_default();
    let uri = "uri https://ca.example/;";
    assert_eq!(says(""), "\"uri\" is missing in acme issuer \"a\"");
    assert!(says("uri http://ca.example/;").contains("must begin with \"https://\""));
    assert_eq!(says(&format!("{uri} challenge dns-01;")), "unsupported challenge: dns-01");
    assert!(says(&format!("{uri} account_key rsa:1024;")).contains("unsupported key: rsa:1024"));
    assert!(says(&format!("{uri} account_key none.pem;")).contains("open() \"/test/none.pem\" failed"));
    assert!(says(&format!("{uri} external_account_key id data:%%;")).contains("must be base64url"));
    assert!(says(&format!("{uri} profile x must;")).contains("invalid parameter \"must\""));
    assert!(says(&format!("{uri} {uri}")).contains("is duplicate"));
    assert!(says(&format!("{uri} state_path off; nothing;")).contains("nothing"));
    assert!(error(&with(ISSUER)).unwrap_or_default().contains("duplicate acme issuer \"a\""));
    assert!(error("acme_shared_zone zone=a;").unwrap_or_default().contains("invalid zone"));
    assert_eq!(error("acme_shared_zone zone=a:256k;"), None);
    assert!(error("acme_client a https://ca.example/;").is_some(), "not in silence");
}

#[test]
fn all_directives_of_an_issuer_are_read() {
    let conf = "acme_issuer a { uri https://ca.example/; account_key ecdsa:384; challenge tls-alpn; contact a@b.example \
                https://c.example/; external_account_key id data:AQID; preferred_chain Root; profile short require; \
                common_name_in_csr on; ssl_verify off; state_path /s; accept_terms_of_service; } \
                server { acme_certificate a x.example; }";
    let req = request(conf, "");
    let http = req.http();
    let i = &http.acme[0].issuer;
    assert_eq!(i.contacts, ["mailto:a@b.example", "https://c.example/"]);
    assert_eq!((i.account_kind, i.challenge), (KeyKind::P384, Challenge::TlsAlpn01));
    assert_eq!(i.external.as_ref().map(|e| (e.id.as_str(), e.key.to_vec())), Some(("id", vec![1, 2, 3])));
    assert_eq!(i.preferred_chain.as_deref(), Some("Root"));
    assert_eq!(i.profile, Some(Profile { name: "short".into(), required: true }));
    assert!(i.common_name && !i.verify && i.terms_accepted);
    assert_eq!(i.state_path.as_deref(), Some(Path::new("/s")));
    let plain =
        request(&with("acme_issuer b { uri https://x/; } server { acme_certificate b x.example; }"), "");
    assert_eq!(plain.http().acme[0].issuer.state_path.as_deref(), Some(Path::new("/test/acme_b")));
}

#[test]
fn acme_on_is_enough() {
    let tls = "listen 127.0.0.1:1 ssl; server_name";
    let of = |conf: &str| orders(conf);
    assert_eq!(of(&format!("server {{ {tls} x.example; acme on; }}")), ["letsencrypt x.example ecdsa:256"]);
    assert_eq!(
        of(&format!("acme on; server {{ {tls} x.example; }} server {{ listen 127.0.0.1:2; }}")).len(),
        1
    );
    let own = format!("acme_issuer default {{ uri https://x/; }} server {{ {tls} x.example; acme on; }}");
    assert_eq!(of(&own), ["default x.example ecdsa:256"]);
    assert_eq!(of("server { listen 127.0.0.1:1; server_name x.example; acme on; }"), [""; 0]);
    assert_eq!(
        of(&format!("acme on; server {{ {tls} x.example; acme off; ssl_reject_handshake on; }}")),
        [""; 0]
    );
    let req = request(&format!("acme_client_path /c; server {{ {tls} x.example; acme on; }}"), "");
    assert_eq!(req.http().acme[0].issuer.state_path.as_deref(), Some(Path::new("/c/letsencrypt")));
}

/// Without port 80 an attempt by HTTP would only count against the authority's limits.
#[test]
fn the_challenge_fits_the_addresses() {
    let of = |listen: &str| {
        let conf = format!("server {{ listen 127.0.0.1:443 ssl; {listen} server_name x.example; acme on; }}");
        request(&conf, "").http().acme[0].issuer.challenge
    };
    assert_eq!(of("listen 127.0.0.1:80;"), Challenge::Either);
    assert_eq!(of(""), Challenge::TlsAlpn01);
    assert_eq!(of("listen 127.0.0.1:8080; listen 127.0.0.2:80 ssl;"), Challenge::TlsAlpn01);
}

#[test]
fn acme_on_refuses_names_without_certificates() {
    let says = |names: &str| {
        error(&format!("server {{ listen 127.0.0.1:1 ssl; server_name {names}; acme on; }}"))
            .unwrap_or_default()
    };
    assert!(says("~^x").contains("the regular expression \"~^x\""));
    assert!(says("*.x.example").contains("wildcard identifier"));
    assert!(says("localhost").contains("no public name"));
    assert!(says("_").contains("no \"ssl_certificate\" is defined"));
    assert!(
        error("server { acme a; }").unwrap_or_default().contains("clients as \"a\" are not supported yet")
    );
}

#[test]
fn variables_are_empty_before_the_first_certificate() {
    let conf = with(
        "server { server_name x.example; acme_certificate a; set $x $acme_certificate$acme_certificate_key; }",
    );
    let mut req = request(&conf, "");
    assert_eq!(value(&mut req, "acme_certificate"), None);
    assert_eq!(value(&mut req, "acme_certificate_key"), None);
}

#[test]
fn only_known_tokens_are_answered() {
    let mut req = request(&with("server { server_name x.example; acme_certificate a; }"), "");
    req.method = Method::Get;
    req.uri = b"/.well-known/acme-challenge/unknown".to_vec();
    assert_eq!(answer(&mut req), Verdict::Declined);
}
