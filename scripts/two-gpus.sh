#!/usr/bin/env bash
# Measures image sets on one GPU and on two of one machine: images per second, and their ratio.
#
#   scripts/two-gpus.sh KILN [MODEL..]   (SIZE=64: images of that many pixels each way, else the model's default)
#
# KILN is a program with CUDA. A MODEL is a folder or a file, by default models/emoji. Variables: PROMPTS (images of a set, 256), STEPS (20),
# BATCH (auto), RUNS (3; the median counts), DEVICES ("cuda:0 cuda:0,cuda:1"), OUT (a folder for the log of every run). Before the measurements
# it compares the files of a small set on one GPU and on two, image by image at a time: they must be equal.
set -euo pipefail
kiln=${1:?the program with CUDA}
shift
models=("${@:-models/emoji}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
out=${OUT:-$work}
read -r -a devices <<<"${DEVICES:-cuda:0 cuda:0,cuda:1}"
runs=${RUNS:-3}

# jobs N: that many prompts, with seeds.
jobs() {
  for ((i = 0; i < $1; i++)); do
    echo "{\"prompt\": \"a photo of fruit number $i on a table\", \"seed\": $i, \"steps\": ${STEPS:-20}${SIZE:+, \"width\": $SIZE, \"height\": $SIZE}}"
  done
}

# set_on DEVICES MODEL JOBS FOLDER [FLAGS..]: makes a set and prints the seconds of its wall time.
set_on() {
  local chosen=$1 model=$2 jobs=$3 folder=$4
  shift 4
  rm -rf "$folder"
  "$kiln" batch "$jobs" -m "$model" --device "$chosen" -o "$folder" --log-format json "$@" >/dev/null 2>"$folder.log" ||
    { cat "$folder.log" >&2; exit 1; }
  cat "$folder.log" >>"$out/two-gpus.log"
  sed -n 's/.*"event":"done".*/&/p' "$folder.log" | sed -E 's/.*"seconds":([0-9.]+).*/\1/' | tail -1
}

median() { sort -g | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }'; }

for model in "${models[@]}"; do
  jobs 8 >"$work/few.jsonl"
  jobs "${PROMPTS:-256}" >"$work/many.jsonl"
  for list in "${devices[@]}"; do
    set_on "$list" "$model" "$work/few.jsonl" "$work/few-$list" --deterministic >/dev/null
    for file in "$work/few-${devices[0]}"/*.png; do
      cmp "$file" "$work/few-$list/$(basename "$file")" || { echo "$model: other files on $list" >&2; exit 1; }
    done
  done
  first=
  for list in "${devices[@]}"; do
    # The first run loads what the driver and the page cache keep.
    set_on "$list" "$model" "$work/many.jsonl" "$work/many" --batch-size "${BATCH:-auto}" >/dev/null
    seconds=$(for ((run = 0; run < runs; run++)); do
      set_on "$list" "$model" "$work/many.jsonl" "$work/many" --batch-size "${BATCH:-auto}"
    done | median)
    first=${first:-$seconds}
    awk -v s="$seconds" -v f="$first" -v n="${PROMPTS:-256}" -v m="$model" -v d="$list" \
      'BEGIN { printf "%-24s %-16s %8.2f s  %7.2f images/s  %.2f times the first\n", m, d, s, n / s, f / s }'
  done
done
