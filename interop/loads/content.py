"""The files that servers read: pages, certificates, and parts of configurations."""

import functools
import os
import random
import subprocess

from case import html

# All files are as old, so that answers can be compared and asked for by their age.
AGE = 1_700_000_000
LAST_MODIFIED = "Tue, 14 Nov 2023 22:13:20 GMT"
TREE = 50_000

FASTCGI = {
    "QUERY_STRING": "$query_string",
    "REQUEST_METHOD": "$request_method",
    "CONTENT_TYPE": "$content_type",
    "CONTENT_LENGTH": "$content_length",
    "SCRIPT_NAME": "$fastcgi_script_name",
    "REQUEST_URI": "$request_uri",
    "DOCUMENT_URI": "$document_uri",
    "DOCUMENT_ROOT": "$document_root",
    "SERVER_PROTOCOL": "$server_protocol",
    "REQUEST_SCHEME": "$scheme",
    "HTTPS": "$https if_not_empty",
    "GATEWAY_INTERFACE": "CGI/1.1",
    "SERVER_SOFTWARE": "nginx",
    "REMOTE_ADDR": "$remote_addr",
    "REMOTE_PORT": "$remote_port",
    "SERVER_ADDR": "$server_addr",
    "SERVER_PORT": "$server_port",
    "SERVER_NAME": "$server_name",
    "REDIRECT_STATUS": "200",
    "SCRIPT_FILENAME": "$document_root$fastcgi_script_name",
}


def make(work, cases):
    """Makes all that the cases need and that is not there yet."""
    for name, size in (("0k.html", 0), ("1k.html", 1024), ("10k.html", 10240), ("100k.html", 102400)):
        put(f"{work}/www/{name}", html(size, size))
    for name, size in (("1m.bin", 1 << 20), ("10m.bin", 10 << 20)):
        if not os.path.exists(f"{work}/www/{name}"):
            put(f"{work}/www/{name}", os.urandom(size))
    put(f"{work}/www/404.html", html(1024, 404))
    put(f"{work}/www/inc/a.html", html(200, 1))
    put(f"{work}/www/inc/b.html", html(200, 2))
    first, second = (f'<!--# include virtual="/inc/{name}.html" -->'.encode() for name in "ab")
    put(f"{work}/www/page.shtml", b"<html>" + first + html(600, 3) + second + b"</html>")
    put(f"{work}/post64k", html(65536, 64))
    # A message of gRPC: not compressed, 32 bytes.
    put(f"{work}/grpc.req", b"\0\0\0\0\x20" + b"g" * 32)
    put(f"{work}/htpasswd", "alice:" + openssl("passwd", "-apr1", "-salt", "saltsalt", "wonderland"))
    put(f"{work}/fastcgi.conf", "".join(f"fastcgi_param {name} {value};\n" for name, value in FASTCGI.items()))
    uwsgi = {name: value for name, value in FASTCGI.items() if "fastcgi" not in value}
    put(f"{work}/uwsgi.conf", "".join(f"uwsgi_param {name} {value};\n" for name, value in uwsgi.items()))
    certificates(work)
    for more in {case.content for case in cases if case.content}:
        more(work)


def put(path, data):
    if os.path.exists(path):
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(data if isinstance(data, bytes) else data.encode())
    os.utime(path, (AGE, AGE))


def openssl(*arguments):
    return subprocess.run(["openssl", *arguments], check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout


def certificates(work):
    """Certificates of servers with RSA and ECDSA, and one of a client with its authority."""
    if os.path.exists(f"{work}/client.pem"):
        return
    curve = ("ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
    for name, key, subject in (("rsa", ("rsa:2048",), "localhost"), ("ec", curve, "localhost"), ("ca", curve, "Test CA")):
        openssl("req", "-x509", "-nodes", "-days", "3650", "-newkey", *key, "-keyout", f"{work}/{name}.key", "-out", f"{work}/{name}.crt",
                "-subj", f"/CN={subject}", "-addext", "subjectAltName=DNS:localhost")
    openssl("req", "-new", "-nodes", "-newkey", *curve, "-keyout", f"{work}/client.key", "-out", f"{work}/client.csr", "-subj", "/CN=client")
    openssl("x509", "-req", "-in", f"{work}/client.csr", "-CA", f"{work}/ca.crt", "-CAkey", f"{work}/ca.key", "-CAcreateserial",
            "-days", "3650", "-out", f"{work}/client.crt")
    with open(f"{work}/client.crt") as crt, open(f"{work}/client.key") as key:
        put(f"{work}/client.pem", crt.read() + key.read())


def many_files(work):
    """A directory of 2,000 files, for autoindex."""
    for i in range(2000):
        put(f"{work}/www/list/file{i}.txt", "x" * (i % 100))


def path_in_tree(i):
    return f"/{i % 50}/{i // 50 % 20}/f{i}.html"


def tree(work):
    """50,000 files of 600 to 1,500 bytes in 1,000 directories. Takes some seconds."""
    if os.path.exists(f"{work}/tree/done"):
        return
    text = functools.cache(lambda seed: html(1500, seed))
    for i in range(TREE):
        put(f"{work}/tree{path_in_tree(i)}", text(i % 64)[:600 + i % 900])
    put(f"{work}/tree/done", b"")


def maps(work):
    """A map with 300 patterns, and a geo with 5,000 networks."""
    chance, networks = random.Random(11), set()
    while len(networks) < 5000:
        bits = chance.choice((16, 20, 24))
        networks.add(((10 << 24 | chance.getrandbits(24)) >> (32 - bits) << (32 - bits), bits))
    lines = ["map $http_user_agent $ua_class {", "  default other;"]
    lines += [rf'  "~*bot{i}/[0-9]+\.[0-9]+" bot{i};' for i in range(300)]
    lines += ["}", "geo $arg_ip $net_class {", "  default none;"]
    for i, (network, bits) in enumerate(sorted(networks)):
        lines.append(f"  {network >> 24}.{network >> 16 & 255}.{network >> 8 & 255}.{network & 255}/{bits} n{i};")
    put(f"{work}/maps.conf", "\n".join(lines + ["}"]))


def locations(work):
    """500 locations with patterns."""
    odd = r'location ~ ^/app{0}/([0-9]+)$ {{ return 200 "a{0} $1\n"; }}'
    even = r'location ~* \.e{0}$ {{ return 200 "e{0} $uri\n"; }}'
    put(f"{work}/locations.conf", "\n".join((odd if i % 2 else even).format(i) for i in range(500)))
