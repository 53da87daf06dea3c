//! A bounds-checked reader of little-endian numbers.

/// A position in some bytes.
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// The value that was read, or the problem.
type Read<T> = std::result::Result<T, String>;

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Moves to `at`, counted from the start.
    pub(crate) fn seek(&mut self, at: u64) -> Read<()> {
        let at = usize::try_from(at).ok().filter(|&at| at <= self.bytes.len());
        self.at = at.ok_or("is cut off, or points outside of itself; download it again")?;
        Ok(())
    }

    /// The number of bytes left.
    pub(crate) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(crate) fn position(&self) -> usize {
        self.at
    }

    /// The next `count` bytes.
    pub(crate) fn take(&mut self, count: usize) -> Read<&'a [u8]> {
        let end = self.at.checked_add(count).filter(|&end| end <= self.bytes.len());
        let end = end.ok_or_else(|| {
            format!("is cut off: {count} bytes expected at {}, {} are left; download it again", self.at, self.left())
        })?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    pub(crate) fn take_u64(&mut self, count: u64) -> Read<&'a [u8]> {
        self.take(usize::try_from(count).unwrap_or(usize::MAX))
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Read<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    /// The bytes up to the next line feed, without it.
    pub(crate) fn line(&mut self) -> Read<&'a [u8]> {
        let rest = &self.bytes[self.at..];
        let end = rest.iter().position(|&byte| byte == b'\n').ok_or("is cut off in a line; download it again")?;
        self.at += end + 1;
        Ok(&rest[..end])
    }

    pub(crate) fn u16(&mut self) -> Read<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Read<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Read<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }
}
