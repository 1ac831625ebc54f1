//! Backends of other protocols than HTTP/1.1 without encryption. They show a request as the others do.

use super::Table;
use forebay_testkit::{RSA, Server, Site, fastcgi, http};
use std::path::Path;

/// Names of the backends: FastCGI, HTTP/2, and TLS.
pub(super) const OTHER_BACKENDS: [&str; 3] = ["fast", "grpc", "encrypted"];

/// Starts a FastCGI server; returns its port. Parameters stand in its answer as fields do.
pub(super) fn fast() -> u16 {
    let answer = |asked: &mut fastcgi::Asked| {
        let lines: String = asked.params.iter().map(|(name, value)| format!("{name}: {value}\n")).collect();
        let (method, uri) = (asked.get("REQUEST_METHOD"), asked.get("REQUEST_URI"));
        let text = format!("Content-Type: text/plain\r\n\r\nfast {method} {uri}\n{lines}");
        asked.write(&fastcgi::answer(&text));
    };
    fastcgi::start(answer).port()
}

/// Starts the server for HTTP/2 (`grpc`, its port 0) and TLS (`encrypted`, its port 1). It passes all fields on to a backend at a port,
/// with `X-Protocol`, `X-Tls-Name` (of the handshake) and `X-Tls-Client` (the subject of the certificate) in addition.
pub(super) fn start(dir: &Path, port: u16) -> Server {
    let all = "http2 on; location / { proxy_set_header Host $http_host; proxy_set_header X-Protocol $server_protocol;\n\
               proxy_set_header X-Tls-Name $ssl_server_name; proxy_set_header X-Tls-Client $ssl_client_s_dn;";
    let site = Site::new(http!(
        "underscores_in_headers on; ignore_invalid_headers off;\n\
         server {{ listen 127.0.0.1:%PORT0%; {all} proxy_pass http://127.0.0.1:{port}; }} }}\n\
         server {{ listen 127.0.0.1:%PORT1% ssl; ssl_certificate backend.crt; ssl_certificate_key backend.key;\n\
         ssl_verify_client optional_no_ca; {all} proxy_pass http://127.0.0.1:{port}; }} }}"
    ));
    for name in ["backend.crt", "backend.key"] {
        std::fs::copy(dir.join(name), site.dir().join(name)).expect("copied");
    }
    Server::start_on(site)
}

impl Table {
    /// Makes the certificates of a table's site: `server`, which is for the hosts `*.fit.test`, `client` and `backend`.
    pub(super) fn certificates(site: &Site) {
        for (name, names) in
            [("server", "DNS:test,DNS:*.fit.test"), ("client", "DNS:client"), ("backend", "DNS:backend.test")]
        {
            let subject = if name == "server" { "test" } else { name };
            site.certificate(name, RSA, subject, names);
        }
    }
}
