#!/usr/bin/env bash
# Measures how long the first run on a machine takes, from start to file: with an empty cache of the driver's compiler, and then again.
#
#   scripts/first-run.sh KILN [MODEL]
#
# KILN is a program with CUDA, MODEL a folder or a file, by default models/emoji. Variables: RUNS (5; how often each of both), DTYPE (f16), STEPS (20).
# The program runs once before, so that its files and the model's are in the page cache. Runs with an empty cache and with the cache of the
# one before alternate. The last line is the difference of both medians: what a driver compiles at the first use shows there.
set -euo pipefail
kiln=${1:?the program with CUDA}
model=${2:-models/emoji}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# run: seconds of one image from start to file.
run() {
  local start=$EPOCHREALTIME
  "$kiln" txt2img "a red apple" -m "$model" --device cuda --dtype "${DTYPE:-f16}" --steps "${STEPS:-20}" --seed 1 --overwrite \
    -o "$work/image.png" 2>"$work/log" >/dev/null || { cat "$work/log" >&2; exit 1; }
  awk -v from="$start" -v to="$EPOCHREALTIME" 'BEGIN { printf "%.3f\n", to - from }'
}

median() { sort -g "$1" | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }'; }

export CUDA_CACHE_PATH=$work/cache
run >/dev/null
for ((i = 0; i < ${RUNS:-5}; i++)); do
  rm -rf "$CUDA_CACHE_PATH"
  run | tee -a "$work/first" | sed 's/^/empty cache: /; s/$/ s/'
  run | tee -a "$work/second" | sed 's/^/cached:      /; s/$/ s/'
done
awk -v first="$(median "$work/first")" -v second="$(median "$work/second")" \
  'BEGIN { printf "medians: empty cache %.3f s, cached %.3f s, difference %.3f s\n", first, second, first - second }'
