"""The configuration of the server under test."""

import os

import cases
import content

# Files that a configuration may have at its turn: a reload alternates them.
VARIANTS = 5

FASTCGI = ["QUERY_STRING $query_string", "REQUEST_METHOD $request_method", "CONTENT_TYPE $content_type", "CONTENT_LENGTH $content_length",
           "REQUEST_URI $request_uri", "DOCUMENT_URI $document_uri", "SERVER_PROTOCOL $server_protocol", "REMOTE_ADDR $remote_addr"]

MAIN = """
worker_processes @WORKERS@;
worker_rlimit_nofile 8192;
pid @DIR@/server.pid;
error_log @DIR@/logs/error.log @LEVEL@;
@USER@
events { worker_connections 2048; }
"""

HTTP = """
http {
    log_format soak '$msec|$arg_id|$status|$body_bytes_sent|$server_protocol|$request_method|$pid|$connection'
                    '|$upstream_addr|$upstream_status|$request_time|$uri';
    access_log @DIR@/logs/access.log soak;
    default_type text/plain;
    types { }
    client_body_temp_path @DISK@/tmp/body; proxy_temp_path @DISK@/tmp/proxy; fastcgi_temp_path @DISK@/tmp/fastcgi;
    uwsgi_temp_path @DISK@/tmp/uwsgi; scgi_temp_path @DISK@/tmp/scgi;
    resolver 127.0.0.1:@O_DNS@ valid=1s ipv6=off;
    resolver_timeout 5s;
    sendfile on;
    client_max_body_size 10m;
    client_body_timeout 20s;
    keepalive_requests @KEEPALIVE_REQUESTS@;
    proxy_connect_timeout 10s; fastcgi_connect_timeout 10s; uwsgi_connect_timeout 10s; scgi_connect_timeout 10s; grpc_connect_timeout 10s;
    proxy_http_version 1.1;
    proxy_set_header Connection "";
    proxy_set_header Accept-Encoding "";
    proxy_ssl_verify off;
    large_client_header_buffers 4 8k;
    map $http_upgrade $connection_upgrade { default upgrade; '' ''; }
    @CHARSET@
    limit_req_zone $server_name zone=req:1m rate=@RATE@r/s;
    limit_conn_zone $server_name zone=conn:1m;
    @CACHES@
    @UPSTREAMS@
    @SERVERS@
}
"""

STREAM = """
stream {
    log_format soak '$msec|$protocol|$status|$bytes_sent|$bytes_received';
    access_log @DIR@/logs/stream.log soak;
    upstream stream_origin { server 127.0.0.1:@O_STREAM@; }
    upstream udp_origin { server 127.0.0.1:@O_UDP@; }
    server { listen 127.0.0.1:@S_TCP@; proxy_pass stream_origin; proxy_timeout 20s; proxy_buffer_size @STREAM_BUFFER@; }
    server {
        listen 127.0.0.1:@S_TLS@ ssl; ssl_certificate @DIR@/server.pem; ssl_certificate_key @DIR@/server.key;
        proxy_pass stream_origin; proxy_timeout 20s;
    }
    server { listen 127.0.0.1:@S_UDP@ udp; proxy_pass udp_origin; proxy_timeout 3s; proxy_responses 1; }
}
"""

SERVER = """
    server {
        listen 127.0.0.1:@HTTP@; listen 127.0.0.1:@TLS@ ssl; listen 127.0.0.1:@TLS@ quic@REUSEPORT@; listen unix:@DIR@/server.sock;
        server_name soak.test;
        http2 on;
        ssl_certificate @DIR@/server.pem; ssl_certificate_key @DIR@/server.key;
        ssl_session_cache shared:soak:1m;
        location = /ping { return 200 "pong\\n"; }
        location = /auth-calm { internal; proxy_pass http://calm/auth; proxy_pass_request_body off; proxy_set_header Content-Length ""; }
        location = /auth-wild {
            internal; proxy_pass http://wild/auth?id=$arg_id; proxy_read_timeout 1s; proxy_pass_request_body off; proxy_set_header Content-Length "";
        }
        location = /mirrored { internal; proxy_pass http://calm/mirrored?id=$arg_id; }
        location = /mirrored-wild { internal; proxy_pass http://wild/mirrored?id=$arg_id&m=stall0; proxy_read_timeout 1s; }
        location @@store { internal; root @STORE@; proxy_pass http://calm; proxy_store on; proxy_store_access user:rw; }
        @LOCATIONS@
        @EXTRA_LOCATIONS@
    }
    server { listen 127.0.0.1:@STATUS@; access_log off; location = /status { stub_status; } location = /ping { return 200 "pong\\n"; } @STATUS_MORE@ }
    @EXTRA_SERVERS@
"""


