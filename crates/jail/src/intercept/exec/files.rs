//! Identifies the files that a process was started from: its program, the script it interprets, the
//! program that it loads if it is a dynamic loader, and the file that holds its first instruction.
//!
//! Each is an open descriptor, identified by device and inode ([`resolve`]). A file that cannot be
//! identified is never guessed at: with rules such an exec is refused, whatever the reason.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use super::image::ProcessImage;
use super::mapping::FileMapping;
use super::resolve::{self, DeviceInode};
use super::wire::FileIdentity;

/// Highest index of an argument at which the kernel can put a script's name: it follows the
/// interpreter and at most one word from the script's first line. Interpreters that are scripts
/// themselves add to that, up to four times.
const MAX_SCRIPT_ARG_INDEX: usize = 12;

/// File that a process was started from.
pub struct ExecFile {
    pub identity: FileIdentity,
    /// The path it was called by, made absolute. The caller chooses it, so it is only good for
    /// names.
    pub called_path: String,
    pub size: u64,
    /// Index of the argument that names it; its own arguments begin there.
    pub argv_start: usize,
    descriptor: OwnedFd,
}

/// All files that a process was started from.
pub struct ExecFiles {
    pub program: ExecFile,
    pub script: Option<ExecFile>,
    pub loaded: Option<ExecFile>,
    /// Scripts that interpret the script.
    interpreters: Vec<ExecFile>,
    /// The file that the program names as its loader, if it is not one of the host's: it is what
    /// runs.
    foreign_loader: Option<ExecFile>,
    /// Name of a file that will run and could not be identified.
    pub unidentified: Option<String>,
}

impl ExecFiles {
    /// Identifies the files of a process that is stopped before its first instruction.
    pub fn identify(process: i32, image: &ProcessImage) -> io::Result<ExecFiles> {
        let argv = image.argv();
        let program = ExecFile::open_program(process, image)?;
        let mut files = ExecFiles {
            program,
            script: None,
            loaded: None,
            interpreters: Vec::new(),
            foreign_loader: None,
            unidentified: None,
        };
        // The kernel puts the script's name after its interpreter's, and keeps the name that was
        // requested.
        if let Some(index) =
            argv.iter().skip(1).take(MAX_SCRIPT_ARG_INDEX).position(|word| *word == image.execfn())
        {
            files.script = files.identify_named(process, image.execfn(), index + 1);
            // Interpreters that are scripts come before it, with the words of their first lines.
            // Those are mostly options, so a word that names no file is skipped.
            files.interpreters = (1..=index)
                .filter_map(|index| ExecFile::open_named(process, argv[index], index).ok())
                .collect();
        }
        if files.script.is_some() {
            // That name belongs to the script, not to its interpreter.
            files.program.called_path.clone_from(&files.program.identity.path);
        }
        if let Some(index) = files.program.is_loader().then(|| find_loaded_arg(&argv)).flatten() {
            match argv[index].contains(&b'/') {
                true => files.loaded = files.identify_named(process, argv[index], index),
                // The loader searches for such a name in directories that only it knows.
                false => files.unidentified = Some(to_lossy_string(argv[index])),
            }
        }
        Ok(files)
    }

    /// Identifies the file that holds the first instruction. Usually that is the program itself or
    /// its loader, but any program can be named as the loader of another.
    pub fn identify_entry(&mut self, process: i32, pc: u64) {
        if let Err(name) = self.find_entry(process, pc) {
            self.unidentified = Some(name);
        }
    }

    fn find_entry(&mut self, process: i32, pc: u64) -> Result<(), String> {
        let program_path = |_| self.program.identity.path.clone();
        let mapping = FileMapping::find_address(process, pc).map_err(program_path)?;
        let identities = [self.program.device_inode()]
            .into_iter()
            .chain(HOST_LOADERS.iter().filter_map(|path| identify_regular(path)));
        if identities.into_iter().any(|identity| mapping.is_backed_by(identity)) {
            return Ok(());
        }
        let program_file = self.program.open_content().map_err(program_path)?;
        let loaders = HOST_LOADERS.iter().filter_map(|path| open_regular(Path::new(path)).ok());
        if [program_file].into_iter().chain(loaders).any(|file| mapping.has_code_of(process, &file))
        {
            return Ok(());
        }
        // The path only says where to look: the file there must be the one that is mapped.
        let is_mapped = |file: &ExecFile| {
            mapping.is_backed_by(file.device_inode())
                || file.open_content().is_ok_and(|content| mapping.has_code_of(process, &content))
        };
        let entry = ExecFile::open_named(process, &mapping.path, 0).ok().filter(is_mapped);
        self.foreign_loader = Some(entry.ok_or_else(|| to_lossy_string(&mapping.path))?);
        Ok(())
    }

