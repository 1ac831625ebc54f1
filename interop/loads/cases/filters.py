"""Filters, and what asks an upstream first."""

from case import KEEP, ROOT, Case, proxy, request

AUTH = f"""location / {{ auth_request /auth; auth_request_set $u $upstream_http_x_user; }}
    location = /auth {{ internal; proxy_pass http://o/auth; {KEEP} proxy_pass_request_body off;
        proxy_set_header Content-Length ''; proxy_set_header X-Original-URI $request_uri; }}"""


def cases():
    json = [request("/j", "Accept-Encoding: gzip")]
    out = [
        Case("sub_filter-100k", ROOT + "sub_filter 'header' 'HEADER'; sub_filter_once off;", [request("/100k.html")]),
        Case("ssi-1k", ROOT + "location / { ssi on; ssi_types *; }", [request("/page.shtml")]),
        Case("auth_request-1k", ROOT + AUTH, [request("/1k.html")]),
    ]
    out += [
        Case(f"gzip-dyn-20k-level{level}", proxy("o", f"gzip on; gzip_types application/json; gzip_proxied any; gzip_comp_level {level};"),
             json, varying=True, note="JSON that differs each time")
        for level in (1, 5)
    ]
    out += [
        Case("brotli-dyn-20k-level5", proxy("o", "brotli on; brotli_types application/json; brotli_comp_level 5;"),
             [request("/j", "Accept-Encoding: br")], varying=True, note="nginx has brotli in a module of others alone"),
        Case("proxy-dyn-20k", proxy("o"), json, varying=True, floor="relay", note="the same without compression"),
    ]
    return out
