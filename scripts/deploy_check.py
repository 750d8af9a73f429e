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


def kubernetes(binary, documents=None, where="kubernetes"):
    documents = documents or load("deploy/kubernetes/kvorum.yaml")
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
        settings = taken(binary, words, {}, f"{where}, node {number}")
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


class Template:
    """Renders the few expressions that the chart uses, and no others: helm itself is not needed.

    Paths, `range $name := until (int PATH)` or a list, `if`, and the functions default, quote, toYaml and nindent.
    """

    def __init__(self, text):
        # The dash takes the white space beside it, as in Go's templates.
        text = re.sub(r"\s*\{\{-", "{{", re.sub(r"-\}\}\s*", "}}", text))
        self.parts = re.split(r"\{\{(.*?)\}\}", text, flags=re.S)

    def render(self, scope):
        lines, at = self.block(0, scope, True)
        assert at == len(self.parts), "an end without a beginning"
        return lines

    def block(self, at, scope, is_shown):
        made = []
        while at < len(self.parts):
            word = self.parts[at].strip() if at % 2 else ""
            if at % 2 == 0:
                made.append(self.parts[at] if is_shown else "")
            elif word == "end":
                return "".join(made), at
            elif word.startswith("/*"):
                pass
            elif word.startswith("if "):
                inner, at = self.block(at + 1, scope, is_shown and bool(self.value(word[3:], scope)))
                made.append(inner)
            elif word.startswith("range "):
                name, _, source = word[6:].partition(" := ")
                items = self.value(source, scope)
                begun = at
                _, at = self.block(begun + 1, {**scope, name: 0}, False)
                made += [self.block(begun + 1, {**scope, name: item}, is_shown)[0] for item in items]
            else:
                made.append(str(self.value(word, scope)) if is_shown else "")
            at += 1
        return "".join(made), at

    def value(self, expression, scope):
        import yaml

        first, *functions = [part.strip() for part in expression.split("|")]
        if found := re.fullmatch(r"until \(int (\S+)\)", first):
            return range(int(self.value(found[1], scope)))
        name, _, argument = first.rpartition(" ")
        value = scope.get(argument) if argument in scope else self.path(argument, scope)
        for function in [name, *functions] if name else functions:
            name, *rest = function.split()
            if name == "toYaml":
                value = yaml.safe_dump(value, default_flow_style=False).rstrip()
            elif name == "nindent":
                value = "".join(f"\n{' ' * int(rest[0])}{line}" for line in value.splitlines())
            elif name == "quote":
                value = json.dumps(str(value))
            elif name == "default":
                value = value or self.path(rest[0], scope)
            else:
                raise ValueError(f"{expression}: {name} is not known here")
        return value

    def path(self, path, scope):
        value = scope
        for name in path.removeprefix("$").removeprefix(".").split("."):
            value = value[name]
        return value


def rendered(release, values):
    import yaml

    (chart,) = load("deploy/helm/kvorum/Chart.yaml")
    scope = {"Release": {"Name": release}, "Values": values, "Chart": {"AppVersion": str(chart["appVersion"])}}
    with open(os.path.join(ROOT, "deploy/helm/kvorum/templates/kvorum.yaml"), encoding="utf-8") as file:
        text = Template(file.read()).render(scope)
    return [document for document in yaml.safe_load_all(text) if document]


def helm(binary):
    (values,) = load("deploy/helm/kvorum/values.yaml")
    check(rendered("kvorum", values) == load("deploy/kubernetes/kvorum.yaml"), "the chart is another one than the manifests")
    values = {
        **values,
        "nodes": 5,
        "extraArgs": ["--request-timeout=2s"],
        "imagePullSecrets": [{"name": "mine"}],
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "stores", "operator": "Exists"}],
        "storage": {"size": "1Ti", "className": "fast"},
        "image": {"repository": "registry/kvorum", "tag": "1", "pullPolicy": "Always"},
    }
    documents = rendered("kvorum", values)
    kubernetes(binary, documents, "helm, five nodes")
    stateful = documents[-1]["spec"]
    pod = stateful["template"]["spec"]
    check(stateful["replicas"] == 5 and "--request-timeout=2s" in pod["containers"][0]["args"], "values are not taken")
    check(pod["containers"][0]["image"] == "registry/kvorum:1", "values are not taken")
    check([pod["nodeSelector"], pod["tolerations"], pod["imagePullSecrets"]] == [values[name] for name in ("nodeSelector", "tolerations", "imagePullSecrets")], "values are not taken")
    check(stateful["volumeClaimTemplates"][0]["spec"]["storageClassName"] == "fast", "values are not taken")
    names = [document["metadata"]["name"] for document in rendered("other", values)]
    check(names == ["other-nodes", "other", "other", "other"], f"two releases would share names: {names}")


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
    for part in (kubernetes, helm, compose, files):
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
