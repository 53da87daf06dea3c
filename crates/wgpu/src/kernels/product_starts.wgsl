    // The rows of the tiles that this thread reads. Of a matrix, the vector with which it begins; of a convolution, the first row of
    // the image, and the row and column of the window's first pixel. Rows behind the last one are read like the last one.
    var start_a: array<u32, LOADS_A>;
    var start_w: array<u32, LOADS_W>;
    var window_row: array<i32, LOADS_A>;
    var window_column: array<i32, LOADS_A>;
    /*unroll*/ for (var i = 0u; i < LOADS_A; i++) {
        let row = min(first_row + load_row + i * LOAD_ROWS, p.m - 1u);
        start_a[i] = (p.a + row * p.k) / 4u;
        if CONVOLUTION {
            let pixel = row % p.rows;
            start_a[i] = row / p.rows * p.height;
            window_row[i] = i32(pixel / p.width_out * p.stride) - i32(p.pad_top);
            window_column[i] = i32(pixel % p.width_out * p.stride) - i32(p.pad_left);
        }
    }
    /*unroll*/ for (var i = 0u; i < LOADS_W; i++) {
        start_w[i] = (p.w + min(first_column + load_row + i * LOAD_ROWS, p.n - 1u) * p.k) / 4u;
    }
    // The pixel of the windows, and the channel, of the next elements.
    var tap_row = 0;
    var tap_column = 0;
    var channel = 0u;
    if CONVOLUTION {
        let tap = (begin + load_depth) / p.channels;
        tap_row = i32(tap / p.kernel_width);
        tap_column = i32(tap % p.kernel_width);
        channel = (begin + load_depth) % p.channels;
    }
