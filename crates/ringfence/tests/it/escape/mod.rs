//! The escape suite: one test for each way out of the fence, and each asserts what the attack was after (the file, the
//! listener, the process, the secret) rather than how the attempt ended.
//!
//! Every attack runs as root and as an ordinary user in the profile `default`, and in `contained` where its shorter
//! list of promises covers it. It also runs without a fence, where that is harmless, and must then get through: an
//! attack that works nowhere proves nothing. `RINGFENCE_ESCAPE=bare` (or `root/default`, `user/contained`, ...) runs
//! one of these modes alone. `RINGFENCE_TIER=bwrap` (or `root`) comes by the namespaces of `default` another way.

mod cx;
mod disturbance;
mod fence;
mod hidden;
mod kernel;
mod leaks;
mod live;
mod network;
mod privileges;
mod processes;
mod protected;
mod races;
mod sockets;
mod survivors;
mod terminal;
mod writes;

use std::path::Path;

pub use cx::{Cx, Mode, Profile, User};
pub use fence::{Fence, as_user};
pub use live::{Live, Run};

/// What came of an attack: an `Err` says what it achieved.
pub type Effect = Result<(), String>;

/// Who carries out the attack when there is no fence, to show that it has teeth.
enum Bare {
    User,
    Root,
    /// It would harm the machine, or needs what most machines lack.
    Never,
}

/// How often an attack is tried again without a fence.
const TRIES: usize = 3;

pub struct Attack {
    contained: bool,
    bare: Bare,
}

/// Both profiles promise to hold this.
pub fn everywhere() -> Attack {
    Attack { contained: true, bare: Bare::User }
}

/// Only the profile `default` promises to hold this.
pub fn by_default() -> Attack {
    Attack { contained: false, bare: Bare::User }
}

impl Attack {
    pub fn bare_as_root(self) -> Self {
        Attack { bare: Bare::Root, ..self }
    }

    pub fn never_bare(self) -> Self {
        Attack { bare: Bare::Never, ..self }
    }

    /// Runs the attack in every mode, and fails with the modes in which it achieved something.
    #[track_caller]
    pub fn holds(self, attack: impl Fn(&Cx) -> Effect) {
        let mut wrong = Vec::new();
        for mode in self.modes().into_iter().filter(|mode| wanted(*mode)) {
            let mut effect = attack(&Cx::new(mode));
            // Without a fence an attack may come too late on a busy machine. It has to show once that it has teeth; in
            // the fence it has one try, and must not get through in it.
            for _ in 0..if mode.profile.is_none() { TRIES } else { 0 } {
                if effect.is_err() {
                    break;
                }
                effect = attack(&Cx::new(mode));
            }
            match (effect, mode.profile) {
                (Err(effect), Some(_)) => wrong.push(format!("[{mode}] {effect}")),
                (Ok(()), None) => {
                    wrong.push(format!("[{mode}] the attack has no effect even without a fence"))
                }
                _ => {}
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    fn modes(&self) -> Vec<Mode> {
        let users: &[User] = if is_root() { &[User::Root, User::Other] } else { &[User::Own] };
        if !is_root() {
            println!("not root: only the modes of this user are run");
        }
        let profiles: &[Profile] = if self.contained {
            &[Profile::Default, Profile::Contained]
        } else {
            &[Profile::Default]
        };
        let fenced =
            profiles.iter().flat_map(|profile| users.iter().map(|user| (*user, Some(*profile))));
        let bare = match self.bare {
            Bare::User => users.last(),
            Bare::Root => users.iter().find(|user| **user == User::Root),
            Bare::Never => None,
        };
        fenced
            .chain(bare.map(|user| (*user, None)))
            .map(|(user, profile)| Mode { user, profile })
            .collect()
    }
}

/// Without a second user, an attack can still be tried by whoever runs the tests.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn wanted(mode: Mode) -> bool {
    let Ok(only) = std::env::var("RINGFENCE_ESCAPE") else { return true };
    only == mode.to_string() || (only == "bare" && mode.profile.is_none())
}

pub fn held(so: bool, effect: impl Into<String>) -> Effect {
    if so { Ok(()) } else { Err(effect.into()) }
}

pub fn unchanged(file: impl AsRef<Path>, text: &str) -> Effect {
    let file = file.as_ref();
    match std::fs::read_to_string(file) {
        Ok(now) => held(now == text, format!("{} now says {now:?}", file.display())),
        Err(error) => Err(format!("{} is gone: {error}", file.display())),
    }
}

/// Nothing has that name, not even a link that leads nowhere.
pub fn absent(path: impl AsRef<Path>) -> Effect {
    let path = path.as_ref();
    held(std::fs::symlink_metadata(path).is_err(), format!("{} was made", path.display()))
}
