"""QUIC client of the tests that breaks the rules, on the packet protection and the handshake of aioquic. It reads commands from standard
input, one JSON object a line, and answers each with a line.

It has no event loop: a command sends, and handles what arrives until it has seen what it waits for. Frames are sent in packets of its
own, so aioquic neither checks nor repeats them.
"""

import json
import os
import random
import socket
import ssl
import sys
import time

from aioquic import tls
from aioquic.buffer import Buffer, encode_uint_var
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection, QuicConnectionId
from aioquic.quic.events import ConnectionTerminated, HandshakeCompleted, StreamDataReceived, StreamReset
from aioquic.quic.stream import QuicStream
from aioquic.quic.packet import QuicPacketType, encode_long_header_first_byte

DEADLINE = int(os.environ.get("FOREBAY_TEST_SECONDS", "20"))
EPOCHS = {
    "initial": (tls.Epoch.INITIAL, QuicPacketType.INITIAL),
    "handshake": (tls.Epoch.HANDSHAKE, QuicPacketType.HANDSHAKE),
    "1rtt": (tls.Epoch.ONE_RTT, None),
}


def varint(*values):
    return b"".join(encode_uint_var(value) for value in values)


def udp(host="127.0.0.1"):
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    sock.bind((host, 0))
    return sock


