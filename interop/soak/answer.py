"""What an origin answers, and what it does wrong, whatever protocol carries it."""

import asyncio
import hashlib
import random
import re
import urllib.parse

import content

# Longer than the read timeouts of the locations that are treated badly.
STALL = 2.5
MTIME = "Mon, 02 Jan 2023 03:04:05 GMT"


class Gone(Exception):
    """The answer has been broken off on purpose."""


class Ask:
    """A request as an origin sees it. `chunks` yields its content."""

    def __init__(self, method, target, headers, chunks):
        self.method, self.headers, self.chunks = method, headers, chunks
        path, _, query = target.partition("?")
        self.path = urllib.parse.unquote(path)
        self.args = dict(urllib.parse.parse_qsl(query))
        self.name = self.path.rsplit("/", 1)[-1]
        self.mode = self.args.get("m", "") or (headers.get("x-mode", "") if self.path == "/auth" else "")

    async def digest(self):
        sha, length = hashlib.sha256(), 0
        async for data in self.chunks:
            sha.update(data)
            length += len(data)
        return length, sha.hexdigest()


class Out:
    """Where an answer goes. Protocols implement these."""

    async def head(self, status, headers, length):
        raise NotImplementedError

    async def data(self, data):
        raise NotImplementedError

    async def end(self):
        raise NotImplementedError

    async def drop(self, reset):
        """Ends the connection or stream before its time."""
        raise NotImplementedError

    async def raw(self, data):
        """Sends bytes that are none of the protocol's; where that makes no sense, it is an end."""
        await self.drop(True)


async def respond(ask, out):
    """Answers a request."""
    try:
        if ask.path == "/auth":
            await auth(ask, out)
        elif ask.name == "echo":
            await echo(ask, out)
        elif ask.path == "/mirrored":
            await ask.digest()
            await misbehave_early(ask, out)
            await whole(out, 200, b"mirrored\n")
        elif ask.name.startswith("page"):
            await ask.digest()
            await whole(out, 200, content.ssi_page(ask.name, ask.args.get("pm", "")), framing=ask.args.get("f"))
        elif content.parse(ask.name):
            await ask.digest()
            await get(ask, out)
        else:
            await whole(out, 404, b"no such name\n")
    except Gone:
        pass


async def whole(out, status, body, framing="cl", headers=()):
    await out.head(status, [("content-type", "text/plain"), *headers], None if framing != "cl" else len(body))
    await out.data(body)
    await out.end()


async def auth(ask, out):
    await ask.digest()
    await misbehave_early(ask, out)
    status = int(ask.headers.get("x-auth") or 204)
    if ask.mode == "stall1":
        await out.head(status, [], 5)
        await asyncio.sleep(STALL)
        await give_up(out, True)
    if status == 204:
        await out.head(204, [], None)
        await out.end()
    else:
        await whole(out, status, b"refused\n")


async def give_up(out, reset):
    await out.drop(reset)
    raise Gone


async def misbehave_early(ask, out):
    """Does what goes wrong before the head."""
    if ask.mode == "stall0":
        await asyncio.sleep(STALL)
        await give_up(out, True)
    if ask.mode in ("reset0", "close0"):
        await give_up(out, ask.mode == "reset0")
    if ask.mode == "drip0":
        await asyncio.sleep(0.4)
    if ask.mode == "garbage":
        await out.raw(b"HTTP/1.1 200 OK\r\nContent-Length: 12x\r\nX: \x00\x01\r\n\r\ngarbage")
        raise Gone


async def echo(ask, out):
    """Answers an upload with its length and digest."""
    if ask.mode == "early":
        await whole(out, 200, b"early\n", headers=[("connection", "close")])
        await give_up(out, False)
    if ask.mode in ("resetup", "stallup"):
        async for _ in ask.chunks:
            break
        await asyncio.sleep(STALL if ask.mode == "stallup" else 0)
        await give_up(out, True)
    length, digest = await ask.digest()
    await misbehave_early(ask, out)
    body = f"{length} {digest}\n".encode()
    if ask.mode == "closeb":
        await out.head(200, [], len(body))
        await out.data(body[:30])
        await give_up(out, False)
    await whole(out, 200, body)


def asked_range(ask, length):
    """First and last byte that are asked for; `None` for everything, `()` if there are none of these."""
    match = re.match(r"^bytes=(\d+)-(\d*)$", ask.headers.get("range", ""))
    if not match:
        return None
    first = int(match[1])
    last = min(int(match[2]) if match[2] else length - 1, length - 1)
    return (first, last) if first < length and last >= first else ()


async def get(ask, out):
    """Answers with a body that follows from its name."""
    await misbehave_early(ask, out)
    key = content.current_key(ask.name)
    etag = f'"{key}"'
    headers = [("x-soak", key), ("etag", etag), ("last-modified", MTIME), ("accept-ranges", "bytes"),
               ("content-type", "text/event-stream" if ask.mode == "events" else "text/plain")]
    if ask.headers.get("if-none-match") == etag:
        await out.head(304, headers, None)
        await out.end()
        return
    body, status = content.body(key), 200
    if ask.args.get("z"):
        body = content.gzipped(key)
        headers.append(("content-encoding", "gzip"))
    part = asked_range(ask, len(body))
    if part == ():
        await out.head(416, [("content-range", f"bytes */{len(body)}"), ("x-soak", key)], 0)
        await out.end()
        return
    if part:
        headers.append(("content-range", f"bytes {part[0]}-{part[1]}/{len(body)}"))
        body, status = body[part[0] : part[1] + 1], 206
    await send(ask, out, status, headers, body)


async def send(ask, out, status, headers, body):
    mode, length = ask.mode, len(body)
    chance = random.Random(ask.args.get("id", ask.path))
    cut = chance.randrange(length) if length else 0
    framing = ask.args.get("f", "cl")
    announced = length if framing == "cl" else None
    if mode == "less":
        announced = cut
        headers.append(("x-less", str(cut)))
    if mode == "more":
        announced = length + 1000
    await out.head(status, headers, announced)
    if ask.method == "HEAD":
        await out.end()
        return
    if mode in ("stall1", "reset1", "close1"):
        cut = 0
    if mode in ("stall1", "stallb", "reset1", "resetb", "close1", "closeb", "badchunk"):
        await out.data(body[:cut])
        if mode == "badchunk":
            await out.raw(b"\r\nzz-no-chunk\r\n")
            raise Gone
        await asyncio.sleep(STALL if mode.startswith("stall") else 0.01)
        await give_up(out, not mode.startswith("close"))
    if mode in ("drip", "events"):
        await drip(out, body, mode, chance)
    elif mode == "halves":
        # A pause, and the rest in one piece while the client may have paused.
        await out.data(body[:cut])
        await asyncio.sleep(chance.uniform(0.02, 0.15))
        await out.data(body[cut:])
    else:
        # In pieces of various sizes, as they come from programs.
        piece = chance.choice([1000, 8192, 65536, 1 << 20])
        for at in range(0, length, piece):
            await out.data(body[at : at + piece])
    if mode == "more":
        await asyncio.sleep(0.01)
        await give_up(out, False)
    await out.end()


async def drip(out, body, mode, chance):
    pieces = 8 if mode == "events" else 5
    size = len(body) // pieces + 1
    for at in range(0, len(body), size):
        await out.data(body[at : at + size])
        await asyncio.sleep(chance.uniform(0.05, 0.3))
