//! Rules and commands from random numbers. Most of what comes out is sound and about the same few words, so that
//! rules and commands meet; some of it is wrong in one place.

use super::rng::Rng;

const PROGRAMS: &[&str] = &[
    "git",
    "git",
    "git",
    "ls",
    "npm",
    "/usr/bin/git",
    "/usr/bin/git",
    "/opt/x/git",
    "./git",
    "../git",
    "~/git",
    "~",
    "bin/git",
    "/usr/bin/../bin/git",
    "//usr//bin//git",
    "/usr/bin/git/",
    "/",
    ".",
    "..",
    "",
    "Git",
    "gït",
    "a b",
    "workspace",
    "x.exe",
];
const WORDS: &[&str] = &[
    "push",
    "push",
    "status",
    "status",
    "-x",
    "--force",
    "",
    "a b",
    "ü",
    "it's",
    "\"q\"",
    "\\",
    "$HOME",
    "#",
    "*",
    "--",
    "line\nbreak",
    "\u{1f600}",
    "push ",
];
const DECISIONS: &[&str] = &["allow", "prompt", "forbidden"];
const BAD_DECISIONS: &[&str] = &["deny", "Allow", "", "ask", " allow"];
const HOSTS: &[&str] = &[
    "example.com",
    "EXAMPLE.com.",
    "example.com:443",
    "[::1]:80",
    "::1",
    " a.b ",
    "a:b",
    "10.0.0.1:1",
    "x_y",
    "ü.example",
];
const BAD_HOSTS: &[&str] =
    &["", "*.example.com", "https://a", "a/b", "a b", "[::1", "[::1]x", ".", "a?b", "a#"];
const PROTOCOLS: &[&str] =
    &["http", "https", "https_connect", "http-connect", "socks5_tcp", "socks5_udp"];
const TWISTS: &[&str] = &[
    "x = 1\n",
    "def f(p):\n    prefix_rule(pattern = [p, 'push'], decision = 'prompt')\nf('git')\n",
    "[prefix_rule(pattern = ['git', w]) for w in ['push', 'status'] if w != 'status']\n",
    "for w in ['a', 'b']:\n    prefix_rule(pattern = [w])\n",
    "if True:\n    prefix_rule(pattern = ['ls'])\n",
    "w = 'push'\nprefix_rule(pattern = ['git', f'{w}'], justification = 'about {}'.format(w))\n",
    "prefix_rule(['git'] + ['push', '-x'][:1], 'prompt')\n",
    "prefix_rule(pattern = ['git'] * 2)\n",
    "prefix_rule(**{'pattern': ['git'], 'decision': 'forbidden'})\n",
    "load('x.rules', 'y')\n",
    "print('x')\n",
    "prefix_rule(('git', 'push'))\n",
    "prefix_rule(pattern = 'git')\n",
    "prefix_rule(pattern = ['git'], decision = None)\n",
    "prefix_rule(pattern = ['git'], other = 1)\n",
    "prefix_rule(pattern = ['git'], match = None)\n",
    "prefix_rule()\n",
    "x = lambda y: y\nprefix_rule([x('git')])\n",
    "\u{feff}x = 1\n",
    "x: int = 1\n",
    "def g(a: str) -> None:\n    pass\ng('x')\n",
    "r = prefix_rule(['ls'])\nif r == None:\n    prefix_rule(['npm'])\n",
    "x = struct(a = 1)\n",
    "x = {'a': 1}\nprefix_rule([k for k in x])\n",
    "fail('no')\n",
    "assert_eq(1, 1)\n",
    "pass\n",
    "\tx = 1\n",
    "if x:\n",
    "\"\"\"a doc string\n(\"\"\"\n",
    "prefix_rule(pattern = [\"\\x67it\", r\"push\"])\n",
    "while True:\n    pass\n",
    "import os\n",
    "prefix_rule(pattern = ['git'],)\r\n",
];

/// The text of a rules file. Commands that its rules match are added to `known`.
pub fn rules(rng: &mut Rng, known: &mut Vec<Vec<String>>) -> Vec<u8> {
    let mut text = String::new();
    for _ in 0..1 + rng.below(8) {
        match rng.below(24) {
            0 | 1 => text.push_str(&network(rng)),
            2..5 => text.push_str(&executable(rng)),
            5 if rng.one_in(2) => text.push_str(word(rng, TWISTS)),
            6 => text.push_str("# a comment\n\n"),
            _ => text.push_str(&prefix(rng, known)),
        }
    }
    let mut bytes = text.into_bytes();
    if rng.one_in(40) && !bytes.is_empty() {
        let at = rng.below(bytes.len());
        match rng.below(3) {
            0 => drop(bytes.remove(at)),
            1 => bytes.insert(at, *rng.pick(b"()[]{}'\"\\,#\n\t =\0\xff")),
            _ => bytes.truncate(at),
        }
    }
    bytes
}

