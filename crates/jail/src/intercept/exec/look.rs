//! What a process that has just become a program really is: its file, the script it was started for, the program
//! that it, being a dynamic loader, was asked to load.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2, readlinkat};

use super::image::Image;
use super::wire::Place;

/// A script stands this near the beginning of the arguments: its interpreter, and at most one word from its first line.
/// Interpreters that are scripts themselves add to that, up to four times.
const SCRIPT_WITHIN: usize = 12;

/// One file of those a process was started from.
pub struct Seen {
    pub place: Place,
    pub called: String,
    pub size: u64,
    /// Where its arguments begin.
    pub from: usize,
    file: PathBuf,
    /// What `file` leads to, if it is not the process's own.
    _opened: Option<OwnedFd>,
}

/// The program first; then what it stands in for.
pub struct Look {
    pub program: Seen,
    pub script: Option<Seen>,
    pub loaded: Option<Seen>,
    /// Scripts that are interpreters of the script.
    between: Vec<Seen>,
    /// What the program names as its loader, where that is none: it is what runs.
    begun: Option<Seen>,
    /// The name of a script, or of something to load, that leads to where we cannot follow.
    pub unseen: Option<String>,
}

impl Look {
    pub fn take(process: i32, image: &Image) -> io::Result<Look> {
        let argv = image.argv();
        let exe = PathBuf::from(format!("/proc/{process}/exe"));
        let found = fs::metadata(&exe)?;
        let mut path = fs::read_link(&exe)?.to_string_lossy().into_owned();
        if found.nlink() == 0 {
            path.truncate(path.strip_suffix(" (deleted)").unwrap_or(&path).len());
        }
        let called = plain(&whole(process, image.execfn()).unwrap_or_default());
        let place = Place { path, device: found.dev(), inode: found.ino() };
        let program = Seen { place, called, size: found.size(), from: 0, file: exe, _opened: None };
        let mut look = Look { program, script: None, loaded: None, between: Vec::new(), begun: None, unseen: None };
        // The kernel puts the script's name behind its interpreter's, and leaves the name it was asked for beside.
        if let Some(at) = argv.iter().skip(1).take(SCRIPT_WITHIN).position(|word| *word == image.execfn()) {
            look.script = look.see(process, image.execfn(), at + 1);
            // Interpreters that are scripts stand before it, with the words of their first lines.
            look.between = (1..=at).filter_map(|at| see(process, argv[at], at).ok()).collect();
        }
        if look.script.is_some() {
            // It was the script that was called by that name.
            look.program.called.clone_from(&look.program.place.path);
        }
        if let Some(at) = look.program.is_loader().then(|| loads(&argv)).flatten() {
            look.loaded = look.see(process, argv[at], at);
        }
        Ok(look)
    }

    /// Looks at the file that holds the first instruction. It is the program itself, or its loader; but any program can
    /// be named as the loader of another.
    pub fn look_at_first(&mut self, process: i32, pc: u64) {
        let Ok((path, inode)) = mapped_at(process, pc) else { return };
        // The host's own loader, by its file: a name can be given to anything.
        let is_loader = |at: &str| fs::metadata(at).is_ok_and(|about| about.ino() == inode);
        if inode == self.program.place.inode || LOADERS.iter().any(|at| is_loader(at)) {
            return;
        }
        self.begun = self.see(process, path.as_bytes(), 0).filter(|seen| seen.place.inode == inode);
        if self.begun.is_none() {
            self.unseen = Some(path);
        }
    }

    pub fn views(&self) -> impl Iterator<Item = &Seen> {
        let one = [Some(&self.program), self.script.as_ref(), self.loaded.as_ref()];
        one.into_iter().flatten().chain(&self.between).chain(&self.begun)
    }

    /// Which of the views is what was started: the script, where there is one, else the program, unless a loader stands
    /// between.
    pub fn is_started(&self, seen: &Seen) -> bool {
        let started = self.script.as_ref().unwrap_or(&self.program);
        std::ptr::eq(seen, started) && self.loaded.is_none() && self.begun.is_none()
    }

