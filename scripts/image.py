#!/usr/bin/env python3
"""Makes an OCI image of a binary, without an engine and without a base image.

    scripts/image.py BINARY OUT.tar

OUT.tar is an OCI archive: `podman load -i`, `docker load -i` (from 25 on), `skopeo copy oci-archive:OUT.tar …`. The image has the
program, the C libraries that it needs (those of this machine), a user, and in a layer of its own the symbols that profiles need.
The same input makes the same bytes. Needs python3, ldd and objcopy.
"""

import gzip
import hashlib
import io
import json
import os
import platform
import re
import subprocess
import sys
import tarfile
import tempfile

USER = 10001
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
# What glibc loads when it first resolves a name; ldd does not name them. Absent where they are in libc itself.
RESOLVERS = ["libnss_files.so.2", "libnss_dns.so.2", "libresolv.so.2"]
CONFIG = {
    "User": f"{USER}:{USER}",
    "ExposedPorts": {"8080/tcp": {}},
    # Variables and not flags: a command of one's own keeps them, and may overrule them.
    "Env": ["PATH=/usr/bin", "KVORUM_LISTEN=0.0.0.0:8080", "KVORUM_DATA_DIR=/data"],
    "Entrypoint": ["/usr/bin/kvorum"],
    # It listens beyond its container, so it ends with exit code 2 until it is given tokens and a peer secret, or
    # KVORUM_INSECURE=yes where only trusted machines reach it.
    "Cmd": ["serve"],
    "Volumes": {"/data": {}},
    "WorkingDir": "/data",
    "StopSignal": "SIGTERM",
}


class Layer:
    """A tar file in memory, its entries in the order in which they were added."""

    def __init__(self):
        self.bytes = io.BytesIO()
        self.tar = tarfile.open(fileobj=self.bytes, mode="w", format=tarfile.USTAR_FORMAT)
        self.folders = set()

    def entry(self, name, mode, owner):
        entry = tarfile.TarInfo(name)
        entry.mode, entry.uid, entry.gid, entry.mtime = mode, owner, owner, 0
        return entry

    def folder(self, name, mode=0o755, owner=0):
        if not name or name in self.folders:
            return
        self.folder(os.path.dirname(name))
        self.folders.add(name)
        entry = self.entry(name, mode, owner)
        entry.type = tarfile.DIRTYPE
        self.tar.addfile(entry)

    def file(self, name, content, mode=0o644):
        self.folder(os.path.dirname(name))
        entry = self.entry(name, mode, 0)
        entry.size = len(content)
        self.tar.addfile(entry, io.BytesIO(content))

    def packed(self):
        self.tar.close()
        plain = self.bytes.getvalue()
        return plain, gzip.compress(plain, 9, mtime=0)


def read(path):
    with open(path, "rb") as file:
        return file.read()


def libraries(binary):
    """The paths at which the loader looks, the loader's own included; what each needs comes with it."""
    said = subprocess.run(["ldd", binary], check=True, capture_output=True, text=True).stdout
    found = set(re.findall(r"(/\S+) \(0x", said))
    if not found:
        raise SystemExit(f"{binary}: ldd names no libraries:\n{said}")
    folders = {os.path.dirname(path) for path in found}
    for folder in folders:
        found.update(path for path in (os.path.join(folder, name) for name in RESOLVERS) if os.path.exists(path))
    return sorted(found)


def split(binary):
    """The program without its symbols, and these: found beside the program, in a folder .debug."""
    with tempfile.TemporaryDirectory() as work:
        program, symbols = f"{work}/kvorum", f"{work}/kvorum.debug"
        subprocess.run(["objcopy", "--only-keep-debug", binary, symbols], check=True)
        subprocess.run(["objcopy", "--strip-debug", "--strip-unneeded", f"--add-gnu-debuglink={symbols}", binary, program], check=True)
        return read(program), read(symbols)


def main(binary, out):
    architecture = ARCHITECTURES.get(platform.machine(), platform.machine())
    base = Layer()
    for path in libraries(binary):
        base.file(path.lstrip("/"), read(path), 0o755)
    base.file("etc/passwd", f"root:x:0:0:root:/:/\nkvorum:x:{USER}:{USER}:kvorum:/data:/\n".encode())
    base.file("etc/group", f"root:x:0:\nkvorum:x:{USER}:\n".encode())
    base.file("etc/nsswitch.conf", b"passwd: files\ngroup: files\nhosts: files dns\n")
    base.folder("tmp", 0o1777)
    base.folder("data", 0o700, USER)
    program, symbols = Layer(), Layer()
    stripped, debug = split(binary)
    program.file("usr/bin/kvorum", stripped, 0o755)
    symbols.file("usr/bin/.debug/kvorum.debug", debug)
    version = subprocess.run([binary, "--version"], check=True, capture_output=True, text=True).stdout.split()[-1]

    blobs = {}

    def blob(content, kind):
        digest = hashlib.sha256(content).hexdigest()
        blobs[digest] = content
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(content)}

    def text(value):
        return json.dumps(value, sort_keys=True).encode()

    layers = [layer.packed() for layer in (base, symbols, program)]
    labels = {"org.opencontainers.image.title": "kvorum", "org.opencontainers.image.version": version}
    config = {
        "architecture": architecture,
        "os": "linux",
        "created": "1970-01-01T00:00:00Z",
        "config": {**CONFIG, "Labels": labels},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(plain).hexdigest()}" for plain, _ in layers]},
        "history": [{"created_by": what} for what in ("the C libraries and a user", "symbols for profiles", "kvorum")],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob(text(config), "config.v1+json"),
        "layers": [blob(packed, "layer.v1.tar+gzip") for _, packed in layers],
    }
    described = blob(text(manifest), "manifest.v1+json")
    described["annotations"] = {"org.opencontainers.image.ref.name": version}
    described["platform"] = {"architecture": architecture, "os": "linux"}

    archive = Layer()
    archive.file("oci-layout", text({"imageLayoutVersion": "1.0.0"}))
    archive.file("index.json", text({"schemaVersion": 2, "manifests": [described]}))
    for digest, content in sorted(blobs.items()):
        archive.file(f"blobs/sha256/{digest}", content)
    archive.tar.close()
    with open(out, "wb") as file:
        file.write(archive.bytes.getvalue())
    print(f"{out}: kvorum {version}, {architecture}, {len(archive.bytes.getvalue()) >> 20} MiB, {described['digest']}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
