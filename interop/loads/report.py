"""The tables of docs/performance.md."""

import os
import platform
import re
import statistics
import time

import tools


def ratios(first, other):
    """CPU time of the first divided by that of the other, within each round; above 1 the other does the same for less."""
    return [a.cpu / b.cpu for a, b in zip(first, other) if a.units and b.units and b.cpu]


def median(samples, value):
    known = [value(sample) for sample in samples if sample.units]
    return statistics.median(known) if known else None


def verdict(pairs):
    """Where Forebay is not ahead: `level` if the interval of the ratios contains 1, `behind` if it ends below."""
    if not pairs or min(pairs) > 1:
        return ""
    return "level" if max(pairs) >= 1 else "**behind**"


def number(value, form="{:.2f}"):
    return "-" if value is None else form.format(value)


def row(case, results):
    """The line of a load. `results` are the samples of each round by server."""
    nginx, forebay, floor = (results.get(name, []) for name in ("nginx", "forebay", "floor"))
    pairs, least = ratios(nginx, forebay), ratios(nginx, floor)
    interval = f"{statistics.median(pairs):.2f} ({min(pairs):.2f} to {max(pairs):.2f})" if pairs else "-"
    cpu = [number(median(samples, lambda sample: sample.cpu)) for samples in (nginx, forebay)]
    p99 = [number(median(samples, lambda sample: sample.p99), "{:.0f}") for samples in (nginx, forebay)]
    least = number(statistics.median(least) if least else None)
    return f"| {case.name} | {case.unit} | {cpu[0]} | {cpu[1]} | {interval} | {least} | {p99[0]} / {p99[1]} | {verdict(pairs)} |"


HEADER = """\
| load | unit | nginx, us | Forebay, us | ratio | floor | p99 nginx / Forebay, us | |
| --- | --- | ---: | ---: | ---: | ---: | ---: | --- |"""


def table(rows, remarks, about):
    """Markdown of all loads with what is to be known about them."""
    notes = "\n\n" + "\n".join(f"- {name}: {text}." for name, text in remarks) if remarks else ""
    return f"{about}\n\n{HEADER}\n" + "\n".join(rows) + notes


def about(servers, rounds, seconds):
    """A sentence about the programs, the machine and the method."""
    versions = {name: tools.output(path, "-V") for name, path in servers.items()}
    nginx = re.search(r"nginx/(\S+)", versions["nginx"])
    library = re.search(r"(?:built with|running with) ((?:OpenSSL|BoringSSL|AWS-LC|LibreSSL)[^\s(]* ?[\d.]*\w*)", versions["nginx"])
    forebay = re.search(r"[Ff]orebay[/ ]([\d.]+)", versions["forebay"])
    built = time.strftime("%-d %B %Y", time.localtime(os.path.getmtime(servers["forebay"])))
    with open("/proc/cpuinfo") as f:
        model = re.search(r"^model name\s*: (.*)$", f.read(), re.M)
    with open("/proc/sys/net/ipv4/tcp_congestion_control") as f:
        control = f.read().strip()
    return (f"nginx {nginx[1] if nginx else '?'} ({library[1].strip() if library else 'its TLS library unknown'}) and "
            f"Forebay {forebay[1] if forebay else '?'}, a program of {built}; "
            f"{model[1] if model else platform.machine()}, {os.cpu_count()} processors, Linux {platform.release()}, {control}; "
            f"{rounds} rounds of {seconds:g} s.")


def put(path, mark, text):
    """Replaces what is between two comments in a file, or writes the file if it has none."""
    begin, end = f"<!-- {mark} -->", f"<!-- /{mark} -->"
    old = ""
    if os.path.exists(path):
        with open(path) as f:
            old = f.read()
    block = f"{begin}\n{text}\n{end}"
    if begin in old and end in old:
        block = old[:old.index(begin)] + block + old[old.index(end) + len(end):]
    else:
        block = (old and old.rstrip("\n") + "\n\n") + block + "\n"
    with open(path, "w") as f:
        f.write(block)
