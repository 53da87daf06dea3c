// Functions of one element, as kiln-ops defines them.

// The error function: Abramowitz and Stegun 7.1.26, whose error is below 1.5e-7.
fn erf(x: f32) -> f32 {
    let t = 1.0 / (1.0 + 0.3275911 * abs(x));
    let sum = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t;
    return sign(x) * (1.0 - sum * exp(-x * x));
}

// tanh overflows for large arguments on some devices.
fn bounded_tanh(x: f32) -> f32 {
    return tanh(clamp(x, -15.0, 15.0));
}

fn silu(x: f32) -> f32 {
    return x / (1.0 + exp(-x));
}

fn quick_gelu(x: f32) -> f32 {
    return x / (1.0 + exp(-1.702 * x));
}

fn gelu_erf(x: f32) -> f32 {
    return 0.5 * x * (1.0 + erf(x * 0.7071067811865476));
}

fn gelu_tanh(x: f32) -> f32 {
    return 0.5 * x * (1.0 + bounded_tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

fn relu(x: f32) -> f32 {
    return max(x, 0.0);
}
