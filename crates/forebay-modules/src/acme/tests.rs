use super::*;
use crate::testing::{error, request, value, warnings};
use forebay_acme::{Challenge, MacAlgorithm, Profile, RenewalRule, Retry};
use forebay_http::request::Method;
use std::path::Path;

const ISSUER: &str = "acme_issuer a { uri https://ca.example/dir; state_path off; }";

/// Returns the names of the orders of a configuration, with those of their issuers.
fn orders(conf: &str) -> Vec<String> {
    let req = request(conf, "");
    let show = |o: &Order| format!("{} {} {}", o.issuer.name, o.names(), o.key.text());
    of_http(&req.http()).orders.iter().map(show).collect()
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
    assert!(says("server { server_name *.x.example; acme_certificate a; }").contains("wildcard identifier"));
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
    assert_eq!(says(&format!("{uri} challenge dns-02;")), "unsupported challenge: dns-02");
    assert!(says(&format!("{uri} staging_uri http://x/;")).contains("must begin with \"https://\""));
    assert!(says(&format!("{uri} acme_dns_program delay=1s;")).contains("needs the path of a program"));
    assert!(says(&format!("{uri} account_key rsa:1024;")).contains("unsupported key: rsa:1024"));
    assert!(says(&format!("{uri} account_key none.pem;")).contains("open() \"/test/none.pem\" failed"));
    assert!(says(&format!("{uri} external_account_key id data:%%;")).contains("must be base64url"));
    assert!(says(&format!("{uri} profile x must;")).contains("invalid parameter \"must\""));
    assert!(says(&format!("{uri} {uri}")).contains("is duplicate"));
    assert!(says(&format!("{uri} state_path off; nothing;")).contains("nothing"));
    assert!(error(&with(ISSUER)).unwrap_or_default().contains("duplicate acme issuer \"a\""));
    assert!(error("acme_shared_zone zone=a;").unwrap_or_default().contains("invalid zone"));
    assert_eq!(error("acme_shared_zone zone=a:256k;"), None);
}

#[test]
fn all_directives_of_an_issuer_are_read() {
    let conf = "acme_issuer a { uri https://ca.example/; account_key ecdsa:384; challenge tls-alpn; contact a@b.example \
                https://c.example/; external_account_key id data:AQID; preferred_chain Root; profile short require; \
                common_name_in_csr on; ssl_verify off; state_path /s; accept_terms_of_service; } \
                server { acme_certificate a x.example; }";
    let req = request(conf, "");
    let http = req.http();
    let i = &of_http(&http).orders[0].issuer;
    assert_eq!(i.contacts, ["mailto:a@b.example", "https://c.example/"]);
    assert_eq!((i.account_kind, i.challenge), (KeyKind::P384, Challenge::TlsAlpn01));
    let external = i.external.as_ref().map(|e| (e.id.as_str(), e.algorithm, e.key.to_vec()));
    assert_eq!(external, Some(("id", MacAlgorithm::Hs256, vec![1, 2, 3])));
    assert_eq!(i.preferred_chain.as_deref(), Some("Root"));
    assert_eq!(i.profile, Some(Profile { name: "short".into(), required: true }));
    assert!(i.common_name && !i.verify && i.terms_accepted);
    assert_eq!(i.state_path.as_deref(), Some(Path::new("/s")));
    let plain =
        request(&with("acme_issuer b { uri https://x/; } server { acme_certificate b x.example; }"), "");
    assert_eq!(
        of_http(&plain.http()).orders[0].issuer.state_path.as_deref(),
        Some(Path::new("/test/acme_b"))
    );
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
    assert_eq!(
        of_http(&req.http()).orders[0].issuer.state_path.as_deref(),
        Some(Path::new("/c/letsencrypt"))
    );
}

