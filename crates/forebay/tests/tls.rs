//! Encrypted connections: OpenSSL's client and curl on one side.

mod certificates;
mod demands;
mod records;
mod refused_heads;
mod sessions;

use forebay_testkit::{P256, RSA, Server, Site, http, memory, raw, s_client, wait_until};
use std::process::Command;

forebay_testkit::cases!("cases/tls.cases":
    the_suite_is_chosen_by_what_it_costs, versions_ciphers_and_both_kinds_of_keys, the_name_is_shown_as_the_client_wrote_it,
    names_choose_certificates_and_refused_names_get_an_alert, mistakes_are_told_in_nginx_words,
    curves_are_known_by_openssls_names, the_signature_algorithms_of_both_sides_are_known);

/// A site with certificates of both kinds, all signed by themselves.
pub fn site(servers: &str) -> Site {
    let site = Site::new(http!(
        "root %DIR%/html; client_body_temp_path %DIR%/body;\n\
         ssl_certificate rsa.crt; ssl_certificate_key rsa.key; {servers}"
    ));
    for (name, key) in [("rsa", RSA), ("ec", P256), ("client", RSA)] {
        site.certificate(name, key, name, "");
    }
    site.write("html/index.html", "hello");
    site
}

pub const GET: &str = "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";

#[test]
fn files_of_every_size_arrive_whole_and_uploads_too() {
    let site = site(
        "server { listen 127.0.0.1:%PORT0% ssl; client_max_body_size 64m; location /up/ { \
         proxy_pass https://127.0.0.1:%PORT1%/; } }\n\
         server { listen 127.0.0.1:%PORT1% ssl; client_max_body_size 64m; ssl_buffer_size 4k; \
         location /len { proxy_pass http://127.0.0.1:%PORT2%; } }\n\
         server { listen 127.0.0.1:%PORT2%; client_max_body_size 64m; return 200 $content_length; }",
    );
    for size in [1usize, 5_000, 70_000, 1_000_000, 5_000_000] {
        let text: String = (0..size).map(|i| char::from(b'a' + (i * 7 % 26) as u8)).collect();
        site.write(format!("html/{size}"), &text);
    }
    let server = Server::start_on(site);
    let curl = |args: &[&str]| {
        let done = Command::new("curl").args(["-sk", "--max-time", "30"]).args(args).output().expect("curl");
        assert!(done.status.success(), "{args:?}: {:?}\n{}", done.status, server.error_log());
        done.stdout
    };
    for size in ["1", "5000", "70000", "1000000", "5000000"] {
        let want = server.read(&format!("html/{size}"));
        for (port, path) in [(0, ""), (1, ""), (0, "/up")] {
            for version in ["--tls-max=1.2", "--tlsv1.3"] {
                let version: Vec<&str> = version.split('=').collect();
                let url = format!("https://{}{path}/{size}", server.addr(port));
                let got = curl(&[version.as_slice(), &[url.as_str()]].concat());
                assert!(got == want.as_bytes(), "{url}: {} bytes", got.len());
            }
        }
    }
    let file = server.dir().join("html/5000000");
    let url = format!("https://{}/up/len", server.addr(0));
    let got = curl(&["-X", "POST", "--data-binary", &format!("@{}", file.display()), &url]);
    assert_eq!(String::from_utf8_lossy(&got), "5000000");
}

/// Files of middle size are kept in memory for TLS when they are asked for again: they stay right.
#[test]
fn a_file_that_is_kept_for_tls_is_the_one_on_disk() {
    let server = Server::start_on(site("server { listen 127.0.0.1:%PORT0% ssl; http2 on; }"));
    let url = format!("https://{}/m", server.addr(0));
    let text = |seed: usize| -> String {
        (0..600_000).map(|i: usize| char::from(b'a' + (i * seed % 26) as u8)).collect()
    };
    let get = |args: &[&str]| {
        let done = Command::new("curl").args(["-sk", "--max-time", "30"]).args(args).arg(&url).output();
        let done = done.expect("curl");
        assert!(done.status.success(), "{args:?}: {:?}\n{}", done.status, server.error_log());
        done.stdout
    };
    for seed in [3, 7] {
        let text = text(seed);
        server.write("html/m", &text);
        for _ in 0..3 {
            for version in ["--http1.1", "--http2"] {
                assert!(get(&[version]) == text.as_bytes(), "{seed} {version}");
                let part = get(&[version, "-r", "200000-499999"]);
                assert!(part == text.as_bytes()[200_000..500_000], "{seed} {version}");
                assert!(get(&[version, "--limit-rate", "20M"]) == text.as_bytes(), "{seed} {version}");
            }
        }
    }
}

