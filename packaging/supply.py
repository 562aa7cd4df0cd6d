#!/usr/bin/env python3
"""What Godwit is built from: whether it may be, and a list of it.

    supply.py check          licences, sources and bans of deny.toml; advisories too, if
                             cargo-deny is installed
    supply.py sbom [FILE]    a list in CycloneDX 1.5 (target/godwit.cdx.json)
    supply.py texts FILE     the licences of others' libraries that are in the programs

Needs nothing but cargo and the standard library, and no network: what cargo has fetched for
this machine is read. `python3 -B -m doctest packaging/supply.py` tests it.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import uuid

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CARGO = os.environ.get("CARGO", "cargo")
# What is shipped.
SHIPPED = ["godwit", "godwit-pki", "godwit-lab", "godwit-capi"]


def permits(expression, allowed):
    """Whether a licence expression (SPDX) leaves a choice among `allowed`.

    >>> allowed = {"MIT", "ISC", "Apache-2.0 WITH LLVM-exception"}
    >>> [permits(it, allowed) for it in ("MIT", "GPL-2.0-only", "GPL-2.0-only OR MIT")]
    [True, False, True]
    >>> permits("MIT AND GPL-2.0-only", allowed), permits("MIT/GPL-2.0-only", allowed)
    (False, True)
    >>> permits("(MIT OR GPL-2.0-only) AND ISC", allowed), permits("MIT OR ISC AND X", allowed)
    (True, True)
    >>> permits("(MIT OR ISC) AND X", allowed)
    False
    >>> permits("Apache-2.0 WITH LLVM-exception", allowed), permits("Apache-2.0", allowed)
    (True, False)
    >>> [permits(it, allowed) for it in ("", None, "MIT OR", "(MIT", "MIT)")]
    [False, False, False, False, False]
    """
    words = re.findall(r"[()]|[^\s()]+", (expression or "").replace("/", " OR "))

    def choice():
        value = every()
        while words and words[0] == "OR":
            words.pop(0)
            # Both sides are read, whatever the first one is.
            value = every() or value
        return value

    def every():
        value = one()
        while words and words[0] == "AND":
            words.pop(0)
            value = one() and value
        return value

    def one():
        word = words.pop(0)
        if word == "(":
            value = choice()
            if words.pop(0) != ")":
                raise IndexError
            return value
        if words and words[0] == "WITH":
            word = f"{word} WITH {words[1]}"
            del words[:2]
        return word in allowed

    try:
        value = choice()
    except IndexError:
        return False
    return value and not words


def faults(packages, rules):
    """Sentences on what `rules` (deny.toml) does not permit.

    >>> rules = {
    ...     "licenses": {"allow": ["MIT"]},
    ...     "sources": {"allow-registry": ["https://index"]},
    ...     "bans": {"deny": [{"name": "bad"}, {"name": "rare", "wrappers": ["keeper"]}]},
    ... }
    >>> def package(name, licence="MIT", source="registry+https://index", needs=()):
    ...     return {"name": name, "version": "1", "license": licence, "source": source,
    ...             "checksum": "c", "needs": list(needs)}
    >>> good = [package("keeper", source=None, needs=["rare"]), package("rare")]
    >>> faults(good, rules)
    []
    >>> for fault in faults(good + [package("bad"), package("odd", "GPL-3.0-only"),
    ...                             package("far", source="git+https://elsewhere"),
    ...                             package("user", needs=["rare"])], rules):
    ...     print(fault)
    bad 1 is banned
    odd 1: its licence is GPL-3.0-only
    far 1 comes from git+https://elsewhere
    rare is for keeper only, and user needs it
    """
    found = []
    allowed = set(rules["licenses"]["allow"])
    registries = {f"registry+{it}" for it in rules["sources"]["allow-registry"]}
    banned = {it["name"]: it.get("wrappers") for it in rules["bans"]["deny"]}
    for it in packages:
        called = f"{it['name']} {it['version']}"
        if it["name"] in banned and banned[it["name"]] is None:
            found.append(f"{called} is banned")
        if not permits(it["license"], allowed):
            found.append(f"{called}: its licence is {it['license']}")
        if it["source"] is not None:
            if it["source"] not in registries:
                found.append(f"{called} comes from {it['source']}")
            elif not it["checksum"]:
                found.append(f"{called} has no checksum in Cargo.lock")
        for need in it["needs"]:
            wrappers = banned.get(need)
            if wrappers is not None and it["name"] not in wrappers:
                found.append(f"{need} is for {', '.join(wrappers)} only, and {it['name']} needs it")
    return found


def run(*words):
    return subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def packages():
    """All packages for this machine, tests' too, with what they need, by cargo's ids."""
    host = re.search(r"^host: (.*)$", run("rustc", "-vV"), re.M)[1]
    metadata = json.loads(
        run(CARGO, "metadata", "--locked", "--offline", "--format-version", "1",
            "--filter-platform", host)
    )
    with open(os.path.join(ROOT, "Cargo.lock"), "rb") as file:
        locked = tomllib.load(file)["package"]
    checksums = {(it["name"], it["version"]): it.get("checksum") for it in locked}
    found = {}
    for it in metadata["packages"]:
        found[it["id"]] = {
            **{key: it[key] for key in ("name", "version", "license", "source")},
            "checksum": checksums.get((it["name"], it["version"])),
            "folder": os.path.dirname(it["manifest_path"]),
            "needs": [],
            "ships": [],
        }
    for node in metadata["resolve"]["nodes"]:
        for need in node["deps"]:
            kinds = {kind["kind"] for kind in need["dep_kinds"]}
            found[node["id"]]["needs"].append(found[need["pkg"]]["name"])
            # What only builds or tests it is no part of it.
            if None in kinds:
                found[node["id"]]["ships"].append(need["pkg"])
    return found


def check():
    with open(os.path.join(ROOT, "deny.toml"), "rb") as file:
        rules = tomllib.load(file)
    found = list(packages().values())
    wrong = faults(found, rules)
    for sentence in wrong:
        print(sentence, file=sys.stderr)
    if wrong:
        return 1
    print(f"{len(found)} packages: licences, sources and bans of deny.toml")
    if shutil.which("cargo-deny") is None:
        print("skipped: advisories, for there is no cargo-deny (cargo install cargo-deny)")
        return 0
    return subprocess.run([CARGO, "deny", "check"], cwd=ROOT, check=False).returncode


def shipped(found):
    """Of all packages the ids of those that are in what is shipped, and of the programs."""
    names = {it["name"]: key for key, it in found.items() if it["source"] is None}
    ends = [names[name] for name in SHIPPED]
    reached, waiting = set(), list(ends)
    while waiting:
        key = waiting.pop()
        if key not in reached:
            reached.add(key)
            waiting.extend(found[key]["ships"])
    in_order = sorted(reached, key=lambda key: (found[key]["name"], found[key]["version"]))
    return in_order, ends


def texts(path):
    found = packages()
    others = [found[key] for key in shipped(found)[0] if found[key]["source"] is not None]
    of_text, without = {}, []
    for it in others:
        called = f"{it['name']} {it['version']}"
        files = sorted(
            name for name in os.listdir(it["folder"])
            if re.match(r"(?i)(licen[cs]e|copying|copyright|notice)", name)
            and os.path.isfile(os.path.join(it["folder"], name))
        )
        if not files:
            without.append(f"{called}: {it['license']}")
        for name in files:
            with open(os.path.join(it["folder"], name), encoding="utf-8") as file:
                of_text.setdefault(file.read().strip(), []).append(called)
    with open(path, "w", encoding="utf-8") as file:
        for text, names in of_text.items():
            file.write(f"{', '.join(dict.fromkeys(names))}\n\n{text}\n\n{'=' * 72}\n\n")
        file.write("Without a text of their own:\n" + "\n".join(without) + "\n")
    print(f"{path}: {len(others)} libraries, {len(of_text)} texts, {len(without)} without one")
    return 0


def sbom(path):
    found = packages()
    reached, ends = shipped(found)
    components, graph = [], []
    for key in reached:
        it = found[key]
        component = {
            "type": "application" if key in ends else "library",
            "bom-ref": reference(it),
            "name": it["name"],
            "version": it["version"],
            "licenses": [{"expression": it["license"].replace("/", " OR ")}],
        }
        if it["source"] is not None:
            component["purl"] = reference(it)
            component["hashes"] = [{"alg": "SHA-256", "content": it["checksum"]}]
        components.append(component)
        needs = sorted({reference(found[need]) for need in it["ships"]})
        graph.append({"ref": reference(it), "dependsOn": needs})
    # The same of the same sources: no time, and a number made of what is in it.
    content = json.dumps([components, graph])
    version = found[ends[0]]["version"]
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, content)}",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "godwit", "version": version}},
        "components": components,
        "dependencies": graph,
    }
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
        file.write("\n")
    print(f"{path}: {len(components)} packages")
    return 0


def reference(it):
    return f"pkg:cargo/{it['name']}@{it['version']}"


def main(words):
    if words == ["check"]:
        return check()
    if words[:1] == ["sbom"] and len(words) <= 2:
        target = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
        return sbom(os.path.abspath((words + [os.path.join(target, "godwit.cdx.json")])[1]))
    if words[:1] == ["texts"] and len(words) == 2:
        return texts(words[1])
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
