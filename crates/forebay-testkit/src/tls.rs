//! Clients over TLS: `openssl s_client`.

use crate::Server;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

fn command(addr: SocketAddr, first: &str, args: &str) -> Command {
    let mut command = Command::new("openssl");
    command.args(["s_client", first, "-connect", &addr.to_string()]).args(args.split_whitespace());
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// Sends a request and reads to the end. Returns what is printed.
fn ask(command: &mut Command, request: &[u8]) -> String {
    let mut child = command.stderr(Stdio::piped()).spawn().expect("openssl");
    // It may have ended already, refused.
    let _ = child.stdin.take().expect("stdin").write_all(request);
    let done = child.wait_with_output().expect("end");
    [done.stdout, done.stderr].iter().map(|b| String::from_utf8_lossy(b).into_owned()).collect()
}

/// As [`s_client`], to any address. The answer is all that is printed first.
pub fn s_client_at(addr: SocketAddr, args: &str, request: &str) -> String {
    ask(&mut command(addr, "-quiet", args), request.as_bytes())
}

/// Sends a request by `openssl s_client`. Returns what it prints, the answer included.
pub fn s_client(server: &Server, port: usize, args: &str, request: &str) -> String {
    ask(command(server.addr(port), "-ign_eof", args).current_dir(server.dir()), request.as_bytes())
}

/// A connection on which requests are sent one by one, by `openssl s_client`.
pub struct Kept {
    child: Child,
    input: ChildStdin,
    output: ChildStdout,
}

impl Kept {
    /// Opens it to a port of a server.
    pub fn open(server: &Server, port: usize, args: &str) -> Kept {
        let mut command = command(server.addr(port), "-quiet", args);
        let mut child = command.current_dir(server.dir()).stderr(Stdio::null()).spawn().expect("openssl");
        let (input, output) = (child.stdin.take().expect("stdin"), child.stdout.take().expect("stdout"));
        Kept { child, input, output }
    }

    /// Sends a request. Returns the answer, up to the mark at the end of a body (`;end`) or to the end of the connection.
    pub fn get(&mut self, host: &str) -> String {
        let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
        // It may be closed already.
        let _ = self.input.write_all(request.as_bytes());
        let (mut seen, mut buf) = (String::new(), [0; 4096]);
        while !seen.contains("</html>") && !seen.contains(";end") {
            let n = self.output.read(&mut buf).expect("output");
            if n == 0 {
                break;
            }
            seen.push_str(&String::from_utf8_lossy(&buf[..n]));
        }
        seen
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