#[test]
fn a_certificate_of_the_name_is_read_once_it_is_there() {
    let server = Server::start_on(site(
        "server { listen 127.0.0.1:%PORT0% ssl; server_name v.test; ssl_certificate $ssl_server_name.crt; \
         ssl_certificate_key ec.key; return 200 v; }",
    ));
    let get = || s_client(&server, 0, "-servername v.test", &GET.replace("Host: h", "Host: v.test"));
    assert!(!get().contains("200 OK"), "there is no such file");
    // The worker reads it as the user that it is.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(server.path("ec.key"), open).expect("mode");
    std::fs::copy(server.path("ec.crt"), server.path("v.test.crt")).expect("copy");
    assert!(get().contains("subject=CN = ec"));
    assert!(server.error_log().contains("cannot load certificate"));
}

/// What is no file with an end is refused at once, whatever it was to be.
#[test]
fn files_that_do_not_end_are_refused() {
    let site = site("server { listen 127.0.0.1:%PORT0%; }");
    nix::unistd::mkfifo(&site.dir().join("pipe"), nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    let sparse = std::fs::File::create(site.dir().join("sparse")).expect("made");
    sparse.set_len(1 << 40).expect("length");
    let main = |http: &str| format!("pid logs/nginx.pid; error_log stderr; events {{}}\nhttp {{ {http} }}\n");
    let tls = |lines: &str| main(&format!("server {{ listen 127.0.0.1:%PORT0% ssl; {lines} }}"));
    let certificate =
        "server { listen 127.0.0.1:%PORT0% ssl; ssl_certificate FILE; ssl_certificate_key rsa.key; }";
    let all = [
        "include FILE;",
        "types { include FILE; }",
        "geo $g { include FILE; } map $uri $m { include FILE; }",
        certificate,
        &certificate.replace("FILE", "rsa.crt").replace("rsa.key", "FILE"),
        "ssl_client_certificate FILE;",
        "ssl_crl FILE;",
        "ssl_session_ticket_key FILE;",
        "ssl_password_file FILE;",
        "ssl_dhparam FILE;",
        "ssl_trusted_certificate FILE;",
        "ssl_stapling_file FILE;",
        "quic_host_key FILE;",
    ];
    for text in all {
        for (file, reason) in [
            ("/dev/zero", "not a regular file"),
            ("pipe", "not a regular file"),
            ("sparse", "File too large"),
            (".", "Is a directory"),
        ] {
            site.write("nginx.conf", main(&text.replace("FILE", file)));
            let told = site.run(&["-t"]);
            let said = String::from_utf8_lossy(&told.stderr).into_owned();
            assert!(!told.status.success() && said.contains(reason), "{text} {file}: {said}");
        }
    }
    // Each file includes the next one twice.
    for n in 0..60 {
        site.write(format!("d{n}"), format!("include d{0}; include d{0};\n", n + 1));
    }
    site.write("d60", "\n");
    site.write("nginx.conf", main("include d0;"));
    let told = site.run(&["-t"]);
    let said = String::from_utf8_lossy(&told.stderr).into_owned();
    assert!(!told.status.success() && said.contains("too many files are included"), "{said}");
    site.write(
        "nginx.conf",
        tls("ssl_certificate rsa.crt; ssl_certificate_key rsa.key; ssl_password_file /dev/null;"),
    );
    assert!(site.run(&["-t"]).status.success(), "an empty file");
}

/// Configurations that were replaced are freed: memory does not grow with reloads.
#[test]
fn reloads_of_many_servers_leave_nothing_behind() {
    const SERVERS: usize = 350;
    let conf = |version: usize| {
        let servers: String = (0..SERVERS)
            .map(|i| {
                format!(
                    "server {{ listen 127.0.0.1:%PORT0% ssl; server_name s{i}.test; ssl_certificate ec.crt; \
                     ssl_certificate_key ec.key; location / {{ return 200 v{version}; }} location /{i} {{ expires {i}s; }} }}\n"
                )
            })
            .collect();
        format!("server {{ listen 127.0.0.1:%PORT1%; return 200 v{version}; }}\n{servers}")
    };
    let site = site(&conf(0));
    let text = site.read("nginx.conf");
    let server = Server::start_on(site);
    let worker = server.worker();
    let mut before = [0, 0];
    for version in 1..=9 {
        server.reload_with(text.replace("v0;", &format!("v{version};")));
        let request = b"GET / HTTP/1.0\r\n\r\n";
        let serves = || raw(server.addr(1), request).ends_with(format!("v{version}").as_bytes());
        wait_until("the new configuration", serves);
        if version == 3 {
            before = [server.pid(), worker].map(memory);
        }
    }
    let now = [server.pid(), worker].map(memory);
    for (before, now) in before.into_iter().zip(now) {
        // Each configuration takes about 4 MB.
        assert!(now < before + 8_000, "{before} KiB, then {now} KiB");
    }
}

/// sslyze, which `./test` installs. In CI it has to be there.
fn sslyze() -> Option<String> {
    let found = std::env::var("FOREBAY_TEST_SSLYZE").ok().filter(|p| !p.is_empty());
    if found.is_none() {
        assert!(std::env::var_os("CI").is_none(), "FOREBAY_TEST_SSLYZE names no sslyze");
        println!("skipped: FOREBAY_TEST_SSLYZE names no sslyze");
    }
    found
}

#[test]
fn a_scanner_finds_no_weakness_of_the_default_settings() {
    let Some(sslyze) = sslyze() else { return };
    let server = Server::start_on(site(
        "ssl_certificate ec.crt; ssl_certificate_key ec.key;\n\
         server { listen 127.0.0.1:%PORT0% ssl; return 200 ok; }",
    ));
    let json = server.dir().join("scan.json");
    let told = Command::new(sslyze)
        .args(["--mozilla_config=intermediate", &format!("--json_out={}", json.display())])
        .arg(server.addr(0).to_string())
        .output()
        .expect("sslyze");
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    // Keys of certificates stand there as numbers of hundreds of digits.
    let mut digits = 0;
    let mut text = server.read("scan.json");
    text.retain(|c| {
        digits = if c.is_ascii_digit() { digits + 1 } else { 0 };
        digits < 16
    });
    let all: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let scan = &all["server_scan_results"][0]["scan_result"];
    let result = |what: &str| {
        assert_eq!(scan[what]["status"], "COMPLETED", "{what}: {told}");
        &scan[what]["result"]
    };
    let suites = |version: &str| -> Vec<String> {
        let all = result(&format!("{version}_cipher_suites"))["accepted_cipher_suites"].as_array();
        let name = |s: &serde_json::Value| s["cipher_suite"]["name"].as_str().expect("a name").to_owned();
        all.expect("a list").iter().map(name).collect()
    };
    for old in ["ssl_2_0", "ssl_3_0", "tls_1_0", "tls_1_1"] {
        assert!(suites(old).is_empty(), "{old}");
    }
    let (v12, v13) = (suites("tls_1_2"), suites("tls_1_3"));
    assert!(v12.len() >= 6 && v13.len() == 3, "{v12:?} {v13:?}");
    for name in &v12 {
        assert!(name.starts_with("TLS_ECDHE_"), "{name}: no forward secrecy");
        assert!(name.contains("_GCM_") || name.contains("_POLY1305_"), "{name}");
    }
    for (what, field, wanted) in [
        ("tls_compression", "supports_compression", false),
        ("openssl_ccs_injection", "is_vulnerable_to_ccs_injection", false),
        ("heartbleed", "is_vulnerable_to_heartbleed", false),
        ("tls_fallback_scsv", "supports_fallback_scsv", true),
        ("session_renegotiation", "is_vulnerable_to_client_renegotiation_dos", false),
        ("session_renegotiation", "supports_secure_renegotiation", true),
        ("tls_extended_master_secret", "supports_ems_extension", true),
    ] {
        assert_eq!(result(what)[field], wanted, "{what}: {}", result(what));
    }
    let robot = result("robot")["robot_result"].to_string();
    assert!(robot.contains("NOT_VULNERABLE"), "{robot}");
    // Mozilla's recommendation holds but for the certificate, which the test has signed itself.
    let (_, verdict) = told.split_once("COMPLIANCE AGAINST").expect("a verdict");
    let faults: Vec<&str> = verdict.lines().filter_map(|l| l.trim().strip_prefix("* ")).collect();
    assert!(faults.iter().all(|f| f.starts_with("certificate") || f.starts_with("rsa_key")), "{faults:?}");
}