class Attacker:
    """A connection."""

    def __init__(self, c):
        conf = QuicConfiguration(
            is_client=True,
            alpn_protocols=c.get("alpn", ["h3"]),
            server_name="localhost",
            verify_mode=ssl.CERT_NONE,
            idle_timeout=60,
        )
        conf.max_stream_data = c.get("window", conf.max_stream_data)
        conf.max_data = c.get("window_of_all", conf.max_data)
        self.addr = ("127.0.0.1", c["port"])
        self.sock = udp()
        self.quic = QuicConnection(configuration=conf)
        self.terminated = None
        self.complete = False
        self.received = 0
        self.datagrams = 0
        self.acknowledged = -1
        self.streams = {}
        self.resets = {}
        self.silent = False
        self.requests = 0
        write = self.quic._serialize_transport_parameters
        self.quic._serialize_transport_parameters = lambda: parameters(write(), c.get("parameters", []))
        self.quic.connect(self.addr, time.monotonic())
        on_ack = self.quic._loss.on_ack_received

        def noted(*args, **names):
            ranges = names["ack_rangeset"] if "ack_rangeset" in names else args[0]
            self.acknowledged = max(self.acknowledged, ranges.bounds().stop - 1)
            return on_ack(*args, **names)

        self.quic._loss.on_ack_received = noted
        # Streams are opened by frames of our own, which aioquic does not know of.
        streams = {}

        def known(frame_type, number):
            if number not in streams:
                streams[number] = QuicStream(stream_id=number, max_stream_data_local=1 << 40)
            return streams[number]

        self.quic._get_or_create_stream = known
        handlers = self.quic._QuicConnection__frame_handlers
        handlers[0x19] = (lambda context, kind, buf: buf.pull_uint_var(), handlers[0x19][1])
        queue = self.quic._spaces[tls.Epoch.ONE_RTT].ack_queue
        add, self.numbers = queue.add, []

        def seen(start, *more):
            self.numbers.append(start)
            return add(start, *more)

        queue.add = seen

    def flush(self):
        if not self.silent:
            for data, _ in self.quic.datagrams_to_send(time.monotonic()):
                self.sock.sendto(data, self.addr)

    def take(self):
        """Handles the events of the connection."""
        while (event := self.quic.next_event()) is not None:
            if isinstance(event, ConnectionTerminated):
                self.terminated = event
            elif isinstance(event, HandshakeCompleted):
                self.complete = True
            elif isinstance(event, StreamReset):
                self.resets[event.stream_id] = event.error_code
            elif isinstance(event, StreamDataReceived):
                data, ended = self.streams.get(event.stream_id, (0, False))
                self.streams[event.stream_id] = (data + len(event.data), ended or event.end_stream)

    def pump(self, done, seconds=DEADLINE):
        """Sends and receives until `done` returns true. Returns false if the time is over, or the connection ended before that."""
        end = time.monotonic() + seconds
        self.flush()
        while True:
            self.take()
            if done():
                return True
            left = end - time.monotonic()
            if self.terminated is not None or left <= 0:
                return False
            timer = self.quic.get_timer()
            if timer is not None and not self.silent:
                left = min(left, max(timer - time.monotonic(), 0.0005))
            self.sock.settimeout(left)
            try:
                data, _ = self.sock.recvfrom(65536)
                self.received += len(data)
                self.datagrams += 1
                self.quic.receive_datagram(data, self.addr, time.monotonic())
            except (TimeoutError, socket.timeout):
                if timer is not None and timer <= time.monotonic():
                    self.quic.handle_timer(time.monotonic())
            except ConnectionRefusedError:
                pass
            self.flush()

    def packet(self, payload, epoch="1rtt", reserved=0, number=None, fixed=0x40, flip=False, size=0):
        """Returns a packet of these frames."""
        q, (key, kind) = self.quic, EPOCHS[epoch]
        crypto = q._cryptos[key]
        if number is None:
            number = q._packet_number
            q._packet_number += 1
        payload = payload.ljust(4, b"\0")
        if kind is None:
            first = fixed | crypto.key_phase << 2 | reserved << 3 | 1
            header = bytes([first]) + q._peer_cid.cid
        else:
            first = encode_long_header_first_byte(q._version, kind, 1) | reserved << 2
            if kind == QuicPacketType.INITIAL:
                size = max(size, 1200)
            header = bytes([first & ~0x40 | fixed]) + q._version.to_bytes(4, "big")
            header += bytes([len(q._peer_cid.cid)]) + q._peer_cid.cid + bytes([len(q.host_cid)]) + q.host_cid
            if kind == QuicPacketType.INITIAL:
                header += varint(len(q._peer_token)) + q._peer_token
            payload = payload.ljust(size - len(header) - 20, b"\0")
            header += (len(payload) + 18 | 0x4000).to_bytes(2, "big")
        header += (number & 0xFFFF).to_bytes(2, "big")
        payload = payload.ljust(size - len(header) - 16, b"\0")
        return crypto.encrypt_packet(header, payload, number)

    def send(self, payload, sock=None, **how):
        (sock or self.sock).sendto(self.packet(payload, **how), self.addr)

    def settle(self, seconds=DEADLINE):
        """Waits until the server has handled everything that was sent, or has ended the connection."""
        number = self.quic._packet_number
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.terminated is None:
            self.send(b"\1")
            if self.pump(lambda: self.acknowledged >= number, 0.3):
                return True
        return False

    def allowed(self, count):
        """Waits until the client may open so many streams."""
        self.pump(lambda: self.quic._remote_max_streams_bidi >= count, 2)

    def largest(self):
        """Returns the largest packet number that the server is known to have used."""
        return max(self.numbers)

    def told(self, **more):
        closed = None
        if self.terminated is not None:
            t = self.terminated
            closed = {"code": t.error_code, "frame": t.frame_type, "reason": t.reason_phrase}
        told = {"connected": self.complete, "closed": closed, "received": self.received, "datagrams": self.datagrams}
        return {**told, "ids": self.quic._remote_active_connection_id_limit, **more}


def parameters(encoded, edits):
    """Changes transport parameters: [id, hex] appends one, [id, null] takes it away, [id, hex, "instead"] does both."""
    buf, pairs = Buffer(data=encoded), []
    while not buf.eof():
        name = buf.pull_uint_var()
        pairs.append((name, buf.pull_bytes(buf.pull_uint_var())))
    raw = b""
    for name, value, *how in edits:
        if name == "raw":
            raw += bytes.fromhex(value)
            continue
        if value is None or how:
            pairs = [pair for pair in pairs if pair[0] != name]
        if value is not None:
            pairs.append((name, bytes.fromhex(value)))
    return b"".join(varint(name, len(value)) + value for name, value in pairs) + raw


def get(path):
    """Returns a field section for a GET, of literals only."""
    out = b"\0\0"
    for name, value in [(":method", "GET"), (":scheme", "https"), (":authority", "localhost"), (":path", path)]:
        out += bytes([0x20 | 7, len(name) - 7]) if len(name) >= 7 else bytes([0x20 | len(name)])
        out += name.encode() + bytes([len(value)]) + value.encode()
    return varint(1, len(out)) + out


