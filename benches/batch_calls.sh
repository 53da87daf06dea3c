#!/usr/bin/env bash
# Compares one `kiln batch` with as many calls of `kiln txt2img`, alternating, with the model that comes with Kiln and
# its defaults. Prints wall-clock seconds, and CPU seconds (user and system). Usage: benches/batch_calls.sh [IMAGES
# [ROUNDS [SIZES]]]
set -euo pipefail
cd "$(dirname "$0")/.."
kiln=${KILN:-target/release/kiln}
images=${1:-100} rounds=${2:-3} sizes=${3:-auto}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
TIMEFORMAT='%R s, CPU %U + %S s'

for i in $(seq "$images"); do echo "a red apple, number $i"; done >"$folder/prompts.txt"
calls() {
    local prompt
    while read -r prompt; do "$kiln" txt2img "$prompt" --seed 1 --output "$folder/calls"; done <"$folder/prompts.txt"
}
"$kiln" txt2img "a red apple" --output "$folder/warm.png" >"$folder/log" 2>&1 # loads the files into the page cache
for round in $(seq "$rounds"); do
    for size in $sizes; do
        rm -rf "$folder/batch"
        echo -n "round $round, one batch, --batch-size $size: "
        time "$kiln" batch "$folder/prompts.txt" --set seed=1 -o "$folder/batch" --batch-size "$size" >"$folder/log" 2>&1
    done
    rm -rf "$folder/calls" && mkdir "$folder/calls"
    echo -n "round $round, $images calls: "
    time calls >"$folder/log" 2>&1
done
