//! Digest of an installed tree, and a stamp that tells cheaply whether anything in it may have
//! changed.
//!
//! The contents come from strangers: special files and links out of the tree are refused before
//! anyone opens anything in it.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use aws_lc_rs::digest::{Context, SHA256};

use crate::base::ids::to_hex;

/// Largest tree; the biggest known servers have a fifth of it.
const MAX_ENTRIES: usize = 250_000;
const MAX_DEPTH: usize = 100;
const MAX_BYTES: u64 = 4 << 30;
const CHUNK_BYTES: usize = 64 << 10;

/// State of a tree as the kernel reports it. No program can set the time of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeStamp(String);

/// Returns the digest over paths, modes and contents. Blocks.
pub fn digest_tree(tree: &Path) -> io::Result<String> {
    let mut hash = Context::new(&SHA256);
    let mut total_bytes = 0;
    walk_tree(tree, |relative_path, metadata| {
        add_field(&mut hash, relative_path.as_os_str().as_bytes());
        add_field(&mut hash, &metadata.mode().to_le_bytes());
        let path = tree.join(relative_path);
        if metadata.is_symlink() {
            add_field(&mut hash, std::fs::read_link(&path)?.as_os_str().as_bytes());
        } else if metadata.is_file() {
            total_bytes += metadata.len();
            if total_bytes > MAX_BYTES {
                return Err(io::Error::other("the package is too large"));
            }
            add_field(&mut hash, &digest_file(&path)?);
        }
        Ok(())
    })?;
    Ok(format!("sha256:{}", to_hex(hash.finish().as_ref())))
}

/// Returns the stamp. Blocks, for a fraction of the time that the digest takes.
pub fn stamp_tree(tree: &Path) -> io::Result<TreeStamp> {
    let mut hash = Context::new(&SHA256);
    walk_tree(tree, |relative_path, metadata| {
        add_field(&mut hash, relative_path.as_os_str().as_bytes());
        for number in [metadata.dev(), metadata.ino(), metadata.size(), metadata.mode().into()] {
            hash.update(&number.to_le_bytes());
        }
        for number in [metadata.ctime(), metadata.ctime_nsec()] {
            hash.update(&number.to_le_bytes());
        }
        Ok(())
    })?;
    Ok(TreeStamp(to_hex(hash.finish().as_ref())))
}

/// The length keeps one field from being read as two.
fn add_field(hash: &mut Context, bytes: &[u8]) {
    hash.update(&(bytes.len() as u64).to_le_bytes());
    hash.update(bytes);
}

fn digest_file(path: &Path) -> io::Result<Vec<u8>> {
    let mut hash = Context::new(&SHA256);
    let mut file = File::open(path)?;
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        match file.read(&mut chunk)? {
            0 => return Ok(hash.finish().as_ref().to_vec()),
            count => hash.update(&chunk[..count]),
        }
    }
}

/// Visits every entry in the order of the paths. The tree itself is not visited, so that it can be
/// renamed.
fn walk_tree(
    tree: &Path,
    mut visit: impl FnMut(&Path, &Metadata) -> io::Result<()>,
) -> io::Result<()> {
    let mut entries = 0;
    let mut waiting = list_names(tree, Path::new(""))?;
    while let Some(relative_path) = waiting.pop() {
        entries += 1;
        if entries > MAX_ENTRIES || relative_path.components().count() > MAX_DEPTH {
            return Err(io::Error::other("the package has too many files"));
        }
        let path = tree.join(&relative_path);
        let metadata = path.symlink_metadata()?;
        check_entry(&relative_path, tree, &metadata)?;
        visit(&relative_path, &metadata)?;
        if metadata.is_dir() {
            waiting.extend(list_names(tree, &relative_path)?);
        }
    }
    Ok(())
}

/// Returns the entries of a directory, the last one first.
fn list_names(tree: &Path, directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(tree.join(directory))? {
        paths.push(directory.join(entry?.file_name()));
        if paths.len() > MAX_ENTRIES {
            return Err(io::Error::other("the package has too many files"));
        }
    }
    paths.sort_unstable_by(|one, other| other.cmp(one));
    Ok(paths)
}

