"""Clients over HTTP/1, in threads with blocking sockets: plain, TLS, unix socket; kept, pipelined and one-shot connections."""

import dataclasses
import select
import socket
import ssl
import struct
import time

import cases
import check
import content

# Without a byte for so long the server counts as hanging.
IDLE = 25.0


class Ended(Exception):
    """The connection is over; the text says how."""


class Left(Exception):
    """This client has left."""


@dataclasses.dataclass
class Manner:
    """How a client behaves during one response."""

    pause_at: int = -1
    pause: float = 0.0
    leave_at: int = -1
    reset: bool = False
    slow: bool = False
    send_slowly: bool = False

    @staticmethod
    def of(rng, request, small=False):
        length = (content.parse(request.name) or ("", 200))[1]
        manner, what = Manner(reset=rng.random() < 0.5), rng.random()
        if small and what < 0.5 or what < 0.12:
            manner.pause_at, manner.pause = rng.choice([0, rng.randrange(length + 1)]), rng.choice([0.05, 0.2, 0.25, 0.4, 1.0])
        elif what < (0.6 if small else 0.20):
            manner.leave_at = rng.choice([-2, 0, rng.randrange(length + 1), rng.randrange(length + 1)])
        elif what > 0.96 and length < 400_000:
            manner.slow = True
        if rng.random() < request.case.leave:
            # Compressed, a body has fewer bytes.
            manner.leave_at = rng.randrange(length // 3 + 1)
        manner.send_slowly = rng.random() < 0.15
        return manner


class Wire:
    """A connection with a buffer."""

    def __init__(self, ports, directory, kind, receive=0):
        self.buffer, self.small, self.last = b"", bool(receive), None
        family = socket.AF_UNIX if kind == "unix" else socket.AF_INET
        self.sock = socket.socket(family, socket.SOCK_STREAM)
        self.sock.settimeout(IDLE)
        if receive:
            # The server's buffer grows with the segments: those of the loopback interface would take a whole body at once.
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
            if kind != "unix":
                self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1400)
        try:
            self.sock.connect(f"{directory}/server.sock" if kind == "unix" else ("127.0.0.1", ports["TLS" if kind == "tls" else "HTTP"]))
            if kind == "tls":
                self.sock = tls_context(["http/1.1"]).wrap_socket(self.sock, server_hostname="soak.test")
        except socket.timeout as e:
            raise Ended("hang") from e
        except ConnectionRefusedError as e:
            raise Ended("refused") from e
        except OSError as e:
            raise Ended(ended_by(e)) from e

    def send(self, data):
        try:
            self.sock.sendall(data)
        except socket.timeout as e:
            raise Ended("hang") from e
        except OSError as e:
            raise Ended(ended_by(e)) from e

    def fill(self, most=65536):
        try:
            data = self.sock.recv(most)
        except socket.timeout as e:
            raise Ended("hang") from e
        except OSError as e:
            raise Ended(ended_by(e)) from e
        if not data:
            raise Ended("closed")
        self.buffer += data

    def readable(self, wait=0):
        """Says whether there is something to read, or the end of the connection."""
        if self.buffer or not isinstance(self.sock, ssl.SSLSocket):
            return bool(self.buffer or select.select([self.sock], [], [], wait)[0])
        if not self.sock.pending() and not select.select([self.sock], [], [], wait)[0]:
            return False
        # What has come may be a session ticket.
        self.sock.settimeout(0)
        try:
            self.buffer += self.sock.recv(65536)
            return True
        except ssl.SSLWantReadError:
            return False
        except OSError:
            return True
        finally:
            self.sock.settimeout(IDLE)

    def until(self, mark, limit=65536):
        while mark not in self.buffer:
            if len(self.buffer) > limit:
                raise Ended(f"malformed: no {mark!r} in {self.buffer[:80]!r}")
            self.fill()
        line, _, self.buffer = self.buffer.partition(mark)
        return line

    def some(self, most):
        if not self.buffer:
            self.fill(most)
        data, self.buffer = self.buffer[:most], self.buffer[most:]
        return data

    def close(self, reset=False):
        try:
            if reset:
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.sock.close()
        except OSError:
            pass


CONTEXTS = {}


def tls_context(protocols):
    key = tuple(protocols)
    if key not in CONTEXTS:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        if protocols:
            context.set_alpn_protocols(protocols)
        CONTEXTS[key] = context
    return CONTEXTS[key]


def ended_by(e):
    if isinstance(e, (ConnectionResetError, BrokenPipeError)):
        return "reset"
    if isinstance(e, ssl.SSLError):
        return "closed" if "EOF" in str(e) else f"tls: {e}"
    return f"{type(e).__name__}: {e}"


