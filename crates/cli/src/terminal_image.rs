//! Images in terminals: the protocols of kitty, iTerm2 and DEC (sixel), and colored characters.

use std::fmt::Write;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kiln_media::{Filter, Result, Rgb8Image, StillFormat, encode};

/// How a terminal is sent images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// The graphics protocol of kitty, which Ghostty has too (sw.kovidgoyal.net/kitty/graphics-protocol).
    Kitty,
    /// The inline images of iTerm2, which WezTerm and mintty have too (iterm2.com/documentation-images.html).
    Iterm2,
    /// DEC's sixels: foot, mlterm, xterm -ti vt340.
    Sixel,
    /// Two pixels a character in 24-bit colors, which most terminals have.
    Blocks,
}

/// The number by which kitty replaces the image before.
const KITTY_IMAGE: u32 = 7860;
/// Bytes of a chunk of the protocol of kitty.
const KITTY_CHUNK: usize = 4096;
/// Pixels of a row of characters for sixels, which have no size in characters. Usual fonts have 16 to 24.
const ROW_PIXELS: usize = 18;
/// Rows of pixels in a row of sixels.
const BAND: usize = 6;
/// Levels of red, green and blue in the palette of sixels: 252 colors, of 256 that terminals have.
const LEVELS: [usize; 3] = [6, 7, 6];
/// The order of a pixel in its square of 4 by 4 for dithering (Bayer's matrix).
const BAYER: [[usize; 4]; 4] = [[0, 8, 2, 10], [12, 4, 14, 6], [3, 11, 1, 9], [15, 7, 13, 5]];

impl Protocol {
    /// The names, as users type them.
    pub const IDS: [(&str, Self); 4] =
        [("kitty", Self::Kitty), ("iterm2", Self::Iterm2), ("sixel", Self::Sixel), ("blocks", Self::Blocks)];

    /// The terminal's protocol by the variables of the environment. Programs between it and us, as tmux, pass characters only.
    pub fn detect(variable: impl Fn(&str) -> Option<String>) -> Self {
        let term = variable("TERM").unwrap_or_default();
        let program = variable("TERM_PROGRAM").unwrap_or_default();
        let starts = |names: &[&str]| names.iter().any(|name| term.starts_with(name));
        if variable("TMUX").is_some() || starts(&["screen", "tmux"]) {
            Self::Blocks
        } else if starts(&["xterm-kitty", "xterm-ghostty"])
            || program == "ghostty"
            || variable("KITTY_WINDOW_ID").is_some()
        {
            Self::Kitty
        } else if ["iTerm.app", "WezTerm", "mintty"].contains(&&*program) {
            Self::Iterm2
        } else if starts(&["foot", "mlterm", "yaft"]) {
            Self::Sixel
        } else {
            Self::Blocks
        }
    }

    /// The characters that show an image at the cursor in so many columns and rows.
    ///
    /// # Errors
    /// Errors of [`Rgb8Image::resize`] and of the PNG file.
    pub fn text(self, image: &Rgb8Image, columns: usize, rows: usize) -> Result<String> {
        Ok(match self {
            Self::Kitty => kitty(&encode(image, StillFormat::Png)?, columns, rows),
            Self::Iterm2 => {
                let data = STANDARD.encode(encode(image, StillFormat::Png)?);
                let size = format!("width={columns};height={rows};preserveAspectRatio=0");
                format!("\x1b]1337;File=inline=1;{size}:{data}\x07")
            }
            Self::Sixel => {
                let (height, width) = (rows * ROW_PIXELS / BAND * BAND, columns * ROW_PIXELS / 2);
                sixel(&image.resize(width, height, Filter::Bilinear)?)
            }
            Self::Blocks => blocks(&image.resize(columns, 2 * rows, Filter::Bilinear)?),
        })
    }
}

fn kitty(png: &[u8], columns: usize, rows: usize) -> String {
    let data = STANDARD.encode(png);
    // a=T: shown at once; C=1: the cursor stays; q=2: no answers, which would come as input.
    let head = format!("a=T,f=100,q=2,i={KITTY_IMAGE},p=1,C=1,c={columns},r={rows},");
    let mut text = String::new();
    let mut rest = &*data;
    while !rest.is_empty() || text.is_empty() {
        let (chunk, after) = rest.split_at(rest.len().min(KITTY_CHUNK));
        let head = if text.is_empty() { &*head } else { "" };
        let _ = write!(text, "\x1b_G{head}m={};{chunk}\x1b\\", u8::from(!after.is_empty()));
        rest = after;
    }
    text
}

