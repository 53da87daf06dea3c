// Sums over the threads of a workgroup, of which there are `THREADS`, a power of two.

var<workgroup> parts: array<f32, THREADS>;

fn total(lane: u32, value: f32) -> f32 {
    parts[lane] = value;
    workgroupBarrier();
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        if lane < half {
            parts[lane] += parts[lane + half];
        }
        workgroupBarrier();
    }
    let sum = parts[0];
    workgroupBarrier();
    return sum;
}

