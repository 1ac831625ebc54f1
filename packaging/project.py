"""Facts about the project and steps that the scripts of this directory share."""

import argparse
import dataclasses
import functools
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
HERE = ROOT / "packaging"
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
# Names of processors in Debian, in OCI images and in Go.
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
ELF_MACHINES = {62: "x86_64", 183: "aarch64"}


def run(*command, **options):
    return subprocess.run([str(word) for word in command], check=True, text=True, **options)


def output(*command):
    return run(*command, stdout=subprocess.PIPE, cwd=ROOT).stdout.strip()


def fail(text):
    sys.exit(f"{os.path.relpath(sys.argv[0])}: {text}")


@functools.cache
def facts():
    """What all crates have in common, and so all packages: version, authors, homepage, licence."""
    return tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]


def maintainer():
    return facts()["authors"][0]


def epoch():
    """Time in everything that is made: SOURCE_DATE_EPOCH, or that of the last commit."""
    return int(os.environ.get("SOURCE_DATE_EPOCH") or output("git", "log", "-1", "--format=%ct"))


def machine(binary):
    """Processor that a program is for."""
    with open(binary, "rb") as file:
        head = file.read(20)
    if head[:5] != b"\x7fELF\x02":
        fail(f"{binary} is no 64-bit program for Linux")
    return ELF_MACHINES.get(struct.unpack_from("<H", head, 18)[0]) or fail(f"{binary} is for another processor")


def tool(name, binary):
    """Tool of binutils that knows the programs of a processor."""
    kind = machine(binary)
    return name if kind == os.uname().machine else f"{kind}-linux-gnu-{name}"


def glibc(binary):
    """Newest version of glibc whose symbols a program needs, as numbers; None for a static one."""
    text = output(tool("objdump", binary), "-T", binary)
    versions = {word.strip("()")[len("GLIBC_"):] for line in text.splitlines() for word in line.split() if word.strip("()").startswith("GLIBC_2")}
    return max((tuple(map(int, version.split("."))) for version in versions), default=None)


@dataclasses.dataclass
class Program:
    """A program as it ships, and its symbols in a file of their own."""

    file: pathlib.Path
    # None if the program has none, or they are left out.
    symbols: pathlib.Path | None
    build_id: str | None

    @property
    def machine(self):
        return machine(self.file)


def build_id(binary):
    """Number that the linker gives to a program, by which debuggers find the file with its symbols."""
    for line in output(tool("readelf", binary), "-n", binary).splitlines():
        if "Build ID:" in line:
            return line.split()[-1]
    return None


def stripped(binary, directory):
    """Copies a program without symbols into a directory."""
    program = pathlib.Path(directory) / "forebay"
    run(tool("strip", binary), "-o", program, binary)
    return Program(program, None, build_id(binary))


def split(binary, directory):
    """Copies a program without symbols into a directory, and its symbols, if it has any, into another file."""
    program = stripped(binary, directory)
    if ".symtab" not in output(tool("readelf", binary), "-SW", binary) or not program.build_id:
        return program
    objcopy = tool("objcopy", binary)
    program.symbols = pathlib.Path(directory) / f"{program.build_id[2:]}.debug"
    run(objcopy, "--only-keep-debug", "--compress-debug-sections=zlib", binary, program.symbols)
    program.symbols.chmod(0o644)
    run(objcopy, f"--add-gnu-debuglink={program.symbols}", program.file)
    return program


def parser(text, out, binary=True):
    """A command line with the options that all scripts have."""
    made = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    if binary:
        made.add_argument("--binary", type=pathlib.Path, default=TARGET / "dist/forebay", help="the program (default: %(default)s)")
    made.add_argument("--out", type=pathlib.Path, default=TARGET / "packages" / out, help="default: %(default)s")
    made.add_argument("--version", default=facts()["version"], help="another version than that of Cargo.toml")
    made.add_argument("--quick", action="store_true", help="compress little, for tests")
    return made


def level(given):
    """Level of gzip."""
    return 1 if given.quick else 9
