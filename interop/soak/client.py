"""A client process. Started by main.py; runs sessions until it reads a line, and reports in JSON."""

import json
import re
import sys
import threading
import time
import traceback

import report


class Setup:
    """What all sessions of a process share."""

    def __init__(self, given):
        self.name, self.kind, self.seed = given["name"], given["kind"], given["seed"]
        self.ports, self.directory, self.forebay = given["ports"], given["directory"], given["forebay"]
        self.threads, self.rate, self.only = given["threads"], given["rate"], re.compile(given["only"])
        self.report = report.Report(f"{self.directory}/requests-{self.name}")
        self.stop = threading.Event()

    def stopping(self):
        return self.stop.is_set()

    def breathe(self, rng, count):
        """Waits so that all threads together make no more than so many requests a second."""
        time.sleep(min(2.0, count * rng.expovariate(self.rate / self.threads)))


def run(setup, client):
    n = 0
    while not setup.stopping():
        try:
            client.session(n)
        except Exception:  # noqa: BLE001
            setup.report.say({"kind": "fault", "text": f"{setup.name}-{client.number}-{n}: {traceback.format_exc()}"})
            time.sleep(1)
        n += 1


def main():
    setup = Setup(json.loads(sys.argv[1]))
    module = __import__({"1": "client_http1", "2": "client_http2", "3": "client_http3", "s": "client_stream"}[setup.kind])
    if setup.kind == "3":
        threads = [threading.Thread(target=module.main, args=(setup,), daemon=True)]
    else:
        threads = [threading.Thread(target=run, args=(setup, module.Client(setup, n)), daemon=True) for n in range(setup.threads)]
    for thread in threads:
        thread.start()
    threading.Thread(target=lambda: (sys.stdin.readline(), setup.stop.set()), daemon=True).start()
    while not setup.stopping():
        time.sleep(0.25)
        setup.report.tick()
    end = time.monotonic() + 60
    for thread in threads:
        thread.join(max(0, end - time.monotonic()))
    stuck = sum(thread.is_alive() for thread in threads)
    if stuck:
        setup.report.say({"kind": "fault", "text": f"{stuck} threads of {setup.name} do not end"})
    setup.report.close()


if __name__ == "__main__":
    main()
