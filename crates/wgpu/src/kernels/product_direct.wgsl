// As product.wgsl, for devices that compute on the CPU, where barriers cost more than they save: a thread computes 8 by 8 elements
// of the result straight from memory. The taps of a window are the outer loop, so that its places are computed once for all
// channels.

@group(0) @binding(0) var<storage, read> a: array<S>;
@group(0) @binding(1) var<storage, read> w: array<S>;

const SIDE: u32 = 8u;

@compute @workgroup_size(8)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
    let first_row = ((p.first + group.z * 65535u + group.y) * 8u + lane) * SIDE;
    let first_column = group.x * SIDE;
    if first_row >= p.m {
        return;
    }
    var depth = p.k;
    if CONVOLUTION {
        depth = p.channels;
    }
    var sums: array<array<f32, 8>, 8>;
    var at_a: array<u32, 8>;
    var factors: array<f32, 8>;
    var at_w: array<u32, 8>;
    for (var start = 0u; start < p.k; start += depth) {
        for (var i = 0u; i < SIDE; i++) {
            let row = min(first_row + i, p.m - 1u);
            if CONVOLUTION {
                let tap = start / depth;
                let pixel = row % p.rows;
                let from_y = i32(pixel / p.width_out * p.stride + tap / p.kernel_width) - i32(p.pad_top);
                let from_x = i32(pixel % p.width_out * p.stride + tap % p.kernel_width) - i32(p.pad_left);
                let is_inside = from_y >= 0 && from_x >= 0 && from_y < i32(p.height) && from_x < i32(p.width);
                factors[i] = select(0.0, 1.0, is_inside);
                let place = ((row / p.rows * p.height + u32(max(from_y, 0))) * p.width + u32(max(from_x, 0))) * depth;
                at_a[i] = p.a + select(0u, place, is_inside);
            } else {
                at_a[i] = p.a + row * depth;
            }
            at_w[i] = p.w + min(first_column + i, p.n - 1u) * p.k + start;
        }
        for (var d = 0u; d < depth; d++) {
            var columns: array<f32, 8>;
            for (var j = 0u; j < SIDE; j++) {
                columns[j] = f32(w[at_w[j] + d]);
            }
            for (var i = 0u; i < SIDE; i++) {
                var value = f32(a[at_a[i] + d]);
                if CONVOLUTION {
                    value *= factors[i];
                }
                for (var j = 0u; j < SIDE; j++) {
                    sums[i][j] += value * columns[j];
                }
            }
        }
    }
    for (var i = 0u; i < SIDE; i++) {
        for (var j = 0u; j < SIDE; j++) {
            store(first_row + i, first_column + j, sums[i][j]);
        }
    }
}
