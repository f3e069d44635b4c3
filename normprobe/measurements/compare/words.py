"""What the ranking of compared runs says, in sentences."""

from normprobe.report.significant import significant
from normprobe.runs.run_store import RunStore


def verdict(run: RunStore) -> str:
    """Who has the largest and the smallest disparity, and whether inertia goes with it."""
    ranking = run.table("ranking")
    ranked = ranking.dropna(subset="rank")
    if "disparity_input" not in ranking or len(ranked) < 2:
        return ""
    first, last = ranked.iloc[0], ranked.iloc[-1]
    sentence = (
        f"The norm disparity at the decoder input is largest in {first['run']} "
        f"({significant(float(first['disparity_input']), 3)} x) and smallest in {last['run']} "
        f"({significant(float(last['disparity_input']), 3)} x)"
    )
    if "inertia_gap" in ranked and ranked["inertia_gap"].notna().all():
        widest = ranked.sort_values("inertia_gap")["run"].iloc[-1]
        sentence += f". Text tokens turn ahead of visual ones by most in {widest}"
    return f"{sentence}."
