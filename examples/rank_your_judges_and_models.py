"""Find the best model, and the judges that are not worth paying.

    python rank_your_judges_and_models.py votes.csv

votes.csv has a row a vote: model_a, model_b, judge, winner (model_a, model_b or tie). The authors', AlpacaEval's and
Chatbot Arena's files are read as they are.
"""

import sys

from assay.evaluate import JudgeRanking, read_votes


def main(path):
    votes = read_votes(path)
    ranking = JudgeRanking().fit(votes)
    print("Models, best first, with the ranks that the votes leave open:")
    for row in ranking.ranking_.itertuples():
        print(f"  {row.rank_low:>3}–{row.rank_high:<3} {row.score:+.2f} [{row.low:+.2f}, {row.high:+.2f}]  {row.model}")

    judges = ranking.judges_
    print(f"\nThe most telling of {len(judges)} judges: {judges['judge'].iloc[0]}")
    idle = judges[(judges["high"] < 0.5) | judges["at_boundary"]]
    if idle.empty or len(idle) == len(judges):
        print("No judge is clearly worth leaving out.")
        return
    for judge in idle.itertuples():
        print(f"Tells less than half as much as a typical judge: {judge.judge} ({judge.n_votes} votes)")
    without = JudgeRanking().fit(votes[~votes["judge"].isin(idle["judge"])])  # scores have another scale: compare ranks
    for name, fit in {"all judges": ranking, "without these": without}.items():
        open_ranks = (fit.ranking_["rank_high"] - fit.ranking_["rank_low"] + 1).mean()
        print(f"  {name}: a model has {open_ranks:.1f} possible ranks on average, from {fit.n_votes_} votes")


if __name__ == "__main__":
    main(sys.argv[1])
