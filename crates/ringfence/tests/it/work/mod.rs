//! Ordinary work runs unharmed: what people and their tools do all day does the same inside the fence as outside.
//!
//! Each piece of work is prepared once, then run twice at the same place: bare, and through `ringfence sandbox`. Exit
//! code, output and the files left behind must be equal, and the output must hold what the work is about, so that two
//! failures are not mistaken for success. Since both runs happen at the same path there is no path to normalise; where
//! something else must differ (times, pids, addresses) the work's own script says so and replaces it.
//!
//! Programs that are missing fail the test by name: `conformance/packages.sh` installs them.

mod compilers;
mod files;
mod git;
mod network;
mod node;
mod place;
mod processes;
mod python;
mod run;
mod system;

pub use place::Who;
pub use run::Run;

/// A piece of work, as data: what is there before, what is run, and what it must say.
#[derive(Clone)]
pub struct Work {
    command: Vec<String>,
    files: Vec<(&'static str, &'static str)>,
    prepare: String,
    stdin: Vec<u8>,
    needs: Vec<&'static str>,
    code: i32,
    says: Vec<&'static str>,
    workspace: &'static str,
    untidy: Vec<&'static str>,
    own_toolchain: bool,
    in_tmp: bool,
}

impl Work {
    /// A script for bash that ends at the first failure.
    pub fn script(text: &str) -> Work {
        Work::argv(["bash", "-euo", "pipefail", "-c", text])
    }

    pub fn argv<S: Into<String>>(words: impl IntoIterator<Item = S>) -> Work {
        Work {
            command: words.into_iter().map(Into::into).collect(),
            files: vec![],
            prepare: String::new(),
            stdin: vec![],
            needs: vec![],
            code: 0,
            says: vec![],
            workspace: "ws",
            untidy: vec![],
            own_toolchain: false,
            in_tmp: false,
        }
    }

    /// A file in the workspace, before anything runs.
    pub fn file(mut self, name: &'static str, text: &'static str) -> Self {
        self.files.push((name, text));
        self
    }

    /// A script that is run bare, once, before both runs.
    pub fn prepared(mut self, script: &str) -> Self {
        self.prepare = script.into();
        self
    }

    pub fn stdin(mut self, bytes: Vec<u8>) -> Self {
        self.stdin = bytes;
        self
    }

    /// Programs that it cannot do without.
    pub fn needs(mut self, programs: &[&'static str]) -> Self {
        self.needs.extend(programs);
        self
    }

    /// How it ends, if not with 0: the code, or 128 and the signal.
    pub fn ends(mut self, code: i32) -> Self {
        self.code = code;
        self
    }

    /// What must be in its output, standard error included.
    pub fn says(mut self, text: &'static str) -> Self {
        self.says.push(text);
        self
    }

    /// The workspace is this folder, beside the one where the work was prepared.
    pub fn workspace(mut self, name: &'static str) -> Self {
        self.workspace = name;
        self
    }

    /// A folder whose files have names that differ from run to run, wherever it runs.
    pub fn untidy(mut self, folder: &'static str) -> Self {
        self.untidy.push(folder);
        self
    }

    /// It uses a toolchain that may lie in the home of whoever installed it, where other users cannot read it.
    pub fn own_toolchain(mut self) -> Self {
        self.own_toolchain = true;
        self
    }

    /// The workspace lies in `/tmp`, of which the fence has its own.
    pub fn in_tmp(mut self) -> Self {
        self.in_tmp = true;
        self
    }

    /// Runs it bare and fenced, and finds no difference.
    pub fn same_in_the_fence(&self, who: Who) {
        let Some(place) = place::prepare(self, who) else { return };
        let bare = place.bare(self);
        assert_eq!(bare.code, self.code, "outside the fence already: {bare:#?}");
        for text in &self.says {
            assert!(
                bare.text().contains(text),
                "outside the fence it does not say {text:?}: {bare:#?}"
            );
        }
        let fenced = place.fenced(self);
        if let Some(difference) = bare.difference(&fenced) {
            panic!(
                "not the same in the fence ({who:?}): {difference}\noutside: {bare:#?}\nin the fence: {fenced:#?}"
            );
        }
    }

    /// Runs it fenced alone, for what has to differ.
    pub fn in_the_fence(&self, who: Who) -> Option<Run> {
        let fenced = place::prepare(self, who)?.fenced(self);
        assert_eq!(fenced.code, self.code, "{fenced:#?}");
        for text in &self.says {
            assert!(fenced.text().contains(text), "it does not say {text:?}: {fenced:#?}");
        }
        Some(fenced)
    }
}

/// One piece of work as two tests: by root, and by a user without any privilege.
macro_rules! work {
    ($($(#[$about:meta])* $name:ident: $work:expr;)+) => {$(
        $(#[$about])*
        mod $name {
            #[allow(unused_imports, reason = "not every piece of work uses what stands around it")]
            use super::*;

            #[test]
            fn as_root() {
                ($work).same_in_the_fence($crate::work::Who::Root);
            }

            #[test]
            fn as_user() {
                ($work).same_in_the_fence($crate::work::Who::User);
            }
        }
    )+};
}
pub(crate) use work;
