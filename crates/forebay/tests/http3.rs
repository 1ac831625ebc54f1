//! HTTP/3, with aioquic as the client (`http3/client.py`).

mod alt_svc;
mod browser;
mod connections;
mod floods;
mod hq;
mod load;
mod parity;
mod priorities;
mod qpack;
mod requests;
mod slow_frames;
mod succession;
mod upstream;
mod upstream_alt_svc;
mod websocket;
mod wrong;
mod wrong_upstream;

pub use forebay_testkit::h3::{Client, field};
use forebay_testkit::{P256, Server, Site};
use serde_json::{Value, json};

/// A site with certificates for `localhost` and `other`, and the lines of the http block.
pub fn site(http: &str) -> Site {
    let site = Site::new(conf(http));
    for name in ["localhost", "other", "client"] {
        site.certificate(name, P256, name, "");
    }
    site.write("html/index.html", "hello");
    site.write("html/page", "0123456789".repeat(1000));
    site.write("html/large", "0123456789".repeat(200_000));
    site
}

/// A configuration with these lines in its http block.
pub fn conf(http: &str) -> String {
    format!(
        "worker_processes 1; error_log logs/error.log info; pid logs/nginx.pid; events {{ worker_connections 256; }}\n\
         http {{ access_log off; root %DIR%/html; client_body_temp_path %DIR%/body; proxy_temp_path %DIR%/proxy;\n\
         ssl_certificate localhost.crt; ssl_certificate_key localhost.key;\n{http} }}\n"
    )
}

/// Starts a server on `%PORT0%`, over QUIC and TCP, with these lines in its server block.
pub fn serve(lines: &str) -> Server {
    Server::start_on(site(&format!(
        "server {{ listen 127.0.0.1:%PORT0% quic; listen 127.0.0.1:%PORT0% ssl; {lines} }}"
    )))
}

/// Waits for the answer to a PING on the connection `a`, and returns what the client has seen.
pub fn ping(client: &mut Client) -> Value {
    client.call("ping", json!({"on": "a"}))
}

/// Waits for the end of the connection `a`.
pub fn closing(client: &mut Client) -> Value {
    client.call("wait", json!({"on": "a", "for": "closed"}))
}