class Response:
    """Reads one response, in the manner of the client, and checks it."""

    def __init__(self, wire, request, outcome, manner):
        self.wire, self.request, self.outcome, self.manner = wire, request, outcome, manner
        self.check = check.Check(request)
        self.headers, self.close, self.unframed = {}, False, False

    def head(self):
        if self.manner.leave_at == -2:
            raise Left
        while True:
            lines = self.wire.until(b"\r\n\r\n").decode("latin-1").split("\r\n")
            words = lines[0].split(" ", 2)
            if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
                raise Ended(f"malformed: status line {lines[0]!r}")
            if words[1] != "100":
                break
        self.outcome.status = int(words[1])
        self.headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:])}
        self.close = self.headers.get("connection", "").lower() == "close" or words[0] == "HTTP/1.0"
        self.check.head(self.outcome.status, self.headers)

    def body(self):
        if self.request.method == "HEAD" or self.outcome.status in (204, 304):
            return
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            self.chunked()
        elif "content-length" in self.headers:
            self.take(int(self.headers["content-length"]))
        else:
            self.close = self.unframed = True
            try:
                self.take(1 << 40)
            except Ended as e:
                if str(e) != "closed":
                    raise

    def chunked(self):
        while True:
            line = self.wire.until(b"\r\n")
            try:
                size = int(line.split(b";")[0], 16)
            except ValueError:
                raise Ended(f"malformed: chunk size {line[:60]!r}") from None
            self.outcome.wire += len(line) + 2
            if not size:
                break
            self.take(size)
            if self.wire.until(b"\r\n") != b"":
                raise Ended("malformed: no line break behind a chunk")
            self.outcome.wire += 2
        while line := self.wire.until(b"\r\n"):
            self.outcome.wire += len(line) + 2
        self.outcome.wire += 2

    def take(self, left):
        manner = self.manner
        while left > 0:
            if 0 <= manner.leave_at <= self.outcome.wire:
                raise Left
            if 0 <= manner.pause_at <= self.outcome.wire:
                manner.pause_at = -1
                time.sleep(manner.pause)
            if manner.slow:
                time.sleep(0.01)
            most = 3000 if manner.slow else 65536
            for point in (manner.leave_at, manner.pause_at):
                if point > self.outcome.wire:
                    most = min(most, point - self.outcome.wire)
            data = self.wire.some(min(left, most))
            left -= len(data)
            self.outcome.wire += len(data)
            self.check.data(data)


