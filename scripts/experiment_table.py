#!/usr/bin/env python3
"""The tables of docs/experiment.md, from the results that are committed.

    experiment_table.py           writes each table between its markers in docs/experiment.md
    experiment_table.py --check   says where the page and the results disagree (exit code 1), and
                                  whether what the page says of every run of dctms is so
    experiment_table.py results/NAME/summary.json   prints the tables of one run
    experiment_table.py --plan DCTMS MODEL…         plans the models of Table 1 (results/plans.json)

A table stands between `<!-- table: WORDS -->` and `<!-- end -->`; WORDS name what it shows:

    runs                      each committed run: what it covers, and the command that repeats it
    main NAME                 every system under every condition
    contrasts NAME            differences, with intervals
    quiet NAME CONDITION PERCENT
                              without the rounds in which other work ran: those in which
                              something waited for a processor for more than so much time
    prompts NAME CONDITION    the paper's Appendix C: by prompt
    paper1                    its Table 1 beside what `dctms plan` says
    paper2 NAME…              the paper's Table 2 (1.5B) with runs of ours below it
    paper3 NAME…              its Table 3 (7B), likewise
    hypothesis NAME…          the change of CV under each condition, against the paper's
    envelope                  the envelope table's verdict by model

A run that is not committed is named in the table as one that is missing.
"""

import csv
import json
import math
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "experiment.md"
RESULTS = ROOT / "results"
PRODUCT, DYNAMIC, PROTOTYPE = "dctms", "dynamic", "prototype"


LIMITS = ("call limit, s", "cell limit, s")


def load(name: str) -> dict | None:
    """The summary of a run; None where it is not there."""
    path = Path(name) if name.endswith(".json") else RESULTS / name / "summary.json"
    return json.loads(path.read_text()) if path.exists() else None


def table(head: str, rows: list[list[str]]) -> str:
    """A table; `head` has its columns, separated by bars."""
    columns = [column.strip() for column in head.split("|")]
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def missing(name: str, columns: int) -> list[str]:
    return [f"`{name}`: not run yet"] + [""] * (columns - 1)


def number(value: float, digits: int = 0) -> str:
    return f"{value:,.{digits}f}"


def percent(interval: dict) -> str:
    one = lambda value: f"{100 * value:+.1f}".replace("-", "−")
    value, low, high = (interval[key] for key in ("value", "low", "high"))
    if value is None:
        return "–"
    return one(value) + (" [–]" if low is None else f" [{one(low)}, {one(high)}]")


def mebibytes(value: float) -> str:
    return f"{value / 2**20:,.1f}"


def runs(_: list[str]) -> str:
    rows = []
    for path in sorted(RESULTS.glob("*/summary.json")):
        summary = load(path.parent.name)
        done = {row["condition"] for row in summary["rows"]}
        calls = sum(row["latency"]["calls"] for row in summary["rows"])
        systems = list(dict.fromkeys(row["system"] for row in summary["rows"]))
        state = "" if summary["complete"] else "; not complete"
        name = path.parent.name
        # Limits may change between the runs of a folder; the command has the last.
        limits = "; ".join(f"{what}: {value}" for what, value in summary["settings"].items()
                           if what in LIMITS and ", then " in value)
        rows.append([f"[`{name}`](../results/{name}/report.html)", summary["model"],
                     ", ".join(systems), f"{calls:,} under {len(done)} condition(s){state}",
                     f"`{summary['command']}`" + (f" ({limits})" if limits else "")])
    return table("run | model | systems | calls | command", rows)


