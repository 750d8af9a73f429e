# A root of its own to try a package in, for the scripts that source this; sets `work`, `binary` and `port`. A process that
# `node` names is killed at the end; its output is in $work/node.log.
#
#   . scripts/root.sh BINARY
binary=$(realpath "$1")
work=$(mktemp -d)
# Below those that the system gives to clients: one of them may be in use.
port=$((20000 + $$ % 12000))
node=
cleanup() {
  [ -z "$node" ] || kill -9 "$node" 2>/dev/null || true
  umount "$work/root/proc" 2>/dev/null || true
  rm -rf --one-file-system "$work"
}
trap cleanup EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }

# Waits until the node on `port` takes a key, and reads it again. $1 is what a complaint calls the node.
serves() {
  for _ in $(seq 300); do
    "$work/kvorum" put k v --url "http://127.0.0.1:$port" --timeout 1 >/dev/null 2>&1 && break
    kill -0 "$node" 2>/dev/null || { cat "$work/node.log"; fail "$1 has ended"; }
    sleep 0.1
  done
  [ "$("$work/kvorum" get k --url "http://127.0.0.1:$port")" = v ] || { cat "$work/node.log"; fail "$1 does not serve"; }
}

# A copy without debugging information: it only makes what is packed large.
cp "$binary" "$work/kvorum"
if command -v strip >/dev/null; then strip --strip-debug "$work/kvorum"; fi
