// The sums of |now - before| and of |before| over parts of images: a workgroup has one part.

struct Params {
    // Elements of an image, its parts, and elements of a part.
    image: u32,
    parts: u32,
    part: u32,
    // Parts of all images.
    count: u32,
    now: u32,
    before: u32,
    y: u32,
}

@group(0) @binding(0) var<storage, read> now: array<S>;
@group(0) @binding(1) var<storage, read> before: array<S>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
var<immediate> p: Params;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) groups: vec3u, @builtin(local_invocation_index) lane: u32) {
    let index = group.y * groups.x + group.x;
    // Parts behind the last one are computed like the last one, so that all threads meet the barriers.
    let number = min(index, p.count - 1u);
    let start = number / p.parts * p.image;
    let first = number % p.parts * p.part;
    let end = min(first + p.part, p.image);
    var sums = vec2f();
    for (var i = first + lane; i < end; i += THREADS) {
        let value = f32(before[p.before + start + i]);
        sums += abs(vec2f(f32(now[p.now + start + i]) - value, value));
    }
    let change = total(lane, sums.x);
    let size = total(lane, sums.y);
    if lane == 0u && index < p.count {
        y[p.y + index * 2u] = change;
        y[p.y + index * 2u + 1u] = size;
    }
}
