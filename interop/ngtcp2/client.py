"""Client of the interoperability matrix on ngtcp2: calls its example program. See README.md for what it is called with."""

import hashlib
import os
import subprocess
import sys
import tempfile

UNKNOWN = "0x1a2a3a4a"
PROGRAM = "gtlsclient"
CHACHA20 = "NORMAL:-VERS-ALL:+VERS-TLS1.3:-CIPHER-ALL:+CHACHA20-POLY1305"
# Windows of the case "transfer".
WINDOWS = ["--max-data=128K", "--max-stream-data-bidi-local=64K", "--max-window=128K", "--max-stream-window=64K"]
OPTIONS = {
    "handshake": [],
    "retry": [],
    "multiplexing": [],
    "http3": [],
    "ecn": [],
    "multiconnect": [],
    "transfer": WINDOWS,
    "versionnegotiation": ["-v", UNKNOWN, "--preferred-versions=v1"],
    "chacha20": [f"--ciphers={CHACHA20}"],
    "keyupdate": ["--key-update=1ms", *WINDOWS],
    "migration": ["--change-local-addr=5ms", *WINDOWS],
    "resumption": ["--disable-early-data"],
    "zerortt": [],
}


class Failed(Exception):
    pass


class Client:
    def __init__(self, case, address, dir):
        self.options, self.dir = OPTIONS[case], dir
        host, self.port = address.rsplit(":", 1)
        self.host = host.strip("[]")

    def fetch(self, files, more=()):
        """Downloads all at the same time on a connection, and returns what the program printed."""
        command = [PROGRAM, "--exit-on-all-streams-close", "--no-quic-dump", "--no-http-dump", "--handshake-timeout=60s"]
        command.append(f"--download={self.dir}")
        command += [*self.options, *more, "--sni=localhost", self.host, self.port, *(f"https://localhost{path}" for path, _ in files)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        for path, wanted in files:
            name = f"{self.dir}/{os.path.basename(path)}"
            try:
                with open(name, "rb") as f:
                    content = f.read()
                os.remove(name)
            except OSError:
                raise Failed(f"no {path}, exit status {done.returncode}")
            if hashlib.sha256(content).hexdigest() != wanted:
                raise Failed(f"{len(content)} bytes of {path} with another content")
        return done.stdout

    def again(self, files, early):
        """Makes a connection and another that resumes its session."""
        kept = [f"--session-file={self.dir}/session", f"--tp-file={self.dir}/parameters"]
        self.fetch(files[:1], kept)
        printed = self.fetch(files[1:], kept)
        if early and "Early data was rejected" in printed:
            raise Failed("the server took no early data")


def run(case, address, files, dir):
    client = Client(case, address, dir)
    if case in ("resumption", "zerortt"):
        client.again(files, case == "zerortt")
    elif case == "multiconnect":
        for file in files:
            client.fetch([file])
    else:
        printed = client.fetch(files)
        if case == "keyupdate" and not "k=1" in printed:
            raise Failed("no update")


def main():
    case, address, *files = sys.argv[1:]
    # Version 0.12 of ngtcp2 knows a draft of QUIC version 2 only.
    if case not in OPTIONS:
        sys.exit(127)
    with tempfile.TemporaryDirectory() as dir:
        try:
            run(case, address, [tuple(file.rsplit("=", 1)) for file in files], dir)
        except Failed as e:
            print(e)
            sys.exit(1)


main()
