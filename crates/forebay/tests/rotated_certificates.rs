//! Certificates whose names have variables are read again for each connection to an upstream, unless a cache is to keep them
//! (nginx: proxy_ssl_certificate_cache).

use forebay_testkit::{Server, Site, free_port, http, raw};

/// A front that presents a certificate.
struct Case {
    directives: &'static str,
    /// Its key needs a password.
    encrypted: bool,
    /// Name in the certificate that is presented after the files have changed.
    then: &'static str,
}

const CASES: [Case; 4] = [
    Case { directives: "", encrypted: false, then: "new" },
    Case { directives: "proxy_ssl_certificate_cache off;", encrypted: false, then: "new" },
    Case { directives: "proxy_ssl_certificate_cache max=4;", encrypted: false, then: "old" },
    // Keys with passwords are not kept.
    Case {
        directives: "proxy_ssl_certificate_cache max=4; proxy_ssl_password_file password;",
        encrypted: true,
        then: "new",
    },
];

/// Puts a certificate with its key in the place of another one.
fn put(site: &Site, name: &str, to: &str, encrypted: bool) {
    let key = if encrypted { "encrypted" } else { "key" };
    for (from, end) in [("crt", "crt"), (key, "key")] {
        let next = site.write("next", site.read(&format!("{name}.{from}")));
        std::fs::rename(next, site.dir().join(format!("{to}.{end}"))).expect("renamed");
    }
}

#[test]
fn changed_files_are_presented_unless_a_cache_keeps_the_old_ones() {
    let back = free_port();
    let (mut http, mut stream, mut fronts) = (String::new(), String::new(), Vec::new());
    for case in &CASES {
        let (web, bytes) = (free_port(), free_port());
        fronts.extend([(web, case), (bytes, case)]);
        let directives = format!(
            "proxy_ssl_session_reuse off; proxy_ssl_certificate $server_port.crt;\n\
             proxy_ssl_certificate_key $server_port.key; {}",
            case.directives
        );
        http += &format!(
            "server {{ listen 127.0.0.1:{web}; {directives}\n\
             location / {{ proxy_pass https://127.0.0.1:{back}; }} }}\n"
        );
        stream += &format!(
            "server {{ listen 127.0.0.1:{bytes}; proxy_ssl on; proxy_pass 127.0.0.1:{back}; {directives} }}\n"
        );
    }
    let site = Site::new(http!(
        "server {{ listen 127.0.0.1:%PORT0%; return 200 ready; }}\n\
         server {{ listen 127.0.0.1:{back} ssl; ssl_certificate old.crt; ssl_certificate_key old.key;\n\
         ssl_verify_client optional_no_ca; return 200 \"from $ssl_client_s_dn\"; }}\n{http} }}\n\
         stream {{ {stream}"
    ));
    site.write("password", "secret");
    for name in ["old", "new"] {
        let new = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30";
        site.openssl(&format!("{new} -keyout {name}.key -out {name}.crt -subj /CN={name}"));
        site.openssl(&format!("ec -in {name}.key -aes128 -passout pass:secret -out {name}.encrypted"));
    }
    let change = |site: &Site, name: &str| {
        for (port, case) in &fronts {
            put(site, name, &port.to_string(), case.encrypted);
        }
    };
    change(&site, "old");
    let server = Server::start_on(site);
    let presented = |port: u16, name: &str, case: &Case| {
        let request = b"GET / HTTP/1.1\r\nHost: back\r\nConnection: close\r\n\r\n";
        let answer = String::from_utf8(raw(([127, 0, 0, 1], port).into(), request)).expect("text");
        assert!(
            answer.ends_with(&format!("from CN={name}")),
            "{} {answer}\n{}",
            case.directives,
            server.error_log()
        );
    };
    for (port, case) in &fronts {
        presented(*port, "old", case);
    }
    change(&server.site, "new");
    for (port, case) in &fronts {
        presented(*port, case.then, case);
    }
}
