//! The buffers: rows of the index in memory, as the log has them, by partition.

use crate::storage::format::{self, DeltaRow, FormatError};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Bound;

/// The least that a partition's rows grow to before those that were replaced are dropped.
const PART_BYTES_MIN: usize = 512;

/// Rows by the first two bytes of their keys, which name the partition.
#[derive(Default)]
pub(super) struct Layer {
    parts: BTreeMap<[u8; 2], Part>,
    bytes: usize,
}

/// Rows as they came, one behind the other as in the log: the last of a key counts. Writing one is a copy of some forty
/// bytes, and reading one a walk over all. With 4,096 partitions that is a kilobyte or two.
#[derive(Default)]
struct Part {
    rows: Vec<u8>,
    /// Bytes that were left when rows that had been replaced were dropped last.
    dense: usize,
}

impl Layer {
    /// Bytes of all rows.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Takes in rows of one batch, as the log has them.
    pub(super) fn add(&mut self, rows: &[u8]) -> Result<(), FormatError> {
        for row in format::delta_rows(rows) {
            let row = row?;
            let part = self.parts.entry(part_of(row.key)).or_default();
            self.bytes += row.encoded.len();
            part.rows.extend_from_slice(row.encoded);
            if part.rows.len() >= part.dense.saturating_mul(2).max(PART_BYTES_MIN) {
                self.bytes -= part.rows.len();
                part.drop_replaced();
                self.bytes += part.rows.len();
            }
        }
        Ok(())
    }

    /// What the row at `key` is: its value, or that it is removed; none where it is not here.
    #[expect(clippy::option_option, reason = "not here and here as removed are two things")]
    pub(super) fn get(&self, key: &[u8]) -> Option<Option<Bytes>> {
        let rows = self.parts.get(&part_of(key))?.read();
        let row = rows.filter(|row| row.key == key).last()?;
        Some(row.value.map(Bytes::copy_from_slice))
    }

    /// Copies the rows of a range, which must not end before it starts.
    pub(super) fn copy(&self, start: &[u8], end: Bound<&[u8]>, to: &mut BTreeMap<Bytes, Option<Bytes>>) {
        let last = match end {
            Bound::Included(end) | Bound::Excluded(end) => part_of(end),
            Bound::Unbounded => [u8::MAX; 2],
        };
        let is_within = |key: &[u8]| match end {
            Bound::Included(end) => key <= end,
            Bound::Excluded(end) => key < end,
            Bound::Unbounded => true,
        };
        for (_, part) in self.parts.range(part_of(start)..=last) {
            let rows = part.read().filter(|row| row.key >= start && is_within(row.key));
            to.extend(rows.map(DeltaRow::to_owned));
        }
    }

    /// All rows, in order, each key once.
    pub(super) fn sorted(&self) -> impl Iterator<Item = (Bytes, Option<Bytes>)> + '_ {
        self.parts.values().flat_map(|part| part.latest().map(DeltaRow::to_owned))
    }
}

impl Part {
    /// What was put in by [`Layer::add`] can be read.
    fn read(&self) -> impl Iterator<Item = DeltaRow<'_>> {
        format::delta_rows(&self.rows).map_while(Result::ok)
    }

    /// Its rows, in order, each key once.
    fn latest(&self) -> impl Iterator<Item = DeltaRow<'_>> {
        let mut rows: Vec<_> = self.read().collect();
        // Stable: of one key the last stays last.
        rows.sort_by_key(|row| row.key);
        let mut rows = rows.into_iter().peekable();
        std::iter::from_fn(move || {
            let mut row = rows.next()?;
            while let Some(newer) = rows.next_if(|next| next.key == row.key) {
                row = newer;
            }
            Some(row)
        })
    }

    fn drop_replaced(&mut self) {
        let mut rows = Vec::with_capacity(self.rows.len());
        for row in self.latest() {
            rows.extend_from_slice(row.encoded);
        }
        self.dense = rows.len();
        self.rows = rows;
    }
}

/// Keys in order have parts in order: what is missing at the end of a short one is least.
fn part_of(key: &[u8]) -> [u8; 2] {
    [key.first().copied().unwrap_or_default(), key.get(1).copied().unwrap_or_default()]
}
