use super::*;
use crate::test_support::{TARGET, assert_close, exact, random, random_into};

/// `(b, s, t, num_heads, head_dim)`.
type Case = (usize, usize, usize, usize, usize);

/// Runs a case on operands from `operands`, with and without the mask where that is possible, and compares.
fn agrees((b, s, t, num_heads, head_dim): Case, operands: impl Fn() -> [Tensor; 3]) {
    let c = num_heads * head_dim;
    for causal in [false, true] {
        if causal && s != t {
            continue;
        }
        let [q, k, v] = operands();
        let config = Attention { num_heads, causal };
        let shapes = Shapes { b, s, t, c, head_dim };
        let expected = reference::forward([&exact(&q), &exact(&k), &exact(&v)], None, config, shapes).unwrap();
        let run = |out: Option<&Tensor>| attention(&q, &k, &v, config, out).unwrap();
        assert_close(&run(None), &expected, 1e-5);
        random_into(&expected, |out| run(Some(out)), 1e-5);
    }
}

#[test]
fn kernel_agrees_with_the_reference() {
    // head sizes 8 to 512, lengths that no block size divides, and more keys than a kernel keeps at once
    let short = [(1, 1, 1, 1, 8), (2, 63, 77, 4, 40), (1, 130, 130, 2, 64), (2, 9, 154, 3, 24), (1, 70, 70, 1, 512)];
    let long = [(1, 200, 1000, 2, 40), (2, 300, 700, 1, 64), (1, 65, 500, 2, 80), (1, 100, 400, 2, 160)];
    let prompt =
        [(2, 200, 77, 2, 64), (1, 129, 80, 3, 80), (2, 64, 77, 2, 160), (1, 130, 154, 2, 120), (1, 9, 70, 1, 256)];
    // Few blocks, and so many that three groups a block need fewer rounds on a GPU with 132 multiprocessors.
    let blocks = [(2, 300, 700, 1, 128), (1, 70, 77, 2, 128), (1, 190, 130, 67, 128)];
    for case in short.into_iter().chain(long).chain(prompt).chain(blocks) {
        let (b, s, t, num_heads, head_dim) = case;
        let c = num_heads * head_dim;
        agrees(case, || [random(&[b, s, c]), random(&[b, t, c]), random(&[b, t, c])]);
    }
}

/// Into a result that exists: an allocation would give the thread the GPU's context.
#[test]
#[ignore = "needs a GPU: KILN_TEST_DEVICE=cuda"]
fn runs_on_a_new_thread() {
    let [q, k, v, out] = [(); 4].map(|()| random(&[2, 130, 128]));
    let run = |out: Option<&Tensor>| attention(&q, &k, &v, Attention { num_heads: 2, causal: false }, out).unwrap();
    let expected = exact(&run(None));
    std::thread::scope(|scope| {
        scope.spawn(|| run(Some(&out)));
    });
    assert_close(&out, &expected, 0.0);
}

#[test]
fn operands_may_be_slices() {
    for case in [(2, 70, 70, 2, 40), (2, 96, 96, 3, 64), (2, 130, 130, 2, 128), (1, 33, 33, 2, 20)] {
        let (b, s, _, num_heads, head_dim) = case;
        let c = num_heads * head_dim;
        let slices = |packed: Tensor| [0, c, 2 * c].map(|start| packed.narrow(2, start, c).unwrap());
        agrees(case, || slices(random(&[b, s, 3 * c])));
    }
    let shared = |x: Tensor| x.broadcast_as((2, 70, 80)).unwrap();
    agrees((2, 50, 70, 2, 40), || [random(&[2, 50, 80]), shared(random(&[1, 70, 80])), shared(random(&[1, 70, 80]))]);
}

#[test]
fn refuses_heads_that_do_not_divide() {
    let x = random(&[1, 2, 6]);
    let error = attention(&x, &x, &x, Attention { num_heads: 4, causal: false }, None).unwrap_err();
    assert_eq!(error.to_string(), "attention: 4 heads do not divide 6 channels");
}

#[test]
fn masked_keys_have_no_effect() {
    let (q, k, v) = (random(&[1, 5, 16]), random(&[1, 6, 16]), random(&[1, 6, 16]));
    let config = Attention { num_heads: 2, causal: false };
    let seen = Tensor::new(&[[1f32, 0., 1., 1., 0., 1.]], &TARGET.0).unwrap();
    let left = Tensor::new(&[0u32, 2, 3, 5], &Device::Cpu).unwrap(); // the device of `exact`
    let [fewer_k, fewer_v] = [&k, &v].map(|x| exact(x).index_select(&left, 1).unwrap());
    let expected = attention(&exact(&q), &fewer_k, &fewer_v, config, None).unwrap();
    assert_close(&attention_masked(&q, &k, &v, &seen, config).unwrap(), &expected, 1e-5);
}

/// `(b, s, t, num_heads, num_kv_heads, head_dim, causal)`.
type Grouped = (usize, usize, usize, usize, usize, usize, bool);

