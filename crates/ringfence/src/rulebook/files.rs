//! Which files hold rules, and whether they are the same as before.

use std::fs::{File, Metadata};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rules::{Fault, Source};

use super::{Ignored, Places, project};

/// No operator writes more than this by hand.
const MAX_BYTES: u64 = 4 << 20;

/// Everything that was found. Two that are equal lead to the same rules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// In the order in which they are read.
    pub operator: Vec<Rules>,
    pub project: Vec<Rules>,
    /// What could not even be looked at.
    pub faults: Vec<Fault>,
    pub ignored: Vec<Ignored>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    pub path: PathBuf,
    stamp: Option<Stamp>,
}

/// What changes when a file does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    pub fn of(about: &Metadata) -> Stamp {
        Stamp {
            device: about.dev(),
            inode: about.ino(),
            size: about.size(),
            modified: (about.mtime(), about.mtime_nsec()),
            changed: (about.ctime(), about.ctime_nsec()),
        }
    }
}

impl Rules {
    pub fn new(path: PathBuf, about: Option<&Metadata>) -> Rules {
        Rules { path, stamp: about.map(Stamp::of) }
    }

    pub fn name(&self) -> String {
        self.path.to_string_lossy().into_owned()
    }
}

impl Found {
    /// When looking itself has failed.
    pub fn unknown() -> Found {
        Found {
            faults: vec![Fault::of_file("rules", "the rules files could not be looked at")],
            ..Found::default()
        }
    }
}

pub fn find(places: &Places, workspace: Option<&Path>) -> Found {
    let mut found = Found::default();
    for dir in &places.dirs {
        if let Err(error) = list(dir, &mut found)
            && error.kind() != ErrorKind::NotFound
        {
            found.faults.push(Fault::of_file(
                &dir.to_string_lossy(),
                &format!("cannot be listed: {error}"),
            ));
        }
    }
    // One that is missing is told of when it is read.
    found.operator.extend(
        places.files.iter().map(|path| Rules::new(path.clone(), path.metadata().ok().as_ref())),
    );
    if let Some(workspace) = workspace {
        project::find(workspace, &mut found);
    }
    found
}

/// Regular files by the name of `*.rules`, sorted. Codex follows no link here, so neither do we, but we say so.
fn list(dir: &Path, found: &mut Found) -> io::Result<()> {
    let mut rules = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let path = entry.path();
        if path.extension().is_none_or(|extension| extension != "rules") {
            continue;
        }
        match entry.metadata() {
            Ok(about) if about.is_file() => rules.push(Rules::new(path, Some(&about))),
            Ok(about) if about.is_symlink() => found.ignored.push(Ignored::file(
                &path.to_string_lossy(),
                "a link is not read here, as in Codex: name its target with --rules",
            )),
            Ok(_) => {}
            // Gone between the two looks; whatever else it is, reading will tell.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(_) => rules.push(Rules::new(path, None)),
        }
    }
    rules.sort_by(|one, other| one.path.cmp(&other.path));
    found.operator.extend(rules);
    Ok(())
}

/// The texts of the operator's files.
pub fn read(rules: &[Rules]) -> (Vec<Source>, Vec<Fault>) {
    let mut sources = Vec::new();
    let mut faults = Vec::new();
    for file in rules {
        match File::open(&file.path).and_then(|opened| text(opened, MAX_BYTES)) {
            Ok(text) => sources.push(Source { name: file.name(), text }),
            Err(error) => {
                faults.push(Fault::of_file(&file.name(), &format!("cannot be read: {error}")))
            }
        }
    }
    (sources, faults)
}

/// All of it, if it is text and not too much.
pub fn text(file: File, most: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::other(format!("it is larger than {} KiB", most >> 10)));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::other("it is not UTF-8"))
}
