//! Chains of certificates are judged as `openssl verify` judges them, which runs beside.

use forebay_net::tls::pem;
use forebay_net::tls::verify::{Purpose, Trust, is_for_host, now};
use forebay_testkit::P256;
use std::path::Path;
use std::process::Command;

forebay_testkit::cases!("cases/certificates.cases": an_upstream_is_known_by_its_alternative_names);

struct Dir(tempfile::TempDir);

impl Dir {
    /// Runs `openssl` with words. A blank in one is `%`.
    fn openssl(&self, args: &str) -> String {
        let args = args.split_whitespace().map(|word| word.replace('%', " "));
        let done = Command::new("openssl").args(args).current_dir(self.0.path()).output().expect("openssl");
        [done.stdout, done.stderr].iter().map(|b| String::from_utf8_lossy(b).into_owned()).collect()
    }

    fn make(&self, args: &str, file: &str) {
        let told = self.openssl(args);
        let length = std::fs::metadata(self.0.path().join(file)).map_or(0, |m| m.len());
        assert!(length > 0, "{args:?}: {told}");
    }

    /// A certificate `NAME.crt` with a key, by its issuer or by itself.
    fn certificate(&self, name: &str, kind: &str, subject: &str, by: Option<&str>) {
        let subject = subject.replace(' ', "%");
        let new = format!("req -config c.cnf -nodes -keyout {name}.key -newkey {P256} -subj {subject}");
        let Some(by) = by else {
            let own = format!("{new} -x509 -extensions {kind} -out {name}.crt");
            return self.make(&own, &format!("{name}.crt"));
        };
        self.make(&format!("{new} -out {name}.csr"), &format!("{name}.csr"));
        self.sign(name, "c.cnf", kind, by);
    }

    /// Makes a certificate of a request.
    fn sign(&self, name: &str, config: &str, kind: &str, by: &str) {
        let sign = format!("x509 -req -in {name}.csr -CA {by}.crt -CAkey {by}.key -days 9 -out {name}.crt");
        let sign = format!("{sign} -extfile {config} -extensions {kind} -CAcreateserial");
        self.make(&sign, &format!("{name}.crt"));
    }

    /// Makes a revocation list of the root, with more words.
    fn list(&self, name: &str, more: &str) {
        let make = format!("ca -config l.cnf -gencrl -cert root.crt -keyfile root.key -out {name}");
        self.make(&format!("{make} {more}"), name);
    }

    fn revoke_leaf(&self) {
        self.openssl("ca -config l.cnf -revoke leaf.crt -cert root.crt -keyfile root.key");
    }

    fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.0.path().join(name)).expect("read")
    }

    /// Judges by both; `lists`: a file.
    fn judge(
        &self,
        purpose: Purpose,
        leaf: &str,
        between: Option<&str>,
        lists: Option<&str>,
    ) -> (Option<u32>, String) {
        let crt = |name: &str| pem::certificates(&self.read(&format!("{name}.crt")));
        let chain: Vec<_> = std::iter::once(leaf).chain(between).flat_map(crt).collect();
        let crls: Vec<Vec<u8>> = lists.map_or_else(Vec::new, |l| {
            pem::blocks(&self.read(l)).into_iter().map(|b| b.der.to_vec()).collect()
        });
        let ours = Trust::new(crt("root"), Vec::new(), crls, 5).verify(&chain, purpose, now());
        let named = if purpose == Purpose::Server { "sslserver" } else { "sslclient" };
        let middle = between.map_or(String::new(), |b| format!("-untrusted {b}.crt"));
        let lists = lists.map_or(String::new(), |l| format!("-crl_check_all -CRLfile {l}"));
        let args = format!("verify -purpose {named} -no-CApath -CAfile root.crt {middle} {lists} {leaf}.crt");
        (ours.err().map(|f| f.0), self.openssl(&args))
    }

    fn agree(&self, leaf: &str, between: Option<&str>, lists: Option<&str>, wanted: Option<u32>) {
        self.agree_for(Purpose::Client, leaf, between, lists, wanted);
    }

    fn agree_for(
        &self,
        purpose: Purpose,
        leaf: &str,
        between: Option<&str>,
        lists: Option<&str>,
        wanted: Option<u32>,
    ) {
        let (ours, theirs) = self.judge(purpose, leaf, between, lists);
        let case = format!("{leaf} {between:?} {lists:?}: {ours:?}, {theirs}");
        assert_eq!(ours, wanted, "{case}");
        match ours {
            None => assert!(theirs.contains(": OK"), "{case}"),
            Some(n) => assert!(theirs.contains(&format!("error {n} at")), "{case}"),
        }
    }
}

