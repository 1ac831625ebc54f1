"""Clients over HTTP/3 (aioquic): several requests at a time, clients that read nothing for a while, streams and connections that are left."""

import asyncio
import ssl
import time
import traceback

import aioquic.asyncio
import aioquic.asyncio.protocol
import aioquic.buffer
import aioquic.h3.connection
import aioquic.h3.events
import aioquic.quic.configuration
import aioquic.quic.events

import cases
import check
from client_http1 import IDLE, Manner


# Streams from that of a GOAWAY on are not served (RFC 9114, section 5.2).
NEVER = 1 << 62


class Exchange:
    """One request and its response."""

    def __init__(self, request, manner, name, reused):
        self.request, self.manner = request, manner
        self.outcome, self.check = check.Outcome(request, session=name, reused=reused), check.Check(request)
        self.done = asyncio.Event()
        self.last = time.monotonic()

    def finish(self, error="", left=False):
        self.outcome.error, self.outcome.left = error or self.outcome.error, left or self.outcome.left
        self.done.set()


class Control:
    """Reads GOAWAY on the server's control stream, which the library passes over."""

    def __init__(self):
        self.bytes, self.goaway = {}, NEVER

    def take(self, stream, data):
        if stream % 4 != 3:
            return
        held = self.bytes[stream] = self.bytes.get(stream, b"") + data
        buffer = aioquic.buffer.Buffer(data=held)
        try:
            if buffer.pull_uint_var() != 0:
                self.bytes[stream] = held[:1]
                return
            while not buffer.eof():
                kind, length = buffer.pull_uint_var(), buffer.pull_uint_var()
                payload = buffer.pull_bytes(length)
                if kind == 7:
                    self.goaway = min(self.goaway, aioquic.buffer.Buffer(data=payload).pull_uint_var())
        except aioquic.buffer.BufferReadError:
            # The rest of a frame is on its way.
            pass


class Protocol(aioquic.asyncio.QuicConnectionProtocol):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.control = Control()
        self.http, self.exchanges, self.held, self.over, self.paused, self.going = None, {}, [], "", False, False
        # Nothing of it is read any more.
        self.dead = False

    def datagram_received(self, data, addr):
        if self.dead:
            return
        if self.paused:
            # As in the receive buffer of a client that does not get to read.
            if len(self.held) < 600:
                self.held.append((data, addr))
            return
        super().datagram_received(data, addr)

    def pause(self, seconds):
        self.paused = True
        asyncio.get_running_loop().call_later(seconds, self.go_on)

    def go_on(self):
        self.paused = False
        held, self.held = self.held, []
        for data, addr in held:
            self.datagram_received(data, addr)

    def quic_event_received(self, event):
        if isinstance(event, aioquic.quic.events.ProtocolNegotiated):
            self.http = aioquic.h3.connection.H3Connection(self._quic)
        elif isinstance(event, aioquic.quic.events.StreamDataReceived):
            self.control.take(event.stream_id, event.data)
        elif isinstance(event, aioquic.quic.events.ConnectionTerminated):
            self.over = f"closed ({event.error_code:#x} {event.reason_phrase})"
            for stream, exchange in list(self.exchanges.items()):
                exchange.finish(f"{self.over}, stream {stream}, GOAWAY {self.control.goaway}", left=stream >= self.control.goaway)
        elif isinstance(event, aioquic.quic.events.StreamReset) and event.stream_id in self.exchanges:
            # H3_REQUEST_REJECTED: the request may be sent again elsewhere.
            self.exchanges[event.stream_id].finish(f"reset by the server ({event.error_code:#x})", left=event.error_code == 0x10B)
        if self.http is None:
            return
        for http_event in self.http.handle_event(event):
            exchange = self.exchanges.get(getattr(http_event, "stream_id", None))
            if exchange is not None and not exchange.done.is_set():
                self.take(exchange, http_event)

    def take(self, exchange, event):
        outcome, manner = exchange.outcome, exchange.manner
        exchange.last = time.monotonic()
        if isinstance(event, aioquic.h3.events.HeadersReceived) and not outcome.status:
            headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in event.headers}
            outcome.status = int(headers[":status"])
            exchange.check.head(outcome.status, headers)
        elif isinstance(event, aioquic.h3.events.DataReceived):
            exchange.check.data(event.data)
            outcome.wire += len(event.data)
        if 0 <= manner.pause_at <= outcome.wire:
            manner.pause_at = -1
            self.pause(manner.pause)
        if 0 <= manner.leave_at <= outcome.wire and not event.stream_ended:
            exchange.finish(left=True)
            return
        if event.stream_ended:
            outcome.complete = True
            exchange.check.end()
            exchange.finish()

    async def exchange(self, exchange, rng):
        request = exchange.request
        stream = self._quic.get_next_available_stream_id()
        self.exchanges[stream] = exchange
        fields = [(":method", request.method), (":scheme", "https"), (":authority", "soak.test"), (":path", request.target()), *request.headers]
        if request.upload is not None and not request.chunked:
            fields.append(("content-length", str(len(request.upload))))
        self.http.send_headers(stream, [(k.encode(), v.encode()) for k, v in fields], end_stream=request.upload is None)
        self.transmit()
        if request.upload is not None:
            await self.upload(stream, exchange, rng)
        while not exchange.done.is_set():
            try:
                await asyncio.wait_for(exchange.done.wait(), 1)
            except asyncio.TimeoutError:
                if time.monotonic() > exchange.last + IDLE:
                    exchange.finish("hang")
        if exchange.outcome.error == "hang":
            # Nothing is to be had from this connection any more.
            self.over = "hang"
        if not exchange.outcome.complete and not self.over:
            self.abandon(stream)

    async def upload(self, stream, exchange, rng):
        data, at = exchange.request.upload, 0
        try:
            while at < len(data) and not exchange.done.is_set():
                piece = data[at : at + rng.choice([1000, 16384, 65536])]
                at += len(piece)
                self.http.send_data(stream, piece, end_stream=at == len(data))
                self.transmit()
                exchange.last = time.monotonic()
                await asyncio.sleep(rng.uniform(0, 0.05) if exchange.manner.send_slowly else 0.001)
            if not data:
                self.http.send_data(stream, b"", end_stream=True)
                self.transmit()
        except (AssertionError, RuntimeError, aioquic.h3.connection.FrameUnexpected):
            # Stopped by the server.
            pass

    def abandon(self, stream):
        try:
            self._quic.stop_stream(stream, 0x10C)
            self._quic.reset_stream(stream, 0x10C)
        except Exception:  # noqa: BLE001
            pass
        self.transmit()


