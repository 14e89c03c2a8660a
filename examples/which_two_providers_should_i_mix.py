"""Find the two providers to mix, and how much to spend on the first of them.

    python which_two_providers_should_i_mix.py small.jsonl medium.jsonl big.jsonl

Each file holds one provider's attempts: {"id": "task 1", "mean_cost": 0.02, "attempts": [0, 1, 0, …]}, a line per task.
"""

import sys
from itertools import permutations

from assay.evaluate.arbitrage import arbitrage, read_market


def main(files):
    market = read_market(files)
    print(market.to_frame().to_string(index=False), end="\n\n")
    reports = [arbitrage(market, pair, n_boot=200) for pair in permutations(market.providers, 2)]
    reports.sort(key=lambda report: -report.held_out.mean_margin.value)
    print("saved beside the best single provider, on tasks that the thresholds were not chosen on:")
    for report in reports:
        margin = report.held_out.mean_margin
        pair = " → ".join(report.policy.order_)
        print(f"  {100 * margin.value:5.1f} %  [{100 * margin.low:.1f}, {100 * margin.high:.1f}]  {pair}")
    best = reports[0]
    if best.held_out.mean_margin.low <= 0:
        print("\nNo pair saves money for sure: use the best provider alone, or record more attempts.")
        return
    first, threshold = best.policy.order_[0], best.thresholds[0].value
    print(f"\nSpend {threshold:.3g} {best.unit} of a task's budget on {first}, then move on.")
    best.policy.save("policy.json")


if __name__ == "__main__":
    main(sys.argv[1:])
