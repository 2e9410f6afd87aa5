//! The slots of a cluster, to which all keys and channels belong.

use crc::{CRC_16_XMODEM, Crc};

static CHECKSUM: Crc<u16> = Crc::<u16>::new(&CRC_16_XMODEM);

/// The number of slots in a cluster.
pub(crate) const SLOTS: u16 = 16_384;

/// Returns the cluster slot of a key.
pub(crate) fn slot(key: &[u8]) -> u16 {
    CHECKSUM.checksum(hash_tag(key)) % SLOTS
}

/// Returns the part of a key that determines its slot: the hash tag, or the whole key.
fn hash_tag(key: &[u8]) -> &[u8] {
    let at = |sign: u8, from: usize| key[from..].iter().position(|byte| *byte == sign);
    let Some(open) = at(b'{', 0) else { return key };
    match at(b'}', open + 1) {
        None | Some(0) => key,
        Some(length) => &key[open + 1..open + 1 + length],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_match_redis() {
        // The replies of `CLUSTER KEYSLOT`.
        for (key, expected) in
            [("123456789", 12739), ("foo", 12182), ("a{foo}b", 12182), ("{}foo", 9500)]
        {
            assert_eq!(slot(key.as_bytes()), expected, "{key}");
        }
    }
}