    /// What a name stands for, unless that is the program itself. One that leads nowhere by now is still known by its
    /// name.
    fn see(&mut self, process: i32, name: &[u8], from: usize) -> Option<Seen> {
        match see(process, name, from) {
            Ok(seen) => Some(seen).filter(|seen| !seen.is(&self.program)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let called = plain(&whole(process, name).unwrap_or_default());
                let place = Place { path: called.clone(), device: 0, inode: 0 };
                Some(Seen { place, called, size: 0, from, file: PathBuf::new(), _opened: None })
            }
            Err(_) => {
                self.unseen = Some(String::from_utf8_lossy(name).into_owned());
                None
            }
        }
    }
}

impl Seen {
    fn is(&self, other: &Seen) -> bool {
        (self.place.device, self.place.inode) == (other.place.device, other.place.inode)
    }

    /// A dynamic loader, by its name or, under another, by its bytes.
    fn is_loader(&self) -> bool {
        let has_size = |path: &str| fs::metadata(path).is_ok_and(|about| about.size() == self.size);
        is_loader_name(&self.place.path)
            || LOADERS.iter().any(|path| has_size(path) && self.is_copy_of(Path::new(path)))
    }

    /// Whether it holds the same bytes as a file of the host.
    pub fn is_copy_of(&self, other: &Path) -> bool {
        matches!(same_bytes(&self.file, other), Ok(true))
    }
}

fn same_bytes(one: &Path, other: &Path) -> io::Result<bool> {
    const PIECE: usize = 64 << 10;
    let (mut one, other) = (File::open(one)?, File::open(other)?);
    let (mut left, mut right) = (vec![0; PIECE], vec![0; PIECE]);
    let mut at = 0;
    loop {
        let got = one.read(&mut left)?;
        if got == 0 {
            return Ok(other.read_at(&mut right[..1], at)? == 0);
        }
        if other.read_exact_at(&mut right[..got], at).is_err() || left[..got] != right[..got] {
            return Ok(false);
        }
        at += got as u64;
    }
}

/// A name, looked up where the process is. It is the name's present meaning: whoever can change the file or a link on
/// the way can change that too, which is why nothing from such a place is ever let out.
fn see(process: i32, name: &[u8], from: usize) -> io::Result<Seen> {
    let whole = whole(process, name)?;
    let opened = open_seen(process, &whole, LINKS)?;
    let file = PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()));
    let found = fs::metadata(&file)?;
    if !found.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let path = fs::read_link(&file)?.to_string_lossy().into_owned();
    let place = Place { path, device: found.dev(), inode: found.ino() };
    Ok(Seen { place, called: plain(&whole), size: found.size(), from, file, _opened: Some(opened) })
}

/// A name as a path from the root.
fn whole(process: i32, name: &[u8]) -> io::Result<PathBuf> {
    let name = Path::new(OsStr::from_bytes(name));
    if name.is_absolute() {
        return Ok(name.to_owned());
    }
    Ok(fs::read_link(format!("/proc/{process}/cwd"))?.join(name))
}

/// Links that lead to a name of the process's own.
const LINKS: usize = 8;

fn open_seen(process: i32, path: &Path, links: usize) -> io::Result<OwnedFd> {
    let opened = open_inside(process, path).or_else(|_| open_own(process, path));
    let (Err(error), Some(folder), true) = (&opened, path.parent(), links > 0) else { return opened };
    let leads = link_inside(process, path).map_err(|_| io::Error::from(error.kind()))?;
    open_seen(process, &folder.join(leads), links - 1)
}

/// Where a link leads, by its text.
fn link_inside(process: i32, path: &Path) -> io::Result<PathBuf> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::NotFound.into());
    };
    let text = readlinkat(open_inside(process, folder)?, name, Vec::new())?;
    Ok(PathBuf::from(OsStr::from_bytes(text.as_bytes())))
}

fn open_inside(process: i32, path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let root = openat(CWD, format!("/proc/{process}/root"), flags | OFlags::DIRECTORY, Mode::empty())?;
    let below = path.as_os_str().as_bytes();
    let below = below.strip_prefix(b"/").unwrap_or(below);
    Ok(openat2(&root, below, flags, Mode::empty(), ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS)?)
}

