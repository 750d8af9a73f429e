#!/usr/bin/env bash
# Keeps docs/ true: runs the client recipes of docs/recipes against three nodes, each language that is installed, and
# every curl line of docs/http-api.md and docs/clients.md, whose status stands behind its `#`.
#
#   PORT=24320   the first of seven ports for nodes
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/cluster.sh

port=${PORT:-24320}
recipes=docs/recipes
result=0

start_cluster "$port"

# A node that cuts every range that takes longer than a millisecond, and enough for that.
"$KVORUM" serve --listen "127.0.0.1:$((port + 3))" --data-dir "$work/cutter" --durability os --range-timeout 1ms \
  >"$work/cutter.log" 2>&1 &
children+=("$!")
cutter=http://127.0.0.1:$((port + 3))
wait_ready $((port + 3)) 0
head -c 4000000 /dev/urandom >"$work/value"
for key in 0 1 2 3 4 5 6 7; do
  curl -sf -X PUT "$cutter/v0/entity?id=cut/$key" -T "$work/value" || { echo "FAILED: a value for the range to be cut"; result=1; }
done

# recipe NAME COMMAND…: its tour must succeed; of a cut range it must say that it was cut.
recipe() {
  local name=$1
  shift
  if ! "$@" $nodes 2>"$work/recipe.err"; then
    echo "FAILED: $name:"
    tail -20 "$work/recipe.err"
    result=1
  fi
  [ "$name" = rust ] && return
  if "$@" range cut/ cut0 "$cutter" >"$work/recipe.out" 2>"$work/recipe.err"; then
    echo "FAILED: $name took a range that was cut for a whole one: $(wc -l <"$work/recipe.out") of 8 records"
    result=1
  else
    echo "$name: a cut range is an error: $(grep -v '^ *$' "$work/recipe.err" | grep -iE 'error|eof|terminated|closed|incomplete' | tail -1)"
  fi
}

if command -v python3 >/dev/null; then
  recipe python python3 $recipes/recipe.py
  venv=${CARGO_TARGET_DIR:-target}/recipes-venv
  if [ -x "$venv/bin/python" ] && "$venv/bin/python" -c 'import httpx' 2>/dev/null; then
    recipe python-httpx "$venv/bin/python" $recipes/recipe.py
  elif python3 -m venv "$venv" >"$work/pip.log" 2>&1 &&
    "$venv/bin/pip" install -q --disable-pip-version-check --retries 1 'httpx<1' >>"$work/pip.log" 2>&1; then
    recipe python-httpx "$venv/bin/python" $recipes/recipe.py
  else
    echo "SKIPPED recipes: python with httpx: it could not be installed: $(tail -1 "$work/pip.log")"
  fi
else
  echo "SKIPPED recipes: python: no python3 here"
fi

if command -v go >/dev/null; then
  if go build -o "$work/recipe-go" $recipes/recipe.go; then
    recipe go "$work/recipe-go"
  else
    echo "FAILED: recipe.go does not build"
    result=1
  fi
else
  echo "SKIPPED recipes: go: no go here"
fi

if command -v node >/dev/null && [ "$(node -p 'process.versions.node.split(".")[0] >= 18')" = true ]; then
  recipe javascript node $recipes/recipe.mjs
else
  echo "SKIPPED recipes: javascript: no node 18 or later here"
fi

if command -v cargo >/dev/null; then
  # `--workspace`: with the features that all crates together need of libraries, they are those that `cargo test` built.
  cargo build -q --locked --workspace --example recipe &&
    recipe rust "${CARGO_TARGET_DIR:-target}/debug/examples/recipe" || result=1
else
  echo "SKIPPED recipes: rust: no cargo here"
fi

# The same tours against nodes with TLS and tokens.
secured=$((port + 4))
"$KVORUM" dev --secure --base-port $secured --data-dir "$work/secured" --durability os >"$work/secured.log" 2>&1 &
children+=("$!")
for _ in $(seq 300); do
  grep -q 'Ctrl-C stops all' "$work/secured.log" && break
  sleep 0.1
done
tour() {
  local name=$1
  shift
  if KVORUM_TOKEN=$(cat "$work/secured/operator.token") SSL_CERT_FILE=$work/secured/tls/nodes-ca.pem \
    NODE_EXTRA_CA_CERTS=$work/secured/tls/nodes-ca.pem \
    "$@" https://127.0.0.1:{$secured,$((secured + 1)),$((secured + 2))} >"$work/tour.log" 2>&1; then
    echo "$name: its tour over TLS is done"
  else
    echo "FAILED: $name over TLS:"
    tail -20 "$work/tour.log"
    result=1
  fi
}
command -v python3 >/dev/null && tour python python3 $recipes/recipe.py
[ -x "$work/recipe-go" ] && tour go "$work/recipe-go"
command -v node >/dev/null && [ "$(node -p 'process.versions.node.split(".")[0] >= 18')" = true ] &&
  tour javascript node $recipes/recipe.mjs

# The lines that a reader would copy. They run in order, so that one can use what another stored.
printf 'not really a picture' >"$work/picture.png"
count=0
while IFS= read -r line; do
  expect=$(sed -nE 's/.*# ([0-9]{3}).*/\1/p' <<<"$line")
  command=${line%%  #*}
  command=${command//localhost:8080/127.0.0.1:$port}
  seen=$(cd "$work" && eval "curl -so body -w '%{http_code}' ${command#*curl }" 2>&1)
  if [ "$seen" != "${expect:-200}" ]; then
    echo "FAILED: ${expect:-200} expected, $seen seen: $line"
    result=1
  fi
  count=$((count + 1))
done < <(grep -hE '^    curl ' docs/http-api.md docs/clients.md)
echo "$count curl lines of docs/http-api.md and docs/clients.md were run"
[ "$count" -gt 20 ] || { echo "FAILED: the lines were not found"; result=1; }

check_cluster || result=1
[ $result -eq 0 ] || echo "FAILED: see above"
exit $result
