# Sourced by scripts that need a running cluster. After `start_cluster PORT`, three nodes answer on PORT, PORT + 1 and
# PORT + 2; they end with the script. `KVORUM` names the program; without it the release build is made and used.

work=$(mktemp -d "${TMPDIR:-/tmp}/kvorum-script.XXXXXX")
children=()

# Ends what this script started, and nothing else.
end_all() {
  for child in "${children[@]}"; do kill "$child" 2>/dev/null; done
  for child in "${children[@]}"; do wait "$child" 2>/dev/null; done
  rm -rf "$work"
}
trap end_all EXIT
trap 'exit 130' INT TERM

find_kvorum() {
  if [ -z "${KVORUM:-}" ]; then
    cargo build --release --locked -p kvorum || exit 1
    KVORUM=${CARGO_TARGET_DIR:-target}/release/kvorum
  fi
  [ -x "$KVORUM" ] || { echo "FAILED: $KVORUM is no program"; exit 1; }
}

# wait_ready PORT PEERS: until the node there accepts requests and sees so many others.
wait_ready() {
  local tries=0
  until curl -sf -o "$work/status" "http://127.0.0.1:$1/v0/status" && [ "$(grep -c ' up ' "$work/status")" -ge "$2" ]; do
    tries=$((tries + 1))
    if [ "$tries" -gt 150 ]; then
      echo "FAILED: the node on port $1 did not come up:"
      cat "$work"/*.log
      exit 1
    fi
    sleep 0.1
  done
}

# serve_alone PORT: one node with one network thread on core 0, in `node`; whatever loads it has core 1.
serve_alone() {
  find_kvorum
  taskset -c 0 "$KVORUM" serve --listen "127.0.0.1:$1" --data-dir "$work/data" --threads 1 --durability os \
    >"$work/node.log" 2>&1 &
  node=$!
  children+=("$node")
  wait_ready "$1" 0
}

# The hypervisor's steal and all of the processors' time so far, in ticks.
stolen() { awk '/^cpu /{ print $9, $2 + $3 + $4 + $5 + $6 + $7 + $8 + $9 }' /proc/stat; }

# steal_since TICKS ALL: the steal since `stolen` said that, in percent.
steal_since() {
  # shellcheck disable=SC2046 # Two numbers.
  set -- "$1" "$2" $(stolen)
  awk -v a="$1" -v b="$2" -v c="$3" -v d="$4" 'BEGIN { printf "%.1f %%", 100 * (c - a) / (d - b) }'
}

# start_cluster PORT [flags of `kvorum dev`…]
start_cluster() {
  local port=$1 node
  shift
  find_kvorum
  for node in 0 1 2; do
    if (exec 3<>"/dev/tcp/127.0.0.1/$((port + node))") 2>/dev/null; then
      echo "FAILED: something listens on port $((port + node)) already; set PORT to another"
      exit 1
    fi
  done
  KVORUM=$(realpath "$KVORUM")
  "$KVORUM" dev --nodes 3 --base-port "$port" --data-dir "$work/data" --durability os "$@" \
    >"$work/nodes.log" 2>&1 &
  cluster=$!
  children+=("$cluster")
  for node in 0 1 2; do wait_ready $((port + node)) 2; done
  nodes="http://127.0.0.1:$port http://127.0.0.1:$((port + 1)) http://127.0.0.1:$((port + 2))"
  echo "three nodes run on ports $port to $((port + 2))"
}

# The nodes must still be there at the end, and must have called nothing their own fault.
check_cluster() {
  if ! kill -0 "$cluster" 2>/dev/null || grep -qE 'ERROR|panicked' "$work/nodes.log"; then
    echo "FAILED: the nodes said:"
    grep -E 'ERROR|panicked' "$work/nodes.log" | sort | uniq -c | head -20
    tail -5 "$work/nodes.log"
    return 1
  fi
}