/// Lines of half blocks: the upper pixel is the color of the character, the lower one that of its ground.
fn blocks(image: &Rgb8Image) -> String {
    let (width, height) = image.size();
    let color = |x: usize, y: usize| {
        let at = 3 * (y * width + x);
        let [r, g, b] = [image.data()[at], image.data()[at + 1], image.data()[at + 2]];
        format!("2;{r};{g};{b}")
    };
    let mut text = String::new();
    for y in (0..height / 2 * 2).step_by(2) {
        for x in 0..width {
            let _ = write!(text, "\x1b[38;{};48;{}m▀", color(x, y), color(x, y + 1));
        }
        text.push_str("\x1b[0m\r\n");
    }
    text
}

/// Sixels with a fixed palette and ordered dithering, which is as fast as previews have to be.
fn sixel(image: &Rgb8Image) -> String {
    let (width, height) = image.size();
    let mut text = format!("\x1bP0;1;0q\"1;1;{width};{height}");
    let colors = LEVELS.iter().product();
    for color in 0..colors {
        let [r, g, b] = levels(color);
        let _ = write!(text, "#{color};2;{r};{g};{b}");
    }
    let indices: Vec<usize> = (0..width * height).map(|at| index(image, at % width, at / width)).collect();
    // Of each color the sixels of a band.
    let mut bits = vec![0; colors * width];
    for band in indices.chunks(BAND * width) {
        bits.fill(0u8);
        for (at, color) in band.iter().enumerate() {
            bits[color * width + at % width] |= 1 << (at / width);
        }
        for (color, sixels) in bits.chunks(width).enumerate() {
            let Some(last) = sixels.iter().rposition(|sixel| *sixel > 0) else { continue };
            let _ = write!(text, "#{color}");
            push_runs(&mut text, &sixels[..=last]);
            text.push('$');
        }
        text.push('-');
    }
    text + "\x1b\\"
}

/// Sixels up to the last that is not empty. More than three equal ones are `!COUNT` and one of them.
fn push_runs(text: &mut String, sixels: &[u8]) {
    for run in sixels.chunk_by(|one, next| one == next) {
        let sixel = char::from(b'?' + run[0]);
        match run.len() {
            count @ ..=3 => text.extend(std::iter::repeat_n(sixel, count)),
            count => drop(write!(text, "!{count}{sixel}")),
        }
    }
}

/// Red, green and blue of a color of the palette in percent.
fn levels(color: usize) -> [usize; 3] {
    let [_, g, b] = LEVELS;
    let places = [color / (g * b), color / b % g, color % b];
    std::array::from_fn(|i| places[i] * 100 / (LEVELS[i] - 1))
}

