"""The nginx.conf of the servers under test, the same for all of them, and that of the backend."""

import os
import re

# Names of the ports of backends: the origin's three, and servers of nginx with files, TLS, TLS with client certificates, HTTP/2.
BACKENDS = ("origin", "fcgi", "uwsgi", "files", "btls", "bmtls", "bh2")

HEAD = """
{user}worker_processes 1; worker_cpu_affinity 01; worker_rlimit_nofile 20000;
pid @own@/nginx.pid; error_log @own@/error.log warn;
events {{ worker_connections 18000; use epoll; multi_accept on; }}
http {{
  types {{ text/html html shtml; text/css css; application/javascript js; }}
  default_type application/octet-stream;
  client_body_temp_path @own@/body; proxy_temp_path @own@/proxy; fastcgi_temp_path @own@/fastcgi; uwsgi_temp_path @own@/uwsgi;
  scgi_temp_path @own@/scgi;
  sendfile on; tcp_nopush on; tcp_nodelay on; keepalive_timeout 65; keepalive_requests 100000000;
  open_file_cache max=10000 inactive=30s; open_file_cache_valid 60s; open_file_cache_min_uses 2; open_file_cache_errors on;
  access_log @own@/access.log combined buffer=64k flush=5s;
  server_tokens off; map_hash_bucket_size 128; server_names_hash_max_size 65536; server_names_hash_bucket_size 128;
  upstream o {{ server 127.0.0.1:@origin@; keepalive 64; keepalive_requests 100000000; }}
  upstream b {{ server 127.0.0.1:@files@; keepalive 64; keepalive_requests 100000000; }}
"""

BACKEND = """
{user}worker_processes 1; worker_cpu_affinity 10; worker_rlimit_nofile 20000; pid @own@/nginx.pid; error_log @own@/error.log crit;
events {{ worker_connections 18000; }}
http {{
  access_log off; keepalive_timeout 65; keepalive_requests 100000000; types {{ text/html html; }} default_type text/html;
  client_body_temp_path @own@/body; proxy_temp_path @own@/proxy; fastcgi_temp_path @own@/fastcgi; uwsgi_temp_path @own@/uwsgi;
  scgi_temp_path @own@/scgi;
  root @work@/www; open_file_cache max=1000; server_tokens off;
  ssl_certificate @work@/ec.crt; ssl_certificate_key @work@/ec.key; ssl_session_cache shared:S:10m;
  server {{ listen 127.0.0.1:@files@ backlog=4096; sendfile on; tcp_nopush on; }}
  server {{ listen 127.0.0.1:@btls@ ssl backlog=4096; }}
  server {{ listen 127.0.0.1:@bmtls@ ssl backlog=4096; ssl_verify_client on; ssl_client_certificate @work@/ca.crt;
    ssl_session_cache off; ssl_session_tickets off; }}
  server {{ listen 127.0.0.1:@bh2@ backlog=4096 {http2_parameter}; {http2_directive}
    location /e.S/ {{ default_type application/grpc; add_trailer grpc-status 0; return 200 "0123456789abcdef"; }}
    location /p.S/ {{ add_trailer grpc-status 0; proxy_pass http://o/b/16; proxy_http_version 1.1; proxy_set_header Connection ""; }} }}
  upstream o {{ server 127.0.0.1:@origin@; keepalive 256; keepalive_requests 100000000; }}
}}
"""


class Writer:
    """Writes configurations for servers that know `http2 on`, or `listen ... http2` alone."""

    def __init__(self, work, backends, http2_directive):
        self.work, self.backends, self.http2_directive = work, backends, http2_directive
        self.user = "user root; " if os.geteuid() == 0 else ""

    def http2(self):
        """The parameter of `listen` and the directive, one of which is empty."""
        return {"http2_parameter": "" if self.http2_directive else "http2", "http2_directive": "http2 on;" if self.http2_directive else ""}

    def fill(self, text, own):
        names = {"work": self.work, "own": own, **self.backends}
        return re.sub(r"@(\w+)@", lambda found: str(names[found[1]]), text)

    def server(self, cases, ports, own):
        """The path of a configuration that has a server for each case. `ports` is by the name of the case."""
        # Cases may share what they have at this level.
        parts = [HEAD.format(user=self.user), *dict.fromkeys(case.http for case in cases)]
        for case in cases:
            parts.append(self.block(case, ports[case.name]))
            for name, make in case.files.items():
                self.write(f"{own}/{name}", make(ports[case.name], self.work))
        return self.write(f"{own}/nginx.conf", self.fill("\n".join(filter(None, parts)) + "\n}\n", own))

    def block(self, case, port):
        http2 = self.http2() if case.http2 else {"http2_parameter": "", "http2_directive": ""}
        listen = f"listen 127.0.0.1:{port} backlog=4096{' ssl' if case.tls else ''} {http2['http2_parameter']};"
        tls = f"ssl_certificate @work@/{case.tls}.crt; ssl_certificate_key @work@/{case.tls}.key;" if case.tls else ""
        return f"  server {{ {listen} {http2['http2_directive']} {tls} {case.conf} }}"

    def backend(self, own):
        return self.write(f"{own}/nginx.conf", self.fill(BACKEND.format(user=self.user, **self.http2()), own))

    def write(self, path, text):
        os.makedirs(os.path.dirname(path) + "/logs", exist_ok=True)
        with open(path, "w") as f:
            f.write(text)
        return path
