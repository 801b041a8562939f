//! What a command with a package runner asks for: packages, the program in them and its arguments.
//!
//! Only the options that name packages are understood. Anything else is an error, because a guess
//! would install or start something that no one asked for.

use std::path::Path;

/// Package runner that a server's command names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PackageRunner {
    Npx,
    Bunx,
    Uvx,
    Pipx,
}

impl PackageRunner {
    const ALL: [PackageRunner; 4] =
        [PackageRunner::Npx, PackageRunner::Bunx, PackageRunner::Uvx, PackageRunner::Pipx];

    /// Returns the runner that this command is, by its file name.
    pub fn from_command(command: &str) -> Option<PackageRunner> {
        let name = Path::new(command).file_name()?;
        PackageRunner::ALL.into_iter().find(|runner| name == runner.name())
    }

    /// Returns the name of its program.
    pub fn name(self) -> &'static str {
        match self {
            PackageRunner::Npx => "npx",
            PackageRunner::Bunx => "bunx",
            PackageRunner::Uvx => "uvx",
            PackageRunner::Pipx => "pipx",
        }
    }

    /// Returns whether its packages are Python's.
    pub fn is_python(self) -> bool {
        matches!(self, PackageRunner::Uvx | PackageRunner::Pipx)
    }
}

/// What a server's command and arguments ask a package runner for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackageRequest {
    pub runner: PackageRunner,
    /// Packages to install; the first one has the program.
    pub packages: Vec<String>,
    /// Program to start. If absent, the package says which one.
    pub program: Option<String>,
    /// Version of Python, such as `3.12`.
    pub python: Option<String>,
    /// Arguments of the program.
    pub args: Vec<String>,
}

impl PackageRequest {
    /// Parses the arguments of a runner. The error says what is not understood.
    pub fn parse(runner: PackageRunner, args: &[String]) -> Result<PackageRequest, String> {
        let mut words = args.iter().map(String::as_str);
        if runner == PackageRunner::Pipx && words.next() != Some("run") {
            return Err("`pipx` is used without `run`".to_owned());
        }
        let options = RunnerOptions::parse(runner, &mut words)?;
        let target = options.target.ok_or("it names no package")?;
        let mut request = match runner.is_python() {
            true => python_request(runner, target, options.packages)?,
            false => npm_request(runner, target, options.packages)?,
        };
        request.packages.extend(options.additional);
        request.python = options.python;
        request.args = words.map(str::to_owned).collect();
        request.check()?;
        Ok(request)
    }

    /// Returns the name of the first package, without its version.
    pub fn package_name(&self) -> &str {
        let package = self.packages.first().map_or("", String::as_str);
        match self.runner.is_python() {
            true => split_requirement(package).0,
            false => split_npm_spec(package).0,
        }
    }

    fn check(&self) -> Result<(), String> {
        let is_package = if self.runner.is_python() { is_requirement } else { is_npm_spec };
        if let Some(package) = self.packages.iter().find(|package| !is_package(package)) {
            return Err(format!("`{package}` is not the name of a package in a registry"));
        }
        if let Some(program) = self.program.as_deref().filter(|name| !is_program_name(name)) {
            return Err(format!("`{program}` is not the name of a program"));
        }
        let is_version = |text: &str| text.chars().all(|c| c.is_ascii_digit() || c == '.');
        match self.python.as_deref().filter(|text| text.is_empty() || !is_version(text)) {
            Some(python) => Err(format!("`{python}` is not a version of Python, such as `3.12`")),
            None => Ok(()),
        }
    }
}

/// Leading options of a runner.
#[derive(Default)]
struct RunnerOptions<'a> {
    /// Packages that are named by an option, the one with the program first.
    packages: Vec<String>,
    /// Packages that are installed next to it.
    additional: Vec<String>,
    python: Option<String>,
    /// First word that is no option.
    target: Option<&'a str>,
}

