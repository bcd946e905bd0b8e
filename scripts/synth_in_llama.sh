#!/usr/bin/env bash
# Files of `dctms synth` in llama.cpp: for each named shape, at two layers, it must load the file,
# read a prompt and write tokens; the encoder's file must load beside its decoder and see a picture.
# Shapes are the true ones but for the number of layers, so every kind of tensor is there.
#
#     scripts/synth_in_llama.sh [SHAPE…]
#
# LLAMA_BIN: the folder of llama.cpp's programs (without it, exit code 77). LAYERS: layers (2).
# MIXES: tensor types (q4_0 q8_0 q4_k_m f16; all for the smallest shape, the first for the others).
# SCRATCH: a folder for one file at a time, 2 GB. Prints PASS or FAIL a file; exit code 0, 1 or 77.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

dctms=${DCTMS:-target/release/dctms}
llama=${LLAMA_BIN:-}
layers=${LAYERS:-2}
read -ra mixes <<<"${MIXES:-q4_0 q8_0 q4_k_m f16}"
if [ ! -x "$llama/llama-completion" ]; then
    echo "skipped: synth_in_llama: no llama-completion in LLAMA_BIN=$llama"
    exit 77
fi
export LD_LIBRARY_PATH=$llama${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
scratch=$(mktemp -d "${SCRATCH:-${TMPDIR:-/tmp}}/synth-XXXXXX")
trap 'rm -rf "$scratch"' EXIT
failed=0

# The names that the product itself states.
named() { { "$dctms" synth 2>&1 || true; } | sed -n 's/^ *shapes: //p' | tr -d ,; }

claim() { # claim NAME COMMAND…: PASS if it succeeds
    local name=$1
    shift
    if timeout 300 "$@" >"$scratch/log" 2>&1 </dev/null; then
        echo "PASS $name"
    else
        echo "FAIL $name: $(grep -iE 'error|fail' "$scratch/log" | tail -2 | tr '\n' ' ')"
        failed=1
    fi
}

synth() { # synth SHAPE MIX FILE
    "$dctms" synth "$1" "$2" -o "$3" --layers "$layers" 2>/dev/null
}

shapes=("$@")
[ $# -gt 0 ] || read -ra shapes <<<"$(named)"
smallest=${shapes[0]}
for shape in "${shapes[@]}"; do
    case $shape in *-mmproj) continue ;; esac
    for mix in "${mixes[@]}"; do
        file=$scratch/model.gguf
        synth "$shape" "$mix" "$file"
        claim "$shape $mix, $layers layers" "$llama/llama-completion" -m "$file" \
            -p "The capital of France is" -n 4 -c 128 -t 2 -no-cnv --ignore-eos --no-warmup
        rm -f "$file"
        [ "$shape" = "$smallest" ] || break
    done
done
for shape in "${shapes[@]}"; do
    case $shape in *-mmproj) ;; *) continue ;; esac
    if [ ! -x "$llama/llama-mtmd-cli" ]; then
        echo "skipped: $shape: no llama-mtmd-cli in $llama"
        continue
    fi
    synth "${shape%-mmproj}" q4_0 "$scratch/model.gguf"
    synth "$shape" q8_0 "$scratch/mmproj.gguf"
    pictures=(demo/vision/pictures/*.png)
    claim "$shape q8_0 with its decoder, $layers layers" "$llama/llama-mtmd-cli" \
        -m "$scratch/model.gguf" --mmproj "$scratch/mmproj.gguf" --image "${pictures[0]}" \
        -p "What is it?" -n 4 -c 2048 -t 2 --no-warmup
done
exit "$failed"
