#!/usr/bin/env python3
"""Measures what requests over HTTP/3 cost servers: CPU time for each unit, in interleaved rounds. See README.md."""

import argparse
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

# Name, path, streams on a connection, connections, further options of `forebay bench`.
ROWS = [
    ("1k-10", "/1k", 10, 20, []),
    ("1k-1", "/1k", 1, 50, []),
    ("1k-1-few", "/1k", 1, 4, []),
    ("1k-1-many", "/1k", 1, 200, []),
    ("10k", "/10k", 10, 10, []),
    ("1m", "/1m", 2, 4, []),
    ("new", "/1k", 1, 16, ["--no-keepalive"]),
    ("resumed", "/1k", 1, 16, ["--no-keepalive", "--resume"]),
]
SIZES = {"1k": 1024, "10k": 10 * 1024, "1m": 1024 * 1024}


def ns(*command):
    subprocess.run(["ip", *command], check=True)


def tasks_cpu(pids):
    """CPU time of processes in seconds, all threads, from schedstat."""
    total = 0
    for pid in pids:
        for task in os.listdir(f"/proc/{pid}/task"):
            try:
                with open(f"/proc/{pid}/task/{task}/schedstat") as f:
                    total += int(f.read().split()[0])
            except OSError:
                pass
    return total / 1e9


def family(pid):
    """The process and its descendants."""
    out, todo = [], [pid]
    while todo:
        p = todo.pop()
        out.append(p)
        try:
            for task in os.listdir(f"/proc/{p}/task"):
                with open(f"/proc/{p}/task/{task}/children") as f:
                    todo += [int(c) for c in f.read().split()]
        except OSError:
            pass
    return out


def resident(pids):
    """Proportional memory of processes in bytes."""
    total = 0
    for pid in pids:
        with open(f"/proc/{pid}/smaps_rollup") as f:
            total += int(re.search(r"^Pss: +(\d+)", f.read(), re.M).group(1)) * 1024
    return total