fn word<'a>(rng: &mut Rng, from: &[&'a str]) -> &'a str {
    from[rng.below(from.len())]
}

/// A string as Starlark writes it.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\n' => quoted.push_str("\\n"),
            c => quoted.push(c),
        }
    }
    quoted + "\""
}

fn list(words: impl IntoIterator<Item = String>) -> String {
    format!("[{}]", words.into_iter().collect::<Vec<_>>().join(", "))
}

/// What stands at one place of a pattern, as text and as one of the words that fit it.
fn token(rng: &mut Rng, from: &[&str]) -> (String, String) {
    if rng.one_in(400) {
        return (
            (*rng.pick(&["1", "[]", "None", "['a', 1]", "[['a']]", "('a',)"])).to_owned(),
            "a".to_owned(),
        );
    }
    if rng.one_in(3) {
        let words: Vec<&str> = (0..1 + rng.below(3)).map(|_| word(rng, from)).collect();
        let fitting = word(rng, &words).to_owned();
        return (list(words.iter().map(|word| quoted(word))), fitting);
    }
    let word = word(rng, from);
    (quoted(word), word.to_owned())
}

fn decision(rng: &mut Rng) -> &'static str {
    if rng.one_in(200) { word(rng, BAD_DECISIONS) } else { word(rng, DECISIONS) }
}

fn prefix(rng: &mut Rng, known: &mut Vec<Vec<String>>) -> String {
    let mut tokens = vec![token(rng, PROGRAMS)];
    for _ in 0..rng.below(3) {
        tokens.push(token(rng, WORDS));
    }
    if rng.one_in(300) {
        tokens.clear();
    }
    let fitting: Vec<String> = tokens.iter().map(|(_, word)| word.clone()).collect();
    let mut arguments =
        vec![format!("pattern = {}", list(tokens.into_iter().map(|(text, _)| text)))];
    if !rng.one_in(4) {
        arguments.push(format!("decision = {}", quoted(decision(rng))));
    }
    if rng.one_in(3) {
        arguments.push(format!("match = {}", examples(rng, &fitting, true)));
    }
    if rng.one_in(5) {
        arguments.push(format!("not_match = {}", examples(rng, &fitting, false)));
    }
    if rng.one_in(3) {
        let why = if rng.one_in(80) {
            " \t"
        } else {
            *rng.pick(&["why not", "ü \"quoted\" \\", "two\nlines", "<&>\u{7f}"])
        };
        arguments.push(format!("justification = {}", quoted(why)));
    }
    known.push(fitting);
    format!("prefix_rule({})\n", arguments.join(", "))
}

fn plain(word: &str) -> bool {
    !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || "/.-_~".contains(c))
}

/// Examples that mostly hold.
fn examples(rng: &mut Rng, fitting: &[String], hold: bool) -> String {
    let mut examples = Vec::new();
    for _ in 0..rng.below(3) {
        let mut words: Vec<String> = fitting.to_vec();
        if hold == rng.one_in(120) {
            // One that does not fit: the first word is another one.
            words = vec!["another".to_owned(), "word".to_owned()];
        } else if rng.one_in(2) {
            words.push(word(rng, WORDS).to_owned());
        }
        examples.push(match rng.below(200) {
            0 => word(rng, &["\"\"", "[]", "1", "[1]", "\"it's\"", "None"]).to_owned(),
            // As text it is split again, and most of these words would come out as others.
            1..100 if rng.one_in(50) || words.iter().all(|word| plain(word)) => {
                quoted(&words.join(" "))
            }
            _ => list(words.iter().map(|word| quoted(word))),
        });
    }
    list(examples)
}

fn network(rng: &mut Rng) -> String {
    let host = if rng.one_in(40) { word(rng, BAD_HOSTS) } else { word(rng, HOSTS) };
    let protocol = if rng.one_in(60) { "ftp" } else { word(rng, PROTOCOLS) };
    let decision = if rng.one_in(4) { "deny" } else { decision(rng) };
    format!(
        "network_rule(host = {}, protocol = {}, decision = {})\n",
        quoted(host),
        quoted(protocol),
        quoted(decision)
    )
}

