//! From the features of an image to the tokens that the U-Net attends to.

use kiln_nn::ops::{self, Activation};
use kiln_nn::{LayerNorm, Linear, Result, TensorLike};
use kiln_weights::{Packing, Param, SegmentModule, Segments};

use super::config::{FACE_RESAMPLER, PLUS_RESAMPLER, Projection, ResamplerConfig};

/// The epsilon of all normalizations: PyTorch's.
const EPS: f64 = 1e-5;

/// The network of a [`Projection`].
pub(super) enum ProjectionNet {
    Plain(SegmentModule<Plain>),
    Full(SegmentModule<Full>),
    Plus { latents: SegmentModule<Param>, resampler: Resampler, shape: [usize; 2] },
    Face(SegmentModule<Face>),
    FacePlus(SegmentModule<Face>, Resampler),
}

/// A linear layer and a normalization (`ImageProjModel` of the authors' `ip_adapter.py`).
pub(super) struct Plain {
    proj: Linear,
    norm: LayerNorm,
    tokens: usize,
}

/// Two linear layers and a normalization, for each token (`MLPProjModel`).
pub(super) struct Full {
    first: Linear,
    second: Linear,
    norm: LayerNorm,
}

/// Two linear layers and a normalization, for a vector (`MLPProjModel` of `ip_adapter_faceid.py`).
pub(super) struct Face {
    first: Linear,
    second: Linear,
    norm: LayerNorm,
    tokens: usize,
}

/// A perceiver resampler (`Resampler` of the authors' `resampler.py`).
pub(super) struct Resampler {
    proj_in: SegmentModule<Linear>,
    layers: Vec<SegmentModule<Layer>>,
    head: SegmentModule<Head>,
}

/// Attention of the queries to the encoder's tokens and to themselves, then a feed-forward block.
struct Layer {
    norm1: LayerNorm,
    norm2: LayerNorm,
    to_q: Linear,
    to_kv: Linear,
    to_out: Linear,
    norm: LayerNorm,
    first: Linear,
    second: Linear,
    op: ops::Attention,
}

struct Head {
    proj_out: Linear,
    norm_out: LayerNorm,
}

impl ProjectionNet {
    /// Declares the segments of `projection` to tokens of `context_dim` channels.
    pub(super) fn new(segments: &mut Segments, projection: &Projection, context_dim: usize) -> Self {
        let face = |segments: &mut Segments, config: super::FaceConfig| {
            segments.add("image_proj", |root| Face {
                first: Linear::new(&root.pp("image_proj.proj.0"), config.embed_dim, config.inner, true),
                second: Linear::new(&root.pp("image_proj.proj.2"), config.inner, config.tokens * context_dim, true),
                norm: LayerNorm::new(&root.pp("image_proj.norm"), context_dim, EPS),
                tokens: config.tokens,
            })
        };
        match *projection {
            Projection::Plain { embed_dim, tokens } => Self::Plain(segments.add("image_proj", |root| Plain {
                proj: Linear::new(&root.pp("image_proj.proj"), embed_dim, tokens * context_dim, true),
                norm: LayerNorm::new(&root.pp("image_proj.norm"), context_dim, EPS),
                tokens,
            })),
            Projection::Full { embed_dim, inner } => Self::Full(segments.add("image_proj", |root| Full {
                first: Linear::new(&root.pp("image_proj.proj.0"), embed_dim, inner, true),
                second: Linear::new(&root.pp("image_proj.proj.2"), inner, context_dim, true),
                norm: LayerNorm::new(&root.pp("image_proj.proj.3"), context_dim, EPS),
            })),
            Projection::Plus(config) => {
                let shape = [config.queries, config.hidden];
                let latents = segments.add("image_proj.latents", |root| {
                    root.pp("image_proj").param("latents", &[1, shape[0], shape[1]], Packing::AsStored)
                });
                Self::Plus { latents, resampler: Resampler::new(segments, PLUS_RESAMPLER, config, context_dim), shape }
            }
            Projection::Face(config) => Self::Face(face(segments, config)),
            Projection::FacePlus(config, plus) => {
                let face = face(segments, config);
                Self::FacePlus(face, Resampler::new(segments, FACE_RESAMPLER, plus, context_dim))
            }
        }
    }

