//! The slots of a cluster.

use crc::{CRC_16_XMODEM, Crc};

/// Returns the slot of a key without braces.
pub fn slot(key: &str) -> u16 {
    const SUM: Crc<u16> = Crc::<u16>::new(&CRC_16_XMODEM);
    SUM.checksum(key.as_bytes()) % 16_384
}
