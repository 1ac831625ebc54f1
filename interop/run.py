#!/usr/bin/env python3
"""Runs QUIC of other implementations against the server and prints a table. See README.md."""

import argparse
import os
import re
import sys
import tempfile

from quic import cases, server, upstream
from quic.peers import HERE, peers
from quic.site import Site


def table(names, rows, run):
    """Prints a row for each case, and returns notes of what failed."""
    notes = []
    print("| " + " | ".join(["case", *names]) + " |")
    print("| --- |" + " --- |" * len(names))
    for case in rows:
        row = []
        for name in names:
            result = run(name, case)
            if result not in ("pass", "-"):
                notes.append(f"{case.name}, {name}: {result}")
                result = "**fails**"
            row.append(result)
        print(f"| {case.name} | " + " | ".join(row) + " |", flush=True)
    return notes


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", help="the server: forebay, or nginx to try the clients")
    parser.add_argument("--python", default=os.environ.get("FOREBAY_TEST_AIOQUIC") or "python3", help="a Python that has aioquic")
    parser.add_argument("--target", default=f"{HERE}/../target/interop", help="where programs are built")
    parser.add_argument("--servers", action="store_true", help="servers of others behind the server, instead of clients")
    parser.add_argument("--workers", type=int, default=2, help="worker_processes")
    parser.add_argument("--cases", default=".", help="regular expression")
    parser.add_argument("--clients", default=".", help="regular expression for the implementations")
    parser.add_argument("--seed", default="19", help="seed of what links lose and alter")
    parser.add_argument("--keep", help="directory for the server's files, kept for a look")
    args = parser.parse_args()
    args.program, args.target = os.path.abspath(args.program), os.path.abspath(args.target)
    os.makedirs(args.target, exist_ok=True)
    return args


def main():
    args = arguments()
    found = peers(args)
    for name in [name for name, peer in found.items() if peer is None]:
        print(f"skipped: {name}, which could not be built or found")
    found = {name: peer for name, peer in found.items() if peer}
    kind = upstream if args.servers else cases
    rows = [case for case in kind.cases() if re.search(args.cases, case.name)]
    with tempfile.TemporaryDirectory() as dir:
        site = Site(args.keep or dir)
        if args.servers:
            notes = table(found, rows, lambda name, case: upstream.run(args, site, found[name].server, case))
        else:
            started = server.Server(args.program, args.workers, site)
            try:
                notes = table(found, rows, lambda name, case: server.run_times(started, found[name].client, case, args.seed))
            finally:
                started.end()
    print()
    for note in notes:
        print(f"- {note}")
    sys.exit(1 if notes else 0)


if __name__ == "__main__":
    main()