    /// The tokens `(b, n, context_dim)` of the encoder's features `x`, of the vector `identity` `(b, embed_dim)`, or of both.
    /// `shortcut` adds the tokens of the identity to the resampler's (FaceID Plus v2).
    pub(super) fn forward<T: TensorLike>(&self, x: Option<&T>, identity: Option<&T>, shortcut: bool) -> Result<T> {
        let need = |input: Option<&T>, operand| {
            let missing = || ops::Error::Shape {
                op: "image prompt",
                operand,
                expected: "an input for this IP-Adapter".into(),
                found: Vec::new(),
            };
            input.cloned().ok_or_else(|| kiln_nn::Error::from(missing()))
        };
        match self {
            Self::Plain(plain) => {
                let x = need(x, "features")?;
                T::run(plain, |plain| {
                    let [b, _] = x.size2()?;
                    let y = plain.proj.forward(&x)?;
                    let [_, c] = y.size2()?;
                    plain.norm.forward(&y.reshape(&[b, plain.tokens, c / plain.tokens])?)
                })
            }
            Self::Full(full) => {
                let x = need(x, "features")?;
                T::run(full, |full| {
                    let y = full.first.forward(&x)?.activation(Activation::GeluErf)?;
                    full.norm.forward(&full.second.forward(&y)?)
                })
            }
            Self::Plus { latents, resampler, shape: [queries, hidden] } => {
                let x = need(x, "features")?;
                let [b, ..] = x.size3()?;
                let latents = T::run(latents, |latents| x.param(latents)?.reshape(&[1, *queries, *hidden])?.copy())?;
                let latents = if b == 1 { latents } else { T::cat(&vec![&latents; b], 0)? };
                resampler.forward(&x, latents)
            }
            Self::Face(face) => {
                let identity = need(identity, "identity")?;
                T::run(face, |face| face.forward(&identity))
            }
            Self::FacePlus(face, resampler) => {
                let (x, identity) = (need(x, "features")?, need(identity, "identity")?);
                let tokens = T::run(face, |face| face.forward(&identity))?;
                let y = resampler.forward(&x, tokens.clone())?;
                if shortcut { tokens.add(&y) } else { Ok(y) }
            }
        }
    }
}

impl Face {
    /// `x` `(b, embed_dim)` to `(b, tokens, context_dim)`.
    fn forward<T: TensorLike>(&self, x: &T) -> Result<T> {
        let [b, _] = x.size2()?;
        let y = self.second.forward(&self.first.forward(x)?.activation(Activation::GeluErf)?)?;
        let [_, c] = y.size2()?;
        self.norm.forward(&y.reshape(&[b, self.tokens, c / self.tokens])?)
    }
}

impl Resampler {
    fn new(segments: &mut Segments, name: &str, config: ResamplerConfig, context_dim: usize) -> Self {
        let ResamplerConfig { embed_dim, hidden, heads, inner, feed_forward, depth, .. } = config;
        let proj_in = segments
            .add(format!("{name}.proj_in"), |p| Linear::new(&p.pp(name).pp("proj_in"), embed_dim, hidden, true));
        let layers = (0..depth)
            .map(|i| format!("{name}.layers.{i}"))
            .map(|layer| {
                segments.add(layer.as_str(), |p| {
                    let (attention, ff) = (p.pp(&layer).pp(0), p.pp(&layer).pp(1));
                    Layer {
                        norm1: LayerNorm::new(&attention.pp("norm1"), hidden, EPS),
                        norm2: LayerNorm::new(&attention.pp("norm2"), hidden, EPS),
                        to_q: Linear::new(&attention.pp("to_q"), hidden, inner, false),
                        to_kv: Linear::new(&attention.pp("to_kv"), hidden, 2 * inner, false),
                        to_out: Linear::new(&attention.pp("to_out"), inner, hidden, false),
                        norm: LayerNorm::new(&ff.pp(0), hidden, EPS),
                        first: Linear::new(&ff.pp(1), hidden, feed_forward, false),
                        second: Linear::new(&ff.pp(3), feed_forward, hidden, false),
                        op: ops::Attention { num_heads: heads, causal: false },
                    }
                })
            })
            .collect();
        let head = segments.add(format!("{name}.proj_out"), |p| Head {
            proj_out: Linear::new(&p.pp(name).pp("proj_out"), hidden, context_dim, true),
            norm_out: LayerNorm::new(&p.pp(name).pp("norm_out"), context_dim, EPS),
        });
        Self { proj_in, layers, head }
    }

    /// The encoder's tokens `x` `(b, t, embed_dim)` and the queries `(b, n, hidden)` to `(b, n, context_dim)`.
    fn forward<T: TensorLike>(&self, x: &T, mut queries: T) -> Result<T> {
        let x = T::run(&self.proj_in, |proj| proj.forward(x))?;
        for layer in &self.layers {
            queries = T::run(layer, |layer| layer.forward(&x, &queries))?;
        }
        T::run(&self.head, |head| head.norm_out.forward(&head.proj_out.forward(&queries)?))
    }
}

impl Layer {
    fn forward<T: TensorLike>(&self, x: &T, queries: &T) -> Result<T> {
        let normed = self.norm2.forward(queries)?;
        let q = self.to_q.forward(&normed)?;
        let kv = self.to_kv.forward(&T::cat(&[&self.norm1.forward(x)?, &normed], 1)?)?;
        let [_, _, inner] = q.size3()?;
        let (k, v) = (kv.narrow(2, 0, inner)?.contiguous()?, kv.narrow(2, inner, inner)?.contiguous()?);
        let queries = self.to_out.forward_add(&q.attention(&k, &v, self.op)?, Some(queries))?;
        let hidden = self.first.forward(&self.norm.forward(&queries)?)?.activation(Activation::GeluErf)?;
        self.second.forward_add(&hidden, Some(&queries))
    }
}
