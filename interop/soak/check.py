"""Compares what a client receives with what has to come, byte by byte as it comes, so that answers that are broken off are checked, too."""

import dataclasses
import hashlib
import re
import time
import zlib

import brotli
import zstandard

import content


@dataclasses.dataclass
class Outcome:
    request: object
    start: float = dataclasses.field(default_factory=time.monotonic)
    end: float = 0.0
    status: int = 0
    # The response was received to its end; the client has left on purpose; the connection had served another request before.
    complete: bool = False
    left: bool = False
    reused: bool = False
    # The request before on this connection went to an origin that may have misbehaved.
    after_wild: bool = False
    # How it ended otherwise: "closed", "reset", "hang", "refused", "malformed: ...".
    error: str = ""
    # Bytes of the body as the access log counts them, and the field Content-Length.
    wire: int = 0
    session: str = ""


class Gzip:
    def __init__(self):
        self.inner = zlib.decompressobj(31)

    def data(self, data):
        out = self.inner.decompress(data)
        if self.inner.unused_data:
            raise ValueError(f"{len(self.inner.unused_data)} bytes behind the end")
        return out

    def ended(self):
        return self.inner.eof


class Brotli:
    def __init__(self):
        self.inner = brotli.Decompressor()

    def data(self, data):
        return self.inner.process(data)

    def ended(self):
        return self.inner.is_finished()


class Zstd:
    def __init__(self):
        self.inner = zstandard.ZstdDecompressor().decompressobj()

    def data(self, data):
        return self.inner.decompress(data)

    def ended(self):
        return self.inner.eof


DECODERS = {"gzip": Gzip, "br": Brotli, "zstd": Zstd}
TRANSFORMS = {
    "plain": lambda body, request: body,
    "file": lambda body, request: body,
    "memcached": lambda body, request: body,
    "grpc": lambda body, request: body,
    "sub": lambda body, request: content.substituted(body),
    "utf8": lambda body, request: content.latin1_to_utf8(body),
    "add": lambda body, request: content.body("t3-700.0") + body + content.body("t22-1024.0"),
}


class Check:
    """Check of one response."""

    def __init__(self, request):
        self.request, self.expected, self.at, self.problem = request, None, 0, ""
        self.decoder, self.encoded = None, 0
        self.status, self.headers = 0, {}

    def head(self, status, headers):
        self.status, self.headers = status, headers
        if status not in (200, 201, 204, 206):
            return
        try:
            self.expected = self.wanted(status, headers)
        except ValueError as e:
            self.problem = str(e)
        encoding = headers.get("content-encoding")
        if encoding and self.expected is not None:
            if encoding not in DECODERS or encoding not in dict(self.request.headers).get("accept-encoding", ""):
                self.problem = f"content-encoding {encoding} was not asked for"
            else:
                self.decoder = DECODERS[encoding]()

    def wanted(self, status, headers):
        """Bytes that the response has to have; `None` if these are not known."""
        request = self.request
        if request.transform in ("any", "none") or status == 204:
            return None
        if request.transform == "page":
            return content.ssi_assembled(request.name)
        if request.transform == "echo":
            return None if request.args.get("m") else echo_of(request.upload)
        if request.transform == "dav":
            return request.expected
        key = headers.get("x-soak")
        if request.transform in ("file", "memcached") and not key:
            key = request.name + ".0"
        if not key or key.rsplit(".", 1)[0] != request.name:
            raise ValueError(f"the answer is to another request, x-soak is {key}, wanted {request.name}")
        body = content.body(key)
        if request.method == "HEAD":
            return self.wanted_of_head(body, headers)
        body = TRANSFORMS[request.transform](body, request)
        if "x-less" in headers:
            body = body[: int(headers["x-less"])]
        elif request.args.get("m") == "less" and request.transform == "memcached":
            body = body[: int(headers.get("content-length", 0))]
        return self.part(body, headers) if status == 206 else body

    def wanted_of_head(self, body, headers):
        length = headers.get("content-length")
        if length and request_is_plain(self.request) and int(length) != len(body):
            raise ValueError(f"content-length {length} of HEAD, wanted {len(body)}")
        return b""

    def part(self, body, headers):
        match = re.match(r"^bytes (\d+)-(\d+)/(\d+)$", headers.get("content-range", ""))
        if not self.request.range or not match:
            raise ValueError(f"206 with content-range {headers.get('content-range')!r}")
        first, last, length = (int(x) for x in match.groups())
        # An origin that lies about the length has it believed.
        lies = self.request.case.broken
        if length != len(body) and not lies or first != self.request.range[0] or last != min(self.request.range[1], length - 1):
            raise ValueError(f"content-range {match[0]}, wanted {self.request.range} of {len(body)}")
        return body[first : last + 1]

    def data(self, data):
        if self.expected is None or self.problem or not data:
            return
        self.encoded += len(data)
        if self.decoder:
            try:
                data = self.decoder.data(data)
            except Exception as e:  # noqa: BLE001
                self.problem = f"undecodable after {self.encoded} bytes, {self.at} decoded: {e}"
                return
        if self.expected[self.at : self.at + len(data)] != data:
            page = self.request.transform in ("page", "add") and re.search(rb"<title>(5\d\d) ", data)
            self.problem = f"an included response is an error page, status {page[1].decode()}" if page else "wrong bytes " + content.difference(
                self.expected, data, self.at)
        self.at += len(data)

    def is_whole(self):
        """Returns whether all content has come, and the end of its coding. An origin that breaks off leaves the latter out."""
        if self.expected is None or self.at < len(self.expected):
            return False
        return not (self.decoder and self.encoded) or self.decoder.ended()

    def end(self):
        """The response has ended as one that is complete."""
        if self.expected is None or self.problem:
            return
        if self.decoder and self.encoded and not self.decoder.ended():
            self.problem = f"complete, but the {self.headers.get('content-encoding')} stream has no end, after {self.encoded} bytes"
        elif self.at != len(self.expected):
            self.problem = f"complete, but {self.at} bytes of {len(self.expected)}"


def request_is_plain(request):
    return request.transform in ("plain", "file") and not request.case.encodings


def echo_of(upload):
    return f"{len(upload)} {hashlib.sha256(upload).hexdigest()}\n".encode()


def verdict(outcome, check):
    """Kind and text of what is wrong with an outcome, or `None`. Kinds in capitals are never excused."""
    request = outcome.request
    if check.problem.startswith("an included response"):
        return "status", check.problem
    if check.problem:
        kind = "WRONG" if "wrong bytes" in check.problem or "another request" in check.problem else "SHORT"
        return ("UNDECODABLE" if "undecodable" in check.problem or "no end" in check.problem else kind), check.problem
    if outcome.error.startswith("malformed"):
        return "MALFORMED", outcome.error
    if outcome.error == "hang":
        return "hang", f"no byte for a long time, status {outcome.status or 'not there'}, {outcome.wire} bytes"
    if outcome.status and outcome.status not in request.statuses:
        early = request.upload is not None and outcome.left
        return None if early else ("status", f"status {outcome.status}")
    if outcome.left or outcome.complete:
        return None
    if outcome.error == "refused":
        return "refused", "the connection was refused"
    if request.broken:
        return None
    # Slices of different versions end the response, before its head has left if the first two differ.
    if request.case.name == "slice" and request.name.startswith("v"):
        return None
    if outcome.after_wild and not outcome.status:
        return None
    if not outcome.status and outcome.reused:
        return "unanswered", f"a kept connection was {outcome.error} without an answer"
    return "broken", f"{outcome.error or 'ended'} with status {outcome.status or 'not there'} after {outcome.wire} bytes"
