"""Server of the interoperability matrix on aioquic. See README.md for what it is called with."""

import asyncio
import hashlib
import sys

from aioquic.asyncio import serve
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ProtocolNegotiated

# It neither sends nor reports ECN.
UNSUPPORTED = ["ecn"]
# Datagrams of the client after which the keys change.
UPDATE_AFTER = 60


class Connection(QuicConnectionProtocol):
    case, root = None, None

    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        self.http, self.requests, self.received, self.update_at = None, {}, 0, UPDATE_AFTER

    def datagram_received(self, data, addr):
        super().datagram_received(data, addr)
        self.received += 1
        # An update has to be complete before the next one.
        if self.case == "keyupdate" and self.received >= self.update_at:
            self._quic.request_key_update()
            print("key update", flush=True)
            self.update_at += UPDATE_AFTER
            self.transmit()

    def quic_event_received(self, event):
        if isinstance(event, ProtocolNegotiated):
            self.http = H3Connection(self._quic)
        for part in self.http.handle_event(event) if self.http else []:
            if isinstance(part, HeadersReceived):
                self.requests[part.stream_id] = (dict(part.headers), hashlib.sha256())
            elif isinstance(part, DataReceived):
                self.requests[part.stream_id][1].update(part.data)
            if part.stream_ended:
                self.answer(part.stream_id)

    def answer(self, number):
        fields, content = self.requests.pop(number)
        status, body = "200", content.hexdigest().encode()
        if fields[b":method"] == b"GET":
            try:
                with open(self.root + fields[b":path"].decode(), "rb") as f:
                    body = f.read()
            except OSError:
                status, body = "404", b""
        self.http.send_headers(number, [(b":status", status.encode()), (b"content-length", str(len(body)).encode())])
        self.http.send_data(number, body, end_stream=True)
        self.transmit()


class Tickets:
    """Sessions that clients may resume."""

    def __init__(self):
        self.tickets = {}

    def add(self, ticket):
        self.tickets[ticket.ticket] = ticket

    def pop(self, label):
        return self.tickets.pop(label, None)


async def main():
    case, address, dir = sys.argv[1:]
    host, port = address.rsplit(":", 1)
    if case in UNSUPPORTED:
        sys.exit(127)
    Connection.case, Connection.root = case, f"{dir}/html"
    conf = QuicConfiguration(is_client=False, alpn_protocols=["h3"])
    large = case in ("resumption", "amplificationlimit")
    conf.load_cert_chain(f"{dir}/large.pem" if large else f"{dir}/cert.pem", f"{dir}/key.pem")
    tickets = Tickets()
    await serve(host, int(port), configuration=conf, create_protocol=Connection, retry=case == "retry",
                session_ticket_handler=tickets.add, session_ticket_fetcher=tickets.pop)
    await asyncio.Event().wait()


asyncio.run(main())
