//! Directory entries, and the order of paths.

use std::cmp::Ordering;
use std::ffi::OsString;
use std::os::fd::OwnedFd;

use rustix::fs::{FileType, fstatfs};

/// A name in a directory, and its type when the directory was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeEntry {
    pub name: OsString,
    pub kind: FileType,
    /// The walk's rules skip it, and the walk shows skipped entries.
    pub is_skipped: bool,
}

/// Compares paths in the order of every result: a directory, its contents, its next sibling.
pub fn compare_paths(left: &[u8], right: &[u8]) -> Ordering {
    // The slash ends a name, so it sorts before every other byte. Only the first difference counts.
    let rank = |byte: &u8| if *byte == b'/' { 0 } else { u16::from(*byte) + 1 };
    let shared = left.iter().zip(right).take_while(|(one, other)| one == other).count();
    left.get(shared).map(rank).cmp(&right.get(shared).map(rank))
}

/// Returns a name as one line of text: a name with a line break must not look like two.
pub fn escape_name(name: &str) -> String {
    if name.chars().any(char::is_control) {
        name.escape_debug().to_string()
    } else {
        name.to_owned()
    }
}

/// File systems whose files are generated while they are read and may never end. Entering them by
/// accident helps no caller.
const PSEUDO_FILE_SYSTEMS: [i64; 9] = [
    0x9fa0,      // proc
    0x6265_6572, // sysfs
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x6367_7270, // cgroup2
    0x0027_e0eb, // cgroup
    0x0187,      // autofs: opening what is in it mounts it
    0x1cd1,      // devpts
    0xcafe_4a11, // bpf
];

/// Returns whether a directory is on such a file system.
pub fn is_pseudo_file_system(dir: &OwnedFd) -> bool {
    // The type of the number differs between machines.
    #[allow(clippy::unnecessary_cast, reason = "the type of the field depends on the machine")]
    fstatfs(dir).is_ok_and(|file_system| {
        PSEUDO_FILE_SYSTEMS.contains(&(file_system.f_type as i64 & 0xffff_ffff))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_a_directory_follows_it_at_once() {
        let mut paths = ["a-b", "a/z", "a", "a.rs", "a/b/c", "a/b", "b"];
        paths.sort_by(|one, two| compare_paths(one.as_bytes(), two.as_bytes()));
        assert_eq!(paths, ["a", "a/b", "a/b/c", "a/z", "a-b", "a.rs", "b"]);
    }
}
