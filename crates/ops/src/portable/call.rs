//! Operators as one type, for back ends that choose kernels by it.

use crate::activated_linear::ActivatedLinearOp;
use crate::activation::ActivationOp;
use crate::attention::{AttentionOp, AttentionReceivedOp, GroupedAttentionOp, MaskedAttentionOp};
use crate::change_sums::ChangeSumsOp;
use crate::concat::ConcatOp;
use crate::conv2d::{Conv2dOp, FusedConv2dOp};
use crate::gated_activation::GatedActivationOp;
use crate::gated_residual::GatedResidualOp;
use crate::geglu::GegluOp;
use crate::group_norm::{GroupNormApplyOp, GroupNormOp};
use crate::guidance::GuidanceOp;
use crate::layer_norm::LayerNormOp;
use crate::layout::LayoutOp;
use crate::linear::LinearOp;
use crate::linear_geglu::LinearGegluOp;
use crate::modulated_norm::ModulatedNormOp;
use crate::operation::Operand;
use crate::pixel_shuffle::PixelShuffleOp;
use crate::primitives::{BinaryOp, IndexSelectOp, MapOp, PremultiplyOp, ReduceOp};
use crate::rope::RopeOp;
use crate::timestep_embedding::TimestepEmbeddingOp;
use crate::upsample_nearest::UpsampleOp;
use crate::w8a8::{ActivationLinearOp, GegluLinearOp, NormedConv2dOp, NormedLinearOp};

/// Makes the enum, and the names of its operators.
macro_rules! calls {
    ($($call:ident($operation:ident): $name:literal,)*) => {
        /// An operator with its operands and options.
        #[non_exhaustive]
        pub enum Call<'a, T: Operand> {
            $(
                #[doc = concat!("[`", stringify!($operation), "`].")]
                $call(&'a $operation<'a, T>),
            )*
        }

        impl<T: Operand> Call<'_, T> {
            /// The operator's name.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$call(_) => $name,)*
                }
            }
        }
    };
}

calls! {
    ActivatedLinear(ActivatedLinearOp): "activated_linear",
    Activation(ActivationOp): "activation",
    ActivationLinear(ActivationLinearOp): "activation_linear",
    Attention(AttentionOp): "attention",
    AttentionReceived(AttentionReceivedOp): "attention_received",
    Binary(BinaryOp): "arithmetic",
    ChangeSums(ChangeSumsOp): "change_sums",
    Concat(ConcatOp): "concat_channels",
    Conv2d(Conv2dOp): "conv2d",
    FusedConv2d(FusedConv2dOp): "fused_conv2d",
    GatedActivation(GatedActivationOp): "gated_activation",
    GatedResidual(GatedResidualOp): "gated_residual",
    Geglu(GegluOp): "geglu",
    GegluLinear(GegluLinearOp): "geglu_linear",
    GroupNorm(GroupNormOp): "group_norm",
    GroupNormApply(GroupNormApplyOp): "group_norm_apply",
    GroupedAttention(GroupedAttentionOp): "grouped_attention",
    Guidance(GuidanceOp): "guidance",
    IndexSelect(IndexSelectOp): "index_select",
    LayerNorm(LayerNormOp): "layer_norm",
    Layout(LayoutOp): "layout",
    Linear(LinearOp): "linear",
    LinearGeglu(LinearGegluOp): "linear_geglu",
    Map(MapOp): "map",
    MaskedAttention(MaskedAttentionOp): "attention_masked",
    ModulatedNorm(ModulatedNormOp): "modulated_norm",
    NormedConv2d(NormedConv2dOp): "normed_conv2d",
    NormedLinear(NormedLinearOp): "normed_linear",
    PixelShuffle(PixelShuffleOp): "pixel_shuffle",
    Premultiply(PremultiplyOp): "premultiplied",
    Reduce(ReduceOp): "reduce",
    Rope(RopeOp): "rope",
    TimestepEmbedding(TimestepEmbeddingOp): "timestep_embedding",
    Upsample(UpsampleOp): "upsample_nearest",
}
