//! The fields of a message in Protocol Buffers' wire format.

/// The value of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Value<'a> {
    Integer(u64),
    /// 32 bits, as of a float.
    Fixed(u32),
    /// 64 bits.
    Wide(u64),
    /// A text, a message, or bytes.
    Bytes(&'a [u8]),
}

/// The fields of a message with their numbers, in the order of the file. A damaged field is `None`, and the last one.
pub(super) struct Fields<'a> {
    rest: Option<&'a [u8]>,
}

impl<'a> Fields<'a> {
    pub(super) fn new(message: &'a [u8]) -> Self {
        Self { rest: Some(message) }
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Option<(u64, Value<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.rest.take().filter(|rest| !rest.is_empty())?;
        let Some((number, value, rest)) = field(rest) else { return Some(None) };
        self.rest = Some(rest);
        Some(Some((number, value)))
    }
}

/// The first field of a message, and what follows it.
fn field(bytes: &[u8]) -> Option<(u64, Value<'_>, &[u8])> {
    let (tag, rest) = varint(bytes)?;
    let (value, rest) = match tag & 7 {
        0 => varint(rest).map(|(value, rest)| (Value::Integer(value), rest))?,
        1 => rest.split_first_chunk::<8>().map(|(value, rest)| (Value::Wide(u64::from_le_bytes(*value)), rest))?,
        2 => {
            let (length, rest) = varint(rest)?;
            let (value, rest) = rest.split_at_checked(usize::try_from(length).ok()?)?;
            (Value::Bytes(value), rest)
        }
        5 => rest.split_first_chunk::<4>().map(|(value, rest)| (Value::Fixed(u32::from_le_bytes(*value)), rest))?,
        _ => return None,
    };
    Some((tag >> 3, value, rest))
}

/// An integer of variable length: seven bits a byte, the lowest first.
fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0u64;
    for (i, &byte) in bytes.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            return Some((value, bytes.get(i + 1..)?));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_in_order() {
        let message = [8, 0x96, 1, 0x15, 0, 0, 0x80, 0x3f, 0x1a, 2, b'h', b'i', 0x21, 1, 0, 0, 0, 0, 0, 0, 0];
        let found: Option<Vec<_>> = Fields::new(&message).collect();
        let expected = [
            (1, Value::Integer(150)),
            (2, Value::Fixed(1f32.to_bits())),
            (3, Value::Bytes(b"hi")),
            (4, Value::Wide(1)),
        ];
        assert_eq!(found.unwrap(), expected);
    }

    #[test]
    fn damaged_fields_end_a_message() {
        for message in [&[8][..], &[0x15, 0, 0], &[0x1a, 200, 1, b'a'], &[0x0b], &[255; 12]] {
            assert_eq!(Fields::new(message).collect::<Vec<_>>(), [None]);
        }
        assert_eq!(Fields::new(&[8, 1, 8]).collect::<Vec<_>>(), [Some((1, Value::Integer(1))), None]);
    }
}