def stream(number, offset, data, end=False):
    return varint(0x0E | end, number, offset, len(data)) + data


def ack(numbers):
    """Returns an ACK frame of these packets, each of them a range."""
    numbers = sorted(set(numbers), reverse=True)
    ranges = [numbers[0]]
    for number in numbers[1:]:
        if ranges[-1] - number >= 2:
            ranges.append(number)
    gaps = [varint(a - b - 2, 0) for a, b in zip(ranges, ranges[1:])]
    return varint(2, ranges[0], 0, len(gaps), 0) + b"".join(gaps)


class Floods:
    """Frames number `n` of each flood. All are valid frames as far as one of them goes."""

    def __init__(self, attacker):
        self.a = attacker

    ping = staticmethod(lambda n: b"\1")
    path_challenge = staticmethod(lambda n: varint(0x1A) + n.to_bytes(8, "big"))
    path_response = staticmethod(lambda n: varint(0x1B) + n.to_bytes(8, "big"))
    max_data = staticmethod(lambda n: varint(0x10, 2_000_000 + n))
    max_stream_data = staticmethod(lambda n: varint(0x11, 0, 2_000_000 + n))
    max_streams = staticmethod(lambda n: varint(0x13, 200 + n))
    data_blocked = staticmethod(lambda n: varint(0x14, n))
    stream_data_blocked = staticmethod(lambda n: varint(0x15, 0, n))
    streams_blocked = staticmethod(lambda n: varint(0x16, n))
    # The first bytes of a stream, again and again.
    empty_stream = staticmethod(lambda n: stream(0, 0, b""))
    same_stream = staticmethod(lambda n: stream(0, 0, b"\x21"))
    gaps = staticmethod(lambda n: stream(0, 2 * n + 2, b"x"))
    crypto_gaps = staticmethod(lambda n: varint(6, 2 * n + 2, 1) + b"x")
    crypto_same = staticmethod(lambda n: varint(6, 2, 1) + b"x")
    stop_sending = staticmethod(lambda n: varint(5, 0, 0x10C))
    reset_stream = staticmethod(lambda n: varint(4, 0, 0x10C, 0))
    stop_own = staticmethod(lambda n: varint(5, 3, 0x10C))
    reset_each = staticmethod(lambda n: varint(4, 4 * n, 0x10C, 0))
    retire = staticmethod(lambda n: varint(0x19, n))

    def requests(self, n):
        return stream(4 * n, 0, get("/page"), True) + varint(4, 4 * n, 0x10C, len(get("/page")))

    def id(self, n):
        cid = (n + 1).to_bytes(8, "big")
        self.a.quic._host_cids.append(QuicConnectionId(cid=cid, sequence_number=n + 8, was_sent=True))
        return b"\x08" + cid + n.to_bytes(16, "big")

    def new_id(self, n):
        return varint(0x18, n + 8, 0) + self.id(n)

    def new_id_retiring(self, n):
        return varint(0x18, n + 8, n + 8) + self.id(n)

    def same_id(self, n):
        return varint(0x18, 8, 8) + self.id(0)

    def ack_ranges(self, n):
        return ack(self.a.numbers[-500:])

    def ack_again(self, n):
        return ack(self.a.numbers[-1:])


