#!/usr/bin/env python3
"""Prints the longest time, in milliseconds, in which interfaces received next to nothing.

    standstill.py SECONDS INTERFACE...

Next to nothing: less than a twentieth of the usual rate, over all of the interfaces.
"""
import sys
import time

seconds, names = float(sys.argv[1]), sys.argv[2:]


def received():
    total = 0
    for name in names:
        with open(f"/sys/class/net/{name}/statistics/rx_bytes") as file:
            total += int(file.read())
    return total


samples = [(time.monotonic(), received())]
while samples[-1][0] < samples[0][0] + seconds:
    time.sleep(0.004)
    samples.append((time.monotonic(), received()))
rates = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in zip(samples, samples[1:])]
usual = sorted(rates)[len(rates) // 2]
longest, since = 0.0, None
for (at, _), rate in zip(samples, rates):
    if rate >= usual / 20:
        since = None
    elif since is None:
        since = at
    if since is not None:
        longest = max(longest, at - since)
if usual == 0:
    sys.exit("nothing was received")
print(f"{longest * 1000:.0f}")
