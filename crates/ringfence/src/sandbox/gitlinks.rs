//! Detects the submodules of a repository from its index.
//!
//! A submodule's directory is in the work tree, where the run can put another repository with its
//! own settings, and the run can also write `.gitmodules`. Neither is true of the index: it is
//! closed to the run.

use std::path::Path;
use std::sync::Mutex;

use super::bounded_read::read_bounded;
use crate::base::IgnorePoison;

/// Modes of the entries of an index: files, links, directories of a sparse one, and submodules.
const ENTRY_MODES: [u32; 5] = [0o100644, 0o100755, 0o120000, 0o040000, SUBMODULE_MODE];
const SUBMODULE_MODE: u32 = 0o160000;
/// Size of times, device, inode, mode, owner and size, which precede the object name.
const STAT_LENGTH: usize = 40;
const MODE_OFFSET: usize = 24;
/// Lengths of object names.
const OBJECT_NAME_LENGTHS: [usize; 2] = [20, 32];

/// Size limit. An index of half a million files is shorter.
const MAX_INDEX_BYTES: u64 = 64 << 20;
/// Held while an index is in memory, so that many commands at once do not load many of them.
static INDEX_LOCK: Mutex<()> = Mutex::new(());

/// Returns whether the repository has submodules. True also if that is unknown.
pub fn may_have_submodules(repository: &Path) -> bool {
    let _index_guard = INDEX_LOCK.lock().ignore_poison();
    match read_bounded(&repository.join("index"), MAX_INDEX_BYTES) {
        Ok(Some(index)) => OBJECT_NAME_LENGTHS
            .into_iter()
            .find_map(|name_length| has_submodules(&index, name_length))
            .unwrap_or(true),
        Ok(None) => false,
        Err(_) => true,
    }
}

/// Returns `None` if this is not an index with object names of this length, or only a part of one.
fn has_submodules(index: &[u8], name_length: usize) -> Option<bool> {
    let read_u32 =
        |offset: usize| Some(u32::from_be_bytes(index.get(offset..offset + 4)?.try_into().ok()?));
    let (version, count) = (read_u32(4)?, read_u32(8)?);
    if !index.starts_with(b"DIRC") || !(2..=4).contains(&version) {
        return None;
    }
    let (mut offset, mut has_submodule) = (12, false);
    for _ in 0..count {
        let mode = read_u32(offset + MODE_OFFSET).filter(|mode| ENTRY_MODES.contains(mode))?;
        has_submodule |= mode == SUBMODULE_MODE;
        offset = next_entry_offset(index, offset, version, name_length)?;
    }
    // The extensions that follow can say that the rest of the list is in another file.
    while offset + name_length < index.len() {
        if index.get(offset..offset + 4)? == b"link" {
            return None;
        }
        offset =
            offset.checked_add(8)?.checked_add(usize::try_from(read_u32(offset + 4)?).ok()?)?;
    }
    (offset + name_length == index.len()).then_some(has_submodule)
}

/// Returns where the next entry begins.
fn next_entry_offset(
    index: &[u8],
    entry_offset: usize,
    version: u32,
    name_length: usize,
) -> Option<usize> {
    let flags_offset = entry_offset + STAT_LENGTH + name_length;
    let is_long = version > 2 && index.get(flags_offset)? & 0x40 != 0;
    let mut path_offset = flags_offset + if is_long { 4 } else { 2 };
    if version == 4 {
        // Skip the number that says how much of the previous path is kept; its last byte has no
        // high bit.
        path_offset += index.get(path_offset..)?.iter().position(|byte| byte & 0x80 == 0)? + 1;
    }
    let path_end = path_offset + index.get(path_offset..)?.iter().position(|byte| *byte == 0)?;
    // Padded with one to eight zeros, except in version 4.
    Some(if version == 4 {
        path_end + 1
    } else {
        entry_offset + ((path_end - entry_offset + 8) & !7)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(version: u32, name: usize, modes: &[u32], extension: &[u8]) -> Vec<u8> {
        let mut bytes =
            [b"DIRC".as_slice(), &version.to_be_bytes(), &(modes.len() as u32).to_be_bytes()]
                .concat();
        for mode in modes {
            let start = bytes.len();
            bytes.extend([0xe0; MODE_OFFSET]);
            bytes.extend(mode.to_be_bytes());
            bytes.extend(vec![0xe0; STAT_LENGTH - MODE_OFFSET - 4 + name]);
            bytes.extend([0, 4]);
            bytes.extend(if version == 4 { b"\0some\0".as_slice() } else { b"some\0" });
            while version < 4 && (bytes.len() - start) % 8 != 0 {
                bytes.push(0);
            }
        }
        bytes.extend(extension);
        bytes.extend(vec![7; name]);
        bytes
    }

    #[test]
    fn submodules_are_found_in_every_form_of_an_index() {
        for version in 2..=4 {
            for name in OBJECT_NAME_LENGTHS {
                let plain =
                    index(version, name, &[0o100644, 0o120000, 0o100755], b"TREE\0\0\0\x02xx");
                assert_eq!(has_submodules(&plain, name), Some(false), "{version} {name}");
                let linked = index(version, name, &[0o100644, SUBMODULE_MODE, 0o100644], b"");
                assert_eq!(has_submodules(&linked, name), Some(true), "{version} {name}");
                assert_eq!(
                    has_submodules(&index(version, name, &[0o100644], b"link\0\0\0\0"), name),
                    None
                );
                for short in 0..plain.len() - name - 10 {
                    assert_eq!(has_submodules(&plain[..short], name), None, "{short}");
                }
            }
        }
        assert_eq!(has_submodules(&index(2, 32, &[0o100644, 0o100644], b""), 20), None);
        assert_eq!(has_submodules(b"", 20), None);
    }
}
