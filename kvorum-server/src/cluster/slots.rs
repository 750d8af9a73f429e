//! A table by slot that only grows: a node keeps its slot for as long as the cluster lives.
//!
//! Reading takes no lock, and an entry stays where it is, so that a reference to it may be kept across awaits. That is what
//! a map behind a lock would not give.

use kvorum_core::Slot;
use std::sync::OnceLock;

/// The number of chunks: chunk `n` has 2^n places, and all together one for each slot.
const CHUNKS: usize = 17;

/// Values by slot.
#[derive(Debug)]
pub(crate) struct SlotTable<T> {
    chunks: [OnceLock<Box<[OnceLock<T>]>>; CHUNKS],
}

impl<T> Default for SlotTable<T> {
    fn default() -> Self {
        Self { chunks: [const { OnceLock::new() }; CHUNKS] }
    }
}

/// The chunk of `slot`, and its place in it.
fn place_of(slot: Slot) -> (usize, usize) {
    let number = u32::from(slot.0) + 1;
    let chunk = number.ilog2();
    (chunk as usize, (number - (1 << chunk)) as usize)
}

impl<T> SlotTable<T> {
    /// The value of `slot`, if there is one.
    pub(crate) fn get(&self, slot: Slot) -> Option<&T> {
        let (chunk, place) = place_of(slot);
        self.chunks.get(chunk)?.get()?.get(place)?.get()
    }

    /// The value of `slot`, which `make` makes if there is none. Called only with the slots of members, whose number is
    /// bounded.
    #[expect(
        clippy::indexing_slicing,
        reason = "place_of names a chunk below CHUNKS and a place below its length"
    )]
    pub(crate) fn get_or_init(&self, slot: Slot, make: impl FnOnce() -> T) -> &T {
        let (chunk, place) = place_of(slot);
        let places = || (0..1usize << chunk).map(|_| OnceLock::new()).collect();
        self.chunks[chunk].get_or_init(places)[place].get_or_init(make)
    }

    /// All values, by rising slot.
    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        let places = self.chunks.iter().filter_map(OnceLock::get).flat_map(|places| places.iter());
        places.filter_map(OnceLock::get)
    }
}

impl<T: Default> SlotTable<T> {
    /// The value of `slot`; a new one if there was none.
    pub(crate) fn at(&self, slot: Slot) -> &T {
        self.get_or_init(slot, T::default)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every slot has a place of its own, and a value stays where it is while others come.
    #[test]
    fn slots_have_places_of_their_own() {
        let table = SlotTable::default();
        let first = table.get_or_init(Slot(0), || 7_u32);
        assert_eq!((table.get(Slot(1)), table.get(Slot(u16::MAX))), (None, None));
        for slot in (1..=u16::MAX).rev() {
            assert_eq!(*table.get_or_init(Slot(slot), || u32::from(slot)), u32::from(slot));
        }
        assert_eq!((*first, *table.get_or_init(Slot(0), || 8)), (7, 7));
        assert!((1..=u16::MAX).all(|slot| table.get(Slot(slot)) == Some(&u32::from(slot))));
        assert_eq!(table.values().count(), 1 << 16);
    }
}
