"""How long attention takes in one build of kvcobra-lab compared with another: both run in turn, since a machine's speed drifts.

    python3 attend.py LAB LAB [ROUNDS]    LAB: kvcobra-lab. ROUNDS: 6 at most, by default; fewer if all means are near enough before

Prints, for each cache and instruction set, the time of the first over that of the second, each the least of all rounds. Exit status 1:
with one instruction set the first takes more than 5 % longer, in the geometric mean of all caches. Single rows vary by more on a busy machine.
"""
import json
import math
import statistics
import subprocess
import sys

RATIO_MAX = 1.05
OPTIONS = ["bench", "attend", "--json", "--quiet", "--mib", "8", "--repeat", "60"]  # short runs, which other programs seldom interrupt


def least(lab, times):
    """Runs @lab, and keeps the least time of each row in @times."""
    done = subprocess.run([lab, *OPTIONS], check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    for number, row in enumerate(json.loads(done.stdout)["rows"]):
        if row["measured"]:
            key = (number, row["instructions"], row["cache"])
            times[key] = min(times.get(key, math.inf), row["packed_ns"]["min"])


def means(times):
    """{instruction set: ratio}, and the ratio of each row."""
    ratios = {key: times[0][key] / times[1][key] for key in times[0]}
    sets = sorted({instructions for _, instructions, _ in ratios})
    return {name: statistics.geometric_mean(ratio for key, ratio in ratios.items() if key[1] == name) for name in sets}, ratios


def main(arguments):
    labs, n_rounds = arguments[:2], int(arguments[2]) if len(arguments) > 2 else 6
    times = {}, {}
    of_sets = ratios = {}
    for n in range(n_rounds):
        for i in (0, 1) if n % 2 == 0 else (1, 0):
            least(labs[i], times[i])
        of_sets, ratios = means(times)
        if n > 0 and max(of_sets.values(), default=0) <= RATIO_MAX:
            break
    for (_, instructions, cache), ratio in ratios.items():
        print(f"{ratio:.3f}  {instructions}, {cache}")
    for instructions, ratio in of_sets.items():
        print(f"{ratio:.3f}  {instructions}, mean")
    return 0 if of_sets and max(of_sets.values()) <= RATIO_MAX else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
