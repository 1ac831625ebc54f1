"""Bodies of requests."""

from case import Case, html, proxy, request

ROOM = "client_max_body_size 50m; "


def cases():
    post = request("/post", "Content-Type: application/json", method="POST", body=html(2048, 9))
    megabyte = html(65536, 9) * 16
    one = request("/up", method="POST", body=megabyte)
    ten = request("/up", method="POST", body=megabyte * 10)
    buffered, unbuffered = ROOM + proxy("o"), ROOM + proxy("o", "proxy_request_buffering off;")
    return [
        Case("proxy-post-2k", proxy("o"), [post], floor="relay"),
        Case("proxy-upload-1m", buffered, [one], connections=16, note="through a file"),
        Case("proxy-upload-1m-unbuffered", unbuffered, [one], connections=16, floor="relay"),
        Case("proxy-upload-10m", buffered, [ten], connections=8),
        Case("proxy-upload-10m-unbuffered", unbuffered, [ten], connections=8, floor="relay"),
        Case("https-upload-1m-unbuffered", unbuffered, [one], tls="ec", connections=16),
    ]
