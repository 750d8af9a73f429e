#!/usr/bin/env python3
"""Makes ammo for Yandex.Tank's phantom: PUTs and GETs of the keys and values that `kvorum bench` uses.

    bench/tank/ammo.py put   --keys 10000 > put.ammo
    bench/tank/ammo.py get   --keys 10000 --requests 50000 > get.ammo
    bench/tank/ammo.py mixed --keys 10000 --requests 50000 --replicas 2/3 > mixed.ammo

Each request is a line with its size in bytes and a tag, the bytes of the request, and a line feed. The keys and values
are those of `kvorum bench` with the same --seed and --value-size, so `kvorum bench get --verify` checks what the tank
has stored, and `kvorum bench --prefill` stores what the tank reads.
"""

import argparse
import random
import sys

MASK = (1 << 64) - 1
GOLDEN_GAMMA = 0x9E3779B97F4A7C15


def finish(z):
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def mix(value):
    return finish((value + GOLDEN_GAMMA) & MASK)


def value_of(index, size, seed):
    """The value of a key: a SplitMix64 stream that begins with the seed and the key's index."""
    state, words = mix(seed ^ mix(index)), []
    for _ in range((size + 7) // 8):
        state = (state + GOLDEN_GAMMA) & MASK
        words.append(finish(state).to_bytes(8, "little"))
    return b"".join(words)[:size]


def request(method, index, args):
    target = f"/v0/entity?id=key-{index:012d}" + (f"&replicas={args.replicas}" if args.replicas else "")
    head = f"{method} {target} HTTP/1.1\r\nHost: {args.host}\r\n"
    if method != "PUT":
        return head.encode() + b"\r\n"
    value = value_of(index, args.value_size, args.seed)
    return head.encode() + f"Content-Length: {len(value)}\r\n\r\n".encode() + value


def main():
    parser = argparse.ArgumentParser(description="Makes ammo for Yandex.Tank's phantom.")
    parser.add_argument("work", choices=["put", "get", "mixed"])
    parser.add_argument("--keys", type=int, default=10_000, help="how many different keys")
    parser.add_argument("--requests", type=int, help="how many requests; one for each key without it")
    parser.add_argument("--value-size", type=int, default=100, help="bytes of a value")
    parser.add_argument("--seed", type=int, default=1, help="as for kvorum bench")
    parser.add_argument("--host", default="127.0.0.1:8080", help="the header Host")
    parser.add_argument("--replicas", help="ACK/FROM; without it as the nodes are set")
    parser.add_argument("--read-fraction", type=float, default=0.5, help="mixed: the share of GETs")
    args = parser.parse_args()
    if args.keys < 1 or args.value_size < 0 or (args.requests is not None and args.requests < 1):
        parser.error("--keys and --requests are at least 1, --value-size at least 0")
    draws = random.Random(args.seed)
    for number in range(args.requests or args.keys):
        is_read = args.work == "get" or (args.work == "mixed" and draws.random() < args.read_fraction)
        # PUTs go through the keys in order, so that as many requests as keys store all of them.
        index = draws.randrange(args.keys) if args.work != "put" else number % args.keys
        bytes_ = request("GET" if is_read else "PUT", index, args)
        sys.stdout.buffer.write(f"{len(bytes_)} {'get' if is_read else 'put'}\n".encode() + bytes_ + b"\n")


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:
        sys.exit(1)