def main_table(names: list[str]) -> str:
    (name,) = names
    head = ("condition | system | calls | mean ms | σ | CV | CV within prompts | p50 | p99 | max"
            " | tokens/s | peak MiB | minor faults | major faults | missed | waited %")
    summary = load(name)
    if summary is None:
        return table(head, [missing(name, 16)])
    rows = []
    for row in summary["rows"]:
        it = row["latency"]
        if not it["calls"]:
            rows.append([row["condition"], row["system"], row["status"]] + [""] * 13)
            continue
        # None where there is no bound, or it is not known: that is not none missed.
        missed = row["missed_envelopes"]
        missed = "–" if missed is None or row["system"] != PRODUCT else str(missed)
        status = "" if row["status"] == "done" else f" ({row['status']})"
        waited = row["pressure_percent"]
        rows.append([
            row["condition"], row["system"], f"{it['calls']}{status}", number(it["mean_ms"]),
            number(it["sigma_ms"]), f"{it['cv']:.3f}", f"{row['cv_within_prompts']:.3f}",
            number(it["p50_ms"]), number(it["p99_ms"]), number(it["max_ms"]),
            number(row["tokens_per_s"], 1), mebibytes(row["peak_bytes"]),
            number(row["minor_faults"]), number(row["major_faults"]), missed,
            "–" if waited is None else f"{waited:.1f}"])
    return table(head, rows)


def contrasts(names: list[str]) -> str:
    (name,) = names
    head = "condition | system | compared with | rounds | mean latency, % | CV within prompts, %"
    summary = load(name)
    if summary is None:
        return table(head, [missing(name, 6)])
    # Rounds whose calls two runs of the program made are not compared.
    apart = lambda it: it.get("rounds_left_out", 0)
    left_out = lambda it: f" ({apart(it)} left out)" if apart(it) else ""
    rows = [[it["condition"], it["system"], it["compared_with"], f"{it['rounds']}{left_out(it)}",
             percent(it["mean_latency"]), percent(it["cv_within_prompts"])]
            for it in summary["differences"]]
    return table(head, rows)


def prompts(words: list[str]) -> str:
    name, condition = words
    head = ("prompt | system | calls | mean ms | σ | CV | p50 | p99 | max"
            " | mean against dynamic, %")
    summary = load(name)
    if summary is None:
        return table(head, [missing(name, 10)])
    against = {
        (it["system"], prompt): percent(value["mean_latency"])
        for it in summary["differences"]
        if it["condition"] == condition and it["compared_with"] == DYNAMIC
        for prompt, value in it.get("prompts", {}).items()
    }
    own = [row for row in summary["rows"] if row["condition"] == condition]
    ids = sorted({prompt for row in own for prompt in row["prompts"]})
    rows = []
    for prompt in ids:
        for row in own:
            it = row["prompts"].get(prompt)
            if it is None:
                continue
            rows.append([prompt, row["system"], str(it["calls"]), number(it["mean_ms"], 1),
                         number(it["sigma_ms"], 1), f"{it['cv']:.3f}", number(it["p50_ms"], 1),
                         number(it["p99_ms"], 1), number(it["max_ms"], 1),
                         against.get((row["system"], prompt), "")])
    return table(head, rows)


PLANS = RESULTS / "plans.json"
# The paper's bounds are not all stated; these are the experiment's.
PLAN_WORDS = "--max-input 1024 --max-output 256 --prefill-chunk 256 --lanes 2 --kv-type f16"


def plan(dctms: str, models: list[str]) -> None:
    """What Table 1 is about, of each model."""
    plans = {}
    for model in models:
        command = [dctms, "plan", model, *PLAN_WORDS.split(), "--json"]
        done = subprocess.run(command, check=True, capture_output=True)
        it = json.loads(done.stdout)
        plans[Path(model).name] = {
            "command": f"dctms plan {Path(model).name} {PLAN_WORDS}",
            "summary": it["summary"],
            "m_max_bytes": it["envelope"]["total"],
            "weights_bytes": it["envelope"]["weights"],
            "transient_bytes": it["envelope"]["intermediate"],
        }
    PLANS.write_text(json.dumps(plans, indent=1) + "\n")


