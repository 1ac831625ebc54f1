"""Origins over HTTP/1, FastCGI, uwsgi, SCGI and memcached, servers of streams, and a name server. Started by main.py as a process.

Lines on standard input are commands: `vanish SECONDS`, `move ADDRESS`. Lines on standard output are JSON.
"""

import asyncio
import base64
import hashlib
import json
import os
import socket
import ssl
import struct
import sys
import time

import answer
import content
import origin_http2
import origin_http3

FIND = lambda **what: print(json.dumps({"t": time.monotonic(), "kind": "origin", **what}), flush=True)
# Time for which the former address of the name that moves may be connected to.
GRACE = 6


class Names:
    """Addresses of the names of the resolver."""

    def __init__(self):
        self.address = "127.0.0.2"
        self.left = {}

    def move(self, address):
        self.left[self.address] = time.monotonic()
        self.left.pop(address, None)
        self.address = address

    def check(self, local):
        """Finds a connection that comes to an address long after the name has left it."""
        since = self.left.get(local)
        if since and time.monotonic() - since > GRACE:
            FIND(what="stale-address", text=f"a connection to {local}, {time.monotonic() - since:.1f} s after the name had left it")


NAMES = Names()


def reset(writer):
    sock = writer.get_extra_info("socket")
    if sock is not None:
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        except OSError:
            pass
    writer.transport.abort()


class Stream(answer.Out):
    """An answer on a connection of its own or of its turn."""

    def __init__(self, writer):
        self.writer, self.open = writer, True

    async def drop(self, hard):
        self.open = False
        if hard:
            reset(self.writer)
        else:
            await self.flush()
            self.writer.close()

    async def flush(self):
        await self.writer.drain()


class Http1(Stream):
    def __init__(self, writer, method, version, close):
        super().__init__(writer)
        self.method, self.version, self.close, self.framing = method, version, close, "eof"

    async def head(self, status, headers, length):
        lines = [f"HTTP/1.1 {status} Soak"] + [f"{k}: {v}" for k, v in headers]
        if status in (204, 304):
            self.framing = "none"
        elif length is not None:
            self.framing = "cl"
            lines.append(f"content-length: {length}")
        elif self.wants_chunks:
            self.framing = "ch"
            lines.append("transfer-encoding: chunked")
        else:
            self.close = True
        if self.close:
            lines.append("connection: close")
        self.writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        await self.flush()

    async def data(self, data):
        if not data or self.method == "HEAD":
            return
        self.writer.write(b"%x\r\n%s\r\n" % (len(data), data) if self.framing == "ch" else data)
        await self.flush()

    async def end(self):
        if self.framing == "ch" and self.method != "HEAD":
            self.writer.write(b"0\r\n\r\n")
        await self.flush()
        if self.close:
            await self.drop(False)

    async def raw(self, data):
        self.writer.write(data)
        await self.drop(False)


async def http1_body(reader, headers):
    if headers.get("transfer-encoding", "") == "chunked":
        while True:
            line = await reader.readline()
            if not line:
                raise asyncio.IncompleteReadError(b"", 1)
            size = int(line.split(b";")[0], 16)
            if size:
                yield await reader.readexactly(size)
            await reader.readline()
            if not size:
                return
    left = int(headers.get("content-length", 0))
    while left:
        data = await reader.read(min(left, 65536))
        if not data:
            raise asyncio.IncompleteReadError(b"", left)
        left -= len(data)
        yield data


async def http1_request(reader, writer):
    """Serves one request. Returns whether another may follow."""
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    method, target, version = lines[0].split(" ")
    headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:] if line)}
    if "upgrade" in headers and method == "GET":
        await echo_tunnel(reader, writer, headers.get("sec-websocket-key", ""))
        return False
    ask = answer.Ask(method, target, headers, http1_body(reader, headers))
    out = Http1(writer, method, version, headers.get("connection", "").lower() == "close" or version == "HTTP/1.0")
    out.wants_chunks = version == "HTTP/1.1" and ask.args.get("f") != "eof"
    await answer.respond(ask, out)
    return out.open


async def http1_moving(reader, writer):
    NAMES.check(writer.get_extra_info("sockname")[0])
    await http1(reader, writer)


async def http1(reader, writer):
    while await http1_request(reader, writer):
        pass


async def echo_tunnel(reader, writer, key):
    accept = base64.b64encode(hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest())
    writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: %s\r\n\r\n" % accept)
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def nothing():
    return
    yield b""


async def exactly(reader, length):
    left = length
    while left:
        data = await reader.read(min(left, 65536))
        if not data:
            return
        left -= len(data)
        yield data


