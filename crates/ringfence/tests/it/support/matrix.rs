//! Every transport in every protocol version that its clients speak.

use super::{Client, Options, Server, Transport};

pub struct Cell {
    pub transport: Transport,
    pub version: &'static str,
}

const fn cell(transport: Transport, version: &'static str) -> Cell {
    Cell { transport, version }
}

pub const CELLS: &[Cell] = &[
    cell(Transport::Stdio, "2025-06-18"),
    cell(Transport::Stdio, "2025-11-25"),
    cell(Transport::Stdio, "2026-07-28"),
    cell(Transport::Http, "2025-06-18"),
    cell(Transport::Http, "2025-11-25"),
    cell(Transport::Http, "2026-07-28"),
    cell(Transport::Sse, "2024-11-05"),
    cell(Transport::Sse, "2025-06-18"),
    cell(Transport::Sse, "2026-07-28"),
];

/// One cell per transport and era: enough where the version itself does not matter.
pub fn eras() -> impl Iterator<Item = &'static Cell> {
    CELLS.iter().filter(|cell| {
        !matches!(
            (cell.transport, cell.version),
            (Transport::Stdio | Transport::Http, "2025-06-18") | (Transport::Sse, "2024-11-05")
        )
    })
}

/// Runs a scenario in every cell, each on a server of its own.
pub fn on_every_transport(
    options: impl Fn(Options) -> Options,
    scenario: impl Fn(&mut Server, &mut Client),
) {
    for cell in CELLS {
        on_cell(cell, &options, &scenario);
    }
}

pub fn on_cell(
    cell: &Cell,
    options: impl Fn(Options) -> Options,
    scenario: impl Fn(&mut Server, &mut Client),
) {
    // A failure inside names no cell by itself.
    eprintln!("on {:?} {}", cell.transport, cell.version);
    let mut server = options(Options::new(cell.transport)).spawn();
    let mut client = server.connect(cell.version);
    scenario(&mut server, &mut client);
}

/// The same for cells that mostly wait: all at once.
pub fn on_cells_at_once(
    cells: impl Iterator<Item = &'static Cell>,
    options: impl Fn(Options) -> Options + Sync,
    scenario: impl Fn(&mut Server, &mut Client) + Sync,
) {
    let (options, scenario) = (&options, &scenario);
    std::thread::scope(|scope| {
        for cell in cells {
            scope.spawn(move || on_cell(cell, options, scenario));
        }
    });
}
