// Sums and maxima over the threads of a workgroup, of which there are `THREADS`, in shares of `SHARE` neighbors. Both are powers of two.

var<workgroup> parts: array<f32, THREADS>;

// The sum of the values of this thread's share.
fn total(lane: u32, value: f32) -> f32 {
    parts[lane] = value;
    workgroupBarrier();
    for (var half = SHARE / 2u; half > 0u; half /= 2u) {
        if lane % SHARE < half {
            parts[lane] += parts[lane + half];
        }
        workgroupBarrier();
    }
    let sum = parts[lane / SHARE * SHARE];
    workgroupBarrier();
    return sum;
}


// The maximum of the values of all threads, if `SHARE` is their number.
fn maximum(lane: u32, value: f32) -> f32 {
    parts[lane] = value;
    workgroupBarrier();
    for (var half = SHARE / 2u; half > 0u; half /= 2u) {
        if lane % SHARE < half {
            parts[lane] = max(parts[lane], parts[lane + half]);
        }
        workgroupBarrier();
    }
    let found = parts[lane / SHARE * SHARE];
    workgroupBarrier();
    return found;
}
