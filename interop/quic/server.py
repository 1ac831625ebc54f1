"""The first table: clients of other implementations against the server."""

import os
import subprocess
import time

from quic.relay import Relay
from quic.site import Program, free_ports, last_line

UNSUPPORTED = 127


class Server(Program):
    """The server with the site, on a port for each kind of case."""

    def __init__(self, program, workers, site):
        self.site = site
        self.ports = dict(zip(["plain", "retry", "large", "ipv6"], free_ports(4)))
        super().__init__(program, site, self.ports["plain"], self.conf(workers))

    def conf(self, workers):
        at = {name: f"127.0.0.1:{port}" for name, port in self.ports.items()}
        return f"""
worker_processes {workers};
pid logs/nginx.pid;
error_log logs/error.log info;
events {{ worker_connections 256; }}
http {{
    log_format facts '$request_uri http3=$http3 ssl_session_reused=$ssl_session_reused ssl_early_data=$ssl_early_data $ssl_cipher';
    access_log logs/access.log facts;
    client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
    root html;
    ssl_certificate cert.pem;
    ssl_certificate_key key.pem;
    ssl_protocols TLSv1.3;
    ssl_early_data on;
    server {{ listen {at["plain"]} quic reuseport; listen {at["plain"]} ssl; }}
    server {{ listen {at["retry"]} quic reuseport; listen {at["retry"]} ssl; quic_retry on; }}
    server {{ listen {at["large"]} quic reuseport; listen {at["large"]} ssl; ssl_certificate large.pem; ssl_certificate_key key.pem; }}
    server {{ listen [::1]:{self.ports["ipv6"]} quic reuseport; listen [::1]:{self.ports["ipv6"]} ssl; }}
}}
"""

    def log(self):
        with open(f"{self.dir}/logs/access.log") as f:
            return f.read().splitlines()

    def logged(self, since, count):
        """Lines of the access log after the first `since`, as soon as there are so many."""
        end = time.monotonic() + 10
        while True:
            lines = self.log()[since:]
            if len(lines) >= count or time.monotonic() > end:
                return lines
            time.sleep(0.02)


def run(server, command, case, seed):
    """Returns "pass", "-" for a case that the client cannot do, or the reason of the failure."""
    relay = Relay((case.host, server.ports[case.port]), case.rebind, case.link, seed)
    relay.start()
    since = len(server.log())
    try:
        files = [f"{path}={server.site.hashes[path]}" for path in case.files]
        host = f"[{case.host}]" if ":" in case.host else case.host
        done = subprocess.run([*command, case.client, f"{host}:{relay.port}", *files], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=case.seconds, env={**os.environ, **case.env})
    except subprocess.TimeoutExpired:
        return "no end in time"
    finally:
        relay.end()
    if done.returncode == UNSUPPORTED:
        return "-"
    if done.returncode:
        return last_line(done.stdout, f"exit status {done.returncode}")
    lines = server.logged(since, len(case.files))
    if len(lines) < len(case.files):
        return f"{len(lines)} requests logged"
    return "pass" if case.proof(relay, lines) else case.why


def run_times(server, command, case, seed):
    """Runs a case as often as it asks for, until it does not pass."""
    for turn in range(case.times):
        result = run(server, command, case, f"{seed} {case.name} {turn}")
        if result != "pass":
            break
    return result