impl<'a> RunnerOptions<'a> {
    fn parse(
        runner: PackageRunner,
        words: &mut impl Iterator<Item = &'a str>,
    ) -> Result<RunnerOptions<'a>, String> {
        let mut options = RunnerOptions::default();
        while let Some(word) = words.next() {
            if word == "--" {
                options.target = words.next();
                return Ok(options);
            }
            if !word.starts_with('-') {
                options.target = Some(word);
                return Ok(options);
            }
            let (name, inline_value) = match word.split_once('=') {
                Some((name, value)) if name.starts_with("--") => (name, Some(value)),
                _ => (word, None),
            };
            if !runner.is_python() && matches!(word, "-y" | "--yes") {
                continue;
            }
            let slot = RunnerOption::find(runner, name)
                .ok_or_else(|| format!("its option `{word}` is not understood"))?;
            let value = inline_value.or_else(|| words.next());
            let value = value.ok_or_else(|| format!("its option `{word}` has no value"))?;
            options.add(slot, value);
        }
        Ok(options)
    }

    fn add(&mut self, option: RunnerOption, value: &str) {
        match option {
            RunnerOption::Package => self.packages.push(value.to_owned()),
            RunnerOption::With => {
                self.additional.extend(value.split(',').map(|one| one.trim().to_owned()));
            }
            RunnerOption::Python => self.python = Some(value.to_owned()),
        }
    }
}

/// Option of a runner that says what is installed.
#[derive(Clone, Copy)]
enum RunnerOption {
    Package,
    With,
    Python,
}

impl RunnerOption {
    fn find(runner: PackageRunner, name: &str) -> Option<RunnerOption> {
        match (runner, name) {
            (PackageRunner::Npx | PackageRunner::Bunx, "-p" | "--package")
            | (PackageRunner::Uvx, "--from")
            | (PackageRunner::Pipx, "--spec") => Some(RunnerOption::Package),
            (PackageRunner::Uvx | PackageRunner::Pipx, "--with") => Some(RunnerOption::With),
            (PackageRunner::Uvx, "-p") | (PackageRunner::Uvx | PackageRunner::Pipx, "--python") => {
                Some(RunnerOption::Python)
            }
            _ => None,
        }
    }
}

fn npm_request(
    runner: PackageRunner,
    target: &str,
    packages: Vec<String>,
) -> Result<PackageRequest, String> {
    let (packages, program) = match packages.is_empty() {
        true => (vec![target.to_owned()], None),
        false => (packages, Some(target.to_owned())),
    };
    Ok(PackageRequest { runner, packages, program, python: None, args: Vec::new() })
}

/// A word without a package option names both the package and its program: `name`, and for uvx also
/// `name@version`, for pipx `name==version`.
fn python_request(
    runner: PackageRunner,
    target: &str,
    packages: Vec<String>,
) -> Result<PackageRequest, String> {
    if packages.len() > 1 {
        return Err("it names the package more than once".to_owned());
    }
    let (packages, program) = match (packages.is_empty(), runner) {
        (false, _) => (packages, target),
        (true, PackageRunner::Pipx) => (vec![target.to_owned()], split_requirement(target).0),
        (true, _) => {
            let package = match target.split_once('@') {
                Some((name, "latest")) => name.to_owned(),
                Some((name, version)) => format!("{name}=={version}"),
                None => target.to_owned(),
            };
            (vec![package], split_requirement(target.split('@').next().unwrap_or(target)).0)
        }
    };
    let program = Some(program.to_owned());
    Ok(PackageRequest { runner, packages, program, python: None, args: Vec::new() })
}

/// Splits `@scope/name@version` into name and version.
fn split_npm_spec(spec: &str) -> (&str, Option<&str>) {
    let scope_length =
        spec.strip_prefix('@').and_then(|rest| rest.find('/')).map_or(0, |at| at + 2);
    match spec[scope_length..].find('@') {
        Some(at) => (&spec[..scope_length + at], Some(&spec[scope_length + at + 1..])),
        None => (spec, None),
    }
}

/// Returns whether npm takes this from its registry: not a path, an address, a repository or
/// another name.
fn is_npm_spec(spec: &str) -> bool {
    let (name, version) = split_npm_spec(spec);
    let is_part = |part: &str| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.~".contains(c);
        part.starts_with(|c: char| c.is_ascii_alphanumeric()) && part.chars().all(is_plain)
    };
    let is_name = match name.strip_prefix('@').map(|scoped| scoped.split_once('/')) {
        Some(Some((scope, name))) => is_part(scope) && is_part(name),
        Some(None) => false,
        None => is_part(name),
    };
    let is_version = |version: &str| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.+^~<>=*| ".contains(c);
        !version.is_empty() && version.chars().all(is_plain)
    };
    is_name && version.is_none_or(is_version)
}

