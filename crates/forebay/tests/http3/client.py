"""HTTP/3 client of the tests, on aioquic. It reads commands from standard input, one JSON object a line, and answers each with a line.

A command names what to do ("do"), and connections and streams by names that the test gives them. Connections that are opened with
"raw" have no HTTP of their own: the test writes the bytes of every stream, also wrong ones, which aioquic would refuse to send.
"""

import asyncio
import hashlib
import json
import os
import socket
import ssl
import sys

from aioquic import tls
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import QuicProtocolVersion
from aioquic.quic.events import (
    ConnectionTerminated,
    StopSendingReceived,
    StreamDataReceived,
    StreamReset,
)
from pylsqpack import Decoder

DEADLINE = int(os.environ.get("FOREBAY_TEST_SECONDS", "20"))


class Stream:
    """Request stream, with what has arrived on it."""

    def __init__(self, connection, number):
        self.connection = connection
        self.number = number
        self.heads = []
        self.body = b""
        self.whole = False
        self.ended = False
        self.place = None
        self.reset = None
        self.stopped = None

    def over(self):
        return self.ended or self.reset is not None or self.connection.terminated is not None

    def told(self):
        def text(head):
            return [[n.decode("latin-1"), v.decode("latin-1")] for n, v in head]

        statuses = [int(dict(head).get(b":status", b"0")) for head in self.heads]
        final = next((i for i, status in enumerate(statuses) if status >= 200), None)
        return {
            "stream": self.number,
            "status": 0 if final is None else statuses[final],
            "fields": [] if final is None else text(self.heads[final]),
            "interim": [text(head) for head, status in zip(self.heads, statuses) if 100 <= status < 200],
            "trailers": [] if final is None else [field for head in self.heads[final + 1 :] for field in text(head)],
            "length": len(self.body),
            "text": self.body[:2000].decode("latin-1"),
            "whole": self.body.decode("latin-1") if self.whole else "",
            "hash": hashlib.sha256(self.body).hexdigest(),
            "ended": self.ended,
            "place": self.place,
            "reset": self.reset,
            "stopped": self.stopped,
            "closed": self.connection.closed(),
        }


class Http(H3Connection):
    """HTTP of a connection. aioquic expects content in responses to HEAD, too."""

    def __init__(self, quic):
        super().__init__(quic)
        self.without_content = set()

    def _check_content_length(self, stream):
        if stream.stream_id not in self.without_content:
            super()._check_content_length(stream)


class Connection(QuicConnectionProtocol):
    """Connection, with what has arrived on it."""

    def __init__(self, quic, raw):
        super().__init__(quic)
        self.http = None if raw else Http(quic)
        self.streams = {}
        self.raw_streams = {}
        self.uni = {}
        self.terminated = None
        self.ended = 0
        self.changed = asyncio.Event()
        self.was_reset = False

    def datagram_received(self, data, addr):
        # aioquic does not know stateless resets (RFC 9000, section 10.3).
        ids = [self._quic._peer_cid, *self._quic._peer_cid_available]
        if any(len(data) >= 21 and data[-16:] == cid.stateless_reset_token for cid in ids):
            self.was_reset = True
            self.changed.set()
        super().datagram_received(data, addr)

    def quic_event_received(self, event):
        if isinstance(event, ConnectionTerminated):
            self.terminated = event
        elif isinstance(event, StreamReset):
            self.stream(event.stream_id).reset = event.error_code
        elif isinstance(event, StopSendingReceived):
            self.stream(event.stream_id).stopped = event.error_code
        elif isinstance(event, StreamDataReceived):
            if event.stream_id % 4 == 3:
                self.uni[event.stream_id] = self.uni.get(event.stream_id, b"") + event.data
            elif self.http is None:
                stream = self.stream(event.stream_id)
                stream.body += event.data
                stream.ended |= event.end_stream
        if self.http is not None:
            for part in self.http.handle_event(event):
                stream = self.stream(part.stream_id)
                if isinstance(part, HeadersReceived):
                    stream.heads.append(part.headers)
                elif isinstance(part, DataReceived):
                    stream.body += part.data
                stream.ended |= part.stream_ended
                if part.stream_ended:
                    # Position among the answers of the connection.
                    stream.place = self.ended
                    self.ended += 1
        self.changed.set()

    def stream(self, number):
        return self.streams.setdefault(number, Stream(self, number))

    def closed(self):
        if self.terminated is None:
            return None
        return {"code": self.terminated.error_code, "reason": self.terminated.reason_phrase}

    def control_frames(self):
        """Returns the frames of the server's control stream as pairs of type and payload."""
        for data in self.uni.values():
            kind, at = integer(data, 0)
            if kind != 0:
                continue
            frames = []
            while True:
                kind, at = integer(data, at)
                length, at = integer(data, at)
                if kind is None or length is None or at + length > len(data):
                    return frames
                frames.append((kind, data[at : at + length]))
                at += length
        return []

    def goaways(self):
        return [integer(payload, 0)[0] for kind, payload in self.control_frames() if kind == 7]

    async def until(self, done):
        """Waits until `done` returns true, or the time is over."""
        end = asyncio.get_running_loop().time() + DEADLINE
        while not done():
            self.changed.clear()
            left = end - asyncio.get_running_loop().time()
            if left <= 0:
                return False
            try:
                await asyncio.wait_for(self.changed.wait(), left)
            except asyncio.TimeoutError:
                pass
        return True


