//! Finds the file that is mapped at an address of a process.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use super::resolve::DeviceInode;
use crate::sys::trace;

/// Bytes that are compared at a time, and at most.
const PIECE: usize = 64 << 10;
const MAX_CODE: u64 = 256 << 20;
/// Room for the mappings of a new program, so that they are read at once.
const MAPS_BYTES: usize = 8 << 10;

/// Memory mapping of a process.
#[derive(Debug, PartialEq, Eq)]
pub struct FileMapping {
    start: u64,
    end: u64,
    offset: u64,
    identity: DeviceInode,
    /// Path where the file may be found. It identifies nothing: that of a deleted file ends in `
    /// (deleted)`.
    pub path: Vec<u8>,
}

impl FileMapping {
    /// Finds the mapping at an address.
    pub fn find_address(process: i32, address: u64) -> io::Result<FileMapping> {
        let maps = File::open(format!("/proc/{process}/maps"))?;
        match trace::query_mapping(maps.as_fd(), address) {
            Ok((query, path)) => Ok(FileMapping {
                start: query.start,
                end: query.end,
                offset: query.offset,
                identity: (
                    rustix::fs::makedev(query.device_major, query.device_minor),
                    query.inode,
                ),
                path,
            }),
            Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => {
                FileMapping::find_in_text(maps, address)
            }
            Err(error) => Err(error),
        }
    }

    /// Finds it in the text, on a kernel that offers nothing better.
    fn find_in_text(mut maps: File, address: u64) -> io::Result<FileMapping> {
        let mut text = Vec::with_capacity(MAPS_BYTES);
        maps.read_to_end(&mut text)?;
        let mut mappings = text.split(|byte| *byte == b'\n').filter_map(parse_maps_line);
        mappings
            .find(|mapping| (mapping.start..mapping.end).contains(&address))
            .ok_or_else(|| io::Error::other("nothing is mapped at this address"))
    }

    /// Returns whether the file with this device and inode is mapped.
    pub fn is_backed_by(&self, identity: DeviceInode) -> bool {
        identity.1 != 0 && identity == self.identity
    }

    /// Returns whether the mapped bytes are those of the file. Some file systems (btrfs, overlayfs)
    /// report one device in `fstat` and another in `maps`; there only the code itself can identify
    /// the file. None of it has run.
    pub fn has_code_of(&self, process: i32, file: &File) -> bool {
        self.end - self.start <= MAX_CODE && matches!(self.compare_code(process, file), Ok(true))
    }

    fn compare_code(&self, process: i32, file: &File) -> io::Result<bool> {
        let (mut mapped, mut stored) = (vec![0; PIECE], vec![0; PIECE]);
        let mut address = self.start;
        while address < self.end {
            let length = PIECE.min(usize::try_from(self.end - address).unwrap_or(PIECE));
            let read_length = trace::read_memory(process, address, &mut mapped[..length])?;
            // After the end of a file, its last page is filled with zeroes.
            stored.fill(0);
            read_up_to(file, &mut stored[..length], self.offset + (address - self.start))?;
            if read_length < length || mapped[..length] != stored[..length] {
                return Ok(false);
            }
            address += length as u64;
        }
        Ok(true)
    }
}

fn read_up_to(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], offset + filled as u64)? {
            0 => break,
            count => filled += count,
        }
    }
    Ok(())
}

/// Parses `from-to mode offset major:minor inode   path`.
fn parse_maps_line(line: &[u8]) -> Option<FileMapping> {
    let mut fields = line.splitn(6, |byte| *byte == b' ');
    let mut text = || std::str::from_utf8(fields.next()?).ok();
    let parse_hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let (start, end) = text()?.split_once('-')?;
    let _mode = text()?;
    let offset = parse_hex(text()?)?;
    let (major, minor) = text()?.split_once(':')?;
    let device = rustix::fs::makedev(
        u32::from_str_radix(major, 16).ok()?,
        u32::from_str_radix(minor, 16).ok()?,
    );
    let inode = text()?.parse().ok()?;
    let path = fields.next().unwrap_or_default().trim_ascii_start().to_vec();
    Some(FileMapping {
        start: parse_hex(start)?,
        end: parse_hex(end)?,
        offset,
        identity: (device, inode),
        path,
    })
}

#[cfg(test)]
mod tests {
    use super::super::resolve::identify_file;
    use super::*;

    #[test]
    fn a_line_is_read_with_device_and_inode() {
        let line =
            b"7f10-7f20 r-xp 00001000 fd:01 1234                       /usr/lib/a b (deleted)";
        let mapping = parse_maps_line(line).unwrap();
        assert_eq!((mapping.start, mapping.end, mapping.offset), (0x7f10, 0x7f20, 0x1000));
        assert_eq!(mapping.identity, (rustix::fs::makedev(0xfd, 1), 1234));
        assert_eq!(mapping.path, b"/usr/lib/a b (deleted)");
        assert_eq!(parse_maps_line(b"7f10-7f20 rw-p 00000000 00:00 0 ").unwrap().path, b"");
        assert_eq!(parse_maps_line(b"7f10-7f20 rw-p 00000000"), None);
    }

    /// Our own code, which is mapped from our own file.
    #[test]
    fn a_mapping_is_of_its_own_file_and_of_no_other() {
        let process = rustix::process::getpid().as_raw_nonzero().get();
        let code = a_mapping_is_of_its_own_file_and_of_no_other as fn() as usize as u64;
        let mapping = FileMapping::find_address(process, code).unwrap();
        let (own, other) = (File::open("/proc/self/exe").unwrap(), File::open("/bin/sh").unwrap());
        let identity = |file: &File| identify_file(file).unwrap();
        assert!(mapping.has_code_of(process, &own));
        assert!(!mapping.is_backed_by(identity(&other)) && !mapping.has_code_of(process, &other));
        let number =
            FileMapping { identity: (mapping.identity.0 + 1, mapping.identity.1), ..mapping };
        assert!(
            !number.is_backed_by(identity(&own)),
            "the same inode number on another device is another file"
        );
    }

    /// Both ways to ask the kernel, where it has both.
    #[test]
    fn the_query_and_the_text_name_the_same_mapping() {
        let process = rustix::process::getpid().as_raw_nonzero().get();
        let maps = || File::open("/proc/self/maps").unwrap();
        let code = the_query_and_the_text_name_the_same_mapping as fn() as usize as u64;
        let on_stack = 0;
        for address in [code, &raw const on_stack as u64] {
            let found = FileMapping::find_address(process, address).unwrap();
            assert_eq!(found, FileMapping::find_in_text(maps(), address).unwrap());
        }
        assert!(FileMapping::find_address(process, 8).is_err(), "nothing is mapped there");
        assert!(FileMapping::find_in_text(maps(), 8).is_err());
    }
}
