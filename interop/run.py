#!/usr/bin/env python3
"""Runs clients of other QUIC implementations against the server and prints a table. See README.md."""

import argparse
import hashlib
import os
import random
import re
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
V1, V2 = 0x00000001, 0x6B3343CF
UNSUPPORTED = 127
# Datagrams from the server after which the relay changes its port.
REBIND_AFTER = 300
# How often a client that moves is tried: the new port may be that of the same thread of the server.
MOVES = 4


class Relay(threading.Thread):
    """UDP relay between a client and the server, which records what is in the clear: versions, and types of packets with long headers.

    Each address of the client has a socket of its own towards the server. With `rebind` it is replaced once in the middle of the
    connection, as a router does that forgets a mapping.
    """

    def __init__(self, server, rebind=False):
        super().__init__(daemon=True)
        self.server, self.rebind = server, rebind
        self.selector = selectors.DefaultSelector()
        self.front = self.bound()
        self.port = self.front.getsockname()[1]
        self.to_server = {}
        # Pairs of direction and type, and ports of ours that the server has sent to.
        self.seen, self.answered = set(), set()
        self.from_server = 0
        self.stopped = False

    def bound(self):
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        s.bind(("127.0.0.1", 0))
        s.setblocking(False)
        return s

    def open(self, client):
        s = self.bound()
        self.to_server[client] = s
        self.selector.register(s, selectors.EVENT_READ, client)
        return s

    def run(self):
        self.selector.register(self.front, selectors.EVENT_READ, None)
        while not self.stopped:
            for key, _ in self.selector.select(0.1):
                try:
                    self.pass_on(key)
                except OSError:
                    # A full buffer or a port that is gone: the datagram is lost, as datagrams may be.
                    pass

    def pass_on(self, key):
        """Passes one datagram on: with more at a time, the paths of a client that moves would overtake each other."""
        data, peer = key.fileobj.recvfrom(65535)
        client = key.data
        if client is None:
            self.record("client", data)
            (self.to_server.get(peer) or self.open(peer)).sendto(data, self.server)
            return
        self.record("server", data)
        self.answered.add(key.fileobj.getsockname()[1])
        self.from_server += 1
        self.front.sendto(data, client)
        if self.rebind and self.from_server == REBIND_AFTER:
            self.selector.unregister(key.fileobj)
            key.fileobj.close()
            self.open(client)

    def record(self, who, data):
        for version, kind in long_headers(data):
            self.seen.add((who, kind))
            self.seen.add((who, version))

    def end(self):
        self.stopped = True
        self.join()
        for key in list(self.selector.get_map().values()):
            key.fileobj.close()


def integer(data, at):
    """Reads a variable-length integer (RFC 9000, section 16)."""
    length = 1 << (data[at] >> 6)
    return int.from_bytes(data[at : at + length], "big") & ((1 << (8 * length - 2)) - 1), at + length


def long_headers(data):
    """Yields version and type of the packets of a datagram that have long headers (RFC 9000, section 17.2; RFC 9369, section 3.2)."""
    at = 0
    try:
        while at < len(data) and data[at] & 0x80:
            first, version = data[at], int.from_bytes(data[at + 1 : at + 5], "big")
            if version == 0:
                yield version, "version negotiation"
                return
            number = (first >> 4) & 3
            if version == V2:
                number = (number - 1) % 4
            kind = ["initial", "0-rtt", "handshake", "retry"][number]
            yield version, kind
            if kind == "retry" or version not in (V1, V2):
                return
            at += 5
            for _ in range(2):
                at += 1 + data[at]
            if kind == "initial":
                length, at = integer(data, at)
                at += length
            length, at = integer(data, at)
            at += length
    except IndexError:
        return


