#!/usr/bin/env bash
# Holds the running nodes to their own description: validates the OpenAPI document with a public validator, then has
# schemathesis make requests from it, right ones and wrong ones, and fails on every 500, status, header, content type
# or body that the document does not know. Needs python3 and, the first time, its package index.
#
#   SECONDS_PER_ROUND=18   how long each of the three rounds takes
#   SEED=…                 repeats the requests of another run
#   PORT=24310             the first of three ports for nodes
set -uo pipefail
cd "$(dirname "$0")/.."

root=$PWD
document=kvorum-server/src/http/openapi.json
venv=$(realpath -m "${CARGO_TARGET_DIR:-target}")/openapi-venv
port=${PORT:-24310}

if ! command -v python3 >/dev/null; then
  echo "SKIPPED openapi: no python3 here"
  exit 0
fi
if [ ! -x "$venv/bin/schemathesis" ] || [ ! -x "$venv/bin/openapi-spec-validator" ]; then
  echo "installing openapi-spec-validator and schemathesis into $venv"
  if ! { python3 -m venv "$venv" && "$venv/bin/pip" install -q --disable-pip-version-check --retries 1 \
    'openapi-spec-validator>=0.7,<1' 'schemathesis>=4,<5'; } >"$venv.log" 2>&1; then
    echo "SKIPPED openapi: the tools could not be installed: $(tail -1 "$venv.log")"
    exit 0
  fi
fi

"$venv/bin/openapi-spec-validator" "$document" || { echo "FAILED: the document is not valid"; exit 1; }

. scripts/cluster.sh
start_cluster "$port" --request-timeout 5s
node=http://127.0.0.1:$port

curl -sf "$node/openapi.json" | cmp - "$document" || { echo "FAILED: the node serves another document"; exit 1; }

result=0
for accept in '*/*' application/json application/x-ndjson; do
  echo "requests from the document, Accept: $accept"
  # In a directory that goes away, because it leaves a cache where it runs.
  if (cd "$work" && SCHEMATHESIS_HOOKS=openapi_hooks PYTHONPATH="$root/scripts" "$venv/bin/schemathesis" \
    --config-file "$root/scripts/schemathesis.toml" run "$root/$document" --url "$node" \
    -H "Accept: $accept" --max-time "${SECONDS_PER_ROUND:-18}" --generation-database none \
    --warnings off --no-color ${SEED:+--seed "$SEED"} >"$work/round.log" 2>&1); then
    grep -E '^ *(Tested:|[0-9]+ generated|Seed:)' "$work/round.log"
  else
    cat "$work/round.log"
    result=1
  fi
done
check_cluster || result=1
if [ $result -eq 0 ]; then
  echo "openapi: the nodes do what the document says"
else
  echo "FAILED: see above"
fi
exit $result
