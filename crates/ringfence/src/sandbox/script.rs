//! Checks that a program was started for a script, as the kernel does it.
//!
//! A script's name among the arguments proves little: the name may have led to another program when
//! the kernel followed it, and to the script when we did. So the arguments before it must be those
//! of the script's own first line, and the program must be the one that this line names. Then
//! running the two is running the script, no matter who put them there.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use jail::intercept::exec::wire::FileIdentity;
use jail::shebang::{SHEBANG_BYTES, parse_shebang};

/// Checks that `program` and the arguments before the script are what its first line says.
pub fn check_interpreter(
    script: &OwnedFd,
    interpreter_args: &[String],
    program: &FileIdentity,
) -> Result<(), String> {
    let text =
        read_first_bytes(script).map_err(|error| format!("the script cannot be read: {error}"))?;
    let shebang = parse_shebang(&text).ok_or("the script does not name its interpreter")?;
    let interpreter = shebang.first().and_then(|path| fs::metadata(path).ok());
    let is_program = interpreter.is_some_and(|metadata| {
        (metadata.dev(), metadata.ino()) == (program.device, program.inode)
    });
    match is_program && shebang == interpreter_args {
        true => Ok(()),
        false => Err("it was not started as the script's first line says".to_owned()),
    }
}

fn read_first_bytes(script: &OwnedFd) -> std::io::Result<Vec<u8>> {
    // It was opened only as a path; to be read it must be opened again, through `/proc`.
    let file = File::open(format!("/proc/self/fd/{}", script.as_raw_fd()))?;
    let mut text = Vec::new();
    file.take(SHEBANG_BYTES as u64).read_to_end(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_words_of_the_script_itself_will_do() {
        let path = std::env::temp_dir().join(format!("ringfence-script-{}", std::process::id()));
        fs::write(&path, "#!/bin/sh -e\n").unwrap();
        let script = OwnedFd::from(File::open(&path).unwrap());
        fs::remove_file(path).unwrap();
        let place = |path: &str| {
            let found = fs::metadata(path).unwrap();
            FileIdentity { path: path.to_owned(), device: found.dev(), inode: found.ino() }
        };
        let told = |words: &[&str], program: &str| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            check_interpreter(&script, &words, &place(program)).is_ok()
        };
        assert!(told(&["/bin/sh", "-e"], "/bin/sh"));
        assert!(!told(&["/bin/sh", "-e", "-c", "evil"], "/bin/sh"));
        assert!(!told(&["/bin/sh"], "/bin/sh"));
        assert!(!told(&["sh", "-e"], "/bin/sh"));
        assert!(!told(&["/bin/sh", "-e"], "/bin/cat"));
    }
}
