"""Files."""

import random

import content
from case import ROOT, Case, request

# A pattern that matches no request of the load, as configurations have, and two that rewrite.
PATTERNS = ROOT + r"""
    location ~* \.(css|js)$ { expires 1y; }
    location ~ ^/api/(?<v>v[0-9])/(.*)$ { return 200 "$v $1"; }
    rewrite ^/old/(.*)$ /$1 last;"""


def cases():
    one = request("/1k.html")
    sizes = [("0k", "/0k.html"), ("1k", "/1k.html"), ("10k", "/10k.html"), ("100k", "/100k.html"), ("1m", "/1m.bin"), ("10m", "/10m.bin")]
    out = [Case(f"http-{size}", ROOT, [request(path)], floor="answer" if path.endswith("html") else "") for size, path in sizes]
    out += [
        Case("http-404", ROOT, [request("/none.html")], status=404, varying=True),
        Case("regex-return", PATTERNS, [request("/api/v1/hello")]),
        Case("gzip-10k", zipped(), [request("/10k.html", "Accept-Encoding: gzip")], varying=True),
        Case("gzip-100k", zipped(), [request("/100k.html", "Accept-Encoding: gzip")], varying=True),
        Case("static-1k-default", ROOT + "open_file_cache off; access_log @own@/plain.log combined;", [one], floor="answer",
             note="no open_file_cache, a log without a buffer"),
        Case("static-304", ROOT, [request("/1k.html", f"If-Modified-Since: {content.LAST_MODIFIED}")], status=304),
        ranges(),
        tree(),
        Case("autoindex-2000", ROOT + "location /list/ { autoindex on; }", [request("/list/")], content=content.many_files),
    ]
    return out


def zipped():
    return ROOT + "gzip on; gzip_comp_level 5; gzip_min_length 256; gzip_types text/css;"


def ranges():
    chance = random.Random(5)
    starts = [chance.randrange(10 << 20) - 1024 & ~1 for _ in range(64)]
    requests = [request("/10m.bin", f"Range: bytes={at}-{at + 1023}") for at in starts if at >= 0]
    return Case("range-1k-of-10m", ROOT, requests, ("-z",), status=206)


def tree():
    chance = random.Random(5)
    requests = [request(content.path_in_tree(i)) for i in chance.sample(range(content.TREE), content.TREE)]
    return Case("tree-50000", "root @work@/tree; open_file_cache off;", requests, ("-z",), warm=1, content=content.tree,
                note="random small files, in the page cache")