/// Without port 80 an attempt by HTTP would only count against the authority's limits.
#[test]
fn the_challenge_fits_the_addresses() {
    let of = |listen: &str| {
        let conf = format!("server {{ listen 127.0.0.1:443 ssl; {listen} server_name x.example; acme on; }}");
        of_http(&request(&conf, "").http()).orders[0].issuer.challenge
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
    assert_eq!(error("server { acme a; }").as_deref(), Some("acme client \"a\" is not defined"));
}

/// Returns the only order of a configuration.
fn order(conf: &str) -> Order {
    of_http(&request(conf, "").http()).orders[0].clone()
}

/// As in nginx-acme, where the challenge proves no wildcard.
#[test]
fn a_dot_before_a_name_stands_for_the_name_and_its_www() {
    let issuer = "acme_issuer a { uri https://ca.example/; state_path off; }";
    let conf = |names: &str| format!("{issuer} server {{ server_name {names}; acme_certificate a; }}");
    assert_eq!(orders(&conf(".x.example")), ["a x.example,www.x.example ecdsa:256"]);
    assert_eq!(
        orders(&conf(".x.example www.x.example x.example y.example")),
        ["a x.example,www.x.example,y.example ecdsa:256"]
    );
    assert!(error(&conf("*.x.example")).unwrap_or_default().contains("wildcard identifier"));
}

#[test]
fn wildcards_need_a_challenge_by_dns() {
    let issuer = "acme_issuer a { uri https://ca.example/; state_path off; challenge dns-01; }";
    let conf = |line: &str| format!("{issuer} server {{ server_name .x.example; {line} }}");
    assert_eq!(orders(&conf("acme_certificate a;")), ["a x.example,*.x.example ecdsa:256"]);
    assert_eq!(orders(&conf("acme_certificate a *.y.example;")), ["a *.y.example ecdsa:256"]);
    let text = error(&conf("acme_certificate a 192.0.2.1;")).unwrap_or_default();
    assert!(text.contains("address \"192.0.2.1\" is not supported"), "{text}");
    // The built-in issuer, too, where records of DNS are spoken of.
    let on = "server { listen 127.0.0.1:1 ssl; server_name *.x.example; acme on; }";
    assert!(error(on).unwrap_or_default().contains("wildcard identifier"));
    assert_eq!(orders(&format!("acme_dns_port 53; {on}")), ["letsencrypt *.x.example ecdsa:256"]);
    assert_eq!(orders(&format!("acme_dns_program /p; {on}")), ["letsencrypt *.x.example ecdsa:256"]);
}

#[test]
fn sockets_are_opened_for_own_answers_only() {
    let issuer = |more: &str| {
        format!(
            "acme_issuer a {{ uri https://ca.example/; state_path off; challenge dns; {more} }} \
             server {{ listen 127.0.0.1:1; server_name x.example; acme_certificate a; }}"
        )
    };
    let addresses = |conf: &str| {
        let req = request(conf, "");
        let shown: Vec<String> = of_http(&req.http()).dns.iter().map(|a| format!("{a:?}")).collect();
        (shown, of_http(&req.http()).dns_ttl)
    };
    assert_eq!(addresses(&issuer("")), (vec!["Udp(0.0.0.0:53)".into(), "Inet(0.0.0.0:53)".into()], 60));
    let two = addresses(&format!("acme_dns_port 5353 [::1]:54; acme_dns_ttl 5s; {}", issuer("")));
    assert_eq!((two.0.len(), two.0[2].as_str(), two.1), (4, "Udp([::1]:54)", 5));
    for other in [issuer("acme_dns_program p x;"), format!("acme_dns_program p; {}", issuer(""))] {
        assert_eq!(addresses(&other).0, [""; 0]);
    }
    let hooked = issuer("") + "server { listen 127.0.0.1:1; location /h { acme_hook a; } }";
    assert_eq!(addresses(&hooked).0, [""; 0]);
    assert!(error("acme_dns_port x;").unwrap_or_default().contains("invalid port \"x\""));
    assert!(error("acme_dns_port 53; acme_dns_port 54;").unwrap_or_default().contains("is duplicate"));
}

#[test]
fn a_client_has_the_port_for_http_where_no_server_has() {
    let addresses = |http: &str, listen: &str| {
        let conf = format!(
            "{http} acme_client a https://ca.example/; \
             server {{ listen 127.0.0.1:1 ssl; {listen} server_name x.example; acme a; }}"
        );
        let req = request(&conf, "");
        of_http(&req.http()).http.iter().map(|a| a.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(addresses("", ""), ["0.0.0.0:80"]);
    assert_eq!(addresses("", "listen 127.0.0.1:80;"), [""; 0]);
    assert_eq!(addresses("acme_http_port [::1]:81;", "listen 127.0.0.1:80;"), ["[::1]:81"]);
}

#[test]
fn all_parameters_of_a_client_are_read() {
    let conf = "acme_client_path /c; acme_max_response_size 32k; acme_client a https://ca.example/dir key_type=rsa \
                key_bits=3072 email=a@b.example max_cert_size=16k max_key_auth_size=2k renew_before_expiry=7d renew_on_load \
                retry_after_error=2h challenge=alpn eab=id:hs384:AQID profile=short enabled=off staging_uri=https://s.example/; \
                server { listen 127.0.0.1:1; server_name x.example y.example _; acme A; } \
                server { listen 127.0.0.1:1; server_name y.example z.example ~x; acme a; }";
    let order = order(conf);
    assert_eq!((order.names().as_str(), order.key), ("x.example,y.example,z.example", KeyKind::Rsa3072));
    let i = &order.issuer;
    assert_eq!(
        (i.contacts.as_slice(), i.max_chain),
        (["mailto:a@b.example".to_owned()].as_slice(), Some(16384))
    );
    assert_eq!((i.renewal, i.retry), (RenewalRule::Before(7 * 86_400), Retry::After(7200)));
    assert_eq!((i.challenge, i.max_response), (Challenge::TlsAlpn01, 32 * 1024));
    let external = i.external.as_ref().map(|e| (e.id.as_str(), e.algorithm, e.key.to_vec()));
    assert_eq!(external, Some(("id", MacAlgorithm::Hs384, vec![1, 2, 3])));
    assert!(i.renew_on_load && i.terms_accepted && !i.enabled);
    assert_eq!(i.staging.as_deref(), Some("https://s.example/"));
    assert_eq!(i.state_path.as_deref(), Some(Path::new("/c/a")));
}

#[test]
fn mistakes_in_clients_are_refused() {
    let says = |line: &str| error(&format!("acme_client a https://ca.example/ {line};")).unwrap_or_default();
    for bad in
        ["key_type=dsa", "enabled=1", "retry_after_error=x", "nothing", "challenge=x", "max_cert_size=0"]
    {
        assert_eq!(says(bad), format!("invalid parameter \"{bad}\""));
    }
    // Without the key, and in the words of Angie.
    for (bad, what) in [
        ("x", "\"eab\" value"),
        (":AQID", "\"eab\" value"),
        ("id:AQ+/", "key value in the \"eab\" parameter"),
        ("id:", "key value in the \"eab\" parameter"),
        ("id:AQID:HS256", "algorithm value in the \"eab\" parameter"),
    ] {
        assert_eq!(says(&format!("eab={bad}")), format!("\"acme_client\" directive has an invalid {what}"));
    }
    assert_eq!(says("key_bits=17"), "unsupported key: ecdsa:17");
    assert!(error("acme_client a http://x/;").unwrap_or_default().contains("must begin with"));
    assert!(error("acme_client on https://x/;").unwrap_or_default().contains("invalid acme client name"));
    let twice = "acme_client a https://x/; acme_client A https://x/;";
    assert_eq!(error(twice).as_deref(), Some("duplicate acme client \"A\""));
    let hook = "server { listen 127.0.0.1:1; location /h { acme_hook a; } }";
    assert_eq!(error(hook).as_deref(), Some("acme client \"a\" is not defined"));
    let client = "acme_client a https://x/;";
    let text = error(&format!("{client} server {{ server_name *.x.example; acme a; }}")).unwrap_or_default();
    assert!(text.contains("wildcard identifier"), "{text}");
    let both = "server { server_name x.example; acme on; acme a; }";
    assert!(
        error(&format!("{client} {both}")).unwrap_or_default().contains("\"acme\" directive is duplicate")
    );
}

#[test]
fn certificates_side_by_side_differ_in_their_keys() {
    let conf = |second: &str| {
        with(&format!("server {{ server_name x.example; acme_certificate a; acme_certificate a {second}; }}"))
    };
    assert_eq!(orders(&conf("key=rsa")), ["a x.example ecdsa:256", "a x.example rsa:2048"]);
    assert!(
        error(&conf("key=ecdsa:384"))
            .unwrap_or_default()
            .contains("\"acme_certificate\" directive is duplicate")
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
    req.uri.path = b"/.well-known/acme-challenge/unknown".to_vec();
    assert_eq!(answer(&mut req).now(), Verdict::Declined);
}
