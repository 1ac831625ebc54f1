"""The second table: servers of other implementations behind the server, which is their client.

A client asks the server over HTTP/1.1, and the server asks the other one over HTTP/3 through the relay.
"""

import http.client
import os
import re
import subprocess
import threading
import time

from quic.cases import LINKS, MOVES, SLOW_AES, reached
from quic.link import Link
from quic.relay import Relay
from quic.server import UNSUPPORTED
from quic.site import MANY, Program, free_ports, last_line, stop

FEW = [f"/m/{n}" for n in range(10)]
# Requests of `forebay bench`, at one time on each of some connections.
REQUESTS, CONNECTIONS = 400, 4


class Proxy(Program):
    """The server as a proxy, with another port for requests that have connections of their own."""

    def __init__(self, program, site, relay, commands):
        self.port, self.apart_port = free_ports(2)
        tls = "".join(f"    proxy_ssl_conf_command {command};\n" for command in commands)
        conf = f"""
worker_processes 1;
pid logs/nginx.pid;
error_log logs/error.log info;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_max_body_size 10m;
    client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
    upstream together {{ server {relay}; }}
    upstream apart {{ server {relay}; keepalive 1; keepalive_requests 1; }}
    proxy_http_version 3;
    proxy_http3_fallback off;
    proxy_ssl_protocols TLSv1.3;
    proxy_connect_timeout 60s;
    proxy_read_timeout 60s;
    proxy_send_timeout 60s;
    proxy_next_upstream off;
{tls}    server {{ listen 127.0.0.1:{self.port}; location / {{ proxy_pass https://together; }} }}
    server {{ listen 127.0.0.1:{self.apart_port}; location / {{ proxy_pass https://apart; }} }}
}}
"""
        super().__init__(program, site, self.port, conf)