class Server:
    """The server, with a site whose contents are random."""

    def __init__(self, program, workers, dir):
        self.workers, self.dir = workers, dir
        self.hashes = {}
        for sub in ["html/m", "logs"]:
            os.makedirs(f"{dir}/{sub}", mode=0o755)
        # The owner of the worker processes may be another user.
        os.chmod(dir, 0o755)
        made = random.Random(19)
        lengths = {"1k": 1024, "10k": 10240, "100k": 102400, "2m": 2_000_000, **{f"m/{n}": 32 for n in range(250)}}
        for name, length in lengths.items():
            content = made.randbytes(length)
            self.hashes[f"/{name}"] = hashlib.sha256(content).hexdigest()
            with open(f"{dir}/html/{name}", "wb") as f:
                f.write(content)
        certificate = ["-keyout", f"{dir}/key.pem", "-out", f"{dir}/cert.pem", "-days", "30", "-subj", "/CN=localhost"]
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", *certificate],
                       check=True, stderr=subprocess.DEVNULL)
        self.port, self.retry_port = free_ports(2)
        with open(f"{dir}/nginx.conf", "w") as f:
            f.write(self.conf())
        self.output = open(f"{dir}/output", "w+")
        command = [program, "-p", dir, "-c", f"{dir}/nginx.conf", "-g", "daemon off;"]
        self.process = subprocess.Popen(command, stdout=self.output, stderr=self.output)
        self.wait()

    def conf(self):
        return f"""
worker_processes {self.workers};
pid logs/nginx.pid;
error_log logs/error.log info;
events {{ worker_connections 256; }}
http {{
    log_format facts '$request_uri http3=$http3 ssl_session_reused=$ssl_session_reused ssl_early_data=$ssl_early_data $ssl_cipher';
    access_log logs/access.log facts;
    client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
    root html;
    ssl_certificate cert.pem;
    ssl_certificate_key key.pem;
    ssl_protocols TLSv1.3;
    ssl_early_data on;
    server {{ listen 127.0.0.1:{self.port} quic reuseport; listen 127.0.0.1:{self.port} ssl; }}
    server {{ listen 127.0.0.1:{self.retry_port} quic reuseport; listen 127.0.0.1:{self.retry_port} ssl; quic_retry on; }}
}}
"""

    def wait(self):
        end = time.monotonic() + 20
        while True:
            try:
                return socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError as e:
                if self.process.poll() is not None or time.monotonic() > end:
                    self.output.seek(0)
                    sys.exit(f"the server does not start: {e}\n{self.output.read()}")
                time.sleep(0.05)

    def logged(self, since, count):
        """Lines of the access log after the first `since`, as soon as there are so many."""
        end = time.monotonic() + 10
        while True:
            with open(f"{self.dir}/logs/access.log") as f:
                lines = f.read().splitlines()[since:]
            if len(lines) >= count or time.monotonic() > end:
                return lines
            time.sleep(0.02)

    def end(self):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def free_ports(count):
    """Ports that are free for TCP and UDP."""
    ports = []
    while len(ports) < count:
        with socket.socket() as t, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as u:
            t.bind(("127.0.0.1", 0))
            port = t.getsockname()[1]
            try:
                u.bind(("127.0.0.1", port))
            except OSError:
                continue
            if port not in ports:
                ports.append(port)
    return ports


class Case:
    """What the client is told to do, and what has to be seen on the way and in the server's log."""

    def __init__(self, name, files, proof, why, client=None, retry=False, rebind=False, env=None, times=1):
        self.name, self.files, self.proof, self.why = name, files, proof, why
        self.client, self.retry, self.rebind, self.env, self.times = client or name, retry, rebind, env or {}, times


def cases():
    yes = lambda relay, lines: True
    moved = lambda relay, lines: len(relay.answered) > 1
    many = [f"/m/{n}" for n in range(250)]
    # These make AES look slow to Go and to BoringSSL, which then put ChaCha20 first.
    slow = {"GODEBUG": "cpu.aes=off,cpu.pclmulqdq=off", "OPENSSL_ia32cap": "~0x200000200000000"}
    return [
        Case("handshake", ["/1k"], yes, ""),
        Case("transfer", ["/2m"], yes, ""),
        Case("multiplexing", many, lambda r, l: len(r.to_server) == 1, "several connections"),
        Case("http3", ["/1k", "/10k", "/100k"], lambda r, l: len(r.to_server) == 1 and "http3=h3" in l[0], "several connections"),
        Case("retry", ["/1k"], lambda r, l: ("server", "retry") in r.seen, "no Retry was sent", retry=True),
        Case("versionnegotiation", ["/1k"], lambda r, l: ("server", 0) in r.seen, "no version negotiation"),
        Case("v2", ["/1k"], lambda r, l: ("server", V2) in r.seen and ("server", 0) not in r.seen, "not version 2"),
        Case("v2upgrade", ["/1k"], lambda r, l: ("server", V2) in r.seen, "not version 2"),
        Case("chacha20", ["/10k"], lambda r, l: "CHACHA20" in l[0], "another cipher", env=slow),
        Case("resumption", ["/1k", "/10k"], lambda r, l: "ssl_session_reused=r" in l[1], "the server resumed nothing"),
        Case("zerortt", ["/1k", "/10k"], lambda r, l: ("client", "0-rtt") in r.seen and "ssl_early_data=1" in l[1], "no early data"),
        Case("keyupdate", ["/2m"], yes, ""),
        Case("rebinding", ["/2m"], moved, "the server stayed at the old port", client="transfer", rebind=True, times=MOVES),
        Case("migration", ["/2m"], moved, "the server stayed at the old port", times=MOVES),
    ]