fn dir() -> Dir {
    let dir = Dir(tempfile::tempdir().expect("directory"));
    let write =
        |name: &str, text: &str| std::fs::write(Path::new(dir.0.path()).join(name), text).expect("write");
    write("c.cnf", include_str!("certificates/extensions.cnf"));
    write("l.cnf", include_str!("certificates/lists.cnf"));
    write("index", "");
    dir.certificate("root", "ca", "/CN=root", None);
    dir
}

#[test]
fn authorities_are_held_to_their_names_and_purposes() {
    let dir = dir();
    // An authority, a kind of certificate, and the error, 0 for none.
    let rows = "ca plain 0, ca server 26, ca sealed 26, ca strange 34, servers plain 26, permitted ok 0, permitted bad 47, \
                permitted plain 0, excluded ok 48, excluded near 0, nets near 0, nets far 47, mails mail 0, mails spam 47, \
                short plain 0, plain plain 79";
    for row in rows.split(", ") {
        let words: Vec<&str> = row.split(' ').collect();
        let (authority, kind, wanted) = (words[0], words[1], words[2].parse().ok().filter(|n| *n > 0));
        let (middle, leaf) = (format!("i-{authority}"), format!("{authority}-{kind}"));
        if !dir.0.path().join(format!("{middle}.crt")).exists() {
            dir.certificate(&middle, authority, &format!("/CN={middle}"), Some("root"));
        }
        dir.certificate(&leaf, kind, "/CN=leaf", Some(&middle));
        dir.agree(&leaf, Some(&middle), None, wanted);
    }
    dir.certificate("i-names", "names", "/CN=i-names", Some("root"));
    dir.certificate("names-ok", "plain", "/CN=leaf/O=more", Some("i-names"));
    dir.certificate("names-bad", "plain", "/CN=other", Some("i-names"));
    dir.agree("names-ok", Some("i-names"), None, None);
    dir.agree("names-bad", Some("i-names"), None, Some(47));
}

#[test]
fn lists_count_only_for_what_they_are_for() {
    let dir = dir();
    dir.certificate("leaf", "plain", "/CN=leaf", Some("root"));
    let list = |name: &str, kind: &str| dir.list(name, kind);
    list("all.crl", "");
    list("idp.crl", "-crlexts idp");
    list("users.crl", "-crlexts users");
    list("place.crl", "-crlexts place");
    list("odd.crl", "-crlexts odd");
    // The root itself needs a list, too; one that is for users only is none for it.
    dir.agree("leaf", None, Some("all.crl"), None);
    dir.agree("leaf", None, Some("idp.crl"), Some(44));
    dir.agree("leaf", None, Some("place.crl"), Some(44));
    dir.agree("leaf", None, Some("odd.crl"), Some(36));
    let both = [dir.read("users.crl"), dir.read("idp.crl")].concat();
    std::fs::write(dir.0.path().join("both.crl"), both).expect("write");
    dir.agree("leaf", None, Some("both.crl"), None);
    dir.revoke_leaf();
    list("all.crl", "");
    dir.agree("leaf", None, Some("all.crl"), Some(23));
    // An authority that may not sign lists.
    let mute = Dir(tempfile::tempdir().expect("directory"));
    for name in ["c.cnf", "l.cnf"] {
        std::fs::copy(dir.0.path().join(name), mute.0.path().join(name)).expect("copy");
    }
    std::fs::write(mute.0.path().join("index"), "").expect("write");
    mute.certificate("root", "mute", "/CN=root", None);
    mute.certificate("leaf", "plain", "/CN=leaf", Some("root"));
    mute.list("all.crl", "");
    mute.agree("leaf", None, Some("all.crl"), Some(35));
}

