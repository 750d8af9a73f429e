//! Keys: 1 to 1,024 bytes, any bytes.

use bytes::Bytes;
use std::fmt;

/// The longest key that is accepted, in bytes.
pub const KEY_BYTES_MAX: usize = 1024;

/// A key whose length has been checked.
///
/// Cloning is cheap: the bytes are shared. Keys are ordered by their bytes, which is the order of a range.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Bytes);

/// Why bytes are not a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyError {
    /// A key has at least one byte.
    Empty,
    /// A key has at most [`KEY_BYTES_MAX`] bytes.
    TooLong {
        /// The length that was given, in bytes.
        bytes: usize,
    },
}

impl Key {
    /// Makes a key of `bytes`.
    ///
    /// # Errors
    /// [`KeyError`] when there is no byte, or more than [`KEY_BYTES_MAX`].
    pub fn new(bytes: impl Into<Bytes>) -> Result<Self, KeyError> {
        let bytes = bytes.into();
        match bytes.len() {
            0 => Err(KeyError::Empty),
            1..=KEY_BYTES_MAX => Ok(Self(bytes)),
            len => Err(KeyError::TooLong { bytes: len }),
        }
    }

    /// The key's bytes.
    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }

    /// The key's bytes, without a copy.
    pub fn into_bytes(self) -> Bytes {
        self.0
    }
}

impl AsRef<[u8]> for Key {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.0.escape_ascii())
    }
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "the key is empty; a key has 1 to {KEY_BYTES_MAX} bytes"),
            Self::TooLong { bytes } => {
                write!(f, "the key has {bytes} bytes; a key has 1 to {KEY_BYTES_MAX} bytes")
            }
        }
    }
}

impl std::error::Error for KeyError {}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bounds of a key, on both sides of each.
    #[test]
    fn length_is_1_to_1024() {
        assert_eq!(Key::new(Bytes::new()), Err(KeyError::Empty));
        assert!(Key::new(vec![0u8]).is_ok());
        assert!(Key::new(vec![0xffu8; 1024]).is_ok());
        assert_eq!(Key::new(vec![0u8; 1025]), Err(KeyError::TooLong { bytes: 1025 }));
    }
}
