// y = function(gate) value for rows of n vectors of gates and n of values, which may lie in one row. Sizes and offsets are in vectors.

struct Params {
    count: u32,
    n: u32,
    gate: u32,
    gate_row: u32,
    value: u32,
    value_row: u32,
    y: u32,
}

@group(0) @binding(0) var<storage, read> gate: array<E>;
@group(0) @binding(1) var<storage, read> value: array<E>;
@group(0) @binding(2) var<storage, read_write> y: array<E>;
var<immediate> p: Params;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) groups: vec3u, @builtin(local_invocation_index) lane: u32) {
    let i = (group.y * groups.x + group.x) * 256u + lane;
    if i >= p.count {
        return;
    }
    let row = i / p.n;
    let column = i % p.n;
    let g = F(gate[p.gate + row * p.gate_row + column]);
    let v = F(value[p.value + row * p.value_row + column]);
    y[p.y + i] = E(each(g) * v);
}