/// The color of the palette for a pixel.
fn index(image: &Rgb8Image, x: usize, y: usize) -> usize {
    let at = 3 * (y * image.width() + x);
    let threshold = 2 * BAYER[y % 4][x % 4] + 1;
    let place = |i: usize| (usize::from(image.data()[at + i]) * (LEVELS[i] - 1) * 32 / 255 + threshold) / 32;
    (0..3).fold(0, |color, i| color * LEVELS[i] + place(i).min(LEVELS[i] - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(width: usize, height: usize, rgb: [u8; 3]) -> Rgb8Image {
        Rgb8Image::filled(width, height, rgb).unwrap()
    }

    #[test]
    fn terminals_are_known_by_their_variables() {
        let detect = |pairs: &[(&str, &str)]| {
            Protocol::detect(|name| pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string()))
        };
        assert_eq!(detect(&[("TERM", "xterm-kitty")]), Protocol::Kitty);
        assert_eq!(detect(&[("TERM", "xterm-256color"), ("TERM_PROGRAM", "WezTerm")]), Protocol::Iterm2);
        assert_eq!(detect(&[("TERM", "foot-extra")]), Protocol::Sixel);
        assert_eq!(detect(&[("TERM", "xterm-kitty"), ("TMUX", "/tmp/tmux,1,0")]), Protocol::Blocks);
        assert_eq!(detect(&[]), Protocol::Blocks);
    }

    #[test]
    fn kitty_gets_chunks_of_a_png_file() {
        let file: Vec<u8> = (0..10_000).map(|i| (i * 7 % 256) as u8).collect();
        let text = kitty(&file, 20, 10);
        let chunks: Vec<&str> = text.split("\x1b\\").filter(|chunk| !chunk.is_empty()).collect();
        assert!(chunks[0].starts_with("\x1b_Ga=T,f=100,q=2,i=7860,p=1,C=1,c=20,r=10,m=1;"), "{}", &chunks[0][..60]);
        let last = chunks.len() - 1;
        assert!(
            chunks[1..last].iter().all(|chunk| chunk.starts_with("\x1b_Gm=1;"))
                && chunks[last].starts_with("\x1b_Gm=0;")
        );
        let data: String = chunks.iter().map(|chunk| chunk.split_once(';').unwrap().1).collect();
        assert_eq!(STANDARD.decode(data).unwrap(), file);
        assert!(chunks.iter().all(|chunk| chunk.split_once(';').unwrap().1.len() <= KITTY_CHUNK));
    }

    #[test]
    fn iterm2_gets_a_png_file() {
        let text = Protocol::Iterm2.text(&image(4, 4, [1, 2, 3]), 8, 4).unwrap();
        let data = text.strip_prefix("\x1b]1337;File=inline=1;width=8;height=4;preserveAspectRatio=0:").unwrap();
        assert!(STANDARD.decode(data.strip_suffix('\x07').unwrap()).unwrap().starts_with(b"\x89PNG"));
    }

    #[test]
    fn a_half_block_has_two_pixels() {
        let pixels = Rgb8Image::new(1, 2, vec![255, 0, 0, 0, 0, 255]).unwrap();
        assert_eq!(blocks(&pixels), "\x1b[38;2;255;0;0;48;2;0;0;255m▀\x1b[0m\r\n");
    }

    /// A reader of sixels, as VT340's manual describes them.
    fn read_sixel(text: &str) -> (usize, usize, Vec<[usize; 3]>) {
        let body = text.strip_prefix("\x1bP0;1;0q\"1;1;").unwrap().strip_suffix("\x1b\\").unwrap();
        let (size, mut rest) = body.split_at(body.find('#').unwrap());
        let (width, height): (usize, usize) =
            size.split_once(';').map(|(w, h)| (w.parse().unwrap(), h.parse().unwrap())).unwrap();
        let number = |rest: &mut &str| {
            let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap();
            let (digits, after) = rest.split_at(end);
            *rest = after;
            digits.parse::<usize>().unwrap()
        };
        let draw = |pixels: &mut Vec<[usize; 3]>, (x, y): (usize, usize), count: usize, bits: u8, color: [usize; 3]| {
            for i in (0..BAND).filter(|i| bits >> i & 1 == 1) {
                pixels[(y + i) * width + x..][..count].fill(color);
            }
        };
        let mut palette = vec![[0; 3]; 256];
        let mut pixels = vec![[0; 3]; width * height];
        let (mut color, mut x, mut y) = (0, 0, 0);
        while let Some(c) = rest.chars().next() {
            rest = &rest[1..];
            match c {
                '#' => {
                    color = number(&mut rest);
                    if let Some(after) = rest.strip_prefix(";2;") {
                        rest = after;
                        palette[color] = std::array::from_fn(|i| {
                            if i > 0 {
                                rest = &rest[1..];
                            }
                            number(&mut rest)
                        });
                    }
                }
                '!' => {
                    let count = number(&mut rest);
                    let bits = rest.as_bytes()[0] - b'?';
                    rest = &rest[1..];
                    draw(&mut pixels, (x, y), count, bits, palette[color]);
                    x += count;
                }
                '$' => x = 0,
                '?'..='~' => {
                    draw(&mut pixels, (x, y), 1, c as u8 - b'?', palette[color]);
                    x += 1;
                }
                '-' => (x, y) = (0, y + BAND),
                other => panic!("{other:?}"),
            }
        }
        (width, height, pixels)
    }

    #[test]
    fn sixels_have_the_colors_of_the_image() {
        let mut data = Vec::new();
        for at in 0..16 * 12 {
            data.extend(if at % 16 < 8 { [255, 0, 0] } else { [60, 120, 200] });
        }
        let (width, height, pixels) = read_sixel(&sixel(&Rgb8Image::new(16, 12, data).unwrap()));
        assert_eq!((width, height), (16, 12));
        let mean = |from: usize| {
            let part = |i: usize| {
                let sum: usize =
                    pixels.iter().enumerate().filter(|(at, _)| at % 16 / 8 == from).map(|(_, c)| c[i]).sum();
                sum as f64 * 2.55 / 96.0
            };
            [part(0), part(1), part(2)]
        };
        assert_eq!(mean(0), [255.0, 0.0, 0.0]);
        for (found, expected) in mean(1).into_iter().zip([60.0, 120.0, 200.0]) {
            assert!((found - expected).abs() < 8.0, "{found} {expected}");
        }
    }
}