/// Of several lists of one issuer the newest counts, wherever it stands in the file; one that is not in force gives way.
#[test]
fn the_newest_list_of_an_issuer_counts() {
    let dir = dir();
    dir.certificate("leaf", "plain", "/CN=leaf", Some("root"));
    let list = |name: &str, kind: Option<&str>, from: &str, until: &str| {
        let kind = kind.map_or(String::new(), |k| format!("-crlexts {k}"));
        dir.list(name, &format!("-crl_lastupdate {from} -crl_nextupdate {until} {kind}"));
    };
    let far = "20491231000000Z";
    list("old", None, "20240101000000Z", far);
    list("old-keyed", Some("keyed"), "20240101000000Z", far);
    list("over", None, "20250301000000Z", "20250302000000Z");
    list("to-come", None, "20480101000000Z", far);
    list("delta", Some("delta"), "20250401000000Z", far);
    list("indirect", Some("indirect"), "20250401000000Z", far);
    list("reasons", Some("reasons"), "20250401000000Z", far);
    dir.revoke_leaf();
    list("revoked", None, "20250201000000Z", far);
    list("revoked-old", None, "20230101000000Z", far);
    list("revoked-keyed", Some("keyed"), "20250201000000Z", far);
    for (names, wanted) in [
        (&["old"][..], None),
        (&["old", "revoked"], Some(23)),
        (&["old-keyed", "revoked-keyed"], Some(23)),
        (&["old", "revoked", "revoked-old"], Some(23)),
        // An authority may take a revocation back.
        (&["old", "revoked-old"], None),
        (&["revoked", "over"], Some(23)),
        (&["old", "over"], None),
        (&["over"], Some(12)),
        (&["revoked", "to-come"], Some(23)),
        (&["to-come"], Some(11)),
        // Those that are not used count as little as if they were not there.
        (&["revoked", "delta"], Some(23)),
        (&["revoked", "indirect"], Some(23)),
        (&["revoked", "reasons"], Some(23)),
        (&["delta"], Some(3)),
        (&["indirect"], Some(3)),
        (&["reasons"], Some(3)),
    ] {
        for turned in [false, true] {
            let mut parts: Vec<Vec<u8>> = names.iter().map(|n| dir.read(n)).collect();
            if turned {
                parts.reverse();
            }
            std::fs::write(dir.0.path().join("all"), parts.concat()).expect("write");
            println!("{names:?} {turned}");
            if names.contains(&"delta") {
                // OpenSSL 3.0.19 of Debian takes a delta list for a complete one, and so a revoked certificate for a good one.
                let (ours, theirs) = dir.judge(Purpose::Client, "leaf", None, Some("all"));
                assert_eq!(ours, wanted, "{names:?}: OpenSSL: {theirs}");
            } else {
                dir.agree("leaf", None, Some("all"), wanted);
            }
        }
    }
}

#[test]
fn any_purpose_is_none_of_them() {
    let dir = dir();
    for (kind, client, server) in [
        ("any", Some(26), Some(26)),
        ("server", Some(26), None),
        ("gated", Some(26), None),
        ("plain", None, None),
    ] {
        dir.certificate(kind, kind, "/CN=leaf", Some("root"));
        dir.agree_for(Purpose::Client, kind, None, None, client);
        dir.agree_for(Purpose::Server, kind, None, None, server);
    }
}