def upstreams(variant):
    """Groups. Calm ones are never treated badly, so each of their failures is the server's own."""
    more = "server 127.0.0.1:@O_H1B@ weight=2;" if variant % 2 else "server 127.0.0.1:@O_H1B@; server 127.0.0.3:@O_H1@;"
    group = lambda name, servers, rest="": f"upstream {name} {{ {servers} keepalive 16; keepalive_timeout 5s; {rest} }}"
    one = lambda name, port: group(name, f"server 127.0.0.1:@{port}@;")
    free = lambda name, port: group(name, f"server 127.0.0.1:@{port}@ max_fails=0;")
    return "\n    ".join([
        group("calm", "server 127.0.0.1:@O_H1@; " + more),
        group("calm_tls", "server 127.0.0.1:@O_TLS@; server 127.0.0.2:@O_TLS@;"),
        group("calm_h2", "server 127.0.0.1:@O_H2@; server 127.0.0.2:@O_H2@;"),
        # nginx mixes up kept connections of gRPC and of HTTP/2 in one group.
        group("calm_grpc", "server 127.0.0.1:@O_H2@; server 127.0.0.2:@O_H2@;"), free("wild_grpc", "O_H2"),
        one("calm_h2tls", "O_H2TLS"), one("calm_h3", "O_H3"), one("calm_fcgi", "O_FCGI"), one("calm_uwsgi", "O_UWSGI"),
        free("calm_scgi", "O_SCGI"), one("calm_mc", "O_MC"),
        group("wild", "server 127.0.0.1:@O_H1@ max_fails=0; server 127.0.0.2:@O_H1@ max_fails=0;"),
        free("wild_h2", "O_H2"), free("wild_h3", "O_H3"), free("wild_fcgi", "O_FCGI"), free("wild_mc", "O_MC"),
        group("flaky", "server 127.0.0.1:@O_FLAKY@ fail_timeout=1s; server 127.0.0.1:@O_H1@;"),
        group("mover", "zone mover 64k; server moving.soak.test:@O_MOVE@ resolve;"),
    ])


def caches(variant):
    path = lambda zone, size, inactive="5s", more="", kind="proxy": (
        f"{kind}_cache_path @DISK@/cache/{zone} levels=1:2 keys_zone={zone}:1m max_size={size} inactive={inactive} {more};")
    return "\n    ".join([
        path("z1", "4m"), path("z2", "2m", "3s"), path("z3", "3m", "4s", "use_temp_path=off"), path("z4", "4m"), path("z5", "2m", "3s"),
        path("z6", "3m", "4s", "use_temp_path=off"), path("z7", "2m", "3s", kind="fastcgi"), path("z8", "2m", "3s", kind="fastcgi"), path("swap" + "ab"[variant % 2], "2m"),
    ])


def locations(forebay, variant):
    out = []
    for case in cases.everything().values():
        if case.only_forebay and not forebay:
            continue
        out.append(f"location /{case.name}/ {{ {case.conf} }}")
    out = "\n        ".join(out)
    return out.replace("@ZONE@", "swap" + "ab"[variant % 2]).replace("@LIMIT@", str(3 + variant))


def charset():
    lines = "".join(f"{code:02X} {chr(code).encode().hex().upper()};" for code in range(0x80, 0x100))
    return f"charset_map soak-latin utf-8 {{ {lines} }}"


def foreign_limits():
    """Whether limits of other users' processes may be set here (CAP_SYS_RESOURCE)."""
    with open("/proc/self/status") as f:
        effective = next(line for line in f if line.startswith("CapEff"))
    return bool(int(effective.split()[1], 16) >> 24 & 1)


def text(forebay, variant, ports, directory, disk, workers):
    """The whole configuration in one of its variants."""
    extra = f"server {{ listen 127.0.0.1:@HTTP@; server_name extra{variant}.soak.test; location / {{ return 204; }} }}"
    fill = {
        "@CHARSET@": charset(), "@CACHES@": caches(variant), "@UPSTREAMS@": upstreams(variant), "@SERVERS@": SERVER,
        "@LOCATIONS@": locations(forebay, variant), "@EXTRA_SERVERS@": extra * (variant % 3),
        "@EXTRA_LOCATIONS@": f"location = /extra{variant} {{ return 204; }}" * (variant % 2),
        "@RATE@": str(20 + 10 * variant), "@KEEPALIVE_REQUESTS@": str([10000, 200, 1000][variant % 3]),
        "@STREAM_BUFFER@": ["16k", "4k", "32k"][variant % 3], "@LEVEL@": "info" if variant == 3 else "notice",
        "@STATUS_MORE@": "location = /metrics { prometheus; }" if forebay else "", "@USER@": "" if foreign_limits() else "user root;",
        "@REUSEPORT@": "" if forebay else " reuseport",
        "@WORKERS@": str(workers), "@STORE@": f"{disk}/store", "@DIR@": directory, "@DISK@": disk,
        **{f"@{name}@": str(port) for name, port in ports.items()},
    }
    out = MAIN + HTTP + STREAM
    for token, value in fill.items():
        out = out.replace(token, value)
    return out.replace("@@", "@")


def write(path, *args):
    with open(path + ".new", "w") as f:
        f.write(text(*args))
    os.rename(path + ".new", path)


def site(directory, disk):
    """Writes files to serve."""
    for sub in ["logs"] + [f"html/{c.name}" for c in cases.files()] + ["html/gzfile1"]:
        os.makedirs(f"{directory}/{sub}", exist_ok=True)
    names = content.names("t", 40) + content.names("b", 40)
    large = ["b1000-1000000", "t1001-1000000", "b1002-1500000", f"t2000-{content.HUGE}"]
    for name in names + large:
        for case in cases.files() + [cases.everything()["gzfile1"]]:
            if name in large and case.name == "gzfile":
                continue
            with open(f"{directory}/html/{case.name}/{name}", "wb") as f:
                f.write(content.body(name + ".0"))
            if case.name == "gzfile":
                with open(f"{directory}/html/{case.name}/{name}.gz", "wb") as f:
                    f.write(content.gzipped(name + ".0"))
    for sub in ["tmp", "cache", "store", "store/dav"]:
        os.makedirs(f"{disk}/{sub}", exist_ok=True)
    with open(f"{directory}/fastcgi_params", "w") as f:
        f.writelines(f"fastcgi_param {line};\n" for line in FASTCGI)
    for kind in ["uwsgi", "scgi"]:
        with open(f"{directory}/{kind}_params", "w") as f:
            f.writelines(f"{kind}_param {line};\n" for line in FASTCGI)
