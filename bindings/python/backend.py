"""Builds the wheel (PEP 517). A zip file needs no build system: nothing is fetched.

libgodwit.so goes into the wheel if it is there: named by GODWIT_LIBRARY, or in the
build tree, CARGO_TARGET_DIR or target/. Otherwise the wheel is for machines where
the library is installed.
"""

import base64
import hashlib
import os
import platform
import tomllib
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIBRARY = "libgodwit.so.0"


def _library():
    named = os.environ.get("GODWIT_LIBRARY")
    if named:
        return Path(named)
    target = Path(os.environ.get("CARGO_TARGET_DIR", HERE.parents[1] / "target"))
    built = [target / profile / "libgodwit.so" for profile in ("release", "debug")]
    return next((path for path in built if path.exists()), None)


def _wheel(directory, sources):
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    name, version = project["name"], project["version"]
    library = _library()
    machine = "any" if library is None else f"linux_{platform.machine()}"
    tag = f"py3-none-{machine}"
    info = f"{name}-{version}.dist-info"
    files = dict(sources)
    if library is not None:
        files[f"{name}/{LIBRARY}"] = library.read_bytes()
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files[f"{info}/METADATA"] = metadata.encode()
    pure = str(library is None).lower()
    wheel = f"Wheel-Version: 1.0\nGenerator: godwit\nRoot-Is-Purelib: {pure}\nTag: {tag}\n"
    files[f"{info}/WHEEL"] = wheel.encode()
    record = "".join(f"{path},{_digest(data)},{len(data)}\n" for path, data in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    built = f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(Path(directory) / built, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            archive.writestr(path, data)
    return built


def _digest(data):
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
    return "sha256=" + digest.rstrip(b"=").decode()


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """PEP 517."""
    package = sorted((HERE / "godwit").glob("*.py"))
    sources = {f"godwit/{path.name}": path.read_bytes() for path in package}
    return _wheel(wheel_directory, sources)
