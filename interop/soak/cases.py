"""Cases: a location of the configuration, the requests that are made to it, and the outcomes that explain themselves."""

import base64
import dataclasses
import random

import content

# What an origin does wrong; `0` before the head of the response, `1` behind it, `b` within the body.
MODES = ["stall0", "stall1", "stallb", "reset0", "reset1", "resetb", "close0", "close1", "closeb", "more", "less", "garbage", "badchunk",
         "drip", "drip0"]
# Those that need a length or chunks to be noticed.
FRAMED_ONLY = {"close1", "closeb", "more", "less"}


@dataclasses.dataclass
class Case:
    name: str
    conf: str
    # Clients by version of HTTP.
    clients: str = "123"
    weight: float = 1.0
    # How the request is made: the name of a function below.
    make: str = "get"
    # What becomes of the body on its way: the name of a transformation in check.py.
    transform: str = "plain"
    statuses: tuple = (200,)
    # An end before the end of the body explains itself.
    broken: bool = False
    # Share of requests for which the origin does something wrong.
    chaos: float = 0.0
    framings: tuple = ("cl", "ch")
    kinds: str = "tb"
    encodings: tuple = ()
    big: float = 0.0
    # Only Forebay knows the directives.
    only_forebay: bool = False
    # Written to the file system that is filled at times.
    disk: bool = False
    # Passed on to an upstream server.
    proxied: bool = True
    ranges: float = 0.0
    conditional: float = 0.0
    head: float = 0.0
    # Share of answers that the origin sends slowly.
    slow: float = 0.12
    pool: int = 80
    # Share of clients, beyond all others, that leave during the body.
    leave: float = 0.0


@dataclasses.dataclass
class Request:
    case: Case
    id: str
    method: str = "GET"
    path: str = "/"
    name: str = ""
    args: dict = dataclasses.field(default_factory=dict)
    headers: list = dataclasses.field(default_factory=list)
    # Key and length of what is uploaded.
    upload: bytes = None
    chunked: bool = False
    range: tuple = None
    statuses: tuple = (200,)
    broken: bool = False
    transform: str = "plain"
    expected: bytes = None
    # An upgrade (RFC 9110, section 7.8) or CONNECT.
    tunnel: str = ""

    def target(self):
        args = "&".join(f"{k}={v}" for k, v in {**self.args, "id": self.id}.items() if v)
        return f"{self.path}?{args}"


P = "proxy_pass http://calm;"
X = "proxy_pass http://wild; proxy_read_timeout 1s; proxy_send_timeout 5s;"
GZIP = "gzip on; gzip_min_length 1; gzip_http_version 1.0; gzip_proxied any; gzip_types text/plain application/octet-stream;"
TUNNEL = "proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $connection_upgrade; proxy_read_timeout 30s;"


def cache(zone, key="$uri", valid="5s", more=""):
    return f"proxy_cache {zone}; proxy_cache_key {key}; proxy_cache_valid 200 206 {valid}; {more}"


STALE = "proxy_cache_use_stale error timeout updating http_502 http_504;"
WILD = (200, 502, 504)


