// As attention.wgsl in f16, by cooperative matrices of `SIDE` x `SIDE`: a subgroup of `LANES` threads has `SIDE` queries of one head. The
// channels of a head are padded with zeros to `WIDE`. Scores pass through workgroup memory, where threads have rows. The result is
// scaled only if the largest score of a row has grown by more than 2^8 (as in FlashAttention-4): weights up to 256 are exact enough
// in f16. Channels of heads and all offsets are multiples of eight. Variables in workgroup memory have multiples of 16 bytes, because
// matrices must begin at such.

@group(0) @binding(0) var<storage, read> q: array<vec4<S>>;
@group(0) @binding(1) var<storage, read> k: array<vec4<S>>;
@group(0) @binding(2) var<storage, read> v: array<vec4<S>>;
@group(0) @binding(5) var<storage, read_write> y: array<vec4<S>>;

// Threads of a query.
const SHARE: u32 = LANES / SIDE;
const THREADS: u32 = QUERIES * SHARE;
// Chunks of eight channels: of a row, and those that are not padding.
const CHUNKS: u32 = WIDE / 8u;
const FULL: u32 = HEAD / 8u;
// Chunks of a row of queries that are staged at once.
const QUERY_CHUNKS: u32 = KEYS / 8u;
// Vectors of rows in workgroup memory, with padding against conflicts of banks.
const ROW: u32 = WIDE / 4u + 2u;
const KEY_ROW: u32 = KEYS / 4u + 2u;
const LOG2_E: f32 = 1.4426950408889634;
const GROWTH: f32 = 8.0;

var<workgroup> tile_k: array<vec4<S>, KEYS * ROW>;
var<workgroup> tile_v: array<vec4<S>, KEYS * ROW>;
var<workgroup> scores: array<vec4f, QUERIES * KEY_ROW>;
var<workgroup> weights: array<vec4<S>, QUERIES * KEY_ROW>;
var<workgroup> grows: vec4u;

// The next keys and values.
var<private> next_k: array<vec4<S>, LOADS * 2u>;
var<private> next_v: array<vec4<S>, LOADS * 2u>;

// Reads this thread's chunks of the keys and values from `start` on; zeros from `keys` on.
fn fetch(lane: u32, start: u32, keys: u32, at_k: u32, at_v: u32) {
    /*unroll*/ for (var i = 0u; i < LOADS; i++) {
        let at = lane + i * THREADS;
        let key = start + at / CHUNKS;
        let chunk = at % CHUNKS;
        next_k[i * 2u] = vec4<S>();
        next_k[i * 2u + 1u] = vec4<S>();
        next_v[i * 2u] = vec4<S>();
        next_v[i * 2u + 1u] = vec4<S>();
        if key < keys && chunk < FULL {
            let from_k = (at_k + key * p.k_row / 8u + chunk) * 2u;
            let from_v = (at_v + key * p.v_row / 8u + chunk) * 2u;
            next_k[i * 2u] = k[from_k];
            next_k[i * 2u + 1u] = k[from_k + 1u];
            next_v[i * 2u] = v[from_v];
            next_v[i * 2u + 1u] = v[from_v + 1u];
        }
    }
}

