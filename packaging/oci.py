"""OCI images as files: layers, and the layout around them. Only the standard library is used; the same input gives the same bytes."""

import dataclasses
import gzip
import hashlib
import io
import json
import pathlib
import tarfile
import time

from project import ARCHITECTURES, facts


@dataclasses.dataclass
class Tree:
    """What a layer adds: content and mode by path, targets of links by path, owner of directories by path."""

    files: dict
    links: dict
    own: dict

    def directories(self):
        found = set(self.own)
        for name in [*self.files, *self.links, *self.own]:
            found.update(str(parent) for parent in pathlib.PurePosixPath(name).parents if str(parent) != ".")
        return found

    def entry(self, name):
        entry = tarfile.TarInfo(name)
        if name in self.files:
            content, entry.mode = self.files[name]
            entry.size = len(content)
            return entry, content
        if name in self.links:
            entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, self.links[name], 0o777
        else:
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            entry.uid = entry.gid = self.own.get(name, 0)
        return entry, b""

    def layer(self, epoch):
        """The bytes of the layer before compression."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            for name in sorted(self.directories() | set(self.files) | set(self.links)):
                entry, content = self.entry(name)
                entry.mtime = epoch
                tar.addfile(entry, io.BytesIO(content))
        return buffer.getvalue()


@dataclasses.dataclass
class Image:
    """An image: its layers before compression, from below, and how it is run."""

    layers: list
    config: dict
    version: str
    machine: str
    epoch: int
    # Level of gzip.
    level: int = 9

    def settings(self):
        created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.epoch))
        return encoded({
            "created": created,
            "architecture": ARCHITECTURES[self.machine],
            "os": "linux",
            "config": self.config | {"StopSignal": "SIGQUIT", "Labels": self.labels()},
            "rootfs": {"type": "layers", "diff_ids": [digest(layer) for layer in self.layers]},
            "history": [{"created": created, "created_by": "packaging/image"} for _ in self.layers],
        })

    def labels(self):
        return {"org.opencontainers.image.title": "forebay", "org.opencontainers.image.version": self.version,
                "org.opencontainers.image.licenses": facts()["license"], "org.opencontainers.image.url": facts()["homepage"]}

    def layout(self):
        """The files of the image, by name."""
        packed = [gzip.compress(layer, self.level, mtime=0) for layer in self.layers]
        settings = self.settings()
        manifest = encoded({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": descriptor("config.v1+json", settings),
            "layers": [descriptor("layer.v1.tar+gzip", layer) for layer in packed],
            "annotations": self.labels(),
        })
        index = encoded({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [descriptor("manifest.v1+json", manifest, annotations={"org.opencontainers.image.ref.name": self.version},
                                     platform={"architecture": ARCHITECTURES[self.machine], "os": "linux"})],
        })
        blobs = {"blobs/sha256/" + digest(content).removeprefix("sha256:"): content for content in (settings, manifest, *packed)}
        return {"oci-layout": encoded({"imageLayoutVersion": "1.0.0"}), "index.json": index, **blobs}

    def write(self, out):
        """Writes an archive of the layout. Returns the digest of the image."""
        files = self.layout()
        out.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(out, "w", format=tarfile.USTAR_FORMAT) as tar:
            for name, content in files.items():
                entry = tarfile.TarInfo(name)
                entry.size, entry.mtime = len(content), self.epoch
                tar.addfile(entry, io.BytesIO(content))
        return digest(files["index.json"])


def digest(content):
    return "sha256:" + hashlib.sha256(content).hexdigest()


def encoded(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def descriptor(kind, content, **more):
    return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": digest(content), "size": len(content), **more}
