"""What a load is, and how its requests are written."""

import random
from dataclasses import dataclass, field
from typing import Callable

WORDS = ("the of and server request header value cache proxy worker kernel socket event loop buffer "
         "connection upstream response static file gzip stream latency").split()


@dataclass
class Case:
    """A load: the body of a server block, the requests that are sent to it, and how.

    In `conf` and `http`, `@work@` is the directory that all servers share, `@own@` that of the server, `@origin@`, `@fcgi@`, `@uwsgi@`,
    `@files@`, `@btls@`, `@bmtls@` and `@bh2@` are ports of the backends. The same stands for files in `options`.
    """

    name: str
    conf: str
    # For load.c, chosen in turn. h2load takes `path` instead.
    requests: list = field(default_factory=list)
    # Of load.c, or of h2load.
    options: tuple = ()
    path: str = ""
    # Text at the level http.
    http: str = ""
    # Files of the server that depend on its port: name to function(port, work).
    files: dict = field(default_factory=dict)
    # rsa or ec: TLS with this certificate.
    tls: str = ""
    http2: bool = False
    connections: int = 50
    unit: str = "request"
    status: int = 200
    # Answers differ from each other (a page with the server's name, a body that is compressed), so that only their status and the
    # names of their fields can be compared.
    varying: bool = False
    # An endless answer, which cannot be compared at all.
    endless: bool = False
    # Seconds of load before the first measurement.
    warm: float = 0.5
    # Seconds of a measurement, unless the command line's do.
    seconds: float = 0
    # What floor.c does instead: answer, relay (to the origin) or relay-files.
    floor: str = ""
    # Makes files that only this load needs: function(work).
    content: Callable | None = None
    note: str = ""

    @property
    def h2load(self):
        """Whether h2load makes the load, instead of load.c."""
        return bool(self.path)


def request(path, *fields, method="GET", host="a", body=b""):
    """The bytes of a request of HTTP/1.1."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *fields]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def html(size, seed):
    """Text that can be compressed as pages can, the same for the same seed."""
    chance, paragraphs, length = random.Random(seed), [], 0
    while length < size:
        words = " ".join(chance.choice(WORDS) for _ in range(12))
        paragraphs.append(f'<p class="{chance.choice(WORDS)}">{words}</p>\n')
        length += len(paragraphs[-1])
    return "".join(paragraphs).encode()[:size]


AGENTS = [
    "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0.0.0 Safari/537.36",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 17_5 like Mac OS X) AppleWebKit/605.1.15 Version/17.5 Mobile/15E148 Safari/604.1",
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64; rv:127.0) Gecko/20100101 Firefox/127.0",
    "curl/8.5.0",
]
# Fields as a browser sends them.
BROWSER = [
    f"User-Agent: {AGENTS[0]}",
    "Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
    "Accept-Language: en-US,en;q=0.5",
    "Accept-Encoding: identity",
    "Referer: https://www.example.com/start",
    "Cookie: session=0123456789abcdef0123456789abcdef; theme=dark",
]

ROOT = "root @work@/www;"
KEEP = 'proxy_http_version 1.1; proxy_set_header Connection "";'


def proxy(upstream, more=""):
    """A location that passes everything on, on kept connections."""
    return f"location / {{ proxy_pass http://{upstream}; {KEEP} {more} }}"


def upstream(name, port, keepalive=64):
    """An upstream with idle connections, for the level http."""
    return f"upstream {name} {{ server 127.0.0.1:@{port}@; keepalive {keepalive}; keepalive_requests 100000000; }}"