/// Names of servers are compared as they are written, and names that cannot be read are no reason to look at the subject.
#[test]
fn a_server_is_known_by_the_name_in_its_certificate() {
    let dir = dir();
    for (kind, host, wanted) in [
        ("plain", "up.test", true),
        ("plain", "up.test.", false),
        ("ok", "a.ok.test", true),
        ("ok", "up.test", false),
        ("dotted", "up.test.", true),
        ("dotted", "up.test", false),
        ("mailed", "up.test", true),
        ("garbled", "up.test", false),
        ("latin", "up.test", false),
    ] {
        let name = format!("host-{kind}");
        if !dir.0.path().join(format!("{name}.crt")).exists() {
            dir.certificate(&name, kind, "/CN=up.test", Some("root"));
        }
        let leaf = dir.read(&format!("{name}.crt"));
        let leaf = pem::certificates(&leaf).into_iter().next().expect("a certificate");
        assert_eq!(is_for_host(&leaf, host), wanted, "{kind} {host}");
        let told = dir.openssl(&format!("verify -verify_hostname {host} -CAfile root.crt {name}.crt"));
        assert_eq!(told.contains(": OK"), wanted, "{kind} {host}: {told}");
    }
    let crt = |name: &str| pem::certificates(&dir.read(&format!("{name}.crt")));
    let trust = Trust::new(crt("root"), Vec::new(), Vec::new(), 5);
    assert!(trust.verify(&crt("host-garbled"), Purpose::Server, now()).is_err(), "nobody knows what it says");
}

#[test]
fn a_trusted_list_may_hold_the_whole_chain_and_much_else() {
    let dir = dir();
    dir.certificate("one", "ca", "/CN=one", Some("root"));
    dir.certificate("two", "ca", "/CN=two", Some("one"));
    dir.certificate("leaf", "plain", "/CN=leaf", Some("two"));
    // Of the same name as one that is needed, and with another key.
    dir.certificate("twin", "ca", "/CN=two", None);
    let crt = |name: &str| pem::certificates(&dir.read(&format!("{name}.crt")));
    let verify = |anchors: &[&str]| {
        let anchors = anchors.iter().flat_map(|n| crt(n)).collect();
        Trust::new(anchors, Vec::new(), Vec::new(), 5).verify(&crt("leaf"), Purpose::Client, now())
    };
    assert!(verify(&["twin", "leaf", "two", "one", "root"]).is_ok());
    assert!(verify(&["root", "two", "one", "twin"]).is_ok());
    assert_eq!(verify(&["two", "root"]).map_err(|f| f.0), Err(2), "a link is missing");
    assert_eq!(verify(&["root"]).map_err(|f| f.0), Err(21));
    assert_eq!(verify(&["twin"]).map_err(|f| f.0), Err(21), "its key is another one");
}

/// `optional_no_ca` accepts any authority, but no expired certificate: openssl reports the time last.
#[test]
fn a_time_counts_also_where_nobody_vouches() {
    let dir = dir();
    dir.certificate("stranger", "ca", "/CN=stranger", None);
    dir.certificate("leaf", "plain", "/CN=leaf", Some("stranger"));
    let judged = |names: &[&str], at: i64| {
        let chain: Vec<_> =
            names.iter().flat_map(|n| pem::certificates(&dir.read(&format!("{n}.crt")))).collect();
        let roots = pem::certificates(&dir.read("root.crt"));
        let failure = Trust::new(roots, Vec::new(), Vec::new(), 5).verify(&chain, Purpose::Client, at);
        failure.err().map(|f| (f.0, f.is_trust()))
    };
    const DAY: i64 = 24 * 3600;
    for (names, untrusted) in [(&["leaf"][..], 21), (&["leaf", "stranger"], 19), (&["stranger"], 18)] {
        assert_eq!(judged(names, now()), Some((untrusted, true)), "{names:?}");
        assert_eq!(judged(names, now() + 400 * DAY), Some((10, false)), "{names:?}");
        assert_eq!(judged(names, now() - DAY), Some((9, false)), "{names:?}");
    }
}

