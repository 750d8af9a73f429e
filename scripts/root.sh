# A root of its own to try a package in, for the scripts that source this; sets `work`, `binary` and `port`. Whoever sets `node` to a process
# has it killed at the end.
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

# A copy without debugging information: it only makes what is packed large.
cp "$binary" "$work/kvorum"
if command -v strip >/dev/null; then strip --strip-debug "$work/kvorum"; fi
