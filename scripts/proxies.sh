#!/usr/bin/env bash
# Runs the contract through real intermediaries: nginx and HAProxy with the configurations of deploy/, three nodes
# behind them. Where it is root it installs them; what cannot be had is skipped, and said.
#
#   PORT=24330   the first of six ports: three nodes, two proxies, a failing node
set -uo pipefail
cd "$(dirname "$0")/.."

for proxy in nginx haproxy; do
  if ! command -v $proxy >/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing $proxy"
    { apt-get install -y $proxy || { apt-get update && apt-get install -y $proxy; }; } >/dev/null 2>&1
  fi
done
if ! command -v python3 >/dev/null; then
  echo "SKIPPED proxies: no python3 here"
  exit 0
fi
if ! command -v nginx >/dev/null && ! command -v haproxy >/dev/null; then
  echo "SKIPPED proxies: neither nginx nor haproxy is here, and they could not be installed"
  exit 0
fi

. scripts/cluster.sh
port=${PORT:-24330}
fake=$((port + 5))
result=0
start_cluster "$port" --range-timeout 3s --request-timeout 5s

# configure FILE PROXY_PORT THIRD_NODE: the configuration as it is in deploy/, with the ports of this run.
configure() {
  sed -e "s/127\.0\.0\.1:8000/127.0.0.1:$2/; s/127\.0\.0\.1:8080/127.0.0.1:$port/" \
    -e "s/127\.0\.0\.1:8081/127.0.0.1:$((port + 1))/; s/127\.0\.0\.1:8082/127.0.0.1:$3/" "deploy/$1"
}

# run_proxy NAME PORT THIRD_NODE: leaves its process id in $proxy_pid.
run_proxy() {
  if [ "$1" = nginx ]; then
    # What it writes, it writes here; everything else is as in deploy/.
    configure nginx.conf "$2" "$3" | sed "s#^http {#http {\n  client_body_temp_path $work/body; proxy_temp_path $work/proxy; fastcgi_temp_path $work/f; uwsgi_temp_path $work/u; scgi_temp_path $work/s;#" \
      >"$work/nginx.conf"
    nginx -p "$work" -c "$work/nginx.conf" -e "$work/nginx.log" \
      -g "daemon off; pid $work/nginx.pid; error_log $work/nginx.log warn;" &
  else
    configure haproxy.cfg "$2" "$3" >"$work/haproxy.cfg"
    haproxy -c -f "$work/haproxy.cfg" >"$work/haproxy.check" 2>&1 || cat "$work/haproxy.check"
    haproxy -db -f "$work/haproxy.cfg" >"$work/haproxy.log" 2>&1 &
  fi
  proxy_pid=$!
  children+=("$proxy_pid")
  wait_ready "$2" 0
}

end_proxy() {
  kill "$proxy_pid" 2>/dev/null
  wait "$proxy_pid" 2>/dev/null
}

place=3
for proxy in nginx haproxy; do
  listen=$((port + place))
  place=$((place + 1))
  if ! command -v $proxy >/dev/null; then
    echo "SKIPPED proxies: $proxy is not here and could not be installed"
    continue
  fi
  echo "$proxy, $({ nginx -v 2>&1; haproxy -v 2>/dev/null; } | grep -i "^$proxy" | head -1)"
  run_proxy $proxy $listen $((port + 2))
  python3 scripts/proxies_check.py contract $listen "$port" $((port + 1)) $((port + 2)) || result=1
  end_proxy
  # The third node is one that takes requests and answers none; then it goes away.
  run_proxy $proxy $listen $fake
  python3 scripts/proxies_check.py failing $listen $fake "$port" || result=1
  python3 scripts/proxies_check.py away $listen || result=1
  end_proxy
  if [ $result -ne 0 ] && [ -s "$work/$proxy.log" ]; then tail -10 "$work/$proxy.log"; fi
done

check_cluster || result=1
[ $result -eq 0 ] || echo "FAILED: see above"
exit $result
