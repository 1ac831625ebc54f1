"""Variables, logs, locations, limits: what the configuration has the server do for a request."""

import base64
import random

import content
from case import AGENTS, BROWSER, ROOT, Case, request

LOG = """log_format j escape=json '{"time":"$time_iso8601","addr":"$remote_addr","host":"$host","method":"$request_method",'
    '"uri":"$request_uri","status":$status,"bytes":$body_bytes_sent,"rt":$request_time,"ref":"$http_referer",'
    '"ua":"$http_user_agent","urt":"$upstream_response_time","id":"$request_id"}';"""
IFS = """
    set $m "";
    if ($http_user_agent ~* "(android|iphone)") { set $m "mobile"; }
    if ($request_method = POST) { set $m "${m}p"; }
    if ($http_cookie ~* "session=([^;]+)") { set $s $1; }
    if ($args ~ "x=([0-9]+)") { set $x $1; }
    if ($host = "www.example.com") { return 301 https://example.com$request_uri; }
    if ($http_referer !~ "example") { set $m "${m}r"; }
    if ($uri ~ "^/old/(.*)") { return 301 /$1; }
    if ($http_x_a != "") { set $m "a"; }
    location / { return 200 "$m $s $x\\n"; }"""
SECURE = [
    "X-Frame-Options SAMEORIGIN",
    "X-Content-Type-Options nosniff",
    'X-XSS-Protection "1; mode=block"',
    "Referrer-Policy no-referrer",
    '''Content-Security-Policy "default-src 'self'; img-src *"''',
    "Strict-Transport-Security max-age=63072000",
    'Permissions-Policy "geolocation=()"',
    'Cache-Control "public, max-age=3600"',
]
LIMITS = "set_real_ip_from 127.0.0.1; real_ip_header X-Forwarded-For; limit_conn lc 100; limit_req zone=lq burst=1000 nodelay;"
ZONES = "limit_conn_zone $binary_remote_addr zone=lc:20m; limit_req_zone $binary_remote_addr zone=lq:20m rate=1000r/s;"


def cases():
    one = request("/1k.html")
    alice = base64.b64encode(b"alice:wonderland").decode()
    return [
        Case("limit_req-1k", ROOT + "location / { limit_req zone=lr burst=100000 nodelay; }", [one],
             http="limit_req_zone $binary_remote_addr zone=lr:10m rate=1000000r/s;"),
        limits(),
        Case("log-json-12-unbuffered", ROOT + "access_log @own@/json.log j;", [request("/1k.html", *BROWSER)], http=LOG, floor="answer"),
        maps(),
        locations(),
        Case("rewrite-chain-10", ROOT + rewrites(), [request("/r0/1k.html")]),
        Case("if-set-8", IFS, [request("/page?x=42", *BROWSER)]),
        Case("try_files-4", ROOT + "open_file_cache off; location / { try_files $uri.none $uri/index.php $uri.b $uri.html =404; }",
             [request("/1k")]),
        Case("error_page-404-file", ROOT + "open_file_cache off; error_page 404 /404.html; location = /404.html { internal; }",
             [request("/nothing")], status=404),
        Case("secure-fields-8", ROOT + " ".join(f"add_header {field} always;" for field in SECURE), [one], floor="answer"),
        Case("redirect-301", "return 301 https://$host$request_uri;", [request("/some/page?x=1", *BROWSER)], status=301,
             varying=True),
        Case("auth_basic-apr1", ROOT + "auth_basic x; auth_basic_user_file @work@/htpasswd;",
             [request("/1k.html", f"Authorization: Basic {alice}")]),
        vhosts(),
    ]


def limits():
    keys = random.Random(5).sample(range(1 << 20), 20000)
    requests = [request("/1k.html", f"X-Forwarded-For: 10.{key >> 16}.{key >> 8 & 255}.{key & 255}") for key in keys]
    return Case("limits-20000-keys", ROOT + LIMITS, requests, ("-z",), http=ZONES, floor="answer")


def maps():
    chance = random.Random(5)
    requests = []
    for i in range(256):
        address = f"10.{chance.randrange(200)}.{chance.randrange(256)}.{chance.randrange(256)}"
        agent = AGENTS[i % 4] if i % 2 else f"bot{chance.randrange(300)}/2.{i} (+http://bot)"
        requests.append(request(f"/?ip={address}", f"User-Agent: {agent}"))
    return Case("map-regex-300-geo-5000", r'location / { return 200 "$ua_class $net_class\n"; }', requests, ("-z",),
                http="include @work@/maps.conf;", content=content.maps)


def locations():
    requests = [request(f"/app{i}/{i * 7}" if i % 2 else f"/x/y.e{i}") for i in range(0, 500, 7)]
    return Case("locations-500-regex", "include @work@/locations.conf; " + ROOT, requests, ("-z",), content=content.locations)


def rewrites():
    chain = " ".join(f"rewrite ^/r{i}/(.*)$ /r{i + 1}/$1;" for i in range(9))
    return chain + " rewrite ^/r9/(.*)$ /$1 last;"


def vhosts():
    """5,000 servers on one port, of which the first is in the configuration and the others in a file."""
    chance = random.Random(5)
    requests = [request("/1k.html", host=f"h{chance.randrange(5000)}.example.com") for _ in range(3000)]

    def others(port, work):
        server = "server {{ listen 127.0.0.1:{}; server_name h{}.example.com; root {}/www; }}\n"
        return "".join(server.format(port, i, work) for i in range(1, 5000))

    return Case("vhosts-5000", "server_name h0.example.com; " + ROOT, requests, ("-z",), http="include @own@/vhosts.conf;",
                files={"vhosts.conf": others}, floor="answer")