class Client:
    """One thread of sessions."""

    letter = "1"

    def __init__(self, setup, number):
        self.setup, self.number, self.report = setup, number, setup.report
        self.choose = cases.Chooser(self.letter, setup.forebay, setup.only)

    def session(self, n):
        rng = cases.seeded(self.setup.seed, self.setup.name, self.number, n)
        kind = rng.choice(["plain"] * 5 + ["tls"] * 3 + ["unix"])
        name = f"{self.setup.name}-{self.number}-{n}"
        receive = rng.choice([0] * 5 + [2048, 4096, 16384])
        wire, served = None, 0
        count = rng.choice([1, 1, 3, 8, 20])
        made = [self.choose(rng, f"{name}-{k}") for k in range(count)]
        one_shot = count == 1 and rng.random() < 0.5
        try:
            while made and not self.setup.stopping():
                several = rng.randrange(2, 5) if rng.random() < 0.1 and all(m.upload is None and not m.tunnel for m in made[:4]) else 1
                batch, made = made[:several], made[several:]
                if wire is not None and served and wire.readable():
                    # Closed while it was idle, as it may be.
                    wire.close()
                    wire = None
                if wire is None:
                    wire, served = self.connect(kind, receive, batch[0], name), 0
                    if wire is None:
                        return
                keep = self.exchange(wire, batch, rng, served, name, one_shot)
                served += len(batch)
                if not keep:
                    wire.close()
                    wire = None
                self.setup.breathe(rng, len(batch))
        finally:
            if wire is not None:
                wire.close()

    def connect(self, kind, receive, request, name):
        outcome = check.Outcome(request, session=name)
        try:
            return Wire(self.setup.ports, self.setup.directory, kind, receive)
        except Ended as e:
            outcome.error = str(e)
            self.report.begin(request.id)
            self.report.done(outcome, check.Check(request))
            return None

    def head_bytes(self, request, version, close):
        lines = [f"{request.method} {request.target()} HTTP/{version}", "Host: soak.test", "User-Agent: soak"]
        lines += [f"{k}: {v}" for k, v in request.headers]
        if request.upload is not None:
            lines.append("Transfer-Encoding: chunked" if request.chunked and version == "1.1" else f"Content-Length: {len(request.upload)}")
        if request.tunnel:
            lines += ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: c29ha3NvYWtzb2Frc29hax=="]
        elif close:
            lines.append("Connection: close")
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    def exchange(self, wire, batch, rng, served, name, one_shot):
        """Sends requests and reads their responses. Returns whether the connection may be used again."""
        version = "1.0" if one_shot and rng.random() < 0.3 else "1.1"
        for request in batch:
            self.report.begin(request.id)
        outcomes = [check.Outcome(request, session=name, reused=served > 0) for request in batch]
        # Where the content was whole and what the origin sends behind it was not, the server closes the connection.
        for outcome, before in zip(outcomes, [wire.last, *batch]):
            outcome.after_wild = before is not None and before.case.broken
        wire.last = batch[-1]
        sent, over = "", ""
        try:
            if len(batch) > 1:
                wire.send(b"".join(self.head_bytes(r, version, False) for r in batch))
        except Ended as e:
            sent = str(e)
        for k, (request, outcome) in enumerate(zip(batch, outcomes)):
            if over:
                # Nothing is known of those behind one that ended the connection.
                outcome.left, outcome.error = True, over
                self.report.done(outcome, check.Check(request))
                continue
            over = self.one(wire, request, outcome, rng, version, one_shot, send=len(batch) == 1, sent=sent)
        return not over

    def one(self, wire, request, outcome, rng, version, one_shot, send, sent):
        """One request and its response. Returns why the connection is over, or ""."""
        manner = Manner.of(rng, request, wire.small)
        response = Response(wire, request, outcome, manner)
        over = sent
        try:
            if send:
                over = self.send(wire, request, manner, rng, version, one_shot)
            response.head()
            if request.tunnel and outcome.status == 101:
                self.tunnel(wire, outcome, rng)
            response.body()
            # Without framing the end of the connection is that of the content, whole or not.
            outcome.complete = not response.unframed or response.check.is_whole()
            if outcome.complete:
                response.check.end()
            else:
                outcome.error = "closed"
            over = over or ("close" if response.close or one_shot else "")
        except Left:
            outcome.left, over = True, "left"
            wire.close(manner.reset)
        except Ended as e:
            over = outcome.error = str(e) if str(e) != "closed" or not over else over
        self.report.done(outcome, response.check)
        if not over and request.transform == "dav" and request.method == "PUT":
            over = self.see_again(wire, request, outcome, rng)
        return over

    def see_again(self, wire, put, outcome, rng):
        """Asks for what was uploaded, and removes it."""
        over = ""
        for method, statuses in [("GET", (200,)), ("DELETE", (204,))]:
            request = cases.Request(put.case, put.id + method[0].lower(), method, put.path, statuses=statuses, transform="dav", expected=put.upload)
            if outcome.status not in (201, 204) or over:
                break
            self.report.begin(request.id)
            over = self.one(wire, request, check.Outcome(request, session=outcome.session, reused=True), rng, "1.1", False, True, "")
        return over

    def send(self, wire, request, manner, rng, version, close):
        """Sends a request. Returns how the connection ended meanwhile; an answer may be there all the same."""
        head = self.head_bytes(request, version, close)
        if request.upload is None:
            if manner.send_slowly:
                cut = rng.randrange(len(head))
                wire.send(head[:cut])
                time.sleep(rng.uniform(0.01, 0.3))
                head = head[cut:]
            wire.send(head)
            return ""
        chunked = request.chunked and version == "1.1"
        try:
            wire.send(head)
            at, leave = 0, rng.randrange(len(request.upload) + 1) if manner.leave_at >= 0 else -1
            while at < len(request.upload):
                piece = request.upload[at : at + rng.choice([100, 8000, 65536, 200_000])]
                wire.send(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece)
                at += len(piece)
                if manner.send_slowly and at < 200_000:
                    time.sleep(rng.uniform(0, 0.05))
                if 0 <= leave <= at:
                    raise Left
                if wire.readable():
                    # An answer before the end of the request: nothing can follow it.
                    return "answered early"
            if chunked:
                wire.send(b"0\r\n\r\n")
        except Ended as e:
            if str(e) == "hang":
                raise
            return str(e)
        return ""

    def tunnel(self, wire, outcome, rng):
        """Sends bytes through an upgraded connection and checks those that come back."""
        for round in range(rng.randrange(1, 6)):
            data = content.body(f"b{round}-{rng.choice([1, 100, 5000, 70000])}.0")
            wire.send(data)
            back = b""
            while len(back) < len(data):
                back += wire.some(65536)
            outcome.wire += len(back)
            if back != data:
                raise Ended("malformed: the tunnel returned other bytes " + content.difference(data, back, 0))
            time.sleep(rng.uniform(0, 0.3))
        raise Left
