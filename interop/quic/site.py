"""Contents, certificates and ports that both tables use."""

import hashlib
import os
import random
import socket
import subprocess
import sys
import time

MANY = 250
LENGTHS = {"1k": 1024, "10k": 10240, "100k": 102400, "2m": 2_000_000, **{f"m/{n}": 32 for n in range(MANY)}}
# Names in the large certificate, which takes the server more datagrams than it may send to an address that is not proved.
NAMES = 250


class Site:
    """Files with random contents in `html`, a small certificate and a large one."""

    def __init__(self, dir):
        self.dir, self.contents, self.hashes = dir, {}, {}
        for sub in ["html/m", "logs"]:
            os.makedirs(f"{dir}/{sub}", mode=0o755, exist_ok=True)
        # The owner of the worker processes may be another user.
        os.chmod(dir, 0o755)
        made = random.Random(19)
        for name, length in LENGTHS.items():
            content = made.randbytes(length)
            self.contents[f"/{name}"] = content
            self.hashes[f"/{name}"] = hashlib.sha256(content).hexdigest()
            with open(f"{dir}/html/{name}", "wb") as f:
                f.write(content)
        self.certificate("cert.pem", ["localhost"])
        # Without what repeats, so that compression (RFC 8879) makes it little smaller.
        self.certificate("large.pem", ["localhost", *(f"{made.randbytes(16).hex()}.test" for _ in range(NAMES))])

    def certificate(self, name, hosts):
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        if os.path.exists(f"{self.dir}/key.pem"):
            key = ["-new", "-key", f"{self.dir}/key.pem"]
        else:
            key += ["-keyout", f"{self.dir}/key.pem"]
        names = ",".join(f"DNS:{host}" for host in hosts)
        subprocess.run(["openssl", "req", "-x509", *key, "-out", f"{self.dir}/{name}", "-days", "30", "-subj", "/CN=localhost",
                        "-addext", f"subjectAltName={names}"], check=True, stderr=subprocess.DEVNULL)


class Program:
    """The server as a process, with a configuration that a subclass writes."""

    def __init__(self, program, site, port, conf):
        self.dir = site.dir
        with open(f"{self.dir}/nginx.conf", "w") as f:
            f.write(conf)
        self.output = open(f"{self.dir}/output", "w+")
        command = [program, "-p", self.dir, "-c", f"{self.dir}/nginx.conf", "-g", "daemon off;"]
        self.process = subprocess.Popen(command, stdout=self.output, stderr=self.output)
        end = time.monotonic() + 20
        while True:
            try:
                return socket.create_connection(("127.0.0.1", port), 1).close()
            except OSError as e:
                if self.process.poll() is not None or time.monotonic() > end:
                    self.output.seek(0)
                    sys.exit(f"the server does not start: {e}\n{self.output.read()}")
                time.sleep(0.05)

    def end(self):
        stop(self.process)
        self.output.close()


def stop(process):
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def free_ports(count):
    """Ports that are free for TCP and UDP."""
    ports = []
    while len(ports) < count:
        with socket.socket() as t, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as u:
            t.bind(("127.0.0.1", 0))
            port = t.getsockname()[1]
            try:
                u.bind(("127.0.0.1", port))
            except OSError:
                continue
            if port not in ports:
                ports.append(port)
    return ports


def last_line(text, otherwise):
    lines = text.strip().splitlines()
    return lines[-1] if lines else otherwise
