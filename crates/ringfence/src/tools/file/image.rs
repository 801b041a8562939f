//! Reads the dimensions of an image from its first bytes. Nothing is decoded.

/// Returns width and height in pixels if the first bytes of a PNG, GIF, JPEG or WebP file contain
/// them.
pub fn image_dimensions(mime: &str, head: &[u8]) -> Option<(u32, u32)> {
    match mime {
        "image/png" => Some((read_u32_be(head, 16)?, read_u32_be(head, 20)?)),
        "image/gif" => Some((read_uint_le(head, 6, 2)?, read_uint_le(head, 8, 2)?)),
        "image/jpeg" => jpeg_dimensions(head),
        "image/webp" => webp_dimensions(head),
        _ => None,
    }
}

fn read_u32_be(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(offset..offset + 4)?.try_into().ok()?))
}

fn read_uint_le(bytes: &[u8], offset: usize, length: usize) -> Option<u32> {
    let part = bytes.get(offset..offset + length)?;
    Some(part.iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte)))
}

/// Walks the segments up to the first start-of-frame segment.
fn jpeg_dimensions(bytes: &[u8]) -> Option<(u32, u32)> {
    let read_u16 = |offset: usize| {
        Some(u32::from(u16::from_be_bytes(bytes.get(offset..offset + 2)?.try_into().ok()?)))
    };
    let mut offset = 2;
    loop {
        let marker = bytes.get(offset..offset + 2)?;
        if marker[0] != 0xff {
            return None;
        }
        match marker[1] {
            // Padding, and markers without a payload.
            0xff => offset += 1,
            0x01 | 0xd0..=0xd8 => offset += 2,
            0xc0..=0xc3 | 0xc5..=0xc7 | 0xc9..=0xcb | 0xcd..=0xcf => {
                return Some((read_u16(offset + 7)?, read_u16(offset + 5)?));
            }
            0xd9 | 0xda => return None,
            _ => offset += 2 + usize::try_from(read_u16(offset + 2)?.max(2)).ok()?,
        }
    }
}

fn webp_dimensions(bytes: &[u8]) -> Option<(u32, u32)> {
    match bytes.get(12..16)? {
        b"VP8X" => Some((read_uint_le(bytes, 24, 3)? + 1, read_uint_le(bytes, 27, 3)? + 1)),
        b"VP8L" => {
            let bits = read_uint_le(bytes, 21, 4)?;
            Some(((bits & 0x3fff) + 1, (bits >> 14 & 0x3fff) + 1))
        }
        b"VP8 " => {
            Some((read_uint_le(bytes, 26, 2)? & 0x3fff, read_uint_le(bytes, 28, 2)? & 0x3fff))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_found_and_nonsense_is_not_believed() {
        let png =
            [&b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR"[..], &[0, 0, 7, 0xd0, 0, 0, 3, 0xe8]].concat();
        assert_eq!(image_dimensions("image/png", &png), Some((2000, 1000)));
        assert_eq!(image_dimensions("image/gif", b"GIF89a\x20\x03\x58\x02"), Some((800, 600)));
        let jpeg =
            b"\xff\xd8\xff\xe0\0\x04ab\xff\xff\xdb\0\x03x\xff\xc2\0\x11\x08\x02\x58\x03\x20\x03";
        assert_eq!(image_dimensions("image/jpeg", jpeg), Some((800, 600)));
        let webp =
            |kind: &[u8], rest: &[u8]| [&b"RIFF\0\0\0\0WEBP"[..], kind, b"\0\0\0\0", rest].concat();
        assert_eq!(
            image_dimensions("image/webp", &webp(b"VP8X", &[0, 0, 0, 0, 0x1f, 3, 0, 0x57, 2, 0])),
            Some((800, 600))
        );
        assert_eq!(
            image_dimensions("image/webp", &webp(b"VP8L", &[0x2f, 0x1f, 0xc3, 0x95, 0])),
            Some((800, 600))
        );
        let lossy = [0, 0, 0, 0x9d, 1, 0x2a, 0x20, 3, 0x58, 2];
        assert_eq!(image_dimensions("image/webp", &webp(b"VP8 ", &lossy)), Some((800, 600)));
        for (mime, whole) in [("image/png", png.as_slice()), ("image/jpeg", jpeg)] {
            for cut in 0..20 {
                assert_eq!(image_dimensions(mime, &whole[..cut]), None);
            }
        }
        assert_eq!(image_dimensions("image/jpeg", &[0xff; 70_000]), None);
        assert_eq!(image_dimensions("image/svg+xml", b"<svg"), None);
    }
}