/// What a process names as its own: `/proc/self/fd/7`, `/dev/fd/7`, `/proc/self/root/…`. To us these would be ours.
fn open_own(process: i32, path: &Path) -> io::Result<OwnedFd> {
    let unknown = || io::Error::from_raw_os_error(libc::ELOOP);
    let own = PathBuf::from(format!("/proc/{process}"));
    let below = |start: &str| path.strip_prefix(start).ok();
    let at = match (below("/proc/self").or_else(|| below("/proc/thread-self")), below("/dev/fd")) {
        (Some(rest), _) => own.join(rest),
        (None, Some(rest)) => own.join("fd").join(rest),
        (None, None) if path == Path::new("/dev/stdin") => own.join("fd/0"),
        (None, None) => return Err(unknown()),
    };
    // The link itself, and what is below where it leads.
    let links = if at.starts_with(own.join("fd")) { 5 } else { 4 };
    let link: PathBuf = at.components().take(links).collect();
    let rest = at.strip_prefix(&link).map_err(|_| unknown())?;
    if rest.as_os_str().is_empty() {
        return Ok(openat(CWD, &link, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?);
    }
    open_inside(process, &fs::read_link(&link)?.join(rest))
}

/// Options of the dynamic loader that take a word more.
const WITH_WORD: [&[u8]; 7] = [
    b"--library-path",
    b"--preload",
    b"--audit",
    b"--inhibit-rpath",
    b"--argv0",
    b"--glibc-hwcaps-prepend",
    b"--glibc-hwcaps-mask",
];

/// What dynamic loaders are called, and where they are.
const LOADER_NAMES: [&str; 5] = ["ld-linux", "ld-musl", "ld.so", "ld64.so", "ld-2."];
const LOADERS: [&str; 2] = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-musl-x86_64.so.1"];

fn is_loader_name(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    LOADER_NAMES.iter().any(|start| name.starts_with(start))
}

/// The path and the inode of the file that is mapped at an address.
fn mapped_at(process: i32, address: u64) -> io::Result<(String, u64)> {
    let maps = fs::read(format!("/proc/{process}/maps"))?;
    let maps = String::from_utf8_lossy(&maps);
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let holds = |line: &&str| {
        let bounds = line.split_once(' ').and_then(|(bounds, _)| bounds.split_once('-'));
        let bounds = bounds.and_then(|(from, to)| Some(number(from)?..number(to)?));
        bounds.is_some_and(|bounds| bounds.contains(&address))
    };
    // `from-to mode offset device inode   path`
    let found = maps.lines().find(holds).and_then(|line| {
        let (inode, path) = line.splitn(5, ' ').nth(4)?.split_once(' ')?;
        Some((path.trim_start().to_owned(), inode.parse().ok()?))
    });
    found.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Which of its arguments a dynamic loader is asked to load.
fn loads(argv: &[&[u8]]) -> Option<usize> {
    let mut at = 1;
    while let Some(word) = argv.get(at).filter(|word| word.starts_with(b"--")) {
        at += if WITH_WORD.contains(word) { 2 } else { 1 };
    }
    argv.get(at).map(|_| at)
}

/// Without `.`, `..` and doubled slashes, by its text.
fn plain(path: &Path) -> String {
    let mut plain = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::Normal(name) => plain.push(name),
            Component::ParentDir => drop(plain.pop()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    plain.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loader_is_known_with_what_it_loads() {
        let at = |words: &[&str]| {
            let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
            loads(&words)
        };
        assert_eq!(at(&["ld", "/bin/ls"]), Some(1));
        assert_eq!(at(&["ld", "--argv0", "x", "--inhibit-cache", "/bin/ls"]), Some(4));
        assert_eq!(at(&["ld", "--list"]), None);
    }

    #[test]
    fn a_path_is_made_plain_by_its_text() {
        assert_eq!(plain(Path::new("/usr/bin/./..//bin/git")), "/usr/bin/git");
        assert_eq!(plain(Path::new("/../x")), "/x");
    }
}
