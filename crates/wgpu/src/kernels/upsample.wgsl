// Nearest-neighbor upsampling of (b, h, w, c). The index is computed in f32, as PyTorch does.

struct Params {
    count: u32,
    h: u32,
    w: u32,
    c: u32,
    h_out: u32,
    w_out: u32,
    x: u32,
    y: u32,
}

@group(0) @binding(0) var<storage, read> x: array<S>;
@group(0) @binding(1) var<storage, read_write> y: array<S>;
var<immediate> p: Params;

fn source(i: u32, size: u32, size_out: u32) -> u32 {
    return min(u32(floor(f32(i) * (f32(size) / f32(size_out)))), size - 1u);
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) groups: vec3u, @builtin(local_invocation_index) lane: u32) {
    let i = (group.y * groups.x + group.x) * 256u + lane;
    if i >= p.count {
        return;
    }
    let pixel = i / p.c;
    let row = source(pixel / p.w_out % p.h_out, p.h, p.h_out);
    let column = source(pixel % p.w_out, p.w, p.w_out);
    let image = pixel / (p.w_out * p.h_out);
    y[p.y + i] = x[p.x + ((image * p.h + row) * p.w + column) * p.c + i % p.c];
}
