//! From block keys to blocks, in a table whose size is fixed by the number of blocks: no memory is asked for later.

use crate::keys::BlockKey;

/// No block.
const NONE: u32 = 0;

/// Open addressing, at most half full. A key is a keyed hash already, so that its own bits choose its place and nobody
/// outside can crowd one.
#[derive(Clone, Debug)]
pub(crate) struct KeyTable {
    /// A power of two long; empty when the cache is off.
    places: Vec<u32>,
    len: usize,
}

impl KeyTable {
    /// For keys of up to `blocks` blocks; for none when that is 0.
    pub(crate) fn new(blocks: usize) -> Self {
        let len = if blocks == 0 { 0 } else { (2 * blocks).next_power_of_two() };
        Self { places: vec![NONE; len], len: 0 }
    }

    /// How many keys it has.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// The block of a key. `keys` has the key of every block.
    pub(crate) fn find(&self, key: BlockKey, keys: &[BlockKey]) -> Option<u32> {
        if self.len == 0 {
            return None;
        }
        let block = self.places[self.place_of(key, keys)];
        (block != NONE).then_some(block)
    }

    /// Takes in a block whose key no other block has.
    pub(crate) fn insert(&mut self, block: u32, keys: &[BlockKey]) {
        let place = self.place_of(keys[block as usize], keys);
        assert_eq!(self.places[place], NONE, "a key names one block");
        self.places[place] = block;
        self.len += 1;
    }

    /// Takes out a block. Its key is still in `keys`.
    pub(crate) fn remove(&mut self, block: u32, keys: &[BlockKey]) {
        let mut hole = self.place_of(keys[block as usize], keys);
        assert_eq!(self.places[hole], block, "a block is taken out once");
        self.len -= 1;
        let mut place = hole;
        loop {
            place = self.next(place);
            let other = self.places[place];
            if other == NONE {
                break;
            }
            // Whoever lies past the hole on the way from its own place would not be found any more.
            let mask = self.places.len() - 1;
            let way = place.wrapping_sub(self.home(keys[other as usize])) & mask;
            if way >= place.wrapping_sub(hole) & mask {
                self.places[hole] = other;
                hole = place;
            }
        }
        self.places[hole] = NONE;
    }

    pub(crate) fn clear(&mut self) {
        self.places.fill(NONE);
        self.len = 0;
    }

    /// Where a key is, or where it would go.
    fn place_of(&self, key: BlockKey, keys: &[BlockKey]) -> usize {
        let mut place = self.home(key);
        while self.places[place] != NONE && keys[self.places[place] as usize] != key {
            place = self.next(place);
        }
        place
    }

    fn home(&self, key: BlockKey) -> usize {
        key.0 as usize & (self.places.len() - 1)
    }

    fn next(&self, place: usize) -> usize {
        (place + 1) & (self.places.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::collections::btree_map::Entry;

    use super::*;

    #[test]
    fn keys_that_crowd_are_all_found() {
        let mut table = KeyTable::new(12);
        let mut keys = vec![BlockKey::NONE; 12];
        let mut expected = BTreeMap::new();
        let mut state = 1u32;
        for _ in 0..20_000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let block = 1 + (state >> 8) % 11;
            // Few places, so that keys lie in each other's way.
            let key = BlockKey(1 + u128::from(state >> 16) % 40);
            if keys[block as usize] != BlockKey::NONE {
                table.remove(block, &keys);
                expected.remove(&std::mem::take(&mut keys[block as usize]));
            } else if let Entry::Vacant(place) = expected.entry(key) {
                keys[block as usize] = key;
                table.insert(block, &keys);
                place.insert(block);
            }
            assert_eq!(table.len(), expected.len());
            for key in 1..=40 {
                assert_eq!(table.find(BlockKey(key), &keys), expected.get(&BlockKey(key)).copied(), "{key}");
            }
        }
    }

    #[test]
    fn a_table_of_nothing_finds_nothing() {
        assert_eq!(KeyTable::new(0).find(BlockKey(3), &[]), None);
    }
}
