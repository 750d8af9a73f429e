#!/usr/bin/env python3
"""Holds the files of deploy/ to the program: they are read, and the program reads every option that they give it.

    scripts/deploy_check.py BINARY

Needs python3 with PyYAML; without it, it prints SKIPPED.
"""

import json
import os
import re
import subprocess
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
NAMESPACE = "a-namespace"
wrong = []


def check(is_so, what):
    if not is_so:
        wrong.append(what)


def load(path):
    import yaml

    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return [document for document in yaml.safe_load_all(file) if document]


def taken(binary, words, variables, what):
    """The settings that the program makes of these words, or none where it refuses them."""
    environment = {"PATH": os.environ["PATH"], **variables}
    done = subprocess.run([binary, *words, "--print-config"], capture_output=True, text=True, env=environment)
    check(done.returncode == 0, f"{what}: {' '.join(words)}: {done.stderr.strip()}")
    check("is ignored" not in done.stderr, f"{what}: {done.stderr.strip()}")
    return dict(re.findall(r'^([a-z-]+) = "(.*?)" +#', done.stdout, re.M))


def kubernetes(binary):
    documents = load("deploy/kubernetes/kvorum.yaml")
    kinds = [document["kind"] for document in documents]
    check(sorted(kinds) == ["PodDisruptionBudget", "Service", "Service", "StatefulSet"], f"kinds: {kinds}")
    named = {(document["kind"], document["metadata"]["name"]): document for document in documents}
    check(all({"apiVersion", "kind", "metadata", "spec"} <= set(document) for document in documents), "a document is not whole")
    stateful = named["StatefulSet", "kvorum"]["spec"]
    pod = stateful["template"]
    labels = pod["metadata"]["labels"]
    headless = named["Service", stateful["serviceName"]]["spec"]
    check(headless["clusterIP"] == "None", "the service of the nodes is not headless")
    check(headless["publishNotReadyAddresses"] is True, "nodes do not find each other before they are ready")
    selectors = [headless["selector"], named["Service", "kvorum"]["spec"]["selector"]]
    selectors += [named["PodDisruptionBudget", "kvorum"]["spec"]["selector"]["matchLabels"], stateful["selector"]["matchLabels"]]
    selectors += [spread["labelSelector"]["matchLabels"] for spread in pod["spec"]["topologySpreadConstraints"]]
    check(all(selector.items() <= labels.items() for selector in selectors), "a selector does not select the pods")
    check(named["PodDisruptionBudget", "kvorum"]["spec"]["maxUnavailable"] == 1, "more than one node may be drained at a time")
    check(stateful["podManagementPolicy"] == "Parallel", "a new cluster would never begin")
    check(pod["spec"]["enableServiceLinks"] is False, "the service sets variables that look like settings")

    (container,) = pod["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    services = [service["spec"]["ports"] for (kind, _), service in named.items() if kind == "Service"]
    check(all(port["targetPort"] in ports for each in services for port in each), "a service leads to no port")
    probe = container["readinessProbe"]["httpGet"]
    with open(os.path.join(ROOT, "kvorum-server/src/http/openapi.json"), encoding="utf-8") as file:
        paths = json.load(file)["paths"]
    path, _, query = probe["path"].partition("?")
    known = {parameter.get("name"): parameter for parameter in paths[path]["get"]["parameters"]}
    name, _, value = query.partition("=")
    check(probe["port"] in ports and name in known, f"the probe asks for {probe}")
    check(value in str(known.get(name)), f"the probe asks for {probe}")
    check("livenessProbe" not in container, "a node that waits would be killed")
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
    volumes |= {claim["metadata"]["name"] for claim in stateful["volumeClaimTemplates"]}
    check(set(mounts) == volumes, f"mounted are {sorted(mounts)}, there are {sorted(volumes)}")

    seen = []
    for number in range(stateful["replicas"]):
        values = {"POD": f"kvorum-{number}", "NAMESPACE": NAMESPACE}
        check({entry["name"] for entry in container["env"]} == set(values), "variables of the pod")
        words = [re.sub(r"\$\((\w+)\)", lambda found: values[found[1]], word) for word in container["args"]]
        settings = taken(binary, words, {}, f"kubernetes, node {number}")
        if not settings:
            return
        urls = settings["cluster"].split(",")
        expected = f"http://kvorum-{number}.{stateful['serviceName']}.{NAMESPACE}.svc.cluster.local:{ports['http']}"
        check(len(urls) == stateful["replicas"] and urls[number] == expected == settings["advertise"], f"{urls}, not {expected}")
        check(settings["listen"].endswith(f":{ports['http']}"), f"listens on {settings['listen']}")
        for setting, volume in [("data-dir", "data"), ("token-file", "secrets"), ("peer-secret-file", "secrets")]:
            check(settings[setting].startswith(mounts[volume] + "/"), f"{setting} is {settings[setting]}")
        check(settings["auth"] == "on" and settings["insecure"] == "no", "everybody may use it")
        seen.append(settings["cluster"])
    check(len(set(seen)) == 1, "the lists of nodes differ")


def compose(binary):
    (document,) = load("deploy/docker-compose.yml")
    services = document["services"]
    urls = {f"http://{name}:8080" for name in services}
    for name, service in services.items():
        settings = taken(binary, service["command"], {}, f"compose, {name}")
        check(set(settings.get("cluster", "").split(",")) == urls, f"compose, {name}: {settings.get('cluster')}")
        check(settings.get("advertise") == f"http://{name}:8080", f"compose, {name}: {settings.get('advertise')}")
        check(all(port.startswith("127.0.0.1:") for port in service["ports"]), f"compose, {name}: open to other machines")


def files(binary):
    for path in ["deploy/kvorum.toml", "deploy/debian-kvorum.toml"]:
        taken(binary, ["serve", "--config", os.path.join(ROOT, path)], {}, path)
    with open(os.path.join(ROOT, "deploy/kvorum.service"), encoding="utf-8") as file:
        words = re.search(r"^ExecStart=\S+ (.*)$", file.read(), re.M)[1]
    taken(binary, words.replace("/etc/kvorum/kvorum.toml", os.path.join(ROOT, "deploy/kvorum.toml")).split(), {}, "the unit")
    with open(os.path.join(ROOT, "deploy/Dockerfile"), encoding="utf-8") as file:
        text = file.read()
    variables = dict(re.findall(r"(KVORUM_[A-Z_]+)=(\S+)", re.search(r"^ENV (.*)$", text, re.M)[1]))
    words = json.loads(re.search(r"^CMD (\[.*\])$", text, re.M)[1])
    sys.path.insert(0, os.path.join(ROOT, "scripts"))
    import image

    check([f"{name}={value}" for name, value in variables.items()] == image.CONFIG["Env"][1:], "the images have other variables")
    check(words == image.CONFIG["Cmd"], "the images have other commands")
    settings = taken(binary, words, {**variables, "KVORUM_INSECURE": "yes"}, "the image")
    check(settings.get("listen") == "0.0.0.0:8080" and settings.get("data-dir") == "/data", f"the image: {settings}")


def main(binary):
    try:
        import yaml  # noqa: F401
    except ImportError:
        print("SKIPPED deploy: no PyYAML here")
        return 0
    for part in (kubernetes, compose, files):
        part(os.path.abspath(binary))
    for what in wrong:
        print(f"WRONG: {what}")
    if not wrong:
        print("deploy: the manifests fit together, and the program takes every option")
    return 1 if wrong else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    sys.exit(main(sys.argv[1]))