    /// Iterates over all files, the program first.
    pub fn iter(&self) -> impl Iterator<Item = &ExecFile> {
        let single_files = [Some(&self.program), self.script.as_ref(), self.loaded.as_ref()];
        single_files.into_iter().flatten().chain(&self.interpreters).chain(&self.foreign_loader)
    }

    /// Returns whether this file was started directly: the script if there is one, else the
    /// program, unless a loader comes in between.
    pub fn is_started(&self, file: &ExecFile) -> bool {
        let started = self.script.as_ref().unwrap_or(&self.program);
        std::ptr::eq(file, started) && self.loaded.is_none() && self.foreign_loader.is_none()
    }

    /// Identifies the file that a name leads to, unless it is the program itself. On failure the
    /// exec must not be judged as harmless.
    fn identify_named(&mut self, process: i32, name: &[u8], argv_start: usize) -> Option<ExecFile> {
        let Ok(file) = ExecFile::open_named(process, name, argv_start) else {
            self.unidentified = Some(to_lossy_string(name));
            return None;
        };
        Some(file).filter(|file| !file.is_same_file(&self.program))
    }
}

impl ExecFile {
    fn open_program(process: i32, image: &ProcessImage) -> io::Result<ExecFile> {
        ExecFile::new(process, resolve::open_link(process, "exe")?, image.execfn(), 0)
    }

    /// Opens the file that a name leads to now. A process that can change the file or a link on the
    /// way can change that too, which is why nothing from such a place is ever let out.
    fn open_named(process: i32, name: &[u8], argv_start: usize) -> io::Result<ExecFile> {
        ExecFile::new(process, resolve::open_name(process, name)?, name, argv_start)
    }

    fn new(
        process: i32,
        descriptor: OwnedFd,
        name: &[u8],
        argv_start: usize,
    ) -> io::Result<ExecFile> {
        let stat = rustix::fs::fstat(&descriptor)?;
        if !rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        let size = u64::try_from(stat.st_size).map_err(io::Error::other)?;
        let identity = resolve::describe_file(process, &descriptor)?;
        Ok(ExecFile {
            identity,
            called_path: make_absolute(process, name),
            size,
            argv_start,
            descriptor,
        })
    }

    fn is_same_file(&self, other: &ExecFile) -> bool {
        self.device_inode() == other.device_inode()
    }

    /// Device and inode of its descriptor.
    fn device_inode(&self) -> DeviceInode {
        (self.identity.device, self.identity.inode)
    }

    /// Returns whether this is a dynamic loader: by its name or, under another name, by its bytes.
    fn is_loader(&self) -> bool {
        let has_size = |path: &str| fs::metadata(path).is_ok_and(|found| found.size() == self.size);
        is_loader_name(&self.identity.path)
            || HOST_LOADERS.iter().any(|path| has_size(path) && self.is_copy_of(Path::new(path)))
    }

    /// Returns whether it has the same bytes as a file of the host. A file that cannot be read is
    /// taken for a copy: this only ever makes a verdict stricter.
    pub fn is_copy_of(&self, host_path: &Path) -> bool {
        // The host's file may have gone since the rules were read; then it has no copies.
        let Ok(host_file) = open_regular(host_path) else { return false };
        let is_same = self.open_content().and_then(|own| has_same_bytes(own, &host_file));
        is_same.unwrap_or(true)
    }

    fn open_content(&self) -> io::Result<File> {
        open_regular(&PathBuf::from(format!("/proc/self/fd/{}", self.descriptor.as_raw_fd())))
    }
}

/// Opens a regular file for reading, and nothing that could block.
fn open_regular(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("not a regular file")),
    }
}

/// Returns the device and inode of a regular file.
fn identify_regular(path: &str) -> Option<DeviceInode> {
    let metadata = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
    Some((metadata.dev(), metadata.ino()))
}

