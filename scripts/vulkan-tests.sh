#!/usr/bin/env bash
# Runs the tests vulkan_* on the first GPU, or on Mesa's lavapipe. If Khronos' validation layer is installed (Debian:
# vulkan-validationlayers), it checks calls and their synchronization, and its errors and warnings are failures.
set -euo pipefail
cd "$(dirname "$0")/.."

tests=(cargo test --workspace --release -- --ignored vulkan)
found=$(find "${VK_LAYER_PATH:-/nonexistent}" {/usr/share,/usr/local/share,/etc}/vulkan/explicit_layer.d \
    -name VkLayer_khronos_validation.json 2>/dev/null | head -n 1 || true)
if [[ -z $found ]]; then
    echo "== without Vulkan's validation layer, which is not installed (Debian: vulkan-validationlayers)"
    exec "${tests[@]}"
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# Messages go to a stream, because each instance of Vulkan would overwrite a file. The settings have the names of layers before
# 1.4 and of those since.
cat >"$folder/vk_layer_settings.txt" <<END
khronos_validation.debug_action = VK_DBG_LAYER_ACTION_LOG_MSG
khronos_validation.report_flags = error,warn,info
khronos_validation.log_filename = /dev/stderr
khronos_validation.enables = VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT
khronos_validation.validate_sync = true
END
export VK_LAYER_SETTINGS_PATH=$folder/vk_layer_settings.txt VK_INSTANCE_LAYERS=VK_LAYER_KHRONOS_validation
failed=0
"${tests[@]}" 2> >(tee "$folder/messages" >&2) || failed=$?
wait
((failed == 0)) || exit "$failed"
grep -qE 'Validation Layer Active|Current Validation Enabled' "$folder/messages" ||
    { echo "error: the validation layer of $found did not run" >&2; exit 1; }
# naga gives arrays in functions and workgroups a stride, which means nothing there (VUID-StandaloneSpirv-None-10684, checked since
# layers of 2025; https://github.com/gfx-rs/wgpu/issues/7696). VALIDATION-SETTINGS is about the older names of settings.
if grep -E 'Validation (Error|Warning)' "$folder/messages" | grep -vE 'VUID-StandaloneSpirv-None-10684|VALIDATION-SETTINGS'; then
    echo "error: Vulkan's validation layer has messages" >&2
    exit 1
fi
echo "== Vulkan's validation layer has no message"
