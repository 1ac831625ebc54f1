"""An origin over HTTP/2, with and without TLS, also for gRPC."""

import asyncio
import socket
import struct

import h2.config
import h2.connection
import h2.events
import h2.exceptions

import answer


class Gone(ConnectionError):
    """The stream or its connection has ended."""


class H2Connection(h2.connection.H2Connection):
    """A connection of HTTP/2 on which open streams go on after GOAWAY (RFC 9113, section 6.8); the library closes it then."""

    def _receive_goaway_frame(self, frame):
        event = h2.events.ConnectionTerminated()
        event.error_code, event.last_stream_id = frame.error_code, frame.last_stream_id
        return [], [event]


class Out(answer.Out):
    def __init__(self, connection, stream, method, grpc):
        self.connection, self.stream, self.method, self.grpc = connection, stream, method, grpc

    async def head(self, status, headers, length):
        fields = [(":status", str(status))] + [(k, v) for k, v in headers if k != "connection"]
        if length is not None and not self.grpc:
            fields.append(("content-length", str(length)))
        await self.connection.headers(self.stream, fields)

    async def data(self, data):
        if self.method != "HEAD":
            await self.connection.data(self.stream, data)

    async def end(self):
        if self.grpc:
            await self.connection.headers(self.stream, [("grpc-status", "0"), ("x-trailer", "soak")], end=True)
        else:
            await self.connection.end(self.stream)

    async def drop(self, hard):
        await self.connection.drop(self.stream, hard)


class Connection:
    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer
        config = h2.config.H2Configuration(client_side=False, header_encoding="utf-8", validate_outbound_headers=False)
        self.h2 = H2Connection(config)
        self.bodies, self.tasks, self.changed = {}, {}, asyncio.Event()

    async def flush(self):
        self.writer.write(self.h2.data_to_send())
        await self.writer.drain()

    async def headers(self, stream, fields, end=False):
        try:
            self.h2.send_headers(stream, fields, end_stream=end)
        except h2.exceptions.ProtocolError as e:
            raise Gone from e
        await self.flush()

    async def data(self, stream, data):
        at = 0
        while at < len(data):
            try:
                room = min(self.h2.local_flow_control_window(stream), self.h2.max_outbound_frame_size, len(data) - at)
                if room > 0:
                    self.h2.send_data(stream, data[at : at + room])
                    at += room
                    await self.flush()
                    continue
            except h2.exceptions.ProtocolError as e:
                raise Gone from e
            self.changed.clear()
            await self.changed.wait()

    async def end(self, stream):
        try:
            self.h2.end_stream(stream)
        except h2.exceptions.ProtocolError as e:
            raise Gone from e
        await self.flush()

    async def drop(self, stream, hard):
        """Resets the stream; without `hard`, ends the whole connection."""
        if not hard:
            sock = self.writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.writer.transport.abort()
            return
        try:
            self.h2.reset_stream(stream, 2)
        except h2.exceptions.ProtocolError as e:
            raise Gone from e
        await self.flush()

    async def chunks(self, stream):
        queue = self.bodies[stream]
        while (item := await queue.get()) is not None:
            yield item

    async def serve_stream(self, stream, headers):
        grpc = headers.get("content-type", "").startswith("application/grpc")
        ask = answer.Ask(headers[":method"], headers[":path"], headers, self.chunks(stream))
        try:
            await answer.respond(ask, Out(self, stream, headers[":method"], grpc))
        except (Gone, OSError, asyncio.CancelledError):
            pass
        finally:
            self.tasks.pop(stream, None)

    def handle(self, event):
        stream = getattr(event, "stream_id", None)
        if isinstance(event, h2.events.RequestReceived):
            self.bodies[stream] = asyncio.Queue()
            self.tasks[stream] = asyncio.ensure_future(self.serve_stream(stream, dict(event.headers)))
        elif isinstance(event, h2.events.DataReceived):
            self.h2.acknowledge_received_data(event.flow_controlled_length, stream)
            if stream in self.bodies:
                self.bodies[stream].put_nowait(event.data)
        elif isinstance(event, h2.events.StreamEnded):
            if stream in self.bodies:
                self.bodies[stream].put_nowait(None)
        elif isinstance(event, h2.events.StreamReset):
            if stream in self.tasks:
                self.tasks[stream].cancel()
            self.bodies.pop(stream, None)
        self.changed.set()

    async def run(self):
        self.h2.initiate_connection()
        await self.flush()
        try:
            while data := await self.reader.read(65536):
                for event in self.h2.receive_data(data):
                    self.handle(event)
                await self.flush()
        finally:
            for task in list(self.tasks.values()):
                task.cancel()


async def serve(reader, writer):
    await Connection(reader, writer).run()
