#!/usr/bin/env bash
# Kills `kiln batch` 20 times at random moments of a set of 60 images, and checks that the set ends with exactly 60
# correct files: those of an uninterrupted run. Usage: scripts/batch-kills.sh [SEED]
set -euo pipefail
cd "$(dirname "$0")/.."
kiln=${KILN:-target/release/kiln}
[[ -x $kiln ]] || { echo "error: $kiln does not exist; build it with cargo build --release --bin kiln" >&2; exit 1; }
RANDOM=${1:-1}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

for i in $(seq 60); do
    echo "{\"prompt\": \"a red apple $i\", \"seed\": $i, \"steps\": 4, \"width\": 128, \"height\": 128, \"sampler\": \"euler\"}"
done >"$folder/jobs.jsonl"

run() { exec "$kiln" batch "$folder/jobs.jsonl" -o "$folder/$1" --batch-size $((RANDOM % 4 + 1)); }
start=$(date +%s%N)
(run whole) >"$folder/whole.txt" 2>/dev/null
whole=$((($(date +%s%N) - start) / 1000000))
echo "uninterrupted run: $(wc -l <"$folder/whole.txt") images in $whole ms"

# Each run lasts at most a fifteenth of the time of a set, and part of that is loading, so that some images remain for
# the last run.
kills=0
while ((kills < 20)); do
    run killed >>"$folder/killed.txt" 2>/dev/null &
    pid=$!
    delay=$((100 + RANDOM % (whole / 15 + 200)))
    sleep "$((delay / 1000)).$(printf '%03d' $((delay % 1000)))"
    kill -KILL "$pid" 2>/dev/null || { echo "error: the set was complete after $kills kills" >&2; exit 1; }
    kills=$((kills + 1))
    wait "$pid" 2>/dev/null || true
    echo "killed $kills times: $(find "$folder/killed" -name '*.png' 2>/dev/null | wc -l) images"
done
(run killed) >"$folder/rest.txt" 2>/dev/null
echo "the last run made $(wc -l <"$folder/rest.txt")"

count=0
for image in "$folder"/whole/*.png; do
    cmp "$image" "$folder/killed/$(basename "$image")"
    count=$((count + 1))
done
[[ $count == 60 && $(find "$folder/killed" -type f | wc -l) == 62 ]] # and the journal and the index
[[ $(grep -c '"made"' "$folder/killed/index.jsonl") == 60 ]]
twice=$(sort "$folder/killed.txt" "$folder/rest.txt" | uniq -d | wc -l)
echo "60 correct files after 20 kills, $twice made twice"
[[ $twice == 0 ]]