def integer(data, at):
    """Reads a variable-length integer (RFC 9000, section 16)."""
    if at is None or at >= len(data):
        return None, None
    length = 1 << (data[at] >> 6)
    if at + length > len(data):
        return None, None
    return int.from_bytes(data[at : at + length], "big") & ((1 << (8 * length - 2)) - 1), at + length


class Client:
    """Connections and streams of a test by their names."""

    def __init__(self):
        self.connections = {}
        self.streams = {}
        self.tickets = {}
        # Of NEW_TOKEN frames.
        self.tokens = {}

    async def connect(self, c):
        conf = QuicConfiguration(
            is_client=True,
            alpn_protocols=[c.get("alpn", "h3")],
            server_name=c.get("name", "localhost"),
            verify_mode=ssl.CERT_NONE,
            session_ticket=self.tickets.get(c.get("ticket")),
            token=self.tokens.get(c.get("token"), b""),
            idle_timeout=60,
        )
        if "suites" in c:
            conf.cipher_suites = [tls.CipherSuite[name] for name in c["suites"]]
        # Bytes that the server may send before this side asks for more.
        conf.max_stream_data = c.get("stream_window", conf.max_stream_data)
        conf.max_data = c.get("window", conf.max_data)
        if "cert" in c:
            conf.load_cert_chain(c["cert"], c["key"])
        if c.get("version") == 2:
            conf.original_version = QuicProtocolVersion.VERSION_2
            conf.supported_versions = [QuicProtocolVersion.VERSION_2]
        if "versions" in c:
            conf.original_version = QuicProtocolVersion.VERSION_1
            conf.supported_versions = [
                {1: QuicProtocolVersion.VERSION_1, 2: QuicProtocolVersion.VERSION_2}[n] for n in c["versions"]
            ]
        raw = c.get("raw", False)

        def ticket(ticket):
            self.tickets[c["as"]] = ticket

        def token(token):
            self.tokens[c["as"]] = token

        def protocol():
            quic = QuicConnection(configuration=conf, session_ticket_handler=ticket, token_handler=token)
            return Connection(quic, raw)

        loop = asyncio.get_running_loop()
        _, p = await loop.create_datagram_endpoint(protocol, local_addr=(c.get("address", "127.0.0.1"), 0))
        # With an early request in the first packets, the server has it before it can answer the handshake.
        p.connect(("127.0.0.1", c["port"]), transmit="early" not in c)
        self.connections[c["as"]] = p
        if "early" in c:
            # Without waiting for the handshake: with a ticket that allows it, the request leaves as 0-RTT.
            await self.request({**c["early"], "on": c["as"]})
        try:
            await asyncio.wait_for(p.wait_connected(), c.get("within", DEADLINE))
        except (ConnectionError, asyncio.TimeoutError):
            return {"connected": False, "closed": p.closed()}
        peer = p._quic.tls._peer_certificate
        return {
            "connected": True,
            "resumed": p._quic.tls.session_resumed,
            "early": p._quic.tls.early_data_accepted,
            "version": p._quic._version,
            "retried": p._quic._retry_source_connection_id is not None,
            "certificate": None if peer is None else peer.subject.rfc4514_string(),
        }

    async def request(self, c):
        p = self.connections[c["on"]]
        number = p._quic.get_next_available_stream_id()
        fields = [
            (":method", c.get("method", "GET")),
            (":scheme", "https"),
            (":authority", c.get("authority", "localhost")),
            (":path", c.get("path", "/")),
        ]
        fields = [(n.encode(), v.encode()) for n, v in fields + [tuple(f) for f in c.get("fields", [])]]
        body = b"x" * c["length"] if "length" in c else c.get("body", "").encode()
        end = c.get("end", True)
        trailers = [(n.encode(), v.encode()) for n, v in c.get("trailers", [])]
        stream = self.streams[c["as"]] = p.stream(number)
        stream.whole = c.get("text", False)
        if c.get("method") == "HEAD":
            p.http.without_content.add(number)
        p.http.send_headers(number, fields, end_stream=end and not body and not trailers)
        if body:
            p.http.send_data(number, body, end_stream=end and not trailers)
        if trailers:
            p.http.send_headers(number, trailers, end_stream=True)
        if not c.get("held"):
            p.transmit()
        return {"stream": number}

    async def priority(self, c):
        """Sends PRIORITY_UPDATE. With "held" it leaves together with what follows."""
        p = self.connections[c["on"]]
        payload = bytes([c["stream"]]) + c["value"].encode()
        p._quic.send_stream_data(p.http._local_control_stream_id, b"\x80\x0f\x07\x00" + bytes([len(payload)]) + payload)
        if not c.get("held"):
            p.transmit()
        return {}

    async def answer(self, c):
        stream = self.streams[c["of"]]
        until = c.get("until", "end")
        if until == "head":
            done = lambda: any(dict(h).get(b":status", b"1") >= b"2" for h in stream.heads) or stream.over()
        elif until == "bytes":
            done = lambda: len(stream.body) >= c["count"] or stream.over()
        elif until == "stopped":
            done = lambda: stream.stopped is not None or stream.connection.terminated is not None
        else:
            done = stream.over
        await stream.connection.until(done)
        return stream.told()

    async def get(self, c):
        await self.request({**c, "as": "-"})
        return await self.answer({"of": "-"})

    async def many(self, c):
        """Sends requests in groups of so many at a time. Returns how often each status and length came."""
        p, seen = self.connections[c["on"]], {}
        for _ in range(c.get("groups", 1)):
            for n in range(c["count"]):
                await self.request({**c, "as": f"-{n}"})
            for n in range(c["count"]):
                told = await self.answer({"of": f"-{n}"})
                key = f"{told['status']} {told['length']} {told['ended']}"
                seen[key] = seen.get(key, 0) + 1
                del self.streams[f"-{n}"]
        return {"seen": seen, "goaways": p.goaways()}

    async def body(self, c):
        stream = self.streams[c["of"]]
        body = b"x" * c["length"] if "length" in c else c.get("body", "").encode()
        stream.connection.http.send_data(stream.number, body, end_stream=c.get("end", True))
        stream.connection.transmit()
        return {}

    async def reset(self, c):
        stream = self.streams[c["of"]]
        stream.connection._quic.reset_stream(stream.number, c.get("code", 0x10C))
        stream.connection.transmit()
        return {}

    async def stop(self, c):
        stream = self.streams[c["of"]]
        stream.connection._quic.stop_stream(stream.number, c.get("code", 0x10C))
        stream.connection.transmit()
        return {}

    async def rapid(self, c):
        """Sends requests and resets each at once, until the server has enough. Returns how many there were."""
        p = self.connections[c["on"]]
        for n in range(c["count"]):
            if p.terminated is not None:
                return {"sent": n, "closed": p.closed()}
            await self.request({"on": c["on"], "as": "-", "path": c["path"], "end": False})
            await self.reset({"of": "-"})
            # Fewer than a client may have open at first: aioquic resets streams that it may not open yet.
            if n % 10 == 9:
                await p.ping_or_end()
        await p.until(lambda: p.terminated is not None)
        return {"sent": c["count"], "closed": p.closed()}

    async def raw(self, c):
        """Writes bytes to streams: [stream, hex, end] or [stream, "reset" or "stop", code]."""
        p = self.connections[c["on"]]
        for name, what, more in c["steps"]:
            if name not in p.raw_streams:
                uni = name.startswith("uni")
                number = p._quic.get_next_available_stream_id(is_unidirectional=uni)
                p.raw_streams[name] = number
                # The number is taken by the first bytes.
                p._quic.send_stream_data(number, b"")
                self.streams[name] = p.stream(number)
            number = p.raw_streams[name]
            if what == "reset":
                p.transmit()
                p._quic.reset_stream(number, more)
            elif what == "stop":
                p._quic.stop_stream(number, more)
            else:
                p._quic.send_stream_data(number, bytes.fromhex(what), end_stream=more)
        p.transmit()
        return {}

    async def decode(self, c):
        """Decodes the head of an answer that came on a stream of a raw connection, with the instructions of the server's encoder stream.
        Returns the section, the fields, and the bytes for the decoder stream."""
        p, stream = self.connections[c["on"]], self.streams[c["of"]]
        if not hasattr(p, "decoder"):
            p.decoder, p.instructions = Decoder(c["capacity"], 0), 0
        for data in p.uni.values():
            if data[:1] == b"\x02":
                p.decoder.feed_encoder(data[max(1, p.instructions) :])
                p.instructions = len(data)
        kind, at = integer(stream.body, 0)
        length, at = integer(stream.body, at)
        section = stream.body[at : at + length]
        feedback, fields = p.decoder.feed_header(stream.number, section)
        return {
            "kind": kind,
            "section": section.hex(),
            "feedback": feedback.hex(),
            "fields": [[n.decode("latin-1"), v.decode("latin-1")] for n, v in fields],
        }

    async def raw_own(self, c):
        """Stops a stream of the server: its control stream is 3, its decoder stream 7."""
        p = self.connections[c["on"]]
        p._quic.stop_stream(c["stream"], c.get("code", 0x100))
        p.transmit()
        return {}

    async def state(self, c):
        p = self.connections[c["on"]]
        return {
            "goaways": p.goaways(),
            "closed": p.closed(),
            "was_reset": p.was_reset,
            "settings": {} if p.http is None else p.http.received_settings or {},
            "uni": {str(n): data.hex() for n, data in p.uni.items()},
        }

    async def wait(self, c):
        p = self.connections[c["on"]]
        done = {"goaway": p.goaways, "closed": lambda: p.terminated is not None, "reset": lambda: p.was_reset}[c["for"]]
        await p.until(done)
        return await self.state(c)

    async def send_ping(self, c):
        """Sends a PING frame without waiting for an answer."""
        p = self.connections[c["on"]]
        p._quic.send_ping(1)
        p.transmit()
        return {}

    async def ping(self, c):
        await self.connections[c["on"]].ping_or_end()
        return await self.state(c)

    async def move(self, c):
        """Goes on from another local port, or another address. A request may be the first that leaves from there."""
        p = self.connections[c["on"]]
        old = p._transport
        loop = asyncio.get_running_loop()
        new = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        new.setblocking(False)
        new.bind((c.get("address", "127.0.0.1"), 0))
        ports = [old.get_extra_info("sockname")[1], new.getsockname()[1]]
        await loop.create_datagram_endpoint(lambda: p, sock=new)
        old.close()
        p._quic.change_connection_id()
        if "request" in c:
            await self.request({**c["request"], "on": c["on"]})
        else:
            p.transmit()
        return {"ports": ports}

    async def close(self, c):
        p = self.connections[c["on"]]
        p.close()
        return {}


async def ping_or_end(self):
    """Waits until the server has received everything, or the connection has ended."""
    if self.terminated is not None:
        return
    try:
        await asyncio.wait_for(self.ping(), DEADLINE)
    except (ConnectionError, asyncio.TimeoutError):
        pass


Connection.ping_or_end = ping_or_end


async def main():
    client = Client()
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command = json.loads(line)
        try:
            told = await getattr(client, command["do"])(command)
        except Exception as e:
            told = {"failed": f"{type(e).__name__}: {e}"}
        print(json.dumps(told), flush=True)


asyncio.run(main())
