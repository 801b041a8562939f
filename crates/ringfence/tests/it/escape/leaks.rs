//! What the caller has open, has in its environment or has at home does not come in.

use super::{absent, by_default, everywhere, held, unchanged};

const READ_ALL: &str = r"
for number in range(3, 4096):
    if os.path.lexists(f'/proc/self/fd/{number}'):
        tried(str(number), lambda: say(os.read(number, 1000)))
        tried(str(number), lambda: say(get(f'/proc/self/fd/{number}')))
say('looked')
";

#[test]
fn a_file_that_the_caller_had_open_is_not_read() {
    everywhere().holds(|cx| {
        let secret = cx.secret();
        let file = cx.outside("file", &secret);
        // Without its name the descriptor is the only way to it.
        let before = format!("exec 9< '{file}'; rm -f '{file}'");
        cx.fence().before(&before).python(READ_ALL, &[]).knows_nothing_of(&secret)
    });
}

#[test]
fn a_file_that_the_caller_had_open_under_a_high_number_is_not_read() {
    everywhere().holds(|cx| {
        let secret = cx.secret();
        let file = cx.outside("file", &secret);
        let before = format!("exec 900< '{file}' 255< '{file}'; rm -f '{file}'");
        cx.fence().before(&before).python(READ_ALL, &[]).knows_nothing_of(&secret)
    });
}

#[test]
fn a_file_that_the_caller_had_open_is_not_written() {
    everywhere().holds(|cx| {
        let file = cx.outside("file", "");
        let script = "for number in range(3, 1024): os.path.lexists(f'/proc/self/fd/{number}') and tried(str(number), lambda: os.write(number, b'after'))";
        cx.fence().before(&format!("exec 9>> '{file}'")).python(script, &[]);
        unchanged(file, "")
    });
}

#[test]
fn a_directory_that_the_caller_had_open_leads_nowhere() {
    everywhere().holds(|cx| {
        let folder = cx.path("outside");
        let script = r"
for number in range(3, 1024):
    if os.path.lexists(f'/proc/self/fd/{number}'):
        tried('at', lambda: os.open('new', os.O_CREAT | os.O_WRONLY, dir_fd=number))
        tried('name', lambda: put(f'/proc/self/fd/{number}/new', 'x'))
        tried('into', lambda: os.fchdir(number))
        tried('there', lambda: put('new', 'x'))
";
        let before = format!("exec 9< '{folder}'");
        cx.fence().before(&before).python(script, &[]);
        absent(format!("{folder}/new"))
    });
}

#[test]
fn no_secret_of_the_environment_comes_in() {
    everywhere().holds(|cx| {
        let secret = cx.secret();
        let names = [
            "API_TOKEN",
            "AWS_SECRET_ACCESS_KEY",
            "GITHUB_TOKEN",
            "RINGFENCE_JWT_SECRET",
            "OPENAI_API_KEY",
            "DATABASE_URL",
            "X",
        ];
        let fence = names.iter().fold(cx.fence(), |fence, name| fence.env(name, &secret));
        fence.bash("env; export -p; cat /proc/self/environ", &[]).knows_nothing_of(&secret)
    });
}

/// The processes that hold the fence up were started with the caller's environment.
#[test]
fn no_secret_of_the_environment_is_read_from_another_process() {
    everywhere().holds(|cx| {
        let secret = cx.secret();
        let script =
            "cat /proc/[0-9]*/environ /proc/$PPID/environ /proc/1/environ /proc/[0-9]*/task/*/environ | tr '\\0' '\\n'";
        cx.fence().env("API_TOKEN", &secret).bash(script, &[]).knows_nothing_of(&secret)
    });
}

/// Names that make ordinary programs run something, or send what they do elsewhere.
#[test]
fn no_variable_that_steers_programs_comes_in() {
    everywhere().holds(|cx| {
        let value = cx.path("outside/nothing");
        let names = [
            "BASH_ENV",
            "ENV",
            "PYTHONPATH",
            "NODE_OPTIONS_X",
            "GIT_SSH_COMMAND",
            "GIT_DIR",
            "HTTPS_PROXY",
            "http_proxy",
            "DOCKER_HOST",
            "KUBECONFIG",
            "XDG_RUNTIME_DIR",
            "DBUS_SESSION_BUS_ADDRESS",
            "PERL5LIB",
            "RUBYOPT",
        ];
        let fence = names.iter().fold(cx.fence(), |fence, name| fence.env(name, &value));
        fence.bash("env", &[]).knows_nothing_of(&value)
    });
}

#[test]
fn a_function_of_the_callers_shell_does_not_come_in() {
    everywhere().holds(|cx| {
        let run = cx.fence().before("ls() { echo planted; }; export -f ls").bash("ls", &[]);
        held(!run.stdout.contains("planted"), "it was run")
    });
}

#[test]
fn the_home_of_the_caller_is_not_written() {
    everywhere().holds(|cx| {
        let file = cx.file(&cx.path("home/.bashrc"), "before");
        cx.bash(
            r#"echo after >> ~/.bashrc; echo after >> "$HOME/.profile"; echo after >> "$1""#,
            &[&file],
        );
        absent(cx.path("home/.profile"))?;
        unchanged(file, "before")
    });
}

#[test]
fn what_one_run_has_in_tmp_is_not_seen_by_another() {
    by_default().holds(|cx| {
        let secret = cx.secret();
        let (start, end) = secret.split_at(7);
        let script = format!("put('/tmp/{secret}x', '{start}' + '{end}')\nput('/dev/shm/{secret}x', '{start}' + '{end}')\nsay('written')\nsys.stdin.readline()\n[os.unlink(at + '/{secret}x') for at in ['/tmp', '/dev/shm']]");
        let mut one = cx.fence().start_python(&script, &[]);
        one.wait_for("written");
        let run = cx.bash("grep -sh secret- /tmp/secret-* /dev/shm/secret-*", &[]);
        one.tell("end");
        one.end();
        run.knows_nothing_of(&secret)
    });
}

#[test]
fn processes_of_one_run_are_not_seen_by_another() {
    by_default().holds(|cx| {
        let marker = cx.marker();
        let mut one = cx.fence().start_python("say('ready')\nsys.stdin.readline()", &[&marker]);
        one.wait_for("ready");
        let run = cx.bash("cat /proc/[0-9]*/cmdline | tr '\\0' '\\n'", &[]);
        drop(one);
        run.knows_nothing_of(&marker)
    });
}

/// The fence keeps what it needs to itself: its own files, sockets and pipes.
#[test]
fn nothing_of_the_fence_is_left_open() {
    everywhere().never_bare().holds(|cx| {
        let run = cx.python("say('open', sorted(int(name) for name in os.listdir('/proc/self/fd') if os.path.lexists('/proc/self/fd/' + name)))", &[]);
        held(run.word("open") == "[0, 1, 2]", run.word("open"))
    });
}

/// Which part of the machine's hierarchy a run belongs to is told to nobody.
#[test]
fn the_control_group_of_the_host_is_not_told() {
    by_default().never_bare().holds(|cx| {
        let run = cx.bash("cut -d: -f3 /proc/self/cgroup | sort -u | sed 's/^/group /'", &[]);
        held(
            run.stdout
                .lines()
                .filter(|line| line.starts_with("group"))
                .all(|line| line == "group /"),
            run.stdout.clone(),
        )
    });
}
