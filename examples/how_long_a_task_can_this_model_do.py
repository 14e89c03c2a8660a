"""How long a task can this model do? Time horizons from a table of who solved what and a few human times.

python how_long_a_task_can_this_model_do.py responses.csv.gz human_minutes.csv release_dates.csv
"""

import sys

from assay.evaluate.bridge import TimeHorizonIRT, read_dates, read_minutes, read_responses


def main(responses, human_minutes, release_dates):
    irt = TimeHorizonIRT().fit(read_responses(responses), read_minutes(human_minutes), read_dates(release_dates))
    print(irt.calibration_.summary())

    print("\nA task that the model solves half the time takes people this many minutes [95 % interval]:")
    for model, row in irt.subjects_.nlargest(10, "ability").iterrows():
        print(f"{row['horizon_50_minutes']:8.1f}  [{row['ci_low']:.1f}, {row['ci_high']:.1f}]  {model}")

    print("\nThe hardest tasks that nobody timed, in predicted human minutes [95 % prediction interval]:")
    untimed = irt.items_[irt.items_["human_minutes"].isna() & ~irt.items_["extrapolated"]]
    for task, row in untimed.nlargest(5, "predicted_minutes").iterrows():
        print(f"{row['predicted_minutes']:8.1f}  [{row['pi_low']:.1f}, {row['pi_high']:.1f}]  {task}")

    trend = irt.forecast()
    print(f"\nThe horizon of the best model doubles every {trend.doubling_months:.1f} months", end=" ")
    print(f"[{trend.ci_low:.1f}, {trend.ci_high:.1f}].")
    trend.plot().figure.savefig("horizon.png", dpi=200)
    print("Written: horizon.png")


if __name__ == "__main__":
    main(*sys.argv[1:])
