#!/usr/bin/env bash
# The experiments of docs/experiment.md, each by name; results go to results/NAME. A run that is
# stopped goes on when the same name is given again.
#
#     scripts/run_experiments.sh NAME…
#
#     plans             what the paper's Table 1 is about                         (1 min)
#     envelope          predicted against measured memory, all models             (15 min)
#     smollm2           5 × 50 calls a system under every condition, M = 256      (110 min)
#     smollm2-again     three of these conditions once more                       (45 min)
#     gemma             5 × 50 calls a system, nothing beside them, M = 64        (8 min)
#     qwen-1.5b         5 × 50 calls a system, nothing beside them, and 5 × 5 under each other
#                       condition, M = 32                                         (100 min)
#     qwen-7b           5 × 3 calls a system, M = 32                              (15 min)
#     peers             SmolLM2, M = 256, with llama.cpp's server in both modes and mlx-lm,
#                       5 × 10 calls a system                                     (15 min)
#     qwen-1.5b-peers   the same systems at the 1.5B shape, M = 32, 5 × 3 calls   (15 min)
#
# Times are those of a quiet machine with two processors of a server. Quantised products of mlx-lm
# are plain loops on processors, so it is given five minutes of calls (at the 1.5B shape 200 s), and
# is cut off then; a system that thrashes is after ten. Groups need root. One experiment runs on a
# machine at a time (a second one is refused), and a folder goes on with the builds that it was begun
# with; where the product breaks its promise, the script ends with exit code 1. ROUNDS=N makes every
# experiment N rounds long, DEADLINE=S stops each after S seconds.
#
# SMOLLM2, GEMMA: paths of the real models (make models). QWEN_15B, QWEN_7B: files, written by
# dctms synth where they are not there. LLAMA_SERVER: llama.cpp's server, MLX_PYTHON: a Python
# with mlx-lm, mlx[cpu] and gguf; a peer that is not given is left out, by name. WORK: a folder
# for compiled models, 20 GB with everything. scripts/experiment_table.py then writes the tables.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

list() { # what this script knows, which its head says
    sed -n '2,29p' scripts/run_experiments.sh
    exit 64
}
[ $# -gt 0 ] || list

dctms=${DCTMS:-target/release/dctms}
work=${WORK:-.cache/experiment}
results=${RESULTS:-results}
smollm2=${SMOLLM2:-.cache/models/SmolLM2-135M-Instruct.Q4_1.gguf}
gemma=${GEMMA:-.cache/models/gemma-3-270m-q4_k_m.gguf}
qwen_15b=${QWEN_15B:-$work/qwen2.5-1.5b-q4_0.gguf}
qwen_7b=${QWEN_7B:-$work/qwen2.5-7b-q4_0.gguf}
mkdir -p "$work" "$results"

shape() { # shape FILE SHAPE: writes a model of random weights where it is not there
    [ -f "$1" ] && return
    # Under its name only when it is whole.
    "$dctms" synth "$2" q4_0 -o "$1.part"
    mv "$1.part" "$1"
}

run() { # run NAME MODEL OPTIONS…
    local name=$1 model=$2
    shift 2
    local more=()
    [ -z "${ROUNDS:-}" ] || more+=(--rounds "$ROUNDS" --pressure-rounds "$ROUNDS")
    [ -z "${DEADLINE:-}" ] || more+=(--deadline "$DEADLINE")
    "$dctms" experiment --model "$model" --out "$results/$name" --work "$work/$name" "$@" \
        ${more[@]+"${more[@]}"}
}

# Sets `peers` to the options for the other programs that are given, for a model.
peers() { # peers MODEL NAME
    peers=()
    if [ -n "${LLAMA_SERVER:-}" ]; then
        peers+=(--llama-server "$LLAMA_SERVER")
    else
        echo "$2: llama.cpp is left out: LLAMA_SERVER is not set" >&2
    fi
    if [ -n "${MLX_PYTHON:-}" ]; then
        # Converted before, so that the time of its first call is that of a call.
        if "$MLX_PYTHON" scripts/mlx_system.py "$1" "$work/$2/mlx" --convert; then
            peers+=(--adapter "mlx-lm=$MLX_PYTHON scripts/mlx_system.py $1 $work/$2/mlx")
        else
            echo "$2: mlx-lm is left out: the model was not converted" >&2
        fi
    else
        echo "$2: mlx-lm is left out: MLX_PYTHON is not set" >&2
    fi
}

# The vocabulary of random models has few words of English: these prompts are the beginnings of the
# others, about as many tokens as the whole ones are for a real model.
# QWEN_PROMPTS names others, for files with the published vocabulary.
short=(--prompts "${QWEN_PROMPTS:-crates/experiment/data/prompts-random.json}")
# The memory that the dynamic system touches is measured under "none".
all=none,burner,bursts,churn,group-1.05-m-max,group-m-max,group-0.9-dynamic
for name in "$@"; do
    case $name in
    envelope)
        models=()
        shape "$qwen_15b" qwen2.5-1.5b
        shape "$qwen_7b" qwen2.5-7b
        for model in "$smollm2" "$gemma" "$qwen_15b" "$qwen_7b" ${MORE_MODELS:-}; do
            [ ! -f "$model" ] || models+=(--model "$model")
        done
        "$dctms" experiment --envelope "${models[@]}" --out "$results/envelope"
        ;;
    plans)
        shape "$qwen_15b" qwen2.5-1.5b
        shape "$qwen_7b" qwen2.5-7b
        python3 scripts/experiment_table.py --plan "$dctms" "$qwen_15b" "$qwen_7b"
        ;;
    # Ten minutes for a system under a condition are twice what it takes where it does not thrash.
    smollm2)
        run smollm2 "$smollm2" --conditions "$all" --max-output 256 --cell-limit 600
        ;;
    smollm2-again)
        run smollm2-again "$smollm2" --conditions group-1.05-m-max,churn,none --max-output 256 \
            --cell-limit 1200
        ;;
    # At M = 256 its 750 calls would take half an hour and show nothing that SmolLM2 does not.
    gemma) run gemma "$gemma" --conditions none --max-output 64 ;;
    qwen-1.5b)
        shape "$qwen_15b" qwen2.5-1.5b
        run qwen-1.5b "$qwen_15b" --conditions "$all" --max-output 32 --rounds 50 \
            --pressure-rounds 5 --cell-limit 600 "${short[@]}"
        ;;
    qwen-7b)
        shape "$qwen_7b" qwen2.5-7b
        run qwen-7b "$qwen_7b" --conditions none --max-output 32 --rounds 3 \
            --pressure-rounds 3 "${short[@]}"
        ;;
    peers)
        peers "$smollm2" peers
        run peers "$smollm2" --conditions none --max-output 256 --rounds 10 \
            --cell-limit 300 ${peers[@]+"${peers[@]}"}
        ;;
    qwen-1.5b-peers)
        shape "$qwen_15b" qwen2.5-1.5b
        peers "$qwen_15b" qwen-1.5b-peers
        run qwen-1.5b-peers "$qwen_15b" --conditions none --max-output 32 --rounds 3 \
            --cell-limit 200 "${short[@]}" ${peers[@]+"${peers[@]}"}
        ;;
    *) list ;;
    esac
done