class Client:
    def __init__(self, setup, number):
        self.setup, self.number, self.report = setup, number, setup.report
        self.choose = cases.Chooser("3", setup.forebay, setup.only)

    async def session(self, n):
        rng = cases.seeded(self.setup.seed, self.setup.name, self.number, n)
        name = f"{self.setup.name}-{self.number}-{n}"
        made = [self.choose(rng, f"{name}-{k}") for k in range(rng.choice([1, 1, 5, 15]))]
        for request in made:
            if request.method == "HEAD":
                # aioquic ends the connection for a length without content.
                request.method = "GET"
        configuration = aioquic.quic.configuration.QuicConfiguration(is_client=True, alpn_protocols=["h3"], verify_mode=ssl.CERT_NONE,
                                                                     server_name="soak.test", idle_timeout=60)
        if rng.random() < 0.3:
            configuration.max_data = configuration.max_stream_data = rng.choice([16384, 65536])
        begun = time.monotonic()
        protocol = None
        try:
            connecting = aioquic.asyncio.connect("127.0.0.1", self.setup.ports["TLS"], configuration=configuration, create_protocol=Protocol,
                                                 wait_connected=False)
            async with connecting as protocol:
                protocol.transmit()
                await asyncio.wait_for(protocol.wait_connected(), IDLE)
                await self.requests(protocol, made, rng, name)
                if rng.random() < 0.15:
                    # The client vanishes without a word.
                    protocol.dead = True
                    protocol._transport.abort()
        except (ConnectionError, asyncio.TimeoutError, OSError) as e:
            if not made or protocol is not None and protocol.exchanges:
                return
            error = "hang" if isinstance(e, asyncio.TimeoutError) else f"not connected: {protocol and protocol.over}: {e}"
            outcome = check.Outcome(made[0], session=name, error=error, start=begun)
            self.report.begin(made[0].id)
            self.report.done(outcome, check.Check(made[0]))

    async def requests(self, protocol, made, rng, name):
        at_a_time = asyncio.Semaphore(rng.choice([1, 2, 5]))
        running = []

        async def one(request, k):
            async with at_a_time:
                if protocol.over or protocol.control.goaway < NEVER or self.setup.stopping():
                    return
                exchange = Exchange(request, Manner.of(rng, request), name, k > 0)
                self.report.begin(request.id)
                try:
                    await protocol.exchange(exchange, rng)
                except (ConnectionError, RuntimeError, AssertionError) as e:
                    exchange.outcome.error = protocol.over or str(e)
                self.report.done(exchange.outcome, exchange.check)
                await asyncio.sleep(min(1, rng.expovariate(self.setup.rate / self.setup.threads)))

        for k, request in enumerate(made):
            running.append(asyncio.ensure_future(one(request, k)))
        await asyncio.gather(*running)


async def sessions(setup, number):
    client, n = Client(setup, number), 0
    while not setup.stopping():
        try:
            await client.session(n)
        except Exception:  # noqa: BLE001
            setup.report.say({"kind": "fault", "text": f"{setup.name}-{number}-{n}: {traceback.format_exc()}"})
            await asyncio.sleep(1)
        n += 1


def main(setup):
    async def all():
        await asyncio.gather(*(sessions(setup, n) for n in range(setup.threads)))

    asyncio.run(all())
