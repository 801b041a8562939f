//! Parses the first line of a script (`#!`) as the kernel does.

use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, fstat};

/// Number of bytes of a file that the kernel reads to determine its format.
pub const SHEBANG_BYTES: usize = 256;

/// Returns the interpreter's absolute path and everything after it as one word. A line that is
/// longer than what the kernel reads does not count as a `#!` line.
pub fn parse_shebang(text: &[u8]) -> Option<Vec<&str>> {
    let line = text.strip_prefix(b"#!")?;
    let end = line.iter().position(|byte| *byte == b'\n')?;
    let line = std::str::from_utf8(&line[..end]).ok()?.trim_matches([' ', '\t']);
    let (path, rest) = line.split_once([' ', '\t']).unwrap_or((line, ""));
    let rest = rest.trim_start_matches([' ', '\t']);
    path.starts_with('/')
        .then(|| [path, rest].into_iter().filter(|word| !word.is_empty()).collect())
}

/// Reads the words of a file's `#!` line, if it is a readable script. Does not block, whatever the
/// file is: it may be a pipe.
pub fn read_shebang(path: &Path) -> Option<Vec<String>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    if FileType::from_raw_mode(fstat(&file).ok()?.st_mode) != FileType::RegularFile {
        return None;
    }
    // Regular files have no short reads, so the first one is what the kernel has read.
    let mut text = [0; SHEBANG_BYTES];
    let length = rustix::io::pread(&file, &mut text, 0).ok()?;
    parse_shebang(&text[..length]).map(|words| words.into_iter().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_line_is_read_as_the_kernel_reads_it() {
        let words = |text: &'static str| parse_shebang(text.as_bytes());
        assert_eq!(words("#!/bin/sh\nx"), Some(vec!["/bin/sh"]));
        assert_eq!(words("#! /usr/bin/env  -S a b \t\n"), Some(vec!["/usr/bin/env", "-S a b"]));
        for none in
            ["", "#!", "#!/bin/sh", "#!sh\n", "# !/bin/sh\n", "\u{7f}ELF\n", "#!\n", "#! \n"]
        {
            assert_eq!(words(none), None, "{none:?}");
        }
    }

    #[test]
    fn only_a_regular_file_has_a_first_line() {
        assert_eq!(read_shebang(Path::new("/dev/zero")), None);
        assert_eq!(read_shebang(Path::new("/nowhere")), None);
        assert_eq!(read_shebang(Path::new("/usr")), None);
    }
}