def calm_proxies():
    gets = dict(ranges=0.1, conditional=0.05, head=0.05, big=0.02)
    return [
        Case("p1", P, weight=3, framings=("cl", "ch", "eof"), **gets),
        Case("p10", P + "proxy_http_version 1.0;", framings=("cl", "eof"), **gets),
        Case("pclose", 'proxy_pass http://calm; proxy_set_header Connection close;', framings=("cl", "ch", "eof"), **gets),
        Case("poff", P + "proxy_buffering off;", weight=2, framings=("cl", "ch", "eof"), **gets),
        Case("ptmp", P + "proxy_buffer_size 4k; proxy_buffers 2 4k; proxy_busy_buffers_size 4k; proxy_max_temp_file_size 200k;", weight=2,
             disk=True, **gets),
        Case("pmem", P + "proxy_buffer_size 4k; proxy_buffers 4 4k; proxy_busy_buffers_size 8k; proxy_max_temp_file_size 0;", **gets),
        Case("ptls", "proxy_pass https://calm_tls; proxy_ssl_session_reuse on;", **gets),
        Case("p2", "proxy_pass http://calm_h2; proxy_http_version 2;", weight=1.5, **gets),
        Case("p2tls", "proxy_pass https://calm_h2tls; proxy_http_version 2;", **gets),
        Case("p3", "proxy_pass https://calm_h3; proxy_http_version 3; proxy_http3_fallback off;", only_forebay=True, **gets),
        Case("grpc", "grpc_pass grpc://calm_grpc;", clients="2", transform="grpc", weight=0.7),
        Case("fcgi", "fastcgi_pass calm_fcgi; fastcgi_keep_conn on; include @DIR@/fastcgi_params;", **gets),
        Case("uwsgi", "uwsgi_pass calm_uwsgi; include @DIR@/uwsgi_params;", **gets),
        Case("scgi", "scgi_pass calm_scgi; include @DIR@/scgi_params;", **gets),
        Case("mc", 'set $memcached_key "$uri?$args"; memcached_pass calm_mc;', transform="memcached", framings=("cl",)),
        Case("moving", "set $mover moving.soak.test; proxy_pass http://$mover:@O_MOVE@; proxy_connect_timeout 5s;", weight=0.7),
        Case("moving2", "proxy_pass http://mover;", weight=0.7),
        Case("inc-proxy", P, weight=0.2),
    ]


def files():
    gets = dict(ranges=0.25, conditional=0.1, head=0.05, proxied=False, pool=40)
    return [
        Case("static", "root @DIR@/html;", weight=3, transform="file", big=0.04, make="file", **gets),
        Case("plainfile", "root @DIR@/html; sendfile off; output_buffers 2 8k;", transform="file", big=0.02, make="file", **gets),
        Case("gzfile", "root @DIR@/html; gzip_static on;", transform="file", make="file", encodings=("gzip", ""), proxied=False, pool=40, kinds="t"),
    ]


def caches():
    gets = dict(ranges=0.05, big=0.03, kinds="tbv", weight=1.5, disk=True, pool=150)
    fastcgi = "fastcgi_pass calm_fcgi; fastcgi_keep_conn on; include @DIR@/fastcgi_params;"
    revalidate = cache("z1", "r$uri", "1s", "proxy_cache_revalidate on;")
    return [
        Case("cache", P + cache("z1"), **gets),
        Case("inc-cache", P + cache("z1"), pool=40, disk=True, weight=0.2),
        Case("clock", P + cache("z2", "l$uri", "1s", "proxy_cache_lock on;"), **gets),
        Case("cback", P + cache("z3", "b$uri", "1s", f"proxy_cache_background_update on; {STALE}"), **gets),
        Case("creval", P + revalidate, conditional=0.2, **gets),
        Case("coff", P + "proxy_buffer_size 4k; proxy_buffers 4 4k; proxy_busy_buffers_size 8k;" + cache("z4", "o$uri"), **gets),
        Case("cmin", P + cache("z2", "m$uri", "4s", "proxy_cache_min_uses 2;"), **gets),
        Case("cswap", P + cache("@ZONE@", "s$uri"), **gets),
        Case("fcache", fastcgi + "fastcgi_cache z7; fastcgi_cache_key f$uri; fastcgi_cache_valid 200 1s;", **gets),
        Case("c2", "proxy_pass http://calm_h2; proxy_http_version 2;" + cache("z2", "h$uri", "1s"), **gets),
        # The versions of two slices may differ, which ends the response.
        Case("slice", "slice 32k; proxy_set_header Range $slice_range;" + P + cache("z4", "$uri$slice_range"), statuses=(200, 206), framings=("cl",),
             **{**gets, "ranges": 0.4}),
        Case("store", "root @STORE@; error_page 404 = @@store; log_not_found off;", transform="file", kinds="tb", big=0.03, disk=True, pool=60,
             weight=1.5),
    ]