def run(server, command, case):
    """Returns "pass", "-" for a case that the client cannot do, or the reason of the failure."""
    relay = Relay(("127.0.0.1", server.retry_port if case.retry else server.port), case.rebind)
    relay.start()
    with open(f"{server.dir}/logs/access.log") as f:
        since = len(f.read().splitlines())
    try:
        files = [f"{path}={server.hashes[path]}" for path in case.files]
        done = subprocess.run([*command, case.client, f"127.0.0.1:{relay.port}", *files], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=60, env={**os.environ, **case.env})
    except subprocess.TimeoutExpired:
        return "no end in time"
    finally:
        relay.end()
    if done.returncode == UNSUPPORTED:
        return "-"
    if done.returncode:
        lines = done.stdout.strip().splitlines()
        return lines[-1] if lines else f"exit status {done.returncode}"
    lines = server.logged(since, len(case.files))
    if len(lines) < len(case.files):
        return f"{len(lines)} requests logged"
    return "pass" if case.proof(relay, lines) else case.why


def run_times(server, command, case):
    """Runs a case as often as it asks for, until it does not pass."""
    for _ in range(case.times):
        result = run(server, command, case)
        if result != "pass":
            break
    return result


def clients(args):
    """Commands of the clients that are there; `None` for those that are not."""
    target, found = args.target, {}
    if re.search(args.clients, "aioquic"):
        there = subprocess.run([args.python, "-c", "import aioquic"], stderr=subprocess.DEVNULL).returncode == 0
        found["aioquic"] = [args.python, f"{HERE}/aioquic/client.py"] if there else None
    for name, builder, command in [
        ("quic-go", "go", ["go", "build", "-o", f"{target}/interop-quic-go", "."]),
        ("quiche", "cargo", ["cargo", "build", "--release", "--locked", "--target-dir", f"{target}/quiche"]),
    ]:
        if not re.search(args.clients, name):
            continue
        found[name] = [f"{target}/interop-quic-go" if name == "quic-go" else f"{target}/quiche/release/interop-quiche"]
        if not shutil.which(builder) or subprocess.run(command, cwd=f"{HERE}/{name}").returncode:
            found[name] = None
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", help="the server: forebay, or nginx to try the clients")
    parser.add_argument("--python", default=os.environ.get("FOREBAY_TEST_AIOQUIC") or "python3", help="a Python that has aioquic")
    parser.add_argument("--target", default=f"{HERE}/../target/interop", help="where clients are built")
    parser.add_argument("--workers", type=int, default=2, help="worker_processes")
    parser.add_argument("--cases", default=".", help="regular expression")
    parser.add_argument("--clients", default=".", help="regular expression")
    parser.add_argument("--keep", help="directory for the server's files, kept for a look")
    args = parser.parse_args()
    args.target = os.path.abspath(args.target)
    os.makedirs(args.target, exist_ok=True)
    found = clients(args)
    for name in [name for name, command in found.items() if command is None]:
        print(f"skipped: {name}, which could not be built or found")
    found = {name: command for name, command in found.items() if command}
    with tempfile.TemporaryDirectory() as dir:
        dir = args.keep or dir
        server = Server(os.path.abspath(args.program), args.workers, dir)
        notes = []
        try:
            print("| " + " | ".join(["case", *found]) + " |")
            print("| --- |" + " --- |" * len(found))
            for case in cases():
                if not re.search(args.cases, case.name):
                    continue
                row = []
                for name, command in found.items():
                    result = run_times(server, command, case)
                    if result not in ("pass", "-"):
                        notes.append(f"{case.name}, {name}: {result}")
                        result = "**fails**"
                    row.append(result)
                print(f"| {case.name} | " + " | ".join(row) + " |", flush=True)
        finally:
            server.end()
        print()
        for note in notes:
            print(f"- {note}")
    sys.exit(1 if notes else 0)


if __name__ == "__main__":
    main()
