"""An origin over HTTP/3."""

import asyncio

import aioquic.asyncio
import aioquic.h3.connection
import aioquic.h3.events
import aioquic.quic.configuration
import aioquic.quic.events

import answer


class Out(answer.Out):
    def __init__(self, protocol, stream, method):
        self.protocol, self.stream, self.method = protocol, stream, method

    async def head(self, status, headers, length):
        fields = [(b":status", str(status).encode())] + [(k.encode(), v.encode()) for k, v in headers if k != "connection"]
        if length is not None:
            fields.append((b"content-length", str(length).encode()))
        self.protocol.http.send_headers(self.stream, fields)
        self.protocol.transmit()

    async def data(self, data):
        if data and self.method != "HEAD":
            for at in range(0, len(data), 65536):
                self.protocol.http.send_data(self.stream, data[at : at + 65536], False)
                self.protocol.transmit()
                await asyncio.sleep(0)

    async def end(self):
        self.protocol.http.send_data(self.stream, b"", True)
        self.protocol.transmit()

    async def drop(self, hard):
        if hard:
            self.protocol._quic.reset_stream(self.stream, 0x0102)
        else:
            self.protocol._quic.close(0x0102)
        self.protocol.transmit()


class Protocol(aioquic.asyncio.QuicConnectionProtocol):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.http, self.bodies, self.tasks = None, {}, {}

    async def chunks(self, stream):
        queue = self.bodies[stream]
        while (item := await queue.get()) is not None:
            yield item

    async def serve(self, stream, headers):
        ask = answer.Ask(headers[":method"], headers[":path"], headers, self.chunks(stream))
        try:
            await answer.respond(ask, Out(self, stream, headers[":method"]))
        except (AssertionError, RuntimeError, ConnectionError, asyncio.CancelledError, aioquic.h3.connection.FrameUnexpected):
            # The stream was reset under it.
            pass
        finally:
            self.tasks.pop(stream, None)
            self.bodies.pop(stream, None)

    def quic_event_received(self, event):
        if isinstance(event, aioquic.quic.events.ProtocolNegotiated):
            self.http = aioquic.h3.connection.H3Connection(self._quic)
        if isinstance(event, (aioquic.quic.events.StreamReset, aioquic.quic.events.StopSendingReceived)) and event.stream_id in self.tasks:
            self.tasks[event.stream_id].cancel()
        if self.http is None:
            return
        for http_event in self.http.handle_event(event):
            self.http_event(http_event)

    def http_event(self, event):
        if isinstance(event, aioquic.h3.events.HeadersReceived):
            self.bodies[event.stream_id] = asyncio.Queue()
            headers = {k.decode(): v.decode() for k, v in event.headers}
            self.tasks[event.stream_id] = asyncio.ensure_future(self.serve(event.stream_id, headers))
        elif isinstance(event, aioquic.h3.events.DataReceived) and event.stream_id in self.bodies:
            self.bodies[event.stream_id].put_nowait(event.data)
        if event.stream_ended and event.stream_id in self.bodies:
            self.bodies[event.stream_id].put_nowait(None)


async def listen(port, directory):
    configuration = aioquic.quic.configuration.QuicConfiguration(is_client=False, alpn_protocols=["h3"])
    configuration.load_cert_chain(f"{directory}/origin.pem", f"{directory}/origin.key")
    await aioquic.asyncio.serve("127.0.0.1", port, configuration=configuration, create_protocol=Protocol)