fn check_entry(relative_path: &Path, tree: &Path, metadata: &Metadata) -> io::Result<()> {
    let refuse = |problem: &str| {
        Err(io::Error::other(format!(
            "the package contains {problem}: {}",
            relative_path.display()
        )))
    };
    if metadata.is_symlink() && leaves_tree(relative_path, tree)? {
        return refuse("a link to somewhere else");
    }
    match metadata.is_symlink() || metadata.is_dir() || metadata.is_file() {
        true => Ok(()),
        false => refuse("something that is neither a file nor a directory"),
    }
}

/// Returns whether a link leads out of the tree: by its text, or through other links.
fn leaves_tree(link: &Path, tree: &Path) -> io::Result<bool> {
    let path = tree.join(link);
    let mut depth = link.components().count().saturating_sub(1);
    for component in std::fs::read_link(&path)?.components() {
        match component {
            Component::Normal(_) => depth += 1,
            Component::CurDir => {}
            Component::ParentDir if depth > 0 => depth -= 1,
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return Ok(true),
        }
    }
    // A link to nothing leads nowhere.
    Ok(path.canonicalize().is_ok_and(|target| !target.starts_with(tree)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::config::scratch::Scratch;

    fn make_tree(scratch: &Scratch, name: &str) -> PathBuf {
        scratch.file(&format!("{name}/a/one"), "1");
        scratch.file(&format!("{name}/two"), "2");
        let tree = scratch.path().join(name);
        symlink("../two", tree.join("a/link")).unwrap();
        tree
    }

    #[test]
    fn the_digest_names_paths_modes_and_contents_and_nothing_else() {
        let scratch = Scratch::new();
        let tree = make_tree(&scratch, "first");
        let digest = digest_tree(&tree).unwrap();
        assert_eq!(digest, digest_tree(&make_tree(&scratch, "second")).unwrap());
        let renamed = scratch.path().join("renamed");
        std::fs::rename(&tree, &renamed).unwrap();
        assert_eq!(digest, digest_tree(&renamed).unwrap());
        type TreeChange = fn(&Path);
        let changes: [(&str, TreeChange); 5] = [
            ("contents", |tree| std::fs::write(tree.join("two"), "3").unwrap()),
            ("path", |tree| std::fs::rename(tree.join("two"), tree.join("three")).unwrap()),
            ("mode", |tree| {
                std::fs::set_permissions(tree.join("two"), PermissionsExt::from_mode(0o755))
                    .unwrap();
            }),
            ("link", |tree| {
                std::fs::remove_file(tree.join("a/link")).unwrap();
                symlink("one", tree.join("a/link")).unwrap();
            }),
            ("new file", |tree| std::fs::write(tree.join("a/new"), "").unwrap()),
        ];
        for (name, change) in changes {
            let tree = make_tree(&scratch, name);
            let stamp = stamp_tree(&tree).unwrap();
            assert_eq!(stamp, stamp_tree(&tree).unwrap());
            change(&tree);
            assert_ne!(digest, digest_tree(&tree).unwrap(), "{name}");
            assert_ne!(stamp, stamp_tree(&tree).unwrap(), "{name}");
        }
    }

    #[test]
    fn links_out_of_the_tree_and_special_files_are_refused() {
        let scratch = Scratch::new();
        scratch.file("outside", "");
        for (index, target) in
            ["/etc/passwd", "../../x", "b/../../../x", "up/../outside"].into_iter().enumerate()
        {
            let tree = make_tree(&scratch, &index.to_string());
            symlink("..", tree.join("a/up")).unwrap();
            assert!(digest_tree(&tree).is_ok());
            symlink(target, tree.join("a/out")).unwrap();
            assert!(digest_tree(&tree).is_err(), "{target}");
        }
        let tree = make_tree(&scratch, "pipe");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(
            rustix::fs::CWD,
            tree.join("pipe"),
            rustix::fs::FileType::Fifo,
            mode,
            0,
        )
        .unwrap();
        assert!(digest_tree(&tree).is_err());
    }
}
