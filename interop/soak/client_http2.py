"""Clients over HTTP/2, with TLS and without, in threads: several streams at a time, windows that stay closed, streams that are reset."""

import dataclasses
import socket
import time

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings
import h2.stream

import cases
import check
import content
from client_http1 import IDLE, Ended, Manner, Wire, ended_by, tls_context
from origin_http2 import H2Connection


# The library ends the connection where a response is shorter than it says, which is seen by the check here.
h2.stream.H2Stream._track_content_length = lambda self, length, end_stream: None


@dataclasses.dataclass
class Stream:
    request: object
    outcome: check.Outcome
    check: check.Check
    manner: Manner
    last: float = dataclasses.field(default_factory=time.monotonic)
    sent: int = 0
    ended: bool = False
    # Received bytes whose credit is held back until a time.
    held: int = 0
    until: float = 0.0
    next_piece: float = 0.0
    trailers: dict = dataclasses.field(default_factory=dict)

    def uploads(self):
        return self.request.upload is not None or self.request.tunnel


def short_of_length(stream):
    length = stream.check.headers.get("content-length")
    return length is not None and stream.request.method != "HEAD" and stream.outcome.status not in (204, 304) and stream.outcome.wire < int(length)


class Connection:
    def __init__(self, client, wire, rng, name):
        self.client, self.wire, self.rng, self.name = client, wire, rng, name
        self.report = client.report
        config = h2.config.H2Configuration(client_side=True, header_encoding="utf-8", validate_outbound_headers=False)
        self.h2 = H2Connection(config)
        self.streams, self.going, self.served = {}, False, 0
        self.h2.local_settings = h2.settings.Settings(client=True, initial_values={
            h2.settings.SettingCodes.ENABLE_PUSH: 0, h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: 100,
            h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: rng.choice([65535, 65535, 16384, 1 << 20]),
        })
        self.h2.initiate_connection()
        self.flush()

    def flush(self):
        data = self.h2.data_to_send()
        if data:
            self.wire.send(data)

    def open(self, request):
        """Sends the head of a request."""
        stream = self.h2.get_next_available_stream_id()
        fields = [(":method", request.method), (":scheme", "https"), (":authority", "soak.test"), (":path", request.target())]
        if request.tunnel:
            request.method, request.statuses = "CONNECT", (200,)
            fields = [(":method", "CONNECT"), (":protocol", "websocket"), *fields[1:], ("sec-websocket-version", "13")]
            request.upload = content.body(f"b{self.rng.randrange(5)}-{self.rng.choice([1, 100, 5000, 70000])}.0")
        if request.transform == "grpc":
            fields += [("content-type", "application/grpc"), ("te", "trailers")]
        fields += [(k, v) for k, v in request.headers]
        if request.upload is not None and not request.chunked and not request.tunnel and request.transform != "grpc":
            fields.append(("content-length", str(len(request.upload))))
        self.report.begin(request.id)
        made = Stream(request, check.Outcome(request, session=self.name, reused=self.served > 0), check.Check(request), Manner.of(self.rng, request))
        self.served += 1
        self.streams[stream] = made
        if request.tunnel:
            made.manner = Manner()
        self.h2.send_headers(stream, fields, end_stream=not made.uploads())
        self.flush()

    def upload(self):
        for number, stream in list(self.streams.items()):
            if stream.uploads() and not stream.ended and time.monotonic() >= stream.next_piece:
                self.send_piece(number, stream)

    def send_piece(self, number, stream):
        request = stream.request
        if request.tunnel and stream.outcome.status != 200:
            return
        try:
            room = min(self.h2.local_flow_control_window(number), self.h2.max_outbound_frame_size, len(request.upload) - stream.sent)
            if room > 0:
                self.h2.send_data(number, request.upload[stream.sent : stream.sent + room])
                stream.sent += room
                stream.last = time.monotonic()
            if stream.sent == len(request.upload) and not request.tunnel:
                self.h2.end_stream(number)
                stream.ended = True
        except (h2.exceptions.StreamClosedError, h2.exceptions.NoSuchStreamError):
            # Reset by the server; the event is on its way.
            stream.ended = True
        if stream.manner.send_slowly and stream.sent < 200_000:
            stream.next_piece = time.monotonic() + self.rng.uniform(0, 0.1)
        self.flush()

    def turn(self):
        """Waits for what comes, for a moment."""
        busy = any(s.uploads() and not s.ended and not (s.request.tunnel and s.sent == len(s.request.upload)) for s in self.streams.values())
        if self.wire.readable(0.01 if busy else 0.05):
            if not self.wire.buffer:
                self.wire.fill()
            data, self.wire.buffer = self.wire.buffer, b""
            try:
                events = self.h2.receive_data(data)
            except h2.exceptions.ProtocolError as e:
                raise Ended(f"malformed: {type(e).__name__}: {e}") from e
            for event in events:
                self.handle(event)
            self.flush()
        self.release()
        now = time.monotonic()
        for number, stream in list(self.streams.items()):
            if now > max(stream.last, stream.until) + IDLE:
                stream.outcome.error = "hang"
                self.reset(number)
                self.finish(number)

    def release(self):
        now = time.monotonic()
        for number, stream in list(self.streams.items()):
            if stream.held and now >= stream.until:
                held, stream.held, stream.last = stream.held, 0, now
                self.credit(held, number)
        self.flush()

    def credit(self, length, number):
        try:
            self.h2.acknowledge_received_data(length, number)
        except h2.exceptions.ProtocolError:
            pass

    def handle(self, event):
        number = getattr(event, "stream_id", None)
        stream = self.streams.get(number)
        if isinstance(event, h2.events.ConnectionTerminated):
            self.terminated(event)
        elif isinstance(event, h2.events.DataReceived) and stream is None:
            self.credit(event.flow_controlled_length, number)
        if stream is None:
            return
        stream.last = time.monotonic()
        if isinstance(event, h2.events.ResponseReceived):
            headers = dict(event.headers)
            stream.outcome.status = int(headers[":status"])
            stream.check.head(stream.outcome.status, headers)
            if stream.request.tunnel and stream.outcome.status == 200:
                stream.check.expected = stream.request.upload
            if stream.manner.leave_at in (-2, 0):
                self.leave(number, stream)
        elif isinstance(event, h2.events.DataReceived):
            self.received(number, stream, event)
        elif isinstance(event, h2.events.TrailersReceived):
            stream.trailers = dict(event.headers)
        elif isinstance(event, h2.events.StreamEnded) and short_of_length(stream):
            stream.outcome.error = "ended short of its content-length"
            self.finish(number)
        elif isinstance(event, h2.events.StreamEnded):
            self.ended(number, stream)
        elif isinstance(event, h2.events.StreamReset):
            refused = event.error_code == h2.errors.ErrorCodes.REFUSED_STREAM
            # A server that has answered may ask for no more of the request (RFC 9113, section 8.1).
            stream.outcome.left = refused
            stream.outcome.error = f"reset by the server ({event.error_code})"
            self.finish(number)

    def received(self, number, stream, event):
        stream.check.data(event.data)
        stream.outcome.wire += len(event.data)
        manner = stream.manner
        if stream.check.expected is not None and stream.request.tunnel and stream.check.at == len(stream.request.upload):
            stream.outcome.left = True
            self.reset(number)
            self.finish(number)
            return
        if 0 <= manner.leave_at <= stream.outcome.wire:
            self.credit(event.flow_controlled_length, number)
            self.leave(number, stream)
            return
        if 0 <= manner.pause_at <= stream.outcome.wire:
            manner.pause_at, stream.until = -1, time.monotonic() + manner.pause
        if time.monotonic() < stream.until:
            stream.held += event.flow_controlled_length
        else:
            self.credit(event.flow_controlled_length, number)

    def ended(self, number, stream):
        wild = stream.request.case.broken
        if stream.request.transform == "grpc" and stream.outcome.status == 200 and stream.trailers.get("grpc-status") != "0" and not wild:
            stream.outcome.error = f"no trailers: {stream.trailers}"
        elif stream.request.transform == "grpc" and stream.trailers.get("grpc-status") != "0":
            stream.outcome.error = "no trailers"
        else:
            stream.outcome.complete = True
            stream.check.end()
        if stream.uploads() and not stream.ended:
            self.reset(number)
        self.finish(number)

    def leave(self, number, stream):
        stream.outcome.left = True
        if self.rng.random() < 0.15:
            raise Ended("left")
        self.reset(number)
        self.finish(number)

    def reset(self, number):
        try:
            self.h2.reset_stream(number, h2.errors.ErrorCodes.CANCEL)
            self.flush()
        except h2.exceptions.ProtocolError:
            pass

    def terminated(self, event):
        self.going = True
        for number, stream in list(self.streams.items()):
            if event.last_stream_id is not None and number > event.last_stream_id:
                stream.outcome.left, stream.outcome.error = True, "refused by GOAWAY"
                self.finish(number)

    def finish(self, number):
        stream = self.streams.pop(number)
        if stream.held:
            # The window of the connection is that of others, too.
            self.credit(stream.held, number)
        self.report.done(stream.outcome, stream.check)