/// Splits `name[extra]>=1` into the name and the rest.
fn split_requirement(requirement: &str) -> (&str, &str) {
    let is_name = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let end = requirement.find(|c| !is_name(c)).unwrap_or(requirement.len());
    requirement.split_at(end)
}

/// Returns whether Python's package managers take this from their index.
fn is_requirement(requirement: &str) -> bool {
    let (name, rest) = split_requirement(requirement);
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.,[]<>=!~*+ ".contains(c);
    name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && (rest.is_empty() || rest.starts_with(['[', '<', '>', '=', '!', '~', ' ']))
        && rest.chars().all(is_plain)
}

/// Returns whether a name is a file in the directory of programs, and nowhere else.
pub fn is_program_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<PackageRequest, String> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let runner = PackageRunner::from_command(&words[0]).unwrap();
        PackageRequest::parse(runner, &words[1..])
    }

    #[track_caller]
    fn assert_parsed(line: &str, packages: &[&str], program: Option<&str>, args: &[&str]) {
        let request = parse(line).unwrap();
        assert_eq!(request.packages, packages, "{line}");
        assert_eq!(request.program.as_deref(), program, "{line}");
        assert_eq!(request.args, args, "{line}");
    }

    #[test]
    fn only_the_runners_are_package_servers() {
        let name = |command| PackageRunner::from_command(command).map(PackageRunner::name);
        assert_eq!(name("/opt/node/bin/npx"), Some("npx"));
        assert_eq!(name("uvx"), Some("uvx"));
        for other in ["npm", "node", "/npx/server", "uv", "npx.sh", ""] {
            assert_eq!(name(other), None, "{other}");
        }
    }

    #[test]
    fn the_package_is_told_from_the_arguments_of_its_program() {
        assert_parsed("npx -y @a/server@1.2 -p x", &["@a/server@1.2"], None, &["-p", "x"]);
        assert_parsed("npx server", &["server"], None, &[]);
        assert_parsed(
            "npx --yes --package=one -p two@^2 -- run --",
            &["one", "two@^2"],
            Some("run"),
            &["--"],
        );
        assert_parsed("bunx one a", &["one"], None, &["a"]);
        assert_parsed(
            "uvx mcp-server-git --from x",
            &["mcp-server-git"],
            Some("mcp-server-git"),
            &["--from", "x"],
        );
        assert_parsed("uvx one[x]@1.2 a", &["one[x]==1.2"], Some("one"), &["a"]);
        assert_parsed("uvx one@latest", &["one"], Some("one"), &[]);
        assert_parsed(
            "uvx -p 3.12 --with two,three --from one>=1 run",
            &["one>=1", "two", "three"],
            Some("run"),
            &[],
        );
        assert_parsed("pipx run one==1.0 x", &["one==1.0"], Some("one"), &["x"]);
        assert_parsed("pipx run --spec one[cli] run", &["one[cli]"], Some("run"), &[]);
        assert_eq!(parse("uvx --python=3.12 one").unwrap().python.as_deref(), Some("3.12"));
        assert_eq!(parse("npx @a/b@1").unwrap().package_name(), "@a/b");
        assert_eq!(parse("uvx one[x]@1").unwrap().package_name(), "one");
    }

    #[test]
    fn what_is_not_understood_is_an_error_and_never_a_guess() {
        for line in [
            "npx",
            "npx -y",
            "npx -c x",
            "npx --call=x one",
            "npx --registry http://x one",
            "npx -p",
            "npx github:a/b",
            "npx a/b",
            "npx ./one",
            "npx one@npm:two",
            "npx one@http://x/y.tgz",
            "npx @a",
            "npx -p one ../run",
            "npx -p one -- --run",
            "npx .bin",
            "uvx -y one",
            "uvx --index x one",
            "uvx --from git+https://x/y one",
            "uvx --from ./one one",
            "uvx --from one --from two one",
            "uvx --python /usr/bin/python3 one",
            "uvx --from one a/b",
            "pipx one",
            "pipx install one",
            "pipx run https://x/y.py",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
