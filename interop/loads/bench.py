"""The servers under test and their backends."""

import os
import re
import shutil
import sys
import time

import conf
import process
import tools

PORTS = 120


class Server:
    """nginx or Forebay with a configuration that has a port for each load."""

    def __init__(self, name, path, work, base, cases, writer):
        self.name, self.path, self.work, self.own = name, path, work, f"{work}/{name}"
        self.ports = {case.name: base + i for i, case in enumerate(cases)}
        os.makedirs(f"{self.own}/logs", exist_ok=True)
        for old in ("cache", "miss"):
            shutil.rmtree(f"{self.own}/{old}", ignore_errors=True)
        # Names of loads to the reason why this server has not got them.
        self.refused = {}
        if self.refusal(writer, cases):
            self.refused = {case.name: why for case in cases if (why := self.refusal(writer, [case]))}
        self.cases = [case for case in cases if case.name not in self.refused]
        writer.server(self.cases, self.ports, self.own)

    def start(self):
        self.process = process.Process(self.command("-g", "daemon off;"), "0", f"{self.own}/out.log")

    def command(self, *more):
        return [self.path, "-p", self.own, "-c", f"{self.own}/nginx.conf", "-e", f"{self.own}/error.log", *more]

    def refusal(self, writer, cases):
        """The complaint of the server about the configuration of some loads, or nothing."""
        writer.server(cases, self.ports, self.own)
        return refusal(tools.output(*self.command("-t")))

    def wait(self):
        if not self.process.answers(self.ports[self.cases[0].name]):
            sys.exit(f"{self.name} did not start: {self.process.tail()}")
        time.sleep(0.5)

    def restart(self):
        """Starts the server anew: what an earlier load has left in its heap would hide what the next one takes."""
        self.process.stop()
        self.process.start()
        self.wait()

    @property
    def pid(self):
        return self.process.pid


def refusal(said):
    """The reason in what `nginx -t` says, without its file; nothing if all is well."""
    if re.search(r"test is successful", said):
        return ""
    found = re.search(r"\[emerg\] (?:\d+#\d+: )?(.*?)(?: in \S+:\d+)?$", said, re.M)
    return found[1] if found else said.strip()[:200] or "no answer to -t"


def knows_http2_directive(nginx, work):
    """Whether there is `http2 on` (nginx 1.25.1 and later)."""
    own = f"{work}/probe"
    os.makedirs(f"{own}/logs", exist_ok=True)
    with open(f"{own}/nginx.conf", "w") as f:
        f.write(f"pid {own}/pid; events {{}} http {{ http2 on; }}")
    said = tools.output(nginx, "-t", "-p", own, "-c", f"{own}/nginx.conf", "-e", f"{own}/error.log")
    return 'unknown directive "http2"' not in said


class Bench:
    """Everything that runs during a measurement."""

    def __init__(self, work, servers, cases, base, floor):
        """`servers` are paths of programs by name. The first one serves as a backend, too."""
        self.work, self.running = work, []
        base = base or process.free_base(PORTS * (len(servers) + 1))
        backends = dict(zip(conf.BACKENDS, range(base, base + PORTS)))
        nginx = next(iter(servers.values()))
        self.writer = conf.Writer(work, backends, knows_http2_directive(nginx, work))
        try:
            self.start_backends(nginx, backends)
            self.floor = self.start_floor(backends, base + len(conf.BACKENDS)) if floor else None
            self.servers = {}
            for i, (name, path) in enumerate(servers.items(), 1):
                server = self.servers[name] = Server(name, path, work, base + PORTS * i, cases, self.writer)
                if server.cases:
                    server.start()
                    self.running.append(server.process)
                    server.wait()
        except BaseException:
            self.stop()
            raise

    def start_backends(self, nginx, backends):
        program = tools.build(self.work, "origin")
        origin = process.Process([program, *(str(backends[name]) for name in ("origin", "fcgi", "uwsgi"))], "1", f"{self.work}/origin.log")
        own = f"{self.work}/backend"
        os.makedirs(own, exist_ok=True)
        command = [nginx, "-p", own, "-c", self.writer.backend(own), "-e", f"{own}/error.log", "-g", "daemon off;"]
        files = process.Process(command, "1", f"{own}/out.log")
        self.running += [origin, files]
        for name, one, port in (("origin", origin, "origin"), ("the backend", files, "files")):
            if not one.answers(backends[port]):
                sys.exit(f"{name} did not start: {one.tail()}")

    def start_floor(self, backends, base):
        """floor.c, and the ports of what it does."""
        ports = {"answer": base, "relay": base + 1, "relay-files": base + 2}
        arguments = [base, base + 1, backends["origin"], base + 2, backends["files"]]
        program = tools.build(self.work, "floor")
        floor = process.Process([program, *map(str, arguments)], "0", f"{self.work}/floor.log")
        self.running.append(floor)
        if not floor.answers(base):
            sys.exit(f"the floor did not start: {floor.tail()}")
        return floor.pid, ports

    def stop(self):
        for one in reversed(self.running):
            one.stop()
