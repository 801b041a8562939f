use jail::rights::{ProtectedPath, StandIn};

use super::*;
use crate::config::scratch::Scratch;

fn rights(workspace: &Path) -> Rights {
    let mut rights = Rights {
        workspace: workspace.to_owned(),
        network: NetworkAccess::All,
        ..Rights::default()
    };
    for name in [".codex", ".agents", ".ringfence"] {
        rights
            .protected
            .push(ProtectedPath { path: workspace.join(name), stand_in: StandIn::Directory });
    }
    rights
}

fn narrowing(entries: Vec<ClientAccessEntry>) -> ClientSandbox {
    let files = Some(ClientFileAccess { entries, ..ClientFileAccess::default() });
    ClientSandbox {
        mode: "managed".into(),
        files,
        allows_network: true,
        unsandboxed: false,
        ignored: vec![],
    }
}

fn workspace(scratch: &Scratch) -> PathBuf {
    let workspace = scratch.dir("workspace").canonicalize().unwrap();
    for name in ["src/inner/deep", "vendor", ".git"] {
        std::fs::create_dir_all(workspace.join(name)).unwrap();
    }
    workspace
}

fn protected(rights: &Rights) -> Vec<String> {
    let names =
        rights.protected.iter().map(|one| one.path.strip_prefix(&rights.workspace).unwrap());
    names.map(|path| path.display().to_string()).collect()
}

#[test]
fn no_narrowing_changes_nothing_and_the_most_restrictive_leaves_reading() {
    let rights = rights(Path::new("/w"));
    let none = ClientSandbox { files: None, ..narrowing(vec![]) };
    assert_eq!(none.apply_to(&rights).unwrap().rights, rights);
    let least = ClientSandbox::most_restrictive().apply_to(&rights).unwrap().rights;
    assert!(least.read_only && least.network == NetworkAccess::Off);
    assert!(least.hidden.is_empty() && least.partial_covers.is_empty(), "{least:?}");
}

#[test]
fn a_network_is_taken_and_never_given() {
    let off = Rights { network: NetworkAccess::Off, ..rights(Path::new("/w")) };
    assert_eq!(
        narrowing(vec![ClientAccessEntry::for_path("/", ClientAccess::Write)])
            .apply_to(&off)
            .unwrap()
            .rights
            .network,
        NetworkAccess::Off
    );
}

#[test]
fn the_most_specific_entry_wins_and_deny_beats_write_beats_read() {
    let scratch = Scratch::new();
    let at = workspace(&scratch);
    let entries = vec![
        ClientAccessEntry::for_path("/", ClientAccess::Read),
        ClientAccessEntry::for_path(&at, ClientAccess::Read),
        ClientAccessEntry::for_path(&at, ClientAccess::Write),
        ClientAccessEntry::for_path(at.join("vendor"), ClientAccess::Read),
        ClientAccessEntry::for_path(at.join("src"), ClientAccess::Write),
        ClientAccessEntry::for_path(at.join("src"), ClientAccess::Deny),
    ];
    let narrowed = narrowing(entries).apply_to(&rights(&at)).unwrap();
    assert!(!narrowed.rights.read_only);
    assert_eq!(protected(&narrowed.rights), [".codex", ".agents", ".ringfence", ".git", "vendor"]);
    assert_eq!(narrowed.rights.hidden, [at.join("src")]);
}

#[test]
fn parts_of_the_workspace_are_opened_and_closed_in_turn() {
    let scratch = Scratch::new();
    let at = workspace(&scratch);
    let entries = vec![
        ClientAccessEntry::for_path("/", ClientAccess::Read),
        ClientAccessEntry::for_path(at.join("src"), ClientAccess::Write),
        ClientAccessEntry::for_path(at.join("src/inner"), ClientAccess::Read),
        ClientAccessEntry::for_path(at.join("src/inner/deep"), ClientAccess::Write),
        ClientAccessEntry::for_path(at.join("missing"), ClientAccess::Write),
        ClientAccessEntry::for_path("/elsewhere/entirely", ClientAccess::Write),
    ];
    let narrowed = narrowing(entries).apply_to(&rights(&at)).unwrap();
    assert!(narrowed.rights.read_only);
    assert_eq!(narrowed.rights.writable, [at.join("src"), at.join("src/inner/deep")]);
    assert_eq!(protected(&narrowed.rights)[3..], ["src/inner".to_owned()]);
    assert_eq!(
        narrowed.ignored,
        [
            "/elsewhere/entirely is outside the workspace, so it is not opened for writing",
            "missing is not a directory, so it is not opened for writing"
        ]
    );
}

#[test]
fn what_the_operator_protects_or_hides_is_not_opened() {
    let scratch = Scratch::new();
    let at = workspace(&scratch);
    std::fs::create_dir_all(at.join(".codex/mine")).unwrap();
    std::fs::create_dir_all(at.join("secret/mine")).unwrap();
    let mut rights = rights(&at);
    rights.hidden.push(at.join("secret"));
    let entries = vec![
        ClientAccessEntry::for_path("/", ClientAccess::Read),
        ClientAccessEntry::for_path(at.join(".codex/mine"), ClientAccess::Write),
        ClientAccessEntry::for_path(at.join("secret/mine"), ClientAccess::Write),
    ];
    let narrowed = narrowing(entries).apply_to(&rights).unwrap();
    assert!(narrowed.rights.writable.is_empty(), "{narrowed:?}");
    assert_eq!(narrowed.ignored.len(), 2);
}