def paper1(_: list[str]) -> str:
    plans = json.loads(PLANS.read_text())
    small, large = (next(it for name, it in plans.items() if size in name)
                    for size in ("1.5b", "7b"))
    megabytes = lambda it, name: f"{it[name] / 1e6:,.1f} MB"
    rows = []
    for name, paper_small, paper_large, ours in [
        ("logical tensors", "448", "448", lambda it: str(it["summary"]["logical_tensors"])),
        ("physical buffers", "122", "122", lambda it: str(it["summary"]["physical_buffers"])),
        ("reduction", "72.77 %", "72.77 %", lambda it: f"{it['summary']['reduction_percent']} %"),
        ("M_max", "3,261 MB", "3,549 MB", lambda it: megabytes(it, "m_max_bytes")),
        ("of it weights (4 bits)", "not stated", "\"approximately 4.3 GB\"",
         lambda it: megabytes(it, "weights_bytes")),
        ("transients, placed", "–", "–", lambda it: megabytes(it, "transient_bytes")),
    ]:
        rows.append([name, paper_small, ours(small), paper_large, ours(large)])
    return table(" | paper, 1.5B | here, 1.5B | paper, 7B | here, 7B", rows)


def split_mix(seed: int):
    """The generator of the report's bootstrap (crates/experiment/src/statistics.rs)."""
    mask = (1 << 64) - 1
    while True:
        seed = (seed + 0x9E3779B97F4A7C15) & mask
        z = ((seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        yield z ^ (z >> 31)


def cv_within(groups: list[list[float]]) -> float:
    """As the report's: of each latency divided by its prompt's mean."""
    squares = 0.0
    for group in groups:
        mean = sum(group) / len(group)
        squares += sum((value / mean - 1) ** 2 for value in group)
    freedom = sum(map(len, groups)) - len(groups)
    return (squares / freedom) ** 0.5 if freedom else 0.0


def percentile(ordered: list[float], share: float) -> float:
    """As the report's: between two neighbours by proportion."""
    at = share * (len(ordered) - 1)
    low, high = ordered[math.floor(at)], ordered[math.ceil(at)]
    return low + (high - low) * (at - math.floor(at))


def difference(ours: list[list[float]], theirs: list[list[float]]) -> tuple[dict, dict]:
    """Mean latency and CV within prompts of one system against another, as the report has them."""
    rounds, random = len(ours[0]), split_mix(20_261_130)
    resamples = 2000 if rounds >= 5 else 0

    def ratios(drawn: list[int]) -> tuple[float, float]:
        a = [[group[it] for it in drawn] for group in ours]
        b = [[group[it] for it in drawn] for group in theirs]
        means = [sum(x) / sum(y) for x, y in zip(a, b)]
        spread = cv_within(b)
        return sum(means) / len(means) - 1, cv_within(a) / spread - 1 if spread else math.nan

    samples = [ratios([(next(random) * rounds) >> 64 for _ in range(rounds)])
               for _ in range(resamples)]

    def interval(index: int) -> dict:
        value = ratios(list(range(rounds)))[index]
        if math.isnan(value):
            return {"value": None, "low": None, "high": None}
        values = sorted(it[index] for it in samples if not math.isnan(it[index]))
        low, high = (percentile(values, share) if values else None for share in (0.025, 0.975))
        return {"value": value, "low": low, "high": high}

    return interval(0), interval(1)


def quiet(words: list[str]) -> str:
    name, condition, limit = words[0], words[1], float(words[2])
    head = ("system | rounds | calls | mean ms | CV within prompts | mean against dynamic, %"
            " | CV against dynamic, %")
    path = RESULTS / name / "calls.csv"
    if not path.exists():
        return table(head, [missing(name, 7)])
    with open(path, newline="") as file:
        calls = [call for call in csv.DictReader(file) if call["condition"] == condition]
    waited: dict[int, list[float]] = {}
    for call in calls:
        waited.setdefault(int(call["round"]), []).append(float(call["pressure_percent"] or 0))
    systems = list(dict.fromkeys(call["system"] for call in calls))
    prompts = list(dict.fromkeys(call["prompt"] for call in calls))
    whole = len(systems) * len(prompts)
    # A round in which two runs of the program made the calls of a prompt was not made in turn.
    sessions: dict[tuple, set[str]] = {}
    for call in calls:
        key = int(call["round"]), call["prompt"]
        sessions.setdefault(key, set()).add(call.get("session") or "0")
    in_turn = lambda it: all(len(sessions[it, prompt]) == 1 for prompt in prompts)
    rounds = sorted(it for it, of in waited.items()
                    if len(of) == whole and sum(of) / len(of) <= limit and in_turn(it))
    latency = {(call["system"], call["prompt"], int(call["round"])): float(call["latency_ms"])
               for call in calls}
    groups = {system: [[latency[system, prompt, it] for it in rounds] for prompt in prompts]
              for system in systems}
    rows = []
    for system, of in groups.items():
        values = [value for group in of for value in group]
        row = [system, f"{len(rounds)} of {len(waited)}", str(len(values)),
               number(sum(values) / len(values), 1), f"{cv_within(of):.4f}"]
        if system == DYNAMIC or DYNAMIC not in groups:
            row += ["–", "–"]
        else:
            row += [percent(it) for it in difference(of, groups[DYNAMIC])]
        rows.append(row)
    return table(head, rows)


# The paper's text gives these figures; its tables themselves are not in the text that we have.
PAPER2 = [
    ["paper, runs 1 and 2", "MLX", "not stated", "not stated", "not stated", "–"],
    ["paper, runs 1 and 2", "prototype", "within 0.3 %", "not stated", "\"mixed\"", "\"mixed\""],
    ["paper, run 3", "MLX", "not stated", "77.1", "0.030", "–"],
    ["paper, run 3", "prototype", "within 0.3 %", "26.1", "0.010", "−66"],
]
PAPER3 = [
    ["paper, run 1", "MLX", "not stated", "444", "0.042", "–"],
    ["paper, run 1", "prototype", "within 0.4 %", "137", "0.013", "−69"],
    ["paper, run 2", "MLX", "not stated", "not stated", "0.023", "–"],
    ["paper, run 2", "prototype", "within 0.4 %", "not stated", "0.010", "−55"],
]
PAPER_HEAD = "run | system | mean latency, ms | σ, ms | CV | change of CV, %"


def paper(above: list[list[str]]):
    def lines(names: list[str]) -> str:
        rows = list(above)
        for name in names:
            summary = load(name)
            if summary is None:
                rows.append(missing(name, 6))
                continue
            changes = {it["system"]: percent(it["cv_within_prompts"])
                       for it in summary["differences"]
                       if it["condition"] == "none" and it["compared_with"] == DYNAMIC}
            for row in summary["rows"]:
                it = row["latency"]
                if row["condition"] != "none" or not it["calls"]:
                    continue
                rows.append([f"`{name}`", row["system"], number(it["mean_ms"], 1),
                             number(it["sigma_ms"], 1),
                             f"{it['cv']:.3f} ({row['cv_within_prompts']:.3f} within prompts)",
                             changes.get(row["system"], "–")])
        return table(PAPER_HEAD, rows)

    return lines


def hypothesis(names: list[str]) -> str:
    head = "run | condition | system against dynamic | mean latency, % | CV within prompts, %"
    rows = [["paper, 7B", "its machine", "prototype", "within 0.4", "−55 and −69"]]
    for name in names:
        summary = load(name)
        if summary is None:
            rows.append(missing(name, 5))
            continue
        for it in summary["differences"]:
            if it["compared_with"] == DYNAMIC:
                rows.append([f"`{name}`", it["condition"], it["system"],
                             percent(it["mean_latency"]), percent(it["cv_within_prompts"])])
    return table(head, rows)


def envelope(_: list[str]) -> str:
    with open(RESULTS / "envelope" / "envelope.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    by_model: dict[tuple[str, ...], list[dict]] = {}
    for line in lines:
        key = line["model"], line["model_bytes"], line.get("model_hash") or ""
        by_model.setdefault(key, []).append(line)
    rows = []
    for (model, *_), own in [*by_model.items(), (("all",), lines)]:
        ratios = [int(it["measured_bytes"]) / int(it["predicted_bytes"]) for it in own]
        over = sum(ratio > 1 for ratio in ratios)
        sizes = [int(it["predicted_bytes"]) for it in own]
        rows.append([model, str(len(own)), f"{mebibytes(min(sizes))} to {mebibytes(max(sizes))}",
                     str(over), f"{statistics.median(ratios):.4f}", f"{min(ratios):.4f}"])
    return table("model | combinations | M_max, MiB | violations | median tightness | least", rows)


KINDS = {
    "runs": runs,
    "main": main_table,
    "contrasts": contrasts,
    "quiet": quiet,
    "prompts": prompts,
    "paper1": paper1,
    "paper2": paper(PAPER2),
    "paper3": paper(PAPER3),
    "hypothesis": hypothesis,
    "envelope": envelope,
}
START, END = "<!-- table: ", "<!-- end -->"


def filled(text: str) -> str:
    """The page with every table as the results have it."""
    parts = text.split(START)
    out = [parts[0]]
    for part in parts[1:]:
        words, rest = part.split(" -->", 1)
        _, rest = rest.split(END, 1)
        kind, *names = words.split()
        out.append(f"{START}{words} -->\n{KINDS[kind](names)}\n{END}{rest}")
    return "".join(out)


# What the page names as the one exception to what it says of major faults.
NAMED_MAJOR_FAULTS = {("smollm2-again", "churn"): 2}


def broken_claims() -> list[str]:
    """What the page says of every run, and is not so of some."""
    broken = []
    for path in sorted(RESULTS.glob("*/summary.json")):
        summary = json.loads(path.read_text())
        if summary["equal_answers"] is False:
            broken.append(f"{path.parent.name}: systems with our kernels gave different texts")
        for row in summary["rows"]:
            bad = {name: row[name] for name in ("missed_envelopes", "major_faults") if row[name]}
            if row["system"] != PRODUCT:
                continue
            named = NAMED_MAJOR_FAULTS.get((path.parent.name, row["condition"]))
            if bad and bad != {"major_faults": named}:
                broken.append(f"{path.parent.name} {row['condition']}: {bad}")
            if row["latency"]["calls"] and row["missed_envelopes"] is None:
                broken.append(f"{path.parent.name} {row['condition']}: M_max is not known")
    with open(RESULTS / "envelope" / "envelope.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    if any(int(it["measured_bytes"]) > int(it["predicted_bytes"]) for it in lines):
        broken.append("envelope: a run passed its M_max")
    if len(lines) < 60 or len({it["sequences"] for it in lines}) < 2:
        broken.append("envelope: fewer than 60 combinations, or of one number of sequences")
    return broken


def main() -> int:
    words = sys.argv[1:]
    if words and words[0].endswith(".json"):
        print(main_table(words[:1]), contrasts(words[:1]), sep="\n\n")
        return 0
    if words[:1] == ["--plan"]:
        plan(words[1], words[2:])
        return 0
    page = PAGE.read_text()
    new = filled(page)
    if "--check" not in words:
        PAGE.write_text(new)
        return 0
    broken = broken_claims()
    for claim in broken:
        print(f"not so: {claim}")
    if new == page:
        return 1 if broken else 0
    old_lines, new_lines = page.splitlines(), new.splitlines()
    for index, (old, it) in enumerate(zip(old_lines, new_lines), 1):
        if old != it:
            print(f"{PAGE.name}:{index}: the page has\n  {old}\nthe results say\n  {it}")
            break
    print(f"{PAGE.name} and results/ disagree: scripts/experiment_table.py writes the tables anew")
    return 1


if __name__ == "__main__":
    sys.exit(main())