class Server:
    """One server under test, started in the namespace, pinned to the first CPU."""

    def __init__(self, name, binary, port, root):
        self.name, self.binary, self.port, self.root = name, binary, port, root
        self.dir = os.path.join(root, name)
        os.makedirs(self.dir, exist_ok=True)

    def port_of(self, path):
        """The port that answers for a path: a floor has one for each size."""
        return self.port + 100 * list(SIZES).index(path[1:]) if self.name.startswith("floor") else self.port

    def command(self):
        cert, key, www = (os.path.join(self.root, x) for x in ("cert.pem", "key.pem", "www"))
        kind = re.split(r"[-=]", self.name)[0]
        conf = os.path.join(self.dir, "conf")
        if kind in ("nginx", "forebay"):
            gso = "" if self.name.startswith("nginx-openssl") else "quic_gso on;"
            # Else Forebay takes the cheapest suite of the client, and nginx the first.
            order = "ssl_prefer_server_ciphers off;" if self.name.startswith("forebay-order") else ""
            text = f"""
worker_processes 1; daemon off; pid {self.dir}/pid; error_log {self.dir}/error.log warn; worker_rlimit_nofile 65535;
events {{ worker_connections 20000; }}
http {{ access_log off; keepalive_requests 1000000000; keepalive_timeout 300s; sendfile on; open_file_cache max=100;
  server {{ listen 127.0.0.1:{self.port} quic {'reuseport' if kind == 'nginx' else ''}; listen 127.0.0.1:{self.port} ssl; http2 on; http3 on; {gso} {order}
    ssl_session_tickets on; ssl_session_timeout 1h; server_name localhost; ssl_certificate {cert}; ssl_certificate_key {key}; root {www}; }} }}
"""
            argv = [self.binary, "-p", self.dir, "-c", conf, "-e", f"{self.dir}/error.log"]
        elif kind == "floor":
            one = "{} 127.0.0.1:{} {} {} {} & "
            all_of_them = (one.format(self.binary, self.port_of(f"/{n}"), cert, key, size) for n, size in SIZES.items())
            return ["sh", "-c", "".join(all_of_them) + "wait"]
        elif kind == "h2o":
            text = f"""
num-threads: 1
max-connections: 20000
http3-idle-timeout: 300
listen: &ssl {{ port: {self.port}, host: 127.0.0.1, ssl: {{ certificate-file: {cert}, key-file: {key}, minimum-version: TLSv1.3 }} }}
listen: {{ <<: *ssl, type: quic }}
hosts:
  "localhost:{self.port}": {{ paths: {{ "/": {{ file.dir: {www} }} }} }}
  "*": {{ paths: {{ "/": {{ file.dir: {www} }} }} }}
"""
            argv = [self.binary, "-c", conf]
        else:
            text = f"""
{{
 admin off
 auto_https disable_redirects
 log {{
  level ERROR
 }}
}}
https://localhost:{self.port} {{
 tls {cert} {key}
 root * {www}
 file_server
}}
"""
            argv = [self.binary, "run", "--adapter", "caddyfile", "--config", conf]
        with open(conf, "w") as f:
            f.write(text)
        return argv

    def start(self, namespace):
        env = dict(os.environ, GOMAXPROCS="1", HOME=self.dir)
        with open(os.path.join(self.dir, "out"), "wb") as out:
            self.process = subprocess.Popen(
                ["ip", "netns", "exec", namespace, "taskset", "-c", "0", *self.command()],
                stdout=out, stderr=out, env=env, start_new_session=True)

    def pids(self):
        return family(self.process.pid)

    def stop(self):
        try:
            os.killpg(self.process.pid, signal.SIGTERM)
        except ProcessLookupError:
            pass
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def bench(client, namespace, port, path, extra):
    """Runs the load; returns the report of `forebay bench --json`."""
    argv = ["ip", "netns", "exec", namespace, "taskset", "-c", "1", client, "bench", "--insecure", "-q", "--json", "-", "-t", "1",
            *extra, f"https://localhost:{port}{path}"]
    done = subprocess.run(argv, capture_output=True, text=True)
    if not done.stdout.strip():
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr[-500:]}")
    return json.loads(done.stdout)


def h2load(program, namespace, port, path, streams, connections, seconds):
    """Runs the load of h2load instead, over HTTP/3; returns its numbers of complete and of failed requests."""
    argv = ["ip", "netns", "exec", namespace, "taskset", "-c", "1", program, "--alpn-list=h3", "-t", "1", "-c", str(connections),
            "-m", str(streams), "-D", str(max(round(seconds), 1)), f"https://127.0.0.1:{port}{path}"]
    done = subprocess.run(argv, capture_output=True, text=True)
    found = re.search(r"(\d+) succeeded, (\d+) failed", done.stdout)
    if not found:
        raise RuntimeError(f"{' '.join(argv)}: {done.stdout[-300:]}{done.stderr[-300:]}")
    return int(found[1]), int(found[2])


