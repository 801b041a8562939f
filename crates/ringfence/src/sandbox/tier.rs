//! Ways to create the namespaces of profile `default`, the best first. They are tried in turn,
//! since nothing else shows which of them works.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};

use jail::namespaces::Tier;
use jail::packet::PacketChannel;

/// Absolute, so that nothing in a workspace or on a user's PATH can take its place.
const BWRAP_PATHS: &[&str] = &["/usr/bin/bwrap", "/usr/local/bin/bwrap"];

/// Returns the tiers to try, in order of preference.
pub fn available_tiers() -> Vec<Tier> {
    // Where the mounts alone have to hold, they are set up in the one way that is tested for it.
    if !jail::has_required_landlock() {
        return vec![Tier::Mounts];
    }
    let mut tiers = vec![Tier::Namespaces];
    if find_bwrap().is_some() {
        tiers.push(Tier::Bwrap);
    }
    if rustix::process::geteuid().is_root() {
        tiers.push(Tier::Root);
    }
    tiers
}

fn find_bwrap() -> Option<&'static Path> {
    BWRAP_PATHS.iter().map(Path::new).find(|path| path.is_file())
}

/// Builds the command that starts a zygote in this tier, with its end of the channel.
pub fn zygote_command(tier: Tier, program: &Path, channel: PacketChannel) -> io::Result<Command> {
    let mut command = match (tier, find_bwrap()) {
        (Tier::Bwrap, Some(bwrap)) => {
            let mut command = Command::new(bwrap);
            command.args(bwrap_args());
            // Inside bubblewrap our binary may have no path, so it is started from a descriptor.
            command.stdout(Stdio::from(File::open(program)?));
            command
        }
        _ => {
            let mut command = Command::new(program);
            command.stdout(Stdio::null());
            command
        }
    };
    command.arg(jail::zygote::ARGUMENT).env_clear();
    command.stdin(Stdio::from(OwnedFd::from(channel))).stderr(Stdio::null());
    Ok(command)
}

/// Returns bubblewrap's arguments: a user namespace in which everything is as outside, with every
/// capability. The sandbox itself is built by our own code.
fn bwrap_args() -> Vec<OsString> {
    let user = rustix::process::geteuid().as_raw().to_string();
    let group = rustix::process::getegid().as_raw().to_string();
    let args = [
        "--unshare-user",
        "--uid",
        &user,
        "--gid",
        &group,
        "--cap-add",
        "ALL",
        "--dev-bind",
        "/",
        "/",
    ];
    args.iter().chain(&["--die-with-parent", "--", "/proc/self/fd/1"]).map(OsString::from).collect()
}
