//! The part of msgpack that plans and replies are made of, written straight to the end of a buffer.
//!
//! What is written here is read back by serde, through the `*Wire` structs of each type: lists are structs or vectors,
//! and a column of words is one `bin`.

/// A list of `len` values, which follow.
#[inline]
pub(crate) fn list(bytes: &mut Vec<u8>, len: usize) {
    match len {
        0..=0x0f => bytes.push(0x90 | len as u8),
        0x10..=0xffff => head(bytes, 0xdc, (len as u16).to_be_bytes()),
        _ => head(bytes, 0xdd, (len as u32).to_be_bytes()),
    }
}

/// A number, in as few bytes as hold it.
#[inline]
pub(crate) fn number(bytes: &mut Vec<u8>, number: impl Into<u64>) {
    let number = number.into();
    if number <= 0x7f { bytes.push(number as u8) } else { long_number(bytes, number) }
}

/// Numbers, one after the other, most of which are small.
#[inline]
pub(crate) fn numbers<const COUNT: usize>(bytes: &mut Vec<u8>, numbers: [u32; COUNT]) {
    if numbers.iter().fold(0, |all, number| all | number) <= 0x7f {
        bytes.extend_from_slice(&numbers.map(|number| number as u8));
    } else {
        numbers.into_iter().for_each(|one| number(bytes, one));
    }
}

fn long_number(bytes: &mut Vec<u8>, number: u64) {
    match number {
        0..=0xff => head(bytes, 0xcc, [number as u8]),
        0x100..=0xffff => head(bytes, 0xcd, (number as u16).to_be_bytes()),
        0x1_0000..=0xffff_ffff => head(bytes, 0xce, (number as u32).to_be_bytes()),
        _ => head(bytes, 0xcf, number.to_be_bytes()),
    }
}

/// Yes or no.
pub(crate) fn flag(bytes: &mut Vec<u8>, flag: bool) {
    bytes.push(0xc2 | u8::from(flag));
}

/// Opaque bytes.
pub(crate) fn blob(bytes: &mut Vec<u8>, blob: &[u8]) {
    bin(bytes, blob.len());
    bytes.extend_from_slice(blob);
}

/// Words, as one `bin` of little-endian u32.
pub(crate) fn words(bytes: &mut Vec<u8>, words: &[u32]) {
    column(bytes, words, |word| *word);
}

/// The same of one value of every row.
#[inline]
pub(crate) fn column<T>(bytes: &mut Vec<u8>, rows: &[T], value: impl Fn(&T) -> u32) {
    columns(bytes, rows, |row| [value(row)]);
}

/// The same of several values of every row: a column of each, one column after the other. More than four would not be in
/// registers all at once.
#[inline]
pub(crate) fn columns<T, const COUNT: usize>(bytes: &mut Vec<u8>, rows: &[T], values: impl Fn(&T) -> [u32; COUNT]) {
    let len = rows.len() * 4;
    match len {
        0 => (0..COUNT).for_each(|_| bytes.extend_from_slice(&[0xc4, 0])),
        0x01..=0xff => headed(bytes, [0xc4, len as u8], rows, values),
        0x100..=0xffff => {
            let [high, low] = (len as u16).to_be_bytes();
            headed(bytes, [0xc5, high, low], rows, values);
        }
        _ => {
            let [first, second, third, fourth] = bin_len(len);
            headed(bytes, [0xc6, first, second, third, fourth], rows, values);
        }
    }
}

/// The same of a single row.
#[inline]
pub(crate) fn words_alone(bytes: &mut Vec<u8>, words: [u32; 4]) {
    let column = |word: u32| {
        let [first, second, third, fourth] = word.to_le_bytes();
        [0xc4, 4, first, second, third, fourth]
    };
    bytes.extend_from_slice(words.map(column).as_flattened());
}

/// Columns of rows, each with the same head.
#[inline]
fn headed<T, const HEAD: usize, const COUNT: usize>(
    bytes: &mut Vec<u8>,
    head: [u8; HEAD],
    rows: &[T],
    values: impl Fn(&T) -> [u32; COUNT],
) {
    let (start, column_len) = (bytes.len(), HEAD + rows.len() * 4);
    if column_len <= 0x100 {
        bytes.resize(start + COUNT * column_len, 0);
    } else {
        // Fills of up to 2 KiB stay in vector registers.
        (1..=COUNT).for_each(|column| bytes.resize(start + column * column_len, 0));
    }
    let mut rest = &mut bytes[start..];
    let mut columns: [&mut [[u8; 4]]; COUNT] = std::array::from_fn(|_| {
        let (column, after) = std::mem::take(&mut rest).split_at_mut(column_len);
        rest = after;
        let (to, column) = column.split_first_chunk_mut::<HEAD>().expect("a column begins with its head");
        *to = head;
        column.as_chunks_mut::<4>().0
    });
    columns.iter().for_each(|column| assert_eq!(column.len(), rows.len()));
    for (index, row) in rows.iter().enumerate() {
        for (column, value) in columns.iter_mut().zip(values(row)) {
            column[index] = value.to_le_bytes();
        }
    }
}

