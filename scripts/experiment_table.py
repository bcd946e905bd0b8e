#!/usr/bin/env python3
"""The tables of docs/experiment.md from the results: experiment_table.py results/NAME/summary.json"""

import json
import sys


def main() -> None:
    summary = json.load(open(sys.argv[1]))
    print("| condition | system | calls | mean ms | σ | CV | CV within prompts | p99 | peak MiB "
          "| minor | major |\n|---|---|---|---|---|---|---|---|---|---|---|")
    for row in summary["rows"]:
        latency = row["latency"]
        if not latency["calls"]:
            print(f"| {row['condition']} | {row['system']} | {row['status']} |||||||||")
            continue
        print(f"| {row['condition']} | {row['system']} | {latency['calls']} "
              f"| {latency['mean_ms']:.0f} | {latency['sigma_ms']:.0f} | {latency['cv']:.3f} "
              f"| {row['cv_within_prompts']:.3f} | {latency['p99_ms']:.0f} "
              f"| {row['peak_bytes'] / 2**20:.1f} | {row['minor_faults']:,} "
              f"| {row['major_faults']:,} |")
    print("\n| condition | system | compared with | rounds | mean latency, % | CV within prompts, % |"
          "\n|---|---|---|---|---|---|")
    for it in summary["differences"]:
        shown = [f"{100 * v['value']:+.0f} [{100 * v['low']:+.0f}, {100 * v['high']:+.0f}]"
                 for v in (it["mean_latency"], it["cv_within_prompts"])]
        print(f"| {it['condition']} | {it['system']} | {it['compared_with']} | {it['rounds']} "
              f"| {shown[0]} | {shown[1]} |")


if __name__ == "__main__":
    main()