def filters():
    return [
        Case("gz1", GZIP + "gzip_comp_level 1;" + P, weight=2.5, encodings=("gzip",), big=0.3, slow=0.15, leave=0.2),
        Case("gz5", GZIP + "gzip_comp_level 5;" + P, encodings=("gzip",), big=0.01),
        Case("gzcache", GZIP + "gzip_comp_level 1;" + P + cache("z1", "g$uri"), encodings=("gzip",), kinds="tv", disk=True),
        Case("gzfile1", "root @DIR@/html;" + GZIP + "gzip_comp_level 1;", transform="file", make="file", encodings=("gzip",), kinds="t", pool=40,
             proxied=False, big=0.3, leave=0.2, weight=1.5),
        Case("br", "brotli on; brotli_min_length 1; brotli_types *; brotli_comp_level 3;" + P, encodings=("br",), only_forebay=True),
        Case("zs", "zstd on; zstd_min_length 1; zstd_types *;" + P, encodings=("zstd",), only_forebay=True),
        Case("gunzip", "gunzip on; proxy_pass http://calm;", make="packed", encodings=("", "gzip")),
        Case("sub", f"sub_filter_types *; sub_filter_once off; sub_filter {content.MARK.decode()} '{content.MARK_REPLACED.decode()}';" + P,
             transform="sub", kinds="t"),
        Case("subgz", f"sub_filter_types *; sub_filter_once off; sub_filter {content.MARK.decode()} '{content.MARK_REPLACED.decode()}';"
             + GZIP + P, transform="sub", kinds="t", encodings=("gzip",)),
        Case("add", "addition_types *; add_before_body /inc-proxy/t3-700; add_after_body /inc-proxy/t22-1024;" + P, transform="add", kinds="t"),
        Case("ssi", "ssi on; ssi_types *;" + P, make="page", transform="page"),
        Case("cs", "charset utf-8; source_charset soak-latin; charset_types *; override_charset on; proxy_pass http://calm;", make="latin", transform="utf8"),
    ]


def access():
    return [
        Case("authr", "auth_request /auth-calm; proxy_pass http://calm;", make="asked"),
        Case("mirror", "mirror /mirrored; proxy_pass http://calm;"),
        Case("basic", 'auth_basic soak; auth_basic_user_file @DIR@/htpasswd; proxy_pass http://calm;', make="password"),
        Case("lreq", "limit_req zone=req burst=5 nodelay; proxy_pass http://calm;", statuses=(200, 503)),
        Case("lconn", "limit_conn conn @LIMIT@; proxy_pass http://calm;", statuses=(200, 503)),
        Case("lrate", "limit_rate 400k; limit_rate_after 20k; proxy_pass http://calm;", pool=12),
    ]


def uploads():
    up = dict(make="upload", transform="echo", weight=1.2)
    return [
        Case("upmem", P + "client_body_buffer_size 4m;", **up),
        Case("upfile", P + "client_body_buffer_size 8k;", disk=True, **up),
        Case("uponly", P + "client_body_in_file_only clean;", disk=True, **{**up, "weight": 0.6}),
        Case("upoff", P + "proxy_request_buffering off;", **up),
        Case("upfcgi", "fastcgi_pass calm_fcgi; include @DIR@/fastcgi_params; client_body_buffer_size 16k;", disk=True, **up),
        Case("upfoff", "fastcgi_pass calm_fcgi; include @DIR@/fastcgi_params; fastcgi_request_buffering off;", disk=True, **up),
        Case("up2", "proxy_pass http://calm_h2; proxy_http_version 2; client_body_buffer_size 16k;", disk=True, **up),
        Case("up2off", "proxy_pass http://calm_h2; proxy_http_version 2; proxy_request_buffering off;", **up),
        Case("upuw", "uwsgi_pass calm_uwsgi; include @DIR@/uwsgi_params;", disk=True, **up),
        Case("dav", "root @STORE@; dav_methods PUT DELETE; create_full_put_path on; client_body_buffer_size 16k;", make="dav", transform="dav",
             disk=True, proxied=False, statuses=(200, 201, 204)),
    ]


