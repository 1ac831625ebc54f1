#!/usr/bin/env python3
"""Does everything to a server at once, for a while, and checks every byte and every count. See README.md; start it by `run`."""

import argparse
import collections
import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

import cases
import conf
import disturb
import group
import judge as judging
import logs
import rest
import server as processes

HERE = os.path.dirname(os.path.abspath(__file__))
PORTS = ["HTTP", "TLS", "STATUS", "S_TCP", "S_TLS", "S_UDP", "O_H1", "O_H1B", "O_MOVE", "O_TLS", "O_H2", "O_H2TLS", "O_H3", "O_FCGI", "O_UWSGI", "O_SCGI",
         "O_MC", "O_STREAM", "O_UDP", "O_DNS", "O_FLAKY"]
# Client processes: name, kind, threads, share of the requests.
CLIENTS = [("h1a", "1", 14, 0.3), ("h1b", "1", 14, 0.3), ("h2", "2", 8, 0.2), ("h3", "3", 8, 0.12), ("st", "s", 5, 0.08)]
DISK_MB = 96


def free_ports():
    ports = []
    while len(ports) < len(PORTS):
        # Below the ports that the kernel gives to clients.
        port = random.randrange(12000, 30000)
        with socket.socket() as t, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as u:
            try:
                t.bind(("0.0.0.0", port))
                u.bind(("0.0.0.0", port))
            except OSError:
                continue
        if port not in ports:
            ports.append(port)
    return dict(zip(PORTS, ports))


