//! A client of HTTP/3 that is not ours: aioquic, by a script of `forebay/tests/http3`.

pub mod steps;

use crate::Server;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use steps::Step;

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
            .arg(format!(concat!(env!("CARGO_MANIFEST_DIR"), "/../forebay/tests/http3/{}"), name))
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

    /// Has a connection without HTTP do steps.
    pub fn act(&mut self, on: &str, steps: &[Step]) {
        let steps: Vec<Value> = steps.iter().map(Step::json).collect();
        self.call("raw", json!({"on": on, "steps": steps}));
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
