#!/usr/bin/env bash
# Kills `kiln batch` 20 times at random moments of a set of 60 pictures, and checks that the set ends with exactly 60
# right files: those of a set that nobody killed. Usage: scripts/batch-kills.sh [SEED]
set -euo pipefail
cd "$(dirname "$0")/.."
kiln=${KILN:-target/release/kiln}
[[ -x $kiln ]] || { echo "error: $kiln is not there; build it with cargo build --release --bin kiln" >&2; exit 1; }
RANDOM=${1:-1}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

for i in $(seq 60); do
    echo "{\"prompt\": \"a red apple $i\", \"seed\": $i, \"steps\": 4, \"width\": 128, \"height\": 128, \"sampler\": \"euler\"}"
done >"$folder/jobs.jsonl"

run() { exec "$kiln" batch "$folder/jobs.jsonl" -o "$folder/$1" --batch-size $((RANDOM % 4 + 1)); }
start=$(date +%s%N)
(run whole) >"$folder/whole.txt" 2>/dev/null
whole=$(((($(date +%s%N) - start)) / 1000000))
echo "a set that nobody kills: $(wc -l <"$folder/whole.txt") pictures in $whole ms"

# A run lives a fifteenth of a set's time at the most, of which loading takes its part: something is left to the last.
kills=0
while ((kills < 20)); do
    run killed >>"$folder/killed.txt" 2>/dev/null &
    pid=$!
    delay=$((100 + RANDOM % (whole / 15 + 200)))
    sleep "$((delay / 1000)).$(printf '%03d' $((delay % 1000)))"
    kill -KILL "$pid" 2>/dev/null || { echo "error: the set was done after $kills kills" >&2; exit 1; }
    kills=$((kills + 1))
    wait "$pid" 2>/dev/null || true
    echo "killed $kills times: $(find "$folder/killed" -name '*.png' 2>/dev/null | wc -l) pictures"
done
(run killed) >"$folder/rest.txt" 2>/dev/null
echo "the last run made $(wc -l <"$folder/rest.txt")"

count=0
for picture in "$folder"/whole/*.png; do
    cmp "$picture" "$folder/killed/$(basename "$picture")"
    count=$((count + 1))
done
[[ $count == 60 && $(find "$folder/killed" -type f | wc -l) == 62 ]] # beside journal and index
[[ $(grep -c '"made"' "$folder/killed/index.jsonl") == 60 ]]
twice=$(sort "$folder/killed.txt" "$folder/rest.txt" | uniq -d | wc -l)
echo "60 right files after 20 kills, $twice made twice"
[[ $twice == 0 ]]