def tunnels():
    return [
        Case("ws", P + TUNNEL, make="websocket", transform="none", clients="1", weight=0.6, statuses=(101,)),
        Case("ws2", P + TUNNEL, make="websocket", transform="none", clients="2", weight=0.6, only_forebay=True),
        Case("sse", P + "proxy_buffering off;", make="events", weight=0.5),
        Case("ssebuf", P, make="events", weight=0.3),
    ]


def wild():
    gets = dict(chaos=0.35, statuses=WILD, broken=True, weight=0.5)
    flaky = dict(statuses=WILD, broken=True, weight=0.8)
    cached = dict(chaos=0.25, statuses=WILD + (206, 416), broken=True, kinds="tbv", disk=True, ranges=0.05, weight=0.9, pool=60)
    return [
        Case("inc-wild", X, **{**gets, "weight": 0.2}),
        Case("flaky", "proxy_pass http://flaky; proxy_connect_timeout 1s; proxy_read_timeout 5s;", **flaky),
        Case("x1", X, framings=("cl", "ch", "eof"), **gets),
        Case("xoff", X + "proxy_buffering off;", framings=("cl", "ch", "eof"), **gets),
        Case("xtmp", X + "proxy_buffer_size 4k; proxy_buffers 2 4k; proxy_busy_buffers_size 4k;", disk=True, **gets),
        Case("xnext", "proxy_pass http://wild; proxy_read_timeout 700ms; proxy_next_upstream error timeout invalid_header; proxy_next_upstream_tries 2;", **gets),
        Case("x2", "proxy_pass http://wild_h2; proxy_http_version 2; proxy_read_timeout 1s;", **gets),
        Case("x3", "proxy_pass https://wild_h3; proxy_http_version 3; proxy_http3_fallback off; proxy_read_timeout 1s;", only_forebay=True, **gets),
        Case("xgrpc", "grpc_pass grpc://wild_grpc; grpc_read_timeout 1s;", clients="2", transform="grpc", **gets),
        Case("xfcgi", "fastcgi_pass wild_fcgi; fastcgi_keep_conn on; include @DIR@/fastcgi_params; fastcgi_read_timeout 1s;", **{**gets, "framings": ("cl",)}),
        Case("xscgi", "scgi_pass calm_scgi; include @DIR@/scgi_params; scgi_read_timeout 1s;", **{**gets, "framings": ("cl",)}),
        Case("xmc", 'set $memcached_key "$uri?$args"; memcached_pass wild_mc; memcached_read_timeout 1s;', transform="memcached",
             **{**gets, "framings": ("cl",)}),
        Case("xcache", X + cache("z5"), **cached),
        Case("xclock", X + cache("z5", "l$uri", "2s", "proxy_cache_lock on; proxy_cache_lock_timeout 2s;"), **cached),
        Case("xstale", X + cache("z5", "b$uri", "1s", f"proxy_cache_background_update on; {STALE}"), **cached),
        Case("xfcache", "fastcgi_pass wild_fcgi; include @DIR@/fastcgi_params; fastcgi_read_timeout 1s; fastcgi_cache z8; fastcgi_cache_key f$uri;"
             "fastcgi_cache_valid 200 1s;", **{**cached, "framings": ("cl",)}),
        Case("xslice", "slice 32k; proxy_set_header Range $slice_range;" + X + cache("z6", "$uri$slice_range"),
             **{**cached, "framings": ("cl",), "ranges": 0.3}),
        Case("xstore", X + "proxy_store @STORE@/x$uri; proxy_store_access user:rw;", **{**cached, "kinds": "tb", "ranges": 0}),
        Case("xstored", "alias @STORE@/x/xstore/; log_not_found off;", transform="file", statuses=(200, 404), kinds="tb", pool=60, proxied=False),
        Case("xgz", GZIP + "gzip_comp_level 1;" + X, encodings=("gzip",), big=0.1, leave=0.2, **{**gets, "weight": 0.8}),
        Case("xbr", "brotli on; brotli_min_length 1; brotli_types *;" + X, encodings=("br",), only_forebay=True, **gets),
        Case("xssi", "ssi on; ssi_types *; proxy_pass http://calm;", make="wild_page", transform="any", statuses=WILD, broken=True, weight=0.5),
        Case("xauth", "auth_request /auth-wild; proxy_pass http://calm;", make="wild_asked", statuses=(200, 401, 500, 504), broken=True, weight=0.5),
        Case("xmirror", "mirror /mirrored-wild; proxy_pass http://calm;", weight=0.4),
        Case("xup", X + "proxy_request_buffering off;", make="upload", transform="echo", **{**gets, "statuses": WILD}),
        Case("xupfile", X + "client_body_buffer_size 8k;", make="upload", transform="echo", disk=True, **gets),
    ]


