use super::*;
use crate::test_support::{assert_close, exact, random, random_into};

#[test]
fn kernel_agrees_with_the_reference() {
    // (b, s, t, num_heads, head_dim): head sizes 8 to 512, lengths that no block divides
    let cases = [(1, 1, 1, 1, 8), (2, 63, 77, 4, 40), (1, 130, 130, 2, 64), (2, 9, 154, 3, 24), (1, 70, 70, 1, 512)];
    for (b, s, t, num_heads, head_dim) in cases {
        let c = num_heads * head_dim;
        let (q, k, v) = (random(&[b, s, c]), random(&[b, t, c]), random(&[b, t, c]));
        for causal in [false, true] {
            if causal && s != t {
                continue;
            }
            let config = Attention { num_heads, causal };
            let shapes = Shapes { b, s, t, c, head_dim };
            let expected = reference::forward(&exact(&q), &exact(&k), &exact(&v), config, shapes).unwrap();
            let run = |out: Option<&Tensor>| attention(&q, &k, &v, config, out).unwrap();
            assert_close(&run(None), &expected, 1e-5);
            random_into(&expected, |out| run(Some(out)), 1e-5);
        }
    }
}

#[test]
fn refuses_heads_that_do_not_divide() {
    let x = random(&[1, 2, 6]);
    let error = attention(&x, &x, &x, Attention { num_heads: 4, causal: false }, None).unwrap_err();
    assert_eq!(error.to_string(), "attention: 4 heads do not divide 6 channels");
}