def wait_for(server, client, namespace):
    """Waits until a server answers."""
    until = time.monotonic() + 20
    while True:
        try:
            if bench(client, namespace, server.port_of("/1k"), "/1k", ["--http3", "-n", "1", "-c", "1"])["requests"]["complete"]:
                return
        except (RuntimeError, KeyError, ValueError):
            pass
        if time.monotonic() > until:
            with open(os.path.join(server.dir, "out")) as f:
                sys.exit(f"{server.name} does not answer: {f.read()[-800:]}")
        time.sleep(0.2)


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--servers", required=True, help="NAME=PROGRAM,...; NAME begins with nginx, h2o, caddy, forebay or floor; the first is the peer")
    p.add_argument("--client", required=True, help="forebay, for the load")
    p.add_argument("--h2load", metavar="PROGRAM", help="h2load with HTTP/3, for the load of rows whose connections stay")
    p.add_argument("--rates", action="store_true", help="print requests a second, too")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--seconds", type=float, default=1)
    p.add_argument("--rows", default=".")
    p.add_argument("--idle", type=int, default=0, help="connections for the memory of idle ones")
    p.add_argument("--out", help="file for all figures, JSON")
    o = p.parse_args()
    namespace = f"h3m{os.getpid()}"
    root = tempfile.mkdtemp(prefix="h3m")
    os.chmod(root, 0o755)
    www = os.path.join(root, "www")
    os.makedirs(www)
    for name, size in SIZES.items():
        with open(os.path.join(www, name), "wb") as f:
            f.write(os.urandom(size))
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30",
                    "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", f"{root}/key.pem",
                    "-out", f"{root}/cert.pem"], check=True, capture_output=True)
    os.chmod(f"{root}/key.pem", 0o644)
    servers = []
    for i, item in enumerate(o.servers.split(",")):
        name, _, binary = item.partition("=")
        servers.append(Server(name, binary, 9440 + i, root))
    ns("netns", "add", namespace)
    figures = {s.name: {} for s in servers}
    rates = {s.name: {} for s in servers}
    try:
        ns("-n", namespace, "link", "set", "lo", "mtu", "1500", "up")
        for s in servers:
            s.start(namespace)
        for s in servers:
            wait_for(s, o.client, namespace)
        for r in range(o.rounds):
            for row, path, streams, connections, extra in ROWS:
                if not re.search(o.rows, row) or o.h2load and extra:
                    continue
                for s in servers if r % 2 == 0 else servers[::-1]:
                    before = tasks_cpu(s.pids())
                    begun = time.monotonic()
                    if o.h2load:
                        done, errors = h2load(o.h2load, namespace, s.port_of(path), path, streams, connections, o.seconds)
                    else:
                        report = bench(o.client, namespace, s.port_of(path), path, [
                            "--http3", "-c", str(connections), "-m", str(streams), "-d", f"{o.seconds}s", "-w", "0s", *extra])
                        done, errors = report["requests"]["complete"], sum(report["errors"].values())
                    rates[s.name].setdefault(row, []).append(done / (time.monotonic() - begun))
                    used = tasks_cpu(s.pids()) - before
                    figures[s.name].setdefault(row, []).append(used / max(done, 1) * 1e6)
                    if errors:
                        print(f"{s.name} {row}: {errors} errors of {done}", file=sys.stderr)
        if o.idle:
            for s in servers:
                # Memory that earlier rows have left behind would serve idle connections, too.
                s.stop()
                s.start(namespace)
                wait_for(s, o.client, namespace)
                base = resident(s.pids())
                argv = ["ip", "netns", "exec", namespace, o.client, "bench", "--insecure", "-q", "-t", "1", "--http3", "-c", str(o.idle),
                        "--think", "60s", "-d", "30s", f"https://localhost:{s.port}/1k"]
                load = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                time.sleep(5)
                figures[s.name]["idle"] = [(resident(s.pids()) - base) / o.idle]
                load.send_signal(signal.SIGINT)
                load.wait()
    finally:
        for s in servers:
            if hasattr(s, "process"):
                s.stop()
        ns("netns", "del", namespace)
        shutil.rmtree(root, ignore_errors=True)
    table(servers, figures)
    if o.rates:
        for s in servers:
            print(f"{s.name}: " + ", ".join(f"{row} {statistics.median(all):.0f}/s" for row, all in rates[s.name].items()))
    if o.out:
        with open(o.out, "w") as f:
            json.dump(figures, f, indent=1)


def table(servers, figures):
    """Prints medians in microseconds, and ratios to the first server with their spread over the rounds."""
    peer = figures[servers[0].name]
    print("| row | " + " | ".join(s.name for s in servers) + " |")
    print("| --- |" + " ---: |" * len(servers))
    for row in peer:
        cells = []
        for s in servers:
            mine = figures[s.name].get(row, [])
            if not mine:
                cells.append("-")
                continue
            cell = f"{statistics.median(mine):.1f}"
            if s is not servers[0]:
                ratios = sorted(a / b for a, b in zip(peer[row], mine))
                cell += f" ({statistics.median(ratios):.2f}; {ratios[0]:.2f} to {ratios[-1]:.2f})"
            cells.append(cell)
        print(f"| {row} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
