"""The cache of responses."""

from case import Case, proxy, request

ZONE = "proxy_cache_path @own@/cache levels=1:2 keys_zone=c:20m max_size=1g inactive=60m;"
MISSES = "proxy_cache_path @own@/miss levels=1:2 keys_zone=m:100m max_size=100m inactive=60m;"
SLICES = """slice 1m; proxy_cache_key $uri$slice_range; proxy_set_header Range $slice_range;
    proxy_cache_valid 200 206 1h;"""


def cases():
    parts = [request("/r", f"Range: bytes={i * 65536}-{i * 65536 + 65535}") for i in range(160)]
    return [
        cached("cache-1k", "b", [request("/1k.html")]),
        cached("cache-100k", "b", [request("/100k.html")]),
        cached("cache-hit-1m", "o", [request("/b/1048576?hit")]),
        cached("cache-hit-10k-keys-2000", "o", [request(f"/b/10240?n={i}") for i in range(2000)], options=("-z",), warm=1),
        # load.c puts another number for the signs in each request.
        Case("cache-miss-1k", proxy("o", "proxy_cache m; proxy_cache_valid 200 1h;"), [request("/b/1024?k=@@@@@@@@@@")], http=MISSES,
             varying=True, note="each answer is written to disk"),
        cached("slice-64k-of-10m", "o", parts, SLICES, options=("-z",), status=206, warm=1),
    ]


def cached(name, upstream, requests, more="", **options):
    conf = proxy(upstream, f"proxy_cache c; proxy_cache_valid 200 1h; {more}")
    return Case(name, conf, requests, http=ZONE, **options)
