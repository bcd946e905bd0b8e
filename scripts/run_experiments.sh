#!/usr/bin/env bash
# The experiments of docs/experiment.md, each by name; results go to results/NAME. A run that is
# stopped goes on when the same name is given again.
#
#     scripts/run_experiments.sh NAME…
#
#     envelope          predicted against measured memory, all models           (15 min)
#     smollm2           5 × 50 calls a system, nothing beside them              (6 min)
#     smollm2-pressure  5 × 50 calls a system under each other condition        (60 min)
#     gemma             5 × 50 calls a system, nothing beside them              (10 min)
#     qwen-1.5b         5 × 50 calls a system at M = 32, nothing beside them    (60 min)
#     qwen-1.5b-pressure  5 × 5 under each other condition                      (50 min)
#     qwen-7b           5 × 3 calls a system at M = 32                          (15 min)
#     peers             SmolLM2, with llama.cpp's server in both modes          (4 min)
#     peers-mlx         SmolLM2, with mlx-lm, 2 rounds                          (6 min)
#
# Times are those of a quiet machine with two processors of a server. Groups need root. ROUNDS=N
# makes every experiment N rounds long, DEADLINE=S stops each after S seconds.
#
# SMOLLM2, GEMMA: paths of the real models (make models). QWEN_15B, QWEN_7B: files, written by
# dctms synth where they are not there. LLAMA_SERVER: llama.cpp's server. MLX_PYTHON: a Python with
# mlx-lm, mlx[cpu] and gguf. WORK: a folder for compiled models, 20 GB with everything.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

dctms=${DCTMS:-target/release/dctms}
work=${WORK:-.cache/experiment}
results=${RESULTS:-results}
smollm2=${SMOLLM2:-.cache/models/SmolLM2-135M-Instruct.Q4_1.gguf}
gemma=${GEMMA:-.cache/models/gemma-3-270m-q4_k_m.gguf}
qwen_15b=${QWEN_15B:-$work/qwen2.5-1.5b-q4_0.gguf}
qwen_7b=${QWEN_7B:-$work/qwen2.5-7b-q4_0.gguf}
mkdir -p "$work" "$results"

shape() { # shape FILE SHAPE: writes a model of random weights where it is not there
    [ -f "$1" ] || "$dctms" synth "$2" q4_0 -o "$1"
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

# The vocabulary of random models has few words of English: these prompts are the beginnings of the
# others, about as many tokens as the whole ones are for a real model.
# QWEN_PROMPTS names others, for files with the published vocabulary.
short=(--prompts "${QWEN_PROMPTS:-crates/experiment/data/prompts-random.json}")
pressure=burner,bursts,churn,group-1.05-m-max,group-m-max,group-0.9-dynamic
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
    # The memory that the dynamic system touches is measured under "none".
    smollm2) run smollm2 "$smollm2" --conditions none --max-output 50 ;;
    smollm2-pressure) run smollm2 "$smollm2" --conditions "none,$pressure" --max-output 50 ;;
    gemma) run gemma "$gemma" --conditions none --max-output 50 ;;
    qwen-1.5b)
        shape "$qwen_15b" qwen2.5-1.5b
        run qwen-1.5b "$qwen_15b" --conditions none --max-output 32 "${short[@]}"
        ;;
    qwen-1.5b-pressure)
        shape "$qwen_15b" qwen2.5-1.5b
        run qwen-1.5b "$qwen_15b" --conditions "none,$pressure" --max-output 32 \
            --pressure-rounds 5 "${short[@]}"
        ;;
    qwen-7b)
        shape "$qwen_7b" qwen2.5-7b
        run qwen-7b "$qwen_7b" --conditions none --max-output 32 --rounds 3 \
            --pressure-rounds 3 "${short[@]}"
        ;;
    peers)
        run peers "$smollm2" --conditions none --max-output 50 --rounds 10 \
            --llama-server "${LLAMA_SERVER:?the path of llama-server}"
        ;;
    peers-mlx)
        run peers-mlx "$smollm2" --conditions none --max-output 50 --rounds 2 --adapter \
            "mlx-lm=${MLX_PYTHON:?a Python with mlx-lm} scripts/mlx_system.py $smollm2 $work/mlx"
        ;;
    *)
        sed -n '2,24p' "${BASH_SOURCE[0]}"
        exit 64
        ;;
    esac
done
