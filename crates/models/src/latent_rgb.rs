//! Linear factors from latents to colors, for previews.

use kiln_families::FamilyRef;
use kiln_vae::VaeConfig;

/// A color for latents: each channel times its row, and the offset. Red, green and blue from -1 to 1.
#[derive(Debug, Clone, PartialEq)]
pub struct LatentRgb {
    /// One row for each channel of the latents.
    pub factors: Vec<[f32; 3]>,
    /// The offset that is added.
    pub offset: [f32; 3],
}

impl LatentRgb {
    /// The factors that a model's own file has: a row for each of `channels`, and perhaps the offset.
    ///
    /// # Errors
    /// A sentence about the number of rows or a value.
    pub(crate) fn from_rows(rows: &[[f32; 3]], channels: usize) -> Result<Self, String> {
        if rows.len() != channels && rows.len() != channels + 1 {
            return Err(format!(
                "`latent_rgb` has {} rows, expected {channels}, or {} with the offset",
                rows.len(),
                channels + 1
            ));
        }
        if rows.iter().flatten().any(|value| !value.is_finite()) {
            return Err("`latent_rgb` has a value that is not a number".into());
        }
        let (factors, offset) = rows.split_at(channels);
        Ok(Self { factors: factors.to_vec(), offset: offset.first().copied().unwrap_or_default() })
    }

    /// The factors of a family's usual autoencoder; `None` for other autoencoders.
    pub(crate) fn of_family(family: FamilyRef, vae: &VaeConfig) -> Option<Self> {
        let colors = family.latent_colors()?;
        let is_usual =
            vae.latent_channels == colors.factors.len() && (vae.scaling_factor - colors.scaling_factor).abs() < 1e-6;
        is_usual.then(|| Self { factors: colors.factors.to_vec(), offset: [0.0; 3] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_belongs_to_each_channel() {
        let rows = [[0.5, 0.25, 0.0]; 3];
        assert_eq!(LatentRgb::from_rows(&rows, 3).unwrap().offset, [0.0; 3]);
        assert_eq!(LatentRgb::from_rows(&rows, 2).unwrap(), LatentRgb { factors: rows[..2].to_vec(), offset: rows[2] });
        assert!(LatentRgb::from_rows(&rows, 4).unwrap_err().contains("has 3 rows, expected 4, or 5"));
        assert!(LatentRgb::from_rows(&[[f32::NAN; 3]], 1).unwrap_err().contains("not a number"));
    }
}
