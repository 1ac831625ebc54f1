"""The programs that a measurement needs."""

import os
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
# Programs of this directory, and their sources.
SOURCES = {"load": ["load.c", "connection.c", "answer.c", "slow.c"], "origin": ["origin.c"], "floor": ["floor.c"]}
# Programs, and the packages of Debian that have them.
PROGRAMS = {"cc": "gcc", "openssl": "openssl", "taskset": "util-linux", "stdbuf": "coreutils"}


def missing(servers, h2load):
    """What is not there, as lines for people. `servers` are paths by name; `h2load` says whether it is needed."""
    out = [f"{name}: {path} is not a program" for name, path in servers.items() if not os.access(path, os.X_OK) or os.path.isdir(path)]
    needed = {**PROGRAMS, **({"h2load": "nghttp2-client"} if h2load else {})}
    packages = [package for program, package in needed.items() if not shutil.which(program)]
    if shutil.which("cc") and not compiles("#include <openssl/ssl.h>\nint main(void) { return SSL_library_init(); }"):
        packages.append("libssl-dev")
    if packages:
        out.append(f"programs are missing (Debian and Ubuntu: apt-get install {' '.join(packages)})")
    if not {0, 1} <= os.sched_getaffinity(0):
        out.append("two processors are needed, of which this process may use the first two: servers run on one, load and backends on the other")
    return out


def compiles(text):
    with tempfile.TemporaryDirectory() as directory:
        command = ["cc", "-x", "c", "-o", f"{directory}/a", "-", "-lssl", "-lcrypto"]
        return subprocess.run(command, input=text.encode(), capture_output=True).returncode == 0


def build(work, name):
    """Compiles a program of this directory, unless that has been done."""
    program, sources = f"{work}/{name}.bin", [f"{HERE}/{source}" for source in SOURCES[name]]
    newest = max(os.path.getmtime(path) for path in sources + [f"{HERE}/load.h"])
    if not os.path.exists(program) or os.path.getmtime(program) < newest:
        if subprocess.run(["cc", "-O2", "-o", program, *sources, "-lssl", "-lcrypto"]).returncode:
            sys.exit(f"{name} could not be compiled")
    return program


def output(*command):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace").stdout


def in_namespace(congestion_control):
    """Starts this program again in a network of its own with another congestion control."""
    script = f'ip link set lo up && sysctl -qw net.ipv4.tcp_congestion_control={congestion_control} && exec "$@"'
    os.environ["FOREBAY_LOADS_NAMESPACE"] = "1"
    os.execvp("unshare", ["unshare", "-n", "sh", "-c", script, "sh", sys.executable, *sys.argv])