class Client:
    """One thread of sessions."""

    letter = "2"

    def __init__(self, setup, number):
        self.setup, self.number, self.report = setup, number, setup.report
        self.choose = cases.Chooser(self.letter, setup.forebay, setup.only)

    def session(self, n):
        rng = cases.seeded(self.setup.seed, self.setup.name, self.number, n)
        name = f"{self.setup.name}-{self.number}-{n}"
        made = [self.choose(rng, f"{name}-{k}") for k in range(rng.choice([1, 5, 20, 40]))]
        at_a_time = rng.choice([1, 2, 5, 10])
        wire = connection = None
        try:
            wire = self.connect(rng)
            connection = Connection(self, wire, rng, name)
            while (made or connection.streams) and not (self.setup.stopping() and not connection.streams):
                while made and len(connection.streams) < at_a_time and not connection.going and not self.setup.stopping():
                    connection.open(made.pop())
                    self.setup.breathe(rng, 1)
                if connection.going and not connection.streams:
                    break
                connection.upload()
                connection.turn()
        except Ended as e:
            self.broken(connection, made, name, str(e))
        except OSError as e:
            self.broken(connection, made, name, ended_by(e))
        finally:
            if wire is not None:
                wire.close(reset=rng.random() < 0.3)

    def connect(self, rng):
        wire = Wire.__new__(Wire)
        wire.buffer = b""
        wire.sock = socket.socket()
        wire.sock.settimeout(IDLE)
        if rng.random() < 0.15:
            wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
            wire.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1400)
        tls = rng.random() < 0.6
        try:
            wire.sock.connect(("127.0.0.1", self.setup.ports["TLS" if tls else "HTTP"]))
            if tls:
                wire.sock = tls_context(["h2"]).wrap_socket(wire.sock, server_hostname="soak.test")
        except socket.timeout as e:
            raise Ended("hang") from e
        except ConnectionRefusedError as e:
            raise Ended("refused") from e
        return wire

    def broken(self, connection, made, name, error):
        if connection is None:
            request = made[0]
            self.report.begin(request.id)
            self.report.done(check.Outcome(request, session=name, error=error), check.Check(request))
            return
        for number, stream in list(connection.streams.items()):
            stream.outcome.error = error
            stream.outcome.left = stream.outcome.left or error == "left"
            connection.finish(number)
