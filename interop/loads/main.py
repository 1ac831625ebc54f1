"""Command line of the measurement, and its order."""

import argparse
import os
import re
import resource
import signal
import sys
import tempfile

import answers
import bench as benches
import cases as loads
import content
import generator
import memory
import report
import tools


def arguments():
    a = argparse.ArgumentParser(prog="run", description="Measures 88 loads on nginx and Forebay side by side. See README.md.")
    a.add_argument("--nginx", required=True, metavar="FILE", help="nginx, which serves as a backend, too")
    a.add_argument("--forebay", required=True, metavar="FILE", help="Forebay")
    a.add_argument("--cases", default=".", metavar="REGEX", help="loads with these names; '^$' for none")
    a.add_argument("--rounds", type=int, default=7, metavar="N", help="rounds, each of which measures every server once (7)")
    a.add_argument("--seconds", type=float, default=0.6, metavar="S", help="length of a measurement (0.6)")
    a.add_argument("--floor", action="store_true", help="measure floor.c, too: the least that a program can spend")
    a.add_argument("--memory", action="store_true", help="measure memory, too (ten minutes more)")
    a.add_argument("--check", action="store_true", help="compare answers and put each server under a short load, without figures")
    a.add_argument("--list", action="store_true", help="list the loads")
    a.add_argument("--out", metavar="FILE", help="put the tables into this file, between <!-- loads --> and <!-- /loads -->")
    a.add_argument("--work", metavar="DIR", help="directory for files of servers, kept for the next time (a temporary one)")
    a.add_argument("--connections", type=int, default=5000, metavar="N", help="connections that wait, for --memory (5000)")
    a.add_argument("--congestion", metavar="NAME", help="run in a network namespace with this congestion control (needs root)")
    a.add_argument("--base", type=int, default=0, metavar="PORT", help="first of 360 ports (free ones)")
    return a.parse_args()


def say(*text):
    print(*text, file=sys.stderr, flush=True)


def main():
    a = arguments()
    every = loads.measured()
    chosen = [case for case in every if re.search(a.cases, case.name)]
    if a.list:
        for case in chosen:
            print(f"{case.name:28} {case.connections:5} connections  {case.note}")
        return 0
    if not chosen and not a.memory:
        sys.exit("no load has such a name")
    for_memory = [case for case in every + loads.for_memory() if a.memory and case.name in memory.LOADS]
    needed = chosen + [case for case in for_memory if case not in chosen]
    servers = {"nginx": os.path.abspath(a.nginx), "forebay": os.path.abspath(a.forebay)}
    if missing := tools.missing(servers, any(case.h2load for case in needed)):
        sys.exit("\n".join(missing))
    if a.congestion and "FOREBAY_LOADS_NAMESPACE" not in os.environ:
        tools.in_namespace(a.congestion)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    # The servers end with this program.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if a.work:
        os.makedirs(a.work, exist_ok=True)
        return run(a, os.path.abspath(a.work), servers, chosen, needed, for_memory)
    with tempfile.TemporaryDirectory(prefix="forebay-loads-") as work:
        os.chmod(work, 0o755)
        return run(a, work, servers, chosen, needed, for_memory)


def run(a, work, servers, chosen, needed, for_memory):
    content.make(work, needed)
    tools.build(work, "load")
    for case in needed:
        if case.requests:
            generator.write_requests(work, case)
    bench = benches.Bench(work, servers, needed, a.base, a.floor and not a.check)
    try:
        if a.check:
            return check(bench, chosen)
        if chosen:
            rows, remarks = measure(bench, chosen, a.rounds, a.seconds)
            put(a.out, "loads", report.table(rows, remarks, report.about(servers, a.rounds, a.seconds)))
        if a.memory:
            put(a.out, "memory", memory.table(bench, for_memory, a.connections, say))
    finally:
        bench.stop()
    return 0


def put(path, mark, text):
    if path:
        report.put(path, mark, text)
    else:
        print(text, flush=True)


def check(bench, cases):
    """Compares answers and loads each server for a moment. 1 if anything is wrong."""
    wrong = 0
    for case in cases:
        able = [server for server in bench.servers.values() if case.name not in server.refused]
        found = [answers.check(case, {server.name: server.ports[case.name] for server in able}, bench.work)]
        for server in able:
            sample = generator.run(bench.work, case, server.ports[case.name], 1.2 if case.endless else 0.1, server.pid)
            # h2load counts requests that are cut off at the end.
            if sample.errors > sample.units // 50:
                found.append(f"{server.name}: {sample.remark or 'no answers'}")
        found = [text for text in found if text]
        wrong += bool(found)
        refused = [f"{server.name} cannot: {why}" for server in bench.servers.values() if (why := server.refused.get(case.name))]
        print(f"{case.name:28} {'; '.join(found + refused) or 'same'}", flush=True)
    return 1 if wrong else 0


def measure(bench, cases, rounds, seconds):
    """The rows of the table, and remarks as pairs of a name and a text."""
    rows, remarks = [], []
    for case in cases:
        targets = {name: (server.pid, server.ports[case.name]) for name, server in bench.servers.items() if case.name not in server.refused}
        if bench.floor and case.floor:
            pid, ports = bench.floor
            targets["floor"] = (pid, ports[case.floor])
        results = {name: [] for name in targets}
        for one in range(rounds):
            # Nobody is always first.
            order = list(targets)[one % len(targets):] + list(targets)[:one % len(targets)]
            for name in order:
                pid, port = targets[name]
                if one == 0 and case.warm and not case.h2load:
                    generator.run(bench.work, case, port, case.warm, pid)
                results[name].append(generator.run(bench.work, case, port, case.seconds or seconds, pid))
        rows.append(report.row(case, results))
        say(rows[-1])
        remarks += [(case.name, f"{name} cannot run it ({server.refused[case.name]}): {case.note}")
                    for name, server in bench.servers.items() if case.name in server.refused]
        for name, samples in results.items():
            worst = max(samples, key=lambda sample: sample.errors)
            remarks += [(case.name, f"{name}, {worst.remark}")] if worst.remark else []
    return rows, remarks
