// Sums and maxima over the threads of a workgroup, of which there are `THREADS`, in shares of `SHARE` neighbors. Both are powers of two.

var<workgroup> parts: array<f32, THREADS>;

// The sum of the values of this thread's share.
fn total(lane: u32, value: f32) -> f32 {
    return folded(lane, value, false);
}

// The largest of the values of this thread's share.
fn maximum(lane: u32, value: f32) -> f32 {
    return folded(lane, value, true);
}

fn folded(lane: u32, value: f32, takes_largest: bool) -> f32 {
    parts[lane] = value;
    workgroupBarrier();
    for (var half = SHARE / 2u; half > 0u; half /= 2u) {
        if lane % SHARE < half {
            let other = parts[lane + half];
            parts[lane] = select(parts[lane] + other, max(parts[lane], other), takes_largest);
        }
        workgroupBarrier();
    }
    let result = parts[lane / SHARE * SHARE];
    workgroupBarrier();
    return result;
}
