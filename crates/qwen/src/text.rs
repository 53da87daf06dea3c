//! The texts that a language model encodes.

/// One text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Text {
    /// The ids, with those of padding at the end. Tokens of an image have any id of the vocabulary.
    pub ids: Vec<u32>,
    /// The number of ids that are attended to, the first ones: a token of padding attends to them and not to padding.
    pub length: usize,
    /// The images in the text, in their order.
    pub images: Vec<TextImage>,
}

/// An image in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextImage {
    /// The number of its first token.
    pub start: usize,
    /// Its number among the images that are encoded with the texts.
    pub image: usize,
}

impl Text {
    /// A text without padding and images.
    pub fn whole(ids: Vec<u32>) -> Self {
        Self { length: ids.len(), ids, images: Vec::new() }
    }

    /// The positions of all tokens in time, row and column. `grid` gives the rows and the columns of an image. Those of a text token
    /// are equal. The token in row `y` and column `x` of an image is at `(n, n + y, n + x)`, if `n` is the position that a text token would
    /// have; the text goes on behind the longer side (transformers' `get_rope_index`).
    pub(crate) fn positions(&self, grid: impl Fn(usize) -> [usize; 2]) -> Vec<[f64; 3]> {
        let (mut all, mut next) = (Vec::with_capacity(self.ids.len()), 0);
        let text_up_to = |all: &mut Vec<[f64; 3]>, next: &mut usize, end: usize| {
            while all.len() < end {
                all.push([*next as f64; 3]);
                *next += 1;
            }
        };
        for &TextImage { start, image } in &self.images {
            text_up_to(&mut all, &mut next, start);
            let [rows, columns] = grid(image);
            let places = (0..rows * columns).map(|i| [0, i / columns, i % columns]);
            all.extend(places.map(|place| place.map(|offset| (next + offset) as f64)));
            next += rows.max(columns);
        }
        text_up_to(&mut all, &mut next, self.ids.len());
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_takes_as_many_numbers_as_its_longer_side() {
        let images = vec![TextImage { start: 2, image: 0 }, TextImage { start: 9, image: 1 }];
        let text = Text { images, ..Text::whole(vec![1; 12]) };
        let found = text.positions(|image| [[2, 3], [1, 1]][image]);
        let text = |position: f64| [position; 3];
        let image = [[0., 0.], [0., 1.], [0., 2.], [1., 0.], [1., 1.], [1., 2.]].map(|[y, x]| [2., 2. + y, 2. + x]);
        let expected = [&[text(0.), text(1.)][..], &image, &[text(5.), text(6.), text(7.), text(8.)]].concat();
        assert_eq!(found, expected);
    }
}
