//! The part of msgpack that plans and replies are made of, written straight to the end of a buffer.
//!
//! What is written here is read back by serde, through the `*Wire` structs of each type: lists are structs or vectors,
//! and a column of words is one `bin`.

/// A list of `len` values, which follow.
pub(crate) fn list(bytes: &mut Vec<u8>, len: usize) {
    match len {
        0..=0x0f => bytes.push(0x90 | len as u8),
        0x10..=0xffff => head(bytes, 0xdc, &(len as u16).to_be_bytes()),
        _ => head(bytes, 0xdd, &(len as u32).to_be_bytes()),
    }
}

/// A number, in as few bytes as hold it.
pub(crate) fn number(bytes: &mut Vec<u8>, number: impl Into<u64>) {
    let number = number.into();
    match number {
        0..=0x7f => bytes.push(number as u8),
        0x80..=0xff => head(bytes, 0xcc, &[number as u8]),
        0x100..=0xffff => head(bytes, 0xcd, &(number as u16).to_be_bytes()),
        0x1_0000..=0xffff_ffff => head(bytes, 0xce, &(number as u32).to_be_bytes()),
        _ => head(bytes, 0xcf, &number.to_be_bytes()),
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
    bin(bytes, rows.len() * 4);
    append(bytes, rows, value);
}

/// The same of the words of many rows, one after the other.
pub(crate) fn flat<'a>(bytes: &mut Vec<u8>, rows: impl Iterator<Item = &'a [u32]> + Clone) {
    bin(bytes, rows.clone().map(<[u32]>::len).sum::<usize>() * 4);
    rows.for_each(|row| append(bytes, row, |word| *word));
}

#[inline]
fn append<T>(bytes: &mut Vec<u8>, rows: &[T], value: impl Fn(&T) -> u32) {
    let start = bytes.len();
    bytes.resize(start + rows.len() * 4, 0);
    for (to, row) in bytes[start..].as_chunks_mut::<4>().0.iter_mut().zip(rows) {
        *to = value(row).to_le_bytes();
    }
}

fn bin(bytes: &mut Vec<u8>, len: usize) {
    match len {
        0..=0xff => head(bytes, 0xc4, &[len as u8]),
        0x100..=0xffff => head(bytes, 0xc5, &(len as u16).to_be_bytes()),
        _ => head(bytes, 0xc6, &u32::try_from(len).expect("a column has fewer than 2^30 rows").to_be_bytes()),
    }
}

fn head(bytes: &mut Vec<u8>, marker: u8, rest: &[u8]) {
    bytes.push(marker);
    bytes.extend_from_slice(rest);
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
}
