"""Clients of stream: TCP, TLS, UDP."""

import hashlib
import socket
import time

import cases
import check
import content
from client_http1 import IDLE, Ended, ended_by, tls_context

CASES = {name: cases.Case(name, "") for name in ["stream-tcp", "stream-tls", "stream-udp"]}


class Client:
    def __init__(self, setup, number):
        self.setup, self.number, self.report = setup, number, setup.report

    def session(self, n):
        rng = cases.seeded(self.setup.seed, self.setup.name, self.number, n)
        id = f"{self.setup.name}-{self.number}-{n}"
        case = rng.choice([c for c in CASES if self.setup.only.search(c)] or [None])
        if case is None:
            time.sleep(1)
            return
        request = cases.Request(CASES[case], id, "STREAM")
        outcome, checked = check.Outcome(request, session=id), check.Check(request)
        try:
            if case == "stream-udp":
                self.udp(rng, id, outcome, checked)
            else:
                self.tcp(rng, case, request, outcome, checked)
        except socket.timeout:
            outcome.error = "hang"
        except ConnectionRefusedError:
            outcome.error = "refused"
        except OSError as e:
            outcome.error = ended_by(e)
        except Ended as e:
            outcome.error = str(e)
        self.report.done(outcome, checked)
        self.setup.breathe(rng, 1)

    def tcp(self, rng, case, request, outcome, checked):
        sock = socket.socket()
        sock.settimeout(IDLE)
        if rng.random() < 0.2:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with sock:
            sock.connect(("127.0.0.1", self.setup.ports["S_TCP" if case == "stream-tcp" else "S_TLS"]))
            if case == "stream-tls":
                sock = tls_context([]).wrap_socket(sock, server_hostname="soak.test")
            with sock:
                self.talk(rng, sock, request, outcome, checked)

    def talk(self, rng, sock, request, outcome, checked):
        name = request.name = rng.choice(content.names("t", 60) + content.names("b", 60) + ["b1000-1000000"])
        up = content.body(f"b{rng.randrange(4)}-{rng.choice([0, 10, 5000, 70000])}.0")
        mode = "reset" if rng.random() < 0.1 else "-"
        request.broken = mode == "reset"
        checked.expected = content.body(name + ".0") + hashlib.sha256(up).hexdigest().encode()
        sock.sendall(f"{name} {len(up)} {mode}\n".encode() + up)
        outcome.status = 200
        pause = rng.randrange(len(checked.expected)) if rng.random() < 0.15 else -1
        leave = rng.randrange(len(checked.expected)) if rng.random() < 0.1 else -1
        while data := sock.recv(65536):
            checked.data(data)
            outcome.wire += len(data)
            if 0 <= pause <= checked.at:
                pause = -1
                time.sleep(rng.choice([0.05, 0.3, 1.0]))
            if 0 <= leave <= checked.at:
                outcome.left = True
                return
        outcome.complete = checked.at == len(checked.expected)
        outcome.error = "" if outcome.complete else "closed"

    def udp(self, rng, id, outcome, checked):
        outcome.status = 200
        name = outcome.request.name = f"t{rng.randrange(40)}-{rng.choice([0, 1, 100, 700, 1200])}"
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.connect(("127.0.0.1", self.setup.ports["S_UDP"]))
            for _ in range(6):
                # Datagrams may be lost.
                sock.settimeout(4)
                sock.send(f"{id} {name}".encode())
                try:
                    data = sock.recv(65536)
                except (socket.timeout, ConnectionRefusedError):
                    time.sleep(0.2)
                    continue
                checked.expected = f"{id} ".encode() + content.body(name + ".0")
                checked.data(data)
                checked.end()
                outcome.complete = True
                return
        outcome.error = "hang"

