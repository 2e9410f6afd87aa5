//! The slots of a cluster.

/// Returns the slot of a key without braces.
///
/// The sum is CRC-16 (XMODEM), written out, so that the file needs no crate.
pub fn slot(key: &str) -> u16 {
    let shift = |sum: u16| if sum & 0x8000 == 0 { sum << 1 } else { sum << 1 ^ 0x1021 };
    let add = |sum: u16, byte: u8| (0..8).fold(sum ^ u16::from(byte) << 8, |sum, _| shift(sum));
    key.bytes().fold(0, add) % 16_384
}