def everything():
    return {case.name: case for case in calm_proxies() + files() + caches() + filters() + access() + uploads() + tunnels() + wild()}


def chosen_name(case, rng):
    kind = rng.choice(case.kinds)
    if rng.random() < case.big:
        return f"{kind}{1000 + rng.randrange(3)}-{rng.choice([400_000, 1_000_000, 1_500_000])}"
    # Some are asked for more often than others.
    n = int(case.pool * rng.random() ** 3)
    return f"{kind}{n}-{content.SIZES[n % len(content.SIZES)]}"


def get(case, rng, request):
    request.name = request.name or chosen_name(case, rng)
    request.path = f"/{case.name}/{request.name}"
    request.args["f"] = rng.choice(case.framings)
    if case.transform == "grpc":
        request.method, request.upload = "POST", b""
    length = content.parse(request.name)[1] if content.parse(request.name) else 0
    if not length and case.name in ("slice", "xslice"):
        # No part of nothing can be had.
        request.statuses += (416,)
    if case.chaos and rng.random() < case.chaos:
        mode = rng.choice(MODES)
        request.args["m"] = possible(mode, case, request)
    elif case.proxied and rng.random() < case.slow:
        request.args["m"] = rng.choice(["drip", "halves", "halves"])
    if case.encodings:
        encoding = rng.choice(case.encodings)
        if encoding:
            request.headers.append(("accept-encoding", encoding))
        return
    if rng.random() < case.head:
        request.method = "HEAD"
    elif length and rng.random() < case.ranges:
        first = rng.randrange(length + 10)
        last = first + rng.choice([0, 10, 1000, 40_000, 400_000])
        request.range = (first, last)
        request.headers.append(("range", f"bytes={first}-{last}"))
        request.statuses += (206, 416) if first >= length else (206,)
    elif rng.random() < case.conditional and request.name[0] != "v" and case.transform != "file":
        request.headers.append(("if-none-match", f'"{request.name}.0"'))
        request.statuses += (304,)


def possible(mode, case, request):
    """Replaces a mode that is none in this case: its bytes would be right, or wrong by right."""
    unnoticed = request.args["f"] == "eof" and mode in FRAMED_ONLY or mode == "badchunk" and request.args["f"] != "ch"
    # Without a length there is no lie, and what is stored would be short with a right to be.
    return "resetb" if unnoticed or mode == "less" and (case.transform == "grpc" or case.name in ("xstore", "xslice")) else mode


