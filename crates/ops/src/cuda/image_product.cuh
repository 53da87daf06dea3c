// Arguments of the kernels that multiply the windows of images by a weight.
#pragma once

namespace kiln {

// Has the memory layout of `ImageProduct` in image_product.rs.
struct ImageProduct {
  const float* x_scales;       // of bytes: by pixel, or by image
  const float* weight_scales;  // of bytes: (n)
  const void* bias;            // (n), or null
  const void* image_bias;      // (b, n), or null
  int b, h, w, c, n;           // rows of c and n elements are multiples of 16 bytes
  int taps, taps_in_row, pad_above, pad_left;
  int width_bits, height_bits; // of a tile's pixels: powers of two; a tile has 128 pixels, of several images perhaps
  int tiles_x, tiles_y, tiles_b, tiles_n; // tile.cuh counts tiles of all pixels in x, and has no bits
  int image_bias_stride;       // 0 where all images have the same
  int scales_by_pixel;
  int has_residual;
};
static_assert(sizeof(ImageProduct) == 104, "image_product.rs has another layout");

// e4m3 products that the tensor cores sum up, before f32 takes over.
constexpr int PRODUCTS_OF_SUM = 512;

}  // namespace kiln