// Scores of four keys from `key` on of a query, with the bias, and `LEAST` for those that are not seen.
fn limited(found: vec4f, image: u32, head: u32, query: u32, key: u32, keys: u32) -> vec4f {
    var result = found;
    for (var e = 0u; e < 4u; e++) {
        let at = min(key + e, p.t - 1u);
        if HAS_BIAS {
            let row = (head * p.s + min(query, p.s - 1u)) * p.t;
            result[e] += f32(bias[p.bias + image * p.bias_image + row + at]) * LOG2_E;
        }
        var is_seen = key + e < keys;
        if CAUSAL {
            is_seen = is_seen && key + e <= query;
        }
        result[e] = select(LEAST, result[e], is_seen);
    }
    return result;
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
    let first = (p.first + group.x) * QUERIES;
    let head = group.y;
    let image = group.z;
    let at_q = (p.q + image * p.q_image + head * HEAD) / 8u;
    let at_k = (p.k + image * p.k_image + head / p.share * HEAD) / 8u;
    let at_v = (p.v + image * p.v_image + head / p.share * HEAD) / 8u;
    let keys = keys_of(image, first, QUERIES);
    // The query of this thread, its part of the keys, and the first query of its subgroup.
    let row = lane / SHARE;
    let place = lane % SHARE;
    let sub_row = lane / LANES * SIDE;
    var queries: array<MatrixA, MATRICES_OF_HEAD>;
    /*unroll*/ for (var part = 0u; part < PARTS; part++) {
        for (var at = lane; at < QUERIES * QUERY_CHUNKS; at += THREADS) {
            let chunk = part * QUERY_CHUNKS + at % QUERY_CHUNKS;
            let to = at / QUERY_CHUNKS * KEY_ROW + at % QUERY_CHUNKS * 2u;
            weights[to] = vec4<S>();
            weights[to + 1u] = vec4<S>();
            if chunk < FULL {
                let source = (at_q + min(first + at / QUERY_CHUNKS, p.s - 1u) * p.q_row / 8u + chunk) * 2u;
                weights[to] = q[source];
                weights[to + 1u] = q[source + 1u];
            }
        }
        workgroupBarrier();
        /*unroll*/ for (var j = 0u; j < MATRICES_OF_KEYS; j++) {
            if part * MATRICES_OF_KEYS + j < MATRICES_OF_HEAD {
                let at = min(part * MATRICES_OF_KEYS + j, MATRICES_OF_HEAD - 1u);
                queries[at] = coopLoadT<MatrixA>(&weights[sub_row * KEY_ROW + j * SIDE / 4u], KEY_ROW);
            }
        }
        workgroupBarrier();
    }
    fetch(lane, 0u, keys, at_k, at_v);
    var result: array<MatrixC, MATRICES_OF_HEAD>;
    var most = LEAST;
    var sum = 0.0;
    for (var start = 0u; start < keys; start += KEYS) {
        workgroupBarrier();
        /*unroll*/ for (var i = 0u; i < LOADS; i++) {
            let at = lane + i * THREADS;
            if at < KEYS * CHUNKS {
                let to = at / CHUNKS * ROW + at % CHUNKS * 2u;
                tile_k[to] = next_k[i * 2u];
                tile_k[to + 1u] = next_k[i * 2u + 1u];
                tile_v[to] = next_v[i * 2u];
                tile_v[to + 1u] = next_v[i * 2u + 1u];
            }
        }
        if lane == 0u {
            grows = vec4u();
        }
        workgroupBarrier();
        fetch(lane, start + KEYS, keys, at_k, at_v);
        /*unroll*/ for (var j = 0u; j < MATRICES_OF_KEYS; j++) {
            var score: MatrixC;
            /*unroll*/ for (var d = 0u; d < MATRICES_OF_HEAD; d++) {
                let columns = coopLoad<MatrixB>(&tile_k[j * SIDE * ROW + d * SIDE / 4u], ROW);
                score = coopMultiplyAdd(queries[d], columns, score);
            }
            coopStoreT(score, &scores[sub_row * KEY_ROW + j * SIDE / 4u], KEY_ROW);
        }
        workgroupBarrier();
        // In units of the binary logarithm.
        var own: array<vec4f, VECTORS>;
        var largest = LEAST;
        let is_limited = HAS_BIAS || CAUSAL || start + KEYS > keys;
        /*unroll*/ for (var i = 0u; i < VECTORS; i++) {
            let at = i * SHARE + place;
            own[i] = scores[row * KEY_ROW + at] * (p.scale * LOG2_E);
            if is_limited {
                own[i] = limited(own[i], image, head, first + row, start + at * 4u, keys);
            }
            largest = max(largest, max(max(own[i].x, own[i].y), max(own[i].z, own[i].w)));
        }
        for (var step = 1u; step < SHARE; step *= 2u) {
            largest = max(largest, subgroupShuffleXor(largest, step));
        }
        if largest > most + GROWTH {
            grows = vec4u(1u);
        }
        if workgroupUniformLoad(&grows).x != 0u {
            let more = max(most, largest);
            let factor = exp2(most - more);
            most = more;
            sum *= factor;
            /*unroll*/ for (var part = 0u; part < PARTS; part++) {
                /*unroll*/ for (var j = 0u; j < MATRICES_OF_KEYS; j++) {
                    if part * MATRICES_OF_KEYS + j < MATRICES_OF_HEAD {
                        let at = min(part * MATRICES_OF_KEYS + j, MATRICES_OF_HEAD - 1u);
                        coopStoreT(result[at], &scores[sub_row * KEY_ROW + j * SIDE / 4u], KEY_ROW);
                    }
                }
                workgroupBarrier();
                /*unroll*/ for (var i = 0u; i < VECTORS; i++) {
                    scores[row * KEY_ROW + i * SHARE + place] *= factor;
                }
                workgroupBarrier();
                /*unroll*/ for (var j = 0u; j < MATRICES_OF_KEYS; j++) {
                    if part * MATRICES_OF_KEYS + j < MATRICES_OF_HEAD {
                        let at = min(part * MATRICES_OF_KEYS + j, MATRICES_OF_HEAD - 1u);
                        result[at] = coopLoadT<MatrixC>(&scores[sub_row * KEY_ROW + j * SIDE / 4u], KEY_ROW);
                    }
                }
                workgroupBarrier();
            }
        }
        /*unroll*/ for (var i = 0u; i < VECTORS; i++) {
            let weight = select(vec4f(), exp2(own[i] - most), own[i] > vec4f(0.5 * LEAST));
            sum += weight.x + weight.y + weight.z + weight.w;
            weights[row * KEY_ROW + i * SHARE + place] = vec4<S>(weight);
        }
        workgroupBarrier();
        /*unroll*/ for (var j = 0u; j < MATRICES_OF_KEYS; j++) {
            let rows = coopLoadT<MatrixA>(&weights[sub_row * KEY_ROW + j * SIDE / 4u], KEY_ROW);
            /*unroll*/ for (var d = 0u; d < MATRICES_OF_HEAD; d++) {
                let columns = coopLoadT<MatrixB>(&tile_v[j * SIDE * ROW + d * SIDE / 4u], ROW);
                result[d] = coopMultiplyAdd(rows, columns, result[d]);
            }
        }
    }
    for (var step = 1u; step < SHARE; step *= 2u) {
        sum += subgroupShuffleXor(sum, step);
    }
    /*unroll*/ for (var part = 0u; part < PARTS; part++) {
        /*unroll*/ for (var j = 0u; j < MATRICES_OF_KEYS; j++) {
            if part * MATRICES_OF_KEYS + j < MATRICES_OF_HEAD {
                let at = min(part * MATRICES_OF_KEYS + j, MATRICES_OF_HEAD - 1u);
                coopStoreT(result[at], &scores[sub_row * KEY_ROW + j * SIDE / 4u], KEY_ROW);
            }
        }
        workgroupBarrier();
        /*unroll*/ for (var i = 0u; i < VECTORS; i++) {
            let channel = part * KEYS + (i * SHARE + place) * 4u;
            if first + row < p.s && channel < HEAD {
                let to = ((image * p.s + first + row) * p.heads + head) * HEAD + channel;
                y[(p.y + to) / 4u] = vec4<S>(scores[row * KEY_ROW + i * SHARE + place] / sum);
            }
        }
        workgroupBarrier();
    }
}