class Process:
    """A process of the tool, whose lines of JSON are handed on."""

    def __init__(self, script, arguments, handle, directory, name=""):
        self.name = name or script
        errors = open(f"{directory}/{os.path.basename(script)}.err", "a")
        self.process = subprocess.Popen(["nice", "-n", "2", sys.executable, f"{HERE}/{script}", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=errors, text=True)
        self.handle = handle
        self.ready = threading.Event()
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        for line in self.process.stdout:
            message = json.loads(line)
            if "ready" in message:
                self.ready.set()
            else:
                self.handle(message)

    def tell(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def end(self, seconds):
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return False
        self.thread.join(5)
        return True


class Soak:
    def __init__(self, args, directory):
        self.args, self.directory, self.disk = args, directory, f"{directory}/disk"
        self.ports = free_ports()
        chosen = [f"--{name} '{getattr(args, name)}'" for name in ("only", "clients", "disturb") if getattr(args, name) != "."]
        replay = " ".join([f"interop/soak/run {args.program} --minutes {args.minutes:g} --rate {args.rate:g} --seed {args.seed}", *chosen,
                           *(["--as-nginx"] if args.as_nginx else [])])
        self.judge = judging.Judge(not args.as_nginx, replay)
        self.counts = collections.Counter()
        self.lock = threading.Lock()
        self.server = processes.Server(os.path.abspath(args.program), not args.as_nginx, directory, self.disk, self.ports)
        self.samples, self.clients = [], []
        self.calm = threading.Event()
        self.all_cases = cases.everything()

    def handle(self, message):
        kind = message["kind"]
        if kind == "counts":
            with self.lock:
                self.counts.update(message["counts"])
        elif kind == "wrong":
            self.judge.wrong(message, self.all_cases.get(message["case"]))
        elif kind == "origin":
            self.judge.add(message["what"], "origin", message["text"])
        else:
            self.judge.add("fault", "soak", message["text"])

    def write_conf(self, variant):
        conf.write(f"{self.directory}/nginx.conf", not self.args.as_nginx, variant, self.ports, self.directory, self.disk, self.args.workers)

    def prepare(self):
        os.chmod(self.directory, 0o755)
        disturb.loopback()
        disturb.mount(self.disk, DISK_MB)
        conf.site(self.directory, self.disk)
        for path, _, _ in os.walk(self.disk):
            os.chmod(path, 0o777)
        disturb.certificate(self.directory, "server")
        disturb.certificate(self.directory, "origin")
        with open(f"{self.directory}/htpasswd", "w") as f:
            f.write("soak:{PLAIN}right\n")
        self.write_conf(0)
        try:
            self.server.group = group.Group(f"soak-{os.getpid()}")
        except OSError as e:
            print(f"no shortage of memory: {e}", flush=True)
        self.origin = Process("origin.py", [json.dumps(self.ports), self.directory], self.handle, self.directory)
        if not self.origin.ready.wait(20):
            sys.exit(f"the origin does not start:\n{processes.read(self.directory + '/origin.py.err')}")
        self.server.start()

    def start_clients(self):
        for name, kind, threads, share in CLIENTS:
            if not re.search(self.args.clients, name):
                continue
            given = {"name": name, "kind": kind, "seed": self.args.seed, "ports": self.ports, "directory": self.directory,
                     "forebay": not self.args.as_nginx, "threads": threads, "rate": self.args.rate * share, "only": self.args.only}
            self.clients.append(Process("client.py", [json.dumps(given)], self.handle, self.directory, name))

    def run(self):
        self.prepare()
        time.sleep(2)
        self.baseline = rest.measure(self.server)
        rng = cases.seeded(self.args.seed, "disturb")
        self.disturber = disturb.Disturber(self.server, self.judge, self.origin, rng, re.compile(self.args.disturb), self.write_conf)
        self.watcher = rest.Watcher(self.server, self.judge)
        self.began = time.monotonic()
        self.judge.begun = self.began
        self.start_clients()
        self.disturber.start()
        self.watcher.start()
        end = self.began + self.args.minutes * 60
        while time.monotonic() < end:
            time.sleep(min(10, max(0, end - time.monotonic())))
            self.judge.decide()
            self.line()
        self.finish()

    def line(self):
        sample = rest.measure(self.server)
        sample["t"] = round(time.monotonic() - self.began, 1)
        self.samples.append(sample)
        c, fds = self.counts, sample["fds"]
        recent = self.disturber.counts
        print(f"{sample['t']:6.0f} s  requests {c['requests']}, answered {c['answered']}, left {c['left']}, broken {c['broken']}, bodies checked {c['bodies']} "
              f"({c['bytes'] >> 20} MB); RSS {sample['rss'] >> 10} MB, fds {fds['all']} (deleted {fds['deleted']}), threads {sample['threads']}; "
              f"findings {len(self.judge.findings)}; {' '.join(f'{k}={v}' for k, v in recent.items() if v)}", flush=True)

    def finish(self):
        self.disturber.stopped.set()
        self.disturber.join(120)
        for client in self.clients:
            client.tell("stop")
        for client in self.clients:
            began = time.monotonic()
            if not client.end(90):
                self.judge.add("fault", "soak", f"{client.name} does not end")
            print(f"{client.name} has ended after {time.monotonic() - began:.1f} s", flush=True)
        self.watcher.stopped.set()
        self.watcher.join(60)
        self.judge.decide(all=True)
        self.after = rest.rest(self)
        answered, lines = logs.compare(self.directory, self.judge, self.began)
        self.counts["lines"] = lines
        self.levels = logs.errors(self.directory, self.judge)
        if left := self.server.end():
            self.judge.add("end", "server", f"processes {left} do not end within 10 s of TERM")
        self.origin.process.kill()

    def summary(self):
        return {
            "program": self.args.program, "seed": self.args.seed, "minutes": self.args.minutes, "counts": dict(self.counts),
            "disturbances": self.disturber.counts, "excused": dict(self.judge.excused), "error_log": dict(self.levels),
            "windows": [{**w, "start": round(w["start"] - self.began, 2), "end": w["end"] and round(w["end"] - self.began, 2)} for w in self.judge.windows],
            "baseline": self.baseline, "after": self.after, "samples": self.samples, "findings": list(self.judge.findings.values()),
        }

    def table(self):
        print("\n| kind | where | times | first after |\n| --- | --- | --- | --- |")
        for found in sorted(self.judge.findings.values(), key=lambda f: (not f["kind"].isupper(), f["first"])):
            print(f"| {found['kind']} | {found['where']} | {found['count']} | {found['first']} s |")
        print(f"\n{self.counts['requests']} requests, {self.counts['bodies']} bodies checked ({self.counts['bytes'] >> 20} MB), {self.counts['lines']} lines "
              f"of access logs; excused: {dict(self.judge.excused)}; error log: {dict(self.levels)}")
        print(f"before: {rest.shown(self.baseline)}\nafter:  {rest.shown(self.after)}")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", help="the server")
    parser.add_argument("--nginx", metavar="PROGRAM", help="run the same against this nginx first, and leave out findings that it has as well")
    parser.add_argument("--as-nginx", action="store_true", help="PROGRAM is nginx: leave out directives that it does not know")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--rest", type=float, help="seconds of rest before the last measurements (60; 25 in runs below five minutes)")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--rate", type=float, default=400, help="requests a second that clients aim at")
    parser.add_argument("--workers", type=int, default=2, help="worker_processes")
    parser.add_argument("--only", default=".", help="regular expression for cases")
    parser.add_argument("--clients", default=".", help="regular expression for client processes: h1a h1b h2 h3 st")
    parser.add_argument("--disturb", default=".", help="regular expression for disturbances: " + " ".join(disturb.WEIGHTS))
    parser.add_argument("--json", help="file for a summary")
    parser.add_argument("--keep", help="directory for all files, kept for a look")
    args = parser.parse_args()
    args.seed = args.seed if args.seed is not None else random.randrange(1 << 30)
    args.rest = args.rest if args.rest is not None else (60 if args.minutes >= 5 else 25)
    return args


def one(args):
    with tempfile.TemporaryDirectory(prefix="soak") as directory:
        directory = args.keep or directory
        if args.keep:
            shutil.rmtree(directory, ignore_errors=True)
        os.makedirs(directory, exist_ok=True)
        soak = Soak(args, directory)
        print(f"{args.program}, seed {args.seed}, files in {directory}", flush=True)
        try:
            soak.run()
        finally:
            soak.server.end()
            if soak.server.group:
                soak.server.group.remove()
            for process in soak.clients + ([soak.origin] if hasattr(soak, "origin") else []):
                process.process.kill()
            if args.keep:
                subprocess.run(["cp", "-r", soak.disk, directory + "/disk-kept"], check=False)
            disturb.unmount(soak.disk)
        soak.table()
        return soak.summary()


def main():
    args = arguments()
    known = set()
    if args.nginx:
        peer = argparse.Namespace(**{**vars(args), "program": args.nginx, "as_nginx": True, "keep": args.keep and args.keep + "-nginx"})
        known = {f"{f['kind']} {f['where']}" for f in one(peer)["findings"]}
    summary = one(args)
    if args.json:
        with open(args.json, "w") as f:
            json.dump(summary, f, indent=1)
    new = [f for f in summary["findings"] if f"{f['kind']} {f['where']}" not in known]
    if known:
        print(f"also nginx: {sorted(known & {f['kind'] + ' ' + f['where'] for f in summary['findings']})}")
    sys.exit(1 if new else 0)


if __name__ == "__main__":
    main()