/// The same of the words of many rows, one after the other.
pub(crate) fn flat<'a>(bytes: &mut Vec<u8>, rows: impl Iterator<Item = &'a [u32]> + Clone) {
    let len = rows.clone().map(<[u32]>::len).sum::<usize>() * 4;
    bin(bytes, len);
    bytes.reserve(len);
    rows.for_each(|row| row.iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes())));
}

#[inline]
fn bin(bytes: &mut Vec<u8>, len: usize) {
    match len {
        0..=0xff => head(bytes, 0xc4, [len as u8]),
        0x100..=0xffff => head(bytes, 0xc5, (len as u16).to_be_bytes()),
        _ => head(bytes, 0xc6, bin_len(len)),
    }
}

fn bin_len(len: usize) -> [u8; 4] {
    u32::try_from(len).expect("a column has fewer than 2^30 rows").to_be_bytes()
}

#[inline]
fn head<const LEN: usize>(bytes: &mut Vec<u8>, marker: u8, rest: [u8; LEN]) {
    bytes.push(marker);
    bytes.extend_from_slice(&rest);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(write: impl Fn(&mut Vec<u8>)) -> Vec<u8> {
        let mut bytes = Vec::new();
        write(&mut bytes);
        bytes
    }

    #[test]
    fn it_writes_what_the_library_would() {
        for value in [0, 1, 0x7f, 0x80, 0xff, 0x100, 0xffff, 0x1_0000, 0xffff_ffff, 0x1_0000_0000, u64::MAX] {
            assert_eq!(packed(|bytes| number(bytes, value)), rmp_serde::to_vec(&value).expect("a number"), "{value}");
        }
        for values in [[0, 1, 0x7f], [0, 0x80, 1], [0xffff_ffff, 2, 0x100]] {
            let theirs: Vec<u8> = values.iter().flat_map(|value| rmp_serde::to_vec(value).expect("a number")).collect();
            assert_eq!(packed(|bytes| numbers(bytes, values)), theirs, "{values:?}");
        }
        for len in [0, 1, 15, 16, 0xffff, 0x1_0000] {
            let mut theirs = rmp_serde::to_vec(&vec![0u8; len]).expect("a list");
            theirs.truncate(theirs.len() - len);
            assert_eq!(packed(|bytes| list(bytes, len)), theirs, "{len}");
        }
        for value in [false, true] {
            assert_eq!(packed(|bytes| flag(bytes, value)), rmp_serde::to_vec(&value).expect("a flag"));
        }
    }

    #[test]
    fn bins_have_the_shortest_head() {
        for (words_len, head) in
            [(0, &[0xc4, 0][..]), (63, &[0xc4, 252]), (64, &[0xc5, 1, 0]), (16_384, &[0xc6, 0, 1, 0, 0])]
        {
            let bytes = packed(|bytes| words(bytes, &vec![0x0403_0201; words_len]));
            assert_eq!((&bytes[..head.len()], bytes.len()), (head, head.len() + words_len * 4));
            assert!(bytes[head.len()..].chunks_exact(4).all(|word| word == [1, 2, 3, 4]));
        }
        assert_eq!(packed(|bytes| blob(bytes, b"ab")), [0xc4, 2, b'a', b'b']);
        assert_eq!(packed(|bytes| flat(bytes, [&[1][..], &[], &[2]].into_iter())), [0xc4, 8, 1, 0, 0, 0, 2, 0, 0, 0]);
    }

    #[test]
    fn columns_together_are_what_each_is_alone() {
        for len in [0, 1, 63, 64, 16_384] {
            let rows: Vec<[u32; 3]> = (0..len).map(|row| [row, 0x0102_0304 + row, u32::MAX - row]).collect();
            let mut apart = Vec::new();
            (0..3).for_each(|index| column(&mut apart, &rows, |row| row[index]));
            assert_eq!(packed(|bytes| columns(bytes, &rows, |row| *row)), apart, "{len}");
        }
        let row = [[1, 0x0102_0304, u32::MAX, 0]];
        assert_eq!(packed(|bytes| words_alone(bytes, row[0])), packed(|bytes| columns(bytes, &row, |row| *row)));
    }
}