class Cgi(Stream):
    """An answer with the head of CGI; a close is its end."""

    async def head(self, status, headers, length):
        lines = [f"Status: {status} Soak"] + [f"{k}: {v}" for k, v in headers]
        if length is not None:
            lines.append(f"content-length: {length}")
        await self.put(("\r\n".join(lines) + "\r\n\r\n").encode())

    async def put(self, data):
        self.writer.write(data)
        await self.flush()

    async def data(self, data):
        await self.put(data)

    async def end(self):
        await self.drop(False)

    async def raw(self, data):
        if data.startswith(b"HTTP"):
            await self.put(b"\x00\x01 no head\r\n\r\n")
        await self.drop(False)


def cgi_ask(params, chunks):
    headers = {k[5:].lower().replace("_", "-"): v for k, v in params.items() if k.startswith("HTTP_")}
    return answer.Ask(params.get("REQUEST_METHOD", "GET"), params.get("REQUEST_URI", "/"), headers, chunks)


async def scgi(reader, writer):
    length = int((await reader.readuntil(b":"))[:-1])
    words = (await reader.readexactly(length + 1))[:-1].split(b"\0")
    params = {k.decode(): v.decode() for k, v in zip(words[::2], words[1::2])}
    await answer.respond(cgi_ask(params, exactly(reader, int(params.get("CONTENT_LENGTH") or 0))), Cgi(writer))


async def uwsgi(reader, writer):
    _, size, _ = struct.unpack("<BHB", await reader.readexactly(4))
    data, at, words = await reader.readexactly(size), 0, []
    while at < size:
        length = struct.unpack_from("<H", data, at)[0]
        words.append(data[at + 2 : at + 2 + length].decode())
        at += 2 + length
    params = dict(zip(words[::2], words[1::2]))
    await answer.respond(cgi_ask(params, exactly(reader, int(params.get("CONTENT_LENGTH") or 0))), Cgi(writer))


class FastCgi(Cgi):
    """An answer in records."""

    def __init__(self, writer, keep):
        super().__init__(writer)
        self.keep = keep

    def record(self, kind, data):
        return struct.pack(">BBHHBx", 1, kind, 1, len(data), 0) + data

    async def put(self, data):
        for at in range(0, len(data), 65000):
            self.writer.write(self.record(6, data[at : at + 65000]))
        await self.flush()

    async def end(self):
        self.writer.write(self.record(6, b"") + self.record(3, b"\0" * 8))
        await self.flush()
        if not self.keep:
            await self.drop(False)


def fastcgi_params(data):
    params, at = {}, 0
    while at < len(data):
        lengths = []
        for _ in range(2):
            if data[at] & 0x80:
                lengths.append(struct.unpack_from(">I", data, at)[0] & 0x7FFFFFFF)
                at += 4
            else:
                lengths.append(data[at])
                at += 1
        name, value = data[at : at + lengths[0]], data[at + lengths[0] : at + sum(lengths)]
        params[name.decode()] = value.decode()
        at += sum(lengths)
    return params


async def fastcgi_record(reader):
    _, kind, _, length, padding = struct.unpack(">BBHHBx", await reader.readexactly(8))
    data = await reader.readexactly(length)
    await reader.readexactly(padding)
    return kind, data


async def fastcgi_input(reader):
    while True:
        kind, data = await fastcgi_record(reader)
        if kind == 5 and not data:
            return
        if kind == 5:
            yield data


async def fastcgi(reader, writer):
    while True:
        kind, data = await fastcgi_record(reader)
        assert kind == 1, kind
        out, params = FastCgi(writer, bool(data[2] & 1)), b""
        while True:
            kind, data = await fastcgi_record(reader)
            if kind == 4 and not data:
                break
            params += data
        await answer.respond(cgi_ask(fastcgi_params(params), fastcgi_input(reader)), out)
        if not out.open:
            return


class Memcached(Stream):
    def __init__(self, writer, key):
        super().__init__(writer)
        self.key = key

    async def head(self, status, headers, length):
        if status != 200:
            self.writer.write(b"END\r\n")
            return
        self.writer.write(b"VALUE %s 0 %d\r\n" % (self.key, length))

    async def data(self, data):
        self.writer.write(data)
        await self.flush()

    async def end(self):
        self.writer.write(b"\r\nEND\r\n")
        await self.flush()

    async def raw(self, data):
        self.writer.write(b"GARBAGE\r\n")
        await self.drop(False)


