#!/usr/bin/env python3
"""Measures HTTP/3 over a link with losses, and beside TCP. See README.md."""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
A, B = f"loss-a-{os.getpid()}", f"loss-b-{os.getpid()}"
SERVER = "10.9.0.1"
SIZES = {"2m": 2_000_000, "20m": 20_000_000, "endless": 4_000_000_000}
CONF = """
user root; worker_processes 1; daemon off; pid {dir}/pid; error_log {dir}/error.log warn;
events {{ worker_connections 1000; }}
http {{ access_log off; keepalive_requests 1000000; root {root}; quic_congestion_control {control};
  server {{ listen {server}:{port} quic; listen {server}:{port} ssl; ssl_certificate {root}/cert.pem; ssl_certificate_key {root}/key.pem; }} }}
"""


def inside(namespace, *command):
    return ["ip", "netns", "exec", namespace, *command]


class Link:
    """The link between both namespaces, while it exists."""

    def __init__(self, root, delay, rate, queue, loss=0.0, back=0.0, seed=1):
        arguments = [A, B, delay, loss, back, rate, max(queue, 1), seed]
        self.process = subprocess.Popen(["nice", "-n", "-10", f"{root}/link", *map(str, arguments)], stdout=subprocess.PIPE, text=True)
        self.process.stdout.readline()
        self.lines = []
        threading.Thread(target=lambda: self.lines.extend((time.monotonic(), line) for line in self.process.stdout), daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def passed(self, at):
        """Bytes of each flow, protocol and port, up to a time."""
        line = ["", *(line for when, line in list(self.lines) if when <= at)][-1]
        return {tuple(map(int, flow.split(":"))): int(n) for flow, n in (x.split("=") for x in line.split())}


    def next_flow(self, known):
        """Waits for a flow that is not known, and returns it."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            new = [flow for flow, n in self.passed(time.monotonic()).items() if flow not in known and n > 100_000]
            if new:
                return new[0]
            time.sleep(0.05)
        sys.exit("a flow does not begin")


class Server:
    def __init__(self, root, binary, port, control):
        self.dir = tempfile.mkdtemp(dir=root)
        with open(f"{self.dir}/conf", "w") as f:
            f.write(CONF.format(dir=self.dir, root=root, server=SERVER, port=port, control=control))
        command = [binary, "-p", self.dir, "-c", f"{self.dir}/conf", "-e", f"{self.dir}/error.log"]
        self.process = subprocess.Popen(inside(A, *command))
        deadline = time.monotonic() + 10
        while subprocess.run(inside(A, "bash", "-c", f"exec 3<>/dev/tcp/{SERVER}/{port}"), stderr=subprocess.DEVNULL).returncode:
            if time.monotonic() > deadline:
                sys.exit(f"{binary} does not begin, see {self.dir}")
            time.sleep(0.05)

    def stop(self):
        self.process.terminate()
        self.process.wait()


def load(client, port, path, *options):
    """Begins downloads over HTTP/3 on one connection."""
    command = [client, "bench", "--http3", "--insecure", "-c", "1", "-t", "1", "-q", "--plain", "--timeout", "300s", "--json", "-",
               *options, f"https://{SERVER}:{port}/{path}"]
    return subprocess.Popen(inside(B, *command), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


# What a download looks like: congestion control, file, and options: one connection after a second, or one for each download.
DOWNLOADS = [
    ("bbr", "2m", ["-w", "1s", "-d", "8s"]),
    ("bbr", "20m", ["-w", "1s", "-d", "8s"]),
    ("bbr", "2m", ["--no-keepalive", "-n", "8"]),
    ("bbr", "20m", ["--no-keepalive", "-n", "3"]),
    ("cubic", "2m", ["-w", "1s", "-n", "3"]),
    ("cubic", "20m", ["--no-keepalive", "-n", "1"]),
]


def goodput(root, arguments):
    """Prints the goodput of downloads one after the other: on one connection, or with a connection for each."""
    found = {}
    for turn in range(arguments.rounds):
        for what, (control, path, options) in enumerate(DOWNLOADS):
            if arguments.control not in ("", control):
                continue
            for name, binary in arguments.servers.items():
                with Link(root, 25, 100, 500, 1, 1, arguments.seed + turn):
                    server = Server(root, binary, 4430, control)
                    text, _ = load(arguments.client, 4430, path, *options).communicate()
                    server.stop()
                result = json.loads(text)
                if not result["requests"]["ok"]:
                    sys.exit(f"{name}: {result['first_error']}")
                # On one connection only whole downloads count. Else the handshakes belong to it.
                seconds = result["latency_us"]["mean"] / 1e6 if "-w" in options else result["seconds"] / result["requests"]["ok"]
                found.setdefault((name, what), []).append(SIZES[path] * 8 / seconds / 1e6)
    print("| server | control | file | connections | Mbit/s, median (extremes) |\n| --- | --- | --- | --- | ---: |")
    for (name, what), rates in sorted(found.items(), key=lambda x: x[0][1]):
        control, path, options = DOWNLOADS[what]
        kind = "one for each" if "--no-keepalive" in options else "one"
        print(f"| {name} | {control} | {path} | {kind} | {statistics.median(rates):.1f} ({min(rates):.1f} to {max(rates):.1f}) |")


def fairness(root, arguments):
    """Prints what two flows through one queue get. The second begins two seconds after the first; 20 s count, from two seconds later on."""
    ours, kernel = [("HTTP/3", c) for c in ("bbr", "cubic")], [("TCP", c) for c in ("bbr", "cubic")]
    pairs = [(a, b) for a in ours for b in kernel] + [(ours[0], ours[0]), (ours[1], ours[1]), (ours[0], ours[1]), (kernel[0], kernel[1])]
    print("| first | second | Mbit/s | queue | first, Mbit/s | second | shares |\n| --- | --- | ---: | --- | ---: | ---: | --- |")
    for rate in (100, 20):
        for bdp in (1, 2):
            for pair in pairs:
                for order in (pair, pair[::-1]) if arguments.both and pair[0] != pair[1] else (pair,):
                    rates = [share(root, arguments, rate, bdp, order) for _ in range(arguments.rounds)]
                    first, second = (statistics.median(x) for x in zip(*rates))
                    names = " | ".join(" ".join(x) for x in order)
                    least = min(min(x) / sum(x) for x in rates)
                    print(f"| {names} | {rate} | {bdp} BDP | {first:.1f} | {second:.1f} | {100 * first / (first + second):.0f} : "
                          f"{100 * second / (first + second):.0f}, least {100 * least:.0f} % |", flush=True)


def share(root, arguments, rate, bdp, pair):
    """Returns the rates of two flows in Mbit/s."""
    delay = 20
    servers, clients, flows = [], [], []
    with Link(root, delay, rate, int(rate * 1e6 / 8 * 2 * delay / 1e3 / 1500 * bdp)) as link:
        for n, (protocol, control) in enumerate(pair):
            port = 4430 + n
            if protocol == "TCP":
                servers.append(subprocess.Popen(inside(A, sys.executable, __file__, "send", str(port), control)))
                clients.append(subprocess.Popen(inside(B, sys.executable, __file__, "receive", str(port))))
            else:
                servers.append(Server(root, arguments.binary, port, control).process)
                clients.append(load(arguments.client, port, "endless", "-d", "60s"))
            flows.append(link.next_flow(flows))
            time.sleep(2)
        time.sleep(2)
        begin = time.monotonic()
        time.sleep(20)
        before, after = link.passed(begin), link.passed(begin + 20)
        # `bench` would wait for the end of its download.
        for process in clients:
            process.kill()
            process.wait()
        for process in servers:
            process.terminate()
            process.wait()
    return [(after[flow] - before[flow]) * 8 / 20 / 1e6 for flow in flows]


def send(port, control):
    """Sends over TCP as fast as it goes."""
    with socket.create_server((SERVER, port)) as listener:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control.encode())
        connection, _ = listener.accept()
        try:
            while True:
                connection.sendall(bytes(1 << 18))
        except ConnectionError:
            pass


def receive(port):
    while True:
        try:
            connection = socket.create_connection((SERVER, port))
            break
        except OSError:
            time.sleep(0.05)
    while connection.recv(1 << 18):
        pass


def prepare(root):
    """Makes the link's program, a certificate and files."""
    subprocess.run(["cc", "-O2", "-o", f"{root}/link", f"{HERE}/link.c"], check=True)
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30", "-subj", "/CN=localhost",
                    "-keyout", f"{root}/key.pem", "-out", f"{root}/cert.pem"], check=True, stderr=subprocess.DEVNULL)
    for name, size in SIZES.items():
        with open(f"{root}/{name}", "wb") as f:
            f.truncate(size)


def main():
    if sys.argv[1] in ("send", "receive"):
        send(int(sys.argv[2]), sys.argv[3]) if sys.argv[1] == "send" else receive(int(sys.argv[2]))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["goodput", "fairness"])
    parser.add_argument("--servers", required=True, help="NAME=PROGRAM,...; fairness takes the first")
    parser.add_argument("--client", required=True, help="forebay, whose bench is the client")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1, help="of the losses")
    parser.add_argument("--control", default="", help="only this congestion control (goodput)")
    parser.add_argument("--both", action="store_true", help="either flow begins first (fairness)")
    arguments = parser.parse_args()
    arguments.servers = dict(x.split("=", 1) for x in arguments.servers.split(","))
    arguments.binary = next(iter(arguments.servers.values()))
    with tempfile.TemporaryDirectory() as root:
        prepare(root)
        try:
            for namespace in (A, B):
                subprocess.run(["ip", "netns", "add", namespace], check=True)
            {"goodput": goodput, "fairness": fairness}[arguments.what](root, arguments)
        finally:
            for namespace in (A, B):
                subprocess.run(["ip", "netns", "del", namespace])


if __name__ == "__main__":
    main()
