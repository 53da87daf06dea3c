// As attention.wgsl, for devices that compute on the CPU, where barriers cost more than they save: a thread has 8 queries of one head,
// and takes the keys one by one.

@group(0) @binding(0) var<storage, read> q: array<S>;
@group(0) @binding(1) var<storage, read> k: array<S>;
@group(0) @binding(2) var<storage, read> v: array<S>;
@group(0) @binding(5) var<storage, read_write> y: array<S>;

const SIDE: u32 = 8u;

@compute @workgroup_size(8)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
    let first = ((p.first + group.x) * 8u + lane) * SIDE;
    if first >= p.s {
        return;
    }
    let head = group.y;
    let image = group.z;
    let at_k = p.k + image * p.k_image + head / p.share * HEAD;
    let at_v = p.v + image * p.v_image + head / p.share * HEAD;
    let keys = keys_of(image, first, SIDE);
    var queries: array<array<f32, 8>, HEAD>;
    var result: array<array<f32, 8>, HEAD>;
    for (var i = 0u; i < SIDE; i++) {
        let at_q = p.q + image * p.q_image + min(first + i, p.s - 1u) * p.q_row + head * HEAD;
        for (var d = 0u; d < HEAD; d++) {
            queries[d][i] = f32(q[at_q + d]) * p.scale;
        }
    }
    var largest: array<f32, 8>;
    var sums: array<f32, 8>;
    for (var i = 0u; i < SIDE; i++) {
        largest[i] = LEAST;
    }
    for (var key = 0u; key < keys; key++) {
        var scores: array<f32, 8>;
        for (var d = 0u; d < HEAD; d++) {
            let value = f32(k[at_k + key * p.k_row + d]);
            for (var i = 0u; i < SIDE; i++) {
                scores[i] += queries[d][i] * value;
            }
        }
        var is_larger = false;
        for (var i = 0u; i < SIDE; i++) {
            let query = min(first + i, p.s - 1u);
            if HAS_BIAS {
                scores[i] += f32(bias[p.bias + image * p.bias_image + (head * p.s + query) * p.t + key]);
            }
            if CAUSAL {
                scores[i] = select(LEAST, scores[i], key <= query);
            }
            if HAS_SEEN {
                scores[i] = select(LEAST, scores[i], limits[p.limits + image * p.t + key] > 0.5);
            }
            is_larger = is_larger || scores[i] > largest[i];
        }
        if is_larger {
            var factors: array<f32, 8>;
            for (var i = 0u; i < SIDE; i++) {
                let most = max(largest[i], scores[i]);
                factors[i] = exp(largest[i] - most);
                sums[i] *= factors[i];
                largest[i] = most;
            }
            for (var d = 0u; d < HEAD; d++) {
                for (var i = 0u; i < SIDE; i++) {
                    result[d][i] *= factors[i];
                }
            }
        }
        for (var i = 0u; i < SIDE; i++) {
            scores[i] = select(0.0, exp(scores[i] - largest[i]), scores[i] > 0.5 * LEAST);
            sums[i] += scores[i];
        }
        for (var d = 0u; d < HEAD; d++) {
            let value = f32(v[at_v + key * p.v_row + d]);
            for (var i = 0u; i < SIDE; i++) {
                result[d][i] += scores[i] * value;
            }
        }
    }
    for (var i = 0u; i < SIDE; i++) {
        let query = first + i;
        if query < p.s {
            let row = p.y + ((image * p.s + query) * p.heads + head) * HEAD;
            for (var d = 0u; d < HEAD; d++) {
                y[row + d] = S(result[d][i] / sums[i]);
            }
        }
    }
}
