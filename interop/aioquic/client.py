"""Client of the interoperability matrix on aioquic. See README.md for what it is called with."""

import asyncio
import hashlib
import socket
import ssl
import sys

from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import ConnectionTerminated, StreamReset
from aioquic.quic.packet import QuicProtocolVersion
from aioquic.tls import CipherSuite, Epoch

DEADLINE = 30
V1, V2 = QuicProtocolVersion.VERSION_1, QuicProtocolVersion.VERSION_2
UNKNOWN = 0x1A2A3A4A


class Failed(Exception):
    pass


class Download:
    def __init__(self):
        self.status, self.hash, self.length, self.done, self.failed = None, hashlib.sha256(), 0, False, None


class Connection(QuicConnectionProtocol):
    def __init__(self, quic):
        super().__init__(quic)
        self.http = H3Connection(quic)
        self.downloads = {}
        self.changed = asyncio.Event()

    def quic_event_received(self, event):
        if isinstance(event, ConnectionTerminated):
            for download in self.downloads.values():
                download.failed = f"the connection ended: {event.error_code:#x} {event.reason_phrase}"
        elif isinstance(event, StreamReset):
            self.downloads[event.stream_id].failed = f"reset: {event.error_code:#x}"
        for part in self.http.handle_event(event):
            download = self.downloads[part.stream_id]
            if isinstance(part, HeadersReceived):
                download.status = dict(part.headers)[b":status"]
            elif isinstance(part, DataReceived):
                download.hash.update(part.data)
                download.length += len(part.data)
            download.done |= part.stream_ended
        self.changed.set()

    def start(self, path):
        number = self._quic.get_next_available_stream_id()
        self.downloads[number] = Download()
        fields = [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", b"localhost"), (b":path", path.encode())]
        self.http.send_headers(number, fields, end_stream=True)
        self.transmit()
        return self.downloads[number]

    async def until(self, done):
        while not done():
            self.changed.clear()
            await asyncio.wait_for(self.changed.wait(), DEADLINE)

    async def finish(self, download, wanted):
        await self.until(lambda: download.done or download.failed)
        if download.failed:
            raise Failed(download.failed)
        if download.status != b"200":
            raise Failed(f"status {download.status}")
        if download.hash.hexdigest() != wanted:
            raise Failed(f"{download.length} bytes with another content")

    async def fetch(self, files):
        """Downloads all at the same time."""
        begun = [(self.start(path), wanted) for path, wanted in files]
        for download, wanted in begun:
            await self.finish(download, wanted)


class Client:
    def __init__(self, address):
        self.address = address
        self.ticket = None

    async def connect(self, wait=True, **settings):
        settings = {"alpn_protocols": ["h3"], "server_name": "localhost", "verify_mode": ssl.CERT_NONE, **settings}
        conf = QuicConfiguration(is_client=True, session_ticket=self.ticket, **settings)

        def keep(ticket):
            self.ticket = ticket

        quic = QuicConnection(configuration=conf, session_ticket_handler=keep)
        loop = asyncio.get_running_loop()
        host = "::1" if ":" in self.address[0] else "127.0.0.1"
        _, connection = await loop.create_datagram_endpoint(lambda: Connection(quic), local_addr=(host, 0))
        connection.connect(self.address)
        if wait:
            await asyncio.wait_for(connection.wait_connected(), DEADLINE)
        return connection

    async def once(self, files, **settings):
        connection = await self.connect(**settings)
        await connection.fetch(files)
        await self.close(connection)
        return connection

    async def close(self, connection):
        connection.close()
        await asyncio.wait_for(connection.wait_closed(), DEADLINE)

    async def handshake(self, files):
        await self.once(files)

    retry = multiplexing = http3 = handshake

    async def multiconnect(self, files):
        for file in files:
            self.ticket = None
            await self.once([file])

    async def transfer(self, files):
        await self.once(files, max_data=1 << 17, max_stream_data=1 << 16)

    async def chacha20(self, files):
        await self.once(files, cipher_suites=[CipherSuite.CHACHA20_POLY1305_SHA256])

    async def versionnegotiation(self, files):
        await self.once(files, supported_versions=[UNKNOWN, V1])

    async def v2(self, files):
        await self.once(files, supported_versions=[V2, V1], original_version=V2)

    async def v2upgrade(self, files):
        connection = await self.once(files, supported_versions=[V2, V1], original_version=V1)
        if connection._quic._version != V2:
            raise Failed("the connection stayed in version 1")

    async def resumption(self, files):
        await self.first(files)
        connection = await self.once(files[1:])
        if not connection._quic.tls.session_resumed:
            raise Failed("the session was not resumed")

    async def zerortt(self, files):
        await self.first(files)
        connection = await self.connect(wait=False)
        await connection.fetch(files[1:])
        if not connection._quic.tls.early_data_accepted:
            raise Failed("the server took no early data")
        await self.close(connection)

    async def first(self, files):
        """Makes the connection whose session the next one resumes."""
        connection = await self.connect()
        await connection.fetch(files[:1])
        await connection.ping()
        await self.close(connection)
        if self.ticket is None:
            raise Failed("no ticket")

    async def keyupdate(self, files):
        connection = await self.connect()
        crypto = connection._quic._cryptos[Epoch.ONE_RTT]
        for _ in range(2):
            await connection.fetch(files)
            # Servers begin updates, too, so the phase alone, which is one bit, says nothing.
            old = crypto.send.secret
            connection._quic.request_key_update()
            await connection.ping()
            if crypto.send.secret == old:
                raise Failed("no update")
        await connection.fetch(files)
        await self.close(connection)

    async def migration(self, files):
        connection = await self.connect()
        (path, wanted), *_ = files
        download = connection.start(path)
        await connection.until(lambda: download.length > 100_000 or download.failed)
        # The connection goes on from another local port, under another connection id.
        new = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        new.setblocking(False)
        new.bind(("127.0.0.1", 0))
        old = connection._transport
        await asyncio.get_running_loop().create_datagram_endpoint(lambda: connection, sock=new)
        old.close()
        connection.change_connection_id()
        await connection.ping()
        await connection.finish(download, wanted)
        await self.close(connection)


async def main():
    case, address, *files = sys.argv[1:]
    host, port = address.rsplit(":", 1)
    # aioquic tells paths apart by addresses as the system names them.
    flow = (0, 0) if ":" in host else ()
    run = getattr(Client((host.strip("[]"), int(port), *flow)), case, None)
    if run is None:
        sys.exit(127)
    try:
        await run([tuple(file.rsplit("=", 1)) for file in files])
    except (Failed, ConnectionError, asyncio.TimeoutError) as e:
        print(f"{type(e).__name__}: {e}".rstrip(": "))
        sys.exit(1)


asyncio.run(main())
