"""Backends and clients for the tests: an HTTP/1.1 server that names itself, clients that keep their connections, and WebSockets."""

import asyncio
import time


class Backend:
    """Answers each request with its name. After `Upgrade` it sends back what it receives."""

    def __init__(self, name, host, port):
        self.name, self.host, self.port, self.requests = name, host, port, 0

    async def start(self):
        self.server = await asyncio.start_server(self.serve, self.host, self.port, backlog=1000)

    async def serve(self, reader, writer):
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.requests += 1
                if b"pgrade: websocket" in head:
                    writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n")
                    while data := await reader.read(65536):
                        writer.write(data)
                    return
                body = self.name.encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()


class Connection:
    """Connection of a client that sends one request after the other."""

    def __init__(self, port, host="127.0.0.1"):
        self.address = (host, port)
        self.writer = None

    async def get(self, host, path="/", more=""):
        """Returns the status and the content."""
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection(*self.address)
        self.writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{more}\r\n".encode())
        head = await self.reader.readuntil(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
        if fields.get(b"transfer-encoding") == b"chunked":
            content = b""
            while size := int((await self.reader.readline()).strip() or b"0", 16):
                content += (await self.reader.readexactly(size + 2))[:-2]
            await self.reader.readline()
        else:
            content = await self.reader.readexactly(int(fields.get(b"content-length", 0)))
        if fields.get(b"connection") == b"close":
            self.close()
        return status, content.decode(errors="replace")

    def close(self):
        if self.writer is not None:
            self.writer.close()
            self.writer = None


async def answer(port, host, path="/", more=""):
    """Returns status and content of a request on a connection of its own; status 0 if there is no answer."""
    connection = Connection(port)
    try:
        return await asyncio.wait_for(connection.get(host, path, more), 5)
    except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError):
        return 0, ""
    finally:
        connection.close()


class Load:
    """Clients that keep a connection each and must never see a failure, and WebSockets that must never close."""

    def __init__(self, port, hosts, clients=20, sockets=50, pause=0.05, websocket_host=None, every=1):
        self.port, self.hosts, self.pause = port, hosts, pause
        self.clients, self.sockets = clients, sockets
        # Seconds between two messages on a WebSocket.
        self.every, self.open = every, 0
        self.websocket_host = websocket_host or hosts[0]
        self.requests = self.messages = 0
        self.failures, self.stopping = [], False

    async def client(self, number):
        connection, turn = Connection(self.port), number
        first = True
        while not self.stopping:
            host = self.hosts[turn % len(self.hosts)]
            turn += 1
            try:
                was_open = connection.writer is not None
                if not was_open and not first:
                    self.failures.append(f"{time.time():.2f} a connection was closed")
                first = False
                status, _ = await asyncio.wait_for(connection.get(host), 10)
                self.requests += 1
                if status != 200:
                    self.failures.append(f"{time.time():.2f} {host}: status {status}")
            except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError) as error:
                self.failures.append(f"{time.time():.2f} {host}: {error!r}")
                connection.close()
            await asyncio.sleep(self.pause)
        connection.close()

    async def socket(self, number):
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            writer.write(
                f"GET /ws HTTP/1.1\r\nHost: {self.websocket_host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
                "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
            )
            head = await reader.readuntil(b"\r\n\r\n")
            if b" 101 " not in head:
                self.failures.append(f"WebSocket: {head[:60]!r}")
                return
            self.open += 1
            while not self.stopping:
                writer.write(b"ping")
                await asyncio.wait_for(reader.readexactly(4), 10)
                self.messages += 1
                await asyncio.sleep(self.every)
            writer.close()
        except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError) as error:
            self.failures.append(f"{time.time():.2f} WebSocket {number}: {error!r}")

    def start(self):
        self.tasks = [asyncio.create_task(self.client(n)) for n in range(self.clients)]
        self.tasks += [asyncio.create_task(self.socket(n)) for n in range(self.sockets)]

    async def stop(self):
        self.stopping = True
        await asyncio.gather(*self.tasks)


def percentile(values, part):
    """Returns the value below which a part of the values lies (0.99: p99)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]
