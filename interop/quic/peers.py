"""Programs of other implementations: how they are built and called."""

import os
import re
import shutil
import subprocess

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Peer:
    """The commands of an implementation, as client and as server."""

    def __init__(self, client, server):
        self.client, self.server = client, server


def aioquic(args):
    if subprocess.run([args.python, "-c", "import aioquic"], stderr=subprocess.DEVNULL).returncode:
        return None
    return Peer([args.python, f"{HERE}/aioquic/client.py"], [args.python, f"{HERE}/aioquic/server.py"])


def quic_go(args):
    return built(args, "quic-go", "go", ["build", "-o", f"{args.target}/interop-quic-go", "."], "interop-quic-go")


def cargo(name):
    arguments = ["build", "--release", "--locked", "--target-dir"]
    return lambda args: built(args, name, "cargo", [*arguments, f"{args.target}/{name}"], f"{name}/release/interop-{name}")


def built(args, name, builder, arguments, program):
    if not shutil.which(builder) or subprocess.run([builder, *arguments], cwd=f"{HERE}/{name}").returncode:
        return None
    return Peer([f"{args.target}/{program}"], [f"{args.target}/{program}", "server"])


def ngtcp2(args):
    if not shutil.which("gtlsclient"):
        return None
    return Peer([args.python, f"{HERE}/ngtcp2/client.py"], [args.python, f"{HERE}/ngtcp2/server.py"])


PEERS = {"aioquic": aioquic, "quic-go": quic_go, "quiche": cargo("quiche"), "s2n-quic": cargo("s2n-quic"), "ngtcp2": ngtcp2}


def peers(args):
    """Those of the implementations that are wanted; `None` for one that is not there."""
    return {name: find(args) for name, find in PEERS.items() if re.search(args.clients, name)}
