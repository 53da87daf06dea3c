// Attention over tiles of keys with a running softmax in f32 (Dao et al., arXiv 2205.14135). A workgroup has 16 queries of one head.
// `PART` is the number of channels of a thread.

@group(0) @binding(0) var<storage, read> q: array<S>;
@group(0) @binding(1) var<storage, read> k: array<S>;
@group(0) @binding(2) var<storage, read> v: array<S>;
@group(0) @binding(5) var<storage, read_write> y: array<S>;

const QUERIES: u32 = 16u;
const KEYS: u32 = 32u;
const DEPTH: u32 = 32u;

var<workgroup> tile_q: array<f32, 528>;
var<workgroup> tile_k: array<f32, 1056>;
var<workgroup> scores: array<f32, 528>;
var<workgroup> largest: array<f32, 16>;
var<workgroup> sums: array<f32, 16>;
var<workgroup> factors: array<f32, 16>;

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
    let first = (p.first + group.x) * QUERIES;
    let head = group.y;
    let image = group.z;
    let at_q = p.q + image * p.q_image + head * HEAD;
    let at_k = p.k + image * p.k_image + head / p.share * HEAD;
    let at_v = p.v + image * p.v_image + head / p.share * HEAD;
    // This thread's query, and its place among the eight threads of the query.
    let query = lane / 8u;
    let place = lane % 8u;
    let keys = keys_of(image, first, QUERIES);
    if lane < QUERIES {
        largest[lane] = LEAST;
        sums[lane] = 0.0;
    }
    var result: array<f32, PART>;
    for (var start = 0u; start < keys; start += KEYS) {
        var score: array<f32, 4>;
        for (var depth = 0u; depth < HEAD; depth += DEPTH) {
            for (var i = lane; i < QUERIES * DEPTH; i += 128u) {
                let row = first + i / DEPTH;
                let channel = depth + i % DEPTH;
                var value = 0.0;
                if row < p.s && channel < HEAD {
                    value = f32(q[at_q + row * p.q_row + channel]);
                }
                tile_q[i / DEPTH * 33u + i % DEPTH] = value;
            }
            for (var i = lane; i < KEYS * DEPTH; i += 128u) {
                let row = start + i / DEPTH;
                let channel = depth + i % DEPTH;
                var value = 0.0;
                if row < keys && channel < HEAD {
                    value = f32(k[at_k + row * p.k_row + channel]);
                }
                tile_k[i / DEPTH * 33u + i % DEPTH] = value;
            }
            workgroupBarrier();
            for (var d = 0u; d < DEPTH; d++) {
                let value = tile_q[query * 33u + d];
                /*unroll*/ for (var i = 0u; i < 4u; i++) {
                    score[i] += value * tile_k[(place + i * 8u) * 33u + d];
                }
            }
            workgroupBarrier();
        }
        /*unroll*/ for (var i = 0u; i < 4u; i++) {
            let key = start + place + i * 8u;
            var value = score[i] * p.scale;
            if HAS_BIAS && key < keys && first + query < p.s {
                let row = (head * p.s + first + query) * p.t;
                value += f32(bias[p.bias + image * p.bias_image + row + key]);
            }
            var is_seen = key < keys;
            if CAUSAL {
                is_seen = is_seen && key <= first + query;
            }
            if HAS_SEEN {
                is_seen = is_seen && limits[p.limits + image * p.t + min(key, p.t - 1u)] > 0.5;
            }
            scores[query * 33u + place + i * 8u] = select(LEAST, value, is_seen);
        }
        workgroupBarrier();
        if lane < QUERIES {
            var most = largest[lane];
            for (var i = 0u; i < KEYS; i++) {
                most = max(most, scores[lane * 33u + i]);
            }
            let factor = exp(largest[lane] - most);
            var sum = sums[lane] * factor;
            for (var i = 0u; i < KEYS; i++) {
                let score = scores[lane * 33u + i];
                let weight = select(0.0, exp(score - most), score > 0.5 * LEAST);
                scores[lane * 33u + i] = weight;
                sum += weight;
            }
            largest[lane] = most;
            sums[lane] = sum;
            factors[lane] = factor;
        }
        workgroupBarrier();
        let factor = factors[query];
        /*unroll*/ for (var i = 0u; i < PART; i++) {
            result[i] *= factor;
        }
        for (var key = 0u; key < min(KEYS, keys - start); key++) {
            let weight = scores[query * 33u + key];
            let row = at_v + (start + key) * p.v_row;
            /*unroll*/ for (var i = 0u; i < PART; i++) {
                let channel = place + i * 8u;
                if HEAD % 8u == 0u || channel < HEAD {
                    result[i] += weight * f32(v[row + channel]);
                }
            }
        }
        workgroupBarrier();
    }
    if first + query < p.s {
        let sum = sums[query];
        let row = p.y + ((image * p.s + first + query) * p.heads + head) * HEAD;
        /*unroll*/ for (var i = 0u; i < PART; i++) {
            let channel = place + i * 8u;
            if channel < HEAD {
                y[row + channel] = S(result[i] / sum);
            }
        }
    }
}