/// A run may have put the link there while it was allowed more.
#[test]
fn a_link_inside_the_workspace_opens_nothing() {
    let scratch = Scratch::new();
    let at = workspace(&scratch);
    std::os::unix::fs::symlink(".", at.join("link")).unwrap();
    let entries = vec![
        ClientAccessEntry::for_path("/", ClientAccess::Read),
        ClientAccessEntry::for_path(at.join("link"), ClientAccess::Write),
    ];
    let narrowed = narrowing(entries).apply_to(&rights(&at)).unwrap();
    assert!(narrowed.rights.read_only && narrowed.rights.writable.is_empty(), "{narrowed:?}");
}

#[test]
fn the_workspace_is_known_by_a_link_that_leads_to_it() {
    let scratch = Scratch::new();
    let at = workspace(&scratch);
    let link = scratch.path().join("link");
    std::os::unix::fs::symlink(&at, &link).unwrap();
    let entries = vec![
        ClientAccessEntry::for_path("/", ClientAccess::Read),
        ClientAccessEntry::for_path(&link, ClientAccess::Write),
    ];
    assert!(!narrowing(entries).apply_to(&rights(&at)).unwrap().rights.read_only);
    let mut denies = narrowing(vec![ClientAccessEntry::for_path("/", ClientAccess::Write)]);
    std::fs::write(at.join("src/.env"), "").unwrap();
    denies.files.as_mut().unwrap().denied_globs =
        vec![Glob::parse(&format!("{}/**/*.env", link.display())).unwrap()];
    assert_eq!(denies.apply_to(&rights(&at)).unwrap().rights.hidden, [at.join("src/.env")]);
}

#[test]
fn another_writable_place_of_the_operators_needs_the_clients_word_too() {
    let scratch = Scratch::new();
    let at = workspace(&scratch);
    let data = scratch.dir("data").canonicalize().unwrap();
    let rights = Rights { writable: vec![data.clone()], ..rights(&at) };
    let entries = || {
        vec![
            ClientAccessEntry::for_path("/", ClientAccess::Read),
            ClientAccessEntry::for_path(&at, ClientAccess::Write),
        ]
    };
    let narrowed = narrowing(entries()).apply_to(&rights).unwrap().rights;
    assert_eq!((narrowed.writable, narrowed.read_only_dirs), (vec![], vec![data.clone()]));
    let mut with = entries();
    with.push(ClientAccessEntry::for_path(&data, ClientAccess::Write));
    let narrowed = narrowing(with).apply_to(&rights).unwrap().rights;
    assert_eq!((narrowed.writable, narrowed.read_only_dirs), (vec![data], vec![]));
}

#[test]
fn reads_that_nothing_allows_are_hidden_around_what_is_needed() {
    let scratch = Scratch::new();
    let at = workspace(&scratch);
    let home = scratch.dir("home").canonicalize().unwrap();
    let installed = PathBuf::from("/var/lib/ringfence/tree");
    let rights = Rights { home: Some(home), readable: vec![installed.clone()], ..rights(&at) };
    let narrowed = narrowing(vec![ClientAccessEntry::for_path(&at, ClientAccess::Write)])
        .apply_to(&rights)
        .unwrap()
        .rights;
    let sees = |path: &str| {
        !narrowed
            .hidden
            .iter()
            .chain(narrowed.partial_covers.iter().map(|veil| &veil.path))
            .any(|at| at == Path::new(path))
    };
    assert!(sees("/usr") && sees("/etc") && sees("/tmp") && sees("/proc"));
    for folder in
        ["/home", "/root", "/opt", "/srv"].iter().filter(|folder| Path::new(folder).is_dir())
    {
        assert!(!sees(folder), "{folder}: {narrowed:?}");
    }
    let var = narrowed.partial_covers.iter().find(|veil| veil.path == Path::new("/var")).unwrap();
    assert_eq!(var.keep, [installed, PathBuf::from("/var/tmp")]);
}

#[test]
fn a_workspace_that_the_client_may_not_read_is_refused() {
    let scratch = Scratch::new();
    let at = workspace(&scratch);
    let error = narrowing(vec![ClientAccessEntry::for_path("/elsewhere", ClientAccess::Write)])
        .apply_to(&rights(&at))
        .unwrap_err();
    assert_eq!(error.reason_name(), Some("client_denied"));
    assert!(error.hint_text().unwrap().contains("`managed`"));
}

#[test]
fn what_the_client_calls_its_project_is_the_workspace_unless_it_says_where() {
    let scratch = Scratch::new();
    let at = workspace(&scratch);
    let mut narrowing = narrowing(vec![
        ClientAccessEntry::for_path("/", ClientAccess::Read),
        ClientAccessEntry::for_project("", ClientAccess::Write),
    ]);
    assert!(!narrowing.apply_to(&rights(&at)).unwrap().rights.read_only);
    narrowing.files.as_mut().unwrap().cwd = Some(at.join("src"));
    let narrowed = narrowing.apply_to(&rights(&at)).unwrap().rights;
    assert!(narrowed.read_only);
    assert_eq!(narrowed.writable, [at.join("src")]);
}

#[test]
fn a_cover_that_could_not_be_put_on_is_refused() {
    let scratch = Scratch::new();
    let at = workspace(&scratch);
    let rights = Rights { home: Some(at.join("src/state/home")), ..rights(&at) };
    let entries = vec![
        ClientAccessEntry::for_path("/", ClientAccess::Write),
        ClientAccessEntry::for_path(at.join("src"), ClientAccess::Deny),
    ];
    assert_eq!(
        narrowing(entries).apply_to(&rights).unwrap_err().reason_name(),
        Some("client_sandbox")
    );
    let entries = vec![
        ClientAccessEntry::for_path("/", ClientAccess::Write),
        ClientAccessEntry::for_path(at.join("vendor"), ClientAccess::Deny),
    ];
    assert!(narrowing(entries).apply_to(&rights).is_ok());
}