class Run:
    """What a case works with: the site, the ways to the other server, and what the relay has seen."""

    def __init__(self, args, site, relay, proxy, seconds):
        self.args, self.site, self.relay, self.proxy, self.seconds = args, site, relay, proxy, seconds

    def ask(self, port, method, path, content=None):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=self.seconds)
        try:
            connection.request(method, path, content)
            response = connection.getresponse()
            body = response.read()
        finally:
            connection.close()
        if response.status != 200:
            raise OSError(f"status {response.status} for {path}")
        return body

    def get(self, path, port=None):
        if self.ask(port or self.proxy.port, "GET", path) != self.site.contents[path]:
            raise OSError(f"another content of {path}")

    def get_all(self, paths):
        """Asks for all at the same time."""
        failed = []

        def get(path):
            try:
                self.get(path)
            except (OSError, http.client.HTTPException) as e:
                failed.append(e)

        threads = [threading.Thread(target=get, args=[path]) for path in paths]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failed:
            raise failed[0]

    def get_apart(self, paths):
        """Asks for one after another, each on a connection of its own."""
        for path in paths:
            self.get(path, self.proxy.apart_port)
        if len(self.relay.connections) != len(paths):
            raise OSError(f"{len(self.relay.connections)} connections for {len(paths)} requests")

    def download(self):
        self.get("/2m")

    def upload(self):
        """Sends content, of which the other server returns the hash."""
        answer = self.ask(self.proxy.port, "POST", "/hash", self.site.contents["/2m"])
        if answer.decode() != self.site.hashes["/2m"]:
            raise OSError("the other server got another content")

    def multiplexing(self):
        self.get("/1k")
        self.get_all([f"/m/{n}" for n in range(min(MANY, 100))])
        if len(self.relay.connections) != 1:
            raise OSError("several connections")

    def bench(self):
        """Asks the other server without a proxy, by `forebay bench`."""
        command = [self.args.program, "bench", "--http3", "--insecure", "--plain", "-n", str(REQUESTS), "-c", str(CONNECTIONS)]
        done = subprocess.run([*command, f"https://127.0.0.1:{self.relay.port}/1k"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=self.seconds)
        if done.returncode or not re.search(rf"answered +{REQUESTS} ", done.stdout):
            raise OSError(last_line(done.stdout, f"exit status {done.returncode}"))
        if len(self.relay.connections) != CONNECTIONS:
            raise OSError(f"{len(self.relay.connections)} connections")

    def resumption(self):
        """Resumes a session, which shows as a handshake without the large certificate."""
        self.get_apart(["/1k", "/10k"])
        full, resumed = self.relay.connections.values()
        if resumed * 2 > full:
            raise OSError("the session was not resumed")


class Case:
    """What is done, what has to be seen on the way, and what the other server has to say."""

    def __init__(self, name, act, proof=lambda relay: True, why="", said="", commands=(), env=None, rebind=False, times=1, seconds=60):
        self.name, self.act, self.proof, self.why, self.said = name, act, proof, why, said
        self.commands, self.env, self.rebind, self.times, self.seconds = commands, env or {}, rebind, times, seconds
        self.link = LINKS.get(name, Link())


def cases():
    small = lambda run: run.get("/1k")
    few = lambda run: run.get_apart(FEW)
    moved = lambda relay: len(relay.answered) > 1
    chacha20 = ["Ciphersuites TLS_CHACHA20_POLY1305_SHA256"]
    return [
        Case("handshake", small),
        Case("transfer", Run.download),
        Case("upload", Run.upload),
        Case("multiplexing", Run.multiplexing),
        Case("bench", Run.bench),
        Case("retry", small, lambda r: ("server", "retry") in r.seen, "no Retry was sent"),
        Case("chacha20", small, commands=chacha20, env=SLOW_AES),
        Case("resumption", Run.resumption),
        Case("keyupdate", Run.download, said="key update"),
        Case("rebinding", Run.download, moved, "the relay kept its port", rebind=True, times=MOVES),
        Case("ecn", Run.download, lambda r: r.marked("client") and r.marked("server"), "one side gave up ECN"),
        Case("multiconnect", few),
        Case("amplificationlimit", small, lambda r: reached(r) > 2, "the limit was not reached"),
        Case("longrtt", small),
        Case("handshakeloss", few, seconds=300),
        Case("handshakecorruption", few, seconds=300),
        Case("transferloss", Run.download, seconds=90),
        Case("uploadloss", Run.upload, seconds=90),
        Case("transfercorruption", Run.download, seconds=90),
        Case("blackhole", Run.download, lambda r: r.holes == 2, "no black hole", seconds=90),
        Case("crosstraffic", Run.download, seconds=90),
    ]


def bound(port):
    """Tells whether a program has bound the port of UDP."""
    with open("/proc/net/udp") as f:
        return any(line.split()[1].endswith(f":{port:04X}") for line in f.readlines()[1:])


def start(command, case, site):
    """Starts the other server and returns it with its port. It has ended if it cannot do the case."""
    (port,) = free_ports(1)
    output = open(f"{site.dir}/peer", "w+")
    process = subprocess.Popen([*command, case.name, f"127.0.0.1:{port}", site.dir], stdout=output, stderr=output,
                               env={**os.environ, **case.env})
    end = time.monotonic() + 20
    while not bound(port) and process.poll() is None and time.monotonic() < end:
        time.sleep(0.02)
    return process, port


def said(site):
    with open(f"{site.dir}/peer", errors="replace") as f:
        return f.read()


def once(args, site, command, case, seed):
    """Returns "pass", "-" for a case that the other server cannot do, or the reason of the failure."""
    peer, port = start(command, case, site)
    if peer.poll() is not None:
        return "-" if peer.returncode == UNSUPPORTED else last_line(said(site), f"exit status {peer.returncode}")
    relay = Relay(("127.0.0.1", port), case.rebind, case.link, seed)
    relay.start()
    proxy = Proxy(args.program, site, f"127.0.0.1:{relay.port}", case.commands)
    try:
        case.act(Run(args, site, relay, proxy, case.seconds))
        if case.said not in said(site):
            return f"the other server did not say {case.said}"
        return "pass" if case.proof(relay) else case.why
    except (OSError, http.client.HTTPException, subprocess.TimeoutExpired) as e:
        return str(e) or type(e).__name__
    finally:
        proxy.end()
        relay.end()
        stop(peer)


def run(args, site, command, case):
    """Runs a case as often as it asks for, until it does not pass."""
    for turn in range(case.times):
        result = once(args, site, command, case, f"{args.seed} {case.name} {turn}")
        if result != "pass":
            break
    return result
