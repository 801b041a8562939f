//! Search for values in UTF-16, which a byte search does not find.

use std::ops::Range;

use super::KnownSecrets;

/// Returns the ranges of values in UTF-16 of either byte order, at even and odd offsets. Finds
/// values that consist of ASCII and Latin-1 bytes.
pub(super) fn find_utf16(secrets: &KnownSecrets, bytes: &[u8]) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    for (start, high) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let units = bytes.get(start..).unwrap_or_default().chunks_exact(2);
        // Any other code unit becomes a byte that occurs in no text.
        let narrow: Vec<u8> =
            units.map(|unit| if unit[high] == 0 { unit[1 - high] } else { 0 }).collect();
        secrets.scan_bytes(secrets.start_state(), &narrow, |end, length, _| {
            ranges.push(start + 2 * (end - length)..start + 2 * end);
        });
    }
    ranges
}