/// Names are compared without regard to the types of their strings, case and blanks: by constraints, chains and revocation lists. The
/// common name is held to constraints where it is compared with a host.
#[test]
fn names_are_compared_in_one_form() {
    let dir = dir();
    let write = |name: &str, text: &str| std::fs::write(dir.0.path().join(name), text).expect("write");
    let base = "[req]\ndistinguished_name=dn\nstring_mask=MASK\n[dn]\n\
        [ca]\nbasicConstraints=critical,CA:TRUE\n[plain]\nbasicConstraints=CA:FALSE\n\
        [not]\nbasicConstraints=critical,CA:TRUE\nnameConstraints=excluded;dirName:bad\n\
        [only]\nbasicConstraints=critical,CA:TRUE\nnameConstraints=permitted;dirName:bad\n[bad]\nO=Bad Company\n\
        [hosts]\nbasicConstraints=critical,CA:TRUE\nnameConstraints=permitted;DNS:ok.example\n\
        [nohosts]\nbasicConstraints=critical,CA:TRUE\nnameConstraints=excluded;DNS:up.test\n";
    // UTF8String, PrintableString, T61String, BMPString.
    let masks = [("utf8", "0x2000"), ("printable", "2"), ("t61", "4"), ("bmp", "0x800")];
    for (name, mask) in masks {
        write(&format!("{name}.cnf"), &base.replace("MASK", &format!("MASK:{mask}")));
    }
    let certificate = |name: &str, config: &str, kind: &str, subject: &str, by: &str, key: Option<&str>| {
        let key =
            key.map_or(format!("-nodes -keyout {name}.key -newkey {P256}"), |key| format!("-new -key {key}"));
        let subject = subject.replace(' ', "%");
        dir.make(
            &format!("req -config {config}.cnf {key} -subj {subject} -out {name}.csr"),
            &format!("{name}.csr"),
        );
        dir.sign(name, &format!("{config}.cnf"), kind, by);
    };
    certificate("not", "utf8", "not", "/CN=not", "root", None);
    certificate("only", "utf8", "only", "/CN=only", "root", None);
    for (mask, _) in masks {
        for (n, subject) in
            ["/O=Bad Company/CN=x", "/O=bad  COMPANY /CN=x", "/O= bad company/CN=x"].iter().enumerate()
        {
            let leaf = format!("n-{mask}-{n}");
            certificate(&leaf, mask, "plain", subject, "not", None);
            dir.agree(&leaf, Some("not"), None, Some(48));
            let leaf = format!("o-{mask}-{n}");
            certificate(&leaf, mask, "plain", subject, "only", None);
            dir.agree(&leaf, Some("only"), None, None);
        }
        let leaf = format!("other-{mask}");
        certificate(&leaf, mask, "plain", "/O=BadCompany/CN=x", "not", None);
        dir.agree(&leaf, Some("not"), None, None);
    }
    // The issuer has the same name and key in another certificate, whose strings are of another type.
    certificate("i-utf8", "utf8", "ca", "/O=Some Company/CN=between", "root", None);
    certificate("below", "utf8", "plain", "/CN=below", "i-utf8", None);
    for (mask, _) in masks {
        let between = format!("again-{mask}");
        certificate(&between, mask, "ca", "/O=some  company/CN=Between", "root", Some("i-utf8.key"));
        dir.agree("below", Some(&between), None, None);
    }
    // Common names of servers: without dots and with a star as well. OpenSSL does not look at the latter.
    certificate("hosts", "utf8", "hosts", "/CN=hosts", "root", None);
    certificate("nohosts", "utf8", "nohosts", "/CN=nohosts", "root", None);
    for (n, (subject, hosts, nohosts)) in [
        ("/CN=up.test", Some(47), Some(48)),
        ("/CN=*.up.test", Some(47), Some(48)),
        ("/CN=a.up.test", Some(47), Some(48)),
        ("/CN=localhost", Some(47), None),
        ("/CN=*.test", Some(47), None),
        ("/CN=ok.example", None, None),
        ("/CN=*.ok.example", None, None),
        ("/CN=Some One", None, None),
    ]
    .into_iter()
    .enumerate()
    {
        for (authority, wanted) in [("hosts", hosts), ("nohosts", nohosts)] {
            for mask in ["utf8", "bmp"] {
                let leaf = format!("{authority}-{n}-{mask}");
                certificate(&leaf, mask, "plain", subject, authority, None);
                let (ours, _) = dir.judge(Purpose::Server, &leaf, Some(authority), None);
                assert_eq!(ours, wanted, "{authority} {subject} {mask}");
            }
        }
    }
}
