//! The buffers: rows of the index in memory, in the format of the log, by partition.

use crate::storage::Known;
use crate::storage::format::{self, DeltaRow, FormatError};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Bound;

/// The smallest size of a partition's rows at which replaced rows are dropped.
const PART_BYTES_MIN: usize = 512;

/// Rows by the first two bytes of their keys, which are the partition; there are parts up to the last non-empty one.
#[derive(Default)]
pub(super) struct Layer {
    parts: Vec<Part>,
    bytes: usize,
}

/// Rows in the order of arrival, encoded as in the log: the last row of a key is the valid one. Writing a row copies
/// some forty bytes; reading one walks over its list of heads, eight bytes a row.
#[derive(Default)]
struct Part {
    rows: Vec<u8>,
    heads: Vec<Head>,
    /// The bytes that were left when replaced rows were last dropped.
    dense: usize,
}

/// The part of a row that look-ups of other keys read.
#[derive(Clone, Copy)]
struct Head {
    /// A part of the key's hash.
    tag: u32,
    /// The offset of the row.
    at: u32,
}

impl Layer {
    /// Bytes of all rows, without their heads, which take eight bytes for some forty.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Adds the rows of one batch, in the log's encoding.
    pub(super) fn add(&mut self, rows: &[u8]) -> Result<(), FormatError> {
        for row in format::delta_rows(rows) {
            let row = row?;
            let index = part_of(row.key);
            if self.parts.len() <= index {
                self.parts.resize_with(index + 1, Part::default);
            }
            let Some(part) = self.parts.get_mut(index) else { continue };
            self.bytes += row.encoded.len();
            part.push(row);
            if part.rows.len() >= part.dense.saturating_mul(2).max(PART_BYTES_MIN) {
                self.bytes -= part.rows.len();
                part.drop_replaced();
                self.bytes += part.rows.len();
            }
        }
        Ok(())
    }

    /// What the buffers know of the row at `key`.
    pub(super) fn get(&self, key: &[u8]) -> Known<Bytes> {
        let row = self.parts.get(part_of(key)).and_then(|part| part.latest_of(key));
        row.map_or(Known::Nothing, |row| Known::row(row.value.map(Bytes::copy_from_slice)))
    }

    /// Copies the rows of a range, which must not end before it starts.
    pub(super) fn copy(&self, start: &[u8], end: Bound<&[u8]>, to: &mut BTreeMap<Bytes, Option<Bytes>>) {
        let last = match end {
            Bound::Included(end) | Bound::Excluded(end) => part_of(end),
            Bound::Unbounded => usize::MAX,
        };
        let is_within = |key: &[u8]| match end {
            Bound::Included(end) => key <= end,
            Bound::Excluded(end) => key < end,
            Bound::Unbounded => true,
        };
        let first = part_of(start);
        for part in self.parts.iter().take(last.saturating_add(1)).skip(first) {
            let rows = part.read().filter(|row| row.key >= start && is_within(row.key));
            to.extend(rows.map(DeltaRow::to_owned));
        }
    }

    /// All rows, in order, each key once.
    pub(super) fn sorted(&self) -> impl Iterator<Item = (Bytes, Option<Bytes>)> + '_ {
        self.parts.iter().flat_map(|part| part.latest().map(DeltaRow::to_owned))
    }
}

impl Part {
    fn push(&mut self, row: DeltaRow<'_>) {
        // A part is a few kilobytes; a row that began beyond four gigabytes would not be found.
        let at = u32::try_from(self.rows.len()).unwrap_or(u32::MAX);
        self.heads.push(Head { tag: tag_of(row.key), at });
        self.rows.extend_from_slice(row.encoded);
    }

    /// The valid row of `key`.
    fn latest_of(&self, key: &[u8]) -> Option<DeltaRow<'_>> {
        let tag = tag_of(key);
        let alike = self.heads.iter().rev().filter(|head| head.tag == tag);
        let mut rows = alike.filter_map(|head| {
            let (_, rows) = self.rows.split_at_checked(usize::try_from(head.at).ok()?)?;
            format::delta_rows(rows).next()?.ok()
        });
        rows.find(|row| row.key == key)
    }

    /// Reads the rows, all of which [`Layer::add`] has validated.
    fn read(&self) -> impl Iterator<Item = DeltaRow<'_>> {
        format::delta_rows(&self.rows).map_while(Result::ok)
    }

    /// The valid rows, in order, each key once.
    fn latest(&self) -> impl Iterator<Item = DeltaRow<'_>> {
        let mut rows: Vec<_> = self.read().collect();
        // The sort is stable: the last row of a key stays last.
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
        let mut dense = Self { rows: Vec::with_capacity(self.rows.len()), ..Self::default() };
        for row in self.latest() {
            dense.push(row);
        }
        dense.dense = dense.rows.len();
        *self = dense;
    }
}

/// Some bits of the key's hash.
fn tag_of(key: &[u8]) -> u32 {
    let [.., a, b, c, d] = xxhash_rust::xxh3::xxh3_64(key).to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

/// The partition of a key as an index. A key of fewer than two bytes is padded with zeros, so that keys and parts have
/// the same order.
fn part_of(key: &[u8]) -> usize {
    let byte = |index| key.get(index).copied().unwrap_or_default();
    u16::from_be_bytes([byte(0), byte(1)]).into()
}
