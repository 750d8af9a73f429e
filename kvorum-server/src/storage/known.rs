//! What one layer above the engine's tables knows of a key.
//!
//! A key is looked up in layers, newest first: the group being committed, the groups committed lately, the index buffer, the
//! engine. The first layer that knows the key decides.

/// What a layer knows of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known<T> {
    /// Nothing: the next layer decides.
    Nothing,
    /// There is no such row: it was removed here.
    Removed,
    /// The row is this.
    Stored(T),
}

impl<T> Known<T> {
    /// A row that this layer holds, if it is there.
    pub fn row(row: Option<T>) -> Self {
        row.map_or(Self::Removed, Self::Stored)
    }

    /// The same with the row changed by `change`.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Known<U> {
        match self {
            Self::Nothing => Known::Nothing,
            Self::Removed => Known::Removed,
            Self::Stored(row) => Known::Stored(change(row)),
        }
    }

    /// What this layer knows, else what `below` knows.
    #[must_use]
    pub fn or_else(self, below: impl FnOnce() -> Self) -> Self {
        match self {
            Self::Nothing => below(),
            known => known,
        }
    }

    /// The row or its absence, if this layer knows it; else what `below` finds, the last layer.
    ///
    /// # Errors
    /// The error of `below`.
    pub fn or_find<E>(self, below: impl FnOnce() -> Result<Option<T>, E>) -> Result<Option<T>, E> {
        match self {
            Self::Nothing => below(),
            Self::Removed => Ok(None),
            Self::Stored(row) => Ok(Some(row)),
        }
    }

    /// Whether this layer knows the key.
    pub fn is_known(&self) -> bool {
        !matches!(self, Self::Nothing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first layer that knows the key decides, also where it says that there is no row.
    #[test]
    fn first_layer_decides() {
        let layers = |above: Known<u8>, below: Known<u8>| {
            above.or_else(|| below).or_find(|| Ok::<_, ()>(Some(9))).unwrap()
        };
        assert_eq!(layers(Known::Nothing, Known::Nothing), Some(9));
        assert_eq!(layers(Known::Nothing, Known::Stored(2)), Some(2));
        assert_eq!(layers(Known::Removed, Known::Stored(2)), None);
        assert_eq!(layers(Known::Stored(1), Known::Removed), Some(1));
        assert_eq!(Known::row(None::<u8>), Known::Removed);
        assert_eq!(Known::Stored(1).map(|row| row + 1), Known::Stored(2));
        assert!(Known::<u8>::Removed.is_known() && !Known::<u8>::Nothing.is_known());
    }
}