fn has_same_bytes(mut one: File, other: &File) -> io::Result<bool> {
    const PIECE: usize = 64 << 10;
    let (mut one_buffer, mut other_buffer) = (vec![0; PIECE], vec![0; PIECE]);
    let mut offset = 0;
    loop {
        let length = one.read(&mut one_buffer)?;
        if length == 0 {
            return Ok(other.read_at(&mut other_buffer[..1], offset)? == 0);
        }
        match other.read_exact_at(&mut other_buffer[..length], offset) {
            Ok(()) if one_buffer[..length] == other_buffer[..length] => offset += length as u64,
            Ok(()) => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            Err(error) => return Err(error),
        }
    }
}

/// Makes a name absolute, by its text alone.
fn make_absolute(process: i32, name: &[u8]) -> String {
    let name = Path::new(std::ffi::OsStr::from_bytes(name));
    let directory = match name.is_absolute() {
        true => PathBuf::new(),
        false => fs::read_link(format!("/proc/{process}/cwd")).unwrap_or_default(),
    };
    normalize_path(&directory.join(name))
}

fn to_lossy_string(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

/// Options of the dynamic loader that take another word.
const OPTIONS_WITH_VALUE: [&[u8]; 7] = [
    b"--library-path",
    b"--preload",
    b"--audit",
    b"--inhibit-rpath",
    b"--argv0",
    b"--glibc-hwcaps-prepend",
    b"--glibc-hwcaps-mask",
];

/// Prefixes of the names of dynamic loaders.
const LOADER_NAMES: [&str; 5] = ["ld-linux", "ld-musl", "ld.so", "ld64.so", "ld-2."];
/// Paths of the host's dynamic loaders. Only those of x86-64, because execs are watched only there
/// (see [`super::SUPPORTED`]).
const HOST_LOADERS: [&str; 2] = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-musl-x86_64.so.1"];

fn is_loader_name(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    LOADER_NAMES.iter().any(|start| name.starts_with(start))
}

/// Returns the index of the argument that a dynamic loader is asked to load.
fn find_loaded_arg(argv: &[&[u8]]) -> Option<usize> {
    let mut index = 1;
    while let Some(word) = argv.get(index).filter(|word| word.starts_with(b"--")) {
        index += if OPTIONS_WITH_VALUE.contains(word) { 2 } else { 1 };
    }
    argv.get(index).map(|_| index)
}

/// Removes `.`, `..` and repeated slashes from a path, by its text alone.
fn normalize_path(path: &Path) -> String {
    let mut normalized = PathBuf::from("/");
    for component in path.components() {
        match component {
            Component::Normal(name) => normalized.push(name),
            Component::ParentDir => drop(normalized.pop()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    normalized.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loader_is_known_with_what_it_loads() {
        let at = |words: &[&str]| {
            let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
            find_loaded_arg(&words)
        };
        assert_eq!(at(&["ld", "/bin/ls"]), Some(1));
        assert_eq!(at(&["ld", "--argv0", "x", "--inhibit-cache", "/bin/ls"]), Some(4));
        assert_eq!(at(&["ld", "--list"]), None);
    }

    #[test]
    fn a_path_is_made_plain_by_its_text() {
        assert_eq!(normalize_path(Path::new("/usr/bin/./..//bin/git")), "/usr/bin/git");
        assert_eq!(normalize_path(Path::new("/../x")), "/x");
    }

    /// A pipe that was put in the place of a file makes nobody wait.
    #[test]
    fn only_a_regular_file_is_read() {
        let pipe = std::env::temp_dir().join(format!("jail-files-{}", std::process::id()));
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, Mode::RWXU).unwrap();
        let opened = open_regular(&pipe);
        fs::remove_file(pipe).unwrap();
        assert!(opened.is_err());
        assert!(open_regular(Path::new("/dev/null")).is_err());
        assert!(open_regular(Path::new("/bin/sh")).is_ok());
    }

    #[test]
    fn a_file_that_cannot_be_read_counts_as_a_copy() {
        let process = rustix::process::getpid().as_raw_nonzero().get();
        let open = |name: &[u8]| ExecFile::open_named(process, name, 0).unwrap();
        assert!(open(b"/bin/sh").is_copy_of(Path::new("/bin/sh")));
        assert!(!open(b"/bin/sh").is_copy_of(Path::new("/bin/cat")));
        assert!(!open(b"/bin/sh").is_copy_of(Path::new("/nonexistent")));
        let mut lost = open(b"/bin/sh");
        lost.descriptor =
            rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        assert!(lost.is_copy_of(Path::new("/bin/sh")));
    }
}
