#!/usr/bin/env python3
"""Compares loads over three agents with those of a single generator: check.py FOLDER ROUNDS RATE SECONDS."""

import json
import statistics
import sys

folder, rounds, rate, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
runs = {kind: [json.load(open(f"{folder}/{kind}-{n}.json")) for n in range(1, rounds + 1)] for kind in ("single", "agents")}

due = round(rate * seconds)
for kind, reports in runs.items():
    for r in reports:
        open_loop = r["open_loop"]
        got = r["connections"], r["connected"], open_loop["scheduled"], r["requests"], r["failed"]
        assert got == (100, 100, due, open_loop["started"], 0), (kind, got)
        # A machine that stalls at the end of the window has some of what is due then not begun.
        assert open_loop["started"] + open_loop["not_started"] == due, (kind, open_loop)
for r in runs["agents"]:
    assert r["together"]["troubles"] == [] and len(r["together"]["agents"]) == 3, r["together"]
    assert sum(s["requests"] for s in r["seconds"]) == r["requests"]
late = max(a["began_late_us"] for r in runs["agents"] for a in r["together"]["agents"])
away = max(a["round_trip_us"] for r in runs["agents"] for a in r["together"]["agents"])
least = min(r["open_loop"]["started"] for reports in runs.values() for r in reports)
print(
    f"open loop: 100 connections, {due:,} requests at {rate:,.0f}/s, at least {least:,} begun, every run;"
    f" latest start {late:.0f} µs late, longest round trip {away:.0f} µs"
)

bad = False
for name in ("p50", "p75", "p90"):
    figures = {kind: [r["latency_us"][name] for r in reports] for kind, reports in runs.items()}
    median = {kind: statistics.median(values) for kind, values in figures.items()}
    # Noise is what runs of one kind differ by, and no less than a fifth: the machine is shared.
    noise = max(max(values) - min(values) for values in figures.values())
    noise = max(noise, 0.2 * median["single"], 50)
    apart = abs(median["agents"] - median["single"])
    # Two runs of one kind do not tell what noise is.
    judged = rounds >= 3
    bad |= judged and apart > noise
    shown = ", ".join(f"{kind} {median[kind]:.0f} ({min(v)}–{max(v)})" for kind, v in figures.items())
    verdict = "apart by more than noise" if apart > noise else "within noise"
    print(f"{name} µs: {shown}: {verdict if judged else 'not judged, too few rounds'}")
sys.exit(bad)