async def memcached(reader, writer):
    while True:
        word, _, key = (await reader.readuntil(b"\r\n"))[:-2].partition(b" ")
        assert word == b"get", word
        ask = answer.Ask("GET", key.decode(), {}, nothing())
        if ask.args.get("f") != "cl":
            ask.args["f"] = "cl"
        out = Memcached(writer, key)
        await answer.respond(ask, out)
        if not out.open:
            return


async def stream_server(reader, writer):
    """Answers `NAME LENGTH MODE` and as many bytes with the body of that name and a digest of what it got."""
    name, length, mode = (await reader.readuntil(b"\n")).decode().split()
    sha = hashlib.sha256()
    async for data in exactly(reader, int(length)):
        sha.update(data)
    body = content.body(name + ".0")
    if mode == "reset":
        writer.write(body[: len(body) // 2])
        await writer.drain()
        reset(writer)
        return
    for at in range(0, len(body), 16384):
        writer.write(body[at : at + 16384])
        await writer.drain()
    writer.write(sha.hexdigest().encode())
    await writer.drain()
    writer.close()


class UdpServer(asyncio.DatagramProtocol):
    """Answers `NONCE NAME` with the nonce and the body of that name."""

    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, peer):
        nonce, _, name = data.partition(b" ")
        if content.parse(name.decode("latin-1")):
            self.transport.sendto(nonce + b" " + content.body(name.decode() + ".0"), peer)


class NameServer(asyncio.DatagramProtocol):
    """Answers questions for the address of a name with one that changes."""

    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, peer):
        end = data.index(b"\0", 12) + 5
        question, kind = data[12:end], struct.unpack_from(">H", data, end - 4)[0]
        address = b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 1, 4) + socket.inet_aton(NAMES.address) if kind == 1 else b""
        head = data[:2] + struct.pack(">HHHHH", 0x8580, 1, 1 if address else 0, 0, 0)
        self.transport.sendto(head + question + address, peer)


def guarded(serve):
    """Wraps a server of a connection: what clients and proxies break off is not of interest."""

    async def serve_guarded(reader, writer):
        try:
            await serve(reader, writer)
        except (OSError, EOFError, asyncio.IncompleteReadError, ssl.SSLError):
            pass
        except Exception as e:  # noqa: BLE001
            FIND(what="origin-error", text=f"{serve.__name__}: {type(e).__name__}: {e}")
        finally:
            writer.close()

    return serve_guarded


class Vanishing:
    """A server whose port closes for a while, with all its connections."""

    def __init__(self, port):
        self.port, self.server, self.writers = port, None, set()

    async def open(self):
        self.server = await asyncio.start_server(self.serve, "0.0.0.0", self.port, backlog=500, reuse_address=True)

    async def serve(self, reader, writer):
        self.writers.add(writer)
        try:
            await guarded(http1)(reader, writer)
        finally:
            self.writers.discard(writer)

    async def vanish(self, seconds):
        self.server.close()
        for writer in list(self.writers):
            reset(writer)
        await asyncio.sleep(seconds)
        await self.open()


async def commands(vanishing):
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := (await reader.readline()).decode().split():
        if line[0] == "vanish":
            asyncio.ensure_future(vanishing.vanish(float(line[1])))
        elif line[0] == "move":
            NAMES.move(line[1])


async def main(ports, directory):
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(f"{directory}/origin.pem", f"{directory}/origin.key")
    tls_h2 = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls_h2.load_cert_chain(f"{directory}/origin.pem", f"{directory}/origin.key")
    tls_h2.set_alpn_protocols(["h2"])
    loop = asyncio.get_running_loop()
    servers = [("O_H1", http1, None), ("O_H1B", http1, None), ("O_MOVE", http1_moving, None), ("O_TLS", http1, tls), ("O_H2", origin_http2.serve, None),
               ("O_H2TLS", origin_http2.serve, tls_h2), ("O_FCGI", fastcgi, None), ("O_UWSGI", uwsgi, None), ("O_SCGI", scgi, None),
               ("O_MC", memcached, None), ("O_STREAM", stream_server, None)]
    for name, serve, context in servers:
        await asyncio.start_server(guarded(serve), "0.0.0.0", ports[name], ssl=context, backlog=1000)
    await loop.create_datagram_endpoint(UdpServer, local_addr=("127.0.0.1", ports["O_UDP"]))
    await loop.create_datagram_endpoint(NameServer, local_addr=("127.0.0.1", ports["O_DNS"]))
    await origin_http3.listen(ports["O_H3"], directory)
    vanishing = Vanishing(ports["O_FLAKY"])
    await vanishing.open()
    print(json.dumps({"ready": os.getpid()}), flush=True)
    await commands(vanishing)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1]), sys.argv[2]))