fn executable(rng: &mut Rng) -> String {
    let name = if rng.one_in(60) {
        *rng.pick(&["", "/git", "a/b", ".", "git/", "..", "./git"])
    } else {
        "git"
    };
    let good = [
        "/usr/bin/git",
        "/usr/bin/git",
        "/opt/x/git",
        "/usr//bin/./git",
        "/usr/lib/../bin/git",
        "/git",
    ];
    let paths = (0..rng.below(3)).map(|_| match rng.below(80) {
        0 => word(
            rng,
            &["\"git\"", "\"~/git\"", "1", "\"/usr/bin/hub\"", "\"\"", "\"/\"", "\"/git/..\""],
        )
        .to_owned(),
        _ => quoted(word(rng, &good)),
    });
    let paths: Vec<String> = paths.collect();
    format!("host_executable(name = {}, paths = {})\n", quoted(name), list(paths))
}

/// Options and a command: often one that a rule is about.
pub fn command(rng: &mut Rng, known: &[Vec<String>]) -> (Vec<&'static str>, Vec<String>) {
    let mut options = Vec::new();
    if rng.one_in(2) {
        options.push("--resolve-host-executables");
    }
    if rng.one_in(4) {
        options.push("--pretty");
    }
    let mut command = match known.is_empty() || rng.one_in(3) {
        true => vec![word(rng, PROGRAMS).to_owned()],
        false => rng.pick(known).clone(),
    };
    if command.first().is_none_or(|program| program == "git" && rng.one_in(2)) {
        command.splice(..command.len().min(1), [word(rng, PROGRAMS).to_owned()]);
    }
    command.extend((0..rng.below(3)).map(|_| word(rng, WORDS).to_owned()));
    // Without the two dashes, now and then: what begins with one of them later on is the command's own.
    if !rng.one_in(3) {
        command.insert(0, "--".to_owned());
    }
    (options, command)
}

/// Rules, and commands whose words stand between NULs.
pub const CORNERS: &[(&str, &[&str])] = &[
    ("", &["git", "", "git\0--pretty", "-r\0x"]),
    (
        "prefix_rule(['git', 'status'], 'forbidden')\nprefix_rule(['/usr/bin/git', 'status'])",
        &[
            "/usr/bin/git\0status",
            "/opt/git\0status",
            "git\0status",
            "./git\0status",
            "git\0-C\0x\0status",
        ],
    ),
    (
        "prefix_rule(['git'], 'prompt')\nhost_executable('git', [])",
        &["git", "/usr/bin/git", "./git", "~/git"],
    ),
    (
        "prefix_rule(['git'])\nhost_executable('git', ['/usr/bin/git'])\nhost_executable('git', ['/opt/git'])",
        &["/usr/bin/git", "/opt/git", "/opt/./x/../git"],
    ),
    ("prefix_rule(['workspace'])", &["", ".", "..", "../workspace", "~", "/", "/workspace/"]),
    ("prefix_rule(['home'])", &["~", "~/", "~/.", "~x", "~/../home"]),
    (
        "prefix_rule([['a', 'b', 'a'], ['x', 'x']], 'prompt', justification = 'ü\\n\"')",
        &["a\0x", "b\0x\0y", "a", "c\0x"],
    ),
    ("prefix_rule(['a'], match = ['./a', '/x/a', 'a b'], not_match = ['b'])", &["a"]),
    ("prefix_rule(['/x/a'], match = ['a'])", &["a"]),
    ("prefix_rule(['a'], match = ['a # b'])", &["a\0#"]),
    ("prefix_rule(['a'], match = ['# a'])", &["a"]),
    ("prefix_rule(['a', 'b c'], match = ['a \"b c\"', \"a b\\\\ c\"])", &["a\0b c"]),
    ("prefix_rule(['a'], match = ['b'], not_match = ['a'])", &["a"]),
    ("prefix_rule(['a'], 'allow', [], [], 'why')", &["a"]),
    ("prefix_rule(['a'], 'allow', [], [], 'why', 1)", &["a"]),
    ("prefix_rule(['a' for _ in range(300)])", &["a"]),
    ("[prefix_rule([str(n)], 'prompt') for n in range(2000)]", &["7", "1999", "2000"]),
    ("def f(n):\n    if n:\n        f(n - 1)\n    else:\n        prefix_rule(['a'])\nf(3)", &["a"]),
    ("def f(n):\n    return n\nprefix_rule([f(x) for x in ['a', 'b']])", &["a\0b", "a"]),
    ("x = [1, 2\n", &["a"]),
    ("prefix_rule(['a'])\nx = 'never closed\n", &["a"]),
    ("network_rule('a', 'http', 'prompt', 'why')\nnetwork_rule('a', 'http', 'deny', '')", &["a"]),
    ("network_rule('ü.example.', 'socks5_udp', 'deny')", &["a"]),
    ("host_executable('a', ['/x/a/'])\nprefix_rule(['a'])", &["/x/a", "/x/a/"]),
];
