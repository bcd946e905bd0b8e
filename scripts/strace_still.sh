#!/usr/bin/env bash
# Stillness, seen from the kernel: between the first token and the last, worker lanes make no
# system call but futex, and the control thread none but futex and one write a token.
#
#     scripts/strace_still.sh [MODEL] [TOKENS] [LANES]
#
# Prints PASS or FAIL a claim; exit code 0, 1, or 77 where strace is missing or may not trace.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

dctms=${DCTMS:-target/release/dctms}
model=${1:-.cache/models/SmolLM2-135M-Instruct.Q4_1.gguf}
tokens=${2:-64}
lanes=${3:-2}

if ! strace -o /dev/null true 2>/dev/null; then
    echo "SKIP strace is missing or may not trace (Debian: apt-get install strace)"
    exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

strace -f -qq -o "$folder/calls" "$dctms" run "$model" --lanes "$lanes" \
    -p "Count from one to one hundred in words." -n "$tokens" --ignore-eos \
    >"$folder/text" 2>"$folder/notes" || { cat "$folder/notes"; echo "FAIL the run"; exit 1; }

# The last write to standard output is the newline that ends the text, not a token.
grep -n ' write(1, ' "$folder/calls" | sed '$d' >"$folder/writes" || true
[ -s "$folder/writes" ] || { echo "FAIL no token was written"; exit 1; }
first=$(head -n 1 "$folder/writes" | cut -d: -f1)
last=$(tail -n 1 "$folder/writes" | cut -d: -f1)
control=$(sed -n "${first}s/ .*//p" "$folder/calls")

# `PID name(…` begins a call, `PID <... name resumed>` ends one that began earlier, and
# `PID --- SIG…` is a signal, which counts as "other".
sed -n "${first},${last}p" "$folder/calls" | awk -v control="$control" -v tokens="$tokens" '
    $2 == "<..." { next }
    {
        thread = ($1 == control) ? "control" : "worker"
        name = $2; sub(/\(.*/, "", name)
        kind = (name == "futex") ? "futex" : ($2 ~ /^write\(1,/ ) ? "write" : "other"
        count[thread, kind]++
        if (kind == "other") print "  " thread ": " $0
        if (thread == "worker") lanes[$1]
    }
    function claim(holds, text) { print (holds ? "PASS " : "FAIL ") text; failed += !holds }
    END {
        for (lane in lanes) seen++
        claim(count["worker", "other"] + count["worker", "write"] == 0, \
            "worker lanes (" seen + 0 " seen): " count["worker", "futex"] + 0 " futex, " \
            count["worker", "write"] + count["worker", "other"] " other calls")
        claim(count["control", "other"] + 0 == 0, \
            "control thread: " count["control", "futex"] + 0 " futex, " \
            count["control", "write"] + 0 " write, " count["control", "other"] + 0 " other calls")
        claim(count["control", "write"] <= tokens, \
            count["control", "write"] + 0 " writes for " tokens " tokens (control tokens " \
            "and parts of a character write nothing)")
        exit failed > 0
    }'