/// Runs a case with every combination of bias, lengths and factor, and compares.
fn grouped_agrees((b, s, t, num_heads, num_kv_heads, head_dim, causal): Grouped) {
    let (q, k) = (random(&[b, s, num_heads * head_dim]), random(&[b, t, num_kv_heads * head_dim]));
    let v = random(&[b, t, num_kv_heads * head_dim]);
    let biases = [random(&[1, num_heads, s, t]), random(&[b, num_heads, s, t])];
    let lengths: Vec<f32> = (0..b).map(|i| [t as f32 * 0.6, 1.0, t as f32 + 9.0, 0.0][i % 4].floor()).collect();
    let lengths = Tensor::new(&lengths[..], &Device::Cpu).unwrap().to_device(&TARGET.0).unwrap();
    for bias in [None, Some(&biases[0]), Some(&biases[1])] {
        for lengths in [None, Some(&lengths)] {
            for scale in [None, Some(0.3)] {
                let config = GroupedAttention { num_heads, num_kv_heads, causal, scale };
                let run = |out: Option<&Tensor>| {
                    let op = GroupedAttentionOp { q: &q, k: &k, v: &v, bias, lengths, config };
                    grouped_attention(op, out).unwrap()
                };
                let operands = [exact(&q), exact(&k), exact(&v)];
                let [exact_bias, exact_lengths] = [bias, lengths].map(|x| x.map(exact));
                let call = Call {
                    q: &operands[0],
                    k: &operands[1],
                    v: &operands[2],
                    mask: Mask { bias: exact_bias.as_ref(), lengths: exact_lengths.as_ref() },
                    form: Form::grouped(config, head_dim),
                    shapes: Shapes { b, s, t, c: num_heads * head_dim, head_dim },
                };
                let expected = reference::grouped(&call, config).unwrap();
                assert_close(&run(None), &expected, 1e-5);
                random_into(&expected, |out| run(Some(out)), 1e-5);
            }
        }
    }
}

#[test]
fn groups_biases_and_lengths_agree_with_the_reference() {
    for case in [
        (1, 1, 1, 1, 1, 8, false),
        (4, 70, 70, 4, 2, 40, true),
        (2, 33, 154, 6, 2, 64, false),
        (3, 130, 130, 3, 3, 64, false),
        (2, 200, 200, 4, 1, 128, true),
        (4, 9, 300, 2, 2, 20, false),
        // Fewer keys than a tile has, and several tiles.
        (2, 60, 60, 2, 2, 40, false),
        (3, 330, 330, 2, 2, 64, false),
        (4, 200, 420, 2, 2, 128, false),
    ] {
        grouped_agrees(case);
    }
}

/// Heads of keys serve neighboring heads of queries, in order.
#[test]
fn groups_are_repeated_heads() {
    let (q, k, v) = (random(&[1, 5, 32]), random(&[1, 6, 16]), random(&[1, 6, 16]));
    let config = GroupedAttention { num_heads: 4, num_kv_heads: 2, causal: false, scale: None };
    let found = grouped_attention(GroupedAttentionOp { q: &q, k: &k, v: &v, bias: None, lengths: None, config }, None);
    let repeat = |x: &Tensor| {
        let heads = [0, 0, 8, 8].map(|start| exact(x).narrow(2, start, 8).unwrap());
        Tensor::cat(&heads, 2).unwrap()
    };
    let plain = Attention { num_heads: 4, causal: false };
    let expected = attention(&exact(&q), &repeat(&k), &repeat(&v), plain, None).unwrap();
    assert_close(&found.unwrap(), &expected, 1e-5);
}

#[test]
fn refuses_groups_biases_and_lengths_that_do_not_fit() {
    let (q, k) = (random(&[2, 3, 12]), random(&[2, 3, 8]));
    let message = |num_kv_heads, bias: Option<&Tensor>, lengths: Option<&Tensor>| {
        let config = GroupedAttention { num_heads: 3, num_kv_heads, causal: false, scale: None };
        let op = GroupedAttentionOp { q: &q, k: &k, v: &k, bias, lengths, config };
        grouped_attention(op, None).unwrap_err().to_string()
    };
    assert_eq!(message(2, None, None), "attention: 2 heads of keys do not divide 3 heads of queries");
    assert_eq!(message(1, None, None), "attention: k has shape [2, 3, 8], expected [2, 3, 4]");
    let k4 = random(&[2, 3, 4]);
    let fits = |bias: Option<&Tensor>, lengths: Option<&Tensor>| {
        let config = GroupedAttention { num_heads: 3, num_kv_heads: 1, causal: false, scale: None };
        grouped_attention(GroupedAttentionOp { q: &q, k: &k4, v: &k4, bias, lengths, config }, None)
    };
    assert!(fits(Some(&random(&[3, 3, 3])), None).is_err() && fits(None, Some(&random(&[3]))).is_err());
    assert!(matches!(
        fits(None, Some(&Tensor::new(&[1u32, 2], &Device::Cpu).unwrap())),
        Err(Error::DType { operand: "lengths", .. })
    ));
}