def file(case, rng, request):
    kind = rng.choice(case.kinds)
    n = rng.randrange(case.pool)
    request.name = f"{kind}{n}-{content.SIZES[n % len(content.SIZES)]}"
    if rng.random() < case.big:
        request.name = rng.choice(["b1000-1000000", "t1001-1000000", "b1002-1500000"] * 8 + [f"t2000-{content.HUGE}"])
    get(case, rng, request)
    request.args.pop("f")


def packed(case, rng, request):
    get(case, rng, request)
    request.args["z"] = "1"


def latin(case, rng, request):
    n = rng.randrange(30)
    request.name = f"l{n}-{content.SIZES[n % len(content.SIZES)]}"
    get(case, rng, request)


def page(case, rng, request):
    request.name = f"page{rng.randrange(20)}-{rng.randrange(1, 9)}"
    request.path = f"/{case.name}/{request.name}"
    request.args["f"] = rng.choice(case.framings)


def wild_page(case, rng, request):
    page(case, rng, request)
    request.args["pm"] = rng.choice(MODES)


def asked(case, rng, request):
    get(case, rng, request)
    answer = rng.choice(["204", "204", "204", "401", "403"])
    request.args["a"] = answer
    if answer != "204":
        request.statuses = (int(answer),)
    request.headers.append(("x-auth", request.args.pop("a")))


def wild_asked(case, rng, request):
    get(case, rng, request)
    request.headers += [("x-auth", "204"), ("x-mode", rng.choice(["", "", "stall0", "reset0", "close0", "garbage", "stall1"]))]


def password(case, rng, request):
    get(case, rng, request)
    word = rng.choice(["right", "right", "wrong"])
    request.headers.append(("authorization", "Basic " + base64.b64encode(f"soak:{word}".encode()).decode()))
    if word == "wrong":
        request.statuses = (401,)


def upload(case, rng, request):
    request.method = rng.choice(["POST", "POST", "PUT"])
    request.path = f"/{case.name}/echo"
    size = rng.choice([0, 10, 1000, 8000, 17_000, 70_000, 200_000, 200_000, 1_000_000] + [3_000_000] * (rng.random() < 0.2))
    request.upload = content.body(f"b{rng.randrange(6)}-{size}.0")
    request.chunked = rng.random() < 0.4
    if case.chaos and rng.random() < case.chaos:
        request.args["m"] = rng.choice(["early", "stall0", "reset0", "close0", "resetup", "stallup", "closeb"])


def dav(case, rng, request):
    """An upload; the client asks for it later, and removes it at times."""
    request.method = "PUT"
    size = rng.choice([0, 10, 1000, 8000, 17_000, 70_000, 200_000])
    request.path = f"/{case.name}/{request.id.rsplit('-', 1)[0]}-{rng.randrange(3)}.bin"
    request.upload = content.body(f"b{rng.randrange(6)}-{size}.0")
    request.chunked = rng.random() < 0.3
    request.statuses = (201, 204)


def websocket(case, rng, request):
    request.path = f"/{case.name}/tunnel"
    request.tunnel = "websocket"


def events(case, rng, request):
    request.name = f"t{rng.randrange(20)}-{rng.choice([700, 2000])}"
    request.path = f"/{case.name}/{request.name}"
    request.args = {"f": "ch", "m": "events"}


def request(case, rng, id):
    """Makes a request of a case."""
    made = Request(case, id, statuses=case.statuses, broken=case.broken, transform=case.transform)
    globals()[case.make](case, rng, made)
    return made


class Chooser:
    """Chooses cases by their weights."""

    def __init__(self, client, forebay, only):
        self.cases = [c for c in everything().values() if client in c.clients and (forebay or not c.only_forebay) and only.search(c.name)]
        self.weights = [c.weight for c in self.cases]

    def __call__(self, rng, id):
        return request(rng.choices(self.cases, self.weights)[0], rng, id)


def seeded(*parts):
    return random.Random("/".join(str(p) for p in parts))
