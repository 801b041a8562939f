//! Secrets on disk: credentials in the home directory, the server's own root, and what the caller hides.

use super::{Cx, absent, by_default, held, unchanged};

const CREDENTIALS: &[&str] = &[
    ".ssh/id_ed25519",
    ".aws/credentials",
    ".gnupg/private-keys-v1.d/key",
    ".codex/auth.json",
    ".netrc",
    ".git-credentials",
    ".docker/config.json",
    ".kube/config",
    ".config/gh/hosts.yml",
];

/// Fills every place with one secret; the attack is told the home directory.
fn stays_unread(script: &str) {
    by_default().holds(|cx| {
        let secret = fill(cx);
        cx.bash(script, &[&cx.path("home")]).knows_nothing_of(&secret)
    });
}

fn fill(cx: &Cx) -> String {
    let secret = cx.secret();
    for name in CREDENTIALS {
        cx.file(&cx.path(&format!("home/{name}")), &secret);
    }
    secret
}

/// One test for each place, or a place that is open would hide behind another.
fn is_hidden(name: &str) {
    by_default().holds(|cx| {
        let secret = fill(cx);
        cx.bash(r#"cat "$1"; cp "$1" copy; cat copy"#, &[&cx.path(&format!("home/{name}"))])
            .knows_nothing_of(&secret)
    });
}

#[test]
fn keys_of_ssh_are_hidden() {
    is_hidden(".ssh/id_ed25519");
}

#[test]
fn credentials_of_aws_are_hidden() {
    is_hidden(".aws/credentials");
}

#[test]
fn keys_of_gnupg_are_hidden() {
    is_hidden(".gnupg/private-keys-v1.d/key");
}

#[test]
fn the_login_of_codex_is_hidden() {
    is_hidden(".codex/auth.json");
}

#[test]
fn passwords_in_netrc_are_hidden() {
    is_hidden(".netrc");
}

#[test]
fn passwords_that_git_stored_are_hidden() {
    is_hidden(".git-credentials");
}

#[test]
fn the_login_of_docker_is_hidden() {
    is_hidden(".docker/config.json");
}

#[test]
fn the_login_of_kubernetes_is_hidden() {
    is_hidden(".kube/config");
}

#[test]
fn the_login_of_gh_is_hidden() {
    is_hidden(".config/gh/hosts.yml");
}

#[test]
fn no_secret_is_found_by_reading_the_whole_home_directory() {
    stays_unread(r#"grep -r . "$1"; tar -C "$1" -cf - . ; cp -r "$1" copy; grep -r . copy"#);
}

#[test]
fn no_secret_is_read_through_a_link_in_the_workspace() {
    stays_unread(
        r#"ln -s "$1" home; cat home/.ssh/* home/.netrc home/.aws/*; ln "$1/.netrc" hard; cat hard"#,
    );
}

#[test]
fn no_secret_is_read_by_way_of_proc() {
    stays_unread(
        r#"for at in self/root 1/root 1/cwd self/cwd/../../../../../../../../..; do cat "/proc/$at$1/.netrc" "/proc/$at$1/.ssh/id_ed25519"; done
exec 7< "$1"; cat /proc/self/fd/7/.netrc /proc/self/fd/7/.ssh/*"#,
    );
}

#[test]
fn no_secret_is_read_after_moving_its_directory() {
    stays_unread(
        r#"mv "$1/.ssh" "$1/moved"; mv "$1/.ssh" taken; mv "$1" all; cat "$1"/moved/* taken/* all/.ssh/* all/.netrc"#,
    );
}

#[test]
fn no_cover_is_taken_off() {
    stays_unread(
        r#"for at in "$1/.ssh" "$1/.netrc"; do umount -l "$at"; unshare -Urm umount -l "$at"; unshare -Urm sh -c "mount --bind / /mnt; cat /mnt$at; cat /mnt$at/*"; done
cat "$1"/.ssh/* "$1"/.netrc"#,
    );
}

/// Dotfiles are often links into a directory of their own.
#[test]
fn credentials_behind_a_link_are_hidden() {
    by_default().holds(|cx| {
        let secret = cx.secret();
        cx.file(&cx.path("home/dotfiles/ssh/id_ed25519"), &secret);
        std::os::unix::fs::symlink("dotfiles/ssh", cx.path("home/.ssh")).unwrap();
        cx.bash(r#"cat "$1"/.ssh/*"#, &[&cx.path("home")]).knows_nothing_of(&secret)
    });
}

/// Whoever knows a handle needs no name.
#[test]
fn a_hidden_file_is_not_opened_by_its_handle() {
    by_default().bare_as_root().holds(|cx| {
        let secret = fill(cx);
        let handle = r"
handle = ctypes.create_string_buffer(struct.pack('=Ii', 128, 0) + bytes(128))
syscall('name_to_handle_at', -100, sys.argv[1].encode(), handle, ctypes.byref(ctypes.c_int()), 0)
say('handle', handle.raw.hex())
";
        let file = cx.path("home/.netrc");
        let known = cx.bystander(handle, &[&file]).end();
        let script = r"
handle = ctypes.create_string_buffer(bytes.fromhex(sys.argv[1]))
for place in ['.', '/', '/usr', '/tmp']:
    mount = os.open(place, os.O_RDONLY)
    fd = tried('handle', lambda: syscall('open_by_handle_at', mount, handle, os.O_RDONLY))
    if fd is not None:
        say(os.read(fd, 1000))
";
        cx.python(script, &[known.word("handle")]).knows_nothing_of(&secret)
    });
}

#[test]
fn nothing_is_planted_among_the_credentials() {
    by_default().holds(|cx| {
        fill(cx);
        let script = r#"for at in .ssh .aws .gnupg .kube .config/gh; do echo evil > "$1/$at/planted"; done; echo evil > "$1/.ssh/authorized_keys"; chmod 777 "$1/.ssh""#;
        cx.bash(script, &[&cx.path("home")]);
        [".ssh/authorized_keys", ".ssh/planted", ".aws/planted", ".gnupg/planted", ".kube/planted", ".config/gh/planted"]
            .iter()
            .try_for_each(|name| absent(cx.path(&format!("home/{name}"))))
    });
}

#[test]
fn what_the_caller_hides_is_hidden() {
    by_default().holds(|cx| {
        let secret = cx.secret();
        let (file, folder) = (cx.outside("file", &secret), cx.path("outside/folder"));
        cx.file(&format!("{folder}/file"), &secret);
        let fence = cx.fence().args(&["--hide", &file, "--hide", &folder]);
        fence
            .bash(r#"cat "$1" "$2"/*; grep -r . "$(dirname "$1")""#, &[&file, &folder])
            .knows_nothing_of(&secret)
    });
}

#[test]
fn what_the_caller_hides_in_the_workspace_is_hidden_and_stays() {
    by_default().holds(|cx| {
        let secret = cx.secret();
        let file = cx.inside("settings/.env", &secret);
        let script = "cat settings/.env; mv settings s; cat s/.env; ln settings/.env x; cat x; rm -f settings/.env; echo after > settings/.env";
        let run = cx.fence().args(&["--hide", &file]).bash(script, &[]);
        run.knows_nothing_of(&secret)?;
        unchanged(file, &secret)
    });
}

/// What one run moves, the next one may find where nothing covers it.
#[test]
fn what_is_hidden_stays_hidden_in_the_next_run() {
    by_default().holds(|cx| {
        let secret = cx.secret();
        let file = cx.inside("deep/settings/.env", &secret);
        let hide = ["--hide", file.as_str()];
        cx.fence()
            .args(&hide)
            .bash("mv deep/settings deep/moved; mv deep away; mv deep/settings/.env taken", &[]);
        let run = cx.fence().args(&hide).bash("grep -rs . .", &[]);
        run.knows_nothing_of(&secret)
    });
}

/// A place that may be written and that the server's own root lies in.
#[test]
fn a_writable_root_around_the_servers_root_does_not_show_it() {
    by_default().holds(|cx| {
        let secret = cx.secret();
        let file = cx.file(&cx.path("root/audit/log"), &secret);
        let around = cx.path("root").trim_end_matches("/root").to_owned();
        let script = r#"echo begun; cat "$1" | tee copy; echo after > "$1"; rm -rf "$2"; true"#;
        let fence = cx.fence().args(&["--writable", &around]);
        // To refuse such a place is as good.
        fence.start(&["bash", "-c", script, "bash", &file, &cx.path("root")]).end_unless_refused();
        let copy = std::fs::read_to_string(cx.workspace("copy")).unwrap_or_default();
        held(!copy.contains(&secret), "it was read")?;
        unchanged(file, &secret)
    });
}

#[test]
fn the_names_of_hidden_files_are_hidden() {
    by_default().holds(|cx| {
        let name = cx.secret();
        cx.file(&cx.path(&format!("home/.ssh/{name}")), "x");
        cx.bash(r#"ls -a "$1/.ssh"; find "$1/.ssh""#, &[&cx.path("home")]).knows_nothing_of(&name)
    });
}

#[test]
fn the_root_of_the_server_is_hidden() {
    by_default().holds(|cx| {
        let secret = cx.secret();
        let root = cx.path("root");
        let file = cx.file(&format!("{root}/audit/{secret}"), &secret);
        cx.bash(r#"cat "$1"/audit/*; ls -R "$1"; grep -r . "$1""#, &[&root])
            .knows_nothing_of(&secret)?;
        cx.bash(r#"echo after > "$1/planted"; echo after > "$2"; rm -rf "$1""#, &[&root, &file]);
        absent(format!("{root}/planted"))?;
        unchanged(file, &secret)
    });
}

#[test]
fn the_rest_of_the_home_directory_can_be_read() {
    by_default().never_bare().holds(|cx| {
        let file = cx.file(&cx.path("home/notes"), "harmless");
        let run = cx.bash(r#"cat "$1""#, &[&file]);
        held(run.stdout.contains("harmless"), format!("it cannot: {run:?}"))
    });
}

/// A run that waits until a hidden place is covered and then reads what has been put there.
const LATE: &str = r"
def covered():
    try:
        return os.stat(sys.argv[1]).st_mode & 0o777 == 0
    except OSError:
        return True
say('begins')
sys.stdin.readline()
until = time.monotonic() + float(sys.argv[3])
while not covered() and time.monotonic() < until:
    time.sleep(0.002)
say('waited')
sys.stdin.readline()
tried('read', lambda: say(get(sys.argv[2])))
";

/// Somebody on the host logs in to something while a run lives. `place` is on the list of hidden places, `file` is the
/// file with the secret, in `place` or `place` itself, and `make` makes `place` in the home directory.
fn is_hidden_when_made_late(place: &str, file: &str, make: impl Fn(&Cx, &str)) {
    by_default().holds(|cx| {
        let secret = cx.secret();
        let (path, file) = (cx.path(&format!("home/{place}")), cx.path(&format!("home/{file}")));
        // Without a fence there is nothing to wait for.
        let patience = if cx.is_fenced() { "10" } else { "0" };
        let mut live = cx.fence().start_python(LATE, &[&path, &file, patience]);
        live.wait_for("begins");
        make(cx, &path);
        live.tell("made");
        live.wait_for("waited");
        cx.file(&file, &secret);
        live.tell("written");
        live.end().knows_nothing_of(&secret)
    });
}

#[test]
fn credentials_are_hidden_that_are_made_while_a_run_lives() {
    is_hidden_when_made_late(".aws", ".aws/credentials", |cx, place| drop(cx.folder(place)));
}

/// Nothing of the way to them existed when the run began.
#[test]
fn credentials_are_hidden_whose_whole_way_is_made_while_a_run_lives() {
    is_hidden_when_made_late(".config/gh", ".config/gh/hosts.yml", |cx, place| {
        drop(cx.folder(place))
    });
    let cargo = ".cargo/credentials.toml";
    is_hidden_when_made_late(cargo, cargo, |cx, place| drop(cx.file(place, "")));
}

/// A directory on the way is replaced by another one, in which the credentials are.
#[test]
fn credentials_are_hidden_that_come_with_another_directory() {
    is_hidden_when_made_late(".config/gh", ".config/gh/hosts.yml", |cx, place| {
        let (config, other) = (cx.path("home/.config"), cx.path("home/other"));
        cx.folder(&format!("{other}/gh"));
        std::fs::rename(&other, &config).unwrap();
        cx.folder(place);
    });
}

/// A link that led nowhere when the run began.
#[test]
fn credentials_are_hidden_that_are_made_behind_a_link() {
    by_default().holds(|cx| {
        let (secret, target) = (cx.secret(), cx.path("home/dotfiles/aws"));
        std::os::unix::fs::symlink("dotfiles/aws", cx.path("home/.aws")).unwrap();
        let file = format!("{target}/credentials");
        let patience = if cx.is_fenced() { "10" } else { "0" };
        let mut live = cx.fence().start_python(LATE, &[&target, &file, patience]);
        live.wait_for("begins");
        cx.folder(&target);
        live.tell("made");
        live.wait_for("waited");
        cx.file(&file, &secret);
        live.tell("written");
        live.end().knows_nothing_of(&secret)
    });
}

/// Programs keep credentials where a variable says instead of in the home directory.
#[test]
fn credentials_are_hidden_where_a_variable_says() {
    for (variable, value, file) in [
        ("CARGO_HOME", "cargo", "cargo/credentials.toml"),
        ("XDG_CONFIG_HOME", "settings", "settings/gh/hosts.yml"),
        ("GNUPGHOME", "keys", "keys/private-keys-v1.d/key"),
        ("AWS_SHARED_CREDENTIALS_FILE", "aws/login", "aws/login"),
    ] {
        by_default().holds(|cx| {
            let secret = cx.secret();
            let file = cx.outside(file, &secret);
            let fence = cx.fence().env(variable, &cx.path(&format!("outside/{value}")));
            fence.bash(r#"cat "$1""#, &[&file]).knows_nothing_of(&secret)
        });
    }
}

#[test]
fn every_file_of_a_list_is_hidden() {
    by_default().holds(|cx| {
        let secret = cx.secret();
        let (one, two) = (cx.outside("one", &secret), cx.outside("two", &secret));
        let fence = cx.fence().env("KUBECONFIG", &format!("{one}:{two}"));
        fence.bash(r#"cat "$1"; cat "$2""#, &[&one, &two]).knows_nothing_of(&secret)
    });
}
