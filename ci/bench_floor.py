#!/usr/bin/env python3
"""Reads `planespray bench --compare tcp --json` results from files or standard input and fails below a floor.

A shared machine says little about speed; a loss of two thirds is a defect.
"""

import argparse
import json
import sys


def check(result, floor):
    """Yields one line per fault of a result line."""
    for field in ("wrong", "lost", "dup"):
        if result.get(field) not in (0, None):
            yield f"{field} is {result[field]}"
    if result.get("lat_us"):
        ours = result["lat_us"].get("p50")
        peer = result.get("peer_lat_us")
        if not ours or not peer:
            yield f"no latency to compare: {ours} against {peer}"
        elif peer / ours < floor:
            yield f"half round trip {ours:.2f} us against {peer:.2f} us over TCP: {peer / ours:.2f}, floor {floor}"
    else:
        ours, peer = result.get("bw_gbps"), result.get("peer_gbps")
        if not ours or not peer:
            yield f"no bandwidth to compare: {ours} against {peer}"
        elif ours / peer < floor:
            yield f"{ours:.2f} Gb/s against {peer:.2f} over TCP: {ours / peer:.2f}, floor {floor}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--floor", type=float, default=0.3)
    parser.add_argument("--lines", type=int, default=1, help="how many results there must be at least")
    parser.add_argument("file", nargs="*")
    args = parser.parse_args()
    lines = []
    for name in args.file or ["/dev/stdin"]:
        with open(name, encoding="utf-8") as f:
            lines += [json.loads(line) for line in f if line.strip()]
    faults = []
    if len(lines) < args.lines:
        faults.append(f"{len(lines)} results, expected {args.lines}")
    for result in lines:
        mine = list(check(result, args.floor))
        faults += [f"{result.get('op')} {result.get('size')}: {fault}" for fault in mine]
        print(f"{'FAIL' if mine else 'ok  '} {json.dumps(result)}")
    for fault in faults:
        print(f"bench_floor: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