class Session:
    """Connections of a test by their names."""

    def __init__(self):
        self.connections = {}
        self.sockets = []

    def open(self, c):
        a = self.connections[c["as"]] = Attacker(c)
        a.pump(lambda: a.complete and a.quic._handshake_confirmed)
        if a.terminated is None:
            # A control stream with empty SETTINGS.
            a.send(stream(2, 0, b"\0\4\0"))
            a.settle()
        return a.told()

    def close(self, c):
        a = self.connections.pop(c["on"])
        a.quic.close()
        a.flush()
        a.sock.close()
        return {}

    def wrong(self, c):
        """Sends frames on a connection of its own, and waits for its end. `at`: when they are sent. `ecn`: each count of an ACK_ECN frame
        for the last packet, which is sent instead."""
        a = Attacker(c)
        frames = bytes.fromhex(c["frames"])
        how = {k: c[k] for k in ("reserved", "fixed", "size") if k in c}
        at = c.get("at", "1rtt")
        if at not in ("initial", "handshake", "parameters", "1rtt"):
            raise ValueError(f"frames are not sent at {at}")
        if at == "initial":
            a.flush()
            # Behind the ClientHello, before the answer.
            a.send(frames, epoch="initial", **how)
        elif at == "handshake":
            key = a.quic._cryptos[tls.Epoch.HANDSHAKE].send
            a.flush()
            # Nothing of our own is sent, so that the handshake stays incomplete.
            a.silent = True
            a.pump(key.is_valid)
            a.send(frames, epoch="handshake", **how)
            a.silent = False
        elif at != "parameters":
            a.pump(lambda: a.complete and a.quic._handshake_confirmed)
            if a.terminated is None:
                a.send(stream(2, 0, b"\0\4\0"))
                a.settle()
            if a.terminated is None:
                for _ in range(c.get("updates", 0)):
                    a.quic._cryptos[tls.Epoch.ONE_RTT]._update_key("local_update")
                    a.send(b"\1")
                if "ecn" in c:
                    # A number that the server has used: it leaves some out.
                    frames = b"\3" + ack(a.numbers[-1:])[1:] + bytes.fromhex(c["ecn"]) * 3
                a.send(frames, **how)
        if a.terminated is None:
            if at == "parameters":
                a.pump(lambda: a.complete and a.quic._handshake_confirmed)
                # The server may find the error with our last flight only.
                a.settle(2)
            elif at == "1rtt":
                a.settle()
            else:
                a.pump(lambda: a.complete and a.quic._handshake_confirmed)
        told = a.told()
        if a.terminated is None:
            a.quic.close()
            a.flush()
        a.sock.close()
        return told

    def flood(self, c):
        """Sends a kind of frame many times, until the server ends the connection. Returns how many were sent."""
        a = self.connections[c["on"]]
        make, per, sent = getattr(Floods(a), c["kind"]), c.get("per", 40), 0
        while sent < c["count"] and a.terminated is None:
            if c["kind"] == "reset_each":
                a.allowed(sent + per)
                if a.terminated is not None:
                    break
            payload = b""
            while sent < c["count"] and len(payload) < 1000 and per > 0:
                payload += make(sent)
                sent += 1
                if len(payload) > 1000 or sent % per == 0:
                    break
            a.send(payload)
            if sent % (c.get("settle", 8 * per)) == 0:
                a.settle(5)
        if a.terminated is None:
            a.settle()
        return a.told(sent=sent)

    def ask(self, c):
        """Sends many requests, and takes what comes until so many bytes of answers are there, or all of them."""
        a = self.connections[c["on"]]
        numbers = [4 * (a.requests + n) for n in range(c["count"])]
        a.requests += c["count"]
        for number in numbers:
            a.allowed(number // 4 + 1)
            a.send(stream(number, 0, get(c["path"]), True))
        ended = lambda: all(a.streams.get(n, (0, False))[1] for n in numbers)
        a.pump(ended, c.get("seconds", DEADLINE))
        return a.told(ended=ended())

    def silence(self, c):
        """Sends requests and never acknowledges or reads anything."""
        a = self.connections[c["on"]]
        for n in range(c["count"]):
            a.allowed(n + 1)
            a.send(stream(4 * n, 0, get(c["path"]), True))
        return a.told()

    def unsent(self, c):
        """Acknowledges packets that the server has not sent."""
        a = self.connections[c["on"]]
        a.send(ack([a.largest() + c["ahead"]]))
        a.settle()
        return a.told()

    def optimist(self, c):
        """Asks for a large file, and acknowledges all numbers up to the largest one seen, and some beyond it, at each turn."""
        a = self.connections[c["on"]]
        a.silent = True
        a.send(stream(0, 0, get(c["path"]), True))
        for n in range(c["turns"]):
            seen = a.datagrams
            if not a.pump(lambda: a.datagrams > seen, 1):
                if a.terminated is not None:
                    break
            high = a.largest() + c["ahead"]
            a.send(varint(2, high, 0, 0, high))
        a.silent = False
        a.settle()
        return a.told()

    def spoof(self, c):
        """Sends packets of a connection from other ports. Returns what each of them sent and received."""
        a, seen = self.connections[c["on"]], []
        frames = bytes.fromhex(c["frames"])
        for n in range(c["count"]):
            sock = udp(f"127.0.1.{n + 1}")
            sent = 0
            for _ in range(c.get("packets", 1)):
                packet = a.packet(frames, size=c.get("size", 0))
                sock.sendto(packet, a.addr)
                sent += len(packet)
            seen.append([sock, sent, 0])
        a.settle(2)
        end = time.monotonic() + 0.5
        for row in seen:
            row[0].settimeout(max(end - time.monotonic(), 0.001))
            try:
                while True:
                    row[2] += len(row[0].recv(65536))
            except (TimeoutError, socket.timeout):
                row[0].close()
        return a.told(sockets=[row[1:] for row in seen])

    def hello(self, c):
        """Sends a ClientHello from a socket of its own, and nothing else. Returns what it received in the time."""
        a = Attacker(c)
        datagrams = [data for data, _ in a.quic.datagrams_to_send(time.monotonic())]
        cut = c.get("cut")
        sent = 0
        for data in datagrams:
            data = data[:cut]
            a.sock.sendto(data, a.addr)
            sent += len(data)
        a.sock.settimeout(c.get("seconds", 1))
        got, first = 0, None
        try:
            while True:
                data = a.sock.recv(65536)
                first = first or data[0]
                got += len(data)
        except (TimeoutError, socket.timeout):
            a.sock.close()
        retry = first is not None and first & 0xF0 == 0xF0
        return {"sent": sent, "received": got, "retry": retry}

    def hellos(self, c):
        """Sends ClientHellos from many ports. Returns how many were answered by Retry, and how many by something else."""
        socks, retries, others = [], 0, 0
        for n in range(c["count"]):
            a = Attacker(c)
            for data, _ in a.quic.datagrams_to_send(time.monotonic()):
                a.sock.sendto(data, a.addr)
            socks.append(a.sock)
            # Answers are awaited, so that the server's buffer does not drop any.
            a.sock.settimeout(c.get("seconds", 2))
            try:
                first = a.sock.recv(65536)[0]
                retries, others = (retries + 1, others) if first & 0xF0 == 0xF0 else (retries, others + 1)
            except (TimeoutError, socket.timeout):
                pass
            if not c.get("keep"):
                a.sock.close()
        if c.get("keep"):
            self.sockets += socks
        return {"retries": retries, "others": others}

    def garbage(self, c):
        """Sends datagrams of random bytes, and of each first byte. Returns how many bytes came back."""
        source, sock = random.Random(c.get("seed", 1)), udp()
        sent = got = 0
        sock.settimeout(0)
        for n in range(c["count"]):
            length = source.choice([0, 1, 5, 17, 21, 30, 100, 1199, 1200, 1400])
            data = bytearray(source.randbytes(length))
            if length:
                data[0] = n & 0xFF
            if length > 5 and n % 3 == 0:
                data[1:5] = source.choice([b"\0\0\0\1", b"\x6b\x33\x43\xcf", b"\0\0\0\0", b"\x0a\x0a\x0a\x0a"])
            sock.sendto(data, ("127.0.0.1", c["port"]))
            sent += length
            try:
                while True:
                    got += len(sock.recv(65536))
            except (BlockingIOError, TimeoutError):
                pass
        return {"sent": sent, "received": got}

    def exchange(self, c):
        """Sends a datagram. Returns the answer, empty if there is none."""
        sock = udp()
        sock.sendto(bytes.fromhex(c["datagram"]), ("127.0.0.1", c["port"]))
        sock.settimeout(c.get("seconds", 1))
        try:
            answer = sock.recv(65536)
        except (TimeoutError, socket.timeout):
            answer = b""
        return {"answer": answer.hex()}


session = Session()
for line in sys.stdin:
    command = json.loads(line)
    try:
        told = getattr(session, command["do"])(command)
    except Exception as e:
        told = {"failed": f"{type(e).__name__}: {e}"}
    print(json.dumps(told), flush=True)
