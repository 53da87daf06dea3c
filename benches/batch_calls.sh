#!/usr/bin/env bash
# One `kiln batch` beside as many calls of `kiln txt2img`, in turns, with the model that comes with Kiln and its defaults:
# seconds of the wall, and of the processor (user and system). Usage: benches/batch_calls.sh [PICTURES [ROUNDS [SIZES]]]
set -euo pipefail
cd "$(dirname "$0")/.."
kiln=${KILN:-target/release/kiln}
pictures=${1:-100} rounds=${2:-3} sizes=${3:-auto}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
TIMEFORMAT='%R s, processor %U + %S s'

for i in $(seq "$pictures"); do echo "a red apple, number $i"; done >"$folder/prompts.txt"
calls() {
    local prompt
    while read -r prompt; do "$kiln" txt2img "$prompt" --seed 1 --output "$folder/calls"; done <"$folder/prompts.txt"
}
"$kiln" txt2img "a red apple" --output "$folder/warm.png" >"$folder/log" 2>&1 # the files are in the page cache
for round in $(seq "$rounds"); do
    for size in $sizes; do
        rm -rf "$folder/batch"
        echo -n "round $round, one batch, --batch-size $size: "
        time "$kiln" batch "$folder/prompts.txt" --set seed=1 -o "$folder/batch" --batch-size "$size" >"$folder/log" 2>&1
    done
    rm -rf "$folder/calls" && mkdir "$folder/calls"
    echo -n "round $round, $pictures calls: "
    time calls >"$folder/log" 2>&1
done
