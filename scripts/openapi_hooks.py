"""Tells schemathesis what OpenAPI has no words for; see scripts/openapi.sh."""

import json
import os

import schemathesis
from hypothesis import strategies as st
from schemathesis.core import NOT_SET

NODES = int(os.environ.get("KVORUM_NODES", "3"))


# A key's limit counts bytes, JSON Schema's counts characters.
def is_key(text):
    return 1 <= len(text.encode()) <= 1024


characters = st.characters(codec="utf-8")
keys = st.one_of(
    st.sampled_from(["a", "b", "a/b", "a b", "a+b", "%", "&=", "\0", "\r\n", "?#", "\u00e9", "\U0001f511"]),
    st.text(characters, min_size=1, max_size=20),
    st.text(characters, min_size=1, max_size=1024).filter(is_key),
)
schemathesis.openapi.format("kvorum-key", keys)

# 1 <= ACK <= FROM <= nodes.
pairs = [f"{ack}/{count}" for count in range(1, NODES + 1) for ack in range(1, count + 1)]
schemathesis.openapi.format("kvorum-replicas", st.sampled_from(pairs))

# Above 0, and at most 36500 days, whatever the unit.
durations = st.one_of(
    st.builds("{}{}".format, st.integers(1, 36500), st.sampled_from(["ms", "s", "m", "h", "d", ""])),
    st.builds("{}.{:03}".format, st.integers(0, 1000), st.integers(1, 999)),
)
schemathesis.openapi.format("kvorum-duration", durations)
# Above 0, and at most a day.
pauses = st.builds("{}{}".format, st.integers(1, 24), st.sampled_from(["s", "m", "h", ""]))
schemathesis.openapi.format("kvorum-pause", pauses)

# Lists of entity tags, few of which are of versions.
tag = st.builds('{}"{}"'.format, st.sampled_from(["", "W/"]), st.text("!#0123456789abcdef-~", max_size=40))
schemathesis.openapi.format("kvorum-tags", st.one_of(st.just("*"), st.lists(tag, min_size=1, max_size=64).map(", ".join)))


def fit(query):
    """Makes parameters that are right one by one right together, in a cluster of NODES."""
    if "replicas" in query:
        query.pop("ack", None)
        query.pop("from", None)
    count = min(int(query.get("from", NODES)), NODES)
    if "from" in query:
        query["from"] = count
    if "ack" in query:
        query["ack"] = min(int(query["ack"]), count)
    if "seconds" in query:
        # A profile takes as long as it says.
        query["seconds"] = 1


def fit_condition(query):
    """Lets a write with a condition ask a majority, as it must."""
    pair = query.get("replicas", f"{query.get('ack', NODES)}/{query.get('from', NODES)}")
    ack, _, count = str(pair).partition("/")
    if 2 * int(ack) <= int(count):
        for name in ("replicas", "ack", "from"):
            query.pop(name, None)


def fit_edit(case):
    """Lets a POST of a key either add or append; what it appends is its body."""
    if "append" in case.query and "add" not in case.query:
        if case.body is NOT_SET or case.body is None:
            case.body = b""
        return
    case.query.pop("append", None)
    case.query.setdefault("add", "1")
    case.body = NOT_SET


def fit_cut(query, is_order):
    """Lets an order of a cut be one, and names each node once, in order."""
    orders = [name for name in ("arm", "close", "drop") if name in query]
    for name in orders[1:]:
        query.pop(name)
    if is_order and not orders:
        query["drop"] = "0" * 16
    if "arm" not in query:
        query.pop("age", None)
    if "sources" in query:
        nodes = sorted({int(node) for node in str(query["sources"]).split(",") if int(node) <= 65535})
        query["sources"] = ",".join(str(node) for node in nodes or [0])


# The parameters of each change of the cluster: those that it needs, and those that it may have.
CHANGES = {
    "name": ([], []),
    "upgrade": ([], []),
    "add": (["url"], ["zone", "weight", "window"]),
    "remove": (["node"], ["window"]),
    "replace": (["node", "url"], ["zone", "weight", "window"]),
    "weight": (["node", "weight"], ["window"]),
    "zone": (["node", "zone"], ["window"]),
    "store": (["node"], []),
    "force": (["lost"], []),
}
EXAMPLES = {"node": "http://127.0.0.1:9", "url": "http://127.0.0.1:9", "weight": 2, "zone": "east", "lost": ["http://127.0.0.1:9"]}


def fit_plan(query):
    """Gives a change the parameters that it has, and a URL that is one."""
    needed, allowed = CHANGES[query["change"]]
    for name in set(query) - {"change", *needed, *allowed}:
        query.pop(name)
    for name in needed:
        query.setdefault(name, EXAMPLES[name])
    if "url" in query:
        query["url"] = EXAMPLES["url"]


@schemathesis.hook
def before_call(context, case, kwargs):
    if case.path == "/debug/profile" and "seconds" not in (case.query or {}):
        # As long as it takes where nothing is said is longer than a test waits.
        case.query = {**(case.query or {}), "seconds": 1}
    is_right = case.meta is not None and case.meta.generation.mode.is_positive
    if is_right and case.path.startswith("/admin/cut"):
        case.query = case.query or {}
        fit_cut(case.query, case.method.upper() == "POST")
    if is_right and case.path == "/admin/cluster/plan" and "change" in (case.query or {}):
        fit_plan(case.query)
    if case.query and is_right:
        fit(case.query)
        names = {name.lower() for name in case.headers or {}}
        is_edit = case.path == "/v0/entity" and case.method.upper() == "POST"
        if is_edit:
            fit_edit(case)
        is_write = case.path == "/v0/entity" and case.method.upper() in ("PUT", "DELETE")
        if is_edit or is_write and names & {"if-match", "if-none-match", "kvorum-operation"}:
            fit_condition(case.query)


@schemathesis.serializer("application/x-ndjson")
def lines(context, value):
    """The lines of a batch, from the array that the document describes."""
    if isinstance(value, bytes):
        return value
    return b"".join(json.dumps(line).encode() + b"\n" for line in (value if isinstance(value, list) else [value]))


@schemathesis.deserializer("application/x-ndjson")
def rows(context, response):
    """The lines of an answer, as the array that the document describes."""
    return [json.loads(line) for line in response.content.split(b"\n") if line]
