        // Reads this thread's chunks of the tiles at element `depth` of k, and moves to the windows' next elements. A is zero from `end`
        // on, W may have any values there. Rows share one condition: with one for each row a product of 4096 x 4096 x 4096 fell
        // from 213 to 157 TFLOP/s on an H200.
        let at_depth = select(depth, min(depth, end - DEPTH + load_depth), EXACT) / 4u;
        let exists = EXACT || depth < end;
        is_inside = 0u;
        /*unroll*/ for (var i = 0u; i < LOADS_A; i++) {
            if CONVOLUTION {
                let row = window_row[i] + tap_row;
                let column = window_column[i] + tap_column;
                let is_seen = exists && row >= 0 && column >= 0 && row < i32(p.height) && column < i32(p.width);
                let pixel = (start_a[i] + u32(row)) * p.width + u32(column);
                let at = select(0u, (p.a + pixel * p.channels + channel) / 4u, is_seen);
                /*unroll*/ for (var e = 0u; e < VECTORS; e++) {
                    next_a[i * VECTORS + e] = a[at + e];
                }
                is_inside |= select(0u, 1u << i, is_seen);
            } else {
                /*unroll*/ for (var e = 0u; e < VECTORS; e++) {
                    var value = vec4<S>();
                    if exists {
                        value = a[start_a[i] + at_depth + e];
                    }
                    next_a[i * VECTORS + e] = value;
                }
            }
        }
        /*unroll*/ for (var i = 0u; i < LOADS_W; i++) {
            let at = select(0u, start_w[i] + at_depth, exists);
            /*unroll*/ for (var e = 0u; e < VECTORS; e++) {
                next_w[i * VECTORS + e] = w[at + e];
            }
        }
        if CONVOLUTION {
            channel += DEPTH;
            while channel >= p.channels {
                channel -= p.channels;
                tap_column++;
                if tap_column == i32(p.kernel_width) {
                    tap_column = 0;
                    tap_row++;
                }
            }
        }
