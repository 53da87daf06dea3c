// The place of element `i` in five dimensions, whose last four have the sizes `d`.
fn coordinates(i: u32, d: vec4u) -> array<u32, 5> {
    let i4 = i % d.w;
    var rest = i / d.w;
    let i3 = rest % d.z;
    rest /= d.z;
    let i2 = rest % d.y;
    rest /= d.y;
    return array<u32, 5>(rest / d.x, rest % d.x, i2, i3, i4);
}

