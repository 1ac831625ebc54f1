#!/usr/bin/env python3
"""Compares the request corpus with nginx, or writes it from nginx's answers.

    FOREBAY_TEST_NGINX=/usr/sbin/nginx corpus_oracle.py            # compare, exit 1 on a difference
    FOREBAY_TEST_NGINX=... corpus_oracle.py --write NEW < CASES    # lines: name, configuration, input

Each case of corpus/requests.tsv is sent as raw bytes to an nginx on a loopback port. What nginx made of it
comes back in the body of its answer: method, path, query, host and version; the status and whether the
connection is kept complete the picture. The same table is read by tests/corpus.rs.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "corpus", "requests.tsv")
SUMMARY = "=$request_method|$uri|$args|$host|$server_protocol="
CONFIGURATIONS = {
    "default": "",
    "small": "client_header_buffer_size 128; large_client_header_buffers 4 256;",
    "lenient": "underscores_in_headers on; ignore_invalid_headers off; merge_slashes off; max_headers 5;",
}


def unescape(text):
    """Bytes of a table field: \\r, \\n, \\t, \\\\ and \\xNN; {N*TEXT} repeats."""
    text = re.sub(r"\{(\d+)\*([^}]*)\}", lambda m: m.group(2) * int(m.group(1)), text)
    return text.encode("latin-1").decode("unicode_escape").encode("latin-1")


def escape(data):
    out = ""
    for b in data:
        special = {9: "\\t", 10: "\\n", 13: "\\r", 92: "\\\\"}.get(b)
        out += special or (chr(b) if 32 <= b < 127 and b not in b"{}" else "\\x%02x" % b)
    return out


def version(nginx):
    text = subprocess.run([nginx, "-v"], capture_output=True, text=True).stderr
    found = re.search(r"nginx/(\d+)\.(\d+)", text)
    return (int(found.group(1)), int(found.group(2))) if found else (0, 0)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start(nginx, prefix):
    """Starts nginx with one server per configuration; returns the process and the ports."""
    ports = {name: free_port() for name in CONFIGURATIONS}
    servers = "".join(
        'server { listen 127.0.0.1:%d; server_name ""; %s location / { return 200 "%s"; } }\n'
        % (ports[name], extra, SUMMARY)
        for name, extra in CONFIGURATIONS.items()
    )
    conf = (
        "daemon off; master_process off; error_log stderr crit; pid nginx.pid; events { }\n"
        "http { access_log off; connection_pool_size 128; keepalive_timeout 5s; lingering_close off;\n"
        "client_body_temp_path b; proxy_temp_path p; fastcgi_temp_path f; scgi_temp_path s; uwsgi_temp_path u;\n"
        + servers
        + "}\n"
    )
    path = os.path.join(prefix, "nginx.conf")
    with open(path, "w") as f:
        f.write(conf)
    process = subprocess.Popen([nginx, "-p", prefix, "-e", "stderr", "-c", path])
    for port in ports.values():
        deadline = time.monotonic() + 10
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                if time.monotonic() > deadline or process.poll() is not None:
                    sys.exit("nginx did not start")
                time.sleep(0.02)
    return process, ports


def ask(port, data):
    """The answer to raw bytes; empty if nginx waits for more."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port)) as s:
        s.settimeout(0.5)
        try:
            s.sendall(data)
            while True:
                part = s.recv(65536)
                if not part:
                    break
                answer += part
                if b"\r\n\r\n" in answer and answer.endswith((b"=", b"</html>\r\n")):
                    break
        except OSError:
            pass
    return answer


def outcome(answer):
    """`partial`, a status, or a status with the summary, as in the table."""
    if not answer:
        return "partial"
    answer = re.sub(rb"^HTTP/1\.1 100 [^\n]*\n\r\n", b"", answer)
    status = re.match(rb"HTTP/1\.1 (\d+)", answer)
    summary = re.search(rb"=(.*)=$", answer, re.S)
    if summary:
        kept = "keep" if b"\r\nConnection: keep-alive\r\n" in answer else "close"
        return "200 %s %s" % (kept, escape(summary.group(1)))
    if status:
        return status.group(1).decode()
    title = re.search(rb"<title>(\d+)", answer)
    return "bare %s" % title.group(1).decode() if title else "bare"


def cases(lines, columns):
    for line in lines:
        line = line.rstrip("\n")
        if line and not line.startswith("#"):
            fields = line.split("\t")
            if len(fields) != columns:
                sys.exit("not %d columns: %s" % (columns, line))
            yield fields


def main():
    nginx = os.environ.get("FOREBAY_TEST_NGINX")
    if not nginx:
        print("skipped: FOREBAY_TEST_NGINX is not set")
        return 0
    if version(nginx) < (1, 31):
        print("skipped: %s is older than 1.31" % nginx)
        return 0
    failures = count = 0
    with tempfile.TemporaryDirectory() as prefix:
        process, ports = start(nginx, prefix)
        try:
            if sys.argv[1:2] == ["--write"]:
                with open(sys.argv[2], "w") as out:
                    out.write("# name\tconfiguration\toutcome with nginx\tinput\n")
                    for name, configuration, data in cases(sys.stdin, 3):
                        got = outcome(ask(ports[configuration], unescape(data)))
                        out.write("\t".join((name, configuration, got, data)) + "\n")
                return 0
            with open(TABLE) as table:
                for name, configuration, want, data in cases(table, 4):
                    count += 1
                    got = outcome(ask(ports[configuration], unescape(data)))
                    if got != want:
                        failures += 1
                        print("%s: nginx says %s, the table %s" % (name, got, want))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()
    print("%d cases, %d differences" % (count, failures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
