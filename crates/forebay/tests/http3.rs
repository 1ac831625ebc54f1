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

use forebay_testkit::{P256, Server, Site};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The client: a process that carries out commands.
pub struct Client {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Client {
    /// Starts it, with the Python that has aioquic, which `./test` installs. In CI it has to be there.
    pub fn start() -> Option<Client> {
        Client::start_script("client.py")
    }

    /// The same with another program of this directory.
    pub fn start_script(name: &str) -> Option<Client> {
        let Some(python) = std::env::var("FOREBAY_TEST_AIOQUIC").ok().filter(|p| !p.is_empty()) else {
            assert!(std::env::var_os("CI").is_none(), "FOREBAY_TEST_AIOQUIC names no Python with aioquic");
            println!("skipped: FOREBAY_TEST_AIOQUIC names no Python with aioquic");
            return None;
        };
        let mut child = Command::new(python)
            .arg(format!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/http3/{}"), name))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python");
        let (input, output) = (child.stdin.take(), child.stdout.take().expect("stdout"));
        Some(Client { child, input, output: BufReader::new(output) })
    }

    /// Has it carry out a command.
    pub fn call(&mut self, name: &str, mut command: Value) -> Value {
        command["do"] = json!(name);
        let input = self.input.as_mut().expect("stdin");
        writeln!(input, "{command}").expect("a command");
        let mut line = String::new();
        self.output.read_line(&mut line).expect("an answer");
        let told: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{name}: {line:?}: {e}"));
        assert!(told.get("failed").is_none(), "{name} {command}: {told}");
        told
    }

    /// Opens a connection.
    pub fn connect(&mut self, name: &str, server: &Server) -> Value {
        let told = self.connect_with(name, server, json!({}));
        assert_eq!(told["connected"], true, "{told}: {}", server.error_log());
        told
    }

    /// The same with options.
    pub fn connect_with(&mut self, name: &str, server: &Server, mut options: Value) -> Value {
        options["as"] = json!(name);
        if options.get("port").is_none() {
            options["port"] = json!(server.addr(0).port());
        }
        self.call("connect", options)
    }

    /// Sends a GET and waits for the answer.
    pub fn get(&mut self, on: &str, path: &str) -> Value {
        self.call("get", json!({"on": on, "path": path}))
    }

    /// Sends a request and waits for the answer.
    pub fn ask(&mut self, on: &str, mut request: Value) -> Value {
        request["on"] = json!(on);
        self.call("get", request)
    }

    /// Sends a request that gets a name.
    pub fn request(&mut self, on: &str, name: &str, mut request: Value) {
        request["on"] = json!(on);
        request["as"] = json!(name);
        self.call("request", request);
    }

    /// Waits for the end of an answer.
    pub fn answer(&mut self, of: &str) -> Value {
        self.call("answer", json!({"of": of}))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // It ends with its input.
        self.input.take();
        let _ = self.child.wait();
    }
}

/// Value of a field of an answer, empty if there is none.
pub fn field<'a>(told: &'a Value, name: &str) -> &'a str {
    let fields = told["fields"].as_array().map_or(&[][..], Vec::as_slice);
    let found = fields.iter().find(|f| f[0].as_str().is_some_and(|n| n.eq_ignore_ascii_case(name)));
    found.and_then(|f| f[1].as_str()).unwrap_or_default()
}

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
