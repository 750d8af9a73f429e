#!/usr/bin/env bash
# Makes the image of a binary, and runs it: unpacked, by the words of its own configuration, as its user, in a chroot; and by
# buildah where that is installed.
#
#   scripts/image_check.sh BINARY
#
# Needs root (for chroot), python3, ldd and objcopy; without them it prints SKIPPED.
set -euo pipefail
cd "$(dirname "$0")/.."
for tool in python3 ldd objcopy chroot; do
  command -v $tool >/dev/null || { echo "SKIPPED image: $tool is not there"; exit 0; }
done
[ "$(id -u)" = 0 ] || { echo "SKIPPED image: a chroot needs root"; exit 0; }
. scripts/root.sh "$1"

python3 scripts/image.py "$work/kvorum" "$work/image.tar" >"$work/said"
python3 scripts/image.py "$work/kvorum" "$work/again.tar" >/dev/null
cmp -s "$work/image.tar" "$work/again.tar" || fail "the same binary makes another image"

# Every blob is what its name says, and the layers are those of the configuration.
mkdir "$work/oci" "$work/root"
tar -xf "$work/image.tar" -C "$work/oci"
(cd "$work/oci/blobs/sha256" && for blob in *; do echo "$blob  $blob"; done | sha256sum --quiet -c) || fail "a blob has another digest"
python3 - "$work" <<'PY'
import gzip, hashlib, json, subprocess, sys
work = sys.argv[1]
blob = lambda at: open(f"{work}/oci/blobs/{at['digest'].replace(':', '/')}", "rb").read()
index = json.load(open(f"{work}/oci/index.json"))
manifest = json.loads(blob(index["manifests"][0]))
config = json.loads(blob(manifest["config"]))
for layer, plain in zip(manifest["layers"], config["rootfs"]["diff_ids"], strict=True):
    packed = blob(layer)
    assert len(packed) == layer["size"]
    unpacked = gzip.decompress(packed)
    assert plain == f"sha256:{hashlib.sha256(unpacked).hexdigest()}"
    subprocess.run(["tar", "-x", "-C", f"{work}/root"], input=unpacked, check=True)
run = config["config"]
open(f"{work}/words", "w").write("\n".join(run["Entrypoint"] + run["Cmd"]))
open(f"{work}/env", "w").write("\n".join(run["Env"]))
open(f"{work}/user", "w").write(run["User"])
PY
mapfile -t words <"$work/words"
mapfile -t env <"$work/env"
user=$(cat "$work/user")
root=$work/root
[ "$(stat -c '%u %a' "$root/data")" = "${user%:*} 700" ] || fail "the data directory is not the user's own"

[ -e "$root/usr/bin/.debug/kvorum.debug" ] || fail "the symbols are not beside the program"

# By its own words it ends at once: nobody said who may use it.
mkdir -p "$root/proc"
mount -t proc proc "$root/proc" 2>/dev/null || true
code=0
chroot=$(command -v chroot)
env -i "${env[@]}" "$chroot" --userspec="$user" "$root" "${words[@]}" 2>"$work/refused" || code=$?
[ $code = 2 ] && grep -q insecure "$work/refused" || { cat "$work/refused"; fail "an open node starts unasked ($code)"; }

# With a word about that, it serves.
env -i "${env[@]}" KVORUM_INSECURE=yes KVORUM_MEMORY_BUDGET=16MiB "$chroot" --userspec="$user" "$root" "${words[@]}" --listen "127.0.0.1:$port" 2>"$work/node.log" &
node=$!
serves "the node of the image"
# The health check of compose and Dockerfile, inside.
chroot --userspec="$user" "$root" /usr/bin/kvorum status --node-only --url "http://127.0.0.1:$port" >/dev/null || fail "the health check fails"
# A name is resolved with the image's own libraries.
printf '127.0.0.1 a-node\n' >"$root/etc/hosts"
chroot --userspec="$user" "$root" /usr/bin/kvorum get k --url "http://a-node:$port" >/dev/null || fail "names are not resolved in the image"
[ -z "$(find "$root/data" -user 0)" ] || fail "data belongs to root"
kill -TERM "$node" && wait "$node" || fail "the node of the image does not end with 0"
node=
umount "$root/proc" 2>/dev/null || true

# Another program's reading of it.
engine="no buildah here"
if command -v buildah >/dev/null; then
  export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot
  buildah() { command buildah --root "$work/store" --runroot "$work/run" "$@"; }
  if container=$(buildah from --pull-never "oci-archive:$work/image.tar" 2>"$work/buildah"); then
    buildah run "$container" -- /usr/bin/kvorum --version 2>"$work/buildah" | grep -q '^kvorum ' && engine="buildah runs it" \
      || engine="buildah reads it, and cannot run it here: $(tail -1 "$work/buildah")"
    buildah inspect --format '{{.OCIv1.Config.User}}' "$container" | grep -qx "$user" || fail "buildah reads another user"
    buildah rm "$container" >/dev/null
  else
    cat "$work/buildah"
    fail "buildah does not read the image"
  fi
fi
echo "image: $(sed 's/^[^:]*: //' "$work/said"); it serves in a chroot; $engine"
